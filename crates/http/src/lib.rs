//! HTTP/1.1, HTTP/2 and HTTP/3 without I/O: parses heads, makes protocol decisions, and encodes responses.
//!
//! No code here opens a socket or reads a clock. Parsing and encoding the heads of an ordinary HTTP/1 request allocate no
//! memory. The caller supplies buffers and the current time (`now`). Results refer to the caller's buffers by index ([`Span`]),
//! so a header section stays valid if it is moved to a larger buffer.
//!
//! Crates of the workspace that it may use: none.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`gateway`] | protocols of upstreams: encodes requests, decodes responses to events | RFC 9112, RFC 9113 |
//! | [`h2`] | HTTP/2 for both roles: `session` (received bytes to events: its `head`, `data` and `control` process the kinds of frames) with `send` and `flow` (receive windows, which grow with round trips that `round` measures) over `frame`, `settings`, `stream` (states of streams); `calm` (which frames count as frames without effect); `hpack` (`decode`, `encode`) | RFC 9113, RFC 7541 |
//! | [`h3`] | HTTP/3 for both roles, without QUIC: `session` (a connection: its `control` processes streams that are not requests, its `messages` header sections and bodies) over `request` (the frames of a request stream), `settings`, `frame`; `qpack` (`decode`, `encode`); `hq` (requests of HTTP/0.9) | RFC 9114, RFC 9204 |
//! | [`multiplexed`] | common to HTTP/2 and HTTP/3: `head` and `response` (fields to header sections of requests and of responses, malformed messages), `trailers`; `priority` (the order of sending); `calm` (limits on frames and requests without effect); `writer` (header blocks), `coding` and `huffman` (numbers and strings), `table` (dynamic tables), `never` (fields that must not enter a table) | RFC 9113, RFC 9114, RFC 9218 |
//! | [`grpc`] | deadline of a call | gRPC over HTTP/2 |
//! | [`trace_context`] | the fields `traceparent` and `tracestate` | W3C Trace Context |
//! | [`client_hello`] | the first message of a TLS client | RFC 8446, 6066, 7301 |
//! | [`proxy_protocol`] | the header that a proxy sends before the first request | the PROXY protocol |
//! | [`stored_fields`] | for caching: stored fields, and their changes by a 304 | RFC 9111 sections 3.1 and 3.2 |
//! | [`validator`] | for caching: strong and weak validators, rules for joining ranges | RFC 9110 section 8.8 |
//! | [`invalidation`] | for caching: entries that an unsafe request invalidates | RFC 9111 section 4.4 |
//! | [`hop_by_hop`] | for proxying: fields that are not passed on | RFC 9110 section 7.6.1 |
//! | [`set_cookie`] | for proxying: rewriting of cookie attributes | RFC 6265 section 5.2, nginx |
//! | [`freshness`] | for caching: age, lifetime, the reason why a response may not be stored, use of stale responses. Each rule is a function; `freshness::store::judge` combines them with the settings of the directives | RFC 9111 sections 3 and 4.2 |
//! | [`vary`] | for caching: matching of requests with stored variants | RFC 9111 section 4.1 |
//! | [`cache_control`] | for caching: cache directives, including targeted fields | RFC 9111 section 5.2, RFC 5861, RFC 9213 |
//! | [`cache_status`] | for caching: the field `Cache-Status` | RFC 9211 |
//! | [`structured`] | structured fields: parsing of dictionaries, encoding of items | RFC 8941 |
//! | [`webdav`] | bodies and conditions of WebDAV: `xml` (limited, without document types), `body`, `condition` (the field `If`) | RFC 4918 |
//! | [`error_page`] | the short built-in pages | nginx |
//! | [`media_type`] | the built-in `types` | nginx |
//! | [`uri`] | path normalisation, escaping, query arguments | RFC 3986 |
//! | [`cookie`] | values in `Cookie` | RFC 6265 section 5.4, nginx |
//! | [`base64`] | base64, for credentials and signatures | RFC 4648 |
//! | [`range`] | `Range`, `If-Range`, `Content-Range`, stored ranges, `multipart/byteranges` | RFC 9110 section 14 |
//! | [`conditional`] | `If-*`, entity tags | RFC 9110 sections 8.8 and 13 |
//! | [`framing`] | body length, chunked coding in both directions, trailers | RFC 9112 sections 6 and 7 |
//! | [`connection`] | keep-alive, `Expect`, browser quirks | RFC 9112 section 9 |
//! | [`response`] | response heads: `parse` reads those of upstreams in place, resumable; `encode` writes those for clients | RFC 9112 sections 4 and 5 |
//! | [`request`] | the request head: parsed in place, resumable, or composed | RFC 9112 sections 3 and 5 |
//! | [`date`] | the dates of HTTP and of the logs of nginx | RFC 9110 section 5.6.7 |
//! | [`status`] | status codes, reason phrases | RFC 9110 section 15 |
//! | [`host`] | validation of `Host` and of the authority | RFC 9110 section 7.2 |
//! | [`fields`] | methods, versions, field names and lines, body lengths: common to requests and responses | RFC 9110 |
//! | [`bytes`], [`span`] | classes of bytes, scans; ranges of a buffer |  |
//!
//! Where nginx and the RFC differ, the documentation of the function states which is followed.
#![forbid(unsafe_code)]

pub mod base64;
mod bytes;
pub mod cache_control;
pub mod cache_status;
pub mod client_hello;
pub mod conditional;
pub mod connection;
pub mod cookie;
pub mod date;
pub mod error_page;
pub mod fields;
pub mod framing;
pub mod freshness;
pub mod gateway;
pub mod grpc;
pub mod h2;
pub mod h3;
pub mod hop_by_hop;
pub mod host;
pub mod invalidation;
pub mod media_type;
pub mod multiplexed;
pub mod proxy_protocol;
pub mod range;
pub mod request;
pub mod response;
pub mod set_cookie;
mod span;
pub mod status;
pub mod stored_fields;
pub mod structured;
pub mod trace_context;
pub mod uri;
pub mod validator;
pub mod vary;
pub mod webdav;

pub use bytes::{find_escapable, parse_decimal, push_decimal, with_decimal};
pub use span::Span;
pub use status::StatusCode;
