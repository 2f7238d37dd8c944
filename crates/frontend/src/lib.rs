//! Clients: accepted connections and what they speak. Nothing here knows a module or another server.
//!
//! [`accept`] takes connections from the listening sockets, [`h1`] is HTTP/1.
#![forbid(unsafe_code)]

pub mod accept;
pub mod h1;
