//! The tasks of one thread: their table, their wakers, the queue of ready tasks, and the poll of each task.
//!
//! A task is a boxed future in a slot; it is taken out of the slot while it is polled. Its waker is an `Arc` header
//! without the future, so a waker on another thread never owns, runs or drops state of this thread. Inside the runtime,
//! a waiting task is stored as its identifier ([`Waiter::Task`]), which needs no atomic operation. This module does not
//! depend on the engine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use io::slab::Slab;

use crate::panics;
use crate::remote::{MAIN, Remote, TaskId};
use crate::wait_list::WaitList;

/// The task that is being polled, and the address of its waker's header.
pub(crate) type Running = Option<(TaskId, *const ())>;

thread_local! {
    static EXECUTOR: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

/// The executor of one thread.
pub(crate) struct Executor {
    pub(crate) remote: Arc<Remote>,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<TaskId>>,
    main_ready: Cell<bool>,
    pub(crate) running: Cell<Running>,
    /// Tasks that yielded: they become ready in the next turn.
    yielded: RefCell<WaitList<Waiter>>,
    /// Memory for the tasks that other threads woke.
    woken: RefCell<Vec<TaskId>>,
    pub(crate) panic_hook: Cell<fn(&str)>,
    pub(crate) spawned: Cell<u64>,
    pub(crate) panics: Cell<u64>,
    pub(crate) polls: Cell<u64>,
}

/// Capacity for which `trim` keeps memory in the queue: the number of tasks that a busy turn wakes.
const READY_KEPT: usize = 256;

/// Returns the task that is being polled and its runtime's remote state, if `waker` is that task's own waker.
pub(crate) fn running_task(waker: &Waker) -> Option<(Arc<Remote>, TaskId)> {
    let running = EXECUTOR.try_with(|executor| {
        let executor = executor.borrow();
        let executor = executor.as_ref()?;
        let (id, header) = executor.running.get()?;
        (header == waker.data()).then(|| (Arc::clone(&executor.remote), id))
    });
    running.ok().flatten()
}

/// Wakes a task if it belongs to this thread's runtime.
pub(crate) fn wake_here(remote: &Arc<Remote>, task: TaskId) -> bool {
    let woken = EXECUTOR.try_with(|executor| match &*executor.borrow() {
        Some(executor) if Arc::ptr_eq(&executor.remote, remote) => {
            executor.wake_task(task);
            true
        }
        _ => false,
    });
    woken.unwrap_or(false)
}

impl Executor {
    /// Creates the executor of this thread, which is woken by `bell`.
    pub(crate) fn new(bell: io::engine::Waker) -> Rc<Executor> {
        let executor = Rc::new(Executor {
            remote: Arc::new(Remote::new(bell)),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            main_ready: Cell::new(false),
            running: Cell::new(None),
            yielded: RefCell::default(),
            woken: RefCell::default(),
            panic_hook: Cell::new(|_| ()),
            spawned: Cell::new(0),
            panics: Cell::new(0),
            polls: Cell::new(0),
        });
        EXECUTOR.set(Some(Rc::clone(&executor)));
        executor
    }

    /// Removes the executor from the thread. Has no effect if the thread local was already destroyed.
    pub(crate) fn leave_thread() {
        let _ = EXECUTOR.try_with(|executor| executor.borrow_mut().take());
    }

    /// Returns the waker of the future that `block_on` runs, and marks that future as ready.
    pub(crate) fn begin_main(&self) -> Waker {
        self.main_ready.set(true);
        Waker::from(Arc::new(Header { id: MAIN, remote: Arc::clone(&self.remote) }))
    }

    /// Polls the future of `block_on`, if it was woken.
    pub(crate) fn poll_main<F: Future>(&self, future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
        if !self.main_ready.replace(false) {
            return Poll::Pending;
        }
        self.running.set(Some((MAIN, waker.data())));
        let polled = future.poll(&mut Context::from_waker(waker));
        self.running.set(None);
        polled
    }

    pub(crate) fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        self.spawned.set(self.spawned.get() + 1);
        let id = self.tasks.borrow_mut().insert(future, &self.remote);
        self.wake_task(id);
    }

    /// Makes a task ready; has no effect if it is ready already, or has ended.
    pub(crate) fn wake_task(&self, id: TaskId) {
        if id == MAIN {
            self.main_ready.set(true);
        } else if self.tasks.borrow_mut().queue(id) {
            self.ready.borrow_mut().push_back(id);
        }
    }

    /// Makes all tasks ready, so that each checks a state that has changed for all of them.
    pub(crate) fn wake_all(&self) {
        let ids: Vec<TaskId> = self.tasks.borrow().0.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.wake_task(id));
    }

    pub(crate) fn wake(&self, waiter: Waiter) {
        match waiter {
            Waiter::Empty => {}
            Waiter::Task(id) => self.wake_task(id),
            Waiter::Other(waker) => waker.wake(),
        }
    }

    /// Makes the running task ready in the next turn.
    pub(crate) fn yield_to_next_turn(&self, context: &Context<'_>) {
        let mut waiter = Waiter::Empty;
        waiter.register(self.running.get(), context);
        self.yielded.borrow_mut().push(waiter);
    }

    /// Whether no other task than the running one is ready.
    pub(crate) fn is_alone(&self) -> bool {
        self.ready.borrow().is_empty()
    }

    /// Whether no task is ready.
    pub(crate) fn is_idle(&self) -> bool {
        !self.main_ready.get() && self.ready.borrow().is_empty() && self.yielded.borrow().is_empty()
    }

    /// Polls ready tasks, including those that become ready during the call, until none is ready or `polls_max` polls
    /// were made.
    pub(crate) fn run_tasks(&self, polls_max: usize) {
        for _ in 0..polls_max {
            let Some(id) = self.ready.borrow_mut().pop_front() else { return };
            self.run_task(id);
        }
    }

    /// Polls one task. A panic ends only that task and is reported.
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
        // The task's future is dropped before its slot is freed, because its destructor may wake the task once more.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
        self.tasks.borrow_mut().end(id);
        if let Some(panic) = polled.err().or(dropped.err()) {
            self.panics.set(self.panics.get() + 1);
            self.report(&panics::caught(&*panic));
        }
    }

    /// Reports a panic of a task, or of its work on another thread.
    pub(crate) fn report(&self, panic: &panics::Panic) {
        (self.panic_hook.get())(&panic.to_string());
    }

    /// Adds tasks that yielded, and tasks that other threads woke, to the ready tasks.
    pub(crate) fn take_woken(&self) {
        let mut woken = self.woken.borrow_mut();
        self.remote.take(&mut woken);
        woken.drain(..).for_each(|id| self.wake_task(id));
        drop(woken);
        // The list keeps its memory, so that yielding does not allocate.
        let count = self.yielded.borrow().len();
        for _ in 0..count {
            let next = self.yielded.borrow_mut().pop();
            next.into_iter().for_each(|(_, waiter)| self.wake(waiter));
        }
    }

    /// Drops all tasks at the end of the runtime. A panic of one destructor must not prevent the others.
    pub(crate) fn drop_tasks(&self) {
        // A destructor may add tasks.
        while self.live() > 0 {
            let ids: Vec<TaskId> = self.tasks.borrow().0.iter().map(|(id, _)| id).collect();
            for id in ids {
                let task = self.tasks.borrow_mut().take(id);
                if catch_unwind(AssertUnwindSafe(|| drop(task))).is_err() {
                    self.panics.set(self.panics.get() + 1);
                }
                self.tasks.borrow_mut().end(id);
            }
        }
        self.ready.borrow_mut().clear();
    }

    /// Returns the number of tasks that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.tasks.borrow().0.len()
    }

    /// Frees unused memory of tables and lists.
    pub(crate) fn trim(&self) {
        self.tasks.borrow_mut().0.trim();
        self.ready.borrow_mut().shrink_to(READY_KEPT);
        self.yielded.borrow_mut().shrink_to(READY_KEPT);
    }
}

/// The data of a task's [`Waker`].
struct Header {
    id: TaskId,
    remote: Arc<Remote>,
}

impl Wake for Header {
    fn wake(self: Arc<Header>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Header>) {
        if !wake_here(&self.remote, self.id) {
            self.remote.push(self.id);
        }
    }
}

/// A future and its waker.
struct Task {
    waker: Waker,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// All tasks of a runtime.
#[derive(Default)]
struct Tasks(Slab<Slot>);

/// A slot of the table of tasks.
#[derive(Default)]
struct Slot {
    /// Whether the task is in the ready queue.
    queued: bool,
    /// Header of the last task; its memory is reused for the next task when no waker refers to it.
    header: Option<Arc<Header>>,
    /// `None` while the task is polled, and in a free slot.
    task: Option<Task>,
}

const _: () = assert!(Slab::<Slot>::ENTRY_BYTES == 64);

impl Tasks {
    /// Adds a task, which is not queued yet.
    fn insert(&mut self, future: Pin<Box<dyn Future<Output = ()>>>, remote: &Arc<Remote>) -> TaskId {
        let (id, slot) = self.0.insert();
        assert!(slot.task.is_none(), "a free slot has no task");
        let fresh = || Arc::new(Header { id, remote: Arc::clone(remote) });
        let header = slot.header.get_or_insert_with(fresh);
        match Arc::get_mut(header) {
            Some(header) => header.id = id,
            None => *header = fresh(),
        }
        slot.task = Some(Task { waker: Waker::from(Arc::clone(header)), future });
        id
    }

    /// Marks a task as queued; returns `false` when it is queued already, or has ended.
    fn queue(&mut self, id: TaskId) -> bool {
        self.0.get(id).is_some_and(|slot| !std::mem::replace(&mut slot.queued, true))
    }

    /// Takes a queued task, to be polled and then put back or ended.
    fn take(&mut self, id: TaskId) -> Option<Task> {
        let slot = self.0.get(id)?;
        slot.queued = false;
        slot.task.take()
    }

    /// Puts back a task that has not ended.
    fn put_back(&mut self, id: TaskId, task: Task) {
        let slot = self.0.held(id);
        assert!(slot.task.is_none(), "a task that was taken is put back");
        slot.task = Some(task);
    }

    /// Frees the slot of a task that has ended.
    fn end(&mut self, id: TaskId) {
        let mut slot = self.0.in_use(id).expect("a task ends once");
        assert!(slot.task.is_none(), "the future of a task is dropped before its slot is free");
        slot.queued = false;
        slot.end();
    }
}

/// The task or future to wake after an event.
#[derive(Debug, Default)]
pub(crate) enum Waiter {
    /// No task waits.
    #[default]
    Empty,
    /// A task of this runtime.
    Task(TaskId),
    /// A future with another waker, such as a combinator.
    Other(Waker),
}

impl Waiter {
    /// Stores the running task.
    pub(crate) fn register(&mut self, running: Running, context: &Context<'_>) {
        let waker = context.waker();
        match running {
            // The address of the header distinguishes the running task's own waker from a waker that wraps it.
            Some((id, header)) if header == waker.data() => *self = Waiter::Task(id),
            _ => match self {
                Waiter::Other(known) => known.clone_from(waker),
                _ => *self = Waiter::Other(waker.clone()),
            },
        }
    }
}
