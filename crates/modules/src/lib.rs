//! All modules of nginx: the table of them, and the modules that show operators the state of the others.
//!
//! The modules are in crates below, by their part in the life of a request: [`core_modules`], [`guards`], [`gateways`],
//! [`handlers`], [`filters`]. A new one is a file there and a line in the `MODULES` of its crate.
#![forbid(unsafe_code)]

mod advice;
mod cache_counters;
pub mod status;
mod stub_status;
#[doc(hidden)]
pub mod testing;

use std::sync::LazyLock;

pub use advice::advice;
pub use core_modules::{certificate_warnings, foreign_module, issuers};
pub use exchange::module::{Directive, Module, ModuleTable, Set, Walk};

/// Those of this crate, in the order of the handlers inside a phase.
static MODULES: &[&Module] = &[&stub_status::MODULE, &cache_counters::MODULE, &status::MODULE];

/// All modules, with their data for reading a configuration, in the order of the handlers inside a phase and then of
/// the filters, both as in nginx: a filter sees what those before it made of the response.
pub fn all() -> &'static ModuleTable {
    static TABLE: LazyLock<ModuleTable> = LazyLock::new(|| {
        ModuleTable::new(&[
            // Blocks and settings. Rewriting goes before all other handlers of its phase, the access log before what
            // the modules below do in the phase `log`.
            core_modules::MODULES,
            // Limits and access have phases in which only these modules take part.
            guards::MODULES,
            // What passes a whole location on goes before pages and files in it.
            gateways::MODULES,
            MODULES,
            // Files are the last content.
            handlers::MODULES,
            // They change what all the others made.
            filters::MODULES,
        ])
    });
    &TABLE
}

#[cfg(test)]
mod tests;
