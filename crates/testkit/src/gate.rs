//! A point at which a thread of the testkit waits until the test releases it.
//!
//! For example, an origin arrives at a [`Gate`] after half a body, a client after its first reads, and a DNS server
//! before a late response. The test waits for the arrival ([`Gate::wait_reached`]), inspects the state, and
//! calls [`Gate::open`] or [`Gate::let_through`]. So the test controls the order of events, and does not depend on
//! timing.
//!
//! [`Stop`] ends the waits of a group of threads, whatever the gates.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::wait::Deadline;

/// Locks a mutex even if another thread has panicked: the data under these locks is consistent after every statement,
/// and the test should report the first panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition until `done` returns true or the deadline passes; returns whether it was done in time.
pub(crate) fn wait_on<T>(
    mutex: &Mutex<T>,
    changed: &Condvar,
    deadline: Deadline,
    mut done: impl FnMut(&mut T) -> bool,
) -> bool {
    let mut state = lock(mutex);
    loop {
        if done(&mut state) {
            return true;
        }
        let Some(left) = deadline.left() else { return false };
        state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// A point at which threads wait for the test. Clones refer to the same gate. A gate is initially closed.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    /// Number of threads that may pass while it is closed.
    permits: u64,
    arrived: u64,
    passed: u64,
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Opens the gate for all current and later arrivals.
    pub fn open(&self) {
        lock(&self.0.state).open = true;
        self.0.changed.notify_all();
    }

    /// Closes the gate for later arrivals.
    pub fn close(&self) {
        lock(&self.0.state).open = false;
    }

    /// Lets this many threads pass, waiting ones or the next arrivals.
    pub fn let_through(&self, count: u64) {
        lock(&self.0.state).permits += count;
        self.0.changed.notify_all();
    }

    /// Returns the number of arrivals so far, whether or not the threads have passed.
    pub fn arrived(&self) -> u64 {
        lock(&self.0.state).arrived
    }

    /// Waits until a thread has arrived.
    #[track_caller]
    pub fn wait_reached(&self) {
        self.wait_reached_by(1);
    }

    /// Waits until this many threads have arrived since the gate was created.
    #[track_caller]
    pub fn wait_reached_by(&self, count: u64) {
        let reached =
            wait_on(&self.0.state, &self.0.changed, Deadline::default(), |state| state.arrived >= count);
        assert!(reached, "gave up waiting for {count} arrivals at a gate, {} so far", self.arrived());
    }

    /// Waits until this many threads have passed since the gate was created.
    #[track_caller]
    pub fn wait_passed_by(&self, count: u64) {
        let passed =
            wait_on(&self.0.state, &self.0.changed, Deadline::default(), |state| state.passed >= count);
        assert!(passed, "gave up waiting for {count} threads to pass a gate");
    }

    /// Arrives, and waits until the gate lets this thread pass; returns false if `stop` is set instead.
    pub(crate) fn pass(&self, stop: &Stop) -> bool {
        stop.register(&self.0);
        let mut state = lock(&self.0.state);
        state.arrived += 1;
        self.0.changed.notify_all();
        while !state.open && state.permits == 0 {
            if stop.is_stopped() {
                return false;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.open {
            state.permits -= 1;
        }
        state.passed += 1;
        self.0.changed.notify_all();
        true
    }
}

/// Stops the waiting of a group of threads.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    stopped: AtomicBool,
    gates: Mutex<Vec<Weak<Shared>>>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Releases all waiting threads permanently.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let gates = std::mem::take(&mut *lock(&self.gates));
        self.changed.notify_all();
        for gate in gates.iter().filter_map(Weak::upgrade) {
            // Notified under the lock: a waiter checks the flag under the lock, and would otherwise miss a notification
            // before its wait.
            let _state = lock(&gate.state);
            gate.changed.notify_all();
        }
    }

    /// Sleeps until `end`; returns false if it is stopped before.
    pub(crate) fn pause_until(&self, end: Instant) -> bool {
        let mut gates = lock(&self.gates);
        while !self.is_stopped() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            gates = self.changed.wait_timeout(gates, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    fn register(&self, gate: &Arc<Shared>) {
        let mut gates = lock(&self.gates);
        gates.retain(|known| known.strong_count() > 0);
        if !gates.iter().any(|known| known.as_ptr() == Arc::as_ptr(gate)) {
            gates.push(Arc::downgrade(gate));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(gate: &Gate, stop: &Arc<Stop>) -> std::thread::JoinHandle<bool> {
        let (gate, stop) = (gate.clone(), Arc::clone(stop));
        std::thread::spawn(move || gate.pass(&stop))
    }

    #[test]
    fn permits_pass_one_by_one_and_an_open_gate_passes_all() {
        let (gate, stop) = (Gate::new(), Arc::new(Stop::default()));
        let threads: Vec<_> = (0..3).map(|_| passing(&gate, &stop)).collect();
        gate.wait_reached_by(3);
        assert_eq!(lock(&gate.0.state).passed, 0);
        gate.let_through(1);
        gate.wait_passed_by(1);
        assert_eq!(lock(&gate.0.state).passed, 1);
        gate.open();
        assert!(threads.into_iter().all(|thread| thread.join().expect("it only waits")));
        assert!(gate.pass(&stop), "an open gate holds nobody");
    }

    #[test]
    fn a_stop_ends_gate_waits_and_pauses() {
        let (gate, stop) = (Gate::new(), Arc::new(Stop::default()));
        let held = passing(&gate, &stop);
        gate.wait_reached();
        let resting = Arc::clone(&stop);
        let far = Instant::now() + std::time::Duration::from_secs(60);
        let pause = std::thread::spawn(move || resting.pause_until(far));
        stop.stop();
        assert!(!held.join().expect("it only waits"));
        assert!(!pause.join().expect("it only waits"));
    }
}
