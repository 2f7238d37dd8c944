//! One operation on a file or path as blocking system calls, in a form that another thread can carry out.
//!
//! A [`Job`] names what the operation's slot owns: descriptors by number, buffers by address. The slot
//! keeps them until the [`Outcome`] has been delivered, also when the operation is abandoned, and is leaked
//! when that never comes; so both stay valid for as long as a job exists. Paths move into the job.

use std::ffi::{CStr, CString};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::disk::{folder, owner};
use crate::op::Completion;
use crate::op::{DirEntry, EntryLook, Op, OpId, OpenHow, Payload, READ_DIR_BYTES_MIN, Stat, StatTarget};
use crate::slot::Slots;

/// What a blocked thread needs to know of an operation.
#[derive(Debug)]
pub(crate) struct Job(Work);

#[derive(Debug)]
enum Work {
    Open { dir: Option<RawFd>, path: CString, how: OpenHow },
    StatFile { file: RawFd },
    StatPath { path: CString },
    Read { file: RawFd, offset: u64, memory: *mut u8, len: usize },
    Write { file: RawFd, offset: u64, memory: *const u8, len: usize },
    Sendfile { socket: RawFd, file: RawFd, offset: u64, len: usize },
    ReadDir { dir: RawFd, bytes_max: usize, look: EntryLook },
    Unlink { path: CString },
    Rename { from: CString, to: CString },
    Sync { file: RawFd },
}

// SAFETY: the addresses point into pool buffers, which are plain memory that no thread touches while the
// operation is in flight: its slot owns the buffer, and the slot's thread leaves it alone until the outcome
// has come back through a mutex.
unsafe impl Send for Job {}

/// What became of a job.
#[derive(Debug)]
pub(crate) struct Outcome {
    result: Result<u32, Errno>,
    brought: Brought,
}

#[derive(Debug)]
enum Brought {
    Nothing,
    Opened(OwnedFd),
    Stat(Stat),
    Entries(Vec<DirEntry>),
}

impl Job {
    /// The job of an operation on a file or path, which stays in its slot.
    pub(crate) fn new(op: &mut Op) -> Job {
        let work = match op {
            Op::Open { dir, path, how, .. } => Work::Open {
                dir: dir.as_ref().map(AsRawFd::as_raw_fd),
                path: std::mem::take(path),
                how: *how,
            },
            Op::Stat { target: StatTarget::File(file), .. } => Work::StatFile { file: file.as_raw_fd() },
            Op::Stat { target: StatTarget::Path(path), .. } => Work::StatPath { path: std::mem::take(path) },
            Op::Read { file, offset, len, buf, .. } => Work::Read {
                file: file.as_raw_fd(),
                offset: *offset,
                len: (*len as usize).min(buf.capacity()),
                memory: buf.as_mut_ptr(),
            },
            Op::Write { file, offset, buf, .. } => Work::Write {
                file: file.as_raw_fd(),
                offset: *offset,
                len: buf.len(),
                memory: buf.as_mut_ptr(),
            },
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
            Op::Unlink { path, .. } => Work::Unlink { path: std::mem::take(path) },
            Op::Rename { from, to, .. } => {
                Work::Rename { from: std::mem::take(from), to: std::mem::take(to) }
            }
            Op::Sync { file, .. } => Work::Sync { file: file.as_raw_fd() },
            Op::Nop
            | Op::Accept { .. }
            | Op::Recv { .. }
            | Op::Send { .. }
            | Op::Connect { .. }
            | Op::Poll { .. }
            | Op::Close { .. } => unreachable!("operations of the network are no jobs"),
        };
        Job(work)
    }

    /// Reads what is in the page cache, when the job is a read and at least its first byte is there.
    /// Never waits for a disk (`RWF_NOWAIT`, Linux 4.14); not to be used on a file open with `O_DIRECT`.
    pub(crate) fn run_if_resident(&self) -> Option<Outcome> {
        let Work::Read { file, offset, memory, len } = self.0 else { return None };
        let mut space = [IoSliceMut::new(space(memory, len))];
        let count = rustix::io::preadv2(borrow(file), &mut space, offset, ReadWriteFlags::NOWAIT).ok()?;
        Some(Outcome::count(Ok(count)))
    }

    /// Makes the system call and waits for it.
    pub(crate) fn run(self) -> Outcome {
        match self.0 {
            Work::Open { dir, path, how } => Outcome::opened(open(dir.map_or(CWD, borrow), &path, how)),
            Work::StatFile { file } => Outcome::stat(rustix::fs::fstat(borrow(file))),
            Work::StatPath { path } => Outcome::stat(rustix::fs::stat(path)),
            Work::Read { file, offset, memory, len } => {
                let space = space(memory, len);
                Outcome::count(retry_on_intr(|| rustix::io::pread(borrow(file), &mut *space, offset)))
            }
            Work::Write { file, offset, memory, len } => {
                Outcome::count(write(borrow(file), content(memory, len), offset))
            }
            Work::Sendfile { socket, file, mut offset, len } => {
                let (to, from) = (borrow(socket), borrow(file));
                Outcome::count(retry_on_intr(|| rustix::fs::sendfile(to, from, Some(&mut offset), len)))
            }
            Work::ReadDir { dir, bytes_max, look } => {
                Outcome::entries(folder::read(borrow(dir), bytes_max, look))
            }
            Work::Unlink { path } => Outcome::done(rustix::fs::unlink(path)),
            Work::Rename { from, to } => Outcome::done(rustix::fs::rename(from, to)),
            Work::Sync { file } => Outcome::done(retry_on_intr(|| rustix::fs::fdatasync(borrow(file)))),
        }
    }
}

/// Writes at `offset`, or in order where there are no places: a log may be a pipe, a terminal or a socket.
fn write(file: BorrowedFd<'_>, content: &[u8], offset: u64) -> Result<usize, Errno> {
    match retry_on_intr(|| rustix::io::pwrite(file, content, offset)) {
        Err(Errno::SPIPE) => retry_on_intr(|| rustix::io::write(file, content)),
        answer => answer,
    }
}

/// A buffer is below 4 GiB and a count is at most its length.
fn narrow(count: usize) -> u32 {
    count as u32
}

impl Outcome {
    /// The kernel's answer to a read that this module did not make.
    pub(crate) fn count(result: Result<usize, Errno>) -> Outcome {
        Outcome { result: result.map(narrow), brought: Brought::Nothing }
    }

    fn done(result: Result<(), Errno>) -> Outcome {
        Outcome { result: result.map(|()| 0), brought: Brought::Nothing }
    }

    fn stat(result: Result<rustix::fs::Stat, Errno>) -> Outcome {
        match result {
            Ok(found) => Outcome { result: Ok(0), brought: Brought::Stat(Stat::from(found)) },
            Err(error) => Outcome { result: Err(error), brought: Brought::Nothing },
        }
    }

    fn opened(result: Result<OwnedFd, Errno>) -> Outcome {
        match result {
            Ok(fd) => Outcome { result: Ok(0), brought: Brought::Opened(fd) },
            Err(error) => Outcome { result: Err(error), brought: Brought::Nothing },
        }
    }

    fn entries(result: Result<Vec<DirEntry>, Errno>) -> Outcome {
        match result {
            Ok(entries) => Outcome { result: Ok(narrow(entries.len())), brought: Brought::Entries(entries) },
            Err(error) => Outcome { result: Err(error), brought: Brought::Nothing },
        }
    }

    /// Whether this says that a socket took no more.
    pub(crate) fn is_full_socket(&self) -> bool {
        self.result == Err(Errno::AGAIN)
    }

    /// Ends the operation with this outcome.
    pub(crate) fn deliver(self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let op = slots.get(id).and_then(|slot| slot.op.take());
        let payload = match (self.brought, op) {
            (Brought::Opened(fd), _) => Payload::Opened(fd),
            (Brought::Stat(stat), _) => Payload::Stat(stat),
            (Brought::Entries(entries), _) => Payload::Entries(entries),
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

fn content(memory: *const u8, len: usize) -> &'static [u8] {
    // SAFETY: as in `space`; `len` is the length of the buffer's content.
    unsafe { std::slice::from_raw_parts(memory, len) }
}
