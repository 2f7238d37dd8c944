//! Opens a path with the restrictions `RESOLVE_NO_SYMLINKS` and `RESOLVE_BENEATH` of openat2(2).
//!
//! Where the call fails with `ENOSYS`, the path is walked component by component, each relative to the directory before: on kernels before
//! 5.6, and in services with `RestrictSUIDSGID=` of systemd, whose filter of system calls cannot see the flags of openat2 (systemd.exec(5)).
//! A file that is replaced by a symbolic link during the walk is the error `ELOOP`, and `..` returns to a directory that is already open.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};

/// Maximum number of symbolic links in a path, as in the kernel: path_resolution(7).
const LINKS_MAX: usize = 40;

/// Opens a directory on the way to a file.
const ON_THE_WAY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a path from a directory, or from the root when it begins with a slash.
///
/// # Errors
/// Those of openat2(2).
pub(super) fn open(
    dir: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    match retry_on_intr(|| rustix::fs::openat2(dir, path, flags, mode, resolve)) {
        Err(Errno::NOSYS) => walk(dir, path.to_bytes(), flags, mode, resolve),
        opened => opened,
    }
}

fn walk(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    if !(ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH).contains(resolve) || resolve.is_empty() {
        return Err(Errno::NOSYS);
    }
    let is_beneath = resolve.contains(ResolveFlags::BENEATH);
    let (mut left, mut links) = (Vec::new(), 0);
    // The open directories from the start of the path on.
    let mut above: Vec<OwnedFd> = Vec::new();
    enter(path, is_beneath, &mut left, &mut above)?;
    while let Some(name) = left.pop() {
        let here = above.last().map_or(dir, AsFd::as_fd);
        let is_last = left.is_empty();
        match name.as_slice() {
            b"." if !is_last => continue,
            b"." => return open_at(here, &name, flags, mode),
            b".." => {
                if is_beneath {
                    above.pop().ok_or(Errno::XDEV)?;
                } else {
                    above.push(open_at(here, &name, ON_THE_WAY, Mode::empty())?);
                }
                if is_last {
                    left.push(b".".to_vec());
                }
                continue;
            }
            _ if is_last && flags.contains(OFlags::CREATE) => {
                return open_at(here, &name, flags | OFlags::NOFOLLOW, mode);
            }
            _ => {}
        }
        let found = open_at(here, &name, ON_THE_WAY, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Symlink {
            if is_last && flags.contains(OFlags::PATH | OFlags::NOFOLLOW) {
                return Ok(found);
            }
            links += 1;
            let is_refused = resolve.contains(ResolveFlags::NO_SYMLINKS) || links > LINKS_MAX;
            if is_refused || (is_last && flags.contains(OFlags::NOFOLLOW)) {
                return Err(Errno::LOOP);
            }
            let target = rustix::fs::readlinkat(&found, c"", Vec::new())?;
            enter(target.to_bytes(), is_beneath, &mut left, &mut above)?;
        } else if is_last {
            return open_at(here, &name, flags | OFlags::NOFOLLOW, mode);
        } else {
            above.push(open_at(here, &name, ON_THE_WAY | OFlags::DIRECTORY, Mode::empty())?);
        }
    }
    Err(Errno::NOENT)
}

/// Adds the components of a path, the first one last. A final slash requires a directory.
fn enter(
    path: &[u8],
    is_beneath: bool,
    left: &mut Vec<Vec<u8>>,
    above: &mut Vec<OwnedFd>,
) -> Result<(), Errno> {
    if path.starts_with(b"/") {
        if is_beneath {
            return Err(Errno::XDEV);
        }
        above.push(rustix::fs::open("/", ON_THE_WAY, Mode::empty())?);
    }
    let end: &[u8] = if path.ends_with(b"/") { b"." } else { b"" };
    let parts = path.split(|&byte| byte == b'/').chain([end]).filter(|part| !part.is_empty());
    let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    left.extend(parts.into_iter().rev());
    Ok(())
}

fn open_at(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    retry_on_intr(|| rustix::fs::openat(dir, &name, flags, mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Returns device and inode, or the error.
    fn identity(opened: Result<OwnedFd, Errno>) -> Result<(u64, u64), Errno> {
        let facts = rustix::fs::fstat(opened?)?;
        Ok((facts.st_dev, facts.st_ino))
    }

    #[test]
    fn the_walk_has_the_results_of_openat2() {
        let top = std::env::temp_dir().join(format!("ringroad-walk-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top);
        std::fs::create_dir_all(top.join("root/a/b")).expect("a directory");
        std::fs::write(top.join("root/a/f"), "f").expect("a file");
        std::fs::write(top.join("secret"), "s").expect("a file");
        for (target, link) in [
            ("a", "root/in"),
            ("../secret", "root/out"),
            ("/etc/hostname", "root/absolute"),
            ("loop", "root/loop"),
            ("../../a/b/../f", "root/a/b/up"),
            ("none", "root/dangling"),
            ("b/", "root/a/slash"),
        ] {
            symlink(target, top.join(link)).expect("a link");
        }
        let dir = rustix::fs::open(top.join("root"), OFlags::PATH, Mode::empty()).expect("a directory");
        let paths = [
            "a/f",
            "a/f/",
            "a/b/",
            "a",
            ".",
            "./a/./f",
            "a/..",
            "a/../a/f",
            "..",
            "../secret",
            "in/f",
            "in",
            "out",
            "absolute",
            "loop",
            "loop/x",
            "a/b/up",
            "dangling",
            "none/x",
            "a/f/x",
            "/etc",
            "a/slash",
            "a/slash/..",
            "in/../a//f",
        ];
        let flags = [
            OFlags::RDONLY,
            OFlags::RDONLY | OFlags::NOFOLLOW,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::DIRECTORY,
        ];
        let (beneath, no_links) = (ResolveFlags::BENEATH, ResolveFlags::NO_SYMLINKS);
        for path in paths {
            for flags in flags {
                for resolve in [beneath, no_links, beneath | no_links] {
                    let (flags, text) = (flags | OFlags::CLOEXEC, CString::new(path).expect("no zero"));
                    let by_call = rustix::fs::openat2(&dir, &text, flags, Mode::empty(), resolve);
                    if by_call.as_ref().is_err_and(|errno| *errno == Errno::NOSYS) {
                        eprintln!("skipped: openat2 is not available");
                        return;
                    }
                    let walked = walk(dir.as_fd(), path.as_bytes(), flags, Mode::empty(), resolve);
                    assert_eq!(identity(walked), identity(by_call), "{path} {flags:?} {resolve:?}");
                }
            }
        }
        std::fs::remove_dir_all(top).expect("it was made here");
    }
}
