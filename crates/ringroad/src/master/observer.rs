//! Observes the paths of the serving worker's sandbox, and decides when a new worker process is started because paths were replaced.
//!
//! A rule of the kernel belongs to a directory or file, not to its name. After `mv site site.old; mv new site` the worker may not open
//! anything below `site`, so the master replaces the worker. A thread compares device and inode of each path once per second, and
//! immediately after a report of the worker. It is a thread of its own because a path may be on a disk or server that does not
//! respond: then signals and workers are still handled. With many paths, or a slow disk, the pauses are longer, up to 10 seconds.
//!
//! ```text
//! master                                thread
//!   | -- Observe: configuration, plan ---> |   compares once per second
//!   | -- Compare ------------------------> |   a worker has reported a refusal; nothing is believed of it
//!   | <------------------------- reasons - |   and the thread waits for the next order
//! ```
//! inotify(7) is not used: it does not report changes of mounts and of network file systems, and each component of each path, and
//! of each target of a symbolic link, would need a watch.
//!
//! A missing path is no reason for a new worker, and a new worker for other paths waits for a short time until the path exists again: a
//! worker that is started between two renames would have no rule for it.
//!
//! New workers are paced, because a program may replace a path again and again, and each worker may have requests in flight for a
//! long time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::adapter::Config;
use crate::log::{Level, Log};
use crate::restrict::{self, Comparison, Plan};

/// Time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time between two comparisons, on a slow disk.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Minimum time between two comparisons that a worker has requested; the time is longer on a slow disk, up to [`INTERVAL`].
const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Minimum ratio of the time between two comparisons to the time of a comparison.
const PAUSE_RATIO: u32 = 50;

/// As [`PAUSE_RATIO`], if a worker has requested the comparison.
const PAUSE_RATIO_MIN: u32 = 5;

/// Maximum time for which a new worker waits for a path that is missing and existed before. Between `mv site site.old` and `mv next site`
/// the time is short, unless a program copies a directory.
const GAP_MAX: Duration = Duration::from_secs(2);

/// Time without a replaced path after which the next new worker is not delayed.
const QUIET_TIME: Duration = Duration::from_secs(60);

/// Minimum and maximum time from one new worker to the next one. The time doubles with each new worker.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// Maximum number of workers that finish their requests while another one is started for replaced paths.
const LEAVING_MAX: usize = 8;

/// The process ID of a worker and the number of its configuration.
pub(super) type Served = (u32, u64);

/// Observes the paths of one worker.
#[derive(Debug, Default)]
pub(super) struct PathObserver {
    thread: ThreadState,
    /// The worker whose paths are observed.
    served: Option<Served>,
    /// The reasons for a new worker.
    reasons: Option<Vec<String>>,
    pace: Pace,
}

#[derive(Debug, Default)]
enum ThreadState {
    /// The thread was not needed yet.
    #[default]
    NotStarted,
    Running(ObserverThread),
    /// The kernel restricts no paths, or the thread could not be started.
    Unavailable,
}

/// The thread, which ends when this value is dropped and its present comparison has ended.
#[derive(Debug)]
struct ObserverThread {
    orders: Sender<Order>,
    found: Arc<Found>,
}

/// An order to the thread.
enum Order {
    /// Observe the paths of this configuration in a worker with this plan.
    Observe(Served, Arc<Config>, Box<Plan>),
    /// Compare the paths now.
    Compare,
    /// Observe nothing.
    Pause,
}

/// What the thread has found.
#[derive(Debug)]
struct Found {
    /// The reasons for a new worker, with the worker that the thread observed.
    reasons: Mutex<Option<(Served, Vec<String>)>>,
    /// An eventfd that is readable when there are reasons.
    event: OwnedFd,
}

impl PathObserver {
    /// Observes the paths of a worker, unless this is done already; with `None` no paths. `plan` returns what the observation needs.
    pub(super) fn observe(
        &mut self,
        served: Option<Served>,
        plan: impl FnOnce() -> Option<(Arc<Config>, Plan)>,
        log: &Log,
    ) {
        if self.served == served {
            return;
        }
        (self.served, self.reasons) = (served, None);
        let order = served.and_then(|served| plan().map(|(config, plan)| (served, config, plan)));
        match order {
            Some((served, config, plan)) => {
                if let Some(thread) = self.started_thread(log) {
                    let _ = thread.orders.send(Order::Observe(served, config, Box::new(plan)));
                }
            }
            None => self.send(Order::Pause),
        }
    }

    /// Compares the paths soon, because a worker has reported a refusal.
    pub(super) fn compare(&self) {
        self.send(Order::Compare);
    }

    /// Returns a descriptor that is readable when [`PathObserver::take_due`] may have reasons.
    pub(super) fn event(&self) -> Option<BorrowedFd<'_>> {
        match &self.thread {
            ThreadState::Running(thread) => Some(thread.found.event.as_fd()),
            ThreadState::NotStarted | ThreadState::Unavailable => None,
        }
    }

    /// Returns the time at which a new worker may be started, if there are reasons for one.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.reasons.as_ref().and(self.pace.next)
    }

    /// Returns the reasons for a new worker, if it may be started now. `leaving` is the number of workers that finish their requests.
    pub(super) fn take_due(&mut self, leaving: usize, log: &Log, now: Instant) -> Option<Vec<String>> {
        let wait = self.pace.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now));
        if let ThreadState::Running(thread) = &self.thread
            && let Some((served, reasons)) = thread.found.take()
            && self.served == Some(served)
        {
            if leaving >= LEAVING_MAX {
                log.write(Level::Error, format_args!("sandbox: paths were replaced, but {leaving} old worker processes finish their requests: another one has to exit first"));
            } else if wait > PAUSE_MIN {
                let ms = wait.as_millis();
                log.notice(format_args!(
                    "sandbox: paths were replaced again, a new worker process is started in {ms} ms"
                ));
            }
            self.reasons = Some(reasons);
        }
        if !wait.is_zero() {
            return None;
        }
        // From now on no deadline is needed: the exit of a worker is an event.
        self.pace.next = None;
        let reasons = self.reasons.take_if(|_| leaving < LEAVING_MAX)?;
        self.pace.count(now);
        Some(reasons)
    }

    /// Observes the same worker again, after a new worker could not be started.
    pub(super) fn begin_again(&mut self) {
        self.served = None;
    }

    fn send(&self, order: Order) {
        if let ThreadState::Running(thread) = &self.thread {
            let _ = thread.orders.send(order);
        }
    }

    fn started_thread(&mut self, log: &Log) -> Option<&ObserverThread> {
        if matches!(self.thread, ThreadState::NotStarted) {
            self.thread = match start_thread() {
                Ok(Some(thread)) => ThreadState::Running(thread),
                Ok(None) => ThreadState::Unavailable,
                Err(error) => {
                    log.alert(format_args!("sandbox: replaced directories need a reload: {error}"));
                    ThreadState::Unavailable
                }
            };
        }
        match &self.thread {
            ThreadState::Running(thread) => Some(thread),
            ThreadState::NotStarted | ThreadState::Unavailable => None,
        }
    }
}

/// The times of new workers.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    pause: Duration,
    /// The earliest time of the next new worker; `None` if it may be started now.
    next: Option<Instant>,
}

impl Pace {
    /// Counts a new worker.
    fn count(&mut self, now: Instant) {
        let quiet = QUIET_TIME.max(self.pause * 2);
        let is_quiet = self.last.is_none_or(|last| now.saturating_duration_since(last) > quiet);
        self.pause = if is_quiet { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        self.last = Some(now);
        self.next = Some(now + self.pause);
    }
}

impl Found {
    fn take(&self) -> Option<(Served, Vec<String>)> {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, served: Served, reasons: Vec<String>) {
        *self.reasons.lock().unwrap_or_else(PoisonError::into_inner) = Some((served, reasons));
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// Starts the thread; returns `None` if the kernel restricts no paths.
fn start_thread() -> std::io::Result<Option<ObserverThread>> {
    if !restrict::restricts_paths() {
        return Ok(None);
    }
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let found = Arc::new(Found { reasons: Mutex::new(None), event });
    let (orders, received) = mpsc::channel();
    let shared = Arc::clone(&found);
    std::thread::Builder::new().name("paths".to_owned()).spawn(move || observe(&received, &shared))?;
    Ok(Some(ObserverThread { orders, found }))
}

/// Handles orders until the master drops their sender.
fn observe(orders: &Receiver<Order>, found: &Found) {
    let mut observed: Option<(Served, Arc<Config>, Box<Plan>)> = None;
    let mut is_first = true;
    // The time since which there are reasons for a new worker, while a path is missing.
    let mut gap_since: Option<Instant> = None;
    let mut last = Instant::now();
    let (mut pause, mut pause_min) = (INTERVAL, INTERVAL_MIN);
    loop {
        let order = match &observed {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => orders.recv_timeout(pause.saturating_sub(last.elapsed())),
        };
        match order {
            Ok(Order::Observe(served, config, plan)) => {
                (observed, is_first, gap_since) = (Some((served, config, plan)), true, None);
                // Usually this was the last user of the old configuration.
                thread_alloc::release_pages();
            }
            Ok(Order::Pause) => observed = None,
            Ok(Order::Compare) => {
                pause = pause_min;
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Some((served, config, plan)) = &mut observed else { continue };
        let start = Instant::now();
        let Comparison { reasons, has_gap } = plan.replaced_paths(config, is_first);
        last = Instant::now();
        // The first comparison takes longer than the others.
        let time = if std::mem::take(&mut is_first) { Duration::ZERO } else { last - start };
        pause_min = (time * PAUSE_RATIO_MIN).clamp(INTERVAL_MIN, INTERVAL);
        pause = (time * PAUSE_RATIO).clamp(INTERVAL, INTERVAL_MAX);
        if has_gap && gap_since.get_or_insert(last).elapsed() < GAP_MAX {
            pause = pause_min;
        } else if reasons.is_empty() {
            gap_since = None;
        } else {
            found.put(*served, reasons);
            observed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_workers_are_paced_with_back_off() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let mut now = start;
        let pauses: Vec<u64> = (0..9)
            .map(|_| {
                pace.count(now);
                let next = pace.next.expect("a pause follows");
                let pause = next - now;
                now = next;
                pause.as_secs()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        pace.count(now + Duration::from_secs(129));
        assert_eq!(pace.pause, PAUSE_MIN);
    }
}
