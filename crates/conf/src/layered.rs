//! Lists that blocks inherit or replace.

use std::sync::Arc;

/// A list that a block either inherits or replaces.
#[derive(Debug)]
pub struct Layered<T> {
    items: Arc<Vec<T>>,
    /// Number of the block that defined the list; 0 if none did.
    block: u32,
}

impl<T> Clone for Layered<T> {
    fn clone(&self) -> Self {
        Layered { items: Arc::clone(&self.items), block: self.block }
    }
}

impl<T> Default for Layered<T> {
    fn default() -> Self {
        Layered { items: Arc::default(), block: 0 }
    }
}

impl<T: Clone> Layered<T> {
    /// Returns the list for changes in the block with this number. An inherited list is cleared first.
    pub fn make_mut(&mut self, block: u32) -> &mut Vec<T> {
        let items = Arc::make_mut(&mut self.items);
        if self.block != block {
            items.clear();
            self.block = block;
        }
        items
    }
}

impl<T> Layered<T> {
    /// Whether the block with this number defined the list.
    pub fn is_of(&self, block: u32) -> bool {
        self.block == block
    }

    /// Returns the effective list.
    pub fn items(&self) -> &[T] {
        &self.items
    }
}

impl<T> From<Vec<T>> for Layered<T> {
    fn from(items: Vec<T>) -> Self {
        Layered { items: Arc::new(items), block: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_replaces_inherited_values_and_adds_to_its_own() {
        let mut outer = Layered::<u8>::default();
        outer.make_mut(1).push(1);
        outer.make_mut(1).push(2);
        let mut inner = outer.clone();
        assert_eq!(inner.items(), [1, 2]);
        inner.make_mut(2).push(3);
        inner.make_mut(2).push(4);
        assert_eq!(inner.items(), [3, 4]);
        assert_eq!(outer.items(), [1, 2]);
    }
}
