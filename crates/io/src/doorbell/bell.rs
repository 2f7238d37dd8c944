//! The state machine of a doorbell, separate from its descriptor so that loom can check it.
//!
//! ```text
//!            fall_asleep               ring: true, the caller writes
//! Running --------------> Sleeping --------------------------------> Rung
//!    ^  ^                    |                                         |
//!    |  +------wake_up-------+                                         |
//!    +------------------------------wake_up----------------------------+
//! Running --ring: false--> Rung --ring: false--> Rung        Rung --fall_asleep: false--> Rung
//! ```
//!
//! All transitions are read-modify-write operations on one word, so they have one total order, and no fence between a
//! flag and a queue is needed. An engine that wakes up after a ring sees all earlier writes of the ringing thread. An
//! engine that is about to sleep after a ring does not sleep.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

/// The engine is awake and has checked its queues after the last ring.
const RUNNING: u8 = 0;
/// The engine waits in the kernel, or is about to.
const SLEEPING: u8 = 1;
/// The bell was rung, and the engine has not checked its queues yet.
const RUNG: u8 = 2;

/// The state of one engine's doorbell.
#[derive(Debug)]
pub(crate) struct Bell(AtomicU8);

impl Bell {
    /// Returns the bell of an engine that is awake.
    pub(crate) fn new() -> Bell {
        Bell(AtomicU8::new(RUNNING))
    }

    /// Rings; returns whether the engine sleeps, so that the caller has to write to the descriptor.
    pub(crate) fn ring(&self) -> bool {
        self.0.swap(RUNG, Ordering::SeqCst) == SLEEPING
    }

    /// Records that the engine sleeps; returns `false` if the bell was rung.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.0.compare_exchange(RUNNING, SLEEPING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Records that the engine is awake; writes before the last ring are visible to it from now on.
    pub(crate) fn wake_up(&self) {
        self.0.swap(RUNNING, Ordering::SeqCst);
    }
}
