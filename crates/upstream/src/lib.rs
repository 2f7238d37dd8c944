//! Passing a request to another server and returning its response, independent of the directives of a protocol. This crate
//! connects to upstreams, never to clients.
//!
//! ```text
//! handler -- Outgoing --> fetch --> peers (server) --> link (connection) --> header section --> Reply -- handler
//!                           ^                                |
//!                           +---- another try ---------------+          body: direct, or through a spool
//! ```
//!
//! A module such as `proxy` creates the [`Settings`] from its directives, the [`Outgoing`] request and the [`Target`].
//! [`fetch()`] returns a [`Reply`], or the [`Failure`] for the response to the client. This crate contains neither names of
//! directives nor rules for response fields.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `tls`, `telemetry`, `transfer`, `site`, `exchange`,
//! `peers`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`responder`] | one request to an OCSP responder |
//! | [`checks`] | active health checks: when each server is checked |
//! | [`names`] | passes the groups and resolvers of a configuration to `peers::resolve` |
//! | [`mod@fetch`] | performs the tries one after the other |
//! | [`reply`] | a response to pass on |
//! | [`tunnel`] | upgraded connections |
//! | [`datagrams`] | sessions of `stream` over UDP |
//! | [`stream`] | sessions of `stream`, over TCP |
//! | [`relay`] | moves bytes in both directions |
//! | [`spool`] | bodies with temporary files |
//! | [`body`] | bodies |
//! | [`choice`], [`sessions`] | the next server; client, key and session of a request for `peers`, cookies of `sticky` |
//! | [`attempt`], [`sending`] | one try; the request as it is sent |
//! | [`state`] | values of `$upstream_*` |
//! | [`outgoing`] | a request and its target |
//! | [`link`], [`wire`] | connections, idle ones included; their transport: a socket, TLS, or a stream of HTTP/2 |
//! | [`settings`] | the settings of a location |
//! | [`hidden`] | fields that are not passed on |
//! | [`secure`] | TLS settings and verification |
//! | [`h2`] | HTTP/2 connections, whose streams are links |
//! | [`heading`] | the header section of a response |

#![forbid(unsafe_code)]

mod attempt;
mod body;
pub mod checks;
mod choice;
pub mod datagrams;
mod fetch;
mod h2;
mod heading;
mod hidden;
mod link;
pub mod names;
mod outgoing;
mod relay;
mod reply;
pub mod responder;
mod secure;
mod sending;
mod sessions;
mod settings;
mod spool;
pub mod state;
pub mod stream;
mod tunnel;
mod wire;

pub use body::{BulkBody, Live};
pub use fetch::fetch;
pub use h2::Cut;
pub use heading::Heading;
pub use hidden::Hidden;
pub use link::Pools;
pub use outgoing::{Failure, MakeInterim, Outgoing, OutgoingBody, Target};
pub use reply::{Reply, ReplyBody, Stored};
pub use secure::{Secure, SecureSettings};
pub use sessions::SetCookie;
pub use settings::{Bind, BindAddr, NextUpstream, Settings};
pub use tunnel::Tunnel;
