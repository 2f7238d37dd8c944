//! Tasks: their table, their wakers, and who waits for something.
//!
//! A task is a boxed future in a slot, which leaves it while it is polled. Its waker is an `Arc` header without the
//! future in it, so that a waker on another thread never owns, runs or drops what belongs to this one. Inside the runtime a waiting
//! task is remembered by its name ([`Waiter::Task`]), which costs no atomic operation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::remote::{Remote, TaskId};
use crate::runtime;

/// What a [`Waker`] of a task points at.
pub(crate) struct Header {
    pub(crate) id: TaskId,
    pub(crate) remote: Arc<Remote>,
}

impl Wake for Header {
    fn wake(self: Arc<Header>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Header>) {
        if !runtime::wake_here(&self.remote, self.id) {
            self.remote.push(self.id);
        }
    }
}

/// A future and its waker.
pub(crate) struct Task {
    pub(crate) waker: Waker,
    pub(crate) future: Pin<Box<dyn Future<Output = ()>>>,
}

/// All tasks of a runtime.
#[derive(Default)]
pub(crate) struct Tasks {
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
    /// Of the last task; its memory is used again for the next one when nobody can wake it any more.
    header: Option<Arc<Header>>,
    /// `None` while it is polled, and without one.
    task: Option<Task>,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Tasks {
    /// Number of tasks that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Adds a task; it is not queued yet.
    pub(crate) fn insert(
        &mut self,
        future: Pin<Box<dyn Future<Output = ()>>>,
        remote: &Arc<Remote>,
    ) -> TaskId {
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
        slot.live = true;
        slot.task = Some(Task { waker: Waker::from(Arc::clone(header)), future });
        id
    }

    /// Marks a task as queued; `false` when it is so already, or has ended.
    pub(crate) fn queue(&mut self, id: TaskId) -> bool {
        self.slot(id).is_some_and(|slot| !std::mem::replace(&mut slot.queued, true))
    }

    /// A queued task, to be polled and then put back or ended.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<Task> {
        let slot = self.slot(id)?;
        slot.queued = false;
        slot.task.take()
    }

    /// Puts a task back that has not ended.
    pub(crate) fn put_back(&mut self, id: TaskId, task: Task) {
        self.slots[id.slot as usize].task = Some(task);
    }

    /// The slot of a task that has not ended.
    fn slot(&mut self, id: TaskId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation && slot.live).then_some(slot)
    }

    /// Frees the slot of a task that has ended.
    pub(crate) fn end(&mut self, id: TaskId) {
        let slot = &mut self.slots[id.slot as usize];
        (slot.live, slot.queued) = (false, false);
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.live -= 1;
    }

    /// Gives back the memory of slots at the end that are not in use, and what others keep for their next task.
    pub(crate) fn trim(&mut self) {
        while let Some(slot) = self.slots.pop_if(|slot| !slot.live) {
            self.first_generation = self.first_generation.max(slot.generation.wrapping_add(1));
        }
        self.slots.shrink_to_fit();
        self.free =
            (0..self.slots.len() as u32).rev().filter(|&place| !self.slots[place as usize].live).collect();
        self.slots.iter_mut().filter(|slot| !slot.live).for_each(|slot| slot.header = None);
    }

    /// Any task that has not ended, for the end of the runtime.
    pub(crate) fn take_any(&mut self) -> Option<(TaskId, Option<Task>)> {
        let place = self.slots.iter().position(|slot| slot.live)?;
        let slot = &mut self.slots[place];
        Some((TaskId { slot: place as u32, generation: slot.generation }, slot.task.take()))
    }
}

/// Who is to be told about an event.
#[derive(Debug, Default)]
pub(crate) enum Waiter {
    /// Nobody.
    #[default]
    Nobody,
    /// A task of this runtime.
    Task(TaskId),
    /// Something with a waker of its own, such as a combinator.
    Other(Waker),
}

impl Waiter {
    /// Remembers the one who is polling.
    pub(crate) fn register(&mut self, running: Option<(TaskId, *const ())>, context: &Context<'_>) {
        let waker = context.waker();
        match running {
            // The address of the header tells the running task's own waker from one that wraps it.
            Some((id, header)) if header == waker.data() => *self = Waiter::Task(id),
            _ => match self {
                Waiter::Other(known) => known.clone_from(waker),
                _ => *self = Waiter::Other(waker.clone()),
            },
        }
    }
}
