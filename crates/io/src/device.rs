//! Gates that keep a slow device from taking every worker that all devices share.
//!
//! Operations that may hold a kernel worker of the ring (work on paths, buffered reads, writes) pass the
//! gate of their device first; beyond its share they queue here, in order. The thread pools have the same
//! rule inside, because they are shared by all engines. Nothing here knows what an operation does.

use std::collections::VecDeque;

use crate::op::{DeviceId, OpId};

/// The gates of one engine.
pub(crate) struct Gates {
    /// Operations of one device that may be in the ring at once.
    share: usize,
    /// Those with an operation inside: few, so that they are looked through and not hashed.
    devices: Vec<(DeviceId, Gate)>,
    /// Operations that had to queue, since start.
    pub(crate) queued: u64,
}

#[derive(Default)]
struct Gate {
    inside: usize,
    waiting: VecDeque<OpId>,
}

impl Gates {
    /// Gates for `workers` workers of which a device may hold one in `device_share`, but at least one.
    pub(crate) fn new(workers: u32, device_share: u32) -> Gates {
        Gates { share: share_of(workers as usize, device_share), devices: Vec::new(), queued: 0 }
    }

    /// Whether the operation may start; otherwise it queues and [`Gates::leave`] names it later.
    pub(crate) fn enter(&mut self, device: DeviceId, id: OpId) -> bool {
        let place = self.place(device).unwrap_or_else(|| {
            self.devices.push((device, Gate::default()));
            self.devices.len() - 1
        });
        let gate = &mut self.devices[place].1;
        if gate.inside < self.share {
            gate.inside += 1;
            return true;
        }
        gate.waiting.push_back(id);
        self.queued += 1;
        false
    }

    /// An operation of the device has ended; answers the one that takes its place, which is inside now.
    pub(crate) fn leave(&mut self, device: DeviceId) -> Option<OpId> {
        let place = self.place(device).expect("an operation inside keeps its gate");
        let gate = &mut self.devices[place].1;
        if let Some(next) = gate.waiting.pop_front() {
            return Some(next);
        }
        gate.inside -= 1;
        // An idle device costs nothing: names of devices come from files, and there may be many.
        if gate.inside == 0 {
            self.devices.swap_remove(place);
        }
        None
    }

    /// Takes an operation out of its queue; whether it was in one.
    pub(crate) fn forget(&mut self, device: DeviceId, id: OpId) -> bool {
        let Some(at) = self.place(device) else { return false };
        let gate = &mut self.devices[at].1;
        let place = gate.waiting.iter().position(|&waiting| waiting == id);
        place.is_some_and(|place| gate.waiting.remove(place).is_some())
    }

    fn place(&self, device: DeviceId) -> Option<usize> {
        self.devices.iter().position(|(known, _)| *known == device)
    }
}

/// What one device may hold of `workers`: one in `device_share`, but at least one.
pub(crate) fn share_of(workers: usize, device_share: u32) -> usize {
    (workers / device_share.max(1) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: DeviceId = DeviceId(1);
    const FAST: DeviceId = DeviceId(2);

    fn id(slot: u32) -> OpId {
        OpId { slot, generation: 0 }
    }

    #[test]
    fn a_full_gate_stops_its_own_device_only() {
        let mut gates = Gates::new(8, 4);
        assert!(gates.enter(SLOW, id(0)));
        assert!(gates.enter(SLOW, id(1)));
        assert!(!gates.enter(SLOW, id(2)));
        assert!(!gates.enter(SLOW, id(3)));
        assert!(gates.enter(FAST, id(4)));
        assert_eq!(gates.queued, 2);
        assert_eq!(gates.leave(FAST), None);
        assert_eq!(gates.leave(SLOW), Some(id(2)), "first in, first out");
        assert!(gates.forget(SLOW, id(3)));
        assert!(!gates.forget(SLOW, id(3)));
        assert_eq!(gates.leave(SLOW), None);
        assert_eq!(gates.leave(SLOW), None);
        assert!(gates.devices.is_empty());
    }

    #[test]
    fn every_device_may_hold_one_worker() {
        assert_eq!(share_of(1, 4), 1);
        assert_eq!(share_of(32, 4), 8);
        assert_eq!(share_of(32, 0), 32);
    }
}
