//! Model of the doorbell: no wake-up is lost in any interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p io --test loom_doorbell --release`

#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "in the helpers of a test too, what fails ends the test")]

#[path = "../src/doorbell/bell.rs"]
mod bell;

use bell::Bell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// A replacement of the eventfd: a counter whose change ends the wait of a sleeping thread.
#[derive(Default)]
struct Descriptor {
    writes: Mutex<u32>,
    written: Condvar,
}

struct Side {
    bell: Bell,
    descriptor: Descriptor,
    /// Represents the inbox. Deliberately relaxed: the bell must provide the visibility.
    left: AtomicU32,
}

fn leave_and_ring(side: &Side) {
    side.left.fetch_add(1, Ordering::Relaxed);
    if side.bell.ring() {
        *side.descriptor.writes.lock().unwrap() += 1;
        side.descriptor.written.notify_one();
    }
}

/// Runs turns of an engine until the messages of `expected` threads have been seen. After a lost wake-up the engine
/// would wait forever, which loom reports as a deadlock.
fn turn_until_seen(side: &Side, expected: u32) {
    let mut seen_writes = 0;
    loop {
        if side.bell.fall_asleep() {
            let mut writes = side.descriptor.writes.lock().unwrap();
            while *writes == seen_writes {
                writes = side.descriptor.written.wait(writes).unwrap();
            }
            seen_writes = *writes;
        }
        side.bell.wake_up();
        if side.left.load(Ordering::Relaxed) == expected {
            return;
        }
    }
}

fn model(producers: u32) {
    loom::model(move || {
        let side = Arc::new(Side {
            bell: Bell::new(),
            descriptor: Descriptor { writes: Mutex::new(0), written: Condvar::new() },
            left: AtomicU32::new(0),
        });
        let threads: Vec<_> = (0..producers)
            .map(|_| {
                let side = Arc::clone(&side);
                thread::spawn(move || leave_and_ring(&side))
            })
            .collect();
        turn_until_seen(&side, producers);
        for producer in threads {
            producer.join().unwrap();
        }
    });
}

#[test]
fn one_wake_up_is_never_lost() {
    model(1);
}

#[test]
fn two_wake_ups_are_never_lost() {
    model(2);
}
