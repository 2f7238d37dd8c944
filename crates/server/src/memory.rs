//! Gives memory back when the system is short of it.
//!
//! Buffers, operations and requests are kept to be used again, which is right until somebody else needs the
//! memory more. Each worker thread asks [`io::pressure`] once a second and gives up what it does not use.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use io::pressure::{ASK_EVERY, Pressure, default_paths};

use crate::log::{Level, error};
use crate::thread::Thread;

/// The shortest time between two lines about memory in the error log, of all threads together.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// What the threads of a process gave back.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Times that a thread gave memory back.
    times: AtomicU64,
    /// Bytes of buffers that went to the system.
    bytes: AtomicU64,
    noticed: Mutex<Option<Instant>>,
}

impl Ledger {
    /// Counts; answers how often it has happened and how many bytes that was, when it is time to say so.
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

/// Watches for as long as the thread runs; ends at once where the kernel does not tell.
pub(crate) async fn watch(thread: Rc<Thread>) {
    let Ok(mut pressure) = Pressure::open(&default_paths(), rt::now()) else { return };
    while !pressure.is_blind() {
        rt::sleep_until(rt::now() + ASK_EVERY).await;
        if pressure.is_on(rt::now()) {
            give_back(&thread);
        }
    }
}

fn give_back(thread: &Thread) {
    let requests = thread.drop_spare_requests();
    let chunks = io::shm::trim();
    let bytes = rt::trim() + thread.encoders.clear();
    let Some((times, total)) = thread.shared.memory.enter(bytes as u64, rt::now()) else { return };
    error::write(
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
