//! The operations in flight: their table, and the limits on those of each device.
//!
//! A slot owns its operation from submission to the terminal completion, and with it all memory that the kernel may
//! touch. An operation that a thread carries out has a slot too, but the thread owns it. Slots never move. A slot whose caller no longer exists is *abandoned*: its results are still collected, so
//! that descriptors are closed and buffers returned, but no completion is reported.
//!
//! ```text
//! Free --insert--> Busy ----------finish(more=false)--> Free (next generation)
//!                   |                             ^
//!                   +--abandon--> Abandoned ------+
//! ```
//!
//! A slow device must not occupy every slot and every worker that all devices share. [`DiskSlots`] is the limit for
//! slots. Work that may occupy a worker first passes the [`DeviceLimit`] of these workers; beyond the device's share,
//! it is queued there, in order. An engine has a limit for io_uring's kernel workers, a thread pool has one for its
//! threads. `DeviceLimit` does not depend on the kind of work.

use std::collections::VecDeque;

use rustix::io::Errno;

use crate::facts::DeviceId;
use crate::op::{Completion, NetOp, Op, OpId, Payload};
use crate::slab::Slab;
use crate::uring::state::RingState;

/// Divisor of the number of slots that gives the number for operations on files. The other slots are for sockets,
/// which must continue while disks hang.
const DISK_DIVISOR: usize = 2;

/// All slots of one engine.
pub(crate) struct Slots {
    table: Slab<Slot>,
    max: usize,
    /// The slots that operations on files use.
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
    /// The operation; backends remove fields when they complete it. [`Op::NOP`] in an unused slot, and while a thread
    /// has the operation.
    pub(crate) op: Op,
    /// The number with which the caller recognises the completion.
    token: u64,
    is_abandoned: bool,
    /// The backend that has the operation.
    pub(crate) route: Route,
    /// The device whose share of workers the operation uses.
    pub(crate) gated: Option<DeviceId>,
    /// The state in io_uring, if that has the operation.
    pub(crate) ring: RingState,
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
    /// The threads for [`crate::op::DiskOp::Put`].
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

impl Slots {
    /// Creates a table of at most `max` operations.
    pub(crate) fn new(max: u32) -> Slots {
        Slots {
            table: Slab::default(),
            max: max as usize,
            disks: DiskSlots::new((max as usize / DISK_DIVISOR).max(1)),
            submitted: 0,
            completed: 0,
            unmatched: 0,
            released: Vec::new(),
        }
    }

    /// Returns the number of operations in flight.
    pub(crate) fn live(&self) -> usize {
        self.table.len()
    }

    /// Whether no further operation can be added.
    pub(crate) fn is_full(&self) -> bool {
        self.table.len() >= self.max
    }

    /// Adds an operation for the backend of `route`, whose completions will have `token`.
    ///
    /// # Panics
    /// When the table is full.
    #[inline(always)]
    pub(crate) fn insert(&mut self, op: Op, token: u64, route: Route) -> OpId {
        assert!(!self.is_full(), "the table has room");
        self.submitted += 1;
        let (id, slot) = self.table.insert();
        let unused = std::mem::replace(&mut slot.op, op);
        debug_assert!(matches!(unused, Op::Net(NetOp::Nop)), "a free slot has no operation");
        // There is nothing to drop, which the compiler does not know.
        std::mem::forget(unused);
        slot.token = token;
        slot.is_abandoned = false;
        slot.route = route;
        if let Some(device) = route.device() {
            self.disks.enter(device);
        }
        id
    }

    /// Frees the memory of unused slots.
    pub(crate) fn trim(&mut self) {
        self.table.trim();
    }

    /// Checks that each submitted operation has ended or is in flight.
    pub(crate) fn check(&self) {
        assert_eq!(self.submitted, self.completed + self.table.len() as u64, "an operation was lost");
    }

    /// Returns the slot of an operation that is in flight.
    #[inline]
    pub(crate) fn get(&mut self, id: OpId) -> Option<&mut Slot> {
        self.table.get(id)
    }

    /// Returns the slot of an operation that a backend has not finished.
    ///
    /// # Panics
    /// When the operation is not in flight: a defect of the backend.
    #[inline]
    pub(crate) fn held(&mut self, id: OpId) -> &mut Slot {
        self.table.held(id)
    }

    /// Returns the operation that the network backend has not finished, as [`Slots::held`].
    ///
    /// # Panics
    /// When it is an operation on a file or path, which the network backend never gets.
    pub(crate) fn net(&mut self, id: OpId) -> &mut NetOp {
        match &mut self.held(id).op {
            Op::Net(op) => op,
            Op::Disk { op, .. } => panic!("the network backend has the operation on a file {op:?}"),
        }
    }

    /// Marks an operation as abandoned; returns whether it was in flight with a caller.
    pub(crate) fn abandon(&mut self, id: OpId) -> bool {
        self.get(id).is_some_and(|slot| !std::mem::replace(&mut slot.is_abandoned, true))
    }

    /// Whether an operation in flight is abandoned.
    pub(crate) fn is_abandoned(&mut self, id: OpId) -> bool {
        self.get(id).is_some_and(|slot| slot.is_abandoned)
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
        if !slot.is_abandoned {
            out.push(Completion { id, token: slot.token, result, more, payload });
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
        conclude: impl FnOnce(&mut Slot, &mut Completion),
    ) {
        let Some(mut slot) = self.table.in_use(id) else {
            self.unmatched += 1;
            debug_assert!(false, "an end of {id:?}, which is not in flight");
            return;
        };
        let token = slot.token;
        // `extend` creates the completion in place; `push` would create it on the stack and copy it.
        out.extend(std::iter::once_with(|| Completion {
            id,
            token,
            result: Ok(0),
            more: false,
            payload: Payload::None,
        }));
        let done = out.last_mut().expect("it was just added");
        conclude(&mut slot, done);
        slot.op = Op::NOP;
        if slot.is_abandoned {
            out.pop();
        }
        self.released.extend(slot.gated.take());
        if let Some(device) = slot.route.device() {
            self.disks.leave(device);
        }
        slot.end();
        self.completed += 1;
    }

    /// Ends an operation that returns only a result and the memory of its caller.
    pub(crate) fn end_with(&mut self, id: OpId, result: Result<u32, Errno>, out: &mut Vec<Completion>) {
        self.end(id, out, |slot, done| {
            done.result = result;
            slot.op.return_resources(result, &mut done.payload);
        });
    }

    /// Returns the identifiers of all operations in flight.
    pub(crate) fn in_flight(&self) -> Vec<OpId> {
        self.table.iter().map(|(id, _)| id).collect()
    }
}

/// The slots of the table of operations that operations on files may use, divided among their devices.
///
/// A device may use at most as many slots as remain for further devices. One device that hangs leaves half of the slots
/// to other devices, and two devices that hang leave at least a quarter.
pub(crate) struct DiskSlots {
    max: usize,
    used: usize,
    /// Devices with operations in the table and the number of these: few, so a list is searched.
    devices: Vec<(DeviceId, usize)>,
}

impl DiskSlots {
    /// Creates the limit for `max` operations of all devices.
    pub(crate) fn new(max: usize) -> DiskSlots {
        DiskSlots { max, used: 0, devices: Vec::new() }
    }

    /// Whether the device may use a further slot.
    pub(crate) fn has_room(&self, device: DeviceId) -> bool {
        let own = self.index_of(device).map_or(0, |index| self.devices[index].1);
        own + self.used < self.max
    }

    /// Counts an operation of the device.
    pub(crate) fn enter(&mut self, device: DeviceId) {
        self.used += 1;
        match self.index_of(device) {
            Some(index) => self.devices[index].1 += 1,
            None => self.devices.push((device, 1)),
        }
    }

    /// Records that an operation of the device has ended. Not inlined, because the end of an operation is inlined into
    /// every backend.
    #[inline(never)]
    pub(crate) fn leave(&mut self, device: DeviceId) {
        let index = self.index_of(device).expect("a device with operations in the table is known");
        let own = &mut self.devices[index].1;
        assert!(*own > 0 && self.used > 0, "an operation that ends was counted");
        self.used -= 1;
        *own -= 1;
        if *own == 0 {
            self.devices.swap_remove(index);
        }
    }

    fn index_of(&self, device: DeviceId) -> Option<usize> {
        self.devices.iter().position(|(known, _)| *known == device)
    }
}

/// The devices with work in flight, and the work that waits for them.
pub(crate) struct DeviceLimit<T> {
    /// Devices with work in flight: few, so a list is searched instead of a hash table.
    devices: Vec<(DeviceId, Share<T>)>,
    /// Number of times that work had to be queued, since start.
    pub(crate) queued: u64,
}

struct Share<T> {
    inside: usize,
    waiting: VecDeque<T>,
}

impl<T> Default for DeviceLimit<T> {
    fn default() -> DeviceLimit<T> {
        DeviceLimit { devices: Vec::new(), queued: 0 }
    }
}

impl<T> DeviceLimit<T> {
    /// Returns the work if it may start, because its device has less than `limit` in flight. Otherwise queues it, and
    /// [`DeviceLimit::leave`] returns it later.
    pub(crate) fn enter(&mut self, device: DeviceId, limit: usize, work: T) -> Option<T> {
        assert!(limit > 0, "a device may hold one worker");
        let index = self.index_of(device).unwrap_or_else(|| {
            self.devices.push((device, Share { inside: 0, waiting: VecDeque::new() }));
            self.devices.len() - 1
        });
        let share = &mut self.devices[index].1;
        assert!(share.inside > 0 || share.waiting.is_empty(), "work waits behind work of its device");
        if share.inside < limit {
            share.inside += 1;
            return Some(work);
        }
        share.waiting.push_back(work);
        self.queued += 1;
        None
    }

    /// Records that work of the device has ended; returns the next queued work, which is then in flight.
    pub(crate) fn leave(&mut self, device: DeviceId) -> Option<T> {
        let index = self.index_of(device).expect("a device with work inside is known");
        let share = &mut self.devices[index].1;
        assert!(share.inside > 0, "work that ends was in flight");
        if let Some(next) = share.waiting.pop_front() {
            return Some(next);
        }
        share.inside -= 1;
        // Idle devices are removed: device IDs are taken from files, and there may be many.
        if share.inside == 0 {
            self.devices.swap_remove(index);
        }
        None
    }

    /// Removes work from the queue of its device.
    pub(crate) fn withdraw(&mut self, device: DeviceId, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let index = self.index_of(device)?;
        assert!(self.devices[index].1.inside > 0, "an idle device was removed");
        let waiting = &mut self.devices[index].1.waiting;
        let found = waiting.iter().position(is_it)?;
        waiting.remove(found)
    }

    fn index_of(&self, device: DeviceId) -> Option<usize> {
        self.devices.iter().position(|(known, _)| *known == device)
    }
}

/// Returns the share of `workers` that one device may use: one in `device_share`, but at least one.
pub(crate) fn share_of(workers: usize, device_share: u32) -> usize {
    (workers / device_share.max(1) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_ends_makes_room() {
        let mut slots = Slots::new(1);
        let mut out = Vec::new();
        assert!(!slots.is_full());
        let first = slots.insert(Op::NOP, 7, Route::Net);
        assert!(slots.is_full());
        slots.finish(first, Ok(0), false, Payload::None, &mut out);
        assert_eq!((out.len(), out[0].token), (1, 7));
        assert!(!slots.is_full());
        slots.check();
    }

    #[test]
    fn results_of_abandoned_operations_are_dropped() {
        let mut slots = Slots::new(4);
        let mut out = Vec::new();
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let id = slots.insert(Op::NOP, 0, Route::Net);
        assert!(slots.abandon(id));
        assert!(!slots.abandon(id));
        slots.finish(id, Ok(3), false, Payload::Accepted(theirs), &mut out);
        assert!(out.is_empty());
        assert_eq!(rustix::io::read(&ours, &mut [0u8; 1]), Ok(0), "the writing end was closed");
        assert_eq!(slots.live(), 0);
    }

    const SLOW: DeviceId = DeviceId(1);
    const FAST: DeviceId = DeviceId(2);

    #[test]
    fn a_full_share_blocks_only_its_own_device() {
        let mut limit = DeviceLimit::default();
        assert_eq!(limit.enter(SLOW, 2, 0), Some(0));
        assert_eq!(limit.enter(SLOW, 2, 1), Some(1));
        assert_eq!(limit.enter(SLOW, 2, 2), None);
        assert_eq!(limit.enter(SLOW, 2, 3), None);
        assert_eq!(limit.enter(FAST, 2, 4), Some(4));
        assert_eq!(limit.queued, 2);
        assert_eq!(limit.leave(FAST), None);
        assert_eq!(limit.leave(SLOW), Some(2), "first in, first out");
        assert_eq!(limit.withdraw(SLOW, |&work| work == 3), Some(3));
        assert_eq!(limit.withdraw(SLOW, |&work| work == 3), None);
        assert_eq!(limit.leave(SLOW), None);
        assert_eq!(limit.leave(SLOW), None);
        assert!(limit.devices.is_empty());
    }

    #[test]
    fn devices_leave_slots_to_each_other() {
        fn fill(slots: &mut DiskSlots, device: DeviceId) -> usize {
            std::iter::from_fn(|| slots.has_room(device).then(|| slots.enter(device))).count()
        }
        let mut slots = DiskSlots::new(12);
        assert_eq!(fill(&mut slots, SLOW), 6);
        assert_eq!(fill(&mut slots, FAST), 3);
        assert_eq!(fill(&mut slots, DeviceId(3)), 2, "a third device has slots too");
        (0..6).for_each(|_| slots.leave(SLOW));
        assert_eq!(fill(&mut slots, SLOW), 4);
        assert_eq!((slots.used, slots.devices.len()), (9, 3));
    }

    #[test]
    fn every_device_may_use_at_least_one_worker() {
        assert_eq!(share_of(1, 4), 1);
        assert_eq!(share_of(32, 4), 8);
        assert_eq!(share_of(32, 0), 32);
    }
}
