//! nginx's modules: each owns its directives, its settings and their inheritance, its variables, and its
//! part in the phases. A new one is a file here, a line in [`MODULES`] and, when it has settings, a field
//! in [`crate::config::Scope`].

pub mod access;
pub mod addition;
pub mod auth_basic;
pub mod auth_request;
pub mod autoindex;
pub mod brotli;
pub mod brotli_static;
pub mod browser;
pub mod cache_counters;
pub mod charset;
pub mod core;
pub mod empty_gif;
pub mod geo;
pub mod gunzip;
pub mod gzip;
pub mod gzip_static;
pub mod headers;
pub mod http_core;
pub mod index;
pub mod limit_conn;
pub mod limit_req;
pub mod log;
pub mod map;
pub mod mirror;
pub mod not_modified;
pub mod proxy;
pub mod random_index;
pub mod range;
pub mod realip;
pub mod referer;
pub mod rewrite;
pub mod secure_link;
pub mod slice;
pub mod split_clients;
pub mod ssi;
pub mod ssl;
pub mod static_file;
pub mod stub_status;
pub mod sub;
pub mod try_files;
pub mod upstream;
pub mod upstream_block;
pub mod upstream_hash;
pub mod upstream_ip_hash;
pub mod upstream_keepalive;
pub mod upstream_least_conn;
pub mod upstream_least_time;
pub mod upstream_random;
pub mod upstream_sticky;
pub mod upstream_zone;
pub mod userid;
pub mod zstd;
pub mod zstd_static;

use std::sync::LazyLock;

pub use crate::module::{Directive, Module, ModuleTable, Set, Walk};

/// All modules, in the order of the handlers inside a phase and then of the filters, both as in nginx: a
/// filter sees what those before it made of the answer.
pub static MODULES: &[&Module] = &[
    &core::MODULE,
    &http_core::MODULE,
    &ssl::MODULE,
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
    &log::MODULE,
    &map::MODULE,
    &geo::MODULE,
    &split_clients::MODULE,
    &rewrite::MODULE,
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
    &try_files::MODULE,
    &mirror::MODULE,
    // What passes requests on does so for a whole location, and for an `if` in one that another module answers for.
    &proxy::MODULE,
    &stub_status::MODULE,
    &cache_counters::MODULE,
    // What answers for a whole location goes before what looks for files in it.
    &empty_gif::MODULE,
    &random_index::MODULE,
    &index::MODULE,
    // The best coding first, as nginx has it with these modules, and the originals last.
    &zstd_static::MODULE,
    &brotli_static::MODULE,
    &gzip_static::MODULE,
    &autoindex::MODULE,
    &static_file::MODULE,
    // What a slice was made the whole of is compared with what the client has.
    &slice::MODULE,
    &not_modified::MODULE,
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

/// All modules with what the reading of a configuration needs of them.
pub fn all() -> &'static ModuleTable {
    static TABLE: LazyLock<ModuleTable> = LazyLock::new(|| ModuleTable::new(MODULES));
    &TABLE
}

#[cfg(test)]
mod tests;
