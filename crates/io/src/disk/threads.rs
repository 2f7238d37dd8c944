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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::disk::job::{Job, Outcome};
use crate::doorbell::{Doorbell, Wake};
use crate::facts::DeviceId;
use crate::helper_threads::{HelperThreads, Jobs};
use crate::op::OpId;
use crate::slot::DeviceLimit;

/// Maximum number of waiting jobs in the pool `default` (nginx's number).
pub const QUEUE_DEFAULT: usize = 65536;

/// A named pool of threads, shared by the worker threads of a process.
pub struct ThreadPool {
    name: String,
    /// Number of threads.
    count: NonZeroUsize,
    max_queue: usize,
    overflowed: AtomicU64,
    threads: Arc<HelperThreads<JobQueues>>,
}

#[derive(Default)]
struct JobQueues {
    /// Jobs that may run as soon as a thread is free.
    ready: VecDeque<Task>,
    /// The limits per device: counts jobs that run or are ready, and queues jobs that wait for one of these to end.
    devices: DeviceLimit<Task>,
    /// Number of jobs in `ready` and in the queues of the devices.
    waiting: usize,
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
        let threads = HelperThreads::new(JobQueues::default());
        let pool =
            ThreadPool { name: name.to_owned(), count, max_queue, overflowed: AtomicU64::new(0), threads };
        for running in 0..count.get() {
            pool.threads
                .start(pool.threads.lock(), format!("{name}-{running}"))
                .map_err(|source| PoolError::Spawn { pool: name.to_owned(), running, source })?;
        }
        Ok(Arc::new(pool))
    }

    /// Returns the name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.count.get()
    }

    /// Returns the load of the pool, and its refusals.
    pub fn counters(&self) -> ThreadPoolCounters {
        let state = self.threads.lock();
        ThreadPoolCounters {
            waiting: state.queue.waiting,
            overflowed: self.overflowed.load(Ordering::Relaxed),
            device_queued: state.queue.devices.queued,
        }
    }

    /// Adds a job, or returns it when the queue is full; its device may use at most `device_limit` threads.
    pub(crate) fn push(&self, task: Task, device_limit: usize) -> Result<Taken, Task> {
        let mut state = self.threads.lock();
        let queue = &mut state.queue;
        if queue.waiting >= self.max_queue {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            return Err(task);
        }
        queue.waiting += 1;
        assert!(queue.waiting <= self.max_queue, "the queue of a pool is bounded");
        let Some(task) = queue.devices.enter(task.device, device_limit, task) else {
            return Ok(Taken::DeviceQueued);
        };
        queue.ready.push_back(task);
        drop(state);
        self.threads.wake_one();
        Ok(Taken::Ready)
    }

    /// Removes a job that waits for its device. A job that runs or is ready stays.
    pub(crate) fn withdraw(&self, inbox: &Arc<Inbox>, device: DeviceId, id: OpId) -> Option<Job> {
        let queue = &mut self.threads.lock().queue;
        let ours = |task: &Task| task.id == id && Arc::ptr_eq(&task.inbox, inbox);
        let found = queue.devices.withdraw(device, ours)?;
        assert!(queue.waiting > 0, "a job that is withdrawn was counted");
        queue.waiting -= 1;
        Some(found.job)
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadPool({}, {} threads)", self.name, self.count)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.threads.close();
    }
}

impl JobQueues {
    /// Records that a job of the device has ended. Returns whether the next waiting job of the device may run now.
    fn leave(&mut self, device: DeviceId) -> bool {
        let next = self.devices.leave(device);
        let is_ready = next.is_some();
        self.ready.extend(next);
        is_ready
    }
}

impl Jobs for JobQueues {
    type Job = Task;

    /// All threads exist as long as the pool.
    const IDLE_MAX: Duration = Duration::MAX;

    fn take(&mut self) -> Option<Task> {
        assert!(self.ready.len() <= self.waiting, "a job that is ready was counted");
        let task = self.ready.pop_front()?;
        self.waiting -= 1;
        Some(task)
    }

    fn run(threads: &HelperThreads<JobQueues>, task: Task) {
        let Task { mut job, id, device, inbox } = task;
        let outcome = job.run();
        if threads.lock().queue.leave(device) {
            threads.wake_one();
        }
        inbox.put((id, job, outcome));
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
