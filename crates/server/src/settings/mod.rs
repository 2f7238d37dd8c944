//! Settings of the core that the life of a request depends on. Their directives are in [`crate::modules::http_core`].

pub(crate) mod answering;
pub(crate) mod core;
pub mod events;
pub(crate) mod files;
pub(crate) mod gzip_clients;
pub(crate) mod keeping;
pub mod listen;
pub(crate) mod locations;
pub mod main;
pub(crate) mod media_types;
pub(crate) mod names;
pub(crate) mod reading;
pub(crate) mod types;
