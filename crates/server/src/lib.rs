//! The HTTP server: combines listeners, connections, requests in phases, modules and logs.
//!
//! [`load`] reads a configuration, [`process`] runs it on worker threads. Input and output of worker threads use the handles of
//! crate `rt`.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `conf`, `tls`, `acme`, `telemetry`, `transfer`, `site`, `exchange`,
//! `peers`, `upstream`, `caching`, `frontend`, `modules`, `thread-alloc`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`mod@rehearse`] | runs the course of a request without effects, for `explain` |
//! | [`process`] | runs the threads of a worker: `engine` selects the engine, `worker_thread` runs a thread |
//! | [`memory`] | returns unused memory to the system |
//! | [`pressure`], [`memory_limit`] | when memory is scarce; the limit of a cgroup |
//! | [`acme`] | passes challenges and certificates to the threads |
//! | [`mod@reference`], [`mod@counters`], [`mod@explain`] | the tables for the generated pages, for `-V` and for `check` |
//! | [`synopses`] | the arguments of directives, and examples, for these pages and for `help` |
#![forbid(unsafe_code)]

pub mod acme;
mod counters;
mod explain;
mod memory;
mod memory_limit;
mod pressure;
pub mod process;
mod reference;
mod rehearse;
mod synopses;

pub use caching::inspect::EntryQuery;
pub use counters::counters;
pub use exchange::phases::Phase;
pub use exchange::rehearsal::{Event, Note, Passed};
pub use explain::{explain, movers};
pub use modules::status::watch::{Filter, FilterError};
pub use reference::{configure_arguments, reference};
pub use rehearse::{Course, Question, rehearse};
use site::config;
pub use synopses::{DirectiveEntry, directive_entries, directive_help, directive_names};
pub use telemetry;
pub use tls::{quic, tickets};
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
    let servers = groups.filter_map(|group| group.state_file.clone());
    servers.chain(modules::keyval_state_files(config)).collect()
}
