//! Wakes an engine from other threads: one eventfd per engine, written only while the engine sleeps.
//!
//! [`Doorbell`] combines the state machine of [`bell::Bell`] with the descriptor. A thread first puts its item (an
//! outcome of a pool thread, a message of the runtime) into a queue of the engine, and then rings.

pub(crate) mod bell;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

use bell::Bell;

/// The side of an engine that other threads use.
pub trait Wake: Send + Sync {
    /// Makes the current or the next wait end immediately; returns whether the engine was waiting. Data that the caller
    /// wrote before the call is visible to the engine's thread after the wait.
    fn wake(&self) -> bool;
}

/// The eventfd of one engine and the state that keeps writes to it rare.
#[derive(Debug)]
pub(crate) struct Doorbell {
    bell: Bell,
    fd: OwnedFd,
}

impl Doorbell {
    /// Creates a doorbell that was not rung.
    pub(crate) fn new() -> Result<Doorbell, Errno> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { bell: Bell::new(), fd })
    }

    /// Records that the engine is about to wait; returns `false` when it must not, because the bell was rung since it
    /// last checked its queues.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.bell.fall_asleep()
    }

    /// Records that the engine is awake and will check all its queues.
    pub(crate) fn wake_up(&self) {
        self.bell.wake_up();
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wake for Doorbell {
    fn wake(&self) -> bool {
        let was_asleep = self.bell.ring();
        if was_asleep {
            // The counter is never read: each write is a separate edge, for epoll's edge trigger and for a multishot
            // poll alike. A write fails only when the counter is full after 2^64 - 2 writes; then the descriptor is
            // readable anyway.
            let _full = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
        was_asleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(doorbell: &Doorbell) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(doorbell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn waking_a_running_engine_needs_no_write() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.wake();
        doorbell.wake();
        assert_eq!(rings(&doorbell), 0);
        assert!(!doorbell.fall_asleep(), "it rang while the engine ran");
        doorbell.wake_up();
        assert!(doorbell.fall_asleep());
        doorbell.wake();
        doorbell.wake();
        assert_eq!(rings(&doorbell), 1, "only the first ring of a sleep is written");
    }
}
