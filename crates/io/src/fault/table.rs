//! Names of operations as the caller of a fault engine sees them, beside those of the engine inside.

use std::collections::HashMap;

use crate::op::OpId;

/// Operations by the caller's name, and that name by the inner one.
pub(super) struct OpMap<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    /// The caller's name by the inner one.
    joined: HashMap<OpId, OpId>,
}

impl<T> Default for OpMap<T> {
    fn default() -> OpMap<T> {
        OpMap { places: Vec::new(), free: Vec::new(), joined: HashMap::new() }
    }
}

impl<T> OpMap<T> {
    /// Puts an operation in.
    pub(super) fn insert(&mut self, live: T) -> OpId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[slot as usize];
        place.1 = Some(live);
        OpId { slot, generation: place.0 }
    }

    /// Records the name of the operation in the inner engine.
    pub(super) fn join(&mut self, inner: OpId, id: OpId) {
        self.joined.insert(inner, id);
    }

    /// The inner name will not be heard of again.
    pub(super) fn part(&mut self, inner: OpId) {
        self.joined.remove(&inner);
    }

    /// The caller's name of an operation that is still live.
    pub(super) fn outer(&mut self, inner: OpId) -> Option<OpId> {
        let id = *self.joined.get(&inner)?;
        self.get(id).map(|_| id)
    }

    pub(super) fn get(&mut self, id: OpId) -> Option<&mut T> {
        let (generation, live) = self.places.get_mut(id.slot as usize)?;
        live.as_mut().filter(|_| *generation == id.generation)
    }

    /// Takes an operation out; its name is used up.
    pub(super) fn remove(&mut self, id: OpId) -> Option<T> {
        self.get(id)?;
        let (generation, live) = &mut self.places[id.slot as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(id.slot);
        live.take()
    }
}
