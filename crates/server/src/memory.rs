//! Gives memory back when the system is short of it.
//!
//! Buffers, operations and requests are kept for reuse until other programs need the memory more. Each worker thread
//! checks [`crate::pressure`] once a second and frees its unused memory.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exchange::error_log;
use exchange::thread::Thread;
use telemetry::Level;

use crate::pressure::{ASK_EVERY, Pressure, default_paths};

/// The shortest time between two lines about memory in the error log, of all threads together.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// Memory that the threads of a process freed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Times that a thread gave memory back.
    times: AtomicU64,
    /// Bytes of buffers that went to the system.
    bytes: AtomicU64,
    noticed: Mutex<Option<Instant>>,
}

impl Ledger {
    /// Counts; returns how often it has happened and how many bytes that was, when it is time to report it.
    fn enter(&self, bytes: u64, now: Instant) -> Option<(u64, u64)> {
        let times = self.times.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut noticed = self.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        let due = noticed.is_none_or(|last| now.saturating_duration_since(last) >= NOTICE_EVERY);
        due.then(|| {
            *noticed = Some(now);
            (times, bytes)
        })
    }
}

/// Watches for as long as the thread runs.
pub(crate) async fn watch(thread: Rc<Thread>, ledger: Arc<Ledger>) {
    let mut pressure = Pressure::open(&default_paths(), rt::now()).ok();
    let mut crowd = Crowd::default();
    loop {
        rt::sleep_until(rt::now() + ASK_EVERY).await;
        if pressure.as_mut().is_some_and(|pressure| pressure.is_on(rt::now())) {
            give_back_for_others(&thread, &ledger);
        }
        if crowd.has_left(thread.room.connections()) {
            // Operations that wait after the first time have slots at the start of the tables, so that their ends can
            // be freed.
            give_back(&thread);
            thread.room.trim().await;
            give_back(&thread);
            thread_alloc::release_pages();
        }
    }
}

/// Detects that many connections have ended and few have come since: their memory would be kept for ever.
#[derive(Debug, Default)]
struct Crowd {
    /// The most connections since memory was given back.
    most: usize,
    /// Looks in a row at which at most half of them were there.
    looks: u32,
}

/// Fewer connections than this are no crowd: their memory is less than a MiB.
const CROWD_MIN: usize = 512;

/// Looks after which a crowd is gone: one that comes and goes in turns keeps its memory.
const LOOKS: u32 = 3;

impl Crowd {
    /// Looks at the connections that are open, and at the most since the last look.
    fn has_left(&mut self, (connections, most): (usize, usize)) -> bool {
        self.most = self.most.max(most);
        if self.most < CROWD_MIN || connections > self.most / 2 {
            self.looks = 0;
            return false;
        }
        self.looks += 1;
        if self.looks < LOOKS {
            return false;
        }
        *self = Crowd { most: connections, looks: 0 };
        true
    }
}

/// Frees recycled memory: bytes of buffers, spare requests, chunks of shared memory.
fn give_back(thread: &Thread) -> (usize, usize, usize) {
    let requests = thread.drop_spare_requests();
    let chunks = io::shm::trim();
    (rt::trim() + thread.encoders.clear(), requests, chunks)
}

fn give_back_for_others(thread: &Thread, ledger: &Ledger) {
    let (bytes, requests, chunks) = give_back(thread);
    let Some((times, total)) = ledger.enter(bytes as u64, rt::now()) else { return };
    error_log::write(
        thread,
        Level::Notice,
        format_args!(
            "memory is short: gave back {bytes} bytes of buffers, {requests} spare requests, {chunks} chunks; \
             {total} bytes in {times} times since start"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_has_left_when_half_of_it_is_gone_for_three_looks() {
        let mut crowd = Crowd::default();
        let looks = [(100, false), (40, false), (1000, false), (500, false), (500, false), (501, false)];
        for (connections, expected) in looks {
            assert_eq!(crowd.has_left((connections, connections)), expected, "{connections}");
        }
        assert_eq!([400, 400, 400].map(|count| crowd.has_left((count, count))), [false, false, true]);
        assert_eq!(
            [0; 4].map(|count| crowd.has_left((count, count))),
            [false; 4],
            "what is left is no crowd"
        );
        assert_eq!(
            [600, 0, 0].map(|most| crowd.has_left((0, most))),
            [false, false, true],
            "between two looks"
        );
    }

    #[test]
    fn one_line_in_ten_seconds() {
        let ledger = Ledger::default();
        let start = Instant::now();
        let enter = |at_ms| ledger.enter(100, start + Duration::from_millis(at_ms));
        assert_eq!(enter(0), Some((1, 100)));
        assert_eq!((enter(0), enter(1000), enter(9999)), (None, None, None));
        assert_eq!(enter(10_000), Some((5, 500)));
        assert_eq!(enter(10_001), None);
    }
}
