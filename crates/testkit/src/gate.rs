//! A point at which a thread of the testkit waits until the test releases it.
//!
//! The origin that sends half a body, the client that reads a little and stops, the DNS server that answers late: each
//! of them arrives at a [`Gate`]; the test waits for the arrival ([`Gate::wait_reached`]), inspects the state, and
//! calls [`Gate::open`] or [`Gate::let_through`]. So the order of events is the test's, and no test needs to guess how
//! long something takes.
//!
//! [`Stop`] is the other end of such a wait: the owner of the threads stops them all, at any gate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::wait::Deadline;

/// Locks, also after a panic of another thread: the data under these locks are whole after every statement, and a test
/// should show the first panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition until `done` or the deadline; returns whether it was done in time.
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

/// A point at which threads wait for the test. Clones are the same gate. It starts closed.
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
    /// How many may pass while it is closed.
    permits: u64,
    arrived: u64,
    passed: u64,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        lock(&self.0.state).open = true;
        self.0.changed.notify_all();
    }

    /// Holds later arrivals.
    pub fn close(&self) {
        lock(&self.0.state).open = false;
    }

    /// Lets this many through, those that wait or those that come first.
    pub fn let_through(&self, count: u64) {
        lock(&self.0.state).permits += count;
        self.0.changed.notify_all();
    }

    /// How many have arrived so far, whether they went on or not.
    pub fn arrived(&self) -> u64 {
        lock(&self.0.state).arrived
    }

    /// Waits until a thread has arrived.
    #[track_caller]
    pub fn wait_reached(&self) {
        self.wait_reached_by(1);
    }

    /// Waits until this many have arrived since the gate was made.
    #[track_caller]
    pub fn wait_reached_by(&self, count: u64) {
        let reached =
            wait_on(&self.0.state, &self.0.changed, Deadline::default(), |state| state.arrived >= count);
        assert!(reached, "gave up waiting for {count} arrivals at a gate, {} have come", self.arrived());
    }

    /// Waits until this many have gone through since the gate was made.
    #[track_caller]
    pub fn wait_passed_by(&self, count: u64) {
        let passed =
            wait_on(&self.0.state, &self.0.changed, Deadline::default(), |state| state.passed >= count);
        assert!(passed, "gave up waiting for {count} to pass a gate");
    }

    /// Arrives, and waits until the gate lets this thread through; `false` when everything is to stop instead.
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

/// Ends the waits of a group of threads.
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

    /// Releases all waiting threads, for good.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let gates = std::mem::take(&mut *lock(&self.gates));
        self.changed.notify_all();
        for gate in gates.iter().filter_map(Weak::upgrade) {
            // Under the lock: a waiter looks at the flag under it, and would sleep through a notice before that.
            let _state = lock(&gate.state);
            gate.changed.notify_all();
        }
    }

    /// Rests until `end`; `false` when everything is to stop instead.
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
    fn permits_let_through_one_by_one_and_open_lets_all() {
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
    fn a_stop_ends_waits_at_gates_and_pauses() {
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
