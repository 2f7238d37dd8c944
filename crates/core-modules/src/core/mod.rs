//! The `main` and `events` contexts: nginx's core, its event modules, logs of errors, thread pools.
//!
//! `conf` holds the settings, `main` and `events` the directives. Carrying the settings out is up to the
//! process and its threads.

mod events;
mod load_module;
pub use load_module::foreign_module;
mod main;
#[cfg(test)]
mod tests;

pub(crate) use main::read_error_log;

use crate::Module;

/// The module.
pub(crate) static MODULE: Module =
    Module { directives: &[main::DIRECTIVES, events::DIRECTIVES], ..Module::named("nginx") };
