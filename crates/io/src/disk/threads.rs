//! Thread pools for operations on files that would block (nginx's `thread_pool`).
//!
//! A [`ThreadPool`] belongs to the process and serves the engines of all worker threads. Its queue is bounded. One
//! device may use only a share of its threads: further jobs wait per device, so that a hanging device leaves threads
//! for the others. Outcomes are put into the [`Inbox`] of the submitting engine. When the pool is dropped, each thread
//! ends after its current job.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::disk::job::{Job, Outcome};
use crate::doorbell::{Doorbell, Wake};
use crate::facts::DeviceId;
use crate::op::OpId;
use crate::slot::DeviceLimit;

/// Maximum number of waiting jobs in the pool `default` (nginx's number).
pub const QUEUE_DEFAULT: usize = 65536;

/// A named pool of threads, shared by the worker threads of a process.
pub struct ThreadPool {
    shared: Arc<ThreadsState>,
}

struct ThreadsState {
    name: String,
    threads: NonZeroUsize,
    max_queue: usize,
    state: Mutex<JobQueues>,
    work: Condvar,
    overflowed: AtomicU64,
}

#[derive(Default)]
struct JobQueues {
    /// Jobs that may run as soon as a thread is free.
    ready: VecDeque<Task>,
    /// The limits per device: counts jobs that run or are ready, and queues jobs that wait for one of these to end.
    devices: DeviceLimit<Task>,
    /// Number of jobs in `ready` and in the queues of the devices.
    waiting: usize,
    stopping: bool,
}

/// A job, with the inbox for its outcome.
pub(crate) struct Task {
    pub(crate) job: Job,
    pub(crate) id: OpId,
    pub(crate) device: DeviceId,
    pub(crate) inbox: Arc<Inbox>,
}

/// A finished job.
pub(crate) type Ended = (OpId, Job, Outcome);

/// The outcomes that pool threads return to one engine.
pub(crate) struct Inbox {
    outcomes: Mutex<Vec<Ended>>,
    doorbell: Arc<Doorbell>,
}

/// The reason why a pool could not be created.
#[derive(Debug)]
pub enum PoolError {
    /// The number of threads is 0.
    NoThreads {
        /// The pool's name.
        pool: String,
    },
    /// The system could not create more threads: `ulimit -u`, `pids.max` of the cgroup, or memory.
    Spawn {
        /// The pool's name.
        pool: String,
        /// Number of threads created before.
        running: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::NoThreads { pool } => write!(f, "thread pool \"{pool}\" has no threads"),
            PoolError::Spawn { pool, running, source } => write!(
                f,
                "thread pool \"{pool}\" could create only {running} threads: {source} \
                 (check \"ulimit -u\" and the control group's \"pids.max\")"
            ),
        }
    }
}

impl std::error::Error for PoolError {}

/// Counters of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadPoolCounters {
    /// Jobs that wait for a thread now.
    pub waiting: usize,
    /// Jobs refused because the queue was full, since start.
    pub overflowed: u64,
    /// Jobs that waited because their device held its share of the threads, since start.
    pub device_queued: u64,
}

/// The state of an accepted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A thread will run it.
    Ready,
    /// The job waits until another job of its device ends.
    DeviceQueued,
}

impl ThreadPool {
    /// Starts `threads` threads that share a queue of at most `max_queue` waiting jobs.
    pub fn new(name: &str, threads: usize, max_queue: usize) -> Result<Arc<ThreadPool>, PoolError> {
        let count = NonZeroUsize::new(threads).ok_or(PoolError::NoThreads { pool: name.to_owned() })?;
        let shared = Arc::new(ThreadsState {
            name: name.to_owned(),
            threads: count,
            max_queue,
            state: Mutex::default(),
            work: Condvar::new(),
            overflowed: AtomicU64::new(0),
        });
        let pool = ThreadPool { shared };
        for running in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("{name}-{running}"));
            // The thread is not joined: a thread that hangs in a dead device would block its owner too.
            thread.spawn(move || shared.serve()).map_err(|source| PoolError::Spawn {
                pool: name.to_owned(),
                running,
                source,
            })?;
        }
        Ok(Arc::new(pool))
    }

    /// Returns the name in the configuration.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.shared.threads.get()
    }

    /// Returns the load of the pool, and its refusals.
    pub fn counters(&self) -> ThreadPoolCounters {
        let state = self.shared.lock();
        ThreadPoolCounters {
            waiting: state.waiting,
            overflowed: self.shared.overflowed.load(Ordering::Relaxed),
            device_queued: state.devices.queued,
        }
    }

    /// Adds a job, or returns it when the queue is full; its device may use at most `device_limit` threads.
    pub(crate) fn push(&self, task: Task, device_limit: usize) -> Result<Taken, Task> {
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.waiting >= shared.max_queue {
            shared.overflowed.fetch_add(1, Ordering::Relaxed);
            return Err(task);
        }
        state.waiting += 1;
        assert!(state.waiting <= shared.max_queue, "the queue of a pool is bounded");
        let Some(task) = state.devices.enter(task.device, device_limit, task) else {
            return Ok(Taken::DeviceQueued);
        };
        state.ready.push_back(task);
        drop(state);
        shared.work.notify_one();
        Ok(Taken::Ready)
    }

    /// Removes a job that waits for its device. A job that runs or is ready stays.
    pub(crate) fn withdraw(&self, inbox: &Arc<Inbox>, device: DeviceId, id: OpId) -> Option<Job> {
        let mut state = self.shared.lock();
        let ours = |task: &Task| task.id == id && Arc::ptr_eq(&task.inbox, inbox);
        let found = state.devices.withdraw(device, ours)?;
        assert!(state.waiting > 0, "a job that is withdrawn was counted");
        state.waiting -= 1;
        Some(found.job)
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadPool({}, {} threads)", self.shared.name, self.shared.threads)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
    }
}

impl ThreadsState {
    /// Locks the queues. A poisoned lock is ignored: only a failed assertion, a defect, can poison it.
    fn lock(&self) -> MutexGuard<'_, JobQueues> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main function of a pool thread.
    fn serve(&self) {
        // Fails only with an invalid argument; signals would then merely interrupt system calls, which are retried.
        let _unblocked = crate::sys::block_signals();
        while let Some(Task { mut job, id, device, inbox }) = self.next_task() {
            let outcome = job.run();
            self.leave(device);
            inbox.put((id, job, outcome));
        }
    }

    /// Waits for a job; `None` when the pool was dropped.
    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            assert!(state.ready.len() <= state.waiting, "a job that is ready was counted");
            if let Some(task) = state.ready.pop_front() {
                state.waiting -= 1;
                return Some(task);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records that a job of the device has ended, so that the next waiting job of the device may run.
    fn leave(&self, device: DeviceId) {
        let mut state = self.lock();
        if let Some(next) = state.devices.leave(device) {
            state.ready.push_back(next);
            drop(state);
            self.work.notify_one();
        }
    }
}

impl Inbox {
    /// Returns an empty inbox whose outcomes ring `doorbell`.
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> Arc<Inbox> {
        Arc::new(Inbox { outcomes: Mutex::default(), doorbell })
    }

    fn put(&self, ended: Ended) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
        self.doorbell.wake();
    }

    /// Swaps the collected outcomes into `outcomes`, which must be empty.
    pub(crate) fn take(&self, outcomes: &mut Vec<Ended>) {
        std::mem::swap(&mut *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner), outcomes);
    }
}
