//! Passing a request to another server and returning its response, independent of the directives of a protocol.
//!
//! ```text
//! handler -- Outgoing --> fetch --> peers (server) --> link (connection) --> header section --> Reply -- handler
//!                           ^                                |
//!                           +---- another try ---------------+          body: direct, or through a spool
//! ```
//!
//! | module | content |
//! |---|---|
//! | `settings`, `outgoing` | what a caller passes: the settings of a location, a request and its target |
//! | `heading`, `reply` | what it gets: a header section, and a response with its body |
//! | `fetch`, `choice`, `sessions`, `attempt`, `sending` | the tries, the next server, sticky sessions, one try, the request as it is sent |
//! | `link`, `wire`, `secure`, `h2` | connections, their transports, TLS, connections of HTTP/2 |
//! | [`names`] | the groups and resolvers of a configuration, for crate `peers` |
//! | `body`, `spool`, `tunnel`, `hidden` | bodies, also ahead of the client; upgraded connections; fields that are not passed on |
//!
//! The modules of the first two rows know nothing of the others, except that a [`ReplyBody`] holds the body of a connection.
//!
//! A module such as `proxy` creates the [`Settings`] from its directives, the [`Outgoing`] request and the [`Target`]. [`fetch`]
//! returns a [`Reply`], or the [`Failure`] for the response to the client. [`responder`] sends requests to OCSP responders. This crate
//! contains neither names of directives nor rules for response fields.

#![forbid(unsafe_code)]

mod attempt;
mod body;
mod choice;
mod fetch;
mod h2;
mod heading;
mod hidden;
mod link;
pub mod names;
mod outgoing;
mod reply;
pub mod responder;
mod secure;
mod sending;
mod sessions;
mod settings;
mod spool;
pub mod state;
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
