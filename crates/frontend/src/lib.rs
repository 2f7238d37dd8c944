//! Clients: accepted connections and their protocols. This crate depends on no module and no upstream.
//!
//! [`accept`] accepts connections from the listening sockets; [`entrance`] is the state common to the connections of a socket.
//! [`opening`] finds the protocol of a connection: [`h1`] is HTTP/1, [`h2`] is HTTP/2. [`serve`] is these steps together. [`wire`]
//! transfers the bytes, and [`input`] holds those that were received and not yet used.
#![forbid(unsafe_code)]

pub mod accept;
pub mod entrance;
pub mod h1;
pub mod h2;
pub mod input;
pub mod opening;
pub mod serve;
pub mod wire;
