//! [`HelperPool`]: helper threads for work that would occupy a worker thread for too long; and [`offload`], which uses
//! the pool for computation.
//!
//! ```text
//!   task --- work ---> jobs --- one of a few threads
//!    ^                                   |
//!    +------- mailbox with the result ---+
//! ```
//!
//! A job waits for a thread as long as its task exists, so tasks bound the number of jobs.
//!
//! Each pool belongs to the component whose work it does, so that work that waits for one thing (a disk, a name server)
//! delays only work that waits for the same. The threads start when there is work, and exit after some time without work
//! or with their pool, so a server that never needs them has none. They inherit the blocked signals and the CPU affinity
//! of the thread that starts them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use io::helper_threads::{HelperThreads, Jobs};

use crate::{mailbox, panics, reactor};

/// Runs `work`, a computation, on another thread and returns its result; `None` when it panicked. If the task is dropped,
/// work that has not started is removed.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    COMPUTING.run(work).await
}

static COMPUTING: LazyLock<HelperPool> = LazyLock::new(|| HelperPool::for_computation("computing"));

/// A thread pool and the jobs that wait for it.
pub struct HelperPool {
    /// Name of the threads.
    name: &'static str,
    /// Maximum number of threads.
    threads_max: usize,
    threads: Arc<HelperThreads<Queue>>,
}

type Job = Box<dyn FnOnce() + Send>;

/// The client of a job, and the number of the job.
type JobKey = (Option<IpAddr>, u64);

#[derive(Default)]
struct Queue {
    /// The jobs of each client in their order.
    jobs: BTreeMap<JobKey, Job>,
    /// Number of the next job.
    number: u64,
    /// The client whose job was started last.
    served: Option<IpAddr>,
}

impl HelperPool {
    /// Returns a pool for calls that wait, with at most this number of threads, which have this name.
    pub fn new(name: &'static str, threads_max: usize) -> HelperPool {
        assert!(threads_max > 0, "a pool has at least one thread");
        HelperPool { name, threads_max, threads: HelperThreads::new(Queue::default()) }
    }

    /// Returns a pool for computation: one thread per CPU, because further threads would only compete with these and with
    /// the worker threads.
    pub fn for_computation(name: &'static str) -> HelperPool {
        HelperPool::new(name, std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// Runs `work` on a thread of the pool and returns its result; `None` when it panicked. If the task is dropped, work
    /// that has not started is removed.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.run_for(None, work).await
    }

    /// As [`HelperPool::run`], for a client. Clients take turns: a client with many jobs delays a job of another client by
    /// no more than the job that a thread has begun.
    pub async fn run_for<T: Send + 'static>(
        &self,
        client: Option<IpAddr>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, mut receiver) = mailbox::channel(1);
        let job: Job = Box::new(move || {
            // Fails only when the task was dropped; then the result is not needed.
            let _ = sender.send(panics::catch_call(work));
        });
        let _waiting = self.put(client, job);
        match receiver.recv().await? {
            Ok(result) => Some(result),
            Err(panic) => {
                reactor::with_current(|reactor| reactor.executor.report(&panic));
                None
            }
        }
    }

    /// Adds a job. It is removed with the returned value, unless it has begun.
    fn put(&self, client: Option<IpAddr>, job: Job) -> WaitingJob<'_> {
        let mut state = self.threads.lock();
        let waiting = WaitingJob { pool: self, key: (client, state.queue.number) };
        state.queue.number += 1;
        state.queue.jobs.insert(waiting.key, job);
        if state.idle >= state.queue.jobs.len() || state.threads >= self.threads_max {
            drop(state);
            self.threads.wake_one();
        } else if self.threads.start(state, self.name.to_owned()).is_err() {
            self.run_without_threads();
        }
        waiting
    }

    /// Runs the jobs here if the system cannot create a thread and none exists: late is better than never.
    fn run_without_threads(&self) {
        loop {
            let mut state = self.threads.lock();
            if state.threads > 0 {
                return;
            }
            let Some(job) = state.queue.take() else { return };
            drop(state);
            run_job(job);
        }
    }
}

impl fmt::Debug for HelperPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HelperPool({}, at most {} threads)", self.name, self.threads_max)
    }
}

impl Drop for HelperPool {
    fn drop(&mut self) {
        // No job waits: its task would borrow the pool.
        self.threads.close();
    }
}

impl Jobs for Queue {
    type Job = Job;

    const IDLE_MAX: Duration = Duration::from_secs(10);

    /// Removes the oldest job of the next client: clients take turns in the order of their addresses.
    fn take(&mut self) -> Option<Job> {
        let next = self.jobs.range((self.served, u64::MAX)..).next().or_else(|| self.jobs.first_key_value());
        let key = *next?.0;
        self.served = key.0;
        self.jobs.remove(&key)
    }

    fn run(_: &HelperThreads<Queue>, job: Job) {
        run_job(job);
    }
}

/// A job that may wait for a thread; it is removed with this value.
struct WaitingJob<'p> {
    pool: &'p HelperPool,
    key: JobKey,
}

impl Drop for WaitingJob<'_> {
    fn drop(&mut self) {
        // The job is dropped after the lock is released.
        let _job = self.pool.threads.lock().queue.jobs.remove(&self.key);
    }
}

/// Runs a job. The panic of its work is a result; dropping a result that no task needs may panic too, which must not end
/// the thread.
fn run_job(job: Job) {
    let _ = panics::catch_call(job);
}
