//! Clients: accepted connections and their protocols. No module and no upstream is known here.
//!
//! [`accept`] takes connections from the listening sockets, [`entrance`] is the common state of those of one, [`wire`]
//! moves their bytes, [`h1`] is HTTP/1, [`h2`] is HTTP/2.
#![forbid(unsafe_code)]

pub mod accept;
pub mod entrance;
pub mod h1;
pub mod h2;
pub mod wire;
