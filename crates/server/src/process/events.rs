//! Events from the threads of a worker to its main thread, which waits in poll(2): a thread has ended, a configuration
//! is no longer used, the addresses of names have changed, or lines for watchers are available.
//!
//! The first two events are reported when a value is dropped: [`Running`] when the task of a thread ends or panics, and
//! [`InForce`] with the last request that started under a configuration. The bell, an eventfd(2), wakes the main
//! thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io::Errno;
use rustix::event::{EventfdFlags, eventfd};

/// State shared by the threads of a worker and its main thread.
#[derive(Debug)]
pub(super) struct Events {
    bell: OwnedFd,
    running: AtomicUsize,
    panicked: AtomicBool,
    /// Numbers of unused configurations that were not reported yet.
    retired: Mutex<Vec<u64>>,
    /// Whether the addresses of names have changed since the last call.
    names_changed: AtomicBool,
    /// The newest turn request that every thread has completed.
    turned: AtomicU64,
}

impl Events {
    pub(super) fn new() -> Result<Arc<Events>, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (running, panicked) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (retired, names_changed) = (Mutex::default(), AtomicBool::new(false));
        let turned = AtomicU64::new(0);
        Ok(Arc::new(Events { bell, running, panicked, retired, names_changed, turned }))
    }

    /// Returns the bell. It becomes readable by an event, and stays readable until [`Events::take_retired`] is called.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Resets the bell and returns the numbers of unused configurations. Other events must be checked after this call,
    /// so that none is missed.
    #[expect(clippy::disallowed_methods, reason = "the descriptor does not block")]
    pub(super) fn take_retired(&self) -> Vec<u64> {
        // The read fails if the bell is not readable, which is no error.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reports that names have other addresses.
    pub(super) fn note_names(&self) {
        self.names_changed.store(true, Ordering::Release);
        self.ring();
    }

    /// Reports that lines for watchers are available.
    pub(super) fn note_lines(&self) {
        self.ring();
    }

    /// Whether addresses of names have changed since the last call.
    pub(super) fn take_names(&self) -> bool {
        self.names_changed.swap(false, Ordering::AcqRel)
    }

    /// Returns the number of the newest turn request that every thread has completed; 0 if none was completed since the
    /// last call.
    pub(super) fn take_turned(&self) -> u64 {
        self.turned.swap(0, Ordering::AcqRel)
    }

    /// Returns the number of threads that have not ended.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// Whether a thread ended by a panic.
    pub(super) fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    #[expect(clippy::disallowed_methods, reason = "the descriptor does not block")]
    fn ring(&self) {
        // The write fails only if the counter is at its maximum. Then the bell is already readable.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// A guard that lives as long as a thread runs.
pub(super) struct Running(Arc<Events>);

impl Running {
    pub(super) fn new(events: &Arc<Events>) -> Running {
        events.running.fetch_add(1, Ordering::AcqRel);
        Running(Arc::clone(events))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked.store(true, Ordering::Release);
        }
        self.0.running.fetch_sub(1, Ordering::AcqRel);
        self.0.ring();
    }
}

/// A request that every thread completes an event-loop turn. A thread acknowledges the request by dropping its
/// reference. The drop of the last reference reports the completion.
#[derive(Debug)]
pub(super) struct Turn {
    number: u64,
    events: Arc<Events>,
}

impl Turn {
    pub(super) fn new(number: u64, events: &Arc<Events>) -> Arc<Turn> {
        Arc::new(Turn { number, events: Arc::clone(events) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.events.turned.fetch_max(self.number, Ordering::AcqRel);
        self.events.ring();
    }
}

/// A guard that lives as long as a configuration is in use.
#[derive(Debug)]
pub(super) struct InForce {
    number: u64,
    events: Arc<Events>,
}

impl InForce {
    pub(super) fn new(number: u64, events: &Arc<Events>) -> Arc<InForce> {
        Arc::new(InForce { number, events: Arc::clone(events) })
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        self.events.retired.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        self.events.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn rings(events: &Events) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&events.bell, PollFlags::IN)], Some(&now)).expect("an eventfd") == 1
    }

    #[test]
    fn the_exit_of_a_thread_is_signalled_and_a_panic_distinguished() {
        let events = Events::new().expect("a descriptor is free");
        let (first, second) = (Running::new(&events), Running::new(&events));
        assert!(!rings(&events) && events.running() == 2);
        drop(first);
        assert!(rings(&events) && events.running() == 1 && !events.has_panicked());
        assert!(events.take_retired().is_empty() && !rings(&events));
        let thread = std::thread::spawn(move || {
            let _second = second;
            std::panic::resume_unwind(Box::new("without a message"));
        });
        assert!(thread.join().is_err());
        assert!(rings(&events) && events.running() == 0 && events.has_panicked());
    }

    #[test]
    fn a_request_to_threads_completes_with_the_last_thread() {
        let events = Events::new().expect("a descriptor is free");
        let first = Turn::new(7, &events);
        let second = Arc::clone(&first);
        drop(first);
        assert_eq!((rings(&events), events.take_turned()), (false, 0));
        drop(second);
        assert_eq!((rings(&events), events.take_turned(), events.take_turned()), (true, 7, 0));
    }

    #[test]
    fn a_configuration_is_released_with_its_last_user() {
        let events = Events::new().expect("a descriptor is free");
        let first = InForce::new(1, &events);
        let request = Arc::clone(&first);
        drop(InForce::new(2, &events));
        drop(first);
        assert_eq!((rings(&events), events.take_retired()), (true, vec![2]));
        drop(request);
        assert_eq!((rings(&events), events.take_retired()), (true, vec![1]));
        assert!(!rings(&events));
    }
}
