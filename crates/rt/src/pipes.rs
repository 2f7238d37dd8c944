//! The pipes of a thread, and their number.
//!
//! Main type: [`Pipes`]. `net::pipe` uses the pipes for splice(2).

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;

use rustix::pipe::PipeFlags;

/// Maximum number of pipes of a thread, each with two descriptors. The kernel limits the pipes of a user to 1024 of the default size
/// (`/proc/sys/fs/pipe-user-pages-soft`), so 16 threads do not reach its limit.
pub const PIPES_MAX: usize = 64;

/// Maximum number of unused pipes that a thread retains for later use.
const IDLE_MAX: usize = 16;

/// Size of a pipe in bytes below which it is not used: a user above the kernel's limit gets pipes of one or two pages.
const PIPE_BYTES_MIN: usize = 64 << 10;

/// Both ends of a pipe.
pub(crate) struct PipeEnds {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

/// The pipes of a thread.
#[derive(Default)]
pub(crate) struct Pipes {
    idle: RefCell<Vec<PipeEnds>>,
    in_use: Cell<usize>,
}

impl Pipes {
    /// Returns an empty pipe; `None` if the thread or the kernel permits no further pipe.
    pub(crate) fn take(&self) -> Option<PipeEnds> {
        if self.in_use.get() >= PIPES_MAX {
            return None;
        }
        let idle = self.idle.borrow_mut().pop();
        let ends = idle.or_else(PipeEnds::create)?;
        self.in_use.set(self.in_use.get() + 1);
        Some(ends)
    }

    /// Ends the use of a pipe, which is retained if it is empty.
    pub(crate) fn put(&self, ends: PipeEnds, is_empty: bool) {
        self.in_use.set(self.in_use.get() - 1);
        let mut idle = self.idle.borrow_mut();
        if is_empty && idle.len() < IDLE_MAX {
            idle.push(ends);
        }
    }

    /// Closes the unused pipes. Returns whether there were any.
    pub(crate) fn trim(&self) -> bool {
        !std::mem::take(&mut *self.idle.borrow_mut()).is_empty()
    }
}

impl PipeEnds {
    fn create() -> Option<PipeEnds> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let size = rustix::pipe::fcntl_getpipe_size(&write).ok()?;
        (size >= PIPE_BYTES_MIN).then_some(PipeEnds { read, write })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_limited_and_empty_ones_are_retained() {
        let pipes = Pipes::default();
        let mut taken: Vec<PipeEnds> = std::iter::from_fn(|| pipes.take()).collect();
        assert_eq!(taken.len(), PIPES_MAX);
        pipes.put(taken.pop().expect("a pipe"), false);
        assert!(pipes.idle.borrow().is_empty(), "a pipe with bytes is closed");
        taken.into_iter().for_each(|ends| pipes.put(ends, true));
        assert_eq!(pipes.idle.borrow().len(), IDLE_MAX);
        assert!(pipes.trim() && !pipes.trim());
        assert!(pipes.take().is_some());
    }
}
