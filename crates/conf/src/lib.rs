//! See this crate's description in Cargo.toml.
#![forbid(unsafe_code)]
