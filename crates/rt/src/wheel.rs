//! A hierarchical timer wheel that is independent of the clock: callers insert entries with a tick, and receive due
//! entries.
//!
//! Four levels of 64 slots. A slot of level 0 is one tick; a slot of each further level is a full rotation of the level
//! below. An entry is stored in the highest level in which its tick differs from the current one, so it moves down at
//! most three times. The callers use ticks of one ms; this module does not depend on that. Main type: [`Wheel`].

const LEVELS: usize = 4;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Number of ticks that the wheel spans. An entry beyond is stored in the farthest slot and moved when that slot is
/// reached.
const SPAN: u64 = 1 << (SLOT_BITS * LEVELS as u32);
/// End of a list of entries.
const NONE: u32 = u32::MAX;

pub(crate) use io::slab::Key;
use io::slab::Slab;

/// Entries of type `T`, each with the tick at which it is due.
pub(crate) struct Wheel<T> {
    /// The current tick: all entries due up to it have been returned.
    now: u64,
    levels: [Level; LEVELS],
    entries: Slab<Entry<T>>,
}

#[derive(Clone)]
struct Level {
    /// One bit per slot, set if the slot is not empty.
    occupied: u64,
    heads: [u32; SLOTS],
}

struct Entry<T> {
    /// `None` in an unused entry.
    value: Option<T>,
    due: u64,
    position: WheelSlot,
    /// Neighbours in the slot's list.
    previous: u32,
    next: u32,
}

/// A slot of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WheelSlot {
    level: u8,
    slot: u8,
}

impl<T> Default for Entry<T> {
    fn default() -> Entry<T> {
        Entry { value: None, due: 0, position: WheelSlot::default(), previous: NONE, next: NONE }
    }
}

impl<T> Wheel<T> {
    /// Returns an empty wheel at tick 0.
    pub(crate) fn new() -> Wheel<T> {
        let level = Level { occupied: 0, heads: [NONE; SLOTS] };
        Wheel { now: 0, levels: std::array::from_fn(|_| level.clone()), entries: Slab::default() }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry. The next [`Wheel::advance`] returns an entry that is already due.
    pub(crate) fn insert(&mut self, due: u64, value: T) -> Key {
        let (key, entry) = self.entries.insert();
        assert!(entry.value.is_none(), "a free entry has no value");
        entry.due = due;
        entry.value = Some(value);
        self.link(key.slot, due);
        key
    }

    /// Removes an entry; returns `None` if it was returned or removed before.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let mut entry = self.entries.in_use(key)?;
        let Entry { previous, next, position, .. } = *entry;
        let value = entry.value.take();
        entry.end();
        self.unlink(previous, next, position);
        value
    }

    /// Frees the memory of unused entries.
    pub(crate) fn trim(&mut self) {
        self.entries.trim();
    }

    /// Returns the value of an entry that was not returned or removed yet.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.get(key)?.value.as_mut()
    }

    /// Returns the next tick at which [`Wheel::advance`] has work; no entry becomes due before this tick. It is the
    /// tick of the earliest entry if that entry is in level 0, otherwise the tick at which entries must be moved down.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next_slot().map(|(_, tick)| tick.max(self.now))
    }

    /// Sets the current tick to `now` and returns the due entries with their keys, in the order of slots.
    pub(crate) fn advance(&mut self, now: u64, mut due: impl FnMut(Key, T)) {
        while let Some((position, tick)) = self.next_slot().filter(|&(_, tick)| tick <= now) {
            self.now = self.now.max(tick);
            let mut index = self.levels[position.level as usize].take(position.slot);
            while index != NONE {
                let mut entry = self.entries.at(index);
                let (key, next, tick) = (entry.key(), entry.next, entry.due);
                if tick <= self.now {
                    let value = entry.value.take();
                    entry.end();
                    value.into_iter().for_each(|value| due(key, value));
                } else {
                    self.link(index, tick);
                }
                index = next;
            }
        }
        self.now = self.now.max(now);
    }

    /// Returns the first slot that is not empty, and its tick. Lower levels are checked first: their entries are due
    /// before the end of the current slot of the level above.
    fn next_slot(&self) -> Option<(WheelSlot, u64)> {
        let (number, level) = self.levels.iter().enumerate().find(|(_, level)| level.occupied != 0)?;
        let shift = SLOT_BITS * number as u32;
        let here = (self.now >> shift) & (SLOTS as u64 - 1);
        let ahead = level.occupied.rotate_right(here as u32).trailing_zeros();
        let slot = (here + u64::from(ahead)) & (SLOTS as u64 - 1);
        let tick = ((self.now >> shift) + u64::from(ahead)) << shift;
        Some((WheelSlot { level: number as u8, slot: slot as u8 }, tick))
    }

    /// Puts an entry into its slot, according to the current tick.
    fn link(&mut self, index: u32, due: u64) {
        // Entries that are due are put into the current slot. The farthest usable slot is the last one that cannot be
        // mistaken for the current slot.
        let due = due.max(self.now).min(self.now + SPAN - SPAN / SLOTS as u64);
        let differs = (due ^ self.now) | 1;
        let level = ((u64::BITS - 1 - differs.leading_zeros()) / SLOT_BITS) as usize;
        let level = level.min(LEVELS - 1);
        let slot = ((due >> (SLOT_BITS * level as u32)) & (SLOTS as u64 - 1)) as usize;
        let head = self.levels[level].heads[slot];
        if head != NONE {
            self.entries.at(head).previous = index;
        }
        let mut entry = self.entries.at(index);
        entry.position = WheelSlot { level: level as u8, slot: slot as u8 };
        entry.previous = NONE;
        entry.next = head;
        self.levels[level].heads[slot] = index;
        self.levels[level].occupied |= 1 << slot;
    }

    /// Removes an entry from the list of its slot.
    fn unlink(&mut self, previous: u32, next: u32, position: WheelSlot) {
        if next != NONE {
            self.entries.at(next).previous = previous;
        }
        if previous != NONE {
            self.entries.at(previous).next = next;
            return;
        }
        let level = &mut self.levels[position.level as usize];
        level.heads[position.slot as usize] = next;
        if next == NONE {
            level.occupied &= !(1 << position.slot);
        }
    }
}

impl Level {
    /// Empties a slot and returns the head of its list.
    fn take(&mut self, slot: u8) -> u32 {
        self.occupied &= !(1 << slot);
        std::mem::replace(&mut self.heads[slot as usize], NONE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn due_at(wheel: &mut Wheel<u32>, now: u64) -> Vec<u32> {
        let mut out = Vec::new();
        wheel.advance(now, |_, value| out.push(value));
        out.sort_unstable();
        out
    }

    #[test]
    fn entries_expire_at_their_tick() {
        let mut wheel = Wheel::new();
        for (value, tick) in
            [0, 1, 63, 64, 65, 4095, 4096, 262_143, 262_144, SPAN, 3 * SPAN + 5].iter().enumerate()
        {
            wheel.insert(*tick, value as u32);
        }
        assert_eq!(due_at(&mut wheel, 0), [0]);
        assert_eq!(wheel.next(), Some(1));
        assert_eq!(due_at(&mut wheel, 63), [1, 2]);
        assert_eq!(due_at(&mut wheel, 64), [3]);
        assert_eq!(due_at(&mut wheel, 4095), [4, 5]);
        assert_eq!(due_at(&mut wheel, 262_143), [6, 7]);
        assert_eq!(due_at(&mut wheel, 262_144), [8]);
        assert_eq!(due_at(&mut wheel, SPAN - 1), []);
        assert_eq!(due_at(&mut wheel, SPAN), [9]);
        assert_eq!(due_at(&mut wheel, 3 * SPAN + 4), []);
        assert_eq!(due_at(&mut wheel, 3 * SPAN + 5), [10]);
        assert_eq!(wheel.len(), 0);
    }

    #[test]
    fn a_removed_key_is_invalid() {
        let mut wheel = Wheel::new();
        let key = wheel.insert(5, 1);
        assert_eq!(wheel.remove(key), Some(1));
        let other = wheel.insert(5, 2);
        assert_eq!(wheel.remove(key), None);
        assert!(wheel.get_mut(key).is_none());
        assert_eq!(wheel.get_mut(other), Some(&mut 2));
    }

    /// One step of the comparison with a sorted map.
    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(usize),
        Advance(u64),
        ToNext,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let far = prop_oneof![0..70u64, 0..5000u64, 0..300_000u64, 0..2 * SPAN];
        let step = prop_oneof![
            4 => far.clone().prop_map(Step::Insert),
            1 => any::<usize>().prop_map(Step::Remove),
            2 => far.prop_map(Step::Advance),
            2 => Just(Step::ToNext),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn wheel_behaves_as_a_sorted_map(steps in steps()) {
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<(u64, u32), Key> = BTreeMap::new();
            let mut now = 0u64;
            for (number, step) in steps.into_iter().enumerate() {
                let value = number as u32;
                let to = match step {
                    Step::Insert(ahead) => {
                        model.insert((now + ahead, value), wheel.insert(now + ahead, value));
                        continue;
                    }
                    Step::Remove(which) => {
                        let Some((&(due, value), &key)) = model.iter().nth(which % model.len().max(1)) else { continue };
                        prop_assert_eq!(wheel.remove(key), Some(value));
                        model.remove(&(due, value));
                        continue;
                    }
                    Step::Advance(by) => now + by,
                    Step::ToNext => wheel.next().unwrap_or(now),
                };
                now = to;
                let mut out = Vec::new();
                wheel.advance(now, |_, value| out.push(value));
                let mut expected: Vec<u32> = model.keys().filter(|key| key.0 <= now).map(|key| key.1).collect();
                model.retain(|key, _| key.0 > now);
                out.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(out, expected);
                prop_assert_eq!(wheel.len(), model.len());
                let earliest = model.keys().next().map(|key| key.0);
                prop_assert_eq!(wheel.next().is_some(), earliest.is_some());
                if let (Some(next), Some(earliest)) = (wheel.next(), earliest) {
                    prop_assert!(next > now && next <= earliest, "next {next}, now {now}, earliest {earliest}");
                }
            }
        }
    }
}
