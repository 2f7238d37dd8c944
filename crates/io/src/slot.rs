//! The table of operations in flight.
//!
//! A slot owns its operation from submission to the terminal completion, and with it all memory that the kernel may
//! touch. Slots never move. A slot whose caller no longer exists is *abandoned*: its results are still collected, so
//! that descriptors are closed and buffers returned, but no completion is reported.
//!
//! ```text
//! Free --insert--> Busy --finish(more=false)--> Retired --recycle--> Free (next generation)
//!                   |                             ^
//!                   +--abandon--> Abandoned ------+
//! ```

use rustix::io::Errno;

use crate::device::DiskSlots;
use crate::op::{Completion, DeviceId, Op, OpId, Payload};

const CHUNK_SLOTS: usize = 256;

/// Divisor of the number of slots that gives the number for operations on files. The other slots are for sockets,
/// which must continue while disks hang.
const DISK_DIVISOR: usize = 2;

/// All slots of one engine.
pub(crate) struct Slots {
    /// Slots in chunks of [`CHUNK_SLOTS`]. The box of a freed chunk is empty until the chunk is needed again.
    chunks: Vec<Box<[Slot]>>,
    /// Generation of new slots: above those of freed slots, so that no identifier is used twice.
    first_generation: u32,
    /// Free slots, last in, first out: recently used slots stay in the CPU cache.
    free: Vec<u32>,
    /// Slots of ended operations whose completions may not have been returned yet.
    retired: Vec<u32>,
    max: usize,
    live: usize,
    /// The slots that operations on files use. `composite::backends`, which sets the routes, counts the operations when
    /// they start.
    pub(crate) disks: DiskSlots,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    pub(crate) unmatched: u64,
    /// The device of each operation that has ended and had used its device's share of workers. `composite::backends`
    /// empties the list.
    pub(crate) released: Vec<DeviceId>,
}

/// A slot for an operation.
#[derive(Default)]
pub(crate) struct Slot {
    generation: u32,
    state: SlotState,
    /// The operation; backends remove fields when they complete it.
    pub(crate) op: Option<Op>,
    /// The backend that has the operation, recorded when it starts.
    pub(crate) route: Route,
    /// The device whose share of workers the operation uses.
    pub(crate) gated: Option<DeviceId>,
}

/// The backend that carries out an operation, after unavailable backends were replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Route {
    /// The network backend.
    #[default]
    Net,
    /// io_uring, where the operation counts towards the limit of this device.
    Ring(DeviceId),
    /// libaio.
    Libaio(DeviceId),
    /// The thread pool with this index.
    Pool(u8, DeviceId),
    /// The threads for [`Op::Put`].
    PutPool(DeviceId),
    /// A blocking call.
    Sync,
}

impl Route {
    /// Returns the device whose limit of slots the operation counts against. A blocking call ends before a further
    /// operation is submitted, so it is not counted.
    pub(crate) fn device(self) -> Option<DeviceId> {
        match self {
            Route::Ring(device) | Route::Libaio(device) | Route::Pool(_, device) | Route::PutPool(device) => {
                Some(device)
            }
            Route::Net | Route::Sync => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    /// No operation.
    #[default]
    Free,
    /// In flight, with a caller.
    Busy,
    /// In flight without a caller.
    Abandoned,
}

impl Slots {
    /// Creates a table of at most `max` operations.
    pub(crate) fn new(max: u32) -> Slots {
        Slots {
            chunks: Vec::new(),
            first_generation: 0,
            free: Vec::new(),
            retired: Vec::new(),
            max: max as usize,
            live: 0,
            disks: DiskSlots::new((max as usize / DISK_DIVISOR).max(1)),
            submitted: 0,
            completed: 0,
            unmatched: 0,
            released: Vec::new(),
        }
    }

    /// Returns the number of operations in flight.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Adds an operation, or returns it when the table is full.
    pub(crate) fn insert(&mut self, op: Op) -> Result<OpId, Op> {
        if self.live >= self.max {
            return Err(op);
        }
        if self.free.is_empty() {
            self.add_chunk();
        }
        let index = self.free.pop().expect("a chunk was just added");
        assert!(self.live < self.max, "the table has room");
        self.live += 1;
        self.submitted += 1;
        let slot = self.at(index);
        assert!(slot.state == SlotState::Free && slot.op.is_none(), "a free slot has no operation");
        slot.state = SlotState::Busy;
        slot.route = Route::Net;
        slot.op = Some(op);
        Ok(OpId { slot: index, generation: slot.generation })
    }

    fn add_chunk(&mut self) {
        let place = self.chunks.iter().position(|chunk| chunk.is_empty()).unwrap_or_else(|| {
            self.chunks.push(Box::default());
            self.chunks.len() - 1
        });
        let fresh = || Slot { generation: self.first_generation, ..Slot::default() };
        self.chunks[place] = (0..CHUNK_SLOTS).map(|_| fresh()).collect();
        let first = (place * CHUNK_SLOTS) as u32;
        self.free.extend((first..first + CHUNK_SLOTS as u32).rev());
    }

    /// Frees chunks without an operation, and without a slot whose completion may not have been returned yet.
    pub(crate) fn trim(&mut self) {
        for (place, chunk) in self.chunks.iter_mut().enumerate().filter(|(_, chunk)| !chunk.is_empty()) {
            let is_retired = self.retired.iter().any(|&index| index as usize / CHUNK_SLOTS == place);
            if !is_retired && chunk.iter().all(|slot| slot.state == SlotState::Free) {
                let newest = chunk.iter().map(|slot| slot.generation).max().unwrap_or(0);
                self.first_generation = self.first_generation.max(newest.wrapping_add(1));
                *chunk = Box::default();
            }
        }
        let chunks = &self.chunks;
        self.free.retain(|&index| !chunks[index as usize / CHUNK_SLOTS].is_empty());
        self.free.shrink_to_fit();
    }

    /// Allows the slots of ended operations to be reused: their callers have received the completions. Until then, each
    /// slot has one identifier only, so that a caller's table by slot needs no further check.
    pub(crate) fn recycle(&mut self) {
        self.free.append(&mut self.retired);
        // Consistency check: each submitted operation has ended or is in flight.
        assert_eq!(self.submitted, self.completed + self.live as u64, "an operation was lost");
    }

    fn at(&mut self, index: u32) -> &mut Slot {
        &mut self.chunks[index as usize / CHUNK_SLOTS][index as usize % CHUNK_SLOTS]
    }

    /// Returns the slot of an operation that is in flight.
    pub(crate) fn get(&mut self, id: OpId) -> Option<&mut Slot> {
        let chunk = self.chunks.get_mut(id.slot as usize / CHUNK_SLOTS)?;
        let slot = chunk.get_mut(id.slot as usize % CHUNK_SLOTS)?;
        (slot.state != SlotState::Free && slot.generation == id.generation).then_some(slot)
    }

    /// Returns the slot of an operation that a backend has not finished.
    ///
    /// # Panics
    /// When the operation is not in flight: a defect of the backend.
    pub(crate) fn held(&mut self, id: OpId) -> &mut Slot {
        self.get(id).expect("a backend's operation is in flight until the backend finishes it")
    }

    /// Returns the operation that a backend has not finished, as [`Slots::held`].
    ///
    /// # Panics
    /// When the backend has removed the operation.
    pub(crate) fn op(&mut self, id: OpId) -> &mut Op {
        self.held(id).op.as_mut().expect("an operation is in its slot between calls")
    }

    /// Marks an operation as abandoned; returns whether it was in flight with a caller.
    pub(crate) fn abandon(&mut self, id: OpId) -> bool {
        match self.get(id) {
            Some(slot) if slot.state == SlotState::Busy => {
                slot.state = SlotState::Abandoned;
                true
            }
            _ => false,
        }
    }

    /// Whether an operation in flight is abandoned.
    pub(crate) fn is_abandoned(&mut self, id: OpId) -> bool {
        self.get(id).is_some_and(|slot| slot.state == SlotState::Abandoned)
    }

    /// Reports a result. Without `more`, the slot is free afterwards and its memory is dropped, so the kernel must no
    /// longer use it. Results of abandoned operations are dropped here: descriptors are closed, and buffers return to
    /// their pool.
    pub(crate) fn finish(
        &mut self,
        id: OpId,
        result: Result<u32, Errno>,
        more: bool,
        payload: Payload,
        out: &mut Vec<Completion>,
    ) {
        if !more {
            return self.end(id, out, |_, done| (done.result, done.payload) = (result, payload));
        }
        let Some(slot) = self.get(id) else {
            self.unmatched += 1;
            debug_assert!(false, "a completion for {id:?}, which is not in flight");
            return;
        };
        if slot.state != SlotState::Abandoned {
            out.push(Completion { id, result, more, payload });
        }
    }

    /// Ends an operation: its slot is free afterwards, and the kernel must no longer use its memory. `conclude` fills
    /// in the result and the payload; the rest of the operation is dropped. This happens in place: moving operations
    /// and completions would be half of the cost of a no-op.
    #[inline(always)]
    pub(crate) fn end(
        &mut self,
        id: OpId,
        out: &mut Vec<Completion>,
        conclude: impl FnOnce(&mut Op, &mut Completion),
    ) {
        let Some(slot) = self.get(id) else {
            self.unmatched += 1;
            debug_assert!(false, "an end of {id:?}, which is not in flight");
            return;
        };
        // As an iterator: with `push`, it would be built on the stack first.
        out.extend(std::iter::once_with(|| Completion {
            id,
            result: Ok(0),
            more: false,
            payload: Payload::None,
        }));
        let done = out.last_mut().expect("it was just added");
        conclude(slot.op.as_mut().expect("an operation is in its slot until it ends"), done);
        slot.op = None;
        assert_ne!(slot.state, SlotState::Free, "an operation ends once");
        if slot.state == SlotState::Abandoned {
            out.pop();
        }
        slot.state = SlotState::Free;
        slot.generation = slot.generation.wrapping_add(1);
        let disk = slot.route.device();
        if let Some(device) = slot.gated.take() {
            self.released.push(device);
        }
        if let Some(device) = disk {
            self.disks.leave(device);
        }
        self.retired.push(id.slot);
        assert!(self.live > 0, "an operation that ends was in flight");
        self.live -= 1;
        self.completed += 1;
    }

    /// Returns the identifiers of all operations in flight.
    pub(crate) fn in_flight(&self) -> Vec<OpId> {
        let slots = self.chunks.iter().enumerate().flat_map(|(place, chunk)| {
            chunk.iter().enumerate().map(move |(index, slot)| (place * CHUNK_SLOTS + index, slot))
        });
        slots
            .filter(|(_, slot)| slot.state != SlotState::Free)
            .map(|(index, slot)| OpId { slot: index as u32, generation: slot.generation })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_ids_are_never_reused() {
        let mut slots = Slots::new(1);
        let mut out = Vec::new();
        let first = slots.insert(Op::Nop).unwrap();
        assert!(slots.insert(Op::Nop).is_err(), "the table is full");
        slots.finish(first, Ok(0), false, Payload::None, &mut out);
        slots.recycle();
        let second = slots.insert(Op::Nop).unwrap();
        assert_eq!(first.slot, second.slot);
        assert_ne!(first, second);
        assert!(slots.get(first).is_none());
        assert_eq!(out.len(), 1);
    }

    #[test]
    fn freed_slot_chunks_are_reused_with_new_ids() {
        let mut slots = Slots::new(1000);
        let mut out = Vec::new();
        let ids: Vec<OpId> = (0..600).map(|_| slots.insert(Op::Nop).unwrap()).collect();
        // One operation of the second chunk remains.
        ids.iter()
            .filter(|id| id.slot != 300)
            .for_each(|&id| slots.finish(id, Ok(0), false, Payload::None, &mut out));
        let kept = ids[300];
        // Their completions were not returned yet.
        slots.trim();
        assert!(slots.chunks.iter().all(|chunk| !chunk.is_empty()));
        let other = slots.insert(Op::Nop).unwrap();
        assert!(ids.iter().all(|id| id.slot != other.slot));
        slots.finish(other, Ok(0), false, Payload::None, &mut out);
        slots.recycle();
        slots.trim();
        assert!(slots.chunks[0].is_empty() && slots.chunks[2].is_empty());
        assert!(slots.get(kept).is_some() && slots.get(ids[0]).is_none());
        assert_eq!(slots.in_flight(), [kept]);
        let again: Vec<OpId> = (0..600).map(|_| slots.insert(Op::Nop).unwrap()).collect();
        assert!(again.iter().all(|id| !ids.contains(id)));
    }

    #[test]
    fn results_of_abandoned_operations_are_dropped() {
        let mut slots = Slots::new(4);
        let mut out = Vec::new();
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let id = slots.insert(Op::Nop).unwrap();
        assert!(slots.abandon(id));
        assert!(!slots.abandon(id));
        slots.finish(id, Ok(3), false, Payload::Accepted(theirs), &mut out);
        assert!(out.is_empty());
        assert_eq!(rustix::io::read(&ours, &mut [0u8; 1]), Ok(0), "the writing end was closed");
        assert_eq!(slots.live(), 0);
    }
}
