//! The cache of `proxy_cache`.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod fetches;
mod freshness;
mod large_hits;
mod leader;
mod memory;
mod purge;
mod purge_rate;
mod ranges;
mod restart;
mod rfc;
mod sharing;
mod site;
mod slice;
mod stale_on_arrival;
mod temp;
