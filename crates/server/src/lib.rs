//! The HTTP server: listeners, connections, requests in phases, modules, logs.
//!
//! [`config::load`] reads a configuration, [`process`] runs it on worker threads. No raw descriptor and no
//! blocking call lives here; bytes move through `rt`'s handles.
#![forbid(unsafe_code)]

mod base64;
mod body;
mod caching;
mod coding;
pub mod config;
mod connection;
mod explain;
pub mod extensions;
mod files;
mod incoming;
pub mod log;
mod memory;
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
mod shared_zone;
mod slots;
mod subrequest;
pub mod template;
mod thread;
mod upstream;
pub mod variables;
mod wildcard;
mod zone;

pub use explain::explain;
pub use reference::{configure_arguments, reference};
pub use resolve::missing as missing_names;
