//! A file lock that the kernel releases when its holder exits.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use io::Errno;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::retry_on_intr;

/// An exclusive lock on a file, held until it is dropped or the process exits in any way (flock(2)). So no lock can be
/// stale, and the file needs no process ID. The lock belongs to the open file; the descriptor is closed on exec, so an
/// executed child process does not hold it.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

impl Lock {
    /// Takes the lock of the file at `path`, which is created if missing and never removed. Returns `None` when another
    /// process, or another open of this process, holds it. Never waits for the holder. Makes a few calls that may block
    /// on the disk: for the start, not for a request.
    ///
    /// # Errors
    /// Those of open(2), and `ENOLCK` or `EOPNOTSUPP` from a file system without locks.
    pub fn try_take(path: &CStr) -> Result<Option<Lock>, Errno> {
        // Opened read-only: an administrator cannot remount a file system read-only while a file on it is open for
        // writing.
        let (file, locked) = match open_and_lock(path, OFlags::RDONLY)? {
            // NFS supports such a lock only on a file that is open for writing (flock(2), notes).
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
    fn a_lock_has_one_holder_and_is_released() {
        let dir = testkit::TempDir::new("rt-lock");
        let path = CString::new(dir.path().join("lock").as_os_str().as_bytes()).unwrap();
        let held = Lock::try_take(&path).unwrap().expect("nobody holds it");
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path).unwrap().is_some());
        assert_eq!(Lock::try_take(c"/nowhere/lock").unwrap_err(), Errno::NOENT);
    }
}
