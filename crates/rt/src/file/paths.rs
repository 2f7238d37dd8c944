//! Operations on paths: look at, remove, rename, make directories, ask for space.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::rc::Rc;

use io::op::{DeviceId, Space, Stat, StatTarget};
use io::{DiskVia, Errno, Op, Payload};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{facts, payload_of, stat};
use crate::reactor::{self, OpFuture, Reactor};

/// Size, times and kind of the file at a path.
pub async fn stat_path(path: CString, device: DeviceId, via: DiskVia) -> Result<Stat, Errno> {
    let target = StatTarget::Path(path);
    stat(&reactor::current(), Op::Stat { target, device, via }).await
}

/// Size, times and kind of the file at a path, now, if the whole path is in the kernel's lookup cache; `EAGAIN` if not.
/// As [`crate::File::open_cached`], for local file systems.
pub fn stat_cached(path: &CStr) -> Result<Stat, Errno> {
    // There is no such flag for stat(2). An O_PATH descriptor opens no file, so its close cannot wait either.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::CACHED)?;
    facts(found.as_fd())
}

/// Size, times and kind of the file at a path, now. The call waits for the disk if a directory of the path was evicted
/// from memory. It is for recently resolved paths on local file systems whose file is open, which keeps their names in
/// memory. It costs half of [`stat_cached`].
pub fn stat_now(path: &CStr) -> Result<Stat, Errno> {
    rustix::fs::stat(path).map(Stat::from)
}

/// Removes a file.
pub async fn unlink(path: CString, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
    run(Op::Unlink { path, folder: false, device, via }).await
}

/// Removes an empty directory; `ENOTEMPTY` where there is something in it.
pub async fn rmdir(path: CString, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
    run(Op::Unlink { path, folder: true, device, via }).await
}

/// Makes a directory with the permission bits `mode`, less the process's umask; `EEXIST` where there is something.
pub async fn mkdir(path: CString, mode: u32, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
    run(Op::MkDir { path, mode, device, via }).await
}

/// Renames a file or directory; a file that has the new name is replaced in one step.
pub async fn rename(from: CString, to: CString, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
    run(Op::Rename { from, to, device, via }).await
}

/// Space on the file system that a path leads to.
pub async fn space(path: CString, device: DeviceId, via: DiskVia) -> Result<Space, Errno> {
    let target = StatTarget::Path(path);
    space_of(&reactor::current(), Op::Space { target, device, via }).await
}

pub(super) async fn space_of(reactor: &Rc<Reactor>, op: Op) -> Result<Space, Errno> {
    match payload_of(OpFuture::new(reactor, op).last().await)? {
        Payload::Space(space) => Ok(*space),
        _ => Err(Errno::IO),
    }
}

async fn run(op: Op) -> Result<(), Errno> {
    OpFuture::new(&reactor::current(), op).last().await.result.map(drop)
}
