//! The generator of HTTP load: `ringroad bench load`, and what the scenarios measure servers with.
//!
//! It also sends messages to servers that send them back, and makes connections that servers end ([`plan::Answers`]).
//!
//! [`run`] carries out a [`Plan`] and returns an [`Outcome`]. Each thread has an engine of its own ([`worker`]),
//! its share of the connections ([`link`]) and of the requests ([`request`], [`schedule`]); returns are told apart by
//! [`reader`]. URLs and their patterns are read by [`target`], the command line by [`command`].

pub(crate) mod command;
mod link;
mod outcome;
pub(crate) mod owners;
mod plan;
mod reader;
mod request;
mod run;
mod schedule;
mod show;
mod target;
mod worker;

// What scenarios use.
pub(crate) use outcome::{Outcome, Tally};
pub(crate) use plan::{Answers, Expect, Length, Pace, Plan, Reuse};
pub(crate) use run::run;
pub(crate) use target::Target;
