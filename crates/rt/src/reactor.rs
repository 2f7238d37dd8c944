//! State that all handles of a runtime share: the engine of the thread, its operations in flight, its timers and
//! buffers.
//!
//! [`OpFuture`] is the future of an operation; dropping it abandons the operation. Sockets and listeners hold an
//! operation without an `OpFuture`, so that a dropped `recv` or `accept` loses no data and no connection. The event
//! loop that calls the engine is in [`crate::runtime`].

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use io::engine::Caps;
use io::{Completion, Engine, Fd, Op, OpId, Pool};

use crate::buffer_queue::BufferQueue;
use crate::disk_watch::DiskWatch;
use crate::executor::{Executor, Waiter};
use crate::local::Event;
use crate::op_table::{Filed, OpHandle, OpTable, Outcome, Stage, UNLIMITED};
use crate::timers::Timers;

/// State that all handles of a runtime share.
pub(crate) struct Reactor {
    pub(crate) engine: RefCell<Box<dyn Engine>>,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) executor: Rc<Executor>,
    pub(crate) now: Cell<Instant>,
    /// Time of day in this event-loop turn, once it was read.
    wall: Cell<Option<SystemTime>>,
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
        self.wall.set(None);
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
            self.show_end(completion.id);
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

    /// Reports the end of an operation to the observer.
    fn show_end(&self, op: OpId) {
        if let Some(id) = self.ops.borrow().handle_of(op) {
            self.disks.end(id.index(), self.now.get());
        }
    }

    /// Submits an operation, or queues it when the engine is full. After `limit` untaken results the operation is cancelled.
    pub(crate) fn start(&self, op: Op, limit: u32) -> OpHandle {
        let mut ops = self.ops.borrow_mut();
        let id = ops.insert(limit);
        if self.closed.get() {
            ops.end(id);
            return id;
        }
        if self.disks.is_observed()
            && let Some((kind, device)) = op.on_disk()
        {
            self.disks.begin(id.index(), kind, device, self.now.get());
        }
        let refused = match ops.backlog.is_ahead_of(&op) {
            false => self.engine.borrow_mut().submit(op),
            true => Err(op),
        };
        match refused {
            Ok(op) => ops.bind(id, op),
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
                match self.engine.borrow_mut().submit(op) {
                    Ok(op) => ops.bind(id, op),
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
                self.disks.abandon(id.index());
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
        self.disks.abandon(id.index());
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
            let id = self.start(Op::Close { fd }, UNLIMITED);
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
