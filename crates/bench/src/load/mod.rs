//! The generator of HTTP load: `ringroad bench load`, and what the scenarios measure servers with.
//!
//! [`run`] carries out a [`Plan`] and answers with an [`Outcome`]. Each thread has an engine of its own ([`worker`]),
//! its share of the connections ([`link`]) and of the requests ([`request`], [`schedule`]); answers are told apart by
//! [`reader`]. URLs and their patterns are read by [`target`], the command line by [`command`];
//! [`against`] compares with wrk.

mod against;
pub(crate) mod command;
mod link;
mod outcome;
mod plan;
mod reader;
mod request;
mod run;
mod schedule;
mod show;
mod target;
mod worker;

// What scenarios use.
#[allow(unused_imports)]
pub(crate) use outcome::{Bottleneck, Errors, Outcome, Second, Tally, ThreadUse};
#[allow(unused_imports)]
pub(crate) use plan::{Expect, Length, PIPELINE_MAX, Pace, Plan, Reuse};
#[allow(unused_imports)]
pub(crate) use run::{run, run_watched};
#[allow(unused_imports)]
pub(crate) use target::Target;
