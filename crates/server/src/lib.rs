//! The HTTP server: listeners, connections, requests in phases, modules, logs.
//!
//! [`load`] reads a configuration, [`process`] runs it on worker threads. No raw descriptor and no
//! blocking call lives here; bytes move through `rt`'s handles.
#![forbid(unsafe_code)]

mod base64;
mod body;
mod caching;
mod coding;
pub mod config;
mod connection;
mod error_log;
mod exchange;
mod explain;
pub mod extensions;
mod files;
mod incoming;
mod memory;
pub mod module;
pub mod modules;
mod network;
mod pattern;
pub mod phases;
pub mod process;
mod received;
mod recency;
mod reference;
pub mod request;
mod resolve;
pub mod response;
mod room;
pub mod settings;
mod shared;
mod shared_zone;
mod slots;
mod subrequest;
pub mod telemetry;
pub mod template;
mod thread;
mod upstream;
pub mod variables;
mod wildcard;

pub use explain::explain;
pub use reference::{configure_arguments, reference};
pub use resolve::missing as missing_names;

/// Reads and resolves a configuration. `prefix` is what relative paths start from.
pub fn load(
    source: &conf::Source,
    prefix: &std::path::Path,
    loader: &dyn conf::Loader,
) -> Result<config::Loaded, conf::Error> {
    config::load(modules::all(), source, prefix, loader)
}

/// The directives of all modules.
pub fn directives() -> &'static conf::Table {
    modules::all().specs()
}
