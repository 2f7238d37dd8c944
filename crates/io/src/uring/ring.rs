//! A single io_uring instance: its queues, the entry into the kernel, and the registrations.
//!
//! The `io-uring` crate sets up and maps the queues. The io_uring_enter(2) call is made here for two reasons. A ring
//! with `DEFER_TASKRUN` completes nothing unless it is entered with `GETEVENTS`, which the crate's `submit()` omits.
//! And the crate does not use a registered ring descriptor. `entry.rs` builds the entries, `mod.rs` decides when to
//! enter.

use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, cqueue};
use rustix::io::Errno;

use super::entry::OwnedEntry;
use super::recv::ENTRY_BYTES;
use super::setup::{Mode, SetupError, Stage};
use crate::buf::{CHUNK_BYTES, ChunkMemory, Mapping};

/// `IORING_ENTER_*` of io_uring_enter(2).
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
/// Since 6.15: waiting in an idle ring is not accounted as iowait.
const ENTER_NO_IOWAIT: u32 = 1 << 7;
/// Register operations of io_uring_register(2) that the crate lacks or implements incorrectly.
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
const REGISTER_BUFFERS_UPDATE: u8 = 16;
#[cfg(test)]
const REGISTER_IOWQ_MAX_WORKERS: u8 = 19;
/// Registrations that are allowed after a ring was locked: updates of fixed buffers, and the release of the registered
/// ring descriptor at the end.
#[cfg(not(test))]
const REGISTRATIONS: [u8; 2] = [REGISTER_BUFFERS_UPDATE, UNREGISTER_RING_FDS as u8];
/// Tests also query the maximum number of workers.
#[cfg(test)]
const REGISTRATIONS: [u8; 3] =
    [REGISTER_BUFFERS_UPDATE, UNREGISTER_RING_FDS as u8, REGISTER_IOWQ_MAX_WORKERS];
/// Maximum number of kernel workers for operations without a time bound. Sockets and pipes are polled instead, so
/// hardly any such workers exist.
const UNBOUNDED_WORKERS: u32 = 8;
/// Maximum size of a table of fixed buffers (`IORING_MAX_REG_BUFFERS`).
const FIXED_BUFFERS_MAX: u32 = 1 << 14;

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

const _: () = assert!(size_of::<WaitArg>() == 24 && size_of::<RingFdUpdate>() == 16);

/// One entry of the completion queue. It is not copied, because its result may be a descriptor, which has one owner.
#[derive(Debug)]
pub(crate) struct Cqe {
    /// User data of the submission entry.
    pub(crate) user_data: u64,
    /// The result as returned by the kernel: negative values are error numbers.
    pub(crate) result: i32,
    /// `IORING_CQE_F_*`.
    pub(crate) flags: u32,
}

impl Cqe {
    /// Takes ownership of the descriptor that this completion of an accept or an open has returned; `None` after an
    /// error.
    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        // SAFETY: the kernel made this descriptor for the completed operation. A completion is delivered once and not
        // copied, so nothing else owns the descriptor.
        (self.result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(self.result) })
    }
}

impl From<cqueue::Entry> for Cqe {
    fn from(entry: cqueue::Entry) -> Cqe {
        Cqe { user_data: entry.user_data(), result: entry.result(), flags: entry.flags() }
    }
}

/// An io_uring instance of this thread.
pub(crate) struct Ring {
    /// The first field, so that it is closed before the memory that is registered with it is dropped.
    ring: IoUring,
    /// Descriptor for io_uring_enter(2): the registered index, or the descriptor itself.
    enter_fd: i32,
    /// Flags of every io_uring_enter(2) call.
    enter_flags: u32,
    mode: Mode,
    /// Number of kernel entries so far.
    pub(crate) entries: u64,
    /// Size of the table of fixed buffers; 0 without a table.
    fixed_table: u32,
    /// The memory in the table of fixed buffers. The kernel may access it until it is removed or `ring` is closed.
    fixed: Vec<Option<ChunkMemory>>,
    /// The rings of provided buffers, which the kernel reads until `ring` is closed.
    provided: Vec<Arc<Mapping>>,
}

impl Ring {
    /// Creates a ring with the first flags of `ladder` that the kernel accepts, `entries` submission entries and
    /// `completions` completion entries. `denied` are flags to treat as unknown to the kernel, for tests. The ring
    /// accepts entries once it has been locked, see [`Ring::lock`].
    pub(crate) fn new(
        ladder: &[u32],
        entries: u32,
        completions: u32,
        denied: u32,
    ) -> Result<Ring, SetupError> {
        let (ring, mode) = super::setup::create(ladder, entries, completions, denied)?;
        let enter_fd = ring.as_raw_fd();
        let mut ring = Ring {
            ring,
            enter_fd,
            enter_flags: 0,
            mode,
            entries: 0,
            fixed_table: 0,
            fixed: Vec::new(),
            provided: Vec::new(),
        };
        ring.register_ring_fd();
        Ok(ring)
    }

    /// Finds out whether the kernel supports waits that are not accounted as iowait.
    fn choose_wait(&mut self) {
        self.enter_flags |= ENTER_NO_IOWAIT;
        if self.enter(0, 0, false, None) == Err(Errno::INVAL) {
            self.enter_flags &= !ENTER_NO_IOWAIT;
        }
        self.entries = 0;
    }

    /// Enables the ring and restricts it to `opcodes`. After this no code of the process can use the ring for other
    /// operations, such as calls that a seccomp filter forbids. Only the registrations in `REGISTRATIONS` remain
    /// allowed; the kernel refuses all others with `EACCES` (io_uring_register(2), `IORING_REGISTER_RESTRICTIONS`,
    /// since 5.10).
    pub(crate) fn lock<'a>(&mut self, opcodes: impl Iterator<Item = &'a u8>) -> Result<(), SetupError> {
        let failed = |error: std::io::Error| SetupError::new(Stage::Restrictions, errno(&error));
        let flags = Restriction::sqe_flags_allowed(super::entry::FLAGS.bits());
        let known = self.supported_opcodes();
        // The kernel refuses a restriction with an unknown opcode.
        let opcodes = opcodes.copied().filter(|&code| known.is_supported(code)).map(Restriction::sqe_op);
        let registrations = REGISTRATIONS.into_iter().map(Restriction::register_op);
        let mut allowed: Vec<Restriction> = opcodes.chain(registrations).chain([flags]).collect();
        let submitter = self.ring.submitter();
        submitter.register_restrictions(&mut allowed).map_err(failed)?;
        submitter.register_enable_rings().map_err(failed)?;
        self.choose_wait();
        Ok(())
    }

    /// Registers the ring descriptor in the table of this task, which saves the descriptor lookup at each entry. If the
    /// kernel does not support it or the table is full, the ring works without.
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

    /// Returns the mode in which the ring was set up.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the opcodes that the kernel supports; none when it does not report them.
    pub(crate) fn supported_opcodes(&self) -> Probe {
        let mut probe = Probe::new();
        match self.ring.submitter().register_probe(&mut probe) {
            Ok(()) => probe,
            Err(_) => Probe::new(),
        }
    }

    /// Limits the number of kernel workers of this ring.
    pub(crate) fn limit_workers(&self, bounded: u32) -> Result<(), SetupError> {
        let limited = self.ring.submitter().register_iowq_max_workers(&mut [bounded, UNBOUNDED_WORKERS]);
        limited.map_err(|error| SetupError::new(Stage::Workers, errno(&error)))
    }

    /// Creates an empty table of at most `places` fixed buffers; returns its size.
    pub(crate) fn fixed_table(&mut self, places: u32) -> Result<u32, Errno> {
        assert_eq!(self.fixed_table, 0, "a ring has one table of fixed buffers");
        let places = places.min(FIXED_BUFFERS_MAX);
        self.ring.submitter().register_buffers_sparse(places).map_err(|error| errno(&error))?;
        self.fixed_table = places;
        Ok(places)
    }

    /// Registers the memory of a chunk in the table of fixed buffers, or removes it when `memory` is `None`.
    pub(crate) fn fix_buffer(&mut self, index: u16, memory: Option<&ChunkMemory>) -> Result<(), Errno> {
        if u32::from(index) >= self.fixed_table {
            return Err(Errno::NXIO);
        }
        let piece = match memory {
            Some(memory) => libc::iovec { iov_base: memory.start().as_ptr().cast(), iov_len: CHUNK_BYTES },
            None => libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
        };
        let submitter = self.ring.submitter();
        // SAFETY: `fixed` keeps the chunk mapped until it is removed from the table or the ring is closed.
        let updated = unsafe { submitter.register_buffers_update(u32::from(index), &[piece], None) };
        updated.map_err(|error| errno(&error))?;
        let index = usize::from(index);
        if self.fixed.len() <= index {
            self.fixed.resize(index + 1, None);
        }
        self.fixed[index] = memory.cloned();
        Ok(())
    }

    /// Registers a ring of `entries` provided buffers as `group`.
    pub(crate) fn provide(
        &mut self,
        memory: &Arc<Mapping>,
        entries: u16,
        group: u16,
    ) -> Result<(), SetupError> {
        assert!(memory.bytes() >= usize::from(entries) * ENTRY_BYTES, "the ring has room for its entries");
        let (submitter, address) = (self.ring.submitter(), memory.start().as_ptr() as u64);
        // SAFETY: `memory` is a page-aligned mapping of `entries` entries. `provided` keeps it mapped until the ring is
        // closed, because fields are dropped in their order.
        let registered = unsafe { submitter.register_buf_ring_with_flags(address, entries, group, 0) };
        registered.map_err(|error| SetupError::new(Stage::BufferRing, errno(&error)))?;
        self.provided.push(Arc::clone(memory));
        Ok(())
    }

    /// Stages an entry; if the queue is full, submits it first without collecting completions. Returns `false` when the
    /// kernel accepts no entries now.
    pub(super) fn push_or_submit(&mut self, entry: &OwnedEntry) -> bool {
        if self.push(entry) {
            return true;
        }
        let staged = self.staged();
        self.enter(staged, 0, false, None).is_ok_and(|taken| taken > 0) && self.push(entry)
    }

    /// Stages an entry; returns `false` when the queue is full.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: &OwnedEntry) -> bool {
        let mut queue = self.ring.submission();
        // SAFETY: only `entry.rs` makes an `OwnedEntry`, from an operation in a slot. The slot owns the memory, the path
        // and the descriptor, and does not move until the last completion.
        let pushed = unsafe { queue.push(entry.raw()) };
        pushed.is_ok()
    }

    /// Returns the number of staged entries that the kernel has not consumed, from the kernel's own queue position.
    pub(crate) fn staged(&mut self) -> u32 {
        self.ring.submission().len() as u32
    }

    /// Whether the completion queue is not empty.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Whether the kernel may have pending work for this ring that it runs only in a call with `GETEVENTS`.
    pub(crate) fn needs_entry(&mut self) -> bool {
        let queue = self.ring.submission();
        !self.mode.taskrun_flag || queue.taskrun() || queue.cq_overflow()
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
        self.entries += 1;
        let mut flags = self.enter_flags;
        if collect {
            flags |= ENTER_GETEVENTS;
        }
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
        // SAFETY: the argument and the time it points to live until the call returns; everything that
        // staged entries point to is owned by slots.
        let taken = unsafe { libc::syscall(call, fd, count, wait_for, flags, pointer, bytes) };
        match taken {
            0.. => {
                assert!(taken as u32 <= count, "the kernel consumes at most the staged entries");
                Ok(taken as u32)
            }
            _ => Err(errno(&std::io::Error::last_os_error())),
        }
    }

    /// Copies all completions to `out` and frees their queue entries immediately.
    pub(crate) fn collect(&mut self, out: &mut Vec<Cqe>) {
        out.extend(self.ring.completion().map(Cqe::from));
    }

    /// Returns the size of the completion queue.
    #[cfg(test)]
    pub(crate) fn completions_max(&self) -> u32 {
        self.ring.params().cq_entries()
    }

    /// Makes a registration that a locked ring refuses.
    #[cfg(test)]
    pub(crate) fn register_files(&self, files: &[i32]) -> Result<(), Errno> {
        self.ring.submitter().register_files(files).map_err(|error| errno(&error))
    }

    /// Returns the maximum numbers of bounded and unbounded kernel workers.
    #[cfg(test)]
    pub(crate) fn workers_max(&self) -> [u32; 2] {
        // Zeroes change nothing; io_uring_register(2) returns the current values.
        let mut limits = [0, 0];
        self.ring.submitter().register_iowq_max_workers(&mut limits).expect("the limits can be read");
        limits
    }

    /// Returns the descriptor, to be watched by an epoll set.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns this descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
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

/// Returns the error number of an error of the standard library or the crate.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use io_uring::squeue;

    use super::super::setup::{LADDER, POLLED_LADDER};
    use super::*;

    fn ring(ladder: &[u32]) -> Option<Ring> {
        let ring = Ring::new(ladder, 8, 64, 0).and_then(|mut ring| {
            ring.lock([].iter())?;
            Ok(ring)
        });
        ring.inspect_err(|error| eprintln!("skipped: {error}")).ok()
    }

    #[test]
    fn a_ring_uses_and_releases_its_registered_index() {
        // The table of a task has sixteen entries: rings that did not release theirs would soon use them up.
        for round in 0..40 {
            let Some(mut ring) = ring(&LADDER) else { return };
            assert_ne!(ring.enter_flags & ENTER_REGISTERED_RING, 0, "round {round}");
            assert_eq!(ring.enter(0, 0, true, None), Ok(0), "the index means this ring");
        }
    }

    #[test]
    fn a_wait_does_not_count_as_a_wait_for_the_disk() {
        let Some(ring) = ring(&LADDER) else { return };
        let known = ring.ring.params().is_feature_no_iowait();
        assert_eq!(ring.enter_flags & ENTER_NO_IOWAIT != 0, known);
    }

    #[test]
    fn no_kernel_thread_polls_for_a_ring() {
        // With SQPOLL, the kernel refuses most flags of the ladder, so that no ring could be created where a plain one
        // can.
        let plain = IoUring::<squeue::Entry>::builder().setup_coop_taskrun().build(8);
        let mut rings = 0;
        for flags in LADDER.into_iter().chain(POLLED_LADDER) {
            let Some(ring) = ring(&[flags]) else { continue };
            assert!(!ring.ring.params().is_setup_sqpoll() && !ring.ring.params().is_setup_iopoll());
            rings += 1;
        }
        assert_eq!(rings > 0, plain.is_ok());
    }
}
