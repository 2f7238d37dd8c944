//! Settings that blocks inherit from the block around them.
//!
//! A scope is cloned for each inner block and then changed by that block's directives, so unset values stay as they
//! were outside. Lists follow nginx: a directive that may be repeated replaces the inherited values with its first use
//! in a block and adds with the next ones; [`conf::Layered`] does that.

use std::sync::Arc;

use crate::config::settings::{Inner, Settings, SettingsTable, Slots, Start};
use crate::settings::core::Core;

/// The settings of one block: those of the core, and a slot for each module that has any.
#[derive(Clone, Debug)]
pub struct Scope {
    slots: Slots,
    /// The settings of the core.
    pub core: Core,
}

impl Scope {
    /// The settings of the outermost block.
    pub fn start(table: &'static SettingsTable, start: &mut Start<'_>) -> Scope {
        Scope { slots: Slots::start(table, start), core: Core::under(start.prefix) }
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

    /// The initial settings of an inner block.
    pub fn inherit(&self) -> Scope {
        self.inherit_into(Inner::Block)
    }

    /// The initial settings of an inner block of this kind.
    pub fn inherit_into(&self, inner: Inner) -> Scope {
        Scope { slots: self.slots.inherit(inner), core: self.core.inherit() }
    }
}
