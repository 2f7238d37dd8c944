//! The modules of nginx that pass requests on: `proxy` and its siblings with their common part [`passing`], the groups
//! of servers (`upstream`), names of servers, slices of responses. The only modules that make requests to upstreams.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its part in the phases.
#![forbid(unsafe_code)]

mod fastcgi;
mod grpc;
mod grpc_status;
mod memcached;
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

use exchange::module::{Directive, Module, Walk};
pub use fastcgi::advice;
pub use upstream_state::save;

/// In the order of the handlers inside a phase and then of the filters.
pub static MODULES: &[&Module] = &[
    &resolver::MODULE,
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
    // What passes requests on does so for a whole location, and for an `if` in one that another module answers for.
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

/// What the configurations of tests are read with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> = std::sync::LazyLock::new(|| {
        exchange::module::ModuleTable::new(&[core_modules::MODULES, guards::MODULES, MODULES])
    });
    &TABLE
}
