//! The settings of `main`, `events` and the HTTP core that the processing of requests uses. Their directives are in
//! `core-modules/core` and `core-modules/http_core`; those of [`charset`] are in `filters/charset`.

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
pub mod session;
pub mod types;
