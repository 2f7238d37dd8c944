//! Opens paths in directories that another user may write to, such as the user of workers.
//!
//! The master is often root, so a symbolic link of a worker could make it read, write or give away any file, and a FIFO could block
//! it. Each component of a path is opened on its own: a symbolic link is followed only if root or the user of this process owns it.
//! This is checked with the open link, so it cannot be replaced in between. A FIFO is used under the same condition.
//!
//! If workers have the user of the master, the owner of a link does not tell who has created it. Links of this user are then not followed
//! in directories that the sandbox lets workers write to ([`distrust`]).
//!
//! Limits: hard links to files of others are not recognised for logs (the kernel refuses to create them with
//! `fs.protected_hardlinks`, proc_sys_fs(5)). Links of procfs, such as `/proc/self/fd/1`, are followed by the kernel.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, PROC_SUPER_MAGIC, Stat, Uid};
use rustix::io::Errno;

/// Maximum number of symbolic links in a path, as in the kernel: path_resolution(7).
const LINKS_MAX: usize = 40;

/// Maximum size in bytes of a file that workers write and the master reads.
const WRITTEN_BYTES_MAX: u64 = 64 << 20;

/// Type of the file system of pipes without a name (`PIPEFS_MAGIC` in linux/magic.h).
const PIPEFS_MAGIC: rustix::fs::FsWord = 0x5049_5045;

/// The user of workers, and the directories that it may write to: without symbolic links, those of earlier configurations too.
static WORKERS: Mutex<(Option<u32>, BTreeSet<PathBuf>)> = Mutex::new((None, BTreeSet::new()));

/// Opens a directory of a path.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// From now on, follows no symbolic link of this user in these directories, which workers may write to.
pub(crate) fn distrust(user: u32, directories: impl IntoIterator<Item = PathBuf>) {
    let mut workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    workers.0 = Some(user);
    workers.1.extend(directories);
}

/// Opens a file, which may be a device or a FIFO, but not a FIFO of another user.
pub(crate) fn open_file(path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let file = match open(path, flags | OFlags::NONBLOCK, mode) {
        // A socket, or a FIFO without a reader. As in nginx, the open waits for the reader.
        Err(Errno::NXIO) => {
            let fifo = open(path, OFlags::PATH, Mode::empty())?;
            let found = rustix::fs::fstat(&fifo)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Fifo || !is_trusted(&found) {
                return Err(Errno::NXIO);
            }
            let flags = (flags | OFlags::CLOEXEC) - OFlags::CREATE;
            return rustix::fs::open(format!("/proc/self/fd/{}", fifo.as_raw_fd()), flags, mode);
        }
        opened => opened?,
    };
    let found = rustix::fs::fstat(&file)?;
    let is_fifo = FileType::from_raw_mode(found.st_mode) == FileType::Fifo;
    // A pipe without a name is a standard stream of this process.
    if is_fifo && !is_trusted(&found) && rustix::fs::fstatfs(&file)?.f_type != PIPEFS_MAGIC {
        return Err(Errno::NXIO);
    }
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Reads a file that workers write: a regular file with one name.
pub(crate) fn read_written(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path, OFlags::NONBLOCK, Mode::empty()).map_err(|errno| match remedy(errno) {
        "" => errno.into(),
        remedy => io::Error::other(remedy.trim_start_matches("; ")),
    })?;
    let found = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink != 1 {
        return Err(io::Error::other("it is not a regular file with one name"));
    }
    let mut bytes = Vec::new();
    File::from(file).take(WRITTEN_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > WRITTEN_BYTES_MAX {
        return Err(Errno::FBIG.into());
    }
    Ok(bytes)
}

/// Creates a directory with mode 0700, if it does not exist.
pub(crate) fn make_directory(path: &Path) -> Result<(), Errno> {
    let (parent, name) = directory_of(path)?;
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Creates a directory as [`make_directory`] does, and makes a user its owner. The error has the failed call.
pub(crate) fn give_directory(path: &Path, uid: u32, gid: u32) -> Result<(), (&'static str, Errno)> {
    match make_directory(path) {
        // `directory_of` finds no name in a path such as "/".
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(("mkdir()", errno)),
    }
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let directory = open(path, DIRECTORY, Mode::empty());
    let given =
        directory.and_then(|directory| rustix::fs::chownat(directory, "", uid, gid, AtFlags::EMPTY_PATH));
    given.map_err(|errno| ("chown()", errno))
}

/// Opens a directory as a user whose links are trusted, besides those of root.
pub(crate) fn open_directory(path: &Path, user: u32) -> Result<OwnedFd, Errno> {
    open_for(path, DIRECTORY, Mode::empty(), user)
}

/// Opens the directory of a path; returns it and the name of the file in it.
pub(crate) fn directory_of(path: &Path) -> Result<(OwnedFd, &OsStr), Errno> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = open(parent.unwrap_or(Path::new(".")), DIRECTORY, Mode::empty())?;
    Ok((directory, path.file_name().ok_or(Errno::EXIST)?))
}

/// Removes a file, or a link itself.
pub(crate) fn remove(path: &Path) -> Result<(), Errno> {
    let (directory, name) = directory_of(path)?;
    rustix::fs::unlinkat(directory, name, AtFlags::empty())
}

/// Renames a file, or a link itself.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), Errno> {
    let ((from, name), (to, new_name)) = (directory_of(from)?, directory_of(to)?);
    rustix::fs::renameat(from, name, to, new_name)
}

/// Returns the end of a message about a path that this module has refused.
pub(crate) fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::LOOP => {
            "; a symbolic link in the path is followed only if root or the user of the master owns it, and if workers cannot have \
             created it"
        }
        Errno::NXIO => "; it is a socket, or a FIFO that neither root nor the user of the master owns",
        _ => "",
    }
}

/// Opens a path. A symbolic link of another user is the error `ELOOP`.
fn open(path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    open_for(path, flags, mode, rustix::process::geteuid().as_raw())
}

/// Opens a path. A symbolic link of another user than root and this one is the error `ELOOP`.
fn open_for(path: &Path, flags: OFlags, mode: Mode, user: u32) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    let mut left = Vec::new();
    let mut at = enter(path.as_os_str().as_bytes(), None, &mut left)?;
    let mut links = 0;
    while let Some(name) = left.pop() {
        let is_last = left.is_empty();
        let found = match rustix::fs::openat(
            &at,
            &name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Err(Errno::NOENT) if is_last && flags.contains(OFlags::CREATE) => {
                return rustix::fs::openat(&at, &name, flags | OFlags::NOFOLLOW, mode);
            }
            found => found?,
        };
        let facts = rustix::fs::fstat(&found)?;
        let is_link = FileType::from_raw_mode(facts.st_mode) == FileType::Symlink;
        if is_link && (!is_of(&facts, user) || may_be_of_workers(&facts, &at)) {
            return Err(Errno::LOOP);
        }
        // The target of a link of procfs may have no name.
        let follow = if is_link && is_on_procfs(&at)? { OFlags::empty() } else { OFlags::NOFOLLOW };
        if is_link && follow == OFlags::NOFOLLOW {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP);
            }
            let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
            at = enter(target.as_bytes(), Some(at), &mut left)?;
        } else if is_last {
            return rustix::fs::openat(&at, &name, flags | follow, mode);
        } else {
            at = rustix::fs::openat(&at, &name, DIRECTORY | follow, Mode::empty())?;
        }
    }
    rustix::fs::openat(&at, ".", flags, mode)
}

/// Returns the directory where a path starts, and adds its components to `left`, the first one last. A relative path starts in
/// `at`, or in the working directory.
fn enter(path: &[u8], at: Option<OwnedFd>, left: &mut Vec<OsString>) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    // A final slash requires a directory.
    let end: &[u8] = if path.ends_with(b"/") { b"." } else { b"" };
    let parts = path.split(|byte| *byte == b'/').chain([end]).filter(|part| !part.is_empty());
    let parts: Vec<OsString> = parts.map(|part| OsString::from_vec(part.to_vec())).collect();
    left.extend(parts.into_iter().rev());
    match at {
        _ if path.starts_with(b"/") => rustix::fs::open("/", DIRECTORY, Mode::empty()),
        Some(at) => Ok(at),
        None => rustix::fs::openat(CWD, ".", DIRECTORY, Mode::empty()),
    }
}

/// Whether root or the user of this process owns a file.
fn is_trusted(found: &Stat) -> bool {
    is_of(found, rustix::process::geteuid().as_raw())
}

/// Whether root or this user owns a file.
fn is_of(found: &Stat, user: u32) -> bool {
    found.st_uid == 0 || found.st_uid == user
}

/// Whether workers may have created a file in this directory.
fn may_be_of_workers(found: &Stat, directory: &OwnedFd) -> bool {
    let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    if workers.0 != Some(found.st_uid) || workers.1.is_empty() {
        return false;
    }
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())) else {
        return true;
    };
    workers.1.iter().any(|writable| path.starts_with(writable))
}

fn is_on_procfs(directory: impl AsFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatfs(directory)?.f_type == PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, lchown, symlink};

    use super::*;

    /// A user that is neither root nor the user of the tests.
    const OTHER: u32 = 65_533;

    /// Returns a new directory with the file `secret`, the directory `real`, and the link `own` to it.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ringroad-owned-links-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("real")).expect("a directory");
        fs::write(folder.join("secret"), "text").expect("a file");
        symlink("real", folder.join("own")).expect("a link");
        folder
    }

    fn append(path: &Path) -> Result<OwnedFd, Errno> {
        open_file(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, Mode::from_raw_mode(0o644))
    }

    #[test]
    fn own_links_are_followed_and_devices_and_streams_are_opened() {
        let folder = folder("own");
        symlink("../secret", folder.join("real/link")).expect("a link");
        symlink("new", folder.join("real/missing")).expect("a link");
        symlink("/dev/null", folder.join("null")).expect("a link");
        symlink("loop", folder.join("loop")).expect("a link");
        assert_eq!(read_written(&folder.join("own/../own/./link")).expect("a file"), b"text");
        append(&folder.join("own/missing")).expect("a new file");
        assert!(folder.join("real/new").is_file());
        append(&folder.join("null")).expect("a device");
        assert_eq!(append(&folder.join("loop")).expect_err("a loop"), Errno::LOOP);
        assert_eq!(append(Path::new("")).expect_err("no name"), Errno::NOENT);
        assert!(append(&folder.join("real/")).is_err() && append(&folder.join("absent/")).is_err());
        let (_reader, writer) = rustix::pipe::pipe().expect("a pipe");
        symlink(format!("/proc/self/fd/{}", writer.as_raw_fd()), folder.join("stream")).expect("a link");
        let stream = append(&folder.join("stream")).expect("a pipe");
        assert!(!rustix::fs::fcntl_getfl(stream).expect("flags").contains(OFlags::NONBLOCK));
        fs::remove_dir_all(folder).expect("it was made here");
    }

    /// A worker with the user of the master can create links in its directories, and then lets the master open them.
    #[test]
    fn links_in_directories_of_workers_are_not_followed() {
        let folder = folder("workers");
        let real = fs::canonicalize(&folder).expect("a directory").join("real");
        symlink("../secret", folder.join("real/link")).expect("a link");
        append(&folder.join("real/link")).expect("nothing is known about workers");
        let user = rustix::process::geteuid().as_raw();
        distrust(user, [real]);
        for path in ["real/link", "own/link"] {
            assert_eq!(append(&folder.join(path)).expect_err("a link"), Errno::LOOP, "{path}");
        }
        append(&folder.join("own/new")).expect("the link is in another directory");
        assert_eq!(remove(&folder.join("own/link")), Ok(()));
        assert!(folder.join("secret").exists());
        fs::remove_dir_all(folder).expect("it was made here");
    }

    #[test]
    fn a_fifo_and_a_second_name_are_not_read() {
        let folder = folder("fifo");
        let fifo = folder.join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("a FIFO");
        fs::hard_link(folder.join("secret"), folder.join("second")).expect("a link");
        for name in ["fifo", "second", "real"] {
            let error = read_written(&folder.join(name)).expect_err(name).to_string();
            assert!(error.contains("not a regular file"), "{name}: {error}");
        }
        fs::remove_dir_all(folder).expect("it was made here");
    }

    #[test]
    fn links_and_fifos_of_other_users_are_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let folder = folder("other");
        for (target, link) in [("../secret", "real/link"), ("real", "there"), ("absent", "missing")] {
            symlink(target, folder.join(link)).expect("a link");
            lchown(folder.join(link), Some(OTHER), None).expect("root");
        }
        for name in ["real/link", "own/link", "there/x", "missing"] {
            assert_eq!(append(&folder.join(name)).expect_err(name), Errno::LOOP, "{name}");
            assert!(read_written(&folder.join(name)).expect_err(name).to_string().contains("symbolic link"));
        }
        assert!(!folder.join("absent").exists());
        let (path, owner) =
            (folder.join("there"), |name| fs::metadata(folder.join(name)).expect("a file").uid());
        assert_eq!(give_directory(&path, OTHER, OTHER), Err(("chown()", Errno::LOOP)));
        assert_eq!(give_directory(&path.join("x"), OTHER, OTHER), Err(("mkdir()", Errno::LOOP)));
        assert_eq!(give_directory(&folder.join("real/link"), OTHER, OTHER), Err(("chown()", Errno::LOOP)));
        assert_eq!((owner("real"), owner("secret")), (0, 0));
        assert_eq!(give_directory(&folder.join("own/new/"), OTHER, OTHER), Ok(()));
        assert_eq!(give_directory(&folder.join("own"), OTHER, OTHER), Ok(()));
        assert_eq!((owner("real"), owner("real/new")), (OTHER, OTHER));
        let fifo = folder.join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("a FIFO");
        chown(&fifo, Some(OTHER), None).expect("root");
        assert_eq!(append(&fifo).expect_err("without a reader"), Errno::NXIO);
        let reader =
            rustix::fs::open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("a reader");
        assert_eq!(append(&fifo).expect_err("with a reader"), Errno::NXIO);
        chown(&fifo, Some(0), None).expect("root");
        append(&fifo).expect("a FIFO of root");
        drop(reader);
        fs::remove_dir_all(folder).expect("it was made here");
    }
}
