//! Threads that execute the jobs of a queue: [`HelperThreads`], the common part of the pools of `thread_pool`
//! ([`crate::disk::threads`]) and of the pools for blocking work (`rt::HelperPool`).
//!
//! The queue, [`Jobs`], decides the order of the jobs, and its owner decides when a thread is started. A thread ends
//! when the pool is closed, after its current job, or when it had no work for [`Jobs::IDLE_MAX`].

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A queue of jobs.
pub trait Jobs: Send + Sized + 'static {
    /// A job.
    type Job;

    /// Time after which a thread without work ends; [`Duration::MAX`] means never.
    const IDLE_MAX: Duration;

    /// Removes the next job that may run now.
    fn take(&mut self) -> Option<Self::Job>;

    /// Executes a job, on a thread of the pool.
    fn run(threads: &HelperThreads<Self>, job: Self::Job);
}

/// The threads of a pool and their queue.
pub struct HelperThreads<Q> {
    state: Mutex<ThreadsState<Q>>,
    work: Condvar,
}

/// The queue, and the number of threads.
pub struct ThreadsState<Q> {
    /// The queue of jobs.
    pub queue: Q,
    /// Number of threads.
    pub threads: usize,
    /// Number of threads that wait for a job.
    pub idle: usize,
    is_closed: bool,
}

impl<Q: Jobs> HelperThreads<Q> {
    /// Returns a pool without threads.
    pub fn new(queue: Q) -> Arc<HelperThreads<Q>> {
        let state = ThreadsState { queue, threads: 0, idle: 0, is_closed: false };
        Arc::new(HelperThreads { state: Mutex::new(state), work: Condvar::new() })
    }

    /// Starts a thread, with all signals blocked. It inherits the CPU affinity of the caller. `state` is the locked state,
    /// so that no other thread is started after the caller has checked the number of threads.
    pub fn start(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ThreadsState<Q>>,
        name: String,
    ) -> std::io::Result<()> {
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(self);
        // The thread is not joined: a thread that hangs in a dead device would block its owner too.
        let started = std::thread::Builder::new().name(name).spawn(move || shared.serve());
        if started.is_err() {
            self.lock().threads -= 1;
        }
        started.map(drop)
    }

    /// Locks the queue. A poisoned lock is ignored: no job runs under the lock, so only a defect can poison it.
    pub fn lock(&self) -> MutexGuard<'_, ThreadsState<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a thread without work, after a job was added.
    pub fn wake_one(&self) {
        self.work.notify_one();
    }

    /// Ends each thread after its current job.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
    }

    /// The main function of a thread.
    fn serve(&self) {
        // Fails only with an invalid argument; signals would then merely interrupt system calls, which are retried.
        let _blocked = crate::sys::block_signals();
        while let Some(job) = self.next() {
            Q::run(self, job);
        }
    }

    /// Waits for a job. Returns `None` when the thread is to end; it is no longer counted then.
    fn next(&self) -> Option<Q::Job> {
        let mut state = self.lock();
        let mut is_overdue = false;
        while !state.is_closed {
            if let Some(job) = state.queue.take() {
                return Some(job);
            }
            if is_overdue {
                break;
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, Q::IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            is_overdue = waited.1.timed_out();
            state = waited.0;
            assert!(state.idle > 0 && state.idle <= state.threads, "a waiting thread was counted");
            state.idle -= 1;
        }
        assert!(state.threads > 0, "a thread that ends was counted");
        state.threads -= 1;
        None
    }
}
