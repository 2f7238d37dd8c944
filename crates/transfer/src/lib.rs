//! The transfer of bytes: bodies, files, codings. This crate knows neither requests nor directives.
//!
//! | module | content |
//! |---|---|
//! | [`body`] | bodies from files and streams, and the methods to move them to a client |
//! | [`coding`] | gzip, brotli and zstd |
//! | [`duplex`] | a connection that another protocol takes over |
//! | [`files`] | open files by path, and the roots that they are opened below |
//! | [`incoming`], [`received`] | the body of a request: while it arrives, and when it is complete |
//! | [`recency`] | a list of values in order of last use |
#![forbid(unsafe_code)]

pub mod body;
pub mod coding;
pub mod duplex;
pub mod files;
pub mod incoming;
pub mod received;
pub mod recency;
