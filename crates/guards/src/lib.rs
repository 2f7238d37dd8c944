//! The modules of nginx that judge a request before there is content: who its client is, what is known about it, and
//! whether it may go on. They make no content and speak to no server.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its part in the phases.
#![forbid(unsafe_code)]

mod access;
mod auth_basic;
mod auth_request;
mod browser;
mod geo;
mod geoip2;
mod limit_conn;
mod limit_req;
pub mod limit_zones;
mod map;
mod realip;
mod referer;
mod secure_link;
mod split_clients;
#[cfg(test)]
#[path = "../../modules/src/testing.rs"]
pub mod testing;

use exchange::config::Scope;
use exchange::module::{Directive, Module};

/// In the order of the handlers inside a phase.
pub static MODULES: &[&Module] = &[
    &map::MODULE,
    &geo::MODULE,
    &geoip2::MODULE,
    &split_clients::MODULE,
    &browser::MODULE,
    &referer::MODULE,
    &secure_link::MODULE,
    // Before the access modules, and what limits clients: both judge the address that this one finds.
    &realip::MODULE,
    &limit_req::MODULE,
    &limit_conn::MODULE,
    &access::MODULE,
    &auth_basic::MODULE,
    &auth_request::MODULE,
];

/// Whether anything keeps clients out. The kind of restriction, and its members, are up to the operator.
pub fn restricts(scope: &Scope) -> bool {
    scope.of::<access::Conf>().has_rules()
        || scope.of::<auth_basic::Conf>().is_active()
        || scope.of::<auth_request::Conf>().is_active()
}

/// What the configurations of tests are read with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> =
        std::sync::LazyLock::new(|| exchange::module::ModuleTable::new(&[core_modules::MODULES, MODULES]));
    &TABLE
}
