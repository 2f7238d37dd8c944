//! The runtime of one thread: the event loop over tasks, engine and timers.
//!
//! ```text
//!   +-> poll the future of block_on, if woken
//!   |   poll ready tasks, up to a budget
//!   |   submit pending closes, and operations that were queued because the engine was full
//!   |   grant buffers to waiting tasks
//!   |   one turn of the engine: without waiting / until the next timer / without limit
//!   |   read the clock
//!   |   record completions, which wakes tasks
//!   |   fire timers
//!   +-- make tasks ready that other threads woke or that yielded
//! ```
//! Completions are recorded before timers fire, so that a result in time is not treated as late. No borrow of a field
//! of [`Reactor`] is held while a task, a waker or a destructor of a task's data runs. Main type: [`Runtime`].

use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use io::engine::DRAIN_DEFAULT;
use io::{Drained, Engine, Wait};

use crate::reactor::Reactor;
use crate::remote::RemoteHandle;

/// Maximum number of task polls before the next turn of the engine: a burst of wake-ups must not delay completions.
/// Twice the number of connections of a busy turn.
pub const POLLS_PER_TURN: usize = 256;

/// Maximum wait of the engine while tasks wait for buffers. Other threads release buffers with shared content, but do not
/// wake this thread. The wait is short compared to timeouts of clients, and 50 turns per second cost little CPU time.
pub(crate) const BUFFER_WAIT_MAX: Duration = Duration::from_millis(20);

/// The runtime of one thread, over its engine.
pub struct Runtime {
    reactor: Rc<Reactor>,
    /// Tasks and engine belong to the thread that created them.
    _not_send: PhantomData<*const ()>,
}

/// Counters of a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tasks that have not ended.
    pub tasks: usize,
    /// Tasks started since start.
    pub spawned: u64,
    /// Tasks that ended in a panic since start.
    pub panics: u64,
    /// Polls of tasks since start.
    pub polls: u64,
    /// Turns of the engine since start.
    pub turns: u64,
    /// Timers currently set, including those moved lazily.
    pub timers: usize,
    /// Operations that have not ended, including those queued because the engine was full, and closes that wait for the
    /// next turn.
    pub operations: usize,
    /// Operations that were queued because the engine was full, since start.
    pub backlogged: u64,
    /// Completions that match no operation, since start: a defect of an engine.
    pub unmatched: u64,
    /// Number of times that another thread had to wake this one, since start.
    pub wakeups: u64,
    /// The engine's counters.
    pub engine: io::engine::Counters,
}

impl Counters {
    /// Returns the counters of this reactor.
    pub(crate) fn of(reactor: &Reactor) -> Counters {
        let (executor, ops) = (&reactor.executor, reactor.ops.borrow());
        Counters {
            tasks: executor.live(),
            spawned: executor.spawned.get(),
            panics: executor.panics.get(),
            polls: executor.polls.get(),
            turns: reactor.turns.get(),
            timers: reactor.timers.borrow().len(),
            operations: ops.live + reactor.to_close.borrow().len(),
            backlogged: ops.backlog.added,
            unmatched: ops.unmatched,
            wakeups: executor.remote.wakeups(),
            engine: reactor.engine.borrow().counters(),
        }
    }
}

impl Runtime {
    /// Creates the runtime of this thread over `engine`.
    ///
    /// # Panics
    /// When the thread has a runtime already.
    pub fn new(engine: Box<dyn Engine>) -> Runtime {
        thread_alloc::enable();
        Runtime { reactor: Reactor::new(engine), _not_send: PhantomData }
    }

    /// Runs until `future` is complete. Unfinished tasks continue in the next call.
    ///
    /// # Panics
    /// When the engine fails, because the thread cannot continue then; also propagates a panic of `future`.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let reactor = Rc::clone(&self.reactor);
        let mut future = pin!(future);
        let waker = reactor.executor.begin_main();
        loop {
            if let Poll::Ready(output) = reactor.executor.poll_main(future.as_mut(), &waker) {
                return output;
            }
            reactor.executor.run_tasks(POLLS_PER_TURN);
            turn(&reactor);
        }
    }

    /// Returns a handle that wakes this runtime from other threads.
    pub fn handle(&self) -> RemoteHandle {
        RemoteHandle(Arc::clone(&self.reactor.executor.remote))
    }

    /// Sets the function that reports a task that panicked; without it, panics are not reported here. The process's
    /// panic hook, which prints, runs before it.
    pub fn set_panic_hook(&mut self, hook: fn(&str)) {
        self.reactor.executor.panic_hook.set(hook);
    }

    /// Drops all tasks, closes their descriptors and waits for the engine's operations to end.
    pub fn shutdown(self, deadline: Instant) -> Drained {
        end(&self.reactor, deadline)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        end(&self.reactor, Instant::now() + DRAIN_DEFAULT);
        Reactor::leave_thread();
        thread_alloc::disable();
    }
}

/// Runs one turn of the engine, and handles its completions.
fn turn(reactor: &Reactor) {
    reactor.submit_closes();
    // Before the wait: operations that tasks abandon release their slots without a completion.
    reactor.submit_backlog();
    reactor.buffer_waiters.serve(&reactor.pool, |waiter| reactor.wake(waiter));
    let wait = wait_limit(reactor);
    let mut batch = reactor.batch.take();
    assert!(batch.is_empty(), "the completions of the last turn were recorded");
    reactor.show_turn();
    let turned = reactor.engine.borrow_mut().turn(wait, &mut batch);
    if let Err(errno) = turned {
        panic!("the engine of this thread has failed: {errno}");
    }
    reactor.begin_turn(Instant::now());
    for completion in batch.drain(..) {
        reactor.file(completion);
    }
    reactor.batch.replace(batch);
    reactor.fire_timers();
    reactor.executor.take_woken();
}

/// Returns the maximum wait of the engine: no wait while a task is ready, at most [`BUFFER_WAIT_MAX`] while tasks wait for
/// buffers.
pub(crate) fn wait_limit(reactor: &Reactor) -> Wait {
    if !reactor.executor.is_idle() {
        return Wait::No;
    }
    let timer = reactor.timers.borrow().next();
    let retry = (!reactor.buffer_waiters.is_empty()).then(|| reactor.now.get() + BUFFER_WAIT_MAX);
    match timer.into_iter().chain(retry).min() {
        Some(next) => Wait::Until(next),
        None => Wait::Forever,
    }
}

/// Ends the runtime: drops all tasks, closes their descriptors and drains the engine. Later calls have no effect.
fn end(reactor: &Reactor, deadline: Instant) -> Drained {
    if reactor.closed.get() {
        return Drained::Clean;
    }
    reactor.executor.drop_tasks();
    reactor.submit_closes();
    close_everything(reactor, deadline);
    reactor.closed.set(true);
    reactor.drop_backlog();
    reactor.engine.borrow_mut().drain(deadline)
}

/// Runs turns of the engine until the sockets whose operations were cancelled are closed.
fn close_everything(reactor: &Reactor, deadline: Instant) {
    let mut batch = reactor.batch.take();
    while reactor.ops.borrow().closing() && Instant::now() < deadline {
        reactor.submit_backlog();
        if reactor.engine.borrow_mut().turn(Wait::Until(deadline), &mut batch).is_err() {
            return;
        }
        batch.drain(..).for_each(|completion| reactor.file(completion));
        reactor.submit_closes();
    }
}
