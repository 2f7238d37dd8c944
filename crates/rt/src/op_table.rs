//! Operations in flight in the runtime: the waiting task of each operation, and its results.
//!
//! A *wait* is the runtime's record of one operation. Its identifier is the token of the operation, which the engine
//! returns with each completion. The operation has an [`io::OpId`] once it is in the engine; it may be queued before.
//!
//! ```text
//!          free slot              terminal completion         results taken
//!  Queued ----------> Flying ------------------------> Ended ---------------> Free
//!     |                 |  abandoned in the engine, no result is reported       ^
//!     +-----------------+------------------------------------------------------+
//! ```
//! This module contains only the table; [`crate::reactor`] submits the operations.
//!
//! Results that no task has taken yet are stored in a common array ([`Outcomes`]), not in the record of their
//! operation. A cell is reused as soon as its result is taken, last in, first out. So the results of a turn with many
//! connections use a few cache lines that stay in the CPU cache.

use std::collections::VecDeque;

use io::facts::DeviceId;
use io::slab::{InUse, Slab};
use io::{Completion, Errno, Fd, Op, OpId, Payload};

use crate::executor::Waiter;

/// Identifier of a wait.
pub(crate) type OpHandle = io::slab::Key;

/// Limit on the untaken results of an ordinary operation: more than any operation has.
pub(crate) const UNLIMITED: u16 = u16::MAX;

/// All waits of a runtime, and the operations for which the engine had no free slot.
#[derive(Default)]
pub(crate) struct OpTable {
    waits: Slab<OpState>,
    outcomes: Outcomes,
    pub(crate) backlog: Backlog,
    pub(crate) unmatched: u64,
}

/// The operations for which the engine had no free slot, in order. The operations of each device wait separately, because
/// the engine limits the slots of a device: a disk that hangs delays neither sockets nor other disks.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Queues that are not empty; `None` is that of the operations without a device. There are few devices.
    pub(crate) queues: Vec<(Option<DeviceId>, OpQueue)>,
    /// Number of operations added since start.
    pub(crate) added: u64,
}

/// Waiting operations, in order.
type OpQueue = VecDeque<(OpHandle, Op)>;

impl Backlog {
    /// Whether operations of the same device wait already.
    pub(crate) fn is_ahead_of(&self, op: &Op) -> bool {
        !self.queues.is_empty() && self.queue_index(device_of(op)).is_some()
    }

    /// Adds an operation.
    pub(crate) fn push(&mut self, id: OpHandle, op: Op) {
        self.added += 1;
        let device = device_of(&op);
        match self.queue_index(device) {
            Some(queue_index) => self.queues[queue_index].1.push_back((id, op)),
            None => self.queues.push((device, VecDeque::from([(id, op)]))),
        }
    }

    /// Drops an operation.
    pub(crate) fn remove(&mut self, id: OpHandle) {
        let found = self.queues.iter().enumerate().find_map(|(queue_index, (_, queue))| {
            Some((queue_index, queue.iter().position(|(queued, _)| *queued == id)?))
        });
        let Some((queue_index, index)) = found else { return };
        let queue = &mut self.queues[queue_index].1;
        drop(queue.remove(index));
        if queue.is_empty() {
            drop(self.queues.remove(queue_index));
        }
    }

    fn queue_index(&self, device: Option<DeviceId>) -> Option<usize> {
        self.queues.iter().position(|(known, _)| *known == device)
    }
}

fn device_of(op: &Op) -> Option<DeviceId> {
    op.on_disk().map(|(_, device)| device)
}

/// A wait. With many connections, its entry is not in the CPU cache when the operation completes, so each completion
/// loads the entry, which must need only one cache line.
#[derive(Default)]
pub(crate) struct OpState {
    pub(crate) stage: Stage,
    owner: Owner,
    /// Descriptor to close through the engine after the last result, if the results are dropped.
    closes: Option<Fd>,
    pub(crate) waiter: Waiter,
    /// Results that the task has not taken yet.
    pub(crate) results: Results,
    /// Number of further results that may be stored before the operation is cancelled.
    capacity: u16,
    pub(crate) cancelled: bool,
}

const _: () = assert!(Slab::<OpState>::ENTRY_BYTES == 64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not in use.
    #[default]
    Free,
    /// Queued, because the engine had no free slot.
    Queued,
    /// Submitted to the engine.
    InFlight(OpId),
    /// The terminal completion has arrived; its results may not have been taken yet.
    Ended,
}

/// The receiver of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    /// A task takes the results.
    #[default]
    Task,
    /// The results are dropped.
    Dropped,
}

/// The next steps of the runtime after a completion was recorded.
#[derive(Default)]
pub(crate) struct Filed {
    pub(crate) wake: Waiter,
    pub(crate) cancel: Option<OpId>,
    pub(crate) close: Option<Fd>,
}

impl OpTable {
    /// Returns the number of waits.
    pub(crate) fn live(&self) -> usize {
        self.waits.len()
    }

    /// Adds a wait that has no operation in the engine yet.
    pub(crate) fn insert(&mut self, limit: u16) -> OpHandle {
        let (id, wait) = self.waits.insert();
        assert_eq!(wait.stage, Stage::Free, "a record has one operation at a time");
        wait.stage = Stage::Queued;
        wait.capacity = limit;
        wait.cancelled = false;
        id
    }

    /// Frees the memory of unused waits and results.
    pub(crate) fn trim(&mut self) {
        self.waits.trim();
        self.outcomes.trim();
    }

    /// Returns the next result of a wait; the last result frees the wait.
    pub(crate) fn take(&mut self, id: OpHandle) -> Option<Outcome> {
        let mut wait = self.waits.in_use(id)?;
        let outcome = self.outcomes.pop(&mut wait.results)?;
        wait.capacity = wait.capacity.saturating_add(1);
        if !outcome.more {
            assert_eq!(wait.stage, Stage::Ended, "the last result comes with the end");
            assert!(wait.results.is_empty(), "no result follows the last one");
            release(wait);
        }
        Some(outcome)
    }

    /// Ends a queued wait as cancelled.
    pub(crate) fn end(&mut self, id: OpHandle) {
        let wait = self.waits.held(id);
        assert_eq!(wait.stage, Stage::Queued, "the engine ends submitted operations");
        wait.stage = Stage::Ended;
        let cancelled = Outcome { result: Err(Errno::CANCELED), more: false, payload: Payload::None };
        self.outcomes.push(&mut wait.results, cancelled);
    }

    /// Drops the results of a wait from now on. After the last result, `closes` is closed.
    pub(crate) fn leave(&mut self, id: OpHandle, closes: Option<Fd>) {
        let wait = self.waits.held(id);
        assert_eq!(wait.owner, Owner::Task, "an operation is left once");
        (wait.owner, wait.closes, wait.waiter) = (Owner::Dropped, closes, Waiter::Empty);
        self.outcomes.clear(&mut wait.results);
    }

    /// Whether operations whose results are dropped are still in flight: descriptors that are being closed.
    pub(crate) fn closing(&self) -> bool {
        self.waits.iter().any(|(_, wait)| wait.owner == Owner::Dropped)
    }

    pub(crate) fn get(&mut self, id: OpHandle) -> Option<&mut OpState> {
        self.waits.get(id)
    }

    /// Frees a wait and its results; its identifier is invalid from now on.
    pub(crate) fn release(&mut self, id: OpHandle) {
        let mut wait = self.waits.in_use(id).expect("a wait is released once");
        self.outcomes.clear(&mut wait.results);
        release(wait);
    }

    /// Records the engine's identifier of a submitted operation.
    pub(crate) fn set_in_flight(&mut self, id: OpHandle, op: OpId) {
        self.waits.held(id).stage = Stage::InFlight(op);
    }

    /// Stores a completion in its wait.
    pub(crate) fn file(&mut self, completion: Completion) -> Filed {
        let Completion { id: op, token, result, more, payload } = completion;
        let id = OpHandle::unpack(token);
        let Some(mut wait) = self.waits.in_use(id) else {
            self.unmatched += 1;
            return Filed::default();
        };
        debug_assert_eq!(wait.stage, Stage::InFlight(op), "a completion is of an operation in the engine");
        let mut filed = Filed::default();
        if wait.owner == Owner::Task {
            self.outcomes.push(&mut wait.results, Outcome { result, more, payload });
            wait.capacity = wait.capacity.saturating_sub(1);
            filed.wake = std::mem::take(&mut wait.waiter);
            // Backpressure: further data stays in the kernel's buffers until a task has taken these results.
            if more && wait.capacity == 0 && !wait.cancelled {
                wait.cancelled = true;
                filed.cancel = Some(op);
            }
        }
        if !more {
            wait.stage = Stage::Ended;
            if wait.owner == Owner::Dropped {
                filed.close = wait.closes.take();
                release(wait);
            }
        }
        filed
    }
}

/// Frees a wait without results.
fn release(mut wait: InUse<'_, OpState>) {
    (wait.stage, wait.owner, wait.closes, wait.waiter) = (Stage::Free, Owner::Task, None, Waiter::Empty);
    wait.end();
}

/// One result of an operation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<u32, Errno>,
    /// Whether further results follow.
    pub(crate) more: bool,
    pub(crate) payload: Payload,
}

/// End of a list of results, and of the free list.
const NONE: u32 = u32::MAX;

/// The results of all operations of a runtime.
pub(crate) struct Outcomes {
    cells: Vec<OutcomeCell>,
    free: u32,
}

struct OutcomeCell {
    /// `None` in a free cell.
    outcome: Option<Outcome>,
    /// The next result of the same operation, or the next free cell.
    next: u32,
}

/// The results of one operation, in the order of arrival.
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
        Outcomes { cells: Vec::new(), free: NONE }
    }
}

impl Outcomes {
    /// Appends a result to a list.
    pub(crate) fn push(&mut self, results: &mut Results, outcome: Outcome) {
        let cell = OutcomeCell { outcome: Some(outcome), next: NONE };
        let index = if self.free == NONE {
            self.cells.push(cell);
            (self.cells.len() - 1) as u32
        } else {
            let index = self.free;
            let free = &mut self.cells[index as usize];
            assert!(free.outcome.is_none(), "a free place has no result");
            self.free = free.next;
            *free = cell;
            index
        };
        match results.is_empty() {
            true => results.first = index,
            false => {
                let last = &mut self.cells[results.last as usize];
                assert!(last.next == NONE && last.outcome.is_some(), "the last result ends the line");
                last.next = index;
            }
        }
        results.last = index;
    }

    /// Removes and returns the first result of a list.
    pub(crate) fn pop(&mut self, results: &mut Results) -> Option<Outcome> {
        let cell = self.cells.get_mut(results.first as usize)?;
        let free = std::mem::replace(&mut self.free, results.first);
        results.first = std::mem::replace(&mut cell.next, free);
        let outcome = cell.outcome.take();
        assert!(outcome.is_some(), "a place in a list has a result");
        outcome
    }

    /// Frees the memory of the cells if none is in use.
    pub(crate) fn trim(&mut self) {
        if self.cells.iter().all(|cell| cell.outcome.is_none()) {
            *self = Outcomes::default();
        }
    }

    /// Drops all results of a list.
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
    fn each_operation_gets_its_results_in_order() {
        let mut all = Outcomes::default();
        let mut lines = [Results::default(), Results::default(), Results::default()];
        let mut next = [(0, 0); 3];
        // Of three lists, one grows, one keeps one result, and one is emptied from time to time.
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
        assert!(all.cells.len() < 80, "places are used again");
    }
}
