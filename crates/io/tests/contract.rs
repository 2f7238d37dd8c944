//! The contract of an engine, tested on every pair of backends that this machine has.
//!
//! `RINGROAD_ENGINE_REPORT` names a file to which the pairs that ran and those that were skipped are added.

#[path = "contract/files.rs"]
mod files;
#[path = "contract/harness.rs"]
mod harness;
#[path = "contract/stream.rs"]
mod stream;
