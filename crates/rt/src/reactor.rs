//! The event loop of a thread, and the state that all its handles share: the engine, its operations in flight, timers
//! and buffers.
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
//! of [`Reactor`] is held while a task, a waker or a destructor of a task's data runs.
//!
//! [`Runtime`] runs the loop. [`Reactor`] is the shared state. [`OpFuture`] is the future of an operation; dropping it
//! abandons the operation. Sockets and listeners hold an operation without an `OpFuture`, so that a dropped `recv` or
//! `accept` loses no data and no connection.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use io::engine::{Caps, DRAIN_DEFAULT};
use io::{Completion, Disk, DiskOp, Drained, Engine, Fd, NetOp, Op, Pool, Wait};

use crate::buffer_queue::BufferQueue;
use crate::disk_watch::DiskWatch;
use crate::executor::{Executor, Waiter};
use crate::local::Event;
use crate::op_table::{Filed, OpHandle, OpTable, Outcome, Stage, UNLIMITED};
use crate::pipes::Pipes;
use crate::remote::RemoteHandle;
use crate::timers::Timers;

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
            operations: ops.live() + reactor.to_close.borrow().len(),
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

/// State that all handles of a runtime share.
pub(crate) struct Reactor {
    pub(crate) engine: RefCell<Box<dyn Engine>>,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) executor: Rc<Executor>,
    pub(crate) now: Cell<Instant>,
    /// Time of day in this event-loop turn, once it was read.
    wall: Cell<Option<SystemTime>>,
    /// The time of day of every turn, if it was fixed.
    fixed_wall: Cell<Option<SystemTime>>,
    pub(crate) pool: Pool,
    pub(crate) caps: Rc<Caps>,
    /// Whether buffers are scarce in this event-loop turn, once computed.
    pub(crate) scarce: Cell<Option<bool>>,
    /// Signalled when the pool has refused a buffer for received bytes or a header section. `shortages` is the number
    /// of such refusals at the start of this turn.
    pub(crate) shortage: Event,
    shortages: Cell<u64>,
    /// Tasks that wait for a read buffer.
    pub(crate) buffer_waiters: BufferQueue,
    /// Descriptors to be closed in the next turn.
    pub(crate) to_close: RefCell<Vec<Fd>>,
    /// Set at the end of the runtime: operations end immediately, and descriptors are closed where they are dropped.
    pub(crate) closed: Cell<bool>,
    /// See [`Reactor::turn_id`].
    turn_id: Cell<u64>,
    pub(crate) turns: Cell<u64>,
    /// Callback for each turn of the event loop.
    pub(crate) observer: OnceCell<Observer>,
    /// Reports file operations to an observer.
    pub(crate) disks: DiskWatch,
    /// The pipes for splice(2).
    pub(crate) pipes: Pipes,
    /// Memory for the completions of a turn.
    pub(crate) batch: RefCell<Vec<Completion>>,
}

/// Figures of an event-loop turn, for its observer.
#[derive(Clone, Copy, Debug)]
pub struct LoopTurn {
    /// Time from the end of one wait for the engine to the start of the next: the longest delay of a task that became
    /// ready in the meantime.
    pub busy: Duration,
    /// Counters of the engine since its start.
    pub engine: io::engine::Counters,
}

/// Callback that is called in each turn.
pub(crate) type Observer = Box<dyn Fn(LoopTurn)>;

/// Completions for which `trim_tables` keeps memory: the number of a busy turn.
const BATCH_KEPT: usize = 256;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Reactor>>> = const { RefCell::new(None) };
    /// Time of the current turn, as in the reactor. A variable without a destructor is read without checks.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the time of this thread's turn.
///
/// # Panics
/// When the thread has no runtime.
pub(crate) fn now() -> Instant {
    NOW.get().expect("this thread has a runtime")
}

/// Returns the reactor of this thread.
///
/// # Panics
/// When the thread has no runtime.
pub(crate) fn current() -> Rc<Reactor> {
    with_current(Rc::clone)
}

/// Calls a function with the reactor of this thread.
pub(crate) fn with_current<T>(look: impl FnOnce(&Rc<Reactor>) -> T) -> T {
    CURRENT.with(|current| look(current.borrow().as_ref().expect("this thread has a runtime")))
}

/// As [`with_current`], unless the thread has no runtime, or a runtime that ends.
pub(crate) fn with_current_if_any(look: impl FnOnce(&Rc<Reactor>)) {
    let _ = CURRENT.try_with(|current| {
        if let Ok(current) = current.try_borrow() {
            current.as_ref().map(look);
        }
    });
}

impl Reactor {
    /// Creates the reactor of this thread.
    ///
    /// # Panics
    /// When the thread has a reactor already.
    pub(crate) fn new(engine: Box<dyn Engine>) -> Rc<Reactor> {
        let now = Instant::now();
        CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            assert!(current.is_none(), "a thread has one runtime");
            NOW.set(Some(now));
            let reactor = Rc::new(Reactor {
                pool: engine.pool().clone(),
                caps: Rc::new(engine.caps().clone()),
                executor: Executor::new(engine.waker()),
                engine: RefCell::new(engine),
                ops: RefCell::default(),
                timers: RefCell::new(Timers::new(now)),
                now: Cell::new(now),
                wall: Cell::new(None),
                fixed_wall: Cell::new(None),
                scarce: Cell::new(None),
                shortage: Event::new(),
                shortages: Cell::new(0),
                buffer_waiters: BufferQueue::default(),
                to_close: RefCell::default(),
                closed: Cell::new(false),
                turn_id: Cell::new(0),
                turns: Cell::new(0),
                observer: OnceCell::new(),
                disks: DiskWatch::default(),
                pipes: Pipes::default(),
                batch: RefCell::default(),
            });
            Rc::clone(current.insert(reactor))
        })
    }

    /// Removes the reactor from the thread. If a runtime is stored in another thread local, this thread local may
    /// already have been destroyed.
    pub(crate) fn leave_thread() {
        NOW.set(None);
        let _ = CURRENT.try_with(|current| current.borrow_mut().take());
        Executor::leave_thread();
    }

    /// Passes the turn that ends now to the observer, if one is set. This costs reading the clock.
    pub(crate) fn show_turn(&self) {
        if let Some(observer) = self.observer.get() {
            let busy = Instant::now().saturating_duration_since(self.now.get());
            observer(LoopTurn { busy, engine: self.engine.borrow().counters() });
        }
    }

    /// Begins a new turn at this time.
    pub(crate) fn begin_turn(&self, now: Instant) {
        assert!(now >= self.now.get(), "time does not go back");
        self.turns.set(self.turns.get() + 1);
        self.now.set(now);
        NOW.set(Some(now));
        self.wall.set(self.fixed_wall.get());
        self.scarce.set(None);
        self.note_received();
        let shortages = self.pool.heads_exhausted();
        assert!(shortages >= self.shortages.get(), "the number of refusals never decreases");
        if self.shortages.replace(shortages) != shortages {
            self.shortage.pulse();
        }
    }

    /// Returns a number that changes whenever bytes may have been received: at the start of each turn, and at a receive
    /// by a direct call. A result that was obtained under the current number is newer than every request that tasks
    /// serve now, so repeating the call is unnecessary.
    pub(crate) fn turn_id(&self) -> u64 {
        self.turn_id.get()
    }

    /// Records that bytes were received: earlier results may be outdated.
    pub(crate) fn note_received(&self) {
        self.turn_id.set(self.turn_id.get() + 1);
    }

    /// Frees unused memory of tables and lists.
    pub(crate) fn trim_tables(&self) {
        self.executor.trim();
        self.ops.borrow_mut().trim();
        self.disks.trim();
        self.pipes.trim();
        self.timers.borrow_mut().trim();
        self.batch.borrow_mut().shrink_to(BATCH_KEPT);
    }

    pub(crate) fn wake(&self, waiter: Waiter) {
        self.executor.wake(waiter);
    }

    /// Returns the time of day, which is read once per turn.
    pub(crate) fn wall(&self) -> SystemTime {
        self.wall.get().unwrap_or_else(|| {
            let wall = SystemTime::now();
            self.wall.set(Some(wall));
            wall
        })
    }

    /// Fixes the time of day.
    pub(crate) fn fix_wall(&self, at: SystemTime) {
        self.wall.set(Some(at));
        self.fixed_wall.set(Some(at));
    }

    /// Wakes the tasks whose deadline has passed.
    pub(crate) fn fire_timers(&self) {
        let due = self.timers.borrow_mut().take_due(self.now.get());
        let Some(mut woken) = due else { return };
        woken.drain(..).for_each(|waiter| self.wake(waiter));
        self.timers.borrow_mut().reuse(woken);
    }

    /// Records a completion and handles its consequences.
    pub(crate) fn file(&self, completion: Completion) {
        if self.disks.is_any_in_flight() && !completion.more {
            self.disks.end(OpHandle::unpack(completion.token).slot, self.now.get());
        }
        let Filed { wake, cancel, close } = self.ops.borrow_mut().file(completion);
        if let Some(id) = cancel {
            self.engine.borrow_mut().cancel(id);
        }
        if let Some(fd) = close {
            self.close(fd);
        }
        self.wake(wake);
    }

    /// Submits an operation, or queues it when the engine is full. After `limit` untaken results the operation is cancelled.
    pub(crate) fn start(&self, op: Op, limit: u16) -> OpHandle {
        let mut ops = self.ops.borrow_mut();
        let id = ops.insert(limit);
        if self.closed.get() {
            ops.end(id);
            return id;
        }
        if self.disks.is_observed()
            && let Some((kind, device)) = op.on_disk()
        {
            self.disks.begin(id.slot, kind, device, self.now.get());
        }
        let refused = match ops.backlog.is_ahead_of(&op) {
            false => self.engine.borrow_mut().submit(op, id.pack()),
            true => Err(op),
        };
        match refused {
            Ok(op) => ops.set_in_flight(id, op),
            Err(op) => ops.backlog.push(id, op),
        }
        id
    }

    /// Submits the queued operations of each device in order, as long as the engine has free slots for it.
    pub(crate) fn submit_backlog(&self) {
        let mut ops = self.ops.borrow_mut();
        if ops.backlog.queues.is_empty() {
            return;
        }
        for (device, mut queue) in std::mem::take(&mut ops.backlog.queues) {
            while let Some((id, op)) = queue.pop_front() {
                match self.engine.borrow_mut().submit(op, id.pack()) {
                    Ok(op) => ops.set_in_flight(id, op),
                    Err(op) => {
                        queue.push_front((id, op));
                        ops.backlog.queues.push((device, queue));
                        break;
                    }
                }
            }
        }
    }

    /// Drops the operations that are still queued, at the end of the runtime, and closes their descriptors.
    pub(crate) fn drop_backlog(&self) {
        let dropped = std::mem::take(&mut self.ops.borrow_mut().backlog.queues);
        drop(dropped);
    }

    /// Returns the next result of a wait. A result without `more` frees the wait.
    pub(crate) fn poll_wait(&self, id: OpHandle, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut ops = self.ops.borrow_mut();
        if let Some(outcome) = ops.take(id) {
            return Poll::Ready(outcome);
        }
        let wait = ops.get(id).expect("a wait is not polled after its terminal result");
        wait.waiter.register(self.executor.running.get(), context);
        Poll::Pending
    }

    /// Returns the next result of a wait if one has arrived.
    pub(crate) fn try_wait(&self, id: OpHandle) -> Option<Outcome> {
        self.ops.borrow_mut().take(id)
    }

    /// Whether a wait has a result that was not taken yet.
    pub(crate) fn has_result(&self, id: OpHandle) -> bool {
        self.ops.borrow_mut().get(id).is_some_and(|wait| !wait.results.is_empty())
    }

    /// Cancels an operation whose results a task still takes.
    pub(crate) fn cancel(&self, id: OpHandle) {
        let mut ops = self.ops.borrow_mut();
        let Some(wait) = ops.get(id).filter(|wait| !wait.cancelled) else { return };
        wait.cancelled = true;
        match wait.stage {
            Stage::InFlight(op) => self.engine.borrow_mut().cancel(op),
            Stage::Queued => {
                let waiter = std::mem::take(&mut wait.waiter);
                ops.end(id);
                self.disks.abandon(id.slot);
                ops.backlog.remove(id);
                drop(ops);
                self.wake(waiter);
            }
            Stage::Ended | Stage::Free => {}
        }
    }

    /// Abandons an operation: its further results are dropped.
    pub(crate) fn abandon(&self, id: OpHandle) {
        let mut ops = self.ops.borrow_mut();
        let Some(wait) = ops.get(id) else { return };
        match wait.stage {
            Stage::InFlight(op) => self.engine.borrow_mut().abandon(op),
            Stage::Queued => ops.backlog.remove(id),
            Stage::Ended | Stage::Free => {}
        }
        self.disks.abandon(id.slot);
        ops.release(id);
    }

    /// Lets an operation run to its end, and drops its results.
    pub(crate) fn detach(&self, id: OpHandle) {
        let mut ops = self.ops.borrow_mut();
        let Some(wait) = ops.get(id) else { return };
        match wait.stage {
            Stage::Ended => ops.release(id),
            _ => ops.leave(id, None),
        }
    }

    /// Cancels an operation, and closes its descriptor after the operation has ended. Closing a descriptor during a
    /// pending receive neither completes the receive nor notifies the peer (liburing issue 932), hence the order.
    pub(crate) fn close_after(&self, id: OpHandle, fd: Fd) {
        self.cancel(id);
        let mut ops = self.ops.borrow_mut();
        match ops.get(id) {
            Some(wait) if wait.stage != Stage::Ended => ops.leave(id, Some(fd)),
            Some(_) => {
                ops.release(id);
                drop(ops);
                self.close(fd);
            }
            None => {
                drop(ops);
                self.close(fd);
            }
        }
    }

    /// Closes a descriptor through the engine in its next turn, without waiting for the close. Until then, other fields
    /// of the dropped value may still hold it.
    pub(crate) fn close(&self, fd: Fd) {
        if !self.closed.get() {
            self.to_close.borrow_mut().push(fd);
        }
    }

    /// Removes a descriptor from the list of those to close in the next turn.
    pub(crate) fn keep(&self, fd: &Fd) {
        self.to_close.borrow_mut().retain(|other| other.as_raw_fd() != fd.as_raw_fd());
    }

    /// Submits the pending closes. A descriptor that an operation still holds is closed when that operation ends.
    pub(crate) fn submit_closes(&self) {
        if self.to_close.borrow().is_empty() {
            return;
        }
        let mut closes = self.to_close.take();
        for fd in closes.drain(..).filter_map(|fd| fd.into_owned().ok()) {
            let id = self.start(Op::Net(NetOp::Close { fd }), UNLIMITED);
            self.detach(id);
        }
        let others = self.to_close.replace(closes);
        assert!(others.is_empty(), "no close is added while closes are submitted");
    }
}

/// The future of the terminal result of an operation, which is abandoned when the future is dropped.
pub(crate) struct OpFuture {
    reactor: Rc<Reactor>,
    wait: Option<OpHandle>,
}

impl OpFuture {
    pub(crate) fn new(reactor: &Rc<Reactor>, op: Op) -> OpFuture {
        OpFuture { reactor: Rc::clone(reactor), wait: Some(reactor.start(op, UNLIMITED)) }
    }

    pub(crate) fn on_disk(reactor: &Rc<Reactor>, at: Disk, op: DiskOp) -> OpFuture {
        OpFuture::new(reactor, Op::Disk { at, op })
    }
}

/// A hand-written future: nearly every operation is awaited through it, and each nested `async` state machine costs
/// time at every poll.
impl Future for OpFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let wait = self.wait.expect("an operation is not polled after its terminal result");
        loop {
            let outcome = ready!(self.reactor.poll_wait(wait, context));
            if !outcome.more {
                self.wait = None;
                return Poll::Ready(outcome);
            }
        }
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.reactor.abandon(wait);
        }
    }
}
