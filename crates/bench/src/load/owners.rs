//! The owner of each operation in an engine.

use io::OpId;

/// A value for each operation in flight, by its slot in the engine's table.
pub(crate) struct Owners<T>(Vec<Option<(u32, T)>>);

impl<T: Copy> Owners<T> {
    pub(crate) fn new() -> Owners<T> {
        Owners(Vec::new())
    }

    /// Stores the owner of an operation; replaces the former owner of the slot.
    pub(crate) fn set(&mut self, id: OpId, owner: T) {
        let slot = id.slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, None);
        }
        self.0[slot] = Some((id.generation, owner));
    }

    /// Returns the owner. An operation that has completed or was abandoned has none.
    pub(crate) fn of(&self, id: OpId) -> Option<T> {
        let (generation, owner) = (*self.0.get(id.slot as usize)?)?;
        (generation == id.generation).then_some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_owner() {
        let mut owners = Owners::new();
        let id = |generation| OpId { slot: 3, generation };
        assert_eq!(owners.of(id(1)), None);
        owners.set(id(1), 'a');
        owners.set(id(2), 'b');
        assert_eq!((owners.of(id(1)), owners.of(id(2))), (None, Some('b')));
    }
}
