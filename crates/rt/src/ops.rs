//! Operations in flight, as the runtime sees them: who waits for which, and what has come back.
//!
//! A *wait* is the runtime's record of one operation. It has a name of its own, because an operation may
//! have to queue for room in the engine before it gets an [`io::OpId`].
//!
//! ```text
//!            room                 terminal completion         results taken
//!  Queued ----------> Flying ------------------------> Ended ---------------> Free
//!     |                 |  abandoned: the engine is told, nothing is shown      ^
//!     +-----------------+------------------------------------------------------+
//! ```
//! [`Running`] is the future over a wait; dropping it abandons the operation. Sockets and listeners hold
//! waits without it, so that a dropped `recv` or `accept` loses no data and no connection.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::{Completion, Errno, Fd, Op, OpId, Payload};

use crate::outcomes::{Line, Outcomes};
use crate::runtime::Inner;
use crate::task::Waiter;

/// Names a wait; one that has ended never means another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitId {
    index: u32,
    generation: u32,
}

/// One result of an operation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<u32, Errno>,
    /// Whether further results follow.
    pub(crate) more: bool,
    pub(crate) payload: Payload,
}

/// Results that an ordinary operation may bring before it is stopped: all.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// All waits of a runtime, and the operations that the engine had no room for.
#[derive(Default)]
pub(crate) struct Waits {
    waits: Vec<Wait>,
    free: Vec<u32>,
    /// Of waits that are made: above those of waits that were given back.
    first_generation: u32,
    /// The wait of each of the engine's slots. The contract says that a slot has one operation at a time.
    by_slot: Vec<u32>,
    outcomes: Outcomes,
    backlog: VecDeque<(WaitId, Op)>,
    pub(crate) live: usize,
    pub(crate) backlogged: u64,
    pub(crate) stray: u64,
}

/// One wait. It lies in one line of the processor's cache, which it has to itself: of many connections none is in the
/// cache when its turn comes, and each line is fetched for it alone.
#[derive(Default)]
#[repr(align(64))]
struct Wait {
    generation: u32,
    stage: Stage,
    owner: Owner,
    /// Closed through the engine with the last result, where nobody looks at them.
    closes: Option<Fd>,
    waiter: Waiter,
    /// Results not taken yet.
    results: Line,
    /// Further results that may lie here before the operation is asked to stop.
    room: u32,
    cancelled: bool,
}

const _: () = assert!(size_of::<Wait>() == 64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Not in use.
    #[default]
    Free,
    /// The engine had no room yet.
    Queued,
    /// The engine has it.
    Flying(OpId),
    /// The terminal completion has come; its results may still lie here.
    Ended,
}

/// What happens to the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    /// Somebody takes them.
    #[default]
    Somebody,
    /// Nobody looks at them.
    Nobody,
}

/// What the runtime has to do after a completion has been filed.
#[derive(Default)]
pub(crate) struct Filed {
    pub(crate) wake: Waiter,
    pub(crate) cancel: Option<OpId>,
    pub(crate) close: Option<Fd>,
}

impl Waits {
    /// A new wait without an operation of the engine.
    fn insert(&mut self, limit: u32) -> WaitId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.waits.push(Wait { generation: self.first_generation, ..Wait::default() });
            (self.waits.len() - 1) as u32
        });
        let wait = &mut self.waits[index as usize];
        wait.stage = Stage::Queued;
        wait.room = limit;
        wait.cancelled = false;
        self.live += 1;
        WaitId { index, generation: wait.generation }
    }

    /// Gives back the memory of waits at the end that are not in use.
    pub(crate) fn trim(&mut self) {
        while let Some(wait) = self.waits.pop_if(|wait| wait.stage == Stage::Free) {
            self.first_generation = self.first_generation.max(wait.generation.wrapping_add(1));
        }
        self.waits.shrink_to_fit();
        let is_free = |place: &u32| self.waits[*place as usize].stage == Stage::Free;
        self.free = (0..self.waits.len() as u32).rev().filter(is_free).collect();
        self.by_slot.shrink_to_fit();
        self.outcomes.trim();
    }

    /// The next result of a wait, which the last one frees.
    fn take(&mut self, id: WaitId) -> Option<Outcome> {
        let wait = self.waits.get_mut(id.index as usize).filter(|wait| wait.generation == id.generation)?;
        let outcome = self.outcomes.pop(&mut wait.results)?;
        wait.room = wait.room.saturating_add(1);
        if !outcome.more {
            self.release(id);
        }
        Some(outcome)
    }

    /// Ends a wait whose operation the engine does not have.
    fn end(&mut self, id: WaitId) {
        let wait = &mut self.waits[id.index as usize];
        wait.stage = Stage::Ended;
        let cancelled = Outcome { result: Err(Errno::CANCELED), more: false, payload: Payload::None };
        self.outcomes.push(&mut wait.results, cancelled);
    }

    /// Has nobody look at the results of a wait. With the last one a descriptor may close.
    fn leave(&mut self, id: WaitId, closes: Option<Fd>) {
        let wait = &mut self.waits[id.index as usize];
        (wait.owner, wait.closes, wait.waiter) = (Owner::Nobody, closes, Waiter::Nobody);
        self.outcomes.clear(&mut wait.results);
    }

    /// Whether operations without a taker are still on their way: descriptors that are being closed.
    pub(crate) fn closing(&self) -> bool {
        self.waits.iter().any(|wait| wait.owner == Owner::Nobody)
    }

    fn get(&mut self, id: WaitId) -> Option<&mut Wait> {
        self.waits.get_mut(id.index as usize).filter(|wait| wait.generation == id.generation)
    }

    /// Frees a wait and what lies in it; the name is dead from here on.
    fn release(&mut self, id: WaitId) {
        let wait = &mut self.waits[id.index as usize];
        wait.generation = wait.generation.wrapping_add(1);
        wait.stage = Stage::Free;
        (wait.owner, wait.closes, wait.waiter) = (Owner::Somebody, None, Waiter::Nobody);
        self.outcomes.clear(&mut wait.results);
        self.free.push(id.index);
        self.live -= 1;
    }

    /// The engine has taken the operation of this wait.
    fn bind(&mut self, id: WaitId, op: OpId) {
        let slot = op.slot as usize;
        if slot >= self.by_slot.len() {
            self.by_slot.resize(slot + 1, u32::MAX);
        }
        let before = std::mem::replace(&mut self.by_slot[slot], id.index) as usize;
        let same_slot = |stage| matches!(stage, Stage::Flying(known) if known.slot == op.slot);
        assert!(
            !self.waits.get(before).is_some_and(|wait| same_slot(wait.stage)),
            "the engine used a slot again before it showed the completion"
        );
        self.waits[id.index as usize].stage = Stage::Flying(op);
    }

    /// The wait of an operation that the engine has.
    fn known(&self, op: OpId) -> Option<WaitId> {
        let index = *self.by_slot.get(op.slot as usize)?;
        let wait = self.waits.get(index as usize).filter(|wait| wait.stage == Stage::Flying(op))?;
        Some(WaitId { index, generation: wait.generation })
    }

    /// Files a completion with the wait that it belongs to.
    pub(crate) fn file(&mut self, completion: Completion) -> Filed {
        let Completion { id: op, result, more, payload } = completion;
        let Some(id) = self.known(op) else {
            self.stray += 1;
            return Filed::default();
        };
        let mut filed = Filed::default();
        let wait = &mut self.waits[id.index as usize];
        if wait.owner == Owner::Somebody {
            self.outcomes.push(&mut wait.results, Outcome { result, more, payload });
            wait.room = wait.room.saturating_sub(1);
            filed.wake = std::mem::take(&mut wait.waiter);
            // Back-pressure: the peer waits in the kernel's buffers until somebody has taken these.
            if more && wait.room == 0 && !wait.cancelled {
                wait.cancelled = true;
                filed.cancel = Some(op);
            }
        }
        if !more {
            wait.stage = Stage::Ended;
            if wait.owner == Owner::Nobody {
                filed.close = wait.closes.take();
                self.release(id);
            }
        }
        filed
    }
}

impl Inner {
    /// Submits an operation, or queues it when the engine is full. After `limit` results that nobody has
    /// taken it is cancelled.
    pub(crate) fn start(&self, op: Op, limit: u32) -> WaitId {
        let mut waits = self.waits.borrow_mut();
        let id = waits.insert(limit);
        if self.closed.get() {
            waits.end(id);
            return id;
        }
        let refused = match waits.backlog.is_empty() {
            true => self.engine.borrow_mut().submit(op),
            false => Err(op),
        };
        match refused {
            Ok(op) => waits.bind(id, op),
            Err(op) => {
                waits.backlogged += 1;
                waits.backlog.push_back((id, op));
            }
        }
        id
    }

    /// Submits what had to queue for room in the engine, in order, as far as there is room.
    pub(crate) fn submit_backlog(&self) {
        let mut waits = self.waits.borrow_mut();
        while let Some((id, op)) = waits.backlog.pop_front() {
            if waits.get(id).is_none() {
                // Its future was dropped while it queued.
                continue;
            }
            match self.engine.borrow_mut().submit(op) {
                Ok(op) => waits.bind(id, op),
                Err(op) => {
                    waits.backlog.push_front((id, op));
                    return;
                }
            }
        }
    }

    /// Drops the operations that still queue, at the end of the runtime; descriptors close with them.
    pub(crate) fn drop_backlog(&self) {
        let dropped = std::mem::take(&mut self.waits.borrow_mut().backlog);
        drop(dropped);
    }

    /// The next result of a wait; after one without `more` the wait is gone.
    pub(crate) fn poll_wait(&self, id: WaitId, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut waits = self.waits.borrow_mut();
        if let Some(outcome) = waits.take(id) {
            return Poll::Ready(outcome);
        }
        let wait = waits.get(id).expect("a wait is not asked again after its terminal result");
        wait.waiter.register(self.running.get(), context);
        Poll::Pending
    }

    /// The next result of a wait if it is there.
    pub(crate) fn try_wait(&self, id: WaitId) -> Option<Outcome> {
        self.waits.borrow_mut().take(id)
    }

    /// Whether a result of a wait is there.
    pub(crate) fn has_result(&self, id: WaitId) -> bool {
        self.waits.borrow_mut().get(id).is_some_and(|wait| !wait.results.is_empty())
    }

    /// Asks for an early end of an operation whose results somebody still takes.
    pub(crate) fn cancel(&self, id: WaitId) {
        let mut waits = self.waits.borrow_mut();
        let Some(wait) = waits.get(id).filter(|wait| !wait.cancelled) else { return };
        wait.cancelled = true;
        match wait.stage {
            Stage::Flying(op) => self.engine.borrow_mut().cancel(op),
            Stage::Queued => {
                let waiter = std::mem::take(&mut wait.waiter);
                waits.end(id);
                waits.backlog.retain(|(queued, _)| *queued != id);
                drop(waits);
                self.wake(waiter);
            }
            Stage::Ended | Stage::Free => {}
        }
    }

    /// Gives an operation up: what it still brings is dropped.
    pub(crate) fn abandon(&self, id: WaitId) {
        let mut waits = self.waits.borrow_mut();
        let Some(wait) = waits.get(id) else { return };
        if let Stage::Flying(op) = wait.stage {
            self.engine.borrow_mut().abandon(op);
        }
        waits.release(id);
    }

    /// Lets an operation run to its end without anybody looking at what it brings.
    pub(crate) fn detach(&self, id: WaitId) {
        let mut waits = self.waits.borrow_mut();
        let Some(wait) = waits.get(id) else { return };
        match wait.stage {
            Stage::Ended => waits.release(id),
            _ => waits.leave(id, None),
        }
    }

    /// Cancels an operation and closes its descriptor when it has ended. A descriptor that is closed under
    /// a pending receive neither completes it nor tells the peer (liburing issue 932), hence the order.
    pub(crate) fn close_after(&self, id: WaitId, fd: Fd) {
        self.cancel(id);
        let mut waits = self.waits.borrow_mut();
        match waits.get(id) {
            Some(wait) if wait.stage != Stage::Ended => waits.leave(id, Some(fd)),
            Some(_) => {
                waits.release(id);
                drop(waits);
                self.close(fd);
            }
            None => {
                drop(waits);
                self.close(fd);
            }
        }
    }

    /// Closes a descriptor through the engine with its next turn, without waiting for it. Until then other
    /// parts of what is being dropped may still hold it.
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
        self.to_close.replace(closes);
    }
}

/// An operation that is abandoned when this is dropped.
pub(crate) struct Running {
    runtime: Rc<Inner>,
    wait: Option<WaitId>,
}

impl Running {
    pub(crate) fn new(runtime: &Rc<Inner>, op: Op) -> Running {
        Running { runtime: Rc::clone(runtime), wait: Some(runtime.start(op, UNLIMITED)) }
    }

    /// The next result; not to be called after one without `more`.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let wait = self.wait.expect("nothing is asked for after the terminal result");
        let outcome = ready!(self.runtime.poll_wait(wait, context));
        if !outcome.more {
            self.wait = None;
        }
        Poll::Ready(outcome)
    }

    /// The terminal result, whatever came before it.
    pub(crate) fn last(self) -> Last {
        Last(self)
    }
}

/// See [`Running::last`]. Polled as it is: nearly every operation is awaited by this, and each state machine around
/// another one is looked through at every poll.
pub(crate) struct Last(Running);

impl Future for Last {
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

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.runtime.abandon(wait);
        }
    }
}
