//! The modules of nginx that all others build on. They use no upstream.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its handlers.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `tls`, `acme`, `telemetry`, `transfer`, `site`,
//! `exchange`.
//!
//! | module | content |
//! |---|---|
//! | [`core`] | the contexts `main` and `events`; error logs, thread pools |
//! | [`http_core`] | the HTTP core: `reading` (requests and connections), `serving` (files and responses), `blocks`, `open_files` have the directives. Their values are fields in `site/settings`, `transfer/body/rules.rs` and `transfer/received.rs` |
//! | [`acme`] | certificates from certificate authorities |
//! | [`ssl`] | TLS to clients |
//! | [`http_v2`] | the directives of HTTP/2 |
//! | [`http_v3`] | `http_v3`: HTTP/3 and QUIC |
//! | [`log`] | `access_log`, `log_format` |
//! | [`rewrite`] | `rewrite`, `if`, `return`, `set`, `break` |
//! | [`try_files`] | the first of several files that exists |
//! | [`stream_core`] | the block `stream` and its servers |
//! | [`stream_pass`], [`stream_return`], [`stream_set`], [`stream_ssl_preread`] | another listening address; a text for the client; variables; the ClientHello of a client |
//! | [`mirror`] | copies of a request whose responses are ignored |
#![forbid(unsafe_code)]

mod acme;
mod core;
mod http_core;
mod http_v2;
mod http_v3;
mod log;
mod mirror;
mod rewrite;
mod ssl;
mod stream_core;
mod stream_pass;
mod stream_return;
mod stream_set;
mod stream_ssl_preread;
#[cfg(test)]
#[path = "../../modules/src/testing.rs"]
pub mod testing;
mod try_files;

pub use acme::issuers;
use exchange::module::Module;
pub use http_core::variables::NGINX_VERSION;
use site::declaration::{Declaration, Directive, Walk};
pub use ssl::{certificate_warnings, expiries};

use site::config::Location;

/// The modules, in the order of the handlers in a phase.
pub static MODULES: &[&Module] = &[
    &core::MODULE,
    &http_core::MODULE,
    // A server's ACME slots must exist before its handshakes are prepared.
    &acme::MODULE,
    &ssl::MODULE,
    &http_v2::MODULE,
    &http_v3::MODULE,
    &log::MODULE,
    &rewrite::MODULE,
    &try_files::MODULE,
    &mirror::MODULE,
    &stream_core::MODULE,
    &ssl::STREAM,
    &log::STREAM,
    &stream_set::MODULE,
    &stream_ssl_preread::MODULE,
    &stream_pass::MODULE,
    &stream_return::MODULE,
];

/// Whether a location may handle missing files itself, by `try_files` or a script of rewrite directives.
pub fn checks_files(location: &Location) -> bool {
    location.scope.of::<try_files::Conf>().is_active() || location.scope.of::<rewrite::Conf>().is_active()
}

/// Returns the modules that tests read configurations with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> =
        std::sync::LazyLock::new(|| exchange::module::ModuleTable::new(&[MODULES]));
    &TABLE
}
