//! One operation on a file or path as blocking system calls, in a form that another thread can carry out.
//!
//! A [`Job`] names what the operation's slot owns: descriptors by number, buffers by address. The slot
//! keeps them until the [`Outcome`] has been delivered, also when the operation is abandoned, and is leaked
//! when that never comes; so both stay valid for as long as a job exists. Paths move into the job.

use std::ffi::{CStr, CString};
use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use smallvec::SmallVec;

use crate::disk::{folder, owner};
use crate::op::{Advice, Completion, DirEntry, EntryLook, Op, OpId, OpenHow, Payload};
use crate::op::{READ_DIR_BYTES_MIN, SEGMENTS_MAX, Segment, Space, Stat, StatTarget};
use crate::page_cache::UNCACHED;
use crate::slot::Slots;

/// What a blocked thread needs to know of an operation.
#[derive(Debug)]
pub(crate) struct Job(Work);

#[derive(Debug)]
enum Work {
    Open { dir: Option<RawFd>, path: CString, how: OpenHow },
    StatFile { file: RawFd },
    StatPath { path: CString },
    Read { file: RawFd, offset: u64, memory: *mut u8, len: usize, uncached: bool },
    Write { file: RawFd, offset: u64, pieces: Pieces, uncached: bool },
    Sendfile { socket: RawFd, file: RawFd, offset: u64, len: usize },
    ReadDir { dir: RawFd, bytes_max: usize, look: EntryLook },
    StatMany { dir: RawFd, names: Arc<[CString]> },
    Put(Put),
    Unlink { path: CString, folder: bool },
    Rename { from: CString, to: CString },
    MkDir { path: CString, mode: u32 },
    Link { file: RawFd, to: CString },
    Truncate { file: RawFd, len: u64 },
    Allocate { file: RawFd, offset: u64, len: u64, keep_size: bool },
    Advise { file: RawFd, offset: u64, len: u32, advice: Advice },
    SpaceOfFile { file: RawFd },
    SpaceOfPath { path: CString },
    Sync { file: RawFd },
}

/// What is known of a new file.
#[derive(Debug)]
struct Put {
    /// Names, with the zero byte at their ends.
    temp: Place,
    to: Place,
    begun: Option<RawFd>,
    mode: u32,
    pieces: Pieces,
    uncached: bool,
}

/// Where bytes lie that the slot has.
type Place = (*const u8, usize);

/// Where the bytes of a write lie, in order.
type Pieces = SmallVec<[Place; 2]>;

// SAFETY: the addresses point into pool buffers, vectors, names, constants and shared slices, which are plain memory
// that no thread writes to while the operation is in flight: its slot owns them, and the slot's thread leaves
// them alone until the outcome has come back through a mutex.
unsafe impl Send for Job {}

/// What became of a job.
#[derive(Debug)]
pub(crate) struct Outcome {
    result: Result<u32, Errno>,
    brought: Brought,
    /// Whether the file system had no uncached reads and writes.
    refused_uncached: bool,
}

#[derive(Debug)]
enum Brought {
    Nothing,
    Opened(OwnedFd),
    Stat(Stat),
    Entries(Vec<DirEntry>),
    Stats(Vec<Result<Stat, Errno>>),
    Space(Space),
}

impl Job {
    /// The job of an operation on a file or path, which stays in its slot.
    pub(crate) fn new(op: &mut Op) -> Job {
        let work = match op {
            Op::Read { file, offset, len, buf, .. } => Work::Read {
                file: file.as_raw_fd(),
                offset: *offset,
                len: (*len as usize).min(buf.capacity()),
                memory: buf.as_mut_ptr(),
                uncached: file.is_uncached(),
            },
            Op::Write { file, offset, buf, .. } => {
                let (memory, len): (*const u8, usize) = (buf.as_mut_ptr(), buf.len());
                let (pieces, uncached) = (Pieces::from_iter([(memory, len)]), file.is_uncached());
                Work::Write { file: file.as_raw_fd(), offset: *offset, pieces, uncached }
            }
            Op::WriteSegments { file, offset, data, .. } => {
                let piece = |part: &Segment| (part.bytes().as_ptr(), part.bytes().len());
                let (pieces, uncached) = (data.parts().map(piece).collect(), file.is_uncached());
                Work::Write { file: file.as_raw_fd(), offset: *offset, pieces, uncached }
            }
            Op::Put { new, .. } => {
                let place = |bytes: &[u8]| (bytes.as_ptr(), bytes.len());
                let piece = |part: &Segment| place(part.bytes());
                Work::Put(Put {
                    temp: place(new.temp.as_bytes_with_nul()),
                    to: place(new.to.as_bytes_with_nul()),
                    begun: new.begun.as_ref().map(AsRawFd::as_raw_fd),
                    mode: new.mode,
                    pieces: new.data.iter().flat_map(|data| data.parts().map(piece)).collect(),
                    uncached: new.uncached,
                })
            }
            Op::Sendfile { socket, file, offset, len, .. } => Work::Sendfile {
                socket: socket.as_raw_fd(),
                file: file.as_raw_fd(),
                offset: *offset,
                len: *len as usize,
            },
            Op::ReadDir { dir, bytes_max, look, .. } => Work::ReadDir {
                dir: dir.as_raw_fd(),
                bytes_max: (*bytes_max).max(READ_DIR_BYTES_MIN) as usize,
                look: *look,
            },
            Op::StatMany { dir, names, .. } => {
                Work::StatMany { dir: dir.as_raw_fd(), names: Arc::clone(names) }
            }
            Op::Sync { file, .. } => Work::Sync { file: file.as_raw_fd() },
            Op::Link { file, to, .. } => Work::Link { file: file.as_raw_fd(), to: std::mem::take(to) },
            Op::Truncate { file, len, .. } => Work::Truncate { file: file.as_raw_fd(), len: *len },
            Op::Allocate { file, offset, len, keep_size, .. } => {
                let (offset, len, keep_size) = (*offset, *len, *keep_size);
                Work::Allocate { file: file.as_raw_fd(), offset, len, keep_size }
            }
            Op::Advise { file, offset, len, advice, .. } => {
                Work::Advise { file: file.as_raw_fd(), offset: *offset, len: *len, advice: *advice }
            }
            op => on_paths(op),
        };
        Job(work)
    }

    /// Reads what is in the page cache, when the job is a read and all of it is there, as far as the file goes: a part of
    /// it would leave the rest to a second read, and a second buffer.
    /// Never waits for a disk (`RWF_NOWAIT`, Linux 4.14); not to be used on a file open with `O_DIRECT`.
    pub(crate) fn run_if_resident(&self) -> Option<Outcome> {
        let Work::Read { file, offset, memory, len, uncached } = self.0 else { return None };
        let mut space = [IoSliceMut::new(space(memory, len))];
        // A read that finds nothing begins to read ahead all the same, and that would stay without the flag.
        let flags = ReadWriteFlags::NOWAIT | if uncached { UNCACHED } else { ReadWriteFlags::empty() };
        let count = rustix::io::preadv2(borrow(file), &mut space, offset, flags).ok()?;
        if count < len {
            let mut byte = [0];
            let rest = &mut [IoSliceMut::new(&mut byte)];
            let ends = rustix::io::preadv2(borrow(file), rest, offset + count as u64, flags) == Ok(0);
            ends.then_some(())?;
        }
        Some(Outcome::count(Ok(count)))
    }

    /// Makes the system call and waits for it.
    pub(crate) fn run(self) -> Outcome {
        match self.0 {
            Work::Open { dir, path, how } => Outcome::opened(open(dir.map_or(CWD, borrow), &path, how)),
            Work::StatFile { file } => Outcome::stat(rustix::fs::fstat(borrow(file))),
            Work::StatPath { path } => Outcome::stat(rustix::fs::stat(path)),
            Work::Read { file, offset, memory, len, uncached } => {
                read(borrow(file), space(memory, len), offset, uncached)
            }
            Work::Write { file, offset, pieces, uncached } => {
                let slice = |&(at, len): &(*const u8, usize)| IoSlice::new(content(at, len));
                let slices: Slices<'_> = pieces.iter().map(slice).collect();
                write(borrow(file), &slices, offset, uncached)
            }
            Work::Sendfile { socket, file, mut offset, len } => {
                let (to, from) = (borrow(socket), borrow(file));
                Outcome::count(retry_on_intr(|| rustix::fs::sendfile(to, from, Some(&mut offset), len)))
            }
            Work::ReadDir { dir, bytes_max, look } => {
                Outcome::entries(folder::read(borrow(dir), bytes_max, look))
            }
            Work::StatMany { dir, names } => Outcome::stats(folder::look(borrow(dir), &names)),
            Work::Put(put) => Outcome::done(put.run()),
            Work::Unlink { path, folder } => {
                let flags = if folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                Outcome::done(rustix::fs::unlinkat(CWD, path, flags))
            }
            Work::Rename { from, to } => Outcome::done(rustix::fs::rename(from, to)),
            Work::MkDir { path, mode } => Outcome::done(rustix::fs::mkdir(path, Mode::from_raw_mode(mode))),
            Work::Link { file, to } => Outcome::done(link(borrow(file), &to)),
            Work::Truncate { file, len } => {
                Outcome::done(retry_on_intr(|| rustix::fs::ftruncate(borrow(file), len)))
            }
            Work::Allocate { file, offset, len, keep_size } => {
                let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                Outcome::done(retry_on_intr(|| rustix::fs::fallocate(borrow(file), flags, offset, len)))
            }
            Work::Advise { file, offset, len, advice } => {
                let advice = match advice {
                    Advice::DontNeed => rustix::fs::Advice::DontNeed,
                    Advice::WillNeed => rustix::fs::Advice::WillNeed,
                };
                let len = NonZeroU64::new(len.into());
                Outcome::done(rustix::fs::fadvise(borrow(file), offset, len, advice))
            }
            Work::SpaceOfFile { file } => Outcome::space(rustix::fs::fstatfs(borrow(file))),
            Work::SpaceOfPath { path } => Outcome::space(rustix::fs::statfs(path)),
            Work::Sync { file } => Outcome::done(retry_on_intr(|| rustix::fs::fdatasync(borrow(file)))),
        }
    }
}

/// The work of an operation on a path, which moves into it.
fn on_paths(op: &mut Op) -> Work {
    match op {
        Op::Open { dir, path, how, .. } => {
            Work::Open { dir: dir.as_ref().map(AsRawFd::as_raw_fd), path: std::mem::take(path), how: *how }
        }
        Op::Stat { target: StatTarget::File(file), .. } => Work::StatFile { file: file.as_raw_fd() },
        Op::Stat { target: StatTarget::Path(path), .. } => Work::StatPath { path: std::mem::take(path) },
        Op::Space { target: StatTarget::File(file), .. } => Work::SpaceOfFile { file: file.as_raw_fd() },
        Op::Space { target: StatTarget::Path(path), .. } => Work::SpaceOfPath { path: std::mem::take(path) },
        Op::Unlink { path, folder, .. } => Work::Unlink { path: std::mem::take(path), folder: *folder },
        Op::MkDir { path, mode, .. } => Work::MkDir { path: std::mem::take(path), mode: *mode },
        Op::Rename { from, to, .. } => Work::Rename { from: std::mem::take(from), to: std::mem::take(to) },
        _ => unreachable!("operations of the network are no jobs"),
    }
}

impl Put {
    /// Makes the file, writes it and renames it, or removes what it has made of it.
    fn run(self) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(self.mode);
        let (temp, to) = (name(self.temp), name(self.to));
        let made = match self.begun {
            Some(_) => None,
            None => Some(retry_on_intr(|| rustix::fs::open(temp, flags, mode))?),
        };
        let file = made.as_ref().map(AsFd::as_fd).or(self.begun.map(borrow)).ok_or(Errno::BADF)?;
        let done = self.write(file).and_then(|()| rustix::fs::rename(temp, to));
        if done.is_err() && made.is_some() {
            // The first error says more than one of the removal would.
            let _ = rustix::fs::unlinkat(CWD, temp, AtFlags::empty());
        }
        done
    }

    fn write(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut slices: Slices<'_> =
            self.pieces.iter().map(|&(at, len)| IoSlice::new(content(at, len))).collect();
        let (mut rest, mut offset) = (&mut slices[..], 0);
        while !rest.is_empty() {
            let count = write(file, &rest[..rest.len().min(PIECES_MAX)], offset, self.uncached).result?;
            if count == 0 {
                return Err(Errno::IO);
            }
            offset += u64::from(count);
            IoSlice::advance_slices(&mut rest, count as usize);
        }
        Ok(())
    }
}

/// Pieces of one write: the kernel takes no more (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// The pieces of a write, as the kernel wants them.
type Slices<'a> = SmallVec<[IoSlice<'a>; SEGMENTS_MAX]>;

/// Reads at `offset`; past the page cache where that is asked for and can be had.
fn read(file: BorrowedFd<'_>, space: &mut [u8], offset: u64, uncached: bool) -> Outcome {
    let mut parts = [IoSliceMut::new(space)];
    if uncached {
        match retry_on_intr(|| rustix::io::preadv2(file, &mut parts, offset, UNCACHED)) {
            Err(Errno::OPNOTSUPP) => {}
            answer => return Outcome::count(answer),
        }
    }
    let answer = Outcome::count(retry_on_intr(|| rustix::io::preadv(file, &mut parts, offset)));
    Outcome { refused_uncached: uncached, ..answer }
}

/// Writes at `offset`, or in order where there are no places: a log may be a pipe, a terminal or a socket.
fn write(file: BorrowedFd<'_>, slices: &[IoSlice<'_>], offset: u64, uncached: bool) -> Outcome {
    if uncached {
        match retry_on_intr(|| rustix::io::pwritev2(file, slices, offset, UNCACHED)) {
            Err(Errno::OPNOTSUPP) => {}
            answer => return Outcome::count(answer),
        }
    }
    let answer = match retry_on_intr(|| rustix::io::pwritev(file, slices, offset)) {
        Err(Errno::SPIPE) => retry_on_intr(|| rustix::io::writev(file, slices)),
        answer => answer,
    };
    Outcome { refused_uncached: uncached, ..Outcome::count(answer) }
}

/// Gives an open file a name. By the descriptor itself, which needs a privilege before Linux 6.10 and answers
/// ENOENT without it; then by its entry in /proc, as open(2) shows it for `O_TMPFILE`.
fn link(file: BorrowedFd<'_>, to: &CStr) -> Result<(), Errno> {
    match rustix::fs::linkat(file, c"", CWD, to, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT) => {}
        answer => return answer,
    }
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, name, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

/// A buffer is below 4 GiB and a count is at most its length.
fn narrow(count: usize) -> u32 {
    count as u32
}

impl Outcome {
    fn new(result: Result<u32, Errno>, brought: Brought) -> Outcome {
        Outcome { result, brought, refused_uncached: false }
    }

    /// The kernel's answer to a read that this module did not make.
    pub(crate) fn count(result: Result<usize, Errno>) -> Outcome {
        Outcome::new(result.map(narrow), Brought::Nothing)
    }

    fn done(result: Result<(), Errno>) -> Outcome {
        Outcome::new(result.map(|()| 0), Brought::Nothing)
    }

    fn stat(result: Result<rustix::fs::Stat, Errno>) -> Outcome {
        match result {
            Ok(found) => Outcome::new(Ok(0), Brought::Stat(Stat::from(found))),
            Err(error) => Outcome::new(Err(error), Brought::Nothing),
        }
    }

    fn opened(result: Result<OwnedFd, Errno>) -> Outcome {
        match result {
            Ok(fd) => Outcome::new(Ok(0), Brought::Opened(fd)),
            Err(error) => Outcome::new(Err(error), Brought::Nothing),
        }
    }

    fn stats(stats: Vec<Result<Stat, Errno>>) -> Outcome {
        Outcome::new(Ok(narrow(stats.len())), Brought::Stats(stats))
    }

    fn entries(result: Result<Vec<DirEntry>, Errno>) -> Outcome {
        match result {
            Ok(entries) => Outcome::new(Ok(narrow(entries.len())), Brought::Entries(entries)),
            Err(error) => Outcome::new(Err(error), Brought::Nothing),
        }
    }

    fn space(result: Result<rustix::fs::StatFs, Errno>) -> Outcome {
        match result {
            Ok(found) => Outcome::new(Ok(0), Brought::Space(Space::from(found))),
            Err(error) => Outcome::new(Err(error), Brought::Nothing),
        }
    }

    /// Whether this says that a socket took no more.
    pub(crate) fn is_full_socket(&self) -> bool {
        self.result == Err(Errno::AGAIN)
    }

    /// Ends the operation with this outcome.
    pub(crate) fn deliver(self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let op = slots.get(id).and_then(|slot| slot.op.take());
        if let (true, Some(file)) = (self.refused_uncached, op.as_ref().and_then(Op::moved_file)) {
            file.refuse_uncached();
        }
        let payload = match (self.brought, op) {
            (Brought::Opened(fd), _) => Payload::Opened(fd),
            (Brought::Stat(stat), _) => Payload::Stat(Box::new(stat)),
            (Brought::Entries(entries), _) => Payload::Entries(entries),
            (Brought::Stats(stats), _) => Payload::Stats(stats),
            (Brought::Space(space), _) => Payload::Space(Box::new(space)),
            (Brought::Nothing, Some(Op::Read { mut buf, .. })) => {
                buf.set_len(self.result.unwrap_or(0) as usize);
                Payload::Buf(buf)
            }
            (Brought::Nothing, Some(op)) => op.into_payload(),
            (Brought::Nothing, None) => Payload::None,
        };
        slots.finish(id, self.result, false, payload, done);
    }
}

fn open(dir: BorrowedFd<'_>, path: &CStr, how: OpenHow) -> Result<OwnedFd, Errno> {
    let flags = OFlags::from_bits_retain(how.flags as u32) | OFlags::CLOEXEC;
    // openat2(2) refuses a mode without a flag that creates, where open(2) ignores it.
    let creates = flags.intersects(OFlags::CREATE | OFlags::TMPFILE);
    let mode = Mode::from_raw_mode(if creates { how.mode } else { 0 });
    let resolve = ResolveFlags::from_bits_retain(how.resolve);
    if how.same_owner {
        return owner::open(dir, path.to_bytes(), flags, mode, resolve);
    }
    match how.resolve {
        0 => retry_on_intr(|| rustix::fs::openat(dir, path, flags, mode)),
        _ => retry_on_intr(|| rustix::fs::openat2(dir, path, flags, mode, resolve)),
    }
}

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the operation's slot owns the descriptor and outlives the job, see the top of this file.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn space(memory: *mut u8, len: usize) -> &'static mut [u8] {
    // SAFETY: `Job::new` took both from a pool buffer, whose memory is initialised; the slot owns it, lends
    // it to this job alone and outlives the job.
    unsafe { std::slice::from_raw_parts_mut(memory, len) }
}

fn name((memory, len): Place) -> &'static CStr {
    CStr::from_bytes_with_nul(content(memory, len)).expect("it was a C string in the slot")
}

fn content(memory: *const u8, len: usize) -> &'static [u8] {
    // SAFETY: as in `space`, for a buffer's content or a segment's bytes, which nobody writes to meanwhile.
    unsafe { std::slice::from_raw_parts(memory, len) }
}
