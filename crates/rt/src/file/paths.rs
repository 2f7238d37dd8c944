//! Operations on paths: stat, unlink, rename, mkdir, and queries of free space.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::rc::Rc;

use io::facts::{Space, Stat};
use io::op::{OpenHow, StatTarget};
use io::{Disk, DiskOp, Errno, Payload};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{File, facts, payload_of, stat};
use crate::reactor::{self, OpFuture, Reactor};

/// Returns size, times and kind of the file at a path.
pub async fn stat_path(path: CString, disk: Disk) -> Result<Stat, Errno> {
    let target = StatTarget::Path(path);
    stat(&reactor::current(), disk, target).await
}

/// Returns size, times and kind of the file at a path immediately, if the complete path is in the kernel's lookup
/// cache; otherwise fails with `EAGAIN`. As [`crate::File::open_cached`], for local file systems.
pub fn stat_cached(path: &CStr) -> Result<Stat, Errno> {
    // stat(2) has no such flag. An O_PATH descriptor opens no file, so its close cannot block either.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::CACHED)?;
    facts(found.as_fd())
}

/// Returns size, times and kind of the file at a path by a system call on this thread. The call blocks on the disk if a
/// directory of the path was evicted from memory. It is meant for recently resolved paths on local file systems whose
/// file is open, which keeps the path in the lookup cache. It costs half of [`stat_cached`].
pub fn stat_now(path: &CStr) -> Result<Stat, Errno> {
    rustix::fs::stat(path).map(Stat::from)
}

/// Removes a file.
pub async fn unlink(path: CString, disk: Disk) -> Result<(), Errno> {
    run(disk, DiskOp::Unlink { dir: None, path, is_directory: false }).await
}

/// Removes an empty directory; fails with `ENOTEMPTY` if it is not empty.
pub async fn rmdir(path: CString, disk: Disk) -> Result<(), Errno> {
    run(disk, DiskOp::Unlink { dir: None, path, is_directory: true }).await
}

/// Creates a directory with the permission bits `mode`, before the umask is applied; fails with `EEXIST` if the path
/// exists.
pub async fn mkdir(path: CString, mode: u32, disk: Disk) -> Result<(), Errno> {
    run(disk, DiskOp::MkDir { dir: None, path, mode }).await
}

/// Renames a file or directory, and replaces an existing file with the new name atomically.
pub async fn rename(from: CString, to: CString, disk: Disk) -> Result<(), Errno> {
    run(disk, DiskOp::Rename { from_dir: None, from, to_dir: None, to }).await
}

/// Renames a file to a name in the open directory `to_dir`, and replaces an existing file with that name atomically.
pub async fn rename_into(from: CString, (to_dir, to): (&File, CString), disk: Disk) -> Result<(), Errno> {
    let to_dir = Some(to_dir.fd().clone());
    run(disk, DiskOp::Rename { from_dir: None, from, to_dir, to }).await
}

/// Operations on names in an open directory. A name is one component of a path, so no link in a path is followed.
impl File {
    /// Opens a file of this directory; see [`File::open`].
    pub async fn open_at(&self, name: CString, how: OpenHow, disk: Disk) -> Result<File, Errno> {
        File::open(Some(self.fd()), name, how, disk).await
    }

    /// Removes a file, a link, or an empty directory of this directory.
    pub async fn unlink_at(&self, name: CString, is_directory: bool, disk: Disk) -> Result<(), Errno> {
        let dir = Some(self.fd().clone());
        run(disk, DiskOp::Unlink { dir, path: name, is_directory }).await
    }

    /// Creates a directory in this directory; see [`mkdir`].
    pub async fn mkdir_at(&self, name: CString, mode: u32, disk: Disk) -> Result<(), Errno> {
        run(disk, DiskOp::MkDir { dir: Some(self.fd().clone()), path: name, mode }).await
    }

    /// Renames a file of this directory to a name in the directory `to_dir`; see [`rename`].
    pub async fn rename_at(
        &self,
        from: CString,
        (to_dir, to): (&File, CString),
        disk: Disk,
    ) -> Result<(), Errno> {
        let (from_dir, to_dir) = (Some(self.fd().clone()), Some(to_dir.fd().clone()));
        run(disk, DiskOp::Rename { from_dir, from, to_dir, to }).await
    }
}

/// Returns the free and total space of the file system of a path.
pub async fn space(path: CString, disk: Disk) -> Result<Space, Errno> {
    let target = StatTarget::Path(path);
    space_of(&reactor::current(), disk, target).await
}

pub(super) async fn space_of(reactor: &Rc<Reactor>, disk: Disk, target: StatTarget) -> Result<Space, Errno> {
    match payload_of(OpFuture::on_disk(reactor, disk, DiskOp::Space { target }).await)? {
        Payload::Space(space) => Ok(*space),
        _ => Err(Errno::IO),
    }
}

async fn run(disk: Disk, op: DiskOp) -> Result<(), Errno> {
    OpFuture::on_disk(&reactor::current(), disk, op).await.result.map(drop)
}
