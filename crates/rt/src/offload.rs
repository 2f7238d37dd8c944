//! Helper threads for work that would occupy a worker thread for too long: [`offload`] for computation,
//! [`offload_password`] for checks of passwords, [`offload_file`] and [`offload_file_in`] for work on files,
//! [`offload_settings`] for reads of files of the configuration, [`spawn_blocking`] for other calls that wait.
//!
//! ```text
//!   task --- work ---> queue --- one of a few threads
//!    ^                                   |
//!    +------- mailbox with the result ---+
//! ```
//!
//! The threads belong to the process. They start when there is work, and exit after some time without work, so a server
//! that never needs them has none. They inherit the blocked signals and the CPU affinity of the thread that starts
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::wait_list::{Ticket, WaitList};
use crate::{mailbox, panics, reactor};

/// Runs `work` on another thread and returns its result; `None` when it panicked. If the task is dropped, work that has
/// not started is removed.
///
/// The queue holds [`QUEUE_MAX`] pieces of work; a task waits while the queue is full.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&COMPUTING, work).await
}

/// As [`offload`], for calls that block instead of computing, such as getaddrinfo(3). They use separate threads: a DNS
/// server that does not respond delays other lookups, but never compression.
pub async fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&WAITING, work).await
}

/// As [`offload`], for checks of passwords, whose number and duration clients determine. It uses separate threads: such
/// checks delay neither handshakes nor compression.
pub async fn offload_password<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&PASSWORDS, work).await
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
    let (sender, mut receiver) = mailbox::channel(1);
    let mut job: Option<Job> = Some(Box::new(move || {
        if !sender.is_closed() {
            // Fails only when the task was dropped; then the result is not needed.
            let _ = sender.send(panics::catch_call(work));
        }
    }));
    let mut place = QueueTicket { pool, ticket: None };
    poll_fn(|context| pool.poll_put(&mut job, &mut place, context)).await;
    drop(place);
    match receiver.recv().await? {
        Ok(result) => Some(result),
        Err(panic) => {
            reactor::with_current(|reactor| reactor.executor.report(&panic));
            None
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread pool of this process and its queue.
struct Pool {
    state: Mutex<PoolState>,
    work: Condvar,
    /// Maximum number of threads; `None` means one per CPU.
    threads_max: Option<usize>,
}

struct PoolState {
    jobs: VecDeque<Job>,
    /// Tasks that wait for a slot in the queue.
    full: WaitList<Waker>,
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

/// Maximum number of jobs that wait for a thread. A compression job takes about a millisecond, so a full queue is a
/// second of work for one CPU: further jobs would only be late.
pub(crate) const QUEUE_MAX: usize = 1024;

/// Time after which a thread without work exits.
const IDLE: Duration = Duration::from_secs(10);

impl Pool {
    const fn new(threads_max: Option<usize>) -> Pool {
        let state = PoolState { jobs: VecDeque::new(), full: WaitList::new(), threads: 0, idle: 0 };
        Pool { state: Mutex::new(state), work: Condvar::new(), threads_max }
    }

    /// Adds the work to the queue in the order of the waiting tasks, once the queue has a free slot.
    fn poll_put(
        &'static self,
        job: &mut Option<Job>,
        place: &mut QueueTicket,
        context: &Context<'_>,
    ) -> Poll<()> {
        let mut state = self.lock();
        let is_its_turn = place.ticket.map_or(state.full.is_empty(), |ticket| state.full.is_first(ticket));
        if state.jobs.len() >= QUEUE_MAX || !is_its_turn {
            match place.ticket.and_then(|ticket| state.full.get_mut(ticket)) {
                Some(waker) => waker.clone_from(context.waker()),
                None => place.ticket = Some(state.full.push(context.waker().clone())),
            }
            return Poll::Pending;
        }
        if let Some(job) = job.take() {
            self.put(job, state);
        }
        Poll::Ready(())
    }

    fn put(&'static self, job: Job, mut state: MutexGuard<'_, PoolState>) {
        state.jobs.push_back(job);
        assert!(state.jobs.len() <= QUEUE_MAX, "a full queue takes no work");
        let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads_max = self.threads_max.unwrap_or_else(processors);
        if state.idle >= state.jobs.len() || state.threads >= threads_max {
            drop(state);
            self.work.notify_one();
            return;
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
                && let Some(job) = state.jobs.pop_front()
            {
                let next = state.full.first().cloned();
                drop(state);
                next.into_iter().for_each(Waker::wake);
                run(job);
                state = self.lock();
            }
        }
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
            if let Some(job) = state.jobs.pop_front() {
                let next = state.full.first().cloned();
                drop(state);
                next.into_iter().for_each(Waker::wake);
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

    /// Locks the queue. A poisoned lock is ignored, because no job runs under the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that may wait for a slot in the queue; dropping it removes the task from the list of waiting tasks.
struct QueueTicket {
    pool: &'static Pool,
    ticket: Option<Ticket>,
}

impl Drop for QueueTicket {
    /// Wakes the next task, which may have waited only because of this one.
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.pool.lock();
        let removed = state.full.remove(ticket);
        let next = state.full.first().cloned();
        drop(state);
        drop(removed);
        next.into_iter().for_each(Waker::wake);
    }
}

/// Runs a job. The panic of its work is a result; dropping a result that no task needs may panic too, which must not end
/// the thread.
fn run(job: Job) {
    let _ = panics::catch_call(job);
}
