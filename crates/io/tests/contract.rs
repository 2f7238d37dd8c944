//! The contract of an engine, tested on every pair of backends that this machine has.
//!
//! `RINGROAD_ENGINE_REPORT` is the path of a file to which the tested and the skipped pairs are appended.

#![allow(clippy::unwrap_used, reason = "in the helpers of a test too, what fails ends the test")]
#![allow(clippy::print_stdout, reason = "a test tells which pairs it ran on")]

#[path = "contract/accept.rs"]
mod accept;
#[path = "contract/changes.rs"]
mod changes;
#[path = "contract/datagrams.rs"]
mod datagrams;
#[path = "contract/devices.rs"]
mod devices;
#[path = "contract/endings.rs"]
mod endings;
#[path = "contract/ends.rs"]
mod ends;
#[path = "contract/faults.rs"]
mod faults;
#[path = "contract/files.rs"]
mod files;
#[path = "contract/harness.rs"]
mod harness;
#[path = "contract/ownership.rs"]
mod ownership;
#[path = "contract/stream.rs"]
mod stream;
#[path = "contract/waits.rs"]
mod waits;
