//! Fuzz targets: one function for each decoder of bytes that a peer, a file or a user chose.
//!
//! A target asserts properties that hold for all input: no panic, the limits, the same result for whole input and for
//! input in pieces, and round trips with the encoder where one exists. [`smoke`] runs all targets with a stable
//! compiler over the corpus and random changes of it. The programs in `fuzz_targets/` run one target each under
//! libFuzzer, which needs a nightly compiler.
#![forbid(unsafe_code)]

mod mutate;
pub mod smoke;
pub mod targets;

/// A decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name; its seeds are in `corpus/NAME/`.
    pub name: &'static str,
    /// Runs it once and panics when a property does not hold.
    pub run: fn(&[u8]),
    /// Pieces of its language, which random mutation puts into the input.
    pub tokens: &'static [&'static str],
}

/// All targets.
pub static TARGETS: [Target; 20] = [
    targets::request_head::TARGET,
    targets::reply_head::TARGET,
    targets::chunked::TARGET,
    targets::uri::TARGET,
    targets::range::TARGET,
    targets::structured_fields::TARGET,
    targets::set_cookie::TARGET,
    targets::proxy_protocol::TARGET,
    targets::configuration::TARGET,
    targets::dns_message::TARGET,
    targets::entry_header::TARGET,
    targets::purge_log::TARGET,
    targets::hpack::TARGET,
    targets::h2_session::TARGET,
    targets::h2_client::TARGET,
    targets::h2_reply::TARGET,
    targets::fastcgi_response::TARGET,
    targets::memcached_response::TARGET,
    targets::acme_texts::TARGET,
    targets::mp4_movie::TARGET,
];
