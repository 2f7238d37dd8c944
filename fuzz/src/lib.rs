//! Fuzz targets: one function for each decoder of bytes that a peer, a file or a user controls.
//!
//! A target asserts properties for all inputs: it does not panic, it observes limits, it has the same result for
//! complete input and for input in pieces, and its result survives a round trip through the encoder, if one exists.
//! [`smoke`] runs all targets with a stable compiler over the corpus and random mutations of it. The programs in
//! `fuzz_targets/` run one target each under libFuzzer, which needs a nightly compiler.
#![forbid(unsafe_code)]

mod mutate;
pub mod smoke;
pub mod targets;

/// A decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name; the seeds are in `corpus/NAME/`.
    pub name: &'static str,
    /// Runs the target once; panics if a property is violated.
    pub run: fn(&[u8]),
    /// Tokens of its language, which the mutation inserts into the input.
    pub tokens: &'static [&'static str],
}

/// All targets.
pub static TARGETS: [Target; 30] = [
    targets::request_head::TARGET,
    targets::response_head::TARGET,
    targets::chunked::TARGET,
    targets::uri::TARGET,
    targets::range::TARGET,
    targets::structured_fields::TARGET,
    targets::set_cookie::TARGET,
    targets::webdav_body::TARGET,
    targets::proxy_protocol::TARGET,
    targets::client_hello::TARGET,
    targets::configuration::TARGET,
    targets::dns_message::TARGET,
    targets::entry_header::TARGET,
    targets::purge_log::TARGET,
    targets::hpack::TARGET,
    targets::h2_session::TARGET,
    targets::h2_client::TARGET,
    targets::h2_response::TARGET,
    targets::qpack::TARGET,
    targets::h3_request::TARGET,
    targets::h3_session::TARGET,
    targets::grpc_timeout::TARGET,
    targets::trace_context::TARGET,
    targets::otlp_response::TARGET,
    targets::fastcgi_response::TARGET,
    targets::memcached_response::TARGET,
    targets::acme_texts::TARGET,
    targets::mp4_movie::TARGET,
    targets::jwt_token::TARGET,
    targets::keyval_text::TARGET,
];
