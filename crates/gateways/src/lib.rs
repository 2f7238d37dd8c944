//! The nginx modules that pass requests on. No other modules send requests to upstreams.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its handlers.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `jose`, `cache`, `tls`, `telemetry`, `transfer`, `site`,
//! `exchange`, `peers`, `upstream`, `caching`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`otel`] | traces for OpenTelemetry |
//! | [`oidc`] | logins at OpenID providers |
//! | [`health_check`] | active health checks |
//! | [`uwsgi`], [`scgi`], [`memcached`] | the protocols of that name |
//! | [`fastcgi`] | FastCGI |
//! | [`grpc`] | gRPC: `proxy` over HTTP/2, without buffering |
//! | [`grpc_status`] | errors of this server as a gRPC status; deadlines of calls |
//! | [`proxy`] | HTTP: `request` (the request that an upstream gets), `rewrites` (redirects and cookies) |
//! | [`tunnel`] | CONNECT |
//! | [`stream_proxy`] | the proxy of `stream` |
//! | [`passing`] | the common code of `proxy` and of the protocols whose directives differ only in the prefix |
//! | [`exposure`] | purges and tunnels that a location permits to every client, for warnings |
//! | [`mod@slice`] | a large response in slices, each a separate entry |
//! | [`upstream`] | variables about the upstreams of a request |
//! | [`upstream_hash`], [`upstream_ip_hash`], [`upstream_least_conn`], [`upstream_least_time`], [`upstream_random`] | methods to choose a server of a group |
//! | [`upstream_state`] | a file with the servers of a group |
//! | [`upstream_block`] | upstream groups and their servers |
//! | [`upstream_sticky`] | a client returns to the same server |
//! | [`upstream_keepalive`] | idle connections to the servers of a group |
//! | [`upstream_queue`] | requests that wait for a server of a group |
//! | [`upstream_zone`] | the name under which the state of servers passes to the next configuration |
//! | [`resolver`] | `resolver`, `resolver_timeout` |
//! | [`ocsp`] | gives worker threads access to OCSP responders |
//!
//! A protocol is a type that implements the traits `Family` and `Protocol` of `passing/protocol.rs`, and a module that names
//! its tables (decision 0063).
#![forbid(unsafe_code)]

mod exposure;
mod fastcgi;
mod grpc;
mod grpc_status;
mod health_check;
mod memcached;
mod ocsp;
mod oidc;
mod otel;
mod passing;
mod proxy;
mod resolver;
mod scgi;
mod slice;
mod stream_proxy;
#[cfg(test)]
#[path = "../../modules/src/testing.rs"]
pub mod testing;
mod tunnel;
mod upstream;
mod upstream_block;
mod upstream_hash;
mod upstream_ip_hash;
mod upstream_keepalive;
mod upstream_least_conn;
mod upstream_least_time;
mod upstream_queue;
mod upstream_random;
mod upstream_state;
mod upstream_sticky;
mod upstream_zone;
mod uwsgi;

use exchange::module::Module;
pub use exposure::{may_tunnel, open_purge};
pub use fastcgi::advice;
pub use oidc::restricts_by_login;
use site::declaration::{Declaration, Directive, Walk};
pub use upstream_state::save;

/// Modules whose handlers precede those of all other modules in their phases.
pub static FIRST: &[&Module] = &[&otel::MODULE];

/// In the order of the handlers within a phase, then of the filters.
pub static MODULES: &[&Module] = &[
    &exposure::MODULE,
    &oidc::MODULE,
    &resolver::MODULE,
    &ocsp::MODULE,
    &upstream::MODULE,
    &upstream_block::MODULE,
    &upstream_hash::MODULE,
    &upstream_ip_hash::MODULE,
    &upstream_least_conn::MODULE,
    &upstream_least_time::MODULE,
    &upstream_random::MODULE,
    &upstream_sticky::MODULE,
    &upstream_keepalive::MODULE,
    &upstream_queue::MODULE,
    &upstream_zone::MODULE,
    &upstream_state::MODULE,
    // These handlers serve a complete location, and also an `if` in a location that another module serves.
    &passing::MODULE,
    &proxy::MODULE,
    &fastcgi::MODULE,
    &uwsgi::MODULE,
    &grpc::MODULE,
    &grpc_status::MODULE,
    &scgi::MODULE,
    &memcached::MODULE,
    &tunnel::MODULE,
    &slice::MODULE,
    &health_check::MODULE,
    &resolver::STREAM,
    &stream_proxy::MODULE,
    &health_check::STREAM,
    &upstream_block::STREAM,
    &upstream_hash::STREAM,
    &upstream_least_conn::STREAM,
    &upstream_least_time::STREAM,
    &upstream_random::STREAM,
    &upstream_zone::STREAM,
];

/// Returns the modules that tests read configurations with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> = std::sync::LazyLock::new(|| {
        exchange::module::ModuleTable::new(&[FIRST, core_modules::MODULES, guards::MODULES, MODULES])
    });
    &TABLE
}
