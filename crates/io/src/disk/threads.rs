//! Thread pools for operations on files that would block (nginx's `thread_pool`).
//!
//! A [`ThreadPool`] belongs to the process and serves the engines of all worker threads. Its queue is bounded, and one
//! device may hold a share of its threads only: further work waits per device, so that a device that hangs leaves
//! threads for the others. Outcomes go to the [`Inbox`] of the engine that asked. Threads end when the pool is dropped,
//! each after the job it is in.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::DeviceLimit;
use crate::disk::job::{Job, Outcome};
use crate::doorbell::Doorbell;
use crate::op::{DeviceId, OpId};
use crate::wake::Wake;

/// Jobs that may wait for a thread in the pool `default` (nginx's number).
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
    /// Jobs that run or are ready, by their device, and those that wait for one of these to end.
    devices: DeviceLimit<Task>,
    /// Jobs in `ready` and in the queues of the devices.
    waiting: usize,
    stopping: bool,
}

/// A job with its way back.
pub(crate) struct Task {
    pub(crate) job: Job,
    pub(crate) id: OpId,
    pub(crate) device: DeviceId,
    pub(crate) inbox: Arc<Inbox>,
}

/// A job that has come back.
pub(crate) type Ended = (OpId, Job, Outcome);

/// Where pool threads leave outcomes for one engine.
pub(crate) struct Inbox {
    outcomes: Mutex<Vec<Ended>>,
    doorbell: Arc<Doorbell>,
}

/// Why a pool could not be made.
#[derive(Debug)]
pub enum PoolError {
    /// A pool without threads would never do anything.
    NoThreads {
        /// The pool's name.
        pool: String,
    },
    /// The system gave no more threads: `ulimit -u`, `pids.max` of the control group, or memory.
    Spawn {
        /// The pool's name.
        pool: String,
        /// How many threads there were already.
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
                "thread pool \"{pool}\" got {running} threads and no more: {source} \
                 (check \"ulimit -u\" and the control group's \"pids.max\")"
            ),
        }
    }
}

impl std::error::Error for PoolError {}

/// Numbers of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadPoolCounters {
    /// Jobs that wait for a thread now.
    pub waiting: usize,
    /// Jobs refused because the queue was full, since start.
    pub overflowed: u64,
    /// Jobs that waited because their device held its share of the threads, since start.
    pub device_queued: u64,
}

/// How a pool took a job; not at all when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A thread will run it.
    Ready,
    /// It waits for another job of its device.
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
            // The thread is not joined: one that hangs in a dead device would hang its owner as well.
            thread.spawn(move || shared.serve()).map_err(|source| PoolError::Spawn {
                pool: name.to_owned(),
                running,
                source,
            })?;
        }
        Ok(Arc::new(pool))
    }

    /// The name in the configuration.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.shared.threads.get()
    }

    /// The work of the pool, and its refusals.
    pub fn counters(&self) -> ThreadPoolCounters {
        let state = self.shared.lock();
        ThreadPoolCounters {
            waiting: state.waiting,
            overflowed: self.shared.overflowed.load(Ordering::Relaxed),
            device_queued: state.devices.queued,
        }
    }

    /// Takes a job; its device may hold at most `device_limit` threads.
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

    /// Takes a job back that waits for its device. One that runs stays.
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
    /// No code that runs under the lock can panic half way, so a poisoned lock means nothing.
    fn lock(&self) -> MutexGuard<'_, JobQueues> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of one thread.
    fn serve(&self) {
        // Fails only for a wrong argument; signals then merely interrupt calls, which are repeated.
        let _unblocked = crate::sys::block_signals();
        while let Some(Task { mut job, id, device, inbox }) = self.next_task() {
            let outcome = job.run();
            self.leave(device);
            inbox.put((id, job, outcome));
        }
    }

    /// Waits for a job; `None` when the pool is gone.
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

    /// A job of the device has ended: the next one that waits for the device may run.
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
    /// An empty inbox whose outcomes ring `doorbell`.
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> Arc<Inbox> {
        Arc::new(Inbox { outcomes: Mutex::default(), doorbell })
    }

    fn put(&self, ended: Ended) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
        self.doorbell.wake();
    }

    /// Swaps the gathered outcomes into `outcomes`, which is empty.
    pub(crate) fn take(&self, outcomes: &mut Vec<Ended>) {
        std::mem::swap(&mut *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner), outcomes);
    }
}
