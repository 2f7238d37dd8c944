//! Settings that blocks inherit from the block around them.
//!
//! A scope is cloned for each block inside of it and then changed by that block's directives, so what is
//! not set stays as it was outside. Lists follow nginx: a directive that may be repeated replaces what was
//! inherited with its first use in a block and adds with the next ones; [`Layered`] does that.

use std::sync::Arc;

use crate::config::settings::{Inner, Settings, SettingsTable, Slots, Start};
use crate::modules::{http_core, log};

/// The settings of one block: those of the core, and a slot for each module that has any.
#[derive(Clone, Debug)]
pub struct Scope {
    slots: Slots,
    pub(crate) core: http_core::Conf,
    pub(crate) log: log::Conf,
}

impl Scope {
    /// What the outermost block starts with.
    pub(crate) fn start(table: &'static SettingsTable, start: &mut Start<'_>) -> Scope {
        Scope {
            slots: Slots::start(table, start),
            core: http_core::Conf::under(start.prefix),
            log: log::Conf::under(start.prefix, &mut start.http.targets),
        }
    }

    /// The settings of one module.
    pub fn of<C: Settings>(&self) -> &C {
        self.slots.of()
    }

    /// The settings of one module, to be kept by its handlers.
    pub fn shared<C: Settings>(&self) -> Arc<C> {
        self.slots.shared()
    }

    /// The settings of one module, to be changed for this block.
    pub fn own<C: Settings>(&mut self) -> &mut C {
        self.slots.own()
    }

    /// What a block inside of this one starts with.
    pub(crate) fn inherit(&self) -> Scope {
        self.inherit_into(Inner::Block)
    }

    /// What a block of this kind inside of this one starts with.
    pub(crate) fn inherit_into(&self, inner: Inner) -> Scope {
        Scope { slots: self.slots.inherit(inner), core: self.core.inherit(), ..self.clone() }
    }
}

/// A list that a block either inherits or makes anew.
#[derive(Debug)]
pub struct Layered<T> {
    items: Arc<Vec<T>>,
    /// The block that made the list; 0 is nobody's.
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
    /// The list of the block with this number, emptied first if it was inherited.
    pub fn own(&mut self, block: u32) -> &mut Vec<T> {
        let items = Arc::make_mut(&mut self.items);
        if self.block != block {
            items.clear();
            self.block = block;
        }
        items
    }
}

impl<T> Layered<T> {
    /// Whether the list was made by the block with this number.
    pub fn is_of(&self, block: u32) -> bool {
        self.block == block
    }

    /// What is in force.
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
    fn a_block_replaces_what_it_inherited_and_adds_to_its_own() {
        let mut outer = Layered::<u8>::default();
        outer.own(1).push(1);
        outer.own(1).push(2);
        let mut inner = outer.clone();
        assert_eq!(inner.items(), [1, 2]);
        inner.own(2).push(3);
        inner.own(2).push(4);
        assert_eq!(inner.items(), [3, 4]);
        assert_eq!(outer.items(), [1, 2]);
    }
}
