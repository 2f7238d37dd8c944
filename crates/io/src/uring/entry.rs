//! An operation in the form that the kernel gets: its entry of the submission queue, and the state and memory that it
//! has until its terminal completion.
//!
//! One match over [`Op`] builds the entry. Entries point into the operation's slot and its [`Scratch`] memory (message
//! headers, addresses, stat results), which stay valid until the terminal completion and are then reused. [`InFlight`]
//! is the state of an operation besides its slot, with its [`Phase`]; a [`Tag`] identifies the operation in queue
//! entries. Flags that the `io-uring` crate lacks are defined here.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{CancelBuilder, Fd as Raw, FsyncFlags, OpenHow as KernelOpenHow};
use io_uring::{opcode, types};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketAddrUnix};

use super::recv::Group;
use crate::engine::OPS_MAX;
use crate::op::{
    DeviceId, Fd, Interest, Op, OpId, OpenHow, PeerAddr, RecvInto, SEGMENTS_MAX, Segment, Segments, Stat,
    StatTarget,
};

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

/// Builds the entry of the most frequent operations of a connection, which need no scratch memory. It is inlined into
/// the function that adds it to the queue, so that it is written once, in place. [`build`] builds all entries.
#[inline(always)]
pub(super) fn small(id: OpId, op: &Op) -> Option<Entry> {
    let entry = match op {
        Op::Nop => opcode::Nop::new().build(),
        Op::Recv { socket, into: RecvInto::Pool } => recv_provided(socket, Group::Small, POLL_FIRST),
        Op::Recv { socket, into: RecvInto::Large } => recv_provided(socket, Group::Large, POLL_FIRST),
        Op::Recv { socket, into: RecvInto::Stream } => {
            recv_provided(socket, Group::Small, POLL_FIRST | RECV_MULTISHOT)
        }
        Op::Send { socket, data, more, zero_copy: false } => {
            let bytes = data.only()?;
            let (pointer, len) = (bytes.as_ptr(), bytes.len() as u32);
            opcode::Send::new(raw(socket), pointer, len).flags(send_flags(*more)).build()
        }
        _ => return None,
    };
    Some(entry.user_data(Tag::Op(id).pack()))
}

/// Builds the entry for `op` with the identifier `id`. `fixed` is the index of its buffer in the ring's table of fixed
/// buffers, if registered; `copying` turns a zero-copy send into an ordinary one.
///
/// # Errors
/// When it is known without the kernel that the operation fails.
pub(super) fn build(
    id: OpId,
    op: &mut Op,
    flights: &mut InFlightTable,
    fixed: Option<u16>,
    copying: bool,
) -> Result<Entry, Errno> {
    let entry = match op {
        Op::Accept { listener, multishot } => accept(listener, *multishot),
        Op::Recv { socket, into: RecvInto::Owned(buf) } => {
            let room = buf.spare_capacity();
            opcode::Recv::new(raw(socket), room.as_mut_ptr(), room.len() as u32).build()
        }
        Op::Send { socket, data, more, zero_copy } => {
            let scratch = Message { id, flights, fixed };
            send(raw(socket), data, *more, *zero_copy && !copying, scratch)
        }
        Op::Connect { socket, peer } => {
            let (address, len) = flights.scratch(id).address(peer)?;
            opcode::Connect::new(raw(socket), address, len).build()
        }
        Op::Poll { fd, interest } => opcode::PollAdd::new(raw(fd), events(*interest)).build(),
        Op::Close { fd } => opcode::Close::new(Raw(fd.as_raw_fd())).build(),
        Op::Open { how: OpenHow { same_owner: true, .. }, .. } => return Err(Errno::NOSYS),
        Op::Open { dir, path, how, .. } => {
            let entry =
                opcode::OpenAt2::new(raw_or_cwd(dir), path.as_ptr(), flights.scratch(id).how(*how)).build();
            if how.is_cold { entry.flags(Flags::ASYNC) } else { entry }
        }
        Op::Stat { target, .. } => stat(target, flights.scratch(id).stat_buffer().cast()),
        Op::Read { file, offset, len, buf, .. } => {
            let len = (*len).min(buf.capacity() as u32);
            let memory = buf.as_mut_ptr();
            match fixed {
                Some(place) => opcode::ReadFixed::new(raw(file), memory, len, place).offset(*offset).build(),
                None => {
                    opcode::Read::new(raw(file), memory, len).offset(*offset).rw_flags(caching(file)).build()
                }
            }
        }
        Op::Write { file, offset, buf, .. } => {
            let (len, memory, offset) = (buf.len() as u32, buf.as_mut_ptr(), write_offset(file, *offset));
            match fixed {
                Some(place) => opcode::WriteFixed::new(raw(file), memory, len, place).offset(offset).build(),
                None => {
                    opcode::Write::new(raw(file), memory, len).offset(offset).rw_flags(caching(file)).build()
                }
            }
        }
        Op::WriteSegments { file, offset, data, .. } => {
            let (pieces, count) = flights.scratch(id).pieces(data);
            let entry = opcode::Writev::new(raw(file), pieces, count).offset(write_offset(file, *offset));
            entry.rw_flags(caching(file)).build()
        }
        Op::Link { file, to, .. } => {
            let by_proc = flights.get(id).is_some_and(|flight| flight.by_proc);
            link(file, to, by_proc.then(|| flights.scratch(id)))
        }
        op => match small(id, op) {
            Some(entry) => entry,
            None => change(op)?,
        },
    };
    Ok(entry.user_data(Tag::Op(id).pack()))
}

/// Builds the entry of an operation that changes a file or a directory, and needs no scratch memory.
fn change(op: &Op) -> Result<Entry, Errno> {
    Ok(match op {
        Op::Advise { file, offset, len, .. } => {
            let advice = libc::POSIX_FADV_WILLNEED;
            opcode::Fadvise::new(raw(file), (*len).into(), advice).offset(*offset).build()
        }
        Op::Unlink { dir, path, is_directory, .. } => {
            let flags = if *is_directory { libc::AT_REMOVEDIR } else { 0 };
            opcode::UnlinkAt::new(raw_or_cwd(dir), path.as_ptr()).flags(flags).build()
        }
        Op::Rename { from_dir, from, to_dir, to, .. } => {
            let (from_dir, to_dir) = (raw_or_cwd(from_dir), raw_or_cwd(to_dir));
            opcode::RenameAt::new(from_dir, from.as_ptr(), to_dir, to.as_ptr()).build()
        }
        Op::MkDir { dir, path, mode, .. } => {
            opcode::MkDirAt::new(raw_or_cwd(dir), path.as_ptr()).mode(*mode).build()
        }
        Op::Sync { file, .. } => opcode::Fsync::new(raw(file)).flags(FsyncFlags::DATASYNC).build(),
        // io_uring has no such operations; a splice instead of sendfile(2) would run on a kernel worker.
        _ => return Err(Errno::NOSYS),
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
pub(super) fn cancel(id: OpId) -> Entry {
    let target = CancelBuilder::user_data(Tag::Op(id).pack());
    let entry = opcode::AsyncCancel2::new(target).build();
    entry.flags(Flags::SKIP_SUCCESS).user_data(Tag::Cancel(id).pack())
}

/// Builds the entry that watches the doorbell until the kernel ends it.
pub(super) fn watch(fd: &Fd) -> Entry {
    let entry = opcode::PollAdd::new(raw(fd), libc::POLLIN as u32).multi(true).build();
    entry.user_data(Tag::Doorbell.pack())
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

/// Builds the entry of a receive into a provided buffer, which polls for data before it takes a buffer: without a free
/// buffer, it would otherwise fail immediately, data or not (tested on 6.18).
#[inline(always)]
fn recv_provided(socket: &Fd, group: Group, ioprio: u16) -> Entry {
    let entry = opcode::Recv::new(raw(socket), std::ptr::null_mut(), 0).ioprio(ioprio);
    entry.buf_group(group as u16).build().flags(Flags::BUFFER_SELECT)
}

/// The arguments of a send, besides its data.
struct Message<'a> {
    id: OpId,
    flights: &'a mut InFlightTable,
    fixed: Option<u16>,
}

/// Returns the flags of a send. `MSG_WAITALL` makes the kernel continue after a short send. `MSG_NOSIGNAL` prevents the
/// signal for a closed connection.
fn send_flags(more: bool) -> i32 {
    libc::MSG_NOSIGNAL | libc::MSG_WAITALL | if more { libc::MSG_MORE } else { 0 }
}

fn send(socket: Raw, data: &Segments, more: bool, zero_copy: bool, scratch: Message<'_>) -> Entry {
    let flags = send_flags(more);
    let mut parts = data.parts();
    let (first, second) = (parts.next(), parts.next());
    if second.is_some() {
        let header = scratch.flights.scratch(scratch.id).message(data);
        return if zero_copy {
            opcode::SendMsgZc::new(socket, header).flags(flags as u32).build()
        } else {
            opcode::SendMsg::new(socket, header).flags(flags as u32).build()
        };
    }
    let bytes = first.map_or(&[][..], |part| part.bytes());
    let (pointer, len) = (bytes.as_ptr(), bytes.len() as u32);
    if zero_copy {
        opcode::SendZc::new(socket, pointer, len).flags(flags).buf_index(scratch.fixed).build()
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

/// The phase of an operation.
///
/// ```text
/// Kernel --ENOBUFS--> Starved --buffers--> Kernel
/// Kernel --first completion of a zero-copy send--> Notice --notification--> (terminal)
/// Kernel --zero copy refused--> Copying --notification--> Kernel
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not in flight here.
    #[default]
    Idle,
    /// Staged, or submitted to the kernel.
    Kernel,
    /// Waits for receive buffers; not submitted to the kernel.
    Starved,
    /// A zero-copy send has completed; the kernel still reads the bytes.
    Notice,
    /// Zero copy was refused; the send is repeated with a copy once the kernel has released the bytes.
    Copying,
}

/// The state of one operation.
#[derive(Default)]
pub(super) struct InFlight {
    /// Generation of the slot that this state belongs to.
    pub(super) generation: u32,
    pub(super) phase: Phase,
    /// Whether cancellation was requested, so that the operation is not restarted.
    pub(super) cancelled: bool,
    /// Whether a send copies although zero copy was requested.
    pub(super) copying: bool,
    /// Whether a link uses the file's path in /proc.
    pub(super) by_proc: bool,
    /// The bytes of a zero-copy send that has completed, until the notification.
    pub(super) retained: Option<Segments>,
    /// Memory for the kernel. Boxed, so that its address is stable while the table grows.
    pub(super) scratch: Option<Box<Scratch>>,
}

/// The states of all slots, and memory for reuse.
pub(super) struct InFlightTable {
    table: Vec<InFlight>,
    /// Boxed here too, so that moving it to an operation does not copy it.
    #[allow(clippy::vec_box, reason = "they move between this list and the table as boxes")]
    spare: Vec<Box<Scratch>>,
    live: usize,
}

impl InFlightTable {
    pub(super) fn new() -> InFlightTable {
        InFlightTable { table: Vec::new(), spare: Vec::new(), live: 0 }
    }

    /// Returns the number of operations in flight here.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Resets the state for a new operation.
    pub(super) fn begin(&mut self, id: OpId) -> &mut InFlight {
        let index = id.slot as usize;
        if index >= self.table.len() {
            self.table.resize_with(index + 1, InFlight::default);
        }
        self.live += 1;
        assert!(self.live <= self.table.len(), "each operation in flight has a slot");
        let flight = &mut self.table[index];
        assert_eq!(flight.phase, Phase::Idle, "a slot is used once at a time");
        flight.generation = id.generation;
        flight.phase = Phase::Kernel;
        flight.cancelled = false;
        flight.copying = false;
        flight.by_proc = false;
        assert!(flight.retained.is_none(), "the notification has returned the bytes");
        flight
    }

    /// Returns the state of an operation that is in flight here.
    pub(super) fn get(&mut self, id: OpId) -> Option<&mut InFlight> {
        let flight = self.table.get_mut(id.slot as usize)?;
        (flight.phase != Phase::Idle && flight.generation == id.generation).then_some(flight)
    }

    /// Ends the state of an operation: the kernel no longer uses its memory.
    pub(super) fn end(&mut self, id: OpId) {
        let Some(flight) = self.get(id) else { return };
        flight.phase = Phase::Idle;
        if let Some(scratch) = flight.scratch.take() {
            self.spare.push(scratch);
        }
        assert!(self.live > 0, "an operation that ends was in flight");
        self.live -= 1;
    }

    /// Returns the scratch memory of an operation, new or reused.
    pub(super) fn scratch(&mut self, id: OpId) -> &mut Scratch {
        let spare = &mut self.spare;
        let flight = &mut self.table[id.slot as usize];
        assert!(
            flight.phase != Phase::Idle && flight.generation == id.generation,
            "memory for the kernel belongs to an operation in flight"
        );
        flight.scratch.get_or_insert_with(|| spare.pop().unwrap_or_default())
    }

    /// Returns the number of unused pieces of scratch memory.
    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Frees unused scratch memory; returns the number of bytes.
    pub(super) fn trim(&mut self) -> usize {
        let freed = self.spare.len() * size_of::<Scratch>();
        self.spare = Vec::new();
        while self.table.pop_if(|flight| flight.phase == Phase::Idle && flight.scratch.is_none()).is_some() {}
        self.table.shrink_to_fit();
        freed
    }
}

/// Memory of one operation that the kernel reads or writes besides its buffers.
pub(super) struct Scratch {
    header: libc::msghdr,
    pieces: [libc::iovec; SEGMENTS_MAX],
    address: Option<SocketAddrAny>,
    path: Option<CString>,
    how: KernelOpenHow,
    stat: KernelStat,
}

impl Default for Scratch {
    fn default() -> Scratch {
        let nothing = std::ptr::null_mut();
        Scratch {
            header: libc::msghdr {
                msg_name: nothing,
                msg_namelen: 0,
                msg_iov: std::ptr::null_mut(),
                msg_iovlen: 0,
                msg_control: nothing,
                msg_controllen: 0,
                msg_flags: 0,
            },
            pieces: [libc::iovec { iov_base: nothing, iov_len: 0 }; SEGMENTS_MAX],
            address: None,
            path: None,
            how: KernelOpenHow::new(),
            stat: KernelStat::default(),
        }
    }
}

impl Scratch {
    /// Returns a message header for the segments.
    pub(super) fn message(&mut self, data: &Segments) -> *const libc::msghdr {
        let (pieces, count) = self.pieces(data);
        self.header.msg_iov = pieces.cast_mut();
        self.header.msg_iovlen = count as usize;
        &self.header
    }

    /// Returns the segments as an iovec array, and their number.
    pub(super) fn pieces(&mut self, data: &Segments) -> (*const libc::iovec, u32) {
        let mut count = 0;
        for (piece, bytes) in self.pieces.iter_mut().zip(data.parts().map(Segment::bytes)) {
            *piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            count += 1;
        }
        debug_assert_eq!(count as usize, data.parts().count(), "every segment has its piece");
        (self.pieces.as_mut_ptr(), count)
    }

    /// Returns the path in /proc of an open file.
    pub(super) fn path_of(&mut self, file: &Fd) -> *const libc::c_char {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = self.path.insert(CString::new(path).expect("a number has no zero byte"));
        path.as_ptr()
    }

    /// Returns a peer's address and its length.
    pub(super) fn address(&mut self, peer: &PeerAddr) -> Result<(*const libc::sockaddr, u32), Errno> {
        let address = match peer {
            PeerAddr::Inet(address) => SocketAddrAny::from(*address),
            PeerAddr::Unix(path) => SocketAddrAny::from(SocketAddrUnix::new(path as &Path)?),
        };
        let address = self.address.insert(address);
        Ok((address.as_ptr().cast(), address.addr_len()))
    }

    /// Returns the arguments of an open for openat2(2).
    pub(super) fn how(&mut self, how: OpenHow) -> *const KernelOpenHow {
        // openat2(2) rejects a mode without a flag that creates a file.
        let creates = how.flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) != 0;
        let flags = (how.flags | libc::O_CLOEXEC) as u32;
        self.how = KernelOpenHow::new()
            .flags(flags.into())
            .mode(if creates { how.mode.into() } else { 0 })
            .resolve(how.resolve);
        &self.how
    }

    /// Returns the address for the result of statx(2).
    pub(super) fn stat_buffer(&mut self) -> *mut KernelStat {
        &mut self.stat
    }

    /// Returns the result of statx(2).
    pub(super) fn stat(&self) -> Stat {
        let stat = &self.stat;
        Stat {
            size: stat.size,
            allocated: stat.blocks * 512,
            modified: stat.modified.seconds,
            modified_nanos: stat.modified.nanoseconds,
            changed: (stat.changed.seconds, stat.changed.nanoseconds),
            links: stat.links,
            inode: stat.inode,
            device: DeviceId(libc::makedev(stat.device_major, stat.device_minor)),
            mode: stat.mode.into(),
        }
    }
}

/// `struct statx_timestamp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KernelTime {
    seconds: i64,
    nanoseconds: u32,
    reserved: i32,
}

/// `struct statx` of statx(2): 256 bytes, the end reserved.
#[repr(C)]
#[derive(Default)]
pub(super) struct KernelStat {
    mask: u32,
    block_bytes: u32,
    attributes: u64,
    links: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    reserved: u16,
    inode: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    accessed: KernelTime,
    born: KernelTime,
    changed: KernelTime,
    modified: KernelTime,
    special_major: u32,
    special_minor: u32,
    device_major: u32,
    device_minor: u32,
    rest: [u64; 14],
}

const _: () = assert!(size_of::<KernelStat>() == size_of::<libc::statx>());

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

    #[test]
    fn memory_is_reused() {
        let mut flights = InFlightTable::new();
        let id = OpId { slot: 3, generation: 1 };
        flights.begin(id);
        let first: *const Scratch = flights.scratch(id);
        flights.end(id);
        assert!(flights.get(id).is_none());
        let next = OpId { slot: 0, generation: 1 };
        flights.begin(next);
        assert_eq!(first, flights.scratch(next) as *const Scratch);
        assert_eq!(flights.live(), 1);
    }
}
