//! HTTP/2 with clients.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod budgets;
mod cancellations;
mod compression;
mod faults;
mod hyper;
mod limits;
mod log_lines;
mod reloads;
mod requests;
mod servers;
mod tunnels;
mod windows;
