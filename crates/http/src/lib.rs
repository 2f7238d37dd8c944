//! HTTP/1.1 and HTTP/2 without I/O: parses heads, makes protocol decisions, and encodes responses.
//!
//! No code here opens a socket or reads a clock. Parsing and encoding the heads of an ordinary HTTP/1 request allocate no memory.
//! The caller supplies buffers and the current time (`now`). Results refer to the caller's buffers by index ([`Span`]), so a header
//! section stays valid if it is moved to a larger buffer.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`fields`] | methods, versions, field names and lines, body lengths: common to requests and responses | RFC 9110 |
//! | [`request`] | the request head: parsed in place, resumable | RFC 9112 sections 3 and 5 |
//! | [`host`] | validation of `Host` and of the authority | RFC 9110 section 7.2 |
//! | [`uri`] | path normalisation, escaping, query arguments | RFC 3986 |
//! | [`framing`] | body length, chunked coding in both directions, trailers | RFC 9112 sections 6 and 7 |
//! | [`gateway`] | protocols of upstreams: encodes requests, decodes responses to events | RFC 9112, RFC 9113 |
//! | [`grpc`] | deadline of a call | gRPC over HTTP/2 |
//! | [`h2`] | HTTP/2: frames, streams, flow control, header compression | RFC 9113, RFC 7541 |
//! | [`connection`] | keep-alive, `Expect`, browser quirks | RFC 9112 section 9 |
//! | [`hop_by_hop`] | fields that a proxy does not pass on | RFC 9110 section 7.6.1 |
//! | [`conditional`] | `If-*`, entity tags | RFC 9110 sections 8.8 and 13 |
//! | [`range`] | `Range`, `If-Range`, `Content-Range`, stored ranges, `multipart/byteranges` | RFC 9110 section 14 |
//! | [`date`] | the dates of HTTP and of nginx's logs | RFC 9110 section 5.6.7 |
//! | [`status`] | status codes, reason phrases | RFC 9110 section 15 |
//! | [`response`] | response heads: `parse` reads those of upstreams in place, resumable; `encode` writes those for clients | RFC 9112 sections 4 and 5 |
//! | [`cache_control`] | cache directives, including targeted fields | RFC 9111 section 5.2, RFC 5861, RFC 9213 |
//! | [`freshness`] | age, lifetime, rules for storing and for stale use | RFC 9111 sections 3 and 4.2 |
//! | [`vary`] | matching of requests with stored variants | RFC 9111 section 4.1 |
//! | [`validator`] | strong and weak validators, rules for joining ranges | RFC 9110 section 8.8 |
//! | [`stored_fields`] | stored fields, and their changes by a 304 | RFC 9111 sections 3.1 and 3.2 |
//! | [`invalidation`] | entries that an unsafe request invalidates | RFC 9111 section 4.4 |
//! | [`cache_status`] | the field `Cache-Status` | RFC 9211 |
//! | [`cookie`] | values in `Cookie` | RFC 6265 section 5.4, nginx |
//! | [`set_cookie`] | rewriting of cookie attributes | RFC 6265 section 5.2, nginx |
//! | [`base64`] | base64, for credentials and signatures | RFC 4648 |
//! | [`structured`] | structured fields: parsing of dictionaries, encoding of items | RFC 8941 |
//! | [`error_page`] | the short built-in pages | nginx |
//! | [`proxy_protocol`] | the header that a proxy sends before the first request | the PROXY protocol |
//! | [`media_type`] | the built-in `types` | nginx |
//!
//! Where nginx and the RFC differ, the documentation of the function states which is followed.
#![forbid(unsafe_code)]

pub mod base64;
mod bytes;
pub mod cache_control;
pub mod cache_status;
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
pub mod hop_by_hop;
pub mod host;
pub mod invalidation;
pub mod media_type;
pub mod proxy_protocol;
pub mod range;
pub mod request;
pub mod response;
pub mod set_cookie;
mod span;
pub mod status;
pub mod stored_fields;
pub mod structured;
pub mod uri;
pub mod validator;
pub mod vary;
pub mod webdav;

pub use bytes::{find_escapable, parse_decimal, push_decimal};
pub use span::Span;
pub use status::StatusCode;
