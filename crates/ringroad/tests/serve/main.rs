//! Responses to HTTP/1 clients: files, locations, limits, logs, TLS.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../control/mod.rs"]
mod control;

mod auth_jwt;
mod basic;
mod bodies;
mod browser;
mod bytes;
mod compress;
mod debian;
mod delays;
mod examples;
mod faults;
mod filters;
mod geoip2;
mod limits;
mod lists;
mod local_tls;
mod locations;
mod log_lines;
mod log_targets;
mod logs;
mod oidc;
mod paths;
mod ranges;
mod refused;
mod resets;
mod room;
mod sandbox;
mod settings;
mod sites;
mod tls;
mod tls_borrowed;
mod tls_files;
mod tls_grade;
mod tls_ocsp;
mod tls_profiles;
mod tls_sessions;
mod tls_settings;
mod traces;
mod upstreams;
mod webdav;
