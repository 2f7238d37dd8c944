//! Names of operations as the caller of a fault engine sees them, beside those of the engine inside.

use crate::op::OpId;

/// Operations by the caller's name, and that name by the inner one.
pub(super) struct Table<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    /// By the slot of the inner name: its generation and the caller's name.
    joined: Vec<Option<(u32, OpId)>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { places: Vec::new(), free: Vec::new(), joined: Vec::new() }
    }
}

impl<T> Table<T> {
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

    /// Says what the engine inside calls the operation.
    pub(super) fn join(&mut self, inner: OpId, id: OpId) {
        let slot = inner.slot as usize;
        if slot >= self.joined.len() {
            self.joined.resize(slot + 1, None);
        }
        self.joined[slot] = Some((inner.generation, id));
    }

    /// The caller's name of an operation that is still live.
    pub(super) fn outer(&mut self, inner: OpId) -> Option<OpId> {
        let (generation, id) = (*self.joined.get(inner.slot as usize)?)?;
        (generation == inner.generation && self.get(id).is_some()).then_some(id)
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
