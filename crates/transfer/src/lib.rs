//! Bytes on their way from where they lie to where they go: bodies, files, codings. Nothing here knows a request or a
//! directive.
//!
//! | part | holds |
//! |---|---|
//! | [`body`] | bodies out of files and streams, and the ways to move them to a client |
//! | [`coding`] | gzip, brotli and zstd |
//! | [`duplex`] | a connection that another protocol takes over |
//! | [`files`] | open files, kept by name, and the directories that they are opened below |
//! | [`incoming`], [`received`] | the body of a request: while it comes, and when it is here |
//! | [`recency`] | what was used last |
#![forbid(unsafe_code)]

pub mod body;
pub mod coding;
pub mod duplex;
pub mod files;
pub mod incoming;
pub mod received;
pub mod recency;
