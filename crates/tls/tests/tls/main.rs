//! Tests of the public interface: handshakes, records, verification of certificates, names in certificates,
//! hostile bytes.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

mod chains;
mod common;

mod generated_chains;
mod handshakes;
mod hostile;
mod names;
mod ocsp;
mod streams;
mod turns;
mod verdicts;
