//! Helper threads for work that would occupy a worker thread for too long: [`offload`] for computation,
//! [`offload_password`] for checks of passwords, [`offload_file`] and [`offload_file_in`] for work on files,
//! [`offload_settings`] for reads of files of the configuration, [`spawn_blocking`] for other calls that wait.
//!
//! ```text
//!   task --- work ---> jobs --- one of a few threads
//!    ^                                   |
//!    +------- mailbox with the result ---+
//! ```
//!
//! A job waits for a thread as long as its task exists, so tasks bound the number of jobs.
//!
//! The threads belong to the process. They start when there is work, and exit after some time without work, so a server
//! that never needs them has none. They inherit the blocked signals and the CPU affinity of the thread that starts
//! them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{mailbox, panics, reactor};

/// Runs `work` on another thread and returns its result; `None` when it panicked. If the task is dropped, work that has
/// not started is removed.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&COMPUTING, work).await
}

/// As [`offload`], for calls that block instead of computing, such as getaddrinfo(3). They use separate threads: a DNS
/// server that does not respond delays other lookups, but never compression.
pub async fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&WAITING, work).await
}

/// As [`offload`], for checks of passwords, whose number and duration clients determine. It uses separate threads: such
/// checks delay neither handshakes nor compression. Clients take turns: one with many checks delays a check of another
/// by no more than the check that a thread has begun.
pub async fn offload_password<T: Send + 'static>(
    client: Option<IpAddr>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    on_for(&PASSWORDS, client, work).await
}

/// As [`offload`], for brief reads of files of the configuration, such as certificates. It uses separate threads: if
/// the disk of the content or of a cache does not respond, this delays no handshake.
pub async fn offload_settings<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&SETTINGS, work).await
}

/// As [`offload`], for work on files that no operation of the engine covers. It uses separate threads: a disk that does
/// not respond delays neither computation nor lookups of names.
pub async fn offload_file<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&FILES, work).await
}

/// As [`offload_file`], for work below a directory that the configuration names. Each of these directories has separate threads:
/// a disk that does not respond delays no work in directories on other disks. The disk itself is not known before such work.
pub async fn offload_file_in<T: Send + 'static>(
    directory: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    on(files_in(directory), work).await
}

async fn on<T: Send + 'static>(pool: &'static Pool, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on_for(pool, None, work).await
}

async fn on_for<T: Send + 'static>(
    pool: &'static Pool,
    client: Option<IpAddr>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, mut receiver) = mailbox::channel(1);
    let job: Job = Box::new(move || {
        // Fails only when the task was dropped; then the result is not needed.
        let _ = sender.send(panics::catch_call(work));
    });
    let _waiting = pool.put(client, job);
    match receiver.recv().await? {
        Ok(result) => Some(result),
        Err(panic) => {
            reactor::with_current(|reactor| reactor.executor.report(&panic));
            None
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The client of a job, and the number of the job.
type JobKey = (Option<IpAddr>, u64);

/// A thread pool of this process and the jobs that wait for it.
struct Pool {
    state: Mutex<PoolState>,
    work: Condvar,
    /// Maximum number of threads; `None` means one per CPU.
    threads_max: Option<usize>,
}

struct PoolState {
    /// The jobs of each client in their order.
    jobs: BTreeMap<JobKey, Job>,
    /// Number of the next job.
    number: u64,
    /// The client whose job was started last.
    served: Option<IpAddr>,
    threads: usize,
    /// Number of threads that wait for a job.
    idle: usize,
}

/// One thread per CPU: further threads would only compete with these and with the worker threads.
static COMPUTING: Pool = Pool::new(None);

/// Maximum number of threads for blocking calls. A DNS server that is down delays each name by some seconds. More
/// threads would help only configurations with very many such names, and those are resolved again later anyway.
const WAITING_THREADS_MAX: usize = 8;

static WAITING: Pool = Pool::new(Some(WAITING_THREADS_MAX));

/// Maximum number of threads for work on files. More threads would hardly make one disk faster.
const FILE_THREADS_MAX: usize = 8;

static FILES: Pool = Pool::new(Some(FILE_THREADS_MAX));

/// The pools of directories. A pool is never freed: configurations name few different directories.
static DIRECTORIES: Mutex<BTreeMap<PathBuf, &'static Pool>> = Mutex::new(BTreeMap::new());

/// Returns the pool of a directory.
fn files_in(directory: &Path) -> &'static Pool {
    let mut pools = DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pools.entry(directory.to_owned());
    pool.or_insert_with(|| Box::leak(Box::new(Pool::new(Some(FILE_THREADS_MAX)))))
}

static PASSWORDS: Pool = Pool::new(None);

/// Maximum number of threads for reads of configuration files. Each read is brief.
const SETTINGS_THREADS_MAX: usize = 2;

static SETTINGS: Pool = Pool::new(Some(SETTINGS_THREADS_MAX));

/// Time after which a thread without work exits.
const IDLE: Duration = Duration::from_secs(10);

impl Pool {
    const fn new(threads_max: Option<usize>) -> Pool {
        let state = PoolState { jobs: BTreeMap::new(), number: 0, served: None, threads: 0, idle: 0 };
        Pool { state: Mutex::new(state), work: Condvar::new(), threads_max }
    }

    /// Adds a job. It is removed with the returned value, unless it has begun.
    fn put(&'static self, client: Option<IpAddr>, job: Job) -> WaitingJob {
        let mut state = self.lock();
        let waiting = WaitingJob { pool: self, key: (client, state.number) };
        state.number += 1;
        state.jobs.insert(waiting.key, job);
        let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads_max = self.threads_max.unwrap_or_else(processors);
        if state.idle >= state.jobs.len() || state.threads >= threads_max {
            drop(state);
            self.work.notify_one();
            return waiting;
        }
        state.threads += 1;
        drop(state);
        let started = std::thread::Builder::new().name("offload".to_owned()).spawn(|| self.serve());
        if started.is_err() {
            // The system cannot create more threads. If no thread exists, the work is done here: late is better than
            // never.
            let mut state = self.lock();
            state.threads -= 1;
            while state.threads == 0
                && let Some(job) = state.take()
            {
                drop(state);
                run(job);
                state = self.lock();
            }
        }
        waiting
    }

    /// The main function of a pool thread.
    fn serve(&self) {
        while let Some(job) = self.next() {
            run(job);
        }
    }

    /// Waits for a job; returns `None` when none arrived for some time, after which the thread is no longer counted.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.take() {
                return Some(job);
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            let timed_out = waited.1.timed_out();
            state = waited.0;
            assert!(state.idle > 0 && state.idle <= state.threads, "a waiting thread was counted");
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                assert!(state.threads > 0, "a thread that ends was counted");
                state.threads -= 1;
                return None;
            }
        }
    }

    /// Locks the state. A poisoned lock is ignored, because no job runs under the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Removes the oldest job of the next client: clients take turns in the order of their addresses.
    fn take(&mut self) -> Option<Job> {
        let next = self.jobs.range((self.served, u64::MAX)..).next().or_else(|| self.jobs.first_key_value());
        let key = *next?.0;
        self.served = key.0;
        self.jobs.remove(&key)
    }
}

/// A job that may wait for a thread; it is removed with this value.
struct WaitingJob {
    pool: &'static Pool,
    key: JobKey,
}

impl Drop for WaitingJob {
    fn drop(&mut self) {
        // The job is dropped after the lock is released.
        let _job = self.pool.lock().jobs.remove(&self.key);
    }
}

/// Runs a job. The panic of its work is a result; dropping a result that no task needs may panic too, which must not end
/// the thread.
fn run(job: Job) {
    let _ = panics::catch_call(job);
}
