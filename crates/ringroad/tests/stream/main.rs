//! `stream`: sessions of TCP and their upstreams.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod geoip2;
mod health_checks;
mod limits;
mod pass;
mod programs;
mod real_peers;
mod reload;
mod sessions;
mod support;
mod tls;
mod udp;
mod udp_processes;
mod upstreams;
