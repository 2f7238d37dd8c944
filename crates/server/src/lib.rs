//! The HTTP server: listeners, connections, requests in phases, modules, logs.
//!
//! [`load`] reads a configuration, [`process`] runs it on worker threads. This crate has no raw descriptors and no
//! blocking calls: all input and output uses the handles of crate `rt`.
#![forbid(unsafe_code)]

pub mod acme;
mod counters;
mod explain;
mod memory;
mod memory_limit;
mod pressure;
pub mod process;
mod reference;

pub use caching::inspect::EntryQuery;
pub use counters::counters;
pub use explain::{explain, movers};
pub use modules::status::watch::{Filter, FilterError};
pub use reference::{configure_arguments, reference};
use site::config;
pub use telemetry;
pub use tls::tickets;
pub use transfer::body::rules::Sending;
pub use upstream::names::missing as missing_names;

/// Reads and resolves a configuration. `prefix` is the base of relative paths.
pub fn load(
    source: &conf::Source,
    prefix: &std::path::Path,
    loader: &dyn conf::Loader,
) -> Result<config::Loaded, conf::Error> {
    let loaded = config::load(modules::all().declarations(), source, prefix, loader);
    // The statements need as much memory as the settings.
    thread_alloc::release_pages();
    loaded
}

/// Returns all errors of a configuration that [`load`] rejects.
pub fn examine(
    source: &conf::Source,
    prefix: &std::path::Path,
    loader: &dyn conf::Loader,
) -> config::Problems {
    config::examine(modules::all().declarations(), source, prefix, loader)
}

/// Returns the directives of all modules.
pub fn directives() -> &'static conf::Table {
    modules::all().declarations().specs()
}

/// Returns warnings of certificates that have expired or will soon, and the time until these warnings change.
pub fn certificate_warnings(config: &config::Config) -> (Vec<String>, Option<std::time::Duration>) {
    modules::certificate_warnings(&config.http, std::time::SystemTime::now())
}

/// Returns files that workers write while they serve, and that are read with the configuration.
pub fn state_files(config: &config::Config) -> Vec<std::path::PathBuf> {
    let groups = config.http.of::<peers::Upstreams>().groups();
    groups.filter_map(|group| group.state_file.clone()).collect()
}
