//! An operation in the form that the kernel gets: its entry of the submission queue.
//!
//! A match over [`NetOp`] or [`DiskOp`] builds the entry. Entries point into the operation's slot and its `Scratch` memory (message
//! headers, addresses, stat results), which stay valid until the terminal completion. A [`Tag`] identifies the
//! operation in queue entries. Flags that the `io-uring` crate lacks are defined here.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{CancelBuilder, Fd as Raw, FsyncFlags};
use io_uring::{opcode, types};
use rustix::io::Errno;

use super::recv::Group;
use super::state::{InFlight, RingState, Scratch};
use crate::engine::OPS_MAX;
use crate::fd::Fd;
use crate::op::{DiskOp, Interest, NetOp, Op, OpId, OpenHow, RecvInto, StatTarget};
use crate::segments::Segments;
use crate::slot::Slot;

/// `ioprio` bits of receives: `IORING_RECVSEND_POLL_FIRST` and `IORING_RECV_MULTISHOT`.
const POLL_FIRST: u16 = 1 << 0;
const RECV_MULTISHOT: u16 = 1 << 1;

/// Opcodes for zero-copy sends (Linux 6.1); without them, sends copy.
pub(super) const ZERO_COPY: [u8; 2] = [opcode::SendZc::CODE, opcode::SendMsgZc::CODE];

/// All other opcodes that are submitted for sockets and the doorbell.
pub(super) const NETWORK: [u8; 7] = [
    opcode::Accept::CODE,
    opcode::Recv::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Connect::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel2::CODE,
];

/// All other opcodes that are submitted for files.
pub(super) const FILES: [u8; 15] = [
    opcode::Nop::CODE,
    opcode::Close::CODE,
    opcode::OpenAt2::CODE,
    opcode::Statx::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
    opcode::Writev::CODE,
    opcode::UnlinkAt::CODE,
    opcode::RenameAt::CODE,
    opcode::MkDirAt::CODE,
    opcode::LinkAt::CODE,
    opcode::Fadvise::CODE,
    opcode::Fsync::CODE,
];

/// All flags that entries use.
pub(super) const FLAGS: Flags = Flags::BUFFER_SELECT.union(Flags::ASYNC).union(Flags::SKIP_SUCCESS);

/// An entry whose memory belongs to an operation in a slot, and so stays valid until the terminal completion. Only this
/// module makes such entries.
#[derive(Debug)]
pub(super) struct OwnedEntry(Entry);

impl OwnedEntry {
    fn new(entry: Entry, tag: Tag) -> OwnedEntry {
        OwnedEntry(entry.user_data(tag.pack()))
    }

    /// Wraps an entry without an operation.
    #[cfg(test)]
    pub(super) fn without_op(entry: Entry) -> OwnedEntry {
        OwnedEntry(entry)
    }

    /// Returns the entry as the `io-uring` crate expects it.
    pub(super) fn raw(&self) -> &Entry {
        &self.0
    }
}

/// Builds the entry of the most frequent operations of a connection, which need no scratch memory. It is inlined into
/// the function that adds it to the queue, so that it is written once, in place. [`build`] builds all entries.
#[inline(always)]
pub(super) fn small(id: OpId, op: &mut Op) -> Option<OwnedEntry> {
    let Op::Net(op) = op else { return None };
    let entry = match op {
        NetOp::Nop => opcode::Nop::new().build(),
        NetOp::Recv { socket, into } => recv(socket, into),
        NetOp::Send { socket, data, more, zero_copy: false } => {
            let bytes = data.only()?;
            let (pointer, len) = (bytes.as_ptr(), bytes.len() as u32);
            opcode::Send::new(raw(socket), pointer, len).flags(send_flags(*more)).build()
        }
        _ => return None,
    };
    Some(OwnedEntry::new(entry, Tag::Op(id)))
}

/// Builds the entry for the operation in a slot, with the identifier `id`. `fixed` is the index of its buffer in the ring's table of fixed
/// buffers, if registered; `copying` turns a zero-copy send into an ordinary one.
///
/// # Errors
/// When it is known without the kernel that the operation fails.
pub(super) fn build(
    id: OpId,
    slot: &mut Slot,
    flights: &mut InFlight,
    fixed: Option<u16>,
    copying: bool,
) -> Result<OwnedEntry, Errno> {
    let memory = Memory { state: &mut slot.ring, flights, fixed };
    let entry = match &mut slot.op {
        Op::Net(op) => net(op, memory, copying)?,
        Op::Disk { op, .. } => disk(op, memory)?,
    };
    Ok(OwnedEntry::new(entry, Tag::Op(id)))
}

/// Memory for the entry of an operation, besides that of the operation itself.
struct Memory<'a> {
    state: &'a mut RingState,
    flights: &'a mut InFlight,
    fixed: Option<u16>,
}

impl Memory<'_> {
    fn scratch(&mut self) -> &mut Scratch {
        self.flights.scratch(self.state)
    }
}

fn net(op: &mut NetOp, mut memory: Memory<'_>, copying: bool) -> Result<Entry, Errno> {
    Ok(match op {
        NetOp::Nop => opcode::Nop::new().build(),
        NetOp::Accept { listener, multishot } => accept(listener, *multishot),
        NetOp::Recv { socket, into } => recv(socket, into),
        NetOp::Send { socket, data, more, zero_copy } => {
            send(raw(socket), data, *more, *zero_copy && !copying, memory)
        }
        NetOp::Connect { socket, peer } => {
            let (address, len) = memory.scratch().address(peer)?;
            opcode::Connect::new(raw(socket), address, len).build()
        }
        NetOp::Poll { fd, interest } => opcode::PollAdd::new(raw(fd), events(*interest)).build(),
        NetOp::Close { fd } => opcode::Close::new(Raw(fd.as_raw_fd())).build(),
    })
}

fn disk(op: &mut DiskOp, mut memory: Memory<'_>) -> Result<Entry, Errno> {
    Ok(match op {
        DiskOp::Open { how: OpenHow { same_owner: true, .. }, .. } => return Err(Errno::NOSYS),
        DiskOp::Open { dir, path, how } => {
            let (from, to) = (raw_or_cwd(dir), memory.scratch().how(*how));
            let entry = opcode::OpenAt2::new(from, path.as_ptr(), to).build();
            if how.is_cold { entry.flags(Flags::ASYNC) } else { entry }
        }
        DiskOp::Stat { target } => stat(target, memory.scratch().stat_buffer().cast()),
        DiskOp::Read { file, offset, len, buf } => {
            let (target, len) = (buf.as_mut_ptr(), (*len).min(buf.capacity() as u32));
            match memory.fixed {
                Some(fixed_index) => {
                    opcode::ReadFixed::new(raw(file), target, len, fixed_index).offset(*offset).build()
                }
                None => {
                    opcode::Read::new(raw(file), target, len).offset(*offset).rw_flags(caching(file)).build()
                }
            }
        }
        DiskOp::Write { file, offset, buf } => {
            let (source, len, offset) = (buf.as_mut_ptr(), buf.len() as u32, write_offset(file, *offset));
            match memory.fixed {
                Some(fixed_index) => {
                    opcode::WriteFixed::new(raw(file), source, len, fixed_index).offset(offset).build()
                }
                None => {
                    opcode::Write::new(raw(file), source, len).offset(offset).rw_flags(caching(file)).build()
                }
            }
        }
        DiskOp::WriteSegments { file, offset, data } => {
            let (pieces, count) = memory.scratch().pieces(data);
            let entry = opcode::Writev::new(raw(file), pieces, count).offset(write_offset(file, *offset));
            entry.rw_flags(caching(file)).build()
        }
        DiskOp::Link { file, to } => link(file, to, memory.state.by_proc.then(|| memory.scratch())),
        DiskOp::Advise { file, offset, len } => {
            let advice = libc::POSIX_FADV_WILLNEED;
            opcode::Fadvise::new(raw(file), (*len).into(), advice).offset(*offset).build()
        }
        DiskOp::Unlink { dir, path, is_directory } => {
            let flags = if *is_directory { libc::AT_REMOVEDIR } else { 0 };
            opcode::UnlinkAt::new(raw_or_cwd(dir), path.as_ptr()).flags(flags).build()
        }
        DiskOp::Rename { from_dir, from, to_dir, to } => {
            let (from_dir, to_dir) = (raw_or_cwd(from_dir), raw_or_cwd(to_dir));
            opcode::RenameAt::new(from_dir, from.as_ptr(), to_dir, to.as_ptr()).build()
        }
        DiskOp::MkDir { dir, path, mode } => {
            opcode::MkDirAt::new(raw_or_cwd(dir), path.as_ptr()).mode(*mode).build()
        }
        DiskOp::Sync { file } => opcode::Fsync::new(raw(file)).flags(FsyncFlags::DATASYNC).build(),
        // io_uring has no such operations; a splice instead of sendfile(2) would run on a kernel worker.
        DiskOp::Sendfile { .. }
        | DiskOp::ReadDir { .. }
        | DiskOp::StatMany { .. }
        | DiskOp::Put { .. }
        | DiskOp::Space { .. } => {
            return Err(Errno::NOSYS);
        }
    })
}

/// Builds the entry that gives an open file a name: by the descriptor, or by its path in /proc, which is written to
/// `scratch`. `disk::job` describes which of the two the kernel allows.
fn link(file: &Fd, to: &CStr, scratch: Option<&mut Scratch>) -> Entry {
    let (dir, from, flags) = match scratch {
        None => (raw(file), c"".as_ptr(), libc::AT_EMPTY_PATH),
        Some(scratch) => (cwd(), scratch.path_of(file), libc::AT_SYMLINK_FOLLOW),
    };
    opcode::LinkAt::new(dir, from, cwd(), to.as_ptr()).flags(flags).build()
}

/// Returns the offset for a write. Pipes and terminals ignore the offset; sockets, such as the standard error of a
/// service, reject all offsets except 0.
fn write_offset(file: &Fd, offset: u64) -> u64 {
    if offset != 0 && file.is_stream() { 0 } else { offset }
}

/// Returns the flags of a read or write: uncached if the file is marked so.
fn caching(file: &Fd) -> i32 {
    if file.is_uncached() { libc::RWF_DONTCACHE } else { 0 }
}

/// Builds the entry that cancels `id`. It completes only when it fails.
pub(super) fn cancel(id: OpId) -> OwnedEntry {
    let target = CancelBuilder::user_data(Tag::Op(id).pack());
    let entry = opcode::AsyncCancel2::new(target).build();
    OwnedEntry::new(entry.flags(Flags::SKIP_SUCCESS), Tag::Cancel(id))
}

/// Builds the entry that watches the doorbell until the kernel ends it.
pub(super) fn watch(fd: &Fd) -> OwnedEntry {
    let entry = opcode::PollAdd::new(raw(fd), libc::POLLIN as u32).multi(true).build();
    OwnedEntry::new(entry, Tag::Doorbell)
}

fn raw(fd: &Fd) -> Raw {
    Raw(fd.as_raw_fd())
}

/// Returns the directory that relative paths of an operation start from.
fn raw_or_cwd(dir: &Option<Fd>) -> Raw {
    dir.as_ref().map_or_else(cwd, raw)
}

fn cwd() -> Raw {
    const CWD: RawFd = libc::AT_FDCWD;
    Raw(CWD)
}

fn events(interest: Interest) -> u32 {
    let events = match interest {
        Interest::Readable => libc::POLLIN | libc::POLLRDHUP,
        Interest::Writable => libc::POLLOUT,
        Interest::HangUp => libc::POLLRDHUP,
    };
    events as u32
}

fn accept(listener: &Fd, multishot: bool) -> Entry {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    if multishot {
        opcode::AcceptMulti::new(raw(listener)).flags(flags).build()
    } else {
        let nowhere = std::ptr::null_mut();
        opcode::Accept::new(raw(listener), nowhere, nowhere.cast()).flags(flags).build()
    }
}

#[inline(always)]
fn recv(socket: &Fd, into: &mut RecvInto) -> Entry {
    match into {
        RecvInto::Owned(buf) => {
            let room = buf.spare_capacity();
            opcode::Recv::new(raw(socket), room.as_mut_ptr(), room.len() as u32).build()
        }
        RecvInto::Pool => recv_provided(socket, Group::Small, POLL_FIRST),
        RecvInto::Large => recv_provided(socket, Group::Large, POLL_FIRST),
        RecvInto::Stream => recv_provided(socket, Group::Small, POLL_FIRST | RECV_MULTISHOT),
    }
}

/// Builds the entry of a receive into a provided buffer, which polls for data before it takes a buffer: without a free
/// buffer, it would otherwise fail immediately, data or not (tested on 6.18).
#[inline(always)]
fn recv_provided(socket: &Fd, group: Group, ioprio: u16) -> Entry {
    let entry = opcode::Recv::new(raw(socket), std::ptr::null_mut(), 0).ioprio(ioprio);
    entry.buf_group(group as u16).build().flags(Flags::BUFFER_SELECT)
}

/// Returns the flags of a send. `MSG_WAITALL` makes the kernel continue after a short send. `MSG_NOSIGNAL` prevents the
/// signal for a closed connection.
fn send_flags(more: bool) -> i32 {
    libc::MSG_NOSIGNAL | libc::MSG_WAITALL | if more { libc::MSG_MORE } else { 0 }
}

fn send(socket: Raw, data: &Segments, more: bool, zero_copy: bool, mut memory: Memory<'_>) -> Entry {
    let flags = send_flags(more);
    let mut parts = data.parts();
    let (first, second) = (parts.next(), parts.next());
    if second.is_some() {
        let header = memory.scratch().message(data);
        return if zero_copy {
            opcode::SendMsgZc::new(socket, header).flags(flags as u32).build()
        } else {
            opcode::SendMsg::new(socket, header).flags(flags as u32).build()
        };
    }
    let bytes = first.map_or(&[][..], |part| part.bytes());
    let (pointer, len) = (bytes.as_ptr(), bytes.len() as u32);
    if zero_copy {
        opcode::SendZc::new(socket, pointer, len).flags(flags).buf_index(memory.fixed).build()
    } else {
        opcode::Send::new(socket, pointer, len).flags(flags).build()
    }
}

fn stat(target: &StatTarget, out: *mut types::statx) -> Entry {
    let (dir, path, flags) = match target {
        StatTarget::File(fd) => (raw(fd), c"".as_ptr(), libc::AT_EMPTY_PATH),
        StatTarget::Path(path) => (cwd(), path.as_ptr(), 0),
    };
    opcode::Statx::new(dir, path, out).flags(flags).mask(libc::STATX_BASIC_STATS).build()
}

/// Exclusive maximum of slot numbers; the bits above them in `user_data` contain the kind of an entry.
pub(super) const SLOTS_MAX: u32 = OPS_MAX;

/// The origin of a queue entry: the 64 bits of `user_data` contain generation, kind and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// An operation.
    Op(OpId),
    /// The cancellation of an operation.
    Cancel(OpId),
    /// The watch on the doorbell.
    Doorbell,
}

impl Tag {
    /// Encodes it as `user_data`.
    pub(super) fn pack(self) -> u64 {
        let pack = |id: OpId, kind: u64| u64::from(id.generation) << 32 | kind << 24 | u64::from(id.slot);
        match self {
            Tag::Op(id) => pack(id, 0),
            Tag::Cancel(id) => pack(id, 1),
            Tag::Doorbell => 2 << 24,
        }
    }

    /// Decodes `user_data`; `None` for values that this ring never submits.
    pub(super) fn unpack(user_data: u64) -> Option<Tag> {
        let slot = user_data as u32 & (SLOTS_MAX - 1);
        let id = OpId { slot, generation: (user_data >> 32) as u32 };
        match user_data as u32 >> 24 {
            0 => Some(Tag::Op(id)),
            1 => Some(Tag::Cancel(id)),
            2 => Some(Tag::Doorbell),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_decoded_from_user_data() {
        let id = OpId { slot: SLOTS_MAX - 1, generation: u32::MAX };
        for tag in [Tag::Op(id), Tag::Cancel(id), Tag::Doorbell] {
            assert_eq!(Tag::unpack(tag.pack()), Some(tag));
        }
        assert_eq!(Tag::unpack(0xff << 24), None);
    }
}
