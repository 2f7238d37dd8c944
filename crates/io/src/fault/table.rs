//! Operation identifiers of the fault engine's caller, mapped to those of the real engine.

use std::collections::HashMap;

use crate::op::OpId;

/// Operations by the caller's identifier.
pub(super) struct OpMap<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    /// The caller's identifier, by that of the real engine.
    joined: HashMap<OpId, OpId>,
}

impl<T> Default for OpMap<T> {
    fn default() -> OpMap<T> {
        OpMap { entries: Vec::new(), free: Vec::new(), joined: HashMap::new() }
    }
}

impl<T> OpMap<T> {
    /// Adds an operation.
    pub(super) fn insert(&mut self, live: T) -> OpId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[slot as usize];
        entry.1 = Some(live);
        OpId { slot, generation: entry.0 }
    }

    /// Records the identifier of the operation in the real engine.
    pub(super) fn join(&mut self, inner: OpId, id: OpId) {
        self.joined.insert(inner, id);
    }

    /// Removes the identifier of an operation that has ended in the real engine.
    pub(super) fn part(&mut self, inner: OpId) {
        self.joined.remove(&inner);
    }

    /// Returns the caller's identifier of an operation that has not ended for the caller.
    pub(super) fn outer(&mut self, inner: OpId) -> Option<OpId> {
        let id = *self.joined.get(&inner)?;
        self.get(id).map(|_| id)
    }

    pub(super) fn get(&mut self, id: OpId) -> Option<&mut T> {
        let (generation, live) = self.entries.get_mut(id.slot as usize)?;
        live.as_mut().filter(|_| *generation == id.generation)
    }

    /// Removes an operation; its identifier is invalid from now on.
    pub(super) fn remove(&mut self, id: OpId) -> Option<T> {
        self.get(id)?;
        let (generation, live) = &mut self.entries[id.slot as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(id.slot);
        live.take()
    }
}
