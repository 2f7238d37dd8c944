//! The nginx modules that pass requests on: `proxy` and related modules with their common part [`passing`], upstream groups
//! (`upstream`), name resolution (`resolver`), slices of responses. No other modules send requests to upstreams.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its handlers in the phases.
#![forbid(unsafe_code)]

mod exposure;
mod fastcgi;
mod grpc;
mod grpc_status;
mod memcached;
mod ocsp;
mod passing;
mod proxy;
mod resolver;
mod scgi;
mod slice;
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
mod upstream_random;
mod upstream_state;
mod upstream_sticky;
mod upstream_zone;
mod uwsgi;

use exchange::module::Module;
pub use exposure::{may_tunnel, open_purge};
pub use fastcgi::advice;
use site::declaration::{Declaration, Directive, Walk};
pub use upstream_state::save;

/// In the order of the handlers within a phase, then of the filters.
pub static MODULES: &[&Module] = &[
    &exposure::MODULE,
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
];

/// Returns the modules that tests read configurations with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> = std::sync::LazyLock::new(|| {
        exchange::module::ModuleTable::new(&[core_modules::MODULES, guards::MODULES, MODULES])
    });
    &TABLE
}
