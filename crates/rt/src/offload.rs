//! Runs work on other threads that would occupy a worker thread for too long: [`offload`] for computation,
//! [`spawn_blocking`] for calls that wait.
//!
//! ```text
//!   task --- work ---> queue --- one of a few threads
//!    ^                                   |
//!    +------- mailbox with the answer ---+
//! ```
//!
//! The threads belong to the process. They start when there is work and end when there has been none for a
//! while, so a server that never needs them has none. They inherit the blocked signals and the processors of
//! the thread that starts them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::num::NonZero;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::mailbox;
use crate::wait_list::{Ticket, WaitList};

/// Does `work` on another thread and returns its result; `None` when it panicked. A task that is dropped meanwhile
/// takes work back that has not begun.
///
/// The queue holds [`QUEUE_MAX`] pieces of work; a task waits while the queue is full.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&COMPUTING, work).await
}

/// Like [`offload`], for calls that block instead of computing, such as getaddrinfo(3). They have their own threads: a
/// name server that does not answer delays other lookups, never compression.
pub async fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    on(&WAITING, work).await
}

async fn on<T: Send + 'static>(pool: &'static Pool, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, mut receiver) = mailbox::channel(1);
    let mut job: Option<Job> = Some(Box::new(move || {
        if !sender.is_closed() {
            // Refused only when the task is gone, and then the result is not needed.
            let _ = sender.send(work());
        }
    }));
    let mut place = QueueTicket { pool, ticket: None };
    poll_fn(|context| pool.poll_put(&mut job, &mut place, context)).await;
    drop(place);
    receiver.recv().await
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads of this process and their queue.
struct Pool {
    state: Mutex<PoolState>,
    work: Condvar,
    /// Threads at most; `None` is one for each processor.
    threads_max: Option<usize>,
}

struct PoolState {
    jobs: VecDeque<Job>,
    /// Tasks that wait for a slot in the queue.
    full: WaitList<Waker>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

/// More than one for each processor would only take turns, and take them from the worker threads.
static COMPUTING: Pool = Pool::new(None);

/// A name server that is down costs each name some seconds. More threads would help only configurations with very many
/// such names, and those are looked up again later anyway.
const WAITING_THREADS_MAX: usize = 8;

static WAITING: Pool = Pool::new(Some(WAITING_THREADS_MAX));

/// Pieces of work that may wait for a thread. One for compression takes about a millisecond, so a full queue is a second
/// of work for a processor: more would only be late.
pub(crate) const QUEUE_MAX: usize = 1024;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

impl Pool {
    const fn new(threads_max: Option<usize>) -> Pool {
        let state = PoolState { jobs: VecDeque::new(), full: WaitList::new(), threads: 0, idle: 0 };
        Pool { state: Mutex::new(state), work: Condvar::new(), threads_max }
    }

    /// Puts the work into the queue, in its turn, once there is a place.
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
            // The system gives no more threads. Without a single one the work is done here: late is better
            // than never.
            let mut state = self.lock();
            state.threads -= 1;
            let job = if state.threads == 0 { state.jobs.pop_front() } else { None };
            drop(state);
            job.into_iter().for_each(run);
        }
    }

    /// The life of one thread.
    fn serve(&self) {
        while let Some(job) = self.next() {
            run(job);
        }
    }

    /// Waits for a job; `None` when none came for long, and the thread is counted no more.
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
            assert!(state.idle > 0 && state.idle <= state.threads, "who waits is one of the threads");
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                assert!(state.threads > 0, "a thread that ends was counted");
                state.threads -= 1;
                return None;
            }
        }
    }

    /// No job runs under the lock, so a poisoned lock means nothing.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that may wait for a place in the queue, and leaves the line when it is dropped.
struct QueueTicket {
    pool: &'static Pool,
    ticket: Option<Ticket>,
}

impl Drop for QueueTicket {
    /// The next one in the line may have been passed over for this one.
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

/// A panic ends the job and not the thread: the waiting task learns it from its mailbox, which loses its sender.
fn run(job: Job) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
}
