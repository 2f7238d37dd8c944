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
    free: Option<Place>,
    newest: Option<Place>,
    oldest: Option<Place>,
}

/// The slot of a value in the list. It is 1-based, so that `None` takes no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(NonZeroU32);

#[derive(Debug)]
struct Node<T> {
    /// `None` in a free node.
    value: Option<T>,
    newer: Option<Place>,
    older: Option<Place>,
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
    pub fn insert(&mut self, value: T) -> Place {
        let place = match self.free {
            Some(place) => {
                let node = self.node(place);
                node.value = Some(value);
                self.free = node.older;
                place
            }
            None => {
                self.nodes.push(Node { value: Some(value), newer: None, older: None });
                let count = u32::try_from(self.nodes.len()).ok().and_then(NonZeroU32::new);
                Place(count.expect("so many values do not fit into memory"))
            }
        };
        self.link(place);
        self.len += 1;
        place
    }

    /// Removes a value; its slot is reused.
    pub fn remove(&mut self, place: Place) -> T {
        self.unlink(place);
        self.len -= 1;
        let next = self.free.replace(place);
        let node = self.node(place);
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
            self.free = NonZeroU32::new(index as u32 + 1).map(Place);
        }
    }

    /// Makes a value the newest; does nothing if it is already.
    pub fn touch(&mut self, place: Place) {
        if self.newest != Some(place) {
            self.unlink(place);
            self.link(place);
        }
    }

    /// Returns the least recently used value.
    pub fn oldest(&self) -> Option<Place> {
        self.oldest
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.len
    }

    /// Returns the next newer value.
    pub fn newer(&self, place: Place) -> Option<Place> {
        self.nodes[place.index()].newer
    }

    /// Returns all slots, the oldest first.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        std::iter::successors(self.oldest, |&place| self.newer(place))
    }

    fn node(&mut self, place: Place) -> &mut Node<T> {
        &mut self.nodes[place.index()]
    }

    /// Links a node at the newest end.
    fn link(&mut self, place: Place) {
        let before = self.newest.replace(place);
        let node = self.node(place);
        (node.newer, node.older) = (None, before);
        match before {
            Some(before) => self.node(before).newer = Some(place),
            None => self.oldest = Some(place),
        }
    }

    /// Unlinks a node; its slot stays allocated.
    fn unlink(&mut self, place: Place) {
        let node = self.node(place);
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
const IN_USE: &str = "a place is forgotten with its value";

impl<T> Index<Place> for Recency<T> {
    type Output = T;

    fn index(&self, place: Place) -> &T {
        self.nodes[place.index()].value.as_ref().expect(IN_USE)
    }
}

impl<T> IndexMut<Place> for Recency<T> {
    fn index_mut(&mut self, place: Place) -> &mut T {
        self.node(place).value.as_mut().expect(IN_USE)
    }
}

impl Place {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(list: &Recency<char>) -> String {
        let values: String = list.places().map(|place| list[place]).collect();
        let mut back = String::new();
        let mut at = list.newest;
        while let Some(place) = at {
            back.insert(0, list[place]);
            at = list.nodes[place.index()].older;
        }
        assert_eq!(values, back, "both ways are the same");
        values
    }

    #[test]
    fn values_are_inserted_removed_and_touched_at_any_position() {
        let mut list = Recency::default();
        let [a, b, c, d] = ['a', 'b', 'c', 'd'].map(|value| list.insert(value));
        for (place, expected) in [(d, "abcd"), (a, "bcda"), (c, "bdac"), (c, "bdac")] {
            list.touch(place);
            assert_eq!(values(&list), expected);
        }
        list[d] = 'D';
        for (place, value, left) in [(d, 'D', "bac"), (b, 'b', "ac"), (c, 'c', "a"), (a, 'a', "")] {
            assert_eq!((list.remove(place), values(&list).as_str()), (value, left));
        }
        assert_eq!((list.oldest(), list.newest), (None, None));
    }

    #[test]
    fn slots_are_reused() {
        let mut list = Recency::with_room_for(3);
        let places = ['a', 'b', 'c'].map(|value| list.insert(value));
        for place in places {
            list.remove(place);
        }
        assert_eq!(list.insert('d'), places[2], "the one that left last is in the cache");
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
        assert_eq!(size_of::<Option<Place>>(), 4);
        assert_eq!(Recency::<Box<u8>>::NODE_LEN, 16);
    }
}
