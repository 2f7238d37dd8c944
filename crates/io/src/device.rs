//! Limits per device, so that a slow device cannot occupy every worker and every slot that all devices share.
//!
//! Work that may occupy a worker first passes the limit of its device; beyond the device's share, it is queued here, in
//! order. An engine has a limit for io_uring's kernel workers, a thread pool has one for its threads. [`DiskSlots`] is
//! the limit for the table of operations. This module does not depend on the kind of work.

use std::collections::VecDeque;

use crate::op::DeviceId;

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
        let place = self.place(device).unwrap_or_else(|| {
            self.devices.push((device, Share { inside: 0, waiting: VecDeque::new() }));
            self.devices.len() - 1
        });
        let share = &mut self.devices[place].1;
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
        let place = self.place(device).expect("a device with work inside is known");
        let share = &mut self.devices[place].1;
        assert!(share.inside > 0, "work that ends was in flight");
        if let Some(next) = share.waiting.pop_front() {
            return Some(next);
        }
        share.inside -= 1;
        // Idle devices are removed: device IDs are taken from files, and there may be many.
        if share.inside == 0 {
            self.devices.swap_remove(place);
        }
        None
    }

    /// Removes work from the queue of its device.
    pub(crate) fn withdraw(&mut self, device: DeviceId, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let place = self.place(device)?;
        assert!(self.devices[place].1.inside > 0, "an idle device was removed");
        let waiting = &mut self.devices[place].1.waiting;
        let found = waiting.iter().position(is_it)?;
        waiting.remove(found)
    }

    fn place(&self, device: DeviceId) -> Option<usize> {
        self.devices.iter().position(|(known, _)| *known == device)
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
        let own = self.place(device).map_or(0, |place| self.devices[place].1);
        own + self.used < self.max
    }

    /// Counts an operation of the device.
    pub(crate) fn enter(&mut self, device: DeviceId) {
        self.used += 1;
        match self.place(device) {
            Some(place) => self.devices[place].1 += 1,
            None => self.devices.push((device, 1)),
        }
    }

    /// Records that an operation of the device has ended. Not inlined, because the end of an operation is inlined into
    /// every backend.
    #[inline(never)]
    pub(crate) fn leave(&mut self, device: DeviceId) {
        let place = self.place(device).expect("a device with operations in the table is known");
        let own = &mut self.devices[place].1;
        assert!(*own > 0 && self.used > 0, "an operation that ends was counted");
        self.used -= 1;
        *own -= 1;
        if *own == 0 {
            self.devices.swap_remove(place);
        }
    }

    fn place(&self, device: DeviceId) -> Option<usize> {
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
