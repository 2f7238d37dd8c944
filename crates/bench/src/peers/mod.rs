//! Servers and tools that this server and its engines are compared with: found, not assumed. One that is not
//! installed is left out by the scenarios, and named with the reason.
//!
//! [`client`] is a client of blocking calls; [`tool`] finds programs and asks for their versions; [`server`] starts a web server with a configuration, ours like
//! the others, and waits until it responds.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod tool;
