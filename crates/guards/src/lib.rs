//! The modules of nginx that process a request before its content: they determine the client, provide facts about it, and
//! decide whether the request may continue. They produce no content and connect to no server.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its handlers.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `jose`, `telemetry`, `transfer`, `site`, `exchange`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`limit_zones`] | the numbers of the zones of `limit_req` and `limit_conn`, for status pages |
//! | [`keyval`] | a variable that is looked up in a zone of pairs, which `api` changes |
//! | [`map`] | a variable that is looked up in a table |
//! | [`geo`] | a variable that depends on an address |
//! | [`geoip2`] | variables from a MaxMind database |
//! | [`split_clients`] | a variable that distributes clients by percentages |
//! | [`browser`] | the `User-Agent` field, classified |
//! | [`referer`] | `valid_referers` |
//! | [`secure_link`] | links that only the server can create |
//! | [`realip`] | the address of a client behind a trusted proxy |
//! | [`limit_req`] | the request rate per key |
//! | [`limit_conn`] | concurrent requests per key |
//! | [`access`] | `allow`, `deny` |
//! | [`auth_basic`] | basic authentication |
//! | [`auth_jwt`] | JSON Web Tokens |
//! | [`auth_request`] | a subrequest decides on access |
#![forbid(unsafe_code)]

mod access;
mod auth_basic;
mod auth_jwt;
mod auth_request;
mod browser;
mod geo;
mod geoip2;
pub mod keyval;
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

use exchange::module::Module;
use site::config::Scope;
use site::declaration::{Declaration, Directive};

/// The modules, in the order of the handlers in a phase.
pub static MODULES: &[&Module] = &[
    &map::MODULE,
    &keyval::MODULE,
    &geo::MODULE,
    &geoip2::MODULE,
    &split_clients::MODULE,
    &browser::MODULE,
    &referer::MODULE,
    &secure_link::MODULE,
    // Before the modules for access and limits, because both use the address that this module determines.
    &realip::MODULE,
    &limit_req::MODULE,
    &limit_conn::MODULE,
    &access::MODULE,
    &auth_basic::MODULE,
    &auth_jwt::MODULE,
    &auth_request::MODULE,
    &map::STREAM,
    &keyval::STREAM,
    &geo::STREAM,
    &geoip2::STREAM,
    &split_clients::STREAM,
    &realip::STREAM,
    &limit_conn::STREAM,
    &access::STREAM,
];

/// Whether any access restriction is configured, of whatever kind.
pub fn restricts(scope: &Scope) -> bool {
    scope.of::<access::Conf>().has_rules()
        || scope.of::<auth_basic::Conf>().is_active()
        || scope.of::<auth_jwt::Conf>().is_active()
        || scope.of::<auth_request::Conf>().is_active()
}

/// Returns the modules that tests read configurations with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> =
        std::sync::LazyLock::new(|| exchange::module::ModuleTable::new(&[core_modules::MODULES, MODULES]));
    &TABLE
}
