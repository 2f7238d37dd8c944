//! The runtime over the engines that this machine has.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

mod accept;
mod allocations;
mod common;
mod connections;
mod datagrams;
mod endings;
mod files;
mod outgoing;
mod watch;
