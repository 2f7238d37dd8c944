//! The state and the memory that an operation has in a ring, until its terminal completion.
//!
//! [`RingState`] is the part of an operation's slot that only the ring uses. [`Scratch`] is the memory that the kernel
//! reads or writes besides the buffers of the operation; it is reused.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::types::OpenHow as KernelOpenHow;
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketAddrUnix};

use crate::facts::{DeviceId, Stat};
use crate::fd::Fd;
use crate::op::{OpenHow, PeerAddr};
use crate::segments::{SEGMENTS_MAX, Segment, Segments};

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

/// The state of one operation in a ring, in the operation's slot.
#[derive(Default)]
pub(crate) struct RingState {
    pub(super) phase: Phase,
    /// Whether cancellation was requested, so that the operation is not restarted.
    pub(super) cancelled: bool,
    /// Whether a send copies although zero copy was requested.
    pub(super) copying: bool,
    /// Whether a link uses the file's path in /proc.
    pub(super) by_proc: bool,
    /// The bytes of a zero-copy send that has completed, until the notification.
    pub(super) retained: Option<Segments>,
    /// Memory for the kernel. Boxed, because few operations need it.
    scratch: Option<Box<Scratch>>,
}

/// The operations that a ring has, and memory for their scratch.
#[derive(Default)]
pub(super) struct InFlight {
    /// Boxed here too, so that moving it to an operation does not copy it.
    #[allow(clippy::vec_box, reason = "they move between this list and the slots as boxes")]
    spare: Vec<Box<Scratch>>,
    live: usize,
}

impl InFlight {
    /// Returns the number of operations that the ring has.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Begins an operation.
    #[inline]
    pub(super) fn begin(&mut self, state: &mut RingState) {
        assert_eq!(state.phase, Phase::Idle, "a slot is used once at a time");
        debug_assert!(state.retained.is_none(), "the notification has returned the bytes");
        self.live += 1;
        state.phase = Phase::Kernel;
        state.cancelled = false;
        state.copying = false;
        state.by_proc = false;
    }

    /// Ends an operation: the kernel no longer uses its memory.
    #[inline]
    pub(super) fn end(&mut self, state: &mut RingState) {
        assert_ne!(state.phase, Phase::Idle, "an operation that ends was in flight");
        state.phase = Phase::Idle;
        self.spare.extend(state.scratch.take());
        self.live -= 1;
    }

    /// Returns the scratch memory of an operation, new or reused.
    pub(super) fn scratch<'a>(&mut self, state: &'a mut RingState) -> &'a mut Scratch {
        assert_ne!(state.phase, Phase::Idle, "memory for the kernel belongs to an operation in flight");
        state.scratch.get_or_insert_with(|| self.spare.pop().unwrap_or_default())
    }

    /// Returns the number of unused pieces of scratch memory.
    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Frees unused scratch memory; returns the number of bytes.
    pub(super) fn trim(&mut self) -> usize {
        std::mem::take(&mut self.spare).len() * size_of::<Scratch>()
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

const _: () = {
    use std::mem::offset_of;
    type Known = libc::statx;
    assert!(size_of::<KernelStat>() == size_of::<Known>());
    assert!(offset_of!(KernelStat, links) == offset_of!(Known, stx_nlink));
    assert!(offset_of!(KernelStat, mode) == offset_of!(Known, stx_mode));
    assert!(offset_of!(KernelStat, inode) == offset_of!(Known, stx_ino));
    assert!(offset_of!(KernelStat, size) == offset_of!(Known, stx_size));
    assert!(offset_of!(KernelStat, blocks) == offset_of!(Known, stx_blocks));
    assert!(offset_of!(KernelStat, changed) == offset_of!(Known, stx_ctime));
    assert!(offset_of!(KernelStat, modified) == offset_of!(Known, stx_mtime));
    assert!(offset_of!(KernelStat, device_major) == offset_of!(Known, stx_dev_major));
    assert!(offset_of!(KernelStat, device_minor) == offset_of!(Known, stx_dev_minor));
    assert!(offset_of!(KernelTime, seconds) == offset_of!(libc::statx_timestamp, tv_sec));
    assert!(offset_of!(KernelTime, nanoseconds) == offset_of!(libc::statx_timestamp, tv_nsec));
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused() {
        let mut flights = InFlight::default();
        let mut slots = [RingState::default(), RingState::default()];
        flights.begin(&mut slots[0]);
        let first: *const Scratch = flights.scratch(&mut slots[0]);
        flights.end(&mut slots[0]);
        assert_eq!(slots[0].phase, Phase::Idle);
        flights.begin(&mut slots[1]);
        assert_eq!(first, flights.scratch(&mut slots[1]) as *const Scratch);
        assert_eq!(flights.live(), 1);
    }
}
