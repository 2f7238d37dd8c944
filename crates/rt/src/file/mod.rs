//! Files: open, look at, read, write; and, in [`paths`], operations on paths.
//!
//! Each operation names its backend and the device that counts it, because locations of one server use
//! different ones. A short read is legal anywhere and is the caller's to continue; `EINTR`, `EAGAIN` and `ENOMEM`
//! are not results but reasons to ask again, and are dealt with here.

mod lock;
mod paths;
pub(crate) mod seen;

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::future::Future;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::op::{Advice, DeviceId, DirEntry, EntryLook, OpenHow, Space, Stat, StatTarget};
use io::{Buf, DiskVia, Errno, Fd, Op, Payload, Segments};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::op_table::Outcome;
use crate::reactor::{self, OpFuture, Reactor};
use crate::timer::sleep_until;
pub use io::op::NewFile;
pub use lock::Lock;
pub use paths::{mkdir, rename, rmdir, space, stat_cached, stat_now, stat_path, unlink};
pub use seen::stat_of_turn;

/// Tries of a disk operation that fails with `EAGAIN` or `ENOMEM`. The kernel has no memory for the page cache when a
/// control group is at its limit and all its pages are being read or written. With the growing pauses this is about a
/// second, longer than any queue of a working disk.
pub const RETRIES_MAX: u32 = 12;

/// The first pause before a disk operation is tried again, doubled each time up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(1);

/// The longest pause before a disk operation is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(128);

/// An open file. Clones share it; it is closed through the engine with the last one, without waiting.
#[derive(Clone)]
pub struct File(Rc<Opened>);

/// What [`File::create`] does with an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// `EEXIST`: the file is new.
    New,
    /// It is opened as it is.
    Keep,
    /// It is opened and emptied.
    Empty,
    /// The path is a directory, and the new file on its file system has no name until [`File::link`] gives it one: when
    /// its last descriptor goes before, or the process ends, it is gone (`O_TMPFILE`, open(2)). `EOPNOTSUPP` where the
    /// file system cannot.
    Unnamed,
}

struct Opened {
    reactor: Rc<Reactor>,
    fd: Fd,
    /// The bytes that were found in the page cache last, and when.
    seen: Cell<Option<(u64, u64, Instant)>>,
}

impl File {
    /// Opens a file. `EINTR`, and `EAGAIN` of a path that changed under `RESOLVE_BENEATH`, cause a retry.
    pub fn open(
        dir: Option<&Fd>,
        path: CString,
        how: OpenHow,
        device: DeviceId,
        via: DiskVia,
    ) -> impl Future<Output = Result<File, Errno>> + use<> {
        let reactor = reactor::current();
        let flags = OFlags::from_bits_retain(how.flags as u32);
        // Begun here, so that the awaited future holds the operation's name and none of its memory.
        let opening = OpFuture::new(&reactor, Op::Open { dir: dir.cloned(), path, how, device, via }).last();
        async move {
            match payload_of(opening.await)? {
                Payload::Opened(fd) => Ok(File::from_fd(&reactor, Fd::from(fd).opened_with(flags))),
                _ => Err(Errno::IO),
            }
        }
    }

    /// Makes a file, or opens the one that is there, to read and write it; `mode` are the permission bits of a new
    /// one, less the process's umask.
    pub async fn create(
        path: CString,
        create: Create,
        mode: u32,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<File, Errno> {
        let flags = match create {
            Create::New => OFlags::CREATE | OFlags::EXCL,
            Create::Keep => OFlags::CREATE,
            Create::Empty => OFlags::CREATE | OFlags::TRUNC,
            Create::Unnamed => OFlags::TMPFILE,
        };
        let flags = (flags | OFlags::RDWR | OFlags::CLOEXEC).bits() as i32;
        // No try in memory first: making a file never ends there.
        let how = OpenHow { flags, mode, is_cold: true, ..OpenHow::default() };
        File::open(None, path, how, device, via).await
    }

    /// Opens a file now if all of its path is in the kernel's lookup cache, which needs no disk; `EAGAIN` if not
    /// (`RESOLVE_CACHED`, Linux 5.12; openat2(2)). For local file systems: others may ask a server.
    pub fn open_cached(dir: Option<BorrowedFd<'_>>, path: &CStr, how: OpenHow) -> Result<File, Errno> {
        let flags = OFlags::from_bits_retain(how.flags as u32) | OFlags::CLOEXEC;
        let resolve = ResolveFlags::from_bits_retain(how.resolve) | ResolveFlags::CACHED;
        let dir = dir.unwrap_or(rustix::fs::CWD);
        let fd = rustix::fs::openat2(dir, path, flags, Mode::from_raw_mode(how.mode), resolve)?;
        Ok(File::new(Fd::from(fd).opened_with(flags)))
    }

    /// Whether the file has no other owner.
    pub fn is_sole(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// A file that other code has opened, or still holds.
    pub fn new(fd: impl Into<Fd>) -> File {
        File::from_fd(&reactor::current(), fd.into())
    }

    fn from_fd(reactor: &Rc<Reactor>, fd: Fd) -> File {
        File(Rc::new(Opened { reactor: Rc::clone(reactor), fd, seen: Cell::new(None) }))
    }

    /// The descriptor.
    pub fn fd(&self) -> &Fd {
        &self.0.fd
    }

    /// End of the resident bytes from `offset` on at the last probe, and its time.
    pub fn seen_resident(&self, offset: u64) -> Option<(u64, Instant)> {
        self.0.seen.get().and_then(|(start, end, at)| (start..end).contains(&offset).then_some((end, at)))
    }

    /// Records for all owners of the file that these bytes are in the page cache.
    pub fn note_resident(&self, range: Range<u64>) {
        self.0.seen.set(Some((range.start, range.end, crate::now())));
    }

    /// Size, times and kind, through a backend.
    pub async fn stat(&self, device: DeviceId, via: DiskVia) -> Result<Stat, Errno> {
        let target = StatTarget::File(self.fd().clone());
        stat(&self.0.reactor, Op::Stat { target, device, via }).await
    }

    /// Size, times and kind, now: blocks where the file system asks another machine (FUSE, NFS).
    pub fn stat_inline(&self) -> Result<Stat, Errno> {
        facts(self.as_fd())
    }

    /// Reads from the page cache without waiting, up to `len` bytes at `offset`, behind the content of `buf`; `EAGAIN`
    /// when the first byte is not (`RWF_NOWAIT`, preadv2(2)).
    pub fn read_resident(&self, offset: u64, len: u32, buf: &mut Buf) -> Result<u32, Errno> {
        let start = buf.len();
        let len = (len as usize).min(buf.capacity() - start);
        let space = &mut buf.space()[start..start + len];
        let count = io::page_cache::read_cached(self.fd(), offset, space)?;
        assert!(count <= len, "more bytes read than there is room for");
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
            let Outcome { result, payload, .. } = OpFuture::new(&self.0.reactor, op).last().await;
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

    /// Writes all of `buf` at `offset`, or at the end of a file opened with `O_APPEND`, and returns the count. After an
    /// error it is unknown how much was written.
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
            let Outcome { result, payload, .. } = OpFuture::new(&self.0.reactor, op).last().await;
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
                    assert_eq!(count as usize, buf.len(), "no more is written than there was");
                    return (Ok(written + count), Some(buf));
                }
                (Err(errno), Payload::Buf(buf)) if retries.again(errno).await => buf,
                (result, Payload::Buf(buf)) => return (result, Some(buf)),
                (Ok(_), _) => return (Err(Errno::IO), None),
                (result, _) => return (result, None),
            };
        }
    }

    /// Writes all of `data` at `offset`, or at the end of a file opened with `O_APPEND`, and returns the count; the
    /// bytes may be shared with other threads ([`io::op::Source::Shared`]) and are not copied. The segments come back
    /// for their vectors to be used again, unless the engine lost them. After an error it is unknown how much was
    /// written. A file open with `O_DIRECT` needs aligned memory: a [`Buf`], and [`File::write_at`].
    pub async fn write_segments_at(
        &self,
        offset: u64,
        data: Segments,
        device: DeviceId,
        via: DiskVia,
    ) -> (Result<u64, Errno>, Option<Segments>) {
        let (mut data, mut written) = (data, 0);
        let mut retries = Retries::default();
        while !data.is_empty() {
            let (file, offset) = (self.fd().clone(), offset + written);
            let op = Op::WriteSegments { file, offset, data, device, via };
            let Outcome { result, payload, .. } = OpFuture::new(&self.0.reactor, op).last().await;
            data = match (result, payload) {
                (Ok(0), Payload::Segments(rest)) => return (Err(Errno::IO), Some(rest)),
                (Ok(count), Payload::Segments(mut rest)) => {
                    assert!(count as usize <= rest.len(), "more bytes written than told");
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

    /// Writes a whole file, or finishes one that was begun, and gives it its name, replacing an older file: one
    /// operation in all. The bytes come back, unless the engine lost them. After an error nothing is left of a file
    /// that it created.
    pub async fn put(
        mut new: Box<NewFile>,
        device: DeviceId,
        via: DiskVia,
    ) -> (Result<(), Errno>, Option<Box<NewFile>>) {
        let mut retries = Retries::default();
        loop {
            let op = Op::Put { new, device, via };
            let Outcome { result, payload, .. } = OpFuture::new(&reactor::current(), op).last().await;
            new = match (result, payload) {
                (Err(errno), Payload::NewFile(new)) if retries.again(errno).await => new,
                (result, Payload::NewFile(new)) => return (result.map(drop), Some(new)),
                (result, _) => return (result.map(drop), None),
            };
        }
    }

    /// Makes reads and writes of the file leave the page cache, if kernel and file system can (`RWF_DONTCACHE`, Linux
    /// 6.14). Elsewhere nothing changes, and [`File::advise`] can be asked afterwards.
    pub fn set_uncached(&self) {
        self.fd().set_uncached();
    }

    /// Cuts the file, or makes it longer with a hole.
    pub async fn truncate(&self, len: u64, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
        self.repeat(|file| Op::Truncate { file, len, device, via }).await.map(drop)
    }

    /// Reserves disk space for a range, so that writing there cannot fail for lack of it; with `keep_size` without a
    /// change of the file's length. `EOPNOTSUPP` where the file system cannot.
    pub async fn allocate(
        &self,
        offset: u64,
        len: u64,
        keep_size: bool,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<(), Errno> {
        self.repeat(|file| Op::Allocate { file, offset, len, keep_size, device, via }).await.map(drop)
    }

    /// Announces to the kernel how a range will be used; a `len` of 0 is all up to the end. `DontNeed` frees only pages
    /// that are on the device already ([`File::sync`]).
    pub async fn advise(
        &self,
        offset: u64,
        len: u32,
        advice: Advice,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<(), Errno> {
        self.repeat(|file| Op::Advise { file, offset, len, advice, device, via }).await.map(drop)
    }

    /// Gives the file a name, also one that has none yet ([`Create::Unnamed`]); `EEXIST` where the name is taken.
    pub async fn link(&self, to: CString, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
        self.repeat(|file| Op::Link { file, to: to.clone(), device, via }).await.map(drop)
    }

    /// Space on the file system that the file is on.
    pub async fn space(&self, device: DeviceId, via: DiskVia) -> Result<Space, Errno> {
        let target = StatTarget::File(self.fd().clone());
        paths::space_of(&self.0.reactor, Op::Space { target, device, via }).await
    }

    /// Carries out an operation, and retries it when the kernel requires it.
    async fn repeat(&self, op: impl Fn(Fd) -> Op) -> Result<Payload, Errno> {
        let mut retries = Retries::default();
        loop {
            match payload_of(OpFuture::new(&self.0.reactor, op(self.fd().clone())).last().await) {
                Err(errno) if retries.again(errno).await => {}
                ended => return ended,
            }
        }
    }

    /// The next entries of a directory, as many as fit into `bytes_max`; none at its end.
    pub async fn read_dir(
        &self,
        bytes_max: u32,
        look: EntryLook,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<Vec<DirEntry>, Errno> {
        match self.repeat(|dir| Op::ReadDir { dir, bytes_max, look, device, via }).await? {
            Payload::Entries(entries) => Ok(entries),
            _ => Err(Errno::IO),
        }
    }

    /// Looks at many names below a directory, links not followed.
    pub async fn stat_many(
        &self,
        names: Arc<[CString]>,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<Vec<Result<Stat, Errno>>, Errno> {
        match self.repeat(|dir| Op::StatMany { dir, names: Arc::clone(&names), device, via }).await? {
            Payload::Stats(stats) => Ok(stats),
            _ => Err(Errno::IO),
        }
    }

    /// Closes the file and waits for that, when it has no other owner: for callers that need its number again.
    pub async fn close(self) {
        if let Some((reactor, fd)) = self.take()
            && let Ok(fd) = fd.into_owned()
        {
            OpFuture::new(&reactor, Op::Close { fd }).last().await;
        }
    }

    /// Releases a descriptor that other code holds and still uses: there is nothing to close.
    pub fn leave(self) {
        drop(self.take());
    }

    /// The bare descriptor, for a thread that continues with it; nothing where others share the file.
    pub fn into_fd(self) -> Option<OwnedFd> {
        self.take()?.1.into_owned().ok()
    }

    /// The descriptor, which is not closed by this any more; nothing where others share the file.
    fn take(self) -> Option<(Rc<Reactor>, Fd)> {
        let opened = Rc::try_unwrap(self.0).ok()?;
        let (reactor, fd) = (Rc::clone(&opened.reactor), opened.fd.clone());
        drop(opened);
        reactor.keep(&fd);
        Some((reactor, fd))
    }

    /// Brings written bytes to the device (fdatasync).
    pub async fn sync(&self, device: DeviceId, via: DiskVia) -> Result<(), Errno> {
        self.repeat(|file| Op::Sync { file, device, via }).await.map(drop)
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

async fn stat(reactor: &Rc<Reactor>, op: Op) -> Result<Stat, Errno> {
    match payload_of(OpFuture::new(reactor, op).last().await)? {
        Payload::Stat(stat) => Ok(*stat),
        _ => Err(Errno::IO),
    }
}

/// What a successful operation has brought.
fn payload_of(outcome: Outcome) -> Result<Payload, Errno> {
    outcome.result.map(|_| outcome.payload)
}

/// Decides whether a disk operation is tried again, and waits before it is.
#[derive(Default)]
struct Retries {
    count: u32,
}

impl Retries {
    /// The first retry comes at once: `EAGAIN` is mostly a queue that was full for a moment.
    async fn again(&mut self, errno: Errno) -> bool {
        if !matches!(errno, Errno::INTR | Errno::AGAIN | Errno::NOMEM) || self.count >= RETRIES_MAX {
            return false;
        }
        if errno == Errno::NOMEM || (errno == Errno::AGAIN && self.count > 0) {
            let pause = PAUSE_MAX.min(PAUSE_FIRST * (1 << self.count.saturating_sub(1)));
            // Boxed: otherwise every read pays for the state of a pause.
            Box::pin(sleep_until(crate::now() + pause)).await;
        }
        self.count += 1;
        true
    }
}
