//! The tasks of one thread: their table, their wakers, the queue of those that are ready, and the poll of each.
//!
//! A task is a boxed future in a slot, which leaves it while it is polled. Its waker is an `Arc` header without the future
//! in it, so that a waker on another thread never owns, runs or drops state of this one. Inside the runtime a waiting task
//! is remembered by its name ([`Waiter::Task`]), which costs no atomic operation. The engine is not known here.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::remote::{MAIN, Remote, TaskId};
use crate::wait_list::WaitList;

/// The task that is polled now, and the address of its waker's header.
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
    /// Tasks that yielded: ready in the next turn, not in this one.
    yielded: RefCell<WaitList<Waiter>>,
    /// Memory for the tasks that other threads woke.
    woken: RefCell<Vec<TaskId>>,
    pub(crate) panic_hook: Cell<fn(&str)>,
    spawned: Cell<u64>,
    panics: Cell<u64>,
    polls: Cell<u64>,
}

/// Numbers of an executor.
pub(crate) struct TaskCounters {
    pub(crate) live: usize,
    pub(crate) spawned: u64,
    pub(crate) panics: u64,
    pub(crate) polls: u64,
}

/// Tasks that room is kept for in the queue: as many as a busy turn wakes.
const READY_KEPT: usize = 256;

/// The task that is polled now and its runtime's remote side, if `waker` is that task's own.
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
    /// Makes an executor that is woken by `bell` the one of this thread.
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

    /// The thread has no executor any more; where its storage is gone already, nothing is left to do.
    pub(crate) fn leave_thread() {
        let _ = EXECUTOR.try_with(|executor| executor.borrow_mut().take());
    }

    /// The waker of the future that `block_on` runs, which is ready.
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

    /// Wakes the polling task in the next turn.
    pub(crate) fn yield_to_next_turn(&self, context: &Context<'_>) {
        let mut waiter = Waiter::Nobody;
        waiter.register(self.running.get(), context);
        self.yielded.borrow_mut().push(waiter);
    }

    /// Whether no task but the running one is ready.
    pub(crate) fn is_alone(&self) -> bool {
        self.ready.borrow().is_empty()
    }

    /// Whether nothing could run now.
    pub(crate) fn is_idle(&self) -> bool {
        !self.main_ready.get() && self.ready.borrow().is_empty() && self.yielded.borrow().is_empty()
    }

    /// Polls ready tasks, including those that become ready meanwhile, until there is none or `polls_max` polls were
    /// made.
    pub(crate) fn run_tasks(&self, polls_max: usize) {
        for _ in 0..polls_max {
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
        // The task's future is dropped before its slot is free, because it may wake the task once more.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
        self.tasks.borrow_mut().end(id);
        if let Some(panic) = polled.err().or(dropped.err()) {
            self.panics.set(self.panics.get() + 1);
            (self.panic_hook.get())(panic_text(&*panic));
        }
    }

    /// Makes those ready that yielded, and those that other threads woke.
    pub(crate) fn take_woken(&self) {
        let mut woken = self.woken.take();
        self.remote.take(&mut woken);
        woken.drain(..).for_each(|id| self.wake_task(id));
        self.woken.replace(woken);
        // The list keeps its memory: a task that yields allocates nothing.
        let count = self.yielded.borrow().len();
        for _ in 0..count {
            let next = self.yielded.borrow_mut().pop();
            next.into_iter().for_each(|waiter| self.wake(waiter));
        }
    }

    /// The end: drops all tasks. A panic while one is dropped must not keep the others from being dropped.
    pub(crate) fn drop_tasks(&self) {
        loop {
            let Some((id, task)) = self.tasks.borrow_mut().take_any() else { break };
            if catch_unwind(AssertUnwindSafe(|| drop(task))).is_err() {
                self.panics.set(self.panics.get() + 1);
            }
            self.tasks.borrow_mut().end(id);
        }
        self.ready.borrow_mut().clear();
    }

    pub(crate) fn counters(&self) -> TaskCounters {
        TaskCounters {
            live: self.tasks.borrow().live(),
            spawned: self.spawned.get(),
            panics: self.panics.get(),
            polls: self.polls.get(),
        }
    }

    /// Gives back the memory of tables and lists that were longer.
    pub(crate) fn trim(&self) {
        self.tasks.borrow_mut().trim();
        self.ready.borrow_mut().shrink_to(READY_KEPT);
        self.yielded.borrow_mut().shrink_to(READY_KEPT);
    }
}

/// The target of a [`Waker`] of a task.
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
struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
    /// Of slots that are made: above those of slots that were given back, so that no old waker means a new task.
    first_generation: u32,
}

/// One line of the processor's cache: of many tasks none is in the cache when its turn comes.
#[repr(align(64))]
struct Slot {
    generation: u32,
    /// Whether the task is in the ready queue.
    queued: bool,
    /// Whether there is a task that has not ended.
    live: bool,
    /// That of the last task; its memory is reused for the next one when no waker of it is left.
    header: Option<Arc<Header>>,
    /// `None` while it is polled, and without one.
    task: Option<Task>,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Tasks {
    /// Number of tasks that have not ended.
    fn live(&self) -> usize {
        self.live
    }

    /// Adds a task; it is not queued yet.
    fn insert(&mut self, future: Pin<Box<dyn Future<Output = ()>>>, remote: &Arc<Remote>) -> TaskId {
        self.live += 1;
        let Some(place) = self.free.pop() else {
            let id = TaskId { slot: self.slots.len() as u32, generation: self.first_generation };
            let header = Arc::new(Header { id, remote: Arc::clone(remote) });
            let task = Some(Task { waker: Waker::from(Arc::clone(&header)), future });
            let header = Some(header);
            self.slots.push(Slot { generation: id.generation, queued: false, live: true, header, task });
            return id;
        };
        let slot = &mut self.slots[place as usize];
        let id = TaskId { slot: place, generation: slot.generation };
        let fresh = || Arc::new(Header { id, remote: Arc::clone(remote) });
        let header = slot.header.get_or_insert_with(fresh);
        match Arc::get_mut(header) {
            Some(header) => header.id = id,
            None => *header = fresh(),
        }
        assert!(!slot.live && slot.task.is_none(), "a free slot has no task");
        slot.live = true;
        slot.task = Some(Task { waker: Waker::from(Arc::clone(header)), future });
        id
    }

    /// Marks a task as queued; `false` when it is so already, or has ended.
    fn queue(&mut self, id: TaskId) -> bool {
        self.slot(id).is_some_and(|slot| !std::mem::replace(&mut slot.queued, true))
    }

    /// A queued task, to be polled and then put back or ended.
    fn take(&mut self, id: TaskId) -> Option<Task> {
        let slot = self.slot(id)?;
        slot.queued = false;
        slot.task.take()
    }

    /// Puts a task back that has not ended.
    fn put_back(&mut self, id: TaskId, task: Task) {
        let slot = &mut self.slots[id.slot as usize];
        assert!(slot.live && slot.task.is_none(), "a task that was taken is put back");
        slot.task = Some(task);
    }

    /// The slot of a task that has not ended.
    fn slot(&mut self, id: TaskId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation && slot.live).then_some(slot)
    }

    /// Frees the slot of a task that has ended.
    fn end(&mut self, id: TaskId) {
        let slot = &mut self.slots[id.slot as usize];
        assert!(slot.live && slot.generation == id.generation, "a task ends once");
        assert!(slot.task.is_none(), "what a task owns is dropped before its slot is free");
        (slot.live, slot.queued) = (false, false);
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.live -= 1;
    }

    /// Frees unused slots at the end, and memory that other slots keep for their next task.
    fn trim(&mut self) {
        while let Some(slot) = self.slots.pop_if(|slot| !slot.live) {
            self.first_generation = self.first_generation.max(slot.generation.wrapping_add(1));
        }
        self.slots.shrink_to_fit();
        self.free =
            (0..self.slots.len() as u32).rev().filter(|&place| !self.slots[place as usize].live).collect();
        self.slots.iter_mut().filter(|slot| !slot.live).for_each(|slot| slot.header = None);
    }

    /// Any task that has not ended, for the end of the runtime.
    fn take_any(&mut self) -> Option<(TaskId, Option<Task>)> {
        let place = self.slots.iter().position(|slot| slot.live)?;
        let slot = &mut self.slots[place];
        Some((TaskId { slot: place as u32, generation: slot.generation }, slot.task.take()))
    }
}

/// The receiver of an event.
#[derive(Debug, Default)]
pub(crate) enum Waiter {
    /// None.
    #[default]
    Nobody,
    /// A task of this runtime.
    Task(TaskId),
    /// A future with another waker, such as a combinator.
    Other(Waker),
}

impl Waiter {
    /// Remembers the polling task.
    pub(crate) fn register(&mut self, running: Running, context: &Context<'_>) {
        let waker = context.waker();
        match running {
            // The address of the header distinguishes the running task's own waker from one that wraps it.
            Some((id, header)) if header == waker.data() => *self = Waiter::Task(id),
            _ => match self {
                Waiter::Other(known) => known.clone_from(waker),
                _ => *self = Waiter::Other(waker.clone()),
            },
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
