//! The runtime of one thread: the loop over tasks, engine and timers.
//!
//! ```text
//!   +-> poll the future of block_on, if woken
//!   |   poll ready tasks, up to a budget
//!   |   submit closes that gathered, lend buffers to those who wait for them
//!   |   one turn of the engine: not at all / until the next timer / for ever
//!   |   read the clock
//!   |   file completions, which wakes tasks
//!   |   submit what had found no room
//!   |   fire timers
//!   +-- take over what other threads woke, and those that yielded
//! ```
//! Completions are filed before timers fire, so that a result that came in time is not called late. No
//! borrow of a part of [`Inner`] is held while a task, a waker or a destructor of a task's data runs.
//! Main types: [`Runtime`] and, behind every handle, [`Inner`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Instant, SystemTime};

use io::engine::{Caps, DRAIN_DEFAULT};
use io::{Completion, Drained, Engine, Pool, Wait};

use crate::buffers;
use crate::file::seen::Seen;
use crate::local::Event;
use crate::ops::{Filed, Waits};
use crate::remote::{MAIN, Remote, RemoteHandle, TaskId};
use crate::task::{Header, Tasks, Waiter};
use crate::timer::Timers;

/// Polls of tasks before the engine is asked for news: a burst of wake-ups must not keep completions
/// waiting. Twice the connections of a busy turn.
pub const POLLS_PER_TURN: usize = 256;

/// The runtime of one thread, over its engine.
pub struct Runtime {
    inner: Rc<Inner>,
    /// Tasks and engine belong to the thread that made them.
    _not_send: PhantomData<*const ()>,
}

/// What all handles of a runtime share.
pub(crate) struct Inner {
    pub(crate) engine: RefCell<Box<dyn Engine>>,
    pub(crate) waits: RefCell<Waits>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) now: Cell<Instant>,
    /// Time of day of this turn, once somebody has asked for it.
    wall: Cell<Option<SystemTime>>,
    pub(crate) pool: Pool,
    pub(crate) caps: Rc<Caps>,
    pub(crate) remote: Arc<Remote>,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<TaskId>>,
    main_ready: Cell<bool>,
    /// The task that is polled now, and the address of its waker's header.
    pub(crate) running: Cell<Option<(TaskId, *const ())>>,
    /// Tasks that yielded: ready in the next turn, not in this one.
    pub(crate) yielded: RefCell<Vec<Waiter>>,
    /// What calls have seen of files in this turn.
    pub(crate) seen: RefCell<Seen>,
    /// Whether buffers are scarce in this turn, once asked for.
    pub(crate) scarce: Cell<Option<bool>>,
    /// Told when buffers for received bytes have run out, and how often that has been.
    pub(crate) shortage: Event,
    shortages: Cell<u64>,
    /// Those who wait for a buffer to read into.
    pub(crate) hungry: buffers::Queue,
    /// Descriptors that are closed with the next turn.
    pub(crate) to_close: RefCell<Vec<io::Fd>>,
    /// Memory for the completions of a turn and for the tasks that other threads woke.
    batch: RefCell<Vec<Completion>>,
    woken: RefCell<Vec<TaskId>>,
    panic_hook: Cell<fn(&str)>,
    /// Set at the end: operations end at once, descriptors close where they are dropped.
    pub(crate) closed: Cell<bool>,
    spawned: Cell<u64>,
    panics: Cell<u64>,
    polls: Cell<u64>,
    turns: Cell<u64>,
}

/// Numbers of a runtime.
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
    /// Timers set now, lazily moved ones included.
    pub timers: usize,
    /// Operations that have not ended, those without room in the engine and closes that wait for the next
    /// turn included.
    pub operations: usize,
    /// Operations that had to queue for room in the engine since start.
    pub backlogged: u64,
    /// Completions that nobody knew since start: a defect of an engine.
    pub stray: u64,
    /// Times that another thread had to end this one's wait since start.
    pub rung: u64,
    /// The engine's own numbers.
    pub engine: io::engine::Counters,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
}

impl Runtime {
    /// Makes `engine`'s runtime the runtime of this thread.
    ///
    /// # Panics
    /// When the thread has one already.
    pub fn new(engine: Box<dyn Engine>) -> Runtime {
        io::blocks::keep();
        let inner = Rc::new(Inner::new(engine));
        CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            assert!(current.is_none(), "a thread has one runtime");
            *current = Some(Rc::clone(&inner));
        });
        Runtime { inner, _not_send: PhantomData }
    }

    /// Runs until `future` is done. Tasks that are left stay, and go on with the next call.
    ///
    /// # Panics
    /// When the engine fails, which leaves a thread with nothing to do; and with a panic of `future`.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let inner = &*self.inner;
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Header { id: MAIN, remote: Arc::clone(&inner.remote) }));
        inner.main_ready.set(true);
        loop {
            if inner.main_ready.replace(false) {
                inner.running.set(Some((MAIN, waker.data())));
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                inner.running.set(None);
                if let Poll::Ready(output) = polled {
                    return output;
                }
            }
            inner.run_tasks();
            inner.turn();
        }
    }

    /// Wakes this runtime from other threads.
    pub fn handle(&self) -> RemoteHandle {
        RemoteHandle(Arc::clone(&self.inner.remote))
    }

    /// Sets what is told about a task that panicked; nothing is told unless this is called. The process's
    /// own panic hook, which prints, runs before it.
    pub fn set_panic_hook(&mut self, hook: fn(&str)) {
        self.inner.panic_hook.set(hook);
    }

    /// Drops all tasks, closes what they had open and waits for the engine's operations to end.
    pub fn shutdown(self, deadline: Instant) -> Drained {
        self.inner.end(deadline)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.inner.end(Instant::now() + DRAIN_DEFAULT);
        // The thread's storage may be gone when a runtime lives in another thread local.
        let _ = CURRENT.try_with(|current| current.borrow_mut().take());
        io::blocks::keep_none();
    }
}

/// The runtime of this thread.
///
/// # Panics
/// When there is none.
pub(crate) fn current() -> Rc<Inner> {
    with_current(Rc::clone)
}

/// Looks at the runtime of this thread.
pub(crate) fn with_current<T>(look: impl FnOnce(&Rc<Inner>) -> T) -> T {
    CURRENT.with(|current| look(current.borrow().as_ref().expect("this thread has a runtime")))
}

/// The task that is polled now and its runtime's remote side, if `waker` is that task's own.
pub(crate) fn running_task(waker: &Waker) -> Option<(Arc<Remote>, TaskId)> {
    let running = CURRENT.try_with(|current| {
        let current = current.borrow();
        let inner = current.as_ref()?;
        let (id, header) = inner.running.get()?;
        (header == waker.data()).then(|| (Arc::clone(&inner.remote), id))
    });
    running.ok().flatten()
}

/// Wakes a task if it belongs to this thread's runtime.
pub(crate) fn wake_here(remote: &Arc<Remote>, task: TaskId) -> bool {
    let woken = CURRENT.try_with(|current| match &*current.borrow() {
        Some(inner) if Arc::ptr_eq(&inner.remote, remote) => {
            inner.wake_task(task);
            true
        }
        _ => false,
    });
    woken.unwrap_or(false)
}

/// Completions of a turn that room is kept for: as many as a busy turn brings.
const BATCH_KEPT: usize = 256;

impl Inner {
    fn new(engine: Box<dyn Engine>) -> Inner {
        let now = Instant::now();
        Inner {
            pool: engine.pool().clone(),
            caps: Rc::new(engine.caps().clone()),
            remote: Arc::new(Remote::new(engine.waker())),
            engine: RefCell::new(engine),
            waits: RefCell::default(),
            timers: RefCell::new(Timers::new(now)),
            now: Cell::new(now),
            wall: Cell::new(None),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            main_ready: Cell::new(false),
            running: Cell::new(None),
            yielded: RefCell::default(),
            seen: RefCell::default(),
            scarce: Cell::new(None),
            shortage: Event::new(),
            shortages: Cell::new(0),
            hungry: buffers::Queue::default(),
            to_close: RefCell::default(),
            batch: RefCell::default(),
            woken: RefCell::default(),
            panic_hook: Cell::new(|_| ()),
            closed: Cell::new(false),
            spawned: Cell::new(0),
            panics: Cell::new(0),
            polls: Cell::new(0),
            turns: Cell::new(0),
        }
    }

    pub(crate) fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        if self.closed.get() {
            return;
        }
        self.spawned.set(self.spawned.get() + 1);
        let id = self.tasks.borrow_mut().insert(future, &self.remote);
        self.wake_task(id);
    }

    /// Makes a task ready; one that is so already, or has ended, stays as it is.
    pub(crate) fn wake_task(&self, id: TaskId) {
        if id == MAIN {
            self.main_ready.set(true);
        } else if self.tasks.borrow_mut().queue(id) {
            self.ready.borrow_mut().push_back(id);
        }
    }

    pub(crate) fn wake(&self, waiter: Waiter) {
        match waiter {
            Waiter::Nobody => {}
            Waiter::Task(id) => self.wake_task(id),
            Waiter::Other(waker) => waker.wake(),
        }
    }

    /// Time of day, read once in a turn.
    pub(crate) fn wall(&self) -> SystemTime {
        self.wall.get().unwrap_or_else(|| {
            let wall = SystemTime::now();
            self.wall.set(Some(wall));
            wall
        })
    }

    pub(crate) fn counters(&self) -> Counters {
        let waits = self.waits.borrow();
        Counters {
            tasks: self.tasks.borrow().live(),
            spawned: self.spawned.get(),
            panics: self.panics.get(),
            polls: self.polls.get(),
            turns: self.turns.get(),
            timers: self.timers.borrow().len(),
            operations: waits.live + self.to_close.borrow().len(),
            backlogged: waits.backlogged,
            stray: waits.stray,
            rung: self.remote.rung(),
            engine: self.engine.borrow().counters(),
        }
    }

    /// Gives back the memory of tables and lists that were longer.
    pub(crate) fn trim_tables(&self) {
        self.tasks.borrow_mut().trim();
        self.waits.borrow_mut().trim();
        self.timers.borrow_mut().trim();
        self.batch.borrow_mut().shrink_to(BATCH_KEPT);
        self.ready.borrow_mut().shrink_to(BATCH_KEPT);
    }

    /// Whether no task but the running one could run.
    pub(crate) fn is_alone(&self) -> bool {
        self.ready.borrow().is_empty()
    }

    /// Polls ready tasks, those included that become ready meanwhile, until there is none or the budget of
    /// a turn is used up.
    fn run_tasks(&self) {
        for _ in 0..POLLS_PER_TURN {
            let Some(id) = self.ready.borrow_mut().pop_front() else { return };
            self.run_task(id);
        }
    }

    /// Polls one task. A panic ends that task and is reported, nothing else.
    fn run_task(&self, id: TaskId) {
        let Some(mut task) = self.tasks.borrow_mut().take(id) else { return };
        self.polls.set(self.polls.get() + 1);
        self.running.set(Some((id, task.waker.data())));
        let mut context = Context::from_waker(&task.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut context)));
        self.running.set(None);
        if let Ok(Poll::Pending) = polled {
            self.tasks.borrow_mut().put_back(id, task);
            return;
        }
        // What the task owns is dropped before its slot is free: it may wake the task once more.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
        self.tasks.borrow_mut().end(id);
        if let Some(panic) = polled.err().or(dropped.err()) {
            self.panics.set(self.panics.get() + 1);
            (self.panic_hook.get())(panic_text(&*panic));
        }
    }

    /// One turn of the engine and what follows from it.
    fn turn(&self) {
        self.submit_closes();
        self.hungry.serve(&self.pool).into_iter().for_each(|waiter| self.wake(waiter));
        let wait = self.how_long();
        let mut batch = self.batch.take();
        let turned = self.engine.borrow_mut().turn(wait, &mut batch);
        if let Err(errno) = turned {
            panic!("the engine of this thread has failed: {errno}");
        }
        self.turns.set(self.turns.get() + 1);
        self.now.set(Instant::now());
        self.wall.set(None);
        self.scarce.set(None);
        let shortages = self.pool.heads_exhausted();
        if self.shortages.replace(shortages) != shortages {
            self.shortage.pulse();
        }
        self.seen.borrow_mut().forget();
        for completion in batch.drain(..) {
            self.file(completion);
        }
        self.batch.replace(batch);
        self.submit_backlog();
        self.fire_timers();
        self.take_woken();
        let mut yielded = self.yielded.take();
        yielded.drain(..).for_each(|waiter| self.wake(waiter));
        self.yielded.replace(yielded);
    }

    /// How long the engine may wait: somebody who could run now must not.
    fn how_long(&self) -> Wait {
        if self.main_ready.get() || !self.ready.borrow().is_empty() || !self.yielded.borrow().is_empty() {
            return Wait::No;
        }
        match self.timers.borrow().next() {
            Some(next) => Wait::Until(next),
            None => Wait::Forever,
        }
    }

    /// Files a completion and does what follows from it.
    fn file(&self, completion: Completion) {
        let Filed { wake, cancel, close } = self.waits.borrow_mut().file(completion);
        if let Some(id) = cancel {
            self.engine.borrow_mut().cancel(id);
        }
        if let Some(fd) = close {
            self.close(fd);
        }
        self.wake(wake);
    }

    /// Moves what other threads woke to the ready queue.
    fn take_woken(&self) {
        let mut woken = self.woken.take();
        self.remote.take(&mut woken);
        woken.drain(..).for_each(|id| self.wake_task(id));
        self.woken.replace(woken);
    }

    /// The end: drops all tasks, lets their descriptors close and drains the engine. Once only.
    fn end(&self, deadline: Instant) -> Drained {
        if self.closed.get() {
            return Drained::Clean;
        }
        self.seen.borrow_mut().forget();
        loop {
            let Some((id, task)) = self.tasks.borrow_mut().take_any() else { break };
            // A panic while a task is dropped must not keep the others from being dropped.
            if catch_unwind(AssertUnwindSafe(|| drop(task))).is_err() {
                self.panics.set(self.panics.get() + 1);
            }
            self.tasks.borrow_mut().end(id);
        }
        self.ready.borrow_mut().clear();
        self.submit_closes();
        self.close_everything(deadline);
        self.closed.set(true);
        self.drop_backlog();
        self.engine.borrow_mut().drain(deadline)
    }

    /// Turns the engine until the sockets that were cancelled are closed.
    fn close_everything(&self, deadline: Instant) {
        let mut batch = self.batch.take();
        while self.waits.borrow().closing() && Instant::now() < deadline {
            if self.engine.borrow_mut().turn(Wait::Until(deadline), &mut batch).is_err() {
                return;
            }
            batch.drain(..).for_each(|completion| self.file(completion));
            self.submit_closes();
            self.submit_backlog();
        }
    }
}

/// The text of a panic, as the standard library's hook would print it.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "a panic without text",
    }
}
