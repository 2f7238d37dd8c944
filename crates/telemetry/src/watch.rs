//! Sends finished requests to operators that watch them (`ringroad log`, `ringroad top`).
//!
//! All threads share a [`Hub`]. Without watchers, a request only loads one flag of the hub. Otherwise each [`Watcher`]
//! that admits the request receives a line in a queue of limited size. Lines above the limits are dropped and counted.
//! The first thread of the process sends the lines, so that no other thread waits for a reader.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of lines per second and watcher: about 4 MiB, which need 2 % of a processor.
pub const LINES_MAX: u32 = 10_000;

/// Maximum number of queued bytes per watcher. The first thread empties the queue a hundred times per second. If the
/// reader stops reading, later lines are dropped.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of watchers of a process. Each watcher needs memory for up to two queues.
pub const WATCHERS_MAX: usize = 16;

/// The properties of a request that filters use.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The first name of the server.
    pub server: &'a str,
    /// The location as written in the configuration.
    pub location: &'a str,
    /// The status in the access log.
    pub code: u16,
    /// Time from the first byte of the request to the end of its response.
    pub time: Duration,
    /// `$upstream_cache_status`; empty without a cache.
    pub cache: &'a str,
    /// The client's address, if it has one.
    pub client: Option<IpAddr>,
    /// The method as received.
    pub method: &'a [u8],
}

/// Decides which requests a watcher receives.
pub type Admits = Box<dyn Fn(&Facts<'_>) -> bool + Send + Sync>;

/// A reader of lines.
pub struct Watcher {
    admits: Admits,
    queue: Mutex<Queue>,
}

/// Lines that the first thread has not taken yet.
#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    dropped: u64,
    /// Start of the second in which lines are counted.
    second: Option<Instant>,
    in_second: u32,
}

impl Queue {
    /// Whether another line is within the limits. Counts the line in any case.
    fn admit(&mut self, now: Instant) -> bool {
        let is_over = |start: Instant| now.saturating_duration_since(start) >= Duration::from_secs(1);
        if self.second.is_none_or(is_over) {
            (self.second, self.in_second) = (Some(now), 0);
        }
        let is_within = self.in_second < LINES_MAX && self.lines.len() < QUEUE_BYTES_MAX;
        match is_within {
            true => self.in_second += 1,
            false => self.dropped += 1,
        }
        is_within
    }
}

impl Watcher {
    /// Returns the lines since the last call, each with its newline, and the number of dropped lines.
    pub fn take(&self) -> (Vec<u8>, u64) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut queue.lines), std::mem::take(&mut queue.dropped))
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

/// All watchers of a process.
#[derive(Default)]
pub struct Hub {
    is_watched: AtomicBool,
    has_lines: AtomicBool,
    watchers: Mutex<Arc<Vec<Arc<Watcher>>>>,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Hub {
    /// Whether any watcher exists, so that finished requests must be passed to [`Hub::show`].
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Sets the function that wakes the first thread when lines are queued. Must be called only once.
    pub fn set_bell(&self, bell: impl Fn() + Send + Sync + 'static) {
        // Each process has only one first thread.
        let _ = self.bell.set(Box::new(bell));
    }

    /// Adds a watcher. Returns `None` if [`WATCHERS_MAX`] watchers exist.
    pub fn add(&self, admits: Admits) -> Option<Arc<Watcher>> {
        let watcher = Arc::new(Watcher { admits, queue: Mutex::default() });
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        Arc::make_mut(&mut watchers).push(Arc::clone(&watcher));
        self.is_watched.store(true, Ordering::Relaxed);
        Some(watcher)
    }

    /// Removes a watcher.
    pub fn remove(&self, watcher: &Arc<Watcher>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut watchers).retain(|known| !Arc::ptr_eq(known, watcher));
        self.is_watched.store(!watchers.is_empty(), Ordering::Relaxed);
    }

    /// Whether lines have been queued since the last call.
    pub fn take_has_lines(&self) -> bool {
        self.has_lines.swap(false, Ordering::AcqRel)
    }

    /// Shows a request to the watchers that admit it. `write` appends the line without its newline, and is called at
    /// most once.
    pub fn show(&self, facts: &Facts<'_>, now: Instant, mut write: impl FnMut(&mut Vec<u8>)) {
        let watchers = Arc::clone(&self.watchers.lock().unwrap_or_else(PoisonError::into_inner));
        let mut line = Vec::new();
        let mut is_shown = false;
        for watcher in watchers.iter().filter(|watcher| (watcher.admits)(facts)) {
            let mut queue = watcher.queue.lock().unwrap_or_else(PoisonError::into_inner);
            is_shown = true;
            if !queue.admit(now) {
                continue;
            }
            if line.is_empty() {
                write(&mut line);
                line.push(b'\n');
            }
            queue.lines.extend_from_slice(&line);
        }
        if is_shown
            && !self.has_lines.swap(true, Ordering::AcqRel)
            && let Some(bell) = self.bell.get()
        {
            bell();
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("is_watched", &self.is_watched).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn facts(code: u16) -> Facts<'static> {
        Facts {
            server: "a",
            location: "/",
            code,
            time: Duration::ZERO,
            cache: "",
            client: None,
            method: b"GET",
        }
    }

    fn show(hub: &Hub, code: u16, now: Instant) {
        hub.show(&facts(code), now, |line| line.extend_from_slice(code.to_string().as_bytes()));
    }

    #[test]
    fn each_watcher_gets_matching_lines() {
        let (hub, rings) = (Hub::default(), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&rings);
        hub.set_bell(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(!hub.is_watched());
        let all = hub.add(Box::new(|_| true)).expect("there is room");
        let errors = hub.add(Box::new(|facts| facts.code >= 500)).expect("there is room");
        assert!(hub.is_watched());
        let now = Instant::now();
        show(&hub, 200, now);
        show(&hub, 502, now);
        assert_eq!(rings.load(Ordering::Relaxed), 1, "the bell rings once until lines are taken");
        assert!(hub.take_has_lines() && !hub.take_has_lines());
        assert_eq!(all.take(), (b"200\n502\n".to_vec(), 0));
        assert_eq!(errors.take(), (b"502\n".to_vec(), 0));
        hub.remove(&all);
        show(&hub, 503, now);
        assert_eq!((all.take().0.len(), errors.take().0), (0, b"503\n".to_vec()));
        hub.remove(&errors);
        assert!(!hub.is_watched());
    }

    #[test]
    fn lines_above_the_rate_are_counted() {
        let hub = Hub::default();
        let watcher = hub.add(Box::new(|_| true)).expect("there is room");
        let start = Instant::now();
        for _ in 0..LINES_MAX + 7 {
            show(&hub, 200, start);
        }
        let (lines, dropped) = watcher.take();
        assert_eq!((lines.len(), dropped), (LINES_MAX as usize * 4, 7));
        show(&hub, 200, start + Duration::from_millis(999));
        show(&hub, 201, start + Duration::from_secs(1));
        assert_eq!(watcher.take(), (b"201\n".to_vec(), 1));
    }

    #[test]
    fn a_stalled_reader_uses_limited_memory() {
        let hub = Hub::default();
        let watcher = hub.add(Box::new(|_| true)).expect("there is room");
        let long = vec![b'x'; 1 << 16];
        let now = Instant::now();
        for _ in 0..40 {
            hub.show(&facts(200), now, |line| line.extend_from_slice(&long));
        }
        let (lines, dropped) = watcher.take();
        assert!(lines.len() < QUEUE_BYTES_MAX + (2 << 16), "{}", lines.len());
        assert_eq!(lines.len() / (long.len() + 1) + dropped as usize, 40);
    }

    #[test]
    fn watchers_are_limited() {
        let hub = Hub::default();
        let all: Vec<_> = (0..WATCHERS_MAX).map(|_| hub.add(Box::new(|_| true))).collect();
        assert!(all.iter().all(Option::is_some) && hub.add(Box::new(|_| true)).is_none());
    }
}
