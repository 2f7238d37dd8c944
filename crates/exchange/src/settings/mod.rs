//! Settings of the core that request processing uses. Their directives are in `http_core` of crate `modules`.

pub mod charset;
pub mod core;
pub mod events;
pub mod files;
pub mod gzip_clients;
pub mod keepalive;
pub mod listen;
pub mod locations;
pub mod main;
pub mod media_types;
pub mod names;
pub mod pools;
pub mod reading;
pub mod responding;
pub mod types;
