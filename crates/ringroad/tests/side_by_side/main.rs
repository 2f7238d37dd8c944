//! The same requests to this server and to nginx, with the responses compared.
#![forbid(unsafe_code)]

#[path = "../rfc9111/mod.rs"]
mod cases;
#[path = "../common/mod.rs"]
mod common;
#[path = "../gateways/mod.rs"]
mod gateways;

mod access;
mod cache;
mod compress;
mod dav;
mod files;
mod filters;
mod gateway_requests;
mod headers_more;
mod limits;
mod memcached;
mod mp4;
mod proxy;
mod responses;
mod rewrite;
mod rfc9111;
mod tls;
mod tunnel;
mod upstreams;
