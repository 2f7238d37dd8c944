//! Operations on files and paths, carried out by blocking system calls.
//!
//! [`carry_out`] makes the system calls of an operation in place. A [`Job`] is an operation that a thread of a pool has,
//! and that returns with its [`Outcome`]. Descriptors, buffers and paths move with it, so the thread needs no address of
//! memory that it does not own.

use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use smallvec::SmallVec;

use crate::disk::put::put;
use crate::disk::{directory, owner, walk};
use crate::facts::{DirEntry, Space, Stat};
use crate::fd::Fd;
use crate::op::{Completion, DiskOp, OpId, OpenHow, Payload, READ_DIR_BYTES_MIN, StatTarget};
use crate::page_cache::{UNCACHED, read_cached};
use crate::segments::{SEGMENTS_MAX, Segment};
use crate::slot::Slots;

/// An operation that was passed to a pool thread.
pub(crate) struct Job {
    /// Only the engine's thread may drop it, because its reference counts are not atomic. If the engine no longer
    /// exists, the job is leaked.
    op: ManuallyDrop<DiskOp>,
    /// Queried before the operation was passed on: the flags of a descriptor belong to the engine's thread.
    uncached: bool,
}

// SAFETY: the pool thread has exclusive access to the operation. It reads the descriptors behind their counted
// references, which never change; it touches neither the counts nor the adjacent flags, and drops nothing of it. The
// memory of buffers and segments is plain memory that no other thread writes to.
unsafe impl Send for Job {}

/// The outcome of an operation.
pub(crate) struct Outcome {
    result: Result<u32, Errno>,
    output: Output,
    /// Whether the file system did not support uncached reads and writes.
    refused_uncached: bool,
}

/// The data that an operation returns in addition to the memory lent by its caller.
enum Output {
    Nothing,
    Opened(OwnedFd),
    Stat(Stat),
    Entries(Vec<DirEntry>),
    Stats(Vec<Result<Stat, Errno>>),
    Space(Space),
}

/// The result of a read or a write, and whether the file system has refused `RWF_DONTCACHE`.
pub(super) struct Moved {
    pub(super) result: Result<usize, Errno>,
    refused_uncached: bool,
}

impl Job {
    /// Wraps an operation.
    pub(crate) fn new(op: DiskOp) -> Job {
        let uncached = is_uncached(&op);
        Job { op: ManuallyDrop::new(op), uncached }
    }

    /// Makes the system calls and waits for them.
    pub(crate) fn run(&mut self) -> Outcome {
        carry_out(&mut self.op, self.uncached)
    }

    /// Returns the operation, on the engine's thread.
    pub(crate) fn into_op(self) -> DiskOp {
        ManuallyDrop::into_inner(self.op)
    }
}

/// Whether pages of an operation's reads or writes are to leave the page cache.
pub(crate) fn is_uncached(op: &DiskOp) -> bool {
    op.moved_file().is_some_and(Fd::is_uncached)
}

/// Completes a read from the page cache, without waiting for the disk. Returns `None` if the operation is not a read,
/// or if not all its bytes up to the end of the file are resident: a partial result would require a second read and a
/// second buffer. Not for files open with `O_DIRECT`.
pub(crate) fn read_if_resident(op: &mut DiskOp) -> Option<Outcome> {
    let DiskOp::Read { file, offset, len, buf } = op else { return None };
    let len = (*len as usize).min(buf.capacity());
    let count = read_cached(file, *offset, &mut buf.space()[..len]).ok()?;
    assert!(count <= len, "the count of a read is at most its length");
    if count < len {
        let ends = read_cached(file, *offset + count as u64, &mut [0]) == Ok(0);
        ends.then_some(())?;
    }
    Some(Outcome::count(Ok(count)))
}

/// Makes the system calls of an operation on a file or path, and waits for them.
pub(crate) fn carry_out(op: &mut DiskOp, uncached: bool) -> Outcome {
    match op {
        DiskOp::Open { dir, path, how } => Outcome::of(open(or_cwd(dir), path, *how), Output::Opened),
        DiskOp::Stat { target: StatTarget::File(file) } => Outcome::stat(rustix::fs::fstat(file)),
        DiskOp::Stat { target: StatTarget::Path(path) } => Outcome::stat(rustix::fs::stat(path.as_c_str())),
        DiskOp::Read { file, offset, len, buf } => {
            let len = (*len as usize).min(buf.capacity());
            Outcome::moved(read(file.as_fd(), &mut buf.space()[..len], *offset, uncached))
        }
        DiskOp::Write { file, offset, buf } => {
            Outcome::moved(write(file.as_fd(), &[IoSlice::new(buf)], *offset, uncached))
        }
        DiskOp::WriteSegments { file, offset, data } => {
            let slices: Slices<'_> = data.parts().map(Segment::bytes).map(IoSlice::new).collect();
            Outcome::moved(write(file.as_fd(), &slices, *offset, uncached))
        }
        DiskOp::Sendfile { socket, file, offset, len } => {
            let (mut offset, len) = (*offset, *len as usize);
            let sent = || rustix::fs::sendfile(socket.as_fd(), file.as_fd(), Some(&mut offset), len);
            Outcome::count(retry_on_intr(sent))
        }
        DiskOp::ReadDir { dir, bytes_max, attributes } => {
            let bytes_max = (*bytes_max).max(READ_DIR_BYTES_MIN) as usize;
            match directory::read(dir.as_fd(), bytes_max, *attributes) {
                Ok(entries) => Outcome::new(Ok(narrow(entries.len())), Output::Entries(entries)),
                Err(errno) => Outcome::new(Err(errno), Output::Nothing),
            }
        }
        DiskOp::StatMany { dir, names } => {
            let stats = directory::stat_names(dir.as_fd(), names);
            Outcome::new(Ok(narrow(stats.len())), Output::Stats(stats))
        }
        DiskOp::Space { target: StatTarget::File(file) } => Outcome::space(rustix::fs::fstatfs(file)),
        DiskOp::Space { target: StatTarget::Path(path) } => {
            Outcome::space(rustix::fs::statfs(path.as_c_str()))
        }
        DiskOp::Put { new } => Outcome::done(put(new)),
        DiskOp::Unlink { dir, path, is_directory } => {
            let flags = if *is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            Outcome::done(rustix::fs::unlinkat(or_cwd(dir), path.as_c_str(), flags))
        }
        DiskOp::Rename { from_dir, from, to_dir, to } => Outcome::done(rustix::fs::renameat(
            or_cwd(from_dir),
            from.as_c_str(),
            or_cwd(to_dir),
            to.as_c_str(),
        )),
        DiskOp::MkDir { dir, path, mode } => {
            Outcome::done(rustix::fs::mkdirat(or_cwd(dir), path.as_c_str(), Mode::from_raw_mode(*mode)))
        }
        DiskOp::Link { file, to } => Outcome::done(link(file.as_fd(), to)),
        DiskOp::Advise { file, offset, len } => {
            let (len, advice) = (NonZeroU64::new((*len).into()), rustix::fs::Advice::WillNeed);
            Outcome::done(rustix::fs::fadvise(file.as_fd(), *offset, len, advice))
        }
        DiskOp::Sync { file } => Outcome::done(retry_on_intr(|| rustix::fs::fdatasync(file.as_fd()))),
    }
}

/// The pieces of a write as the kernel expects them.
pub(super) type Slices<'a> = SmallVec<[IoSlice<'a>; SEGMENTS_MAX]>;

/// Reads at `offset`.
fn read(file: BorrowedFd<'_>, space: &mut [u8], offset: u64, uncached: bool) -> Moved {
    let room = space.len();
    let mut parts = [IoSliceMut::new(space)];
    let moved = transfer(uncached, |flags| match flags.is_empty() {
        true => rustix::io::preadv(file, &mut parts, offset),
        false => rustix::io::preadv2(file, &mut parts, offset, flags),
    });
    assert!(!matches!(moved.result, Ok(count) if count > room), "the count of a read is at most its length");
    moved
}

/// Writes at `offset`, or sequentially if the file is not seekable: a log may be a pipe, a terminal or a socket.
pub(super) fn write(file: BorrowedFd<'_>, slices: &[IoSlice<'_>], offset: u64, uncached: bool) -> Moved {
    let mut moved = transfer(uncached, |flags| match flags.is_empty() {
        true => rustix::io::pwritev(file, slices, offset),
        false => rustix::io::pwritev2(file, slices, offset, flags),
    });
    if moved.result == Err(Errno::SPIPE) {
        moved.result = retry_on_intr(|| rustix::io::writev(file, slices));
    }
    moved
}

/// Makes a call that reads or writes. If `uncached`, first with `RWF_DONTCACHE`, so that the pages leave the page cache
/// afterwards; if the file system refuses this flag, without it. A sandbox may lack preadv2(2) and pwritev2(2), so `call`
/// uses them only with flags.
fn transfer(uncached: bool, mut call: impl FnMut(ReadWriteFlags) -> Result<usize, Errno>) -> Moved {
    if uncached {
        match retry_on_intr(|| call(UNCACHED)) {
            Err(Errno::OPNOTSUPP) => {}
            result => return Moved { result, refused_uncached: false },
        }
    }
    Moved { result: retry_on_intr(|| call(ReadWriteFlags::empty())), refused_uncached: uncached }
}

/// Gives an open file a name. First links the descriptor itself, which needs a privilege before Linux 6.10 and fails
/// with ENOENT without it. Then links the file's path in /proc, as described in open(2) for `O_TMPFILE`.
pub(super) fn link(file: BorrowedFd<'_>, to: &CStr) -> Result<(), Errno> {
    match rustix::fs::linkat(file, c"", CWD, to, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT) => {}
        answer => return answer,
    }
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, name, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

/// Converts a count, which is at most the length of a buffer and so below 4 GiB.
fn narrow(count: usize) -> u32 {
    count as u32
}

impl Outcome {
    fn new(result: Result<u32, Errno>, output: Output) -> Outcome {
        Outcome { result, output, refused_uncached: false }
    }

    fn of<T>(result: Result<T, Errno>, output: impl FnOnce(T) -> Output) -> Outcome {
        match result {
            Ok(found) => Outcome::new(Ok(0), output(found)),
            Err(errno) => Outcome::new(Err(errno), Output::Nothing),
        }
    }

    /// Returns the outcome of a read or write.
    pub(crate) fn count(result: Result<usize, Errno>) -> Outcome {
        Outcome::new(result.map(narrow), Output::Nothing)
    }

    fn moved(moved: Moved) -> Outcome {
        Outcome { refused_uncached: moved.refused_uncached, ..Outcome::count(moved.result) }
    }

    fn done(result: Result<(), Errno>) -> Outcome {
        Outcome::of(result, |()| Output::Nothing)
    }

    fn stat(result: Result<rustix::fs::Stat, Errno>) -> Outcome {
        Outcome::of(result, |found| Output::Stat(Stat::from(found)))
    }

    fn space(result: Result<rustix::fs::StatFs, Errno>) -> Outcome {
        Outcome::of(result, |found| Output::Space(Space::from(found)))
    }

    /// Whether the operation failed because the socket's send buffer is full.
    pub(crate) fn is_full_socket(&self) -> bool {
        self.result == Err(Errno::AGAIN)
    }

    /// Ends the operation `op`, whose slot is `id`, with this outcome.
    pub(crate) fn deliver(self, op: DiskOp, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        slots.end(id, done, |_, done| {
            if let (true, Some(file)) = (self.refused_uncached, op.moved_file()) {
                file.refuse_uncached();
            }
            done.result = self.result;
            done.payload = match self.output {
                Output::Nothing => op.into_lent_payload(self.result),
                Output::Opened(fd) => Payload::Opened(fd),
                Output::Stat(stat) => Payload::Stat(Box::new(stat)),
                Output::Entries(entries) => Payload::Entries(entries),
                Output::Stats(stats) => Payload::Stats(stats),
                Output::Space(space) => Payload::Space(Box::new(space)),
            };
        });
    }
}

/// Returns the directory that relative paths of an operation start from.
fn or_cwd(dir: &Option<Fd>) -> BorrowedFd<'_> {
    dir.as_ref().map_or(CWD, AsFd::as_fd)
}

fn open(dir: BorrowedFd<'_>, path: &CStr, how: OpenHow) -> Result<OwnedFd, Errno> {
    let flags = OFlags::from_bits_retain(how.flags as u32) | OFlags::CLOEXEC;
    // openat2(2) rejects a mode without a flag that creates a file; open(2) ignores it.
    let creates = flags.intersects(OFlags::CREATE | OFlags::TMPFILE);
    let mode = Mode::from_raw_mode(if creates { how.mode } else { 0 });
    let resolve = ResolveFlags::from_bits_retain(how.resolve);
    if how.same_owner {
        return owner::open(dir, path.to_bytes(), flags, mode, resolve);
    }
    match how.resolve {
        0 => retry_on_intr(|| rustix::fs::openat(dir, path, flags, mode)),
        _ => walk::open(dir, path, flags, mode, resolve),
    }
}
