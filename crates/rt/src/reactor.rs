//! State that all handles of a runtime share: the engine of the thread, its operations in flight, its timers and
//! buffers.
//!
//! [`OpFuture`] is the future over an operation; dropping it abandons the operation. Sockets and listeners hold
//! an operation without it, so that a dropped `recv` or `accept` loses no data and no connection. The loop that turns the
//! engine is in [`crate::runtime`].

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use io::engine::Caps;
use io::{Completion, Engine, Fd, Op, Pool};

use crate::buffer_queue::BufferQueue;
use crate::executor::{Executor, Waiter};
use crate::local::Event;
use crate::op_table::Outcome;
use crate::op_table::{Filed, OpHandle, OpTable, Stage, UNLIMITED};
use crate::timers::Timers;

/// State that all handles of a runtime share.
pub(crate) struct Reactor {
    pub(crate) engine: RefCell<Box<dyn Engine>>,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) executor: Rc<Executor>,
    pub(crate) now: Cell<Instant>,
    /// Time of day of this turn, once it was needed.
    wall: Cell<Option<SystemTime>>,
    pub(crate) pool: Pool,
    pub(crate) caps: Rc<Caps>,
    /// Whether buffers are scarce in this turn, once computed.
    pub(crate) scarce: Cell<Option<bool>>,
    /// Signalled when buffers for received bytes have run out, and how often that has been.
    pub(crate) shortage: Event,
    shortages: Cell<u64>,
    /// Tasks that wait for a buffer to read into.
    pub(crate) buffer_waiters: BufferQueue,
    /// Descriptors that are closed with the next turn.
    pub(crate) to_close: RefCell<Vec<Fd>>,
    /// Set at the end: operations end at once, descriptors close where they are dropped.
    pub(crate) closed: Cell<bool>,
    /// See [`Reactor::turn_id`].
    turn_id: Cell<u64>,
    turns: Cell<u64>,
    /// Sees each turn of the loop.
    pub(crate) observer: OnceCell<Observer>,
    /// Memory for the completions of a turn.
    batch: RefCell<Vec<Completion>>,
}

/// A turn of the loop, as its observer sees it.
#[derive(Clone, Copy, Debug)]
pub struct LoopTurn {
    /// The time from the end of one wait for the engine to the beginning of the next: all other tasks waited for so long.
    pub busy: Duration,
    /// Numbers of the engine since its start.
    pub engine: io::engine::Counters,
}

/// Is called in each turn.
pub(crate) type Observer = Box<dyn Fn(LoopTurn)>;

/// Completions of a turn that room is kept for: as many as a busy turn brings.
const BATCH_KEPT: usize = 256;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Reactor>>> = const { RefCell::new(None) };
}

/// The reactor of this thread.
///
/// # Panics
/// Without a limit.
pub(crate) fn current() -> Rc<Reactor> {
    with_current(Rc::clone)
}

/// Looks at the reactor of this thread.
pub(crate) fn with_current<T>(look: impl FnOnce(&Rc<Reactor>) -> T) -> T {
    CURRENT.with(|current| look(current.borrow().as_ref().expect("this thread has a runtime")))
}

impl Reactor {
    /// Makes the reactor of this thread.
    ///
    /// # Panics
    /// When the thread has one already.
    pub(crate) fn new(engine: Box<dyn Engine>) -> Rc<Reactor> {
        let now = Instant::now();
        CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            assert!(current.is_none(), "a thread has one runtime");
            let reactor = Rc::new(Reactor {
                pool: engine.pool().clone(),
                caps: Rc::new(engine.caps().clone()),
                executor: Executor::new(engine.waker()),
                engine: RefCell::new(engine),
                ops: RefCell::default(),
                timers: RefCell::new(Timers::new(now)),
                now: Cell::new(now),
                wall: Cell::new(None),
                scarce: Cell::new(None),
                shortage: Event::new(),
                shortages: Cell::new(0),
                buffer_waiters: BufferQueue::default(),
                to_close: RefCell::default(),
                closed: Cell::new(false),
                turn_id: Cell::new(0),
                turns: Cell::new(0),
                observer: OnceCell::new(),
                batch: RefCell::default(),
            });
            Rc::clone(current.insert(reactor))
        })
    }

    /// The thread has no reactor any more. The thread's storage may be gone when a runtime lives in another thread local.
    pub(crate) fn leave_thread() {
        let _ = CURRENT.try_with(|current| current.borrow_mut().take());
        Executor::leave_thread();
    }

    /// Shows the turn that ends now to the observer, where there is one: that costs a look at the clock.
    pub(crate) fn show_turn(&self) {
        if let Some(observer) = self.observer.get() {
            let busy = Instant::now().saturating_duration_since(self.now.get());
            observer(LoopTurn { busy, engine: self.engine.borrow().counters() });
        }
    }

    /// A turn has ended, at this time.
    pub(crate) fn begin_turn(&self, now: Instant) {
        assert!(now >= self.now.get(), "time does not go back");
        self.turns.set(self.turns.get() + 1);
        self.now.set(now);
        self.wall.set(None);
        self.scarce.set(None);
        self.note_received();
        let shortages = self.pool.heads_exhausted();
        assert!(shortages >= self.shortages.get(), "what has happened is not taken back");
        if self.shortages.replace(shortages) != shortages {
            self.shortage.pulse();
        }
    }

    /// Number of the present turn. A result with the same number is newer than every request that tasks serve now, so
    /// it is as good as another call.
    pub(crate) fn turn_id(&self) -> u64 {
        self.turn_id.get()
    }

    /// Bytes were received: earlier results may be outdated.
    pub(crate) fn note_received(&self) {
        self.turn_id.set(self.turn_id.get() + 1);
    }

    /// Turns of the engine since start.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.get()
    }

    /// The memory for the completions of a turn, which [`Reactor::keep_batch`] takes back.
    pub(crate) fn take_batch(&self) -> Vec<Completion> {
        self.batch.take()
    }

    pub(crate) fn keep_batch(&self, batch: Vec<Completion>) {
        assert!(batch.is_empty(), "every completion was filed");
        self.batch.replace(batch);
    }

    /// Gives back the memory of tables and lists that were longer.
    pub(crate) fn trim_tables(&self) {
        self.executor.trim();
        self.ops.borrow_mut().trim();
        self.timers.borrow_mut().trim();
        self.batch.borrow_mut().shrink_to(BATCH_KEPT);
    }

    pub(crate) fn wake(&self, waiter: Waiter) {
        self.executor.wake(waiter);
    }

    /// Time of day, read once in a turn.
    pub(crate) fn wall(&self) -> SystemTime {
        self.wall.get().unwrap_or_else(|| {
            let wall = SystemTime::now();
            self.wall.set(Some(wall));
            wall
        })
    }

    /// Wakes the tasks whose deadline has passed.
    pub(crate) fn fire_timers(&self) {
        let mut woken = self.timers.borrow_mut().take_due(self.now.get());
        woken.drain(..).for_each(|waiter| self.wake(waiter));
        self.timers.borrow_mut().reuse(woken);
    }

    /// Files a completion and handles its consequences.
    pub(crate) fn file(&self, completion: Completion) {
        let Filed { wake, cancel, close } = self.ops.borrow_mut().file(completion);
        if let Some(id) = cancel {
            self.engine.borrow_mut().cancel(id);
        }
        if let Some(fd) = close {
            self.close(fd);
        }
        self.wake(wake);
    }

    /// Submits an operation, or queues it when the engine is full. After `limit` untaken results it is cancelled.
    pub(crate) fn start(&self, op: Op, limit: u32) -> OpHandle {
        let mut ops = self.ops.borrow_mut();
        let id = ops.insert(limit);
        if self.closed.get() {
            ops.end(id);
            return id;
        }
        let refused = match ops.backlog.is_empty() {
            true => self.engine.borrow_mut().submit(op),
            false => Err(op),
        };
        match refused {
            Ok(op) => ops.bind(id, op),
            Err(op) => {
                ops.backlogged += 1;
                ops.backlog.push_back((id, op));
            }
        }
        id
    }

    /// Submits the operations that queued for room in the engine, in order, as far as there is room.
    pub(crate) fn submit_backlog(&self) {
        let mut ops = self.ops.borrow_mut();
        while let Some((id, op)) = ops.backlog.pop_front() {
            if ops.get(id).is_none() {
                // Its future was dropped while it queued.
                continue;
            }
            match self.engine.borrow_mut().submit(op) {
                Ok(op) => ops.bind(id, op),
                Err(op) => {
                    ops.backlog.push_front((id, op));
                    return;
                }
            }
        }
    }

    /// Drops the operations that still queue, at the end of the runtime; descriptors close with them.
    pub(crate) fn drop_backlog(&self) {
        let dropped = std::mem::take(&mut self.ops.borrow_mut().backlog);
        drop(dropped);
    }

    /// The next result of a wait; after one without `more` the wait is gone.
    pub(crate) fn poll_wait(&self, id: OpHandle, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut ops = self.ops.borrow_mut();
        if let Some(outcome) = ops.take(id) {
            return Poll::Ready(outcome);
        }
        let wait = ops.get(id).expect("a wait is not asked again after its terminal result");
        wait.waiter.register(self.executor.running.get(), context);
        Poll::Pending
    }

    /// The next result of a wait if it is there.
    pub(crate) fn try_wait(&self, id: OpHandle) -> Option<Outcome> {
        self.ops.borrow_mut().take(id)
    }

    /// Whether a result of a wait is there.
    pub(crate) fn has_result(&self, id: OpHandle) -> bool {
        self.ops.borrow_mut().get(id).is_some_and(|wait| !wait.results.is_empty())
    }

    /// Cancels an operation whose results a task still takes.
    pub(crate) fn cancel(&self, id: OpHandle) {
        let mut ops = self.ops.borrow_mut();
        let Some(wait) = ops.get(id).filter(|wait| !wait.cancelled) else { return };
        wait.cancelled = true;
        match wait.stage {
            Stage::Flying(op) => self.engine.borrow_mut().cancel(op),
            Stage::Queued => {
                let waiter = std::mem::take(&mut wait.waiter);
                ops.end(id);
                ops.backlog.retain(|(queued, _)| *queued != id);
                drop(ops);
                self.wake(waiter);
            }
            Stage::Ended | Stage::Free => {}
        }
    }

    /// Gives an operation up: its further results are dropped.
    pub(crate) fn abandon(&self, id: OpHandle) {
        let mut ops = self.ops.borrow_mut();
        let Some(wait) = ops.get(id) else { return };
        if let Stage::Flying(op) = wait.stage {
            self.engine.borrow_mut().abandon(op);
        }
        ops.release(id);
    }

    /// Lets an operation run to its end and drops its results.
    pub(crate) fn detach(&self, id: OpHandle) {
        let mut ops = self.ops.borrow_mut();
        let Some(wait) = ops.get(id) else { return };
        match wait.stage {
            Stage::Ended => ops.release(id),
            _ => ops.leave(id, None),
        }
    }

    /// Cancels an operation and closes its descriptor when it has ended. A descriptor that is closed under a pending
    /// receive neither completes it nor notifies the peer (liburing issue 932), hence the order.
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

    /// Closes a descriptor through the engine with its next turn, without waiting for it. Until then other parts of the
    /// dropped value may still hold it.
    pub(crate) fn close(&self, fd: Fd) {
        if !self.closed.get() {
            self.to_close.borrow_mut().push(fd);
        }
    }

    /// Takes back a descriptor that was to be closed with the next turn.
    pub(crate) fn keep(&self, fd: &Fd) {
        self.to_close.borrow_mut().retain(|other| other.as_raw_fd() != fd.as_raw_fd());
    }

    /// Submits the closes that have gathered. When an operation still holds a descriptor, it is closed with
    /// that operation's end.
    pub(crate) fn submit_closes(&self) {
        let mut closes = self.to_close.take();
        for fd in closes.drain(..).filter_map(|fd| fd.into_owned().ok()) {
            let id = self.start(Op::Close { fd }, UNLIMITED);
            self.detach(id);
        }
        let others = self.to_close.replace(closes);
        assert!(others.is_empty(), "no close comes up while closes are submitted");
    }
}

/// An operation that is abandoned when this is dropped.
pub(crate) struct OpFuture {
    reactor: Rc<Reactor>,
    wait: Option<OpHandle>,
}

impl OpFuture {
    pub(crate) fn new(reactor: &Rc<Reactor>, op: Op) -> OpFuture {
        OpFuture { reactor: Rc::clone(reactor), wait: Some(reactor.start(op, UNLIMITED)) }
    }

    /// The next result; not to be called after one without `more`.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let wait = self.wait.expect("nothing is asked for after the terminal result");
        let outcome = ready!(self.reactor.poll_wait(wait, context));
        if !outcome.more {
            self.wait = None;
        }
        Poll::Ready(outcome)
    }

    /// The terminal result, whatever came before it.
    pub(crate) fn last(self) -> LastResult {
        LastResult(self)
    }
}

/// See [`OpFuture::last`]. Polled as it is: nearly every operation is awaited by this, and each state machine around
/// another one is looked through at every poll.
pub(crate) struct LastResult(OpFuture);

impl Future for LastResult {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let running = &mut self.0;
        loop {
            let outcome = ready!(running.poll_next(context));
            if !outcome.more {
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
