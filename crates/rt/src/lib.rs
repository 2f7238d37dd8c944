//! See this crate's description in Cargo.toml.
