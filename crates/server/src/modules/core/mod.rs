//! The `main` and `events` contexts: nginx's core, its event modules, logs of errors, thread pools.
//!
//! `conf` holds the settings, `main` and `events` the directives. Carrying the settings out is up to the
//! process and its threads.

mod conf;
mod events;
mod load_module;
mod main;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

pub use conf::{Affinity, EventsConf, MainConf, Method, ProcessKey, ThreadPoolSpec, UserSpec, Workers};
pub(crate) use events::BUFFER_POOL_MIN;
pub(crate) use main::read_error_log;

use crate::modules::Module;

/// Whether this process began with super-user rights. A worker gives them up and must still read the same
/// configuration the same way, so the first answer stays.
pub(crate) fn started_as_root() -> bool {
    static AS_ROOT: LazyLock<bool> = LazyLock::new(|| rustix::process::geteuid().is_root());
    *AS_ROOT
}

/// The module.
pub static MODULE: Module =
    Module { directives: &[main::DIRECTIVES, events::DIRECTIVES], ..Module::named("nginx") };
