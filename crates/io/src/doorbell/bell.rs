//! The state machine of a doorbell, apart from its descriptor so that loom can check it.
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
//! All transitions are read-modify-write operations on one word, so they have one order that every thread
//! agrees on, and no fence between a flag and a queue is needed: what a thread leaves before it rings is
//! seen by an engine that wakes up after it, and an engine that falls asleep after it is told not to.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

/// The engine is awake and has heard everything.
const RUNNING: u8 = 0;
/// The engine waits in the kernel, or is about to.
const SLEEPING: u8 = 1;
/// The bell rang and the engine has not looked yet.
const RUNG: u8 = 2;

/// The state of one engine's doorbell.
#[derive(Debug)]
pub(crate) struct Bell(AtomicU8);

impl Bell {
    /// A bell of an engine that is awake.
    pub(crate) fn new() -> Bell {
        Bell(AtomicU8::new(RUNNING))
    }

    /// Rings; whether the engine sleeps, so that the caller has to write to the descriptor.
    pub(crate) fn ring(&self) -> bool {
        self.0.swap(RUNG, Ordering::SeqCst) == SLEEPING
    }

    /// The engine goes to sleep, unless the bell has rung.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.0.compare_exchange(RUNNING, SLEEPING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The engine is awake; what was left before the last ring is visible to it from here on.
    pub(crate) fn wake_up(&self) {
        self.0.swap(RUNNING, Ordering::SeqCst);
    }
}
