//! The system calls behind the two queues: io_uring with any flags, and a libaio context.
//!
//! The `io-uring` crate sets up the queues of a ring. The io_uring_enter(2) call is made here, since the crate does not
//! use a registered ring descriptor. The memory that entries and requests refer to belongs to
//! [`super::places::Places`]. Its owner keeps that memory until the kernel has completed the operations, or leaks it.

use std::mem::size_of;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io::{Buf, SetupError, Stage};
use io_uring::{Builder, IoUring, cqueue, squeue};
use rustix::io::Errno;

use super::{RingSetup, flags};

/// `IORING_ENTER_*` of io_uring_enter(2).
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_SQ_WAKEUP: u32 = 1 << 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
/// Since 6.15: waiting in an idle ring is not accounted as iowait.
const ENTER_NO_IOWAIT: u32 = 1 << 7;
/// Register operations of io_uring_register(2) that the crate lacks.
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
/// Time in milliseconds for which the SQPOLL kernel thread keeps polling when idle.
const POLLER_IDLE_MS: u32 = 1000;
/// `IOCB_CMD_PREAD` and `IOCB_CMD_PWRITE` of linux/aio_abi.h.
const COMMAND_PREAD: u16 = 0;
const COMMAND_PWRITE: u16 = 1;

/// A method of the crate's builder that sets one flag.
type SetFlag = fn(&mut Builder) -> &mut Builder;
/// The methods for the flags that need no argument.
const SET_FLAGS: [(u32, SetFlag); 6] = [
    (flags::IOPOLL, Builder::setup_iopoll),
    (flags::COOP_TASKRUN, Builder::setup_coop_taskrun),
    (flags::TASKRUN_FLAG, Builder::setup_taskrun_flag),
    (flags::SINGLE_ISSUER, Builder::setup_single_issuer),
    (flags::DEFER_TASKRUN, Builder::setup_defer_taskrun),
    (flags::NO_SQARRAY, Builder::setup_no_sqarray),
];

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct WaitArg {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_usec: u32,
    timeout: u64,
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// An io_uring instance of this thread.
pub(crate) struct Ring {
    ring: IoUring,
    /// Descriptor for io_uring_enter(2): the registered index, or the descriptor itself.
    enter_fd: i32,
    /// Flags of every io_uring_enter(2) call.
    enter_flags: u32,
    /// Number of kernel entries so far.
    pub(crate) entries: u64,
}

impl Ring {
    /// Creates a ring with exactly the flags of `setup`.
    pub(crate) fn new(setup: &RingSetup) -> Result<Ring, SetupError> {
        let polled = setup.flags & flags::SQPOLL != 0;
        // The SQPOLL thread completes entries before it frees their slots in the submission queue.
        let entries = setup.entries.saturating_mul(if polled { 2 } else { 1 });
        let mut builder = IoUring::builder();
        builder.dontfork().setup_submit_all().setup_cqsize(entries.saturating_mul(2)).setup_clamp();
        for (_, set) in SET_FLAGS.iter().filter(|(flag, _)| setup.flags & flag != 0) {
            set(&mut builder);
        }
        if polled {
            builder.setup_sqpoll(POLLER_IDLE_MS);
            setup.poller_cpu.map(|cpu| builder.setup_sqpoll_cpu(cpu));
        }
        let ring = builder.build(entries).map_err(|error| SetupError::new(Stage::Setup, errno(&error)))?;
        let mut ring = Ring { enter_fd: ring.as_raw_fd(), ring, enter_flags: ENTER_NO_IOWAIT, entries: 0 };
        if ring.enter(0, 0, false, None) == Err(Errno::INVAL) {
            ring.enter_flags = 0;
        }
        if setup.registered_fd {
            ring.register_ring_fd();
        }
        ring.entries = 0;
        Ok(ring)
    }

    /// Registers the ring descriptor in the table of this task. If the kernel does not support it or the table is full,
    /// the ring works without.
    fn register_ring_fd(&mut self) {
        let fd = self.ring.as_raw_fd();
        let mut update = RingFdUpdate { offset: u32::MAX, reserved: 0, data: fd as u64 };
        let argument: *mut RingFdUpdate = &mut update;
        // SAFETY: REGISTER_RING_FDS reads and writes one io_uring_rsrc_update, which `argument` points to.
        let registered =
            unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, argument, 1) };
        if registered == 1 {
            self.enter_fd = update.offset as i32;
            self.enter_flags |= ENTER_REGISTERED_RING;
        }
    }

    /// Registers memory with the ring as fixed buffers 0, 1 and so on. The memory stays mapped for as long as the ring
    /// exists.
    pub(crate) fn register_buffers<'a>(&self, bufs: impl Iterator<Item = &'a mut Buf>) -> Result<(), Errno> {
        let piece = |buf: &mut Buf| libc::iovec {
            iov_base: buf.space().as_mut_ptr().cast(),
            iov_len: buf.capacity(),
        };
        let pieces: Vec<libc::iovec> = bufs.map(piece).collect();
        // SAFETY: the owner of the ring holds the buffers, and drops them after the ring or leaks them.
        let registered = unsafe { self.ring.submitter().register_buffers(&pieces) };
        registered.map_err(|error| errno(&error))
    }

    /// Registers the descriptors with the ring as files 0, 1 and so on. From then on, the ring keeps the files open.
    pub(crate) fn register_files(&self, files: &[RawFd]) -> Result<(), Errno> {
        self.ring.submitter().register_files(files).map_err(|error| errno(&error))
    }

    /// Adds entries to the submission queue and makes them visible to the kernel in one step; returns how many fitted.
    pub(crate) fn push_each(&mut self, entries: impl Iterator<Item = squeue::Entry>) -> u32 {
        let mut queue = self.ring.submission();
        let mut count = 0;
        for entry in entries {
            // SAFETY: the entry refers to a buffer and a file of `Places`, which stay there until its completion.
            if unsafe { queue.push(&entry) }.is_err() {
                break;
            }
            count += 1;
        }
        count
    }

    /// Returns the number of staged entries that the kernel has not consumed, from the kernel's own queue position.
    pub(crate) fn staged(&mut self) -> u32 {
        self.ring.submission().len() as u32
    }

    /// Whether the completion queue is not empty.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Wakes the SQPOLL kernel thread if it sleeps.
    pub(crate) fn wake_poller(&mut self) -> Result<(), Errno> {
        if !self.ring.submission().need_wakeup() {
            return Ok(());
        }
        self.call(0, 0, ENTER_SQ_WAKEUP, None).map(drop)
    }

    /// Submits `count` staged entries. If `wait_for` is above 0 or `collect` is set, the call also runs the kernel's
    /// deferred work. Returns how many entries the kernel consumed.
    pub(crate) fn enter(
        &mut self,
        count: u32,
        wait_for: u32,
        collect: bool,
        timeout: Option<Duration>,
    ) -> Result<u32, Errno> {
        self.call(count, wait_for, if collect { ENTER_GETEVENTS } else { 0 }, timeout)
    }

    fn call(
        &mut self,
        count: u32,
        wait_for: u32,
        more_flags: u32,
        timeout: Option<Duration>,
    ) -> Result<u32, Errno> {
        self.entries += 1;
        let mut flags = self.enter_flags | more_flags;
        let spec = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let spec: *const libc::timespec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let argument =
            WaitArg { sigmask: 0, sigmask_bytes: 0, min_wait_usec: 0, timeout: spec as usize as u64 };
        let (pointer, bytes) = if spec.is_null() {
            (std::ptr::null(), 0)
        } else {
            flags |= ENTER_EXT_ARG;
            (std::ptr::from_ref(&argument), size_of::<WaitArg>())
        };
        let (fd, call) = (self.enter_fd, libc::SYS_io_uring_enter);
        // SAFETY: the argument and the time it points to live until the call returns; `Places` keeps the memory that
        // staged entries refer to.
        let taken = unsafe { libc::syscall(call, fd, count, wait_for, flags, pointer, bytes) };
        check(taken).map(|taken| taken as u32)
    }

    /// Returns the completions; their queue entries are freed when the iterator is dropped.
    pub(crate) fn completions(&mut self) -> impl Iterator<Item = cqueue::Entry> {
        self.ring.completion()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.enter_flags & ENTER_REGISTERED_RING == 0 {
            return;
        }
        // The table of the task would keep the ring alive until the thread ends.
        let update = RingFdUpdate { offset: self.enter_fd as u32, reserved: 0, data: 0 };
        let (fd, argument) = (self.ring.as_raw_fd(), std::ptr::from_ref(&update));
        // SAFETY: UNREGISTER_RING_FDS reads one io_uring_rsrc_update, which `argument` points to.
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, UNREGISTER_RING_FDS, argument, 1) };
    }
}

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: u32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

impl Request {
    /// Returns a read or a write of at most `len` bytes at the start of `buf`; its completion has `data`.
    pub(crate) fn new(write: bool, file: RawFd, offset: u64, buf: &mut Buf, len: u32, data: u64) -> Request {
        Request {
            data,
            opcode: if write { COMMAND_PWRITE } else { COMMAND_PREAD },
            file: file as u32,
            bytes: u64::from(len).min(buf.capacity() as u64),
            buffer: buf.space().as_mut_ptr() as u64,
            // The kernel refuses an offset beyond the signed range.
            offset: offset as i64,
            ..Request::default()
        }
    }
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) data: u64,
    request: u64,
    pub(crate) result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Event>() == 32);

/// A libaio context.
pub(crate) struct Context {
    /// The kernel's identifier of the context.
    id: libc::c_ulong,
    /// Number of system calls.
    pub(crate) kernel_entries: u64,
}

impl Context {
    /// Creates a context for `depth` requests in flight, which the kernel counts against `fs.aio-max-nr`.
    pub(crate) fn new(depth: u32) -> Result<Context, Errno> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup(2) writes the identifier of the context to the given address, which is one `c_ulong`.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut id) };
        check(result)?;
        Ok(Context { id, kernel_entries: 0 })
    }

    /// Submits requests to the kernel; returns how many it accepted.
    pub(crate) fn submit(&mut self, pointers: &mut [*mut Request]) -> Result<usize, Errno> {
        self.kernel_entries += 1;
        let (context, count, pointers) = (self.id, pointers.len(), pointers.as_mut_ptr());
        // SAFETY: the pointers refer to live requests, which the kernel copies before the call returns; `Places` keeps
        // the memory that the requests refer to.
        let result = unsafe { libc::syscall(libc::SYS_io_submit, context, count, pointers) };
        check(result).map(|taken| taken as usize)
    }

    /// Waits for `min` completions and appends at most `max` to `events` (io_getevents(2)).
    pub(crate) fn wait(&mut self, min: usize, max: usize, events: &mut Vec<Event>) -> Result<(), Errno> {
        self.kernel_entries += 1;
        events.reserve(max);
        let room = events.spare_capacity_mut();
        let (context, place, forever) = (self.id, room.as_mut_ptr(), std::ptr::null::<libc::timespec>());
        // SAFETY: the kernel writes at most `max` events, for which there is room, and the call has no time limit.
        let result = unsafe { libc::syscall(libc::SYS_io_getevents, context, min, max, place, forever) };
        let count = check(result)? as usize;
        // SAFETY: the kernel has written this many events behind the old ones.
        unsafe { events.set_len(events.len() + count) };
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context belongs to this value and is not used again. The call waits for requests in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

/// Converts the result of a raw system call (libc's convention).
fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result >= 0 { Ok(result) } else { Err(errno(&std::io::Error::last_os_error())) }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
