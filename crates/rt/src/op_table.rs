//! Operations in flight in the runtime: the waiting task of each, and its results.
//!
//! A *wait* is the runtime's record of one operation. It has a separate name, because an operation may have to queue
//! for a slot of the engine before it gets an [`io::OpId`].
//!
//! ```text
//!            room                 terminal completion         results taken
//!  Queued ----------> Flying ------------------------> Ended ---------------> Free
//!     |                 |  abandoned: the engine is told, nothing is shown      ^
//!     +-----------------+------------------------------------------------------+
//! ```
//! This is the table alone; [`crate::reactor`] submits the operations.
//!
//! Results that no task has taken yet lie together ([`Outcomes`]), and not with the operation that they belong to: a place is
//! used again as soon as its result is taken, the last one first. So the results of a turn for many connections go through a
//! few lines of memory that stay in the cache.

use std::collections::VecDeque;

use io::{Completion, Errno, Fd, Op, OpId, Payload};

use crate::executor::Waiter;

/// Names a wait; one that has ended never means another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpHandle {
    index: u32,
    generation: u32,
}

/// Results that an ordinary operation may bring before it is stopped: all.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// All waits of a runtime, and the operations that the engine had no room for.
#[derive(Default)]
pub(crate) struct OpTable {
    waits: Vec<OpState>,
    free: Vec<u32>,
    /// Of waits that are made: above those of waits that were given back.
    first_generation: u32,
    /// The wait of each of the engine's slots. By the contract a slot has one operation at a time.
    by_slot: Vec<u32>,
    outcomes: Outcomes,
    pub(crate) backlog: VecDeque<(OpHandle, Op)>,
    pub(crate) live: usize,
    pub(crate) backlogged: u64,
    pub(crate) stray: u64,
}

/// One wait. It lies in one line of the processor's cache, which it has to itself: of many connections none is in the
/// cache when its turn comes, and each line is fetched for it alone.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct OpState {
    generation: u32,
    pub(crate) stage: Stage,
    owner: Owner,
    /// Closed through the engine with the last result, where the results are not taken.
    closes: Option<Fd>,
    pub(crate) waiter: Waiter,
    /// Results not taken yet.
    pub(crate) results: Results,
    /// Further results that may be stored here before the operation is cancelled.
    room: u32,
    pub(crate) cancelled: bool,
}

const _: () = assert!(size_of::<OpState>() == 64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
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

/// The use of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    /// A task takes them.
    #[default]
    Somebody,
    /// They are dropped.
    Nobody,
}

/// The runtime's next step after a completion has been filed.
#[derive(Default)]
pub(crate) struct Filed {
    pub(crate) wake: Waiter,
    pub(crate) cancel: Option<OpId>,
    pub(crate) close: Option<Fd>,
}

impl OpTable {
    /// A new wait without an operation of the engine.
    pub(crate) fn insert(&mut self, limit: u32) -> OpHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.waits.push(OpState { generation: self.first_generation, ..OpState::default() });
            (self.waits.len() - 1) as u32
        });
        let wait = &mut self.waits[index as usize];
        assert_eq!(wait.stage, Stage::Free, "a record has one operation at a time");
        wait.stage = Stage::Queued;
        wait.room = limit;
        wait.cancelled = false;
        self.live += 1;
        OpHandle { index, generation: wait.generation }
    }

    /// Gives back the memory of waits at the end that are not in use.
    pub(crate) fn trim(&mut self) {
        while let Some(wait) = self.waits.pop_if(|wait| wait.stage == Stage::Free) {
            self.first_generation = self.first_generation.max(wait.generation.wrapping_add(1));
        }
        self.waits.shrink_to_fit();
        let is_free = |place: &u32| self.waits[*place as usize].stage == Stage::Free;
        self.free = (0..self.waits.len() as u32).rev().filter(is_free).collect();
        assert_eq!(self.free.len() + self.live, self.waits.len(), "a record is free or in use");
        self.by_slot.shrink_to_fit();
        self.outcomes.trim();
    }

    /// The next result of a wait, which the last one frees.
    pub(crate) fn take(&mut self, id: OpHandle) -> Option<Outcome> {
        let wait = self.waits.get_mut(id.index as usize).filter(|wait| wait.generation == id.generation)?;
        let outcome = self.outcomes.pop(&mut wait.results)?;
        wait.room = wait.room.saturating_add(1);
        if !outcome.more {
            assert_eq!(wait.stage, Stage::Ended, "the last result comes with the end");
            self.release(id);
        }
        Some(outcome)
    }

    /// Ends a wait whose operation is not in the engine.
    pub(crate) fn end(&mut self, id: OpHandle) {
        let wait = &mut self.waits[id.index as usize];
        assert_eq!(wait.stage, Stage::Queued, "the engine ends what it has");
        wait.stage = Stage::Ended;
        let cancelled = Outcome { result: Err(Errno::CANCELED), more: false, payload: Payload::None };
        self.outcomes.push(&mut wait.results, cancelled);
    }

    /// Drops the results of a wait from now on. With the last one a descriptor may close.
    pub(crate) fn leave(&mut self, id: OpHandle, closes: Option<Fd>) {
        let wait = &mut self.waits[id.index as usize];
        assert_eq!(wait.owner, Owner::Somebody, "an operation is left once");
        (wait.owner, wait.closes, wait.waiter) = (Owner::Nobody, closes, Waiter::Nobody);
        self.outcomes.clear(&mut wait.results);
    }

    /// Whether operations without a taker are still on their way: descriptors that are being closed.
    pub(crate) fn closing(&self) -> bool {
        self.waits.iter().any(|wait| wait.owner == Owner::Nobody)
    }

    pub(crate) fn get(&mut self, id: OpHandle) -> Option<&mut OpState> {
        self.waits.get_mut(id.index as usize).filter(|wait| wait.generation == id.generation)
    }

    /// Frees a wait and its results; its name is invalid from here on.
    pub(crate) fn release(&mut self, id: OpHandle) {
        let wait = &mut self.waits[id.index as usize];
        assert!(wait.stage != Stage::Free, "a record is released once");
        wait.generation = wait.generation.wrapping_add(1);
        wait.stage = Stage::Free;
        (wait.owner, wait.closes, wait.waiter) = (Owner::Somebody, None, Waiter::Nobody);
        self.outcomes.clear(&mut wait.results);
        self.free.push(id.index);
        assert!(self.live > 0, "what is released was counted");
        self.live -= 1;
    }

    /// The engine has taken the operation of this wait.
    pub(crate) fn bind(&mut self, id: OpHandle, op: OpId) {
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
    pub(crate) fn known(&self, op: OpId) -> Option<OpHandle> {
        let index = *self.by_slot.get(op.slot as usize)?;
        let wait = self.waits.get(index as usize).filter(|wait| wait.stage == Stage::Flying(op))?;
        Some(OpHandle { index, generation: wait.generation })
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
            // Back-pressure: the peer waits in the kernel's buffers until a task has taken these.
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

/// One result of an operation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<u32, Errno>,
    /// Whether further results follow.
    pub(crate) more: bool,
    pub(crate) payload: Payload,
}

/// End of a line, and of the places that are free.
const NONE: u32 = u32::MAX;

/// The results of all operations of a runtime.
pub(crate) struct Outcomes {
    places: Vec<OutcomeCell>,
    free: u32,
}

struct OutcomeCell {
    /// `None` in a place that is free.
    outcome: Option<Outcome>,
    /// The next result of the same operation, or the next free place.
    next: u32,
}

/// The results of one operation, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Results {
    first: u32,
    last: u32,
}

impl Default for Results {
    fn default() -> Results {
        Results { first: NONE, last: NONE }
    }
}

impl Results {
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

impl Default for Outcomes {
    fn default() -> Outcomes {
        Outcomes { places: Vec::new(), free: NONE }
    }
}

impl Outcomes {
    /// Adds a result behind the others.
    pub(crate) fn push(&mut self, results: &mut Results, outcome: Outcome) {
        let place = OutcomeCell { outcome: Some(outcome), next: NONE };
        let index = if self.free == NONE {
            self.places.push(place);
            (self.places.len() - 1) as u32
        } else {
            let index = self.free;
            let free = &mut self.places[index as usize];
            assert!(free.outcome.is_none(), "a free place has no result");
            self.free = free.next;
            *free = place;
            index
        };
        match results.is_empty() {
            true => results.first = index,
            false => {
                let last = &mut self.places[results.last as usize];
                assert!(last.next == NONE && last.outcome.is_some(), "the last result ends the line");
                last.next = index;
            }
        }
        results.last = index;
    }

    /// Takes the first result.
    pub(crate) fn pop(&mut self, results: &mut Results) -> Option<Outcome> {
        let place = self.places.get_mut(results.first as usize)?;
        let free = std::mem::replace(&mut self.free, results.first);
        results.first = std::mem::replace(&mut place.next, free);
        let outcome = place.outcome.take();
        assert!(outcome.is_some(), "a place in a list has a result");
        outcome
    }

    /// Gives back the memory of places where none is in use.
    pub(crate) fn trim(&mut self) {
        if self.places.iter().all(|place| place.outcome.is_none()) {
            *self = Outcomes::default();
        }
    }

    /// Drops all results.
    pub(crate) fn clear(&mut self, results: &mut Results) {
        while self.pop(results).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(number: u32) -> Outcome {
        Outcome { result: Ok(number), more: true, payload: Payload::None }
    }

    #[test]
    fn each_operation_gets_its_own_in_their_order() {
        let mut all = Outcomes::default();
        let mut lines = [Results::default(), Results::default(), Results::default()];
        let mut next = [(0, 0); 3];
        // Of three lines one grows, one stays at one result, one is emptied now and then.
        for round in 0..100 {
            for (line, (pushed, popped)) in lines.iter_mut().zip(&mut next) {
                all.push(line, outcome(*pushed));
                *pushed += 1;
                if round % 3 != 0 {
                    assert_eq!(all.pop(line).map(|outcome| outcome.result), Some(Ok(*popped)));
                    *popped += 1;
                }
            }
            if round % 10 == 0 {
                all.clear(&mut lines[2]);
                assert!(lines[2].is_empty() && all.pop(&mut lines[2]).is_none());
                next[2].1 = next[2].0;
            }
        }
        assert!(all.places.len() < 80, "places are used again");
    }
}
