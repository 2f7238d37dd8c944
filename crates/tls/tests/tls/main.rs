//! The crate as a whole: handshakes, records, verdicts on certificates, hostile bytes.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

mod chains;
mod common;

mod generated_chains;
mod handshakes;
mod hostile;
mod ocsp;
mod streams;
mod turns;
mod verdicts;
