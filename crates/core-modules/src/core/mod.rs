//! The `main` and `events` contexts: nginx's core, its event modules, error logs, thread pools.
//!
//! `main` and `events` have the directives. The process and its threads apply the settings.

mod events;
mod load_module;
mod main;
#[cfg(test)]
mod tests;

pub(crate) use main::read_error_log;

use crate::{Declaration, Module};

/// The module.
pub(crate) static MODULE: Module = Module::of(Declaration {
    directives: &[main::DIRECTIVES, events::DIRECTIVES],
    ..Declaration::named("nginx")
});
