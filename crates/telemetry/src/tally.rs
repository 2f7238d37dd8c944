//! Connections and requests as `stub_status` counts them.
//!
//! Each thread counts for itself, in memory that no other thread writes to; whoever asks adds up what all of
//! them have. Numbers that are read while others change may be a moment apart, as they are in nginx.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one thread has counted. Aligned so that counting never takes a cache line away from another thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    accepted: AtomicU64,
    ended: AtomicU64,
    requests: AtomicU64,
    /// Connections by [`Stage`].
    stages: [AtomicU64; 3],
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing: its first or next request has not begun.
    Waiting,
    /// The head of a request is on its way.
    Reading,
    /// A request is being answered.
    Writing,
}

/// Sums over the threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that are open.
    pub active: u64,
    /// Connections since the start. All of them are handled: at `worker_connections` they wait in the kernel.
    pub accepted: u64,
    /// Requests since the start.
    pub requests: u64,
    /// Connections that send a header section.
    pub reading: u64,
    /// Connections whose request is being answered.
    pub writing: u64,
    /// Connections that wait for a request.
    pub waiting: u64,
}

impl Tally {
    /// A connection of this thread, which counts until the answer is dropped.
    pub fn connection(self: &Arc<Tally>) -> Counted {
        add(&self.accepted, 1);
        add(&self.stages[Stage::Waiting as usize], 1);
        Counted { tally: Arc::clone(self), stage: Stage::Waiting }
    }

    /// The numbers of now.
    pub fn totals(&self) -> Totals {
        let [waiting, reading, writing] = [0, 1, 2].map(|stage| get(&self.stages[stage]));
        // Ends are read first: a connection that ends meanwhile is still open, and not less than none are.
        let ended = get(&self.ended);
        let accepted = get(&self.accepted);
        let active = accepted.saturating_sub(ended);
        Totals { active, accepted, requests: get(&self.requests), reading, writing, waiting }
    }
}

/// One connection in the numbers.
#[derive(Debug)]
pub struct Counted {
    tally: Arc<Tally>,
    stage: Stage,
}

impl Counted {
    /// Goes on to another stage. One that begins to read has one more request.
    pub fn set(&mut self, stage: Stage) {
        if stage == self.stage {
            return;
        }
        if stage == Stage::Reading {
            add(&self.tally.requests, 1);
        }
        self.leave();
        add(&self.tally.stages[stage as usize], 1);
        self.stage = stage;
    }

    fn leave(&self) {
        let stage = &self.tally.stages[self.stage as usize];
        stage.store(get(stage).saturating_sub(1), Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.leave();
        add(&self.tally.ended, 1);
    }
}

/// Only one thread writes, so that neither a lock nor an atomic addition is needed.
fn add(number: &AtomicU64, more: u64) {
    number.store(get(number).wrapping_add(more), Ordering::Relaxed);
}

fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

impl Add for Totals {
    type Output = Totals;

    fn add(self, other: Totals) -> Totals {
        Totals {
            active: self.active + other.active,
            accepted: self.accepted + other.accepted,
            requests: self.requests + other.requests,
            reading: self.reading + other.reading,
            writing: self.writing + other.writing,
            waiting: self.waiting + other.waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Shared;

    #[test]
    fn connections_count_where_they_are() {
        let shared = Shared::default();
        let (first, second) = (shared.new_tally(), shared.new_tally());
        let mut a = first.connection();
        let mut b = second.connection();
        let c = second.connection();
        a.set(Stage::Reading);
        b.set(Stage::Reading);
        b.set(Stage::Writing);
        let expected = Totals { active: 3, accepted: 3, requests: 2, reading: 1, writing: 1, waiting: 1 };
        assert_eq!(shared.totals(), expected);
        b.set(Stage::Reading);
        assert_eq!(shared.totals().requests, 3, "one that was here already is another one");
        b.set(Stage::Waiting);
        drop((a, c));
        let expected = Totals { active: 1, accepted: 3, requests: 3, waiting: 1, ..Totals::default() };
        assert_eq!(shared.totals(), expected);
        drop(b);
        assert_eq!(shared.totals(), Totals { active: 0, waiting: 0, ..expected });
    }
}
