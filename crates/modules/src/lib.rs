//! The table of all modules, and the modules that show operators the state of the other modules.
//!
//! The other modules are in crates below, by their role in request processing: [`core_modules`], [`guards`], [`gateways`],
//! [`handlers`], [`filters`]. A new module is a file there and a line in the `MODULES` of its crate. Only this crate names all
//! modules.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `telemetry`, `transfer`, `site`, `exchange`, `peers`,
//! `upstream`, `caching`, `core-modules`, `guards`, `gateways`, `handlers`, `filters`.
//!
//! | module | content |
//! |---|---|
//! | [`stub_status`] | a page with the numbers of connections and requests |
//! | [`cache_counters`] | a page with the numbers of every cache |
//! | [`status`] | the pages for operators: `conf` (the settings of a block), `zones` (names of servers and locations, by which requests are counted); `metrics`, `api`, `dashboard`, `health` (the page for Prometheus; JSON, and changes of upstream servers; the page and its data; health checks); `limits`, `process` (results of `limit_req` and `limit_conn`; processor time, memory, descriptors); `watch` (single requests for `ringroad log`); `exposure` (warnings of pages that are open to all); `rebinding` (refuses reads from the same machine under names of other sites) |
//! | [`mod@advice`] | likely mistakes that only the settings of several modules together show, for `ringroad check` |
//! | [`testing`] | helpers for the tests of modules |
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
pub use guards::keyval::state_files as keyval_state_files;
pub use site::declaration::{Declaration, Directive, Set, Walk};

/// The modules of this crate, in the order of the handlers in a phase.
static MODULES: &[&Module] =
    &[&stub_status::MODULE, &cache_counters::MODULE, &status::MODULE, &status::SESSIONS];

/// Returns all modules, with their data for reading a configuration, in the order of the handlers in a phase and of the
/// filters. Both orders are nginx's: a filter gets the response as the filters before it changed it.
pub fn all() -> &'static ModuleTable {
    static TABLE: LazyLock<ModuleTable> = LazyLock::new(|| {
        ModuleTable::new(&[
            // A trace begins before the first handler that may respond.
            gateways::FIRST,
            // Blocks and settings. The rewrite module precedes all other handlers of its phase, the access log precedes
            // the `log` phase handlers of the modules below.
            core_modules::MODULES,
            // Besides `oidc`, only these modules have handlers in the phases for limits and access.
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
mod needs_tests;
#[cfg(test)]
mod tests;
