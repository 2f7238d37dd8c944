//! A lock on a directory that ends with the process of its holder.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use io::Errno;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::retry_on_intr;

/// An exclusive lock on a file, held until it is dropped or the process ends, however that happens (flock(2)): there
/// is no stale lock, and no process number in the file to be wrong about. It belongs to the open file, so a child
/// that is executed, where the descriptor is closed, does not hold it.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

impl Lock {
    /// Takes the lock of the file at `path`, which is made if missing and never removed; `None` when another process,
    /// or another part of this one, holds it. Never waits for the holder. A few calls that may wait for the disk: for
    /// the start, not for a request.
    ///
    /// # Errors
    /// Those of open(2), and `ENOLCK` or `EOPNOTSUPP` of a file system without locks.
    pub fn try_take(path: &CStr) -> Result<Option<Lock>, Errno> {
        // Not for writing: a file system in which a file is open for that cannot be made read-only by its administrator.
        let (file, locked) = match open_and_lock(path, OFlags::RDONLY)? {
            // NFS has such a lock only on a file that is open for writing (flock(2), notes).
            (_, Err(Errno::BADF)) => open_and_lock(path, OFlags::RDWR)?,
            done => done,
        };
        match locked {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

fn open_and_lock(path: &CStr, access: OFlags) -> Result<(OwnedFd, Result<(), Errno>), Errno> {
    let flags = access | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR))?;
    let locked = retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive));
    Ok((file, locked))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn one_holder_at_a_time_and_none_after_it() {
        let dir = testkit::TempDir::new("rt-lock");
        let path = CString::new(dir.path().join("lock").as_os_str().as_bytes()).unwrap();
        let held = Lock::try_take(&path).unwrap().expect("nobody holds it");
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path).unwrap().is_some());
        assert_eq!(Lock::try_take(c"/nowhere/lock").unwrap_err(), Errno::NOENT);
    }
}
