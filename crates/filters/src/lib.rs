//! The modules of nginx that change a response before it is sent: header fields, texts, codings, ranges. They open no files and
//! connect to no server.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its filters.
//!
//! Crates of the workspace that it may use: `rt`, `http`, `conf`, `telemetry`, `transfer`, `site`, `exchange`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`not_modified`] | preconditions: 304 and 412 |
//! | [`headers_more`] | sets, replaces or removes fields of responses and of requests |
//! | [`headers`] | `add_header`, `add_trailer`, `expires` |
//! | [`userid`] | cookies that identify clients |
//! | [`gunzip`] | decompresses responses for clients that do not accept them |
//! | [`addition`] | the responses of subrequests before and after a body |
//! | [`sub`] | replaces texts |
//! | [`charset`] | declares and converts the charset of a text |
//! | [`ssi`] | server side includes |
//! | [`zstd`] | compression by Zstandard |
//! | [`brotli`] | compression by brotli |
//! | [`gzip`] | compression by gzip |
//! | [`compress`] | whether a response is compressed: the same for all codings |
//! | [`range`] | ranges of a body |
#![forbid(unsafe_code)]

mod addition;
mod brotli;
mod charset;
mod compress;
mod gunzip;
mod gzip;
mod headers;
mod headers_more;
mod not_modified;
mod range;
mod ssi;
mod sub;
#[cfg(test)]
#[path = "../../modules/src/testing.rs"]
pub mod testing;
mod userid;
mod zstd;

use exchange::module::Module;
use site::declaration::{Declaration, Directive};

/// The modules, in the order of the filters: each filter gets the response as changed by the filters before it.
pub static MODULES: &[&Module] = &[
    // First: a handler such as `slice` has already assembled the response that preconditions apply to.
    &not_modified::MODULE,
    // `headers_more` changes requests after all rewriting, and responses before modules that add fields.
    &headers_more::MODULE,
    &headers::MODULE,
    &userid::MODULE,
    &gunzip::MODULE,
    &addition::MODULE,
    &sub::MODULE,
    &charset::MODULE,
    &ssi::MODULE,
    // After all modules that change texts. The first coding in this order that the client accepts is used.
    &zstd::MODULE,
    &brotli::MODULE,
    &gzip::MODULE,
    &range::MODULE,
];

/// Returns the modules that tests read configurations with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> =
        std::sync::LazyLock::new(|| exchange::module::ModuleTable::new(&[core_modules::MODULES, MODULES]));
    &TABLE
}
