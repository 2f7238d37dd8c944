//! Opens a path whose symbolic links must have the same owner as their targets (nginx's `disable_symlinks
//! if_not_owner`).
//!
//! The path is walked component by component; each is opened relative to the last one. The target and the owner of a
//! link are both read through one descriptor of the link itself (`O_PATH | O_NOFOLLOW`, open(2)). So if a link is
//! replaced during the walk, the owner of one link is never combined with the target of the other. The owner of the
//! target is that of the opened file (fstat(2)).

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};

use super::walk;

/// The arguments for opening a component.
#[derive(Clone, Copy)]
struct How {
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
}

/// Opens `path` from `dir`, or from the root when it begins with a slash.
///
/// # Errors
/// `ELOOP` for a link whose owner differs from that of its target; otherwise the errors of openat2(2).
pub(super) fn open(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let on_the_way = How { flags: OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, ..How::plain(resolve) };
    let mut at = match path.first() {
        Some(b'/') => Some(How { resolve: ResolveFlags::empty(), ..on_the_way }.open(dir, b"/")?),
        _ => None,
    };
    let mut last = How { flags, mode, resolve };
    // A trailing slash requires a directory, as in open(2).
    if path.ends_with(b"/") {
        last.flags |= OFlags::DIRECTORY;
    }
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let here = at.as_ref().map_or(dir, AsFd::as_fd);
        if names.peek().is_none() {
            return last.step(here, name);
        }
        at = Some(on_the_way.step(here, name)?);
    }
    last.open(at.as_ref().map_or(dir, AsFd::as_fd), b".")
}

impl How {
    fn plain(resolve: ResolveFlags) -> How {
        How { flags: OFlags::empty(), mode: Mode::empty(), resolve }
    }

    /// Opens one component; follows a link only if allowed.
    fn step(self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        let link_itself =
            How { flags: OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, ..How::plain(self.resolve) };
        if self.flags.contains(OFlags::CREATE) {
            // As in nginx, a file is never created through a link, whatever its owner.
            return How { flags: self.flags | OFlags::NOFOLLOW, ..self }.open(dir, name);
        }
        let link = link_itself.open(dir, name)?;
        let stat = rustix::fs::fstat(&link)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            // If it has become a link since, it is not followed.
            return How { flags: self.flags | OFlags::NOFOLLOW, ..self }.open(dir, name);
        }
        let target = rustix::fs::readlinkat(&link, c"", Vec::new())?;
        let opened = self.open(dir, target.to_bytes())?;
        let flags = AtFlags::EMPTY_PATH;
        let owner = rustix::fs::statat(&opened, c"", flags)?.st_uid;
        if owner == stat.st_uid { Ok(opened) } else { Err(Errno::LOOP) }
    }

    fn open(self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let How { flags, mode, resolve } = self;
        match resolve.is_empty() {
            true => retry_on_intr(|| rustix::fs::openat(dir, &name, flags, mode)),
            false => walk::open(dir, &name, flags, mode, resolve),
        }
    }
}
