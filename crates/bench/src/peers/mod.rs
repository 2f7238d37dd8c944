//! The servers and tools that this server and its engines are compared with. Each is searched on the machine; scenarios
//! omit those that are not installed and report the reason.
//!
//! [`client`] is a blocking client; [`tool`] finds programs and their versions; [`port`] reserves ports; [`server`] starts a web
//! server, Ringroad or a peer, with a configuration and waits until it responds.

pub(crate) mod client;
pub(crate) mod port;
pub(crate) mod server;
pub(crate) mod tool;
