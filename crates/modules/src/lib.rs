//! nginx's modules: each owns its directives, its settings and their inheritance, its variables, and its part in the
//! phases. A new one is a file here and a line in [`MODULES`].
#![forbid(unsafe_code)]

mod access;
pub mod acme;
mod addition;
mod advice;
mod auth_basic;
mod auth_request;
mod autoindex;
mod brotli;
mod brotli_static;
mod browser;
mod cache_counters;
mod charset;
mod compress;
mod core;
mod dav;
mod empty_gif;
mod fastcgi;
mod flv;
mod geo;
mod geoip2;
mod grpc;
mod gunzip;
mod gzip;
mod gzip_static;
mod headers;
mod headers_more;
mod http_core;
mod http_v2;
mod index;
mod limit_conn;
mod limit_req;
mod log;
mod map;
mod memcached;
mod mirror;
mod mp4;
mod not_modified;
mod passing;
mod precompressed;
mod proxy;
mod random_index;
mod range;
mod realip;
mod referer;
mod resolver;
mod rewrite;
mod scgi;
mod secure_link;
mod slice;
mod split_clients;
mod ssi;
mod ssl;
mod static_file;
pub mod status;
mod stub_status;
mod sub;
#[doc(hidden)]
pub mod testing;
mod try_files;
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
mod userid;
mod uwsgi;
mod zstd;
mod zstd_static;

use std::sync::LazyLock;

pub use advice::advice;
pub use exchange::module::{Directive, Module, ModuleTable, Set, Walk};

/// All modules, in the order of the handlers inside a phase and then of the filters, both as in nginx: a filter sees
/// what those before it made of the response.
pub static MODULES: &[&Module] = &[
    &core::MODULE,
    &http_core::MODULE,
    // The certificates of a server are there before its handshakes are prepared.
    &acme::MODULE,
    &ssl::MODULE,
    &http_v2::MODULE,
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
    &log::MODULE,
    &map::MODULE,
    &geo::MODULE,
    &geoip2::MODULE,
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
    &passing::MODULE,
    &proxy::MODULE,
    &fastcgi::MODULE,
    &uwsgi::MODULE,
    &grpc::MODULE,
    &scgi::MODULE,
    &memcached::MODULE,
    &tunnel::MODULE,
    &stub_status::MODULE,
    &cache_counters::MODULE,
    &status::MODULE,
    // What answers for a whole location goes before what looks for files in it.
    &empty_gif::MODULE,
    &mp4::MODULE,
    &flv::MODULE,
    &dav::MODULE,
    &random_index::MODULE,
    &index::MODULE,
    // The best coding first, as nginx has it with these modules, and the originals last.
    &zstd_static::MODULE,
    &brotli_static::MODULE,
    &gzip_static::MODULE,
    &autoindex::MODULE,
    &static_file::MODULE,
    // The conditions apply to the response assembled from slices.
    &slice::MODULE,
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

/// All modules, with their data for reading a configuration.
pub fn all() -> &'static ModuleTable {
    static TABLE: LazyLock<ModuleTable> = LazyLock::new(|| ModuleTable::new(MODULES));
    &TABLE
}

/// The third-party module whose directives have such names.
pub fn foreign_module(directive: &str) -> Option<&'static str> {
    core::foreign_module(directive)
}

#[cfg(test)]
mod tests;
