//! `proxy_pass`: requests to upstream servers and their responses.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod bodies;
mod exchange;
mod health_checks;
mod hostile;
mod pass;
mod queue;
mod representation;
mod resolve;
mod settings;
mod sockets;
mod splice;
mod streams;
mod traces;
mod tunnel_ends;
mod variables;
