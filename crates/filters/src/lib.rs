//! The modules of nginx that change a response on its way: header fields, texts, codings, ranges. They open no file and
//! speak to no server.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its part in the phases.
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

use exchange::module::{Directive, Module};

/// In the order of the filters: each sees what those before it made of the response.
pub static MODULES: &[&Module] = &[
    // The conditions apply to the response assembled from slices.
    &not_modified::MODULE,
    // Its changes of requests are behind all rewriting, and those of responses before what adds to these.
    &headers_more::MODULE,
    &headers::MODULE,
    &userid::MODULE,
    &gunzip::MODULE,
    &addition::MODULE,
    &sub::MODULE,
    &charset::MODULE,
    &ssi::MODULE,
    // The first that the client takes compresses, in the same order; behind all that changes texts.
    &zstd::MODULE,
    &brotli::MODULE,
    &gzip::MODULE,
    &range::MODULE,
];

/// What the configurations of tests are read with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> =
        std::sync::LazyLock::new(|| exchange::module::ModuleTable::new(&[core_modules::MODULES, MODULES]));
    &TABLE
}
