//! Releases memory when the system runs out of it.
//!
//! Buffers, operations and requests are retained for reuse until the system runs out of memory. Each worker thread
//! checks [`crate::pressure`] once a second, and frees its unused memory if necessary.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exchange::error_log;
use exchange::thread::Thread;
use telemetry::Level;

use crate::pressure::{CHECK_EVERY, Pressure, default_paths};

/// Minimum time between two lines about memory in the error log, over all threads.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// Memory that the threads of a process freed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Number of times that a thread freed memory.
    times: AtomicU64,
    /// Number of bytes of buffers returned to the system.
    bytes: AtomicU64,
    noticed: Mutex<Option<Instant>>,
    /// Whether a thread has freed blocks whose pages were not released since.
    has_free_pages: AtomicBool,
}

impl Ledger {
    /// Releases the pages of blocks that any thread has freed. Freeing many connections affects all threads at about the same
    /// time, and the call scans the blocks of all threads, so one thread makes it for all.
    fn release_pages(&self) {
        if self.has_free_pages.swap(false, Ordering::Relaxed) {
            thread_alloc::release_pages();
        }
    }

    /// Counts freed memory; returns both totals if it is time to report them.
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

/// Checks for memory pressure until the thread ends.
pub(crate) async fn watch(thread: Rc<Thread>, ledger: Arc<Ledger>) {
    let mut pressure = Pressure::open(&default_paths(), rt::now()).ok();
    let threads = thread.thread_config().config.main().workers.count();
    let mut connections = DeclineDetector::of(CONNECTIONS_MIN.div_ceil(threads));
    let mut encoders = DeclineDetector::of(ENCODERS_MIN);
    loop {
        rt::sleep_until(rt::now() + CHECK_EVERY).await;
        ledger.release_pages();
        if pressure.as_mut().is_some_and(|pressure| pressure.is_on(rt::now())) {
            free_memory_for_others(&thread, &ledger);
        }
        let (bytes, peak) = thread.encoders.budget.bytes();
        if encoders.has_declined((bytes as usize, peak as usize)) {
            thread.encoders.clear();
            ledger.has_free_pages.store(true, Ordering::Relaxed);
        }
        if connections.has_declined(thread.capacity.connections()) {
            // Operations submitted after the first call get slots at the start of the tables, so that the ends of the
            // tables can be freed by the second.
            free_memory(&thread);
            thread.capacity.trim().await;
            free_memory(&thread);
            ledger.has_free_pages.store(true, Ordering::Relaxed);
        }
    }
}

/// Detects that the number of connections, or of the bytes of encoders, has dropped to less than half. Their memory is then
/// freed; without this check it would be retained forever.
#[derive(Debug)]
struct DeclineDetector {
    /// Maximum number before the drop that is worth it.
    least: usize,
    /// Maximum number since memory was freed.
    peak: usize,
    /// Number of consecutive checks with at most half as many.
    checks: u32,
}

/// Minimum number of bytes of encoders before the drop.
const ENCODERS_MIN: usize = 16 << 20;

/// Minimum number of connections of the process before the drop: the memory of fewer connections is less than a MiB. Each thread
/// compares its share.
const CONNECTIONS_MIN: usize = 512;

/// Number of consecutive checks after which memory is freed, so that a fluctuating number of connections does not free
/// it.
const CHECKS: u32 = 3;

impl DeclineDetector {
    fn of(least: usize) -> DeclineDetector {
        DeclineDetector { least, peak: 0, checks: 0 }
    }

    /// Checks the current number, and the maximum since the last check.
    fn has_declined(&mut self, (count, peak): (usize, usize)) -> bool {
        self.peak = self.peak.max(peak);
        if self.peak < self.least || count > self.peak / 2 {
            self.checks = 0;
            return false;
        }
        self.checks += 1;
        if self.checks < CHECKS {
            return false;
        }
        *self = DeclineDetector { peak: count, ..DeclineDetector::of(self.least) };
        true
    }
}

/// Frees retained memory. Returns the bytes of freed buffers, the number of spare requests, and the number of chunks of
/// shared memory.
fn free_memory(thread: &Thread) -> (usize, usize, usize) {
    let requests = thread.drop_spare_requests();
    let chunks = io::shm::trim();
    let frames = thread.frames.take().capacity();
    (rt::trim() + thread.encoders.clear() + frames, requests, chunks)
}

fn free_memory_for_others(thread: &Thread, ledger: &Ledger) {
    let (bytes, requests, chunks) = free_memory(thread);
    let Some((times, total)) = ledger.enter(bytes as u64, rt::now()) else { return };
    error_log::write(
        thread,
        Level::Notice,
        format_args!(
            "memory is scarce: freed {bytes} bytes of buffers, {requests} spare requests, {chunks} chunks; \
             {total} bytes in {times} times since start"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_has_left_after_three_checks_below_half() {
        let mut detector = DeclineDetector::of(CONNECTIONS_MIN);
        let checks = [(100, false), (40, false), (1000, false), (500, false), (500, false), (501, false)];
        for (connections, expected) in checks {
            assert_eq!(detector.has_declined((connections, connections)), expected, "{connections}");
        }
        assert_eq!([400, 400, 400].map(|count| detector.has_declined((count, count))), [false, false, true]);
        assert_eq!(
            [0; 4].map(|count| detector.has_declined((count, count))),
            [false; 4],
            "what is left is no crowd"
        );
        assert_eq!(
            [600, 0, 0].map(|peak| detector.has_declined((0, peak))),
            [false, false, true],
            "between two looks"
        );
    }

    #[test]
    fn at_most_one_line_is_logged_in_ten_seconds() {
        let ledger = Ledger::default();
        let start = Instant::now();
        let enter = |at_ms| ledger.enter(100, start + Duration::from_millis(at_ms));
        assert_eq!(enter(0), Some((1, 100)));
        assert_eq!((enter(0), enter(1000), enter(9999)), (None, None, None));
        assert_eq!(enter(10_000), Some((5, 500)));
        assert_eq!(enter(10_001), None);
    }
}
