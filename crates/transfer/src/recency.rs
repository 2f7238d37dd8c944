//! Values in order of last use: a doubly linked list in a vector. Insertion, removal and use need no search, and no
//! allocation once the vector is large enough.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// The list.
#[derive(Debug)]
pub struct Recency<T> {
    nodes: Vec<Node<T>>,
    len: usize,
    /// The first free node; free nodes are linked through `older`.
    free: Option<ListSlot>,
    newest: Option<ListSlot>,
    oldest: Option<ListSlot>,
}

/// The slot of a value in the list. It is 1-based, so that `None` takes no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSlot(NonZeroU32);

#[derive(Debug)]
struct Node<T> {
    /// `None` in a free node.
    value: Option<T>,
    newer: Option<ListSlot>,
    older: Option<ListSlot>,
}

impl<T> Default for Recency<T> {
    fn default() -> Self {
        Recency { nodes: Vec::new(), len: 0, free: None, newest: None, oldest: None }
    }
}

impl<T> Recency<T> {
    /// Size in bytes of a value with its links.
    pub const NODE_LEN: usize = size_of::<Node<T>>();

    /// Returns an empty list in which this many values never move. If this much memory cannot be reserved, it is
    /// allocated as values arrive.
    pub fn with_room_for(values: usize) -> Self {
        let mut list = Recency::default();
        let _ = list.nodes.try_reserve_exact(values);
        list
    }

    /// Adds a value as the newest; returns its slot.
    pub fn insert(&mut self, value: T) -> ListSlot {
        let slot = match self.free {
            Some(slot) => {
                let node = self.node(slot);
                node.value = Some(value);
                self.free = node.older;
                slot
            }
            None => {
                self.nodes.push(Node { value: Some(value), newer: None, older: None });
                let count = u32::try_from(self.nodes.len()).ok().and_then(NonZeroU32::new);
                ListSlot(count.expect("so many values do not fit into memory"))
            }
        };
        self.link(slot);
        self.len += 1;
        slot
    }

    /// Removes a value; its slot is reused.
    pub fn remove(&mut self, slot: ListSlot) -> T {
        self.unlink(slot);
        assert!(self.len > 0, "a value that is removed was counted");
        self.len -= 1;
        let next = self.free.replace(slot);
        let node = self.node(slot);
        node.older = next;
        node.value.take().expect(IN_USE)
    }

    /// Releases the memory of free slots at the end.
    pub fn trim(&mut self) {
        while self.nodes.pop_if(|node| node.value.is_none()).is_some() {}
        self.nodes.shrink_to_fit();
        self.free = None;
        for (index, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| node.value.is_none()) {
            node.older = self.free;
            self.free = NonZeroU32::new(index as u32 + 1).map(ListSlot);
        }
    }

    /// Makes a value the newest; does nothing if it is already.
    pub fn touch(&mut self, slot: ListSlot) {
        if self.newest != Some(slot) {
            self.unlink(slot);
            self.link(slot);
        }
    }

    /// Returns the least recently used value.
    pub fn oldest(&self) -> Option<ListSlot> {
        self.oldest
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.len
    }

    /// Returns the next newer value.
    pub fn newer(&self, slot: ListSlot) -> Option<ListSlot> {
        self.nodes[slot.index()].newer
    }

    /// Returns all slots, the oldest first.
    pub fn slots(&self) -> impl Iterator<Item = ListSlot> {
        std::iter::successors(self.oldest, |&slot| self.newer(slot))
    }

    fn node(&mut self, slot: ListSlot) -> &mut Node<T> {
        &mut self.nodes[slot.index()]
    }

    /// Links a node at the newest end.
    fn link(&mut self, slot: ListSlot) {
        let before = self.newest.replace(slot);
        let node = self.node(slot);
        (node.newer, node.older) = (None, before);
        match before {
            Some(before) => self.node(before).newer = Some(slot),
            None => self.oldest = Some(slot),
        }
    }

    /// Unlinks a node; its slot stays allocated.
    fn unlink(&mut self, slot: ListSlot) {
        let node = self.node(slot);
        let (newer, older) = (node.newer, node.older);
        match newer {
            Some(newer) => self.node(newer).older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.node(older).newer = newer,
            None => self.oldest = newer,
        }
    }
}

/// Message for an access to a free slot.
const IN_USE: &str = "a slot is not used after its value was removed";

impl<T> Index<ListSlot> for Recency<T> {
    type Output = T;

    fn index(&self, slot: ListSlot) -> &T {
        self.nodes[slot.index()].value.as_ref().expect(IN_USE)
    }
}

impl<T> IndexMut<ListSlot> for Recency<T> {
    fn index_mut(&mut self, slot: ListSlot) -> &mut T {
        self.node(slot).value.as_mut().expect(IN_USE)
    }
}

impl ListSlot {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(list: &Recency<char>) -> String {
        let values: String = list.slots().map(|slot| list[slot]).collect();
        let mut back = String::new();
        let mut at = list.newest;
        while let Some(slot) = at {
            back.insert(0, list[slot]);
            at = list.nodes[slot.index()].older;
        }
        assert_eq!(values, back, "both ways are the same");
        values
    }

    #[test]
    fn values_are_inserted_removed_and_touched_at_any_position() {
        let mut list = Recency::default();
        let [a, b, c, d] = ['a', 'b', 'c', 'd'].map(|value| list.insert(value));
        for (slot, expected) in [(d, "abcd"), (a, "bcda"), (c, "bdac"), (c, "bdac")] {
            list.touch(slot);
            assert_eq!(values(&list), expected);
        }
        list[d] = 'D';
        for (slot, value, left) in [(d, 'D', "bac"), (b, 'b', "ac"), (c, 'c', "a"), (a, 'a', "")] {
            assert_eq!((list.remove(slot), values(&list).as_str()), (value, left));
        }
        assert_eq!((list.oldest(), list.newest), (None, None));
    }

    #[test]
    fn slots_are_reused() {
        let mut list = Recency::with_room_for(3);
        let places = ['a', 'b', 'c'].map(|value| list.insert(value));
        for slot in places {
            list.remove(slot);
        }
        assert_eq!(list.insert('d'), places[2], "the slot that was freed last is in the CPU cache");
        for value in ['e', 'f', 'g'] {
            list.insert(value);
        }
        assert_eq!((list.nodes.len(), values(&list).as_str()), (4, "defg"));
    }

    #[test]
    fn memory_of_unused_slots_is_released_from_the_end() {
        let mut list = Recency::default();
        let places = ['a', 'b', 'c', 'd', 'e'].map(|value| list.insert(value));
        for index in [4, 1, 3] {
            list.remove(places[index]);
        }
        list.trim();
        assert_eq!((list.nodes.len(), values(&list).as_str()), (3, "ac"));
        assert_eq!([list.insert('f'), list.insert('g')], [places[1], places[3]]);
        assert_eq!((list.count(), values(&list).as_str()), (4, "acfg"));
    }

    #[test]
    fn an_empty_list_needs_no_memory() {
        assert_eq!(size_of::<Option<ListSlot>>(), 4);
        assert_eq!(Recency::<Box<u8>>::NODE_LEN, 16);
    }
}
