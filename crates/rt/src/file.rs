//! Files: open, look at, read, write; and operations on paths.
//!
//! Each operation names its backend and the device that counts it, because locations of one server use
//! different ones. A short read is legal anywhere and is the caller's to continue; `EINTR` and `EAGAIN`
//! are not results but reasons to ask again, and are dealt with here.

use std::ffi::{CStr, CString};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use io::op::{DeviceId, DirEntry, EntryLook, OpenHow, Stat, StatTarget};
use io::{Buf, DiskVia, Errno, Fd, Op, Payload};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::ReadWriteFlags;

use crate::ops::{Outcome, Running};
use crate::runtime::{self, Inner};
use crate::timer::sleep_until;

/// How often a disk operation that says "try again" is tried. With the growing pauses this is about a
/// second, longer than any queue of a disk that works.
pub const RETRIES_MAX: u32 = 12;

/// The first pause before a disk operation is tried again, doubled each time up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(1);

/// The longest pause before a disk operation is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(128);

/// An open file. Clones share it; it is closed through the engine with the last one, without waiting.
#[derive(Clone)]
pub struct File(Rc<Opened>);

struct Opened {
    runtime: Rc<Inner>,
    fd: Fd,
}

impl File {
    /// Opens a file. `EINTR`, and `EAGAIN` of a path that changed under `RESOLVE_BENEATH`, are answered.
    pub async fn open(
        dir: Option<&Fd>,
        path: CString,
        how: OpenHow,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<File, Errno> {
        let runtime = runtime::current();
        let op = Op::Open { dir: dir.cloned(), path, how, device, via };
        let outcome = Running::new(&runtime, op).last().await;
        match (outcome.result, outcome.payload) {
            (Ok(_), Payload::Opened(fd)) => Ok(File::from_fd(&runtime, fd.into())),
            (Ok(_), _) => Err(Errno::IO),
            (Err(errno), _) => Err(errno),
        }
    }

    /// Opens a file now if all of its path is in the kernel's lookup cache, which needs no disk; `EAGAIN` if
    /// not (`RESOLVE_CACHED`, Linux 5.12; openat2(2)). For local file systems: others may ask somebody.
    pub fn open_cached(dir: Option<BorrowedFd<'_>>, path: &CStr, how: OpenHow) -> Result<File, Errno> {
        let flags = OFlags::from_bits_retain(how.flags as u32) | OFlags::CLOEXEC;
        let resolve = ResolveFlags::from_bits_retain(how.resolve) | ResolveFlags::CACHED;
        let dir = dir.unwrap_or(rustix::fs::CWD);
        rustix::fs::openat2(dir, path, flags, Mode::from_raw_mode(how.mode), resolve).map(File::new)
    }

    /// Whether nobody else shares the file.
    pub fn is_sole(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// A file that somebody else has opened, or goes on to hold.
    pub fn new(fd: impl Into<Fd>) -> File {
        File::from_fd(&runtime::current(), fd.into())
    }

    fn from_fd(runtime: &Rc<Inner>, fd: Fd) -> File {
        File(Rc::new(Opened { runtime: Rc::clone(runtime), fd }))
    }

    /// The descriptor.
    pub fn fd(&self) -> &Fd {
        &self.0.fd
    }

    /// Size, times and kind, through a backend.
    pub async fn stat(&self, device: DeviceId, via: DiskVia) -> Result<Stat, Errno> {
        let target = StatTarget::File(self.fd().clone());
        stat(&self.0.runtime, Op::Stat { target, device, via }).await
    }

    /// Size, times and kind, now: blocks where the file system asks another machine (FUSE, NFS).
    pub fn stat_inline(&self) -> Result<Stat, Errno> {
        facts(self.as_fd())
    }

    /// Reads now what is in the page cache, up to `len` bytes at `offset` behind what is in `buf`; `EAGAIN` when
    /// the first byte is not (`RWF_NOWAIT`, preadv2(2)).
    pub fn read_resident(&self, offset: u64, len: u32, buf: &mut Buf) -> Result<u32, Errno> {
        let start = buf.len();
        let len = (len as usize).min(buf.capacity() - start);
        let mut parts = [IoSliceMut::new(&mut buf.space()[start..start + len])];
        let count = rustix::io::preadv2(self.fd(), &mut parts, offset, ReadWriteFlags::NOWAIT)?;
        buf.set_len(start + count);
        Ok(count as u32)
    }

    /// Reads up to `len` bytes at `offset` into the start of `buf`; 0 is the end of the file. The buffer
    /// comes back with an error too, unless the engine lost it.
    pub async fn read_at(
        &self,
        offset: u64,
        len: u32,
        buf: Buf,
        device: DeviceId,
        via: DiskVia,
    ) -> (Result<u32, Errno>, Option<Buf>) {
        let mut buf = buf;
        let mut retries = Retries::default();
        loop {
            let file = self.fd().clone();
            let op = Op::Read { file, offset, len, buf, device, via };
            let Outcome { result, payload, .. } = Running::new(&self.0.runtime, op).last().await;
            buf = match (result, payload) {
                (Err(errno), Payload::Buf(buf)) if retries.again(errno).await => buf,
                (result, Payload::Buf(buf)) => return (result, Some(buf)),
                (Ok(_), _) => return (Err(Errno::IO), None),
                (result, _) => return (result, None),
            };
        }
    }

    /// Writes all of `buf` at `offset`, or at the end of a file opened with `O_APPEND`, and answers the
    /// count. After an error it is unknown how much was written.
    pub async fn write_at(
        &self,
        offset: u64,
        buf: Buf,
        device: DeviceId,
        via: DiskVia,
    ) -> (Result<u32, Errno>, Option<Buf>) {
        let (mut buf, mut written) = (buf, 0);
        let mut retries = Retries::default();
        loop {
            let (file, offset) = (self.fd().clone(), offset + u64::from(written));
            let op = Op::Write { file, offset, buf, device, via };
            let Outcome { result, payload, .. } = Running::new(&self.0.runtime, op).last().await;
            buf = match (result, payload) {
                (Ok(count), Payload::Buf(mut rest)) if (count as usize) < rest.len() => {
                    if count == 0 {
                        return (Err(Errno::IO), Some(rest));
                    }
                    written += count;
                    let left = rest.len() - count as usize;
                    rest.copy_within(count as usize.., 0);
                    rest.set_len(left);
                    rest
                }
                (Ok(count), Payload::Buf(buf)) => return (Ok(written + count), Some(buf)),
                (Err(errno), Payload::Buf(buf)) if retries.again(errno).await => buf,
                (result, Payload::Buf(buf)) => return (result, Some(buf)),
                (Ok(_), _) => return (Err(Errno::IO), None),
                (result, _) => return (result, None),
            };
        }
    }

    /// The next entries of a folder, as many as fit into `bytes_max`; none at its end.
    pub async fn read_dir(
        &self,
        bytes_max: u32,
        look: EntryLook,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<Vec<DirEntry>, Errno> {
        let mut retries = Retries::default();
        loop {
            let op = Op::ReadDir { dir: self.fd().clone(), bytes_max, look, device, via };
            let outcome = Running::new(&self.0.runtime, op).last().await;
            match (outcome.result, outcome.payload) {
                (Ok(_), Payload::Entries(entries)) => return Ok(entries),
                (Ok(_), _) => return Err(Errno::IO),
                (Err(errno), _) if retries.again(errno).await => {}
                (Err(errno), _) => return Err(errno),
            }
        }
    }

    /// Closes the file and waits for that, when nobody shares it: for who needs its number again.
    pub async fn close(self) {
        let Ok(opened) = Rc::try_unwrap(self.0) else { return };
        let (runtime, fd) = (Rc::clone(&opened.runtime), opened.fd.clone());
        drop(opened);
        runtime.keep(&fd);
        if let Ok(fd) = fd.into_owned() {
            Running::new(&runtime, Op::Close { fd }).last().await;
        }
    }

    /// Brings what was written to the device (fdatasync).
    pub async fn sync(&self, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
        let mut retries = Retries::default();
        loop {
            let op = Op::Sync { file: self.fd().clone(), device, via };
            match Running::new(&self.0.runtime, op).last().await.result {
                Ok(_) => return Ok(()),
                Err(errno) if retries.again(errno).await => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.runtime.close(self.fd.clone());
    }
}

/// Size, times and kind of what a path leads to.
pub async fn stat_path(path: CString, device: DeviceId, via: DiskVia) -> Result<Stat, Errno> {
    let target = StatTarget::Path(path);
    stat(&runtime::current(), Op::Stat { target, device, via }).await
}

/// Size, times and kind of what a path leads to, now, if all of it is in the kernel's lookup cache; `EAGAIN` if not.
/// As [`File::open_cached`], for local file systems.
pub fn stat_cached(path: &CStr) -> Result<Stat, Errno> {
    // There is no such flag for stat(2). An O_PATH descriptor opens no file, so its close cannot wait either.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::CACHED)?;
    facts(found.as_fd())
}

fn facts(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    rustix::fs::fstat(fd).map(Stat::from)
}

/// Size, times and kind of what a path leads to, now. The call waits for the disk where a folder on the path has left
/// memory: it is for paths on local file systems that were walked a moment ago and lead to a file that is held open,
/// which keeps their names in memory. It costs half of [`stat_cached`].
pub fn stat_now(path: &CStr) -> Result<Stat, Errno> {
    rustix::fs::stat(path).map(Stat::from)
}

/// Removes a file.
pub async fn unlink(path: CString, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
    let op = Op::Unlink { path, device, via };
    Running::new(&runtime::current(), op).last().await.result.map(drop)
}

/// Renames a file.
pub async fn rename(from: CString, to: CString, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
    let op = Op::Rename { from, to, device, via };
    Running::new(&runtime::current(), op).last().await.result.map(drop)
}

async fn stat(runtime: &Rc<Inner>, op: Op) -> Result<Stat, Errno> {
    let outcome = Running::new(runtime, op).last().await;
    match (outcome.result, outcome.payload) {
        (Ok(_), Payload::Stat(stat)) => Ok(stat),
        (Ok(_), _) => Err(Errno::IO),
        (Err(errno), _) => Err(errno),
    }
}

/// Decides whether a disk operation is tried again, and waits before it is.
#[derive(Default)]
struct Retries {
    count: u32,
}

impl Retries {
    /// The first retry comes at once: `EAGAIN` is mostly a queue that was full for a moment.
    async fn again(&mut self, errno: Errno) -> bool {
        if !matches!(errno, Errno::INTR | Errno::AGAIN) || self.count >= RETRIES_MAX {
            return false;
        }
        if errno == Errno::AGAIN && self.count > 0 {
            let pause = PAUSE_MAX.min(PAUSE_FIRST * (1 << (self.count - 1)));
            sleep_until(crate::now() + pause).await;
        }
        self.count += 1;
        true
    }
}
