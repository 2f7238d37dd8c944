//! Clients: accepted connections and their protocols. This crate depends on no module and no upstream.
//!
//! [`accept`] accepts connections from the listening sockets, [`entrance`] is the state common to the connections of a socket, and
//! [`wire`] transfers their bytes. [`h1`] is HTTP/1, [`h2`] is HTTP/2.
#![forbid(unsafe_code)]

pub mod accept;
pub mod entrance;
pub mod h1;
pub mod h2;
pub mod wire;
