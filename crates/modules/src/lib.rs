//! The table of all modules, and the modules that show operators the state of the other modules.
//!
//! The modules are in crates below, by their role in request processing: [`core_modules`], [`guards`], [`gateways`],
//! [`handlers`], [`filters`]. A new module is a file there and a line in the `MODULES` of its crate.
#![forbid(unsafe_code)]

mod advice;
mod cache_counters;
pub mod status;
mod stub_status;
#[doc(hidden)]
pub mod testing;

use std::sync::LazyLock;

pub use advice::advice;
pub use core_modules::{certificate_warnings, issuers};
pub use exchange::module::{Module, ModuleTable};
pub use site::declaration::{Declaration, Directive, Set, Walk};

/// The modules of this crate, in the order of the handlers in a phase.
static MODULES: &[&Module] = &[&stub_status::MODULE, &cache_counters::MODULE, &status::MODULE];

/// Returns all modules, with their data for reading a configuration, in the order of the handlers in a phase and of the
/// filters. Both orders are nginx's: a filter gets the response as the filters before it changed it.
pub fn all() -> &'static ModuleTable {
    static TABLE: LazyLock<ModuleTable> = LazyLock::new(|| {
        ModuleTable::new(&[
            // Blocks and settings. The rewrite module precedes all other handlers of its phase, the access log precedes
            // the `log` phase handlers of the modules below.
            core_modules::MODULES,
            // Only these modules have handlers in the phases for limits and access.
            guards::MODULES,
            // Modules that proxy a complete location precede those that serve pages and files in it.
            gateways::MODULES,
            MODULES,
            // Modules that serve files are the last content handlers.
            handlers::MODULES,
            // Filters change the responses of all other modules.
            filters::MODULES,
        ])
    });
    &TABLE
}

#[cfg(test)]
mod tests;
