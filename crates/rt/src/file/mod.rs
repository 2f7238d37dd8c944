//! Files: open, stat, read and write; operations on paths are in [`paths`].
//!
//! Each operation has the device whose limit applies and its backend as an argument, because locations of one server use
//! different devices and backends. A short read is legal at any offset, and the caller continues it. Operations on an
//! open file, except stat, are retried after `EINTR`, `EAGAIN` and `ENOMEM`, at most [`RETRIES_MAX`] times; opens and
//! most operations on paths are not retried.

mod lock;
mod paths;
pub(crate) mod turn_cache;

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::future::Future;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::facts::{DirEntry, EntryAttributes, Space, Stat};
use io::op::{OpenHow, StatTarget};
use io::{Buf, Disk, DiskOp, Errno, Fd, NetOp, Op, Payload, Segments};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::op_table::Outcome;
use crate::reactor::{self, OpFuture, Reactor};
use crate::timer::sleep_until;
pub use io::op::NewFile;
pub use lock::Lock;
pub use paths::{mkdir, rename, rename_into, rmdir, space, stat_cached, stat_now, stat_path, unlink};
pub use turn_cache::stat_of_turn;

/// Maximum number of retries of a disk operation that fails with `EAGAIN` or `ENOMEM`. The kernel has no memory for the
/// page cache when a cgroup is at its limit and all its pages are under I/O. With the growing pauses, the retries last
/// about a second, longer than any queue of a working disk.
pub const RETRIES_MAX: u32 = 12;

/// First pause before a retry of a disk operation; doubled each time up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(1);

/// Longest pause before a retry of a disk operation.
const PAUSE_MAX: Duration = Duration::from_millis(128);

/// Maximum size in bytes of a read into memory outside of the pool: little, because each response and each request body
/// may have such memory.
const OUTSIDE_BYTES: u32 = 16 << 10;

/// An open file. Clones share it. Dropping the last clone closes it through the engine, without waiting.
#[derive(Clone)]
pub struct File(Rc<Opened>);

/// The treatment of an existing file by [`File::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// Fails with `EEXIST`: the file must be new.
    New,
    /// Opens the existing file unchanged.
    Keep,
    /// Opens the existing file and truncates it to length 0.
    Empty,
    /// The path is a directory; the new file on its file system has no name until [`File::link`] gives it one. Until
    /// then, the kernel removes it when its last descriptor is closed or the process ends (`O_TMPFILE`, open(2)). Fails
    /// with `EOPNOTSUPP` if the file system does not support it.
    Unnamed,
}

struct Opened {
    reactor: Rc<Reactor>,
    fd: Fd,
    /// The byte range that the last probe found in the page cache, and the time of the probe.
    resident: Cell<Option<(u64, u64, Instant)>>,
}

impl File {
    /// Opens a file. Does not retry: `EAGAIN` may mean that a directory of the path was renamed during the lookup with
    /// `RESOLVE_BENEATH` (openat2(2)).
    pub fn open(
        dir: Option<&Fd>,
        path: CString,
        how: OpenHow,
        disk: Disk,
    ) -> impl Future<Output = Result<File, Errno>> + use<> {
        let reactor = reactor::current();
        let flags = OFlags::from_bits_retain(how.flags as u32);
        // Started here, so that the awaited future holds only the handle of the operation and none of its memory.
        let opening = OpFuture::on_disk(&reactor, disk, DiskOp::Open { dir: dir.cloned(), path, how });
        async move {
            match payload_of(opening.await)? {
                Payload::Opened(fd) => Ok(File::from_fd(&reactor, Fd::from(fd).opened_with(flags))),
                _ => Err(Errno::IO),
            }
        }
    }

    /// Creates a file, or opens an existing one, for reading and writing. `mode` is the permission bits of a new file,
    /// before the umask is applied.
    pub async fn create(path: CString, create: Create, mode: u32, disk: Disk) -> Result<File, Errno> {
        let flags = match create {
            Create::New => OFlags::CREATE | OFlags::EXCL,
            Create::Keep => OFlags::CREATE,
            Create::Empty => OFlags::CREATE | OFlags::TRUNC,
            Create::Unnamed => OFlags::TMPFILE,
        };
        let flags = (flags | OFlags::RDWR | OFlags::CLOEXEC).bits() as i32;
        // Without a first non-blocking attempt, because creating a file always needs a kernel worker.
        let how = OpenHow { flags, mode, is_cold: true, ..OpenHow::default() };
        File::open(None, path, how, disk).await
    }

    /// Opens a file immediately if its complete path is in the kernel's lookup cache, so that no disk access is needed;
    /// otherwise fails with `EAGAIN` (`RESOLVE_CACHED`, Linux 5.12; openat2(2)). For local file systems only: others
    /// may query a server.
    pub fn open_cached(dir: Option<BorrowedFd<'_>>, path: &CStr, how: OpenHow) -> Result<File, Errno> {
        let flags = OFlags::from_bits_retain(how.flags as u32) | OFlags::CLOEXEC;
        let resolve = ResolveFlags::from_bits_retain(how.resolve) | ResolveFlags::CACHED;
        let dir = dir.unwrap_or(rustix::fs::CWD);
        let fd = rustix::fs::openat2(dir, path, flags, Mode::from_raw_mode(how.mode), resolve)?;
        Ok(File::new(Fd::from(fd).opened_with(flags)))
    }

    /// Whether this is the only handle of the file.
    pub fn is_sole(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Wraps a descriptor that other code has opened or still uses.
    pub fn new(fd: impl Into<Fd>) -> File {
        File::from_fd(&reactor::current(), fd.into())
    }

    fn from_fd(reactor: &Rc<Reactor>, fd: Fd) -> File {
        File(Rc::new(Opened { reactor: Rc::clone(reactor), fd, resident: Cell::new(None) }))
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> &Fd {
        &self.0.fd
    }

    /// Returns the end of the resident bytes from `offset` as found by the last probe, and the time of the probe.
    pub fn seen_resident(&self, offset: u64) -> Option<(u64, Instant)> {
        self.0.resident.get().and_then(|(start, end, at)| (start..end).contains(&offset).then_some((end, at)))
    }

    /// Records that these bytes are in the page cache, for all owners of the file.
    pub fn note_resident(&self, range: Range<u64>) {
        self.0.resident.set(Some((range.start, range.end, crate::now())));
    }

    /// Returns size, times and kind, through a backend.
    pub async fn stat(&self, disk: Disk) -> Result<Stat, Errno> {
        let target = StatTarget::File(self.fd().clone());
        stat(&self.0.reactor, disk, target).await
    }

    /// Returns size, times and kind by a system call on this thread, which blocks on file systems that query another
    /// machine or process (FUSE, NFS).
    pub fn stat_inline(&self) -> Result<Stat, Errno> {
        facts(self.as_fd())
    }

    /// Reads up to `len` bytes at `offset` from the page cache without waiting, and appends them to `buf`; fails with
    /// `EAGAIN` if the first byte is not resident (`RWF_NOWAIT`, preadv2(2)).
    pub fn read_resident(&self, offset: u64, len: u32, buf: &mut Buf) -> Result<u32, Errno> {
        let start = buf.len();
        let len = (len as usize).min(buf.capacity() - start);
        let space = &mut buf.space()[start..start + len];
        let count = io::page_cache::read_cached(self.fd(), offset, space)?;
        assert!(count <= len, "more bytes read than there is room for");
        buf.set_len(start + count);
        Ok(count as u32)
    }

    /// Reads up to `len` bytes at `offset` into the start of `buf`; 0 is the end of the file. Also returns the buffer
    /// after an error, unless the engine lost it.
    pub async fn read_at(
        &self,
        offset: u64,
        len: u32,
        buf: Buf,
        disk: Disk,
    ) -> (Result<u32, Errno>, Option<Buf>) {
        let mut buf = buf;
        let mut retries = Retries::default();
        loop {
            let file = self.fd().clone();
            let op = DiskOp::Read { file, offset, len, buf };
            let Outcome { result, payload, .. } = OpFuture::on_disk(&self.0.reactor, disk, op).await;
            buf = match (result, payload) {
                (Err(errno), Payload::Buf(buf)) if retries.again(errno).await => buf,
                (result, Payload::Buf(buf)) => {
                    assert!(
                        result.is_err() || result == Ok(buf.len() as u32),
                        "the buffer holds what was read"
                    );
                    return (result, Some(buf));
                }
                (Ok(_), _) => return (Err(Errno::IO), None),
                (result, _) => return (result, None),
            };
        }
    }

    /// Reads bytes at `offset` into a new buffer: at least one byte, at most `bytes_max`. Fails at the end of the file.
    ///
    /// Without a free buffer in the pool, it reads at most [`OUTSIDE_BYTES`] into memory outside of the pool. It must not
    /// wait for a buffer: the caller's request may hold buffers that only its own progress releases, and so may all
    /// other requests that wait.
    pub async fn read_piece(&self, offset: u64, bytes_max: u32, disk: Disk) -> Result<Buf, Errno> {
        // A buffer for bodies, however little is read: a lack of the smaller ones, which are for header sections, closes
        // connections of other clients.
        let pooled = self.0.reactor.pool.get((bytes_max as usize).max(OUTSIDE_BYTES as usize + 1));
        let buf = pooled.or_else(|| Buf::outside_pools(bytes_max.min(OUTSIDE_BYTES))).ok_or(Errno::NOMEM)?;
        let bytes_max = bytes_max.min(buf.capacity() as u32);
        match self.read_at(offset, bytes_max, buf, disk).await {
            (Ok(1..), Some(buf)) => Ok(buf),
            (read, _) => Err(read.err().unwrap_or(Errno::IO)),
        }
    }

    /// Writes all of `buf` at `offset`, or at the end of a file opened with `O_APPEND`, and returns the count. After an
    /// error, the buffer contains the bytes that were not written; without a buffer their number is unknown.
    pub async fn write_at(&self, offset: u64, buf: Buf, disk: Disk) -> (Result<u32, Errno>, Option<Buf>) {
        let (mut buf, mut written) = (buf, 0);
        let mut retries = Retries::default();
        loop {
            let (file, offset) = (self.fd().clone(), offset + u64::from(written));
            let op = DiskOp::Write { file, offset, buf };
            let Outcome { result, payload, .. } = OpFuture::on_disk(&self.0.reactor, disk, op).await;
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
                (Ok(count), Payload::Buf(buf)) => {
                    assert_eq!(count as usize, buf.len(), "the count of a write is at most its length");
                    return (Ok(written + count), Some(buf));
                }
                (Err(errno), Payload::Buf(buf)) if retries.again(errno).await => buf,
                (result, Payload::Buf(buf)) => return (result, Some(buf)),
                (Ok(_), _) => return (Err(Errno::IO), None),
                (result, _) => return (result, None),
            };
        }
    }

    /// Writes all of `data` at `offset`, or at the end of a file opened with `O_APPEND`, and returns the count. The
    /// bytes may be shared with other threads ([`io::segments::Source::Shared`]) and are not copied. Returns the segments for
    /// reuse of their vectors, unless the engine lost them. After an error, the number of bytes written is unknown. A
    /// file open with `O_DIRECT` needs aligned memory: a [`Buf`], and [`File::write_at`].
    pub async fn write_segments_at(
        &self,
        offset: u64,
        data: Segments,
        disk: Disk,
    ) -> (Result<u64, Errno>, Option<Segments>) {
        let (mut data, mut written) = (data, 0);
        let mut retries = Retries::default();
        while !data.is_empty() {
            let (file, offset) = (self.fd().clone(), offset + written);
            let op = DiskOp::WriteSegments { file, offset, data };
            let Outcome { result, payload, .. } = OpFuture::on_disk(&self.0.reactor, disk, op).await;
            data = match (result, payload) {
                (Ok(0), Payload::Segments(rest)) => return (Err(Errno::IO), Some(rest)),
                (Ok(count), Payload::Segments(mut rest)) => {
                    assert!(count as usize <= rest.len(), "the count of a write is at most its length");
                    written += u64::from(count);
                    rest.advance(count as usize);
                    rest
                }
                (Err(errno), Payload::Segments(rest)) if retries.again(errno).await => rest,
                (Err(errno), Payload::Segments(rest)) => return (Err(errno), Some(rest)),
                (result, _) => return (Err(result.err().unwrap_or(Errno::IO)), None),
            };
        }
        (Ok(written), Some(data))
    }

    /// Creates and writes a file, or completes one that was begun, and renames it to its final name, replacing an older
    /// file: one operation in total. Returns the arguments, unless the engine lost them. After an error, a file that it
    /// created is removed.
    pub async fn put(mut new: Box<NewFile>, disk: Disk) -> (Result<(), Errno>, Option<Box<NewFile>>) {
        let mut retries = Retries::default();
        loop {
            let op = DiskOp::Put { new };
            let Outcome { result, payload, .. } = OpFuture::on_disk(&reactor::current(), disk, op).await;
            new = match (result, payload) {
                (Err(errno), Payload::NewFile(new)) if retries.again(errno).await => new,
                (result, Payload::NewFile(new)) => return (result.map(drop), Some(new)),
                (result, _) => return (result.map(drop), None),
            };
        }
    }

    /// Makes the kernel drop the file's pages from the page cache after each read and write, if kernel and file system
    /// support that (`RWF_DONTCACHE`, Linux 6.14). Without support this has no effect.
    pub fn set_uncached(&self) {
        self.fd().set_uncached();
    }

    /// Announces to the kernel that a range will be used soon; a `len` of 0 means up to the end of the file.
    pub async fn advise(&self, offset: u64, len: u32, disk: Disk) -> Result<(), Errno> {
        self.repeat(disk, |file| DiskOp::Advise { file, offset, len }).await.map(drop)
    }

    /// Gives the file a name, also an unnamed file ([`Create::Unnamed`]); fails with `EEXIST` if the name is taken.
    pub async fn link(&self, to: CString, disk: Disk) -> Result<(), Errno> {
        self.repeat(disk, |file| DiskOp::Link { file, to: to.clone() }).await.map(drop)
    }

    /// Returns the free and total space of the file's file system.
    pub async fn space(&self, disk: Disk) -> Result<Space, Errno> {
        let target = StatTarget::File(self.fd().clone());
        paths::space_of(&self.0.reactor, disk, target).await
    }

    /// Submits an operation, and retries it after temporary errors.
    async fn repeat(&self, disk: Disk, op: impl Fn(Fd) -> DiskOp) -> Result<Payload, Errno> {
        let mut retries = Retries::default();
        loop {
            match payload_of(OpFuture::on_disk(&self.0.reactor, disk, op(self.fd().clone())).await) {
                Err(errno) if retries.again(errno).await => {}
                ended => return ended,
            }
        }
    }

    /// Returns the next entries of a directory, as many as fit into `bytes_max`; an empty list at its end.
    pub async fn read_dir(
        &self,
        bytes_max: u32,
        attributes: EntryAttributes,
        disk: Disk,
    ) -> Result<Vec<DirEntry>, Errno> {
        match self.repeat(disk, |dir| DiskOp::ReadDir { dir, bytes_max, attributes }).await? {
            Payload::Entries(entries) => Ok(entries),
            _ => Err(Errno::IO),
        }
    }

    /// Calls stat on many names below a directory without following links.
    pub async fn stat_many(
        &self,
        names: Arc<[CString]>,
        disk: Disk,
    ) -> Result<Vec<Result<Stat, Errno>>, Errno> {
        match self.repeat(disk, |dir| DiskOp::StatMany { dir, names: Arc::clone(&names) }).await? {
            Payload::Stats(stats) => Ok(stats),
            _ => Err(Errno::IO),
        }
    }

    /// Closes the file, if this is its only handle, and waits for the close: for callers that need the descriptor
    /// number again.
    pub async fn close(self) {
        if let Some((reactor, fd)) = self.take()
            && let Ok(fd) = fd.into_owned()
        {
            OpFuture::new(&reactor, Op::Net(NetOp::Close { fd })).await;
        }
    }

    /// Drops the handle without closing the descriptor, which other code owns and still uses.
    pub fn leave(self) {
        drop(self.take());
    }

    /// Returns the raw descriptor, for a thread that continues with it; `None` if the file has other handles.
    pub fn into_fd(self) -> Option<OwnedFd> {
        self.take()?.1.into_owned().ok()
    }

    /// Returns the descriptor without closing it; `None` if the file has other handles.
    fn take(self) -> Option<(Rc<Reactor>, Fd)> {
        let opened = Rc::try_unwrap(self.0).ok()?;
        let (reactor, fd) = (Rc::clone(&opened.reactor), opened.fd.clone());
        drop(opened);
        reactor.keep(&fd);
        Some((reactor, fd))
    }

    /// Flushes written data to the device (fdatasync).
    pub async fn sync(&self, disk: Disk) -> Result<(), Errno> {
        self.repeat(disk, |file| DiskOp::Sync { file }).await.map(drop)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.reactor.close(self.fd.clone());
    }
}

fn facts(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    rustix::fs::fstat(fd).map(Stat::from)
}

async fn stat(reactor: &Rc<Reactor>, disk: Disk, target: StatTarget) -> Result<Stat, Errno> {
    match payload_of(OpFuture::on_disk(reactor, disk, DiskOp::Stat { target }).await)? {
        Payload::Stat(stat) => Ok(*stat),
        _ => Err(Errno::IO),
    }
}

/// Returns the payload of a successful operation.
fn payload_of(outcome: Outcome) -> Result<Payload, Errno> {
    outcome.result.map(|_| outcome.payload)
}

/// Decides whether a disk operation is retried, and waits before the retry.
#[derive(Default)]
struct Retries {
    count: u32,
}

impl Retries {
    /// Waits and returns `true` if the operation is to be retried after `errno`. The first retry after `EAGAIN` follows
    /// without a pause, because usually a queue was full for a moment.
    async fn again(&mut self, errno: Errno) -> bool {
        if !matches!(errno, Errno::INTR | Errno::AGAIN | Errno::NOMEM) || self.count >= RETRIES_MAX {
            return false;
        }
        if errno == Errno::NOMEM || (errno == Errno::AGAIN && self.count > 0) {
            let pause = PAUSE_MAX.min(PAUSE_FIRST * (1 << self.count.saturating_sub(1)));
            // Boxed, because otherwise the future of every read would contain the state of a pause.
            Box::pin(sleep_until(crate::now() + pause)).await;
        }
        self.count += 1;
        true
    }
}
