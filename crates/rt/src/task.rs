//! Tasks: their table, their wakers, and who waits for something.
//!
//! A task is a boxed future in a slot. Its waker is an `Arc` header without the future in it, so that a
//! waker on another thread never owns, runs or drops what belongs to this one. Inside the runtime a waiting
//! task is remembered by its name ([`Waiter::Task`]), which costs no atomic operation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::remote::{Remote, TaskId};
use crate::runtime;

/// The name of the future that `block_on` runs, which has no slot.
pub(crate) const MAIN: TaskId = TaskId { slot: u32::MAX, generation: 0 };

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

/// A future that can be polled, away from the table while it runs.
pub(crate) struct Body {
    pub(crate) future: Pin<Box<dyn Future<Output = ()>>>,
    pub(crate) waker: Waker,
}

/// All tasks of a runtime.
#[derive(Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    /// Whether the task is in the ready queue.
    queued: bool,
    state: State,
    /// Kept for the slot's next task when no waker of the last one is left.
    header: Option<Arc<Header>>,
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    Waiting(Body),
    Running,
}

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
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[place as usize];
        let id = TaskId { slot: place, generation: slot.generation };
        let header = recycled(slot.header.take(), id)
            .unwrap_or_else(|| Arc::new(Header { id, remote: Arc::clone(remote) }));
        let waker = Waker::from(Arc::clone(&header));
        slot.header = Some(header);
        slot.state = State::Waiting(Body { future, waker });
        self.live += 1;
        id
    }

    /// Marks a task as queued; `false` when it is so already, or has ended.
    pub(crate) fn queue(&mut self, id: TaskId) -> bool {
        match self.slots.get_mut(id.slot as usize) {
            Some(slot) if slot.generation == id.generation && !matches!(slot.state, State::Free) => {
                !std::mem::replace(&mut slot.queued, true)
            }
            _ => false,
        }
    }

    /// Takes a queued task out to be polled.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<Body> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.queued = false;
        match std::mem::replace(&mut slot.state, State::Running) {
            State::Waiting(body) => Some(body),
            state => {
                slot.state = state;
                None
            }
        }
    }

    /// Puts a task back that is not done.
    pub(crate) fn put_back(&mut self, id: TaskId, body: Body) {
        self.slots[id.slot as usize].state = State::Waiting(body);
    }

    /// Frees the slot of a task that was taken and has ended.
    pub(crate) fn end(&mut self, id: TaskId) {
        let slot = &mut self.slots[id.slot as usize];
        slot.state = State::Free;
        slot.queued = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.live -= 1;
    }

    /// Takes any task that waits, for the end of the runtime.
    pub(crate) fn take_any(&mut self) -> Option<(TaskId, Body)> {
        let place = self.slots.iter().position(|slot| matches!(slot.state, State::Waiting(_)))?;
        let id = TaskId { slot: place as u32, generation: self.slots[place].generation };
        self.take(id).map(|body| (id, body))
    }
}

/// The header of a slot's last task for its next one, if nobody can wake the last one any more.
fn recycled(header: Option<Arc<Header>>, id: TaskId) -> Option<Arc<Header>> {
    let mut header = header?;
    Arc::get_mut(&mut header)?.id = id;
    Some(header)
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
