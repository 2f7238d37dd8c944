//! The kernel's queues with minimal code around them: the reference for the cost of an engine, and for the rate of a device at
//! a given queue depth. Not for servers: nothing here can wait for two events at the same time.
//!
//! A [`Queue`] owns the files and one buffer per transfer in flight, so that no caller can free memory that the kernel uses.
//! [`RingQueue`] is io_uring with any set-up flags, [`AioQueue`] is libaio. The order of calls is [`Queue::push`],
//! [`Queue::submit`], [`Queue::wait`]. Two examples are minimal HTTP responders, whose cost no server can undercut.
//!
//! Crates of the workspace that it may use: `io`.
//!
//! | module | content |
//! |---|---|
//! | [`ring`], [`aio`] | the two queues |
//! | [`kernel`] | the system calls of both; the only module with unsafe code |
//! | [`places`] | the files, and the memory of the transfers in flight |
//! | [`noise`] | pseudo-random offsets and data |

mod aio;
mod kernel;
mod noise;
mod places;
mod ring;

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

pub use self::aio::AioQueue;
pub use self::noise::Noise;
pub use self::ring::RingQueue;

/// `IORING_SETUP_*` bits of io_uring_setup(2), for [`RingSetup::flags`].
pub mod flags {
    pub use io::setup_flags::{COOP_TASKRUN, DEFER_TASKRUN, NO_SQARRAY, SINGLE_ISSUER, TASKRUN_FLAG};

    /// The kernel polls the device instead of using interrupts.
    pub const IOPOLL: u32 = 1 << 0;
    /// A kernel thread polls the submission queue.
    pub const SQPOLL: u32 = 1 << 1;
}

/// Settings of a bare ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSetup {
    /// Bits of [`flags`]. A kernel that does not support one of them refuses the ring.
    pub flags: u32,
    /// Entries of the submission queue; the completion queue has twice as many.
    pub entries: u32,
    /// Whether io_uring_enter(2) uses a registered ring descriptor (`IORING_REGISTER_RING_FDS`), which saves the
    /// descriptor lookup.
    pub registered_fd: bool,
    /// The processor of the [`flags::SQPOLL`] kernel thread. Without it the thread inherits the processors of its creator.
    pub poller_cpu: Option<u32>,
    /// Whether each buffer is registered with the ring (`READ_FIXED`), which saves the lookup of its pages.
    pub registered_buffers: bool,
    /// Whether files are registered with the ring, which saves reference counting at each transfer.
    pub registered_files: bool,
}

impl RingSetup {
    /// Returns settings without any flag, with `entries` submission entries.
    pub fn plain(entries: u32) -> RingSetup {
        RingSetup {
            flags: 0,
            entries,
            registered_fd: false,
            poller_cpu: None,
            registered_buffers: false,
            registered_files: false,
        }
    }

    /// Returns the settings of this server's own rings on a kernel that supports all flags.
    pub fn as_engine(entries: u32) -> RingSetup {
        RingSetup { flags: io::setup_flags::ENGINE, registered_fd: true, ..RingSetup::plain(entries) }
    }
}

/// The files, buffers and depth of a queue.
#[derive(Debug)]
pub struct Load {
    /// The files; [`Transfer::file`] is an index into this list.
    pub files: Vec<OwnedFd>,
    /// Maximum number of transfers in flight, at least 1.
    pub depth: u32,
    /// Size in bytes of each transfer's buffer, at most [`BLOCK_BYTES_MAX`].
    pub block_bytes: u32,
}

/// Maximum size in bytes of a transfer's buffer.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// One read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Whether the buffer is written to the file; otherwise it is read from the file.
    pub write: bool,
    /// Index of the file in [`Load::files`].
    pub file: u32,
    /// Byte offset in the file.
    pub offset: u64,
    /// Number of bytes, at most [`Load::block_bytes`].
    pub len: u32,
}

/// The completion of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The index that [`Queue::push`] returned.
    pub place: u32,
    /// Number of bytes, or the error.
    pub result: Result<u32, Errno>,
}

/// A queue of transfers that the kernel carries out concurrently.
pub trait Queue {
    /// Adds a transfer; returns its index below the depth, which no other transfer in flight has. Returns `None` when
    /// as many transfers are in flight as the depth allows.
    ///
    /// # Panics
    /// When the index of the file or the length exceeds the limits of the [`Load`].
    fn push(&mut self, transfer: Transfer) -> Option<u32>;

    /// Submits the added transfers to the kernel.
    ///
    /// # Errors
    /// The kernel's error; the failure of a single transfer is the result of that transfer.
    fn submit(&mut self) -> Result<(), Errno>;

    /// Appends completions to `done`, and waits until at least `min` were added.
    ///
    /// # Errors
    /// The kernel's error.
    fn wait(&mut self, min: u32, done: &mut Vec<Done>) -> Result<(), Errno>;

    /// Returns the bytes that a completed transfer has read; empty for a transfer in flight.
    fn content(&self, place: u32) -> &[u8];

    /// Returns the number of system calls so far.
    fn kernel_entries(&self) -> u64;
}

/// The reason why a queue cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// io_uring_setup(2) failed.
    Ring(io::SetupError),
    /// The buffers or files could not be registered; for `ENOMEM` the usual cause is the limit on locked memory.
    Register(Errno),
    /// io_setup(2) failed; `EAGAIN` means that `fs.aio-max-nr` is reached.
    Aio(Errno),
    /// There is no memory for the buffers.
    Memory,
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueError::Ring(error) => error.fmt(f),
            QueueError::Register(errno) => {
                write!(f, "io_uring_register: {}: see ulimit -l", std::io::Error::from(*errno))
            }
            QueueError::Aio(Errno::AGAIN) => f.write_str("io_setup: EAGAIN: raise fs.aio-max-nr"),
            QueueError::Aio(errno) => write!(f, "io_setup: {}", std::io::Error::from(*errno)),
            QueueError::Memory => f.write_str("no memory for the buffers"),
        }
    }
}

impl std::error::Error for QueueError {}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 4096;

    /// Creates an unnamed file of `blocks` blocks, each filled with its number.
    fn file(blocks: u8) -> OwnedFd {
        let file = rustix::fs::memfd_create(c"bare", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for block in 0..blocks {
            let written = rustix::io::pwrite(&file, &[block; BLOCK as usize], u64::from(block) * 4096);
            assert_eq!(written, Ok(BLOCK as usize));
        }
        file
    }

    fn load() -> Load {
        Load { files: vec![file(8)], depth: 4, block_bytes: BLOCK }
    }

    /// Reads all blocks at the full depth, writes one, and reads past the end. `polls` is set with SQPOLL: if the
    /// kernel thread is faster, no other thread ever enters the kernel.
    fn exercise(queue: &mut dyn Queue, polls: bool) {
        let at = |write, block: u64| Transfer { write, file: 0, offset: block * 4096, len: BLOCK };
        let (mut done, mut next, mut seen) = (Vec::new(), 0, 0);
        let mut blocks = [0; 4];
        while seen < 8 {
            while next < 8 {
                let Some(place) = queue.push(at(false, next)) else { break };
                blocks[place as usize] = next;
                next += 1;
            }
            queue.submit().unwrap();
            queue.wait(1, &mut done).unwrap();
            for Done { place, result } in done.drain(..) {
                assert_eq!(result, Ok(BLOCK));
                assert_eq!(queue.content(place)[17], blocks[place as usize] as u8);
                seen += 1;
            }
        }
        for (transfer, bytes) in [(at(true, 9), BLOCK), (at(false, 10), 0)] {
            queue.push(transfer).unwrap();
            queue.submit().unwrap();
            queue.wait(1, &mut done).unwrap();
            assert_eq!(done.pop().map(|done| done.result), Some(Ok(bytes)));
        }
        assert!((polls || queue.kernel_entries() > 0) && done.is_empty());
        // Dropping the queue with transfers in flight must not be a fault.
        queue.push(at(false, 0)).unwrap();
        queue.submit().unwrap();
    }

    #[test]
    fn libaio_reads_and_writes() {
        match AioQueue::new(load()) {
            Ok(mut queue) => exercise(&mut queue, false),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }

    #[test]
    fn io_uring_reads_and_writes_with_every_set_of_flags() {
        let plain = RingSetup::plain(8);
        let engine = RingSetup::as_engine(8);
        let fixed = RingSetup { registered_buffers: true, registered_files: true, ..engine };
        let polled = RingSetup { flags: flags::SQPOLL, registered_files: true, ..plain };
        for setup in [plain, engine, fixed, polled] {
            match RingQueue::new(setup, load()) {
                Ok(mut queue) => {
                    for batch in [1, 8] {
                        assert_eq!(queue.nops(batch), Ok(()), "{setup:?}");
                    }
                    exercise(&mut queue, setup.flags & flags::SQPOLL != 0);
                }
                Err(error) => eprintln!("skipped: {setup:?}: {error}"),
            }
        }
    }

    #[test]
    fn an_unreadable_file_fails_only_its_transfer() {
        let file = rustix::fs::open("/proc/self/exe", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let load = Load { files: vec![file.unwrap()], depth: 2, block_bytes: BLOCK };
        let Ok(mut queue) = AioQueue::new(load) else { return };
        queue.push(Transfer { write: false, file: 0, offset: 0, len: BLOCK }).unwrap();
        queue.submit().unwrap();
        let mut done = Vec::new();
        queue.wait(1, &mut done).unwrap();
        assert_eq!(done.pop().map(|done| done.result), Some(Err(Errno::BADF)));
    }
}
