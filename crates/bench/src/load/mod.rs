//! The HTTP load generator: `ringroad bench load`, and the client of the scenarios.
//!
//! It can also send messages to echo servers, and open connections that the server closes ([`plan::ResponseKind`]).
//!
//! [`run`] executes a [`Plan`] and returns an [`Outcome`]. Each thread has a separate engine ([`worker`]), its share of
//! the connections ([`link`]) and of the requests ([`request`], [`schedule`]); [`reader`] parses the responses. [`quic`] has
//! the threads of a load over HTTP/3. A warm-up is a separate load.
//! [`target`] parses URLs and their patterns, [`command`] the command line.

pub(crate) mod command;
mod link;
mod outcome;
mod plan;
pub(crate) mod quic;
mod reader;
mod request;
mod run;
mod schedule;
mod show;
mod target;
mod tls_client;
mod worker;

// The interface for scenarios.
pub(crate) use outcome::{Outcome, Tally, histogram, percentile_us};
pub(crate) use plan::{Expect, Length, LoopKind, Plan, QuicSettings, ResponseKind, Reuse};
pub(crate) use run::run;
#[cfg(test)]
pub(crate) use target::Target;
pub(crate) use tls_client::tls_client;
