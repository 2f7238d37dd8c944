//! State of each operation in flight that the io_uring backend needs besides its slot: its phase, and recycled memory
//! that the kernel reads or writes (message headers, addresses, stat results).
//!
//! Types: [`InFlightTable`], [`InFlight`], [`Scratch`], [`Tag`].

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::types::OpenHow as KernelOpenHow;
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketAddrUnix};

use crate::engine::OPS_MAX;
use crate::op::{DeviceId, Fd, OpId, OpenHow, PeerAddr, SEGMENTS_MAX, Segment, Segments, Stat};

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
