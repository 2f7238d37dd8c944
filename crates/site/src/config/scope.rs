//! Settings that blocks inherit from the enclosing block.
//!
//! A scope is cloned for each inner block and then changed by that block's directives, so unset values are inherited.
//! Lists follow nginx: the first use of a repeatable directive in a block replaces the inherited values, and later uses
//! add to them. [`conf::Layered`] implements this.

use std::sync::Arc;

use crate::config::settings::{Inner, Settings, SettingsTable, SettingsValues, Start};
use crate::settings::core::Core;

/// The settings of one block: those of the core, and a slot for each module with settings.
#[derive(Clone, Debug)]
pub struct Scope {
    values: SettingsValues,
    /// The settings of the core.
    pub core: Core,
}

impl Scope {
    /// Returns the settings of the outermost block.
    pub fn start(table: &'static SettingsTable, start: &mut Start<'_>) -> Scope {
        Scope { values: SettingsValues::start(table, start), core: Core::under(start.prefix) }
    }

    /// Returns the settings of a module.
    pub fn of<C: Settings>(&self) -> &C {
        self.values.of()
    }

    /// Returns the settings of a module as a shared pointer, for its handlers.
    pub fn shared<C: Settings>(&self) -> Arc<C> {
        self.values.shared()
    }

    /// Returns the settings of a module, to be changed for this block.
    pub fn make_mut<C: Settings>(&mut self) -> &mut C {
        self.values.make_mut()
    }

    /// Returns the initial settings of an inner block.
    pub fn inherit(&self) -> Scope {
        self.inherit_into(Inner::Block)
    }

    /// Returns the initial settings of an inner block of this kind.
    pub fn inherit_into(&self, inner: Inner) -> Scope {
        Scope { values: self.values.inherit(inner), core: self.core.inherit() }
    }
}
