//! An ACME client (RFC 8555) for a dedicated process: its calls block.
//!
//! [`settings`] describes the certificates, [`agent`] obtains and renews them. [`client`] implements the protocol; [`fetch`]
//! sends its requests over https to a [`url`]; [`jws`] signs them. [`state`] stores accounts and certificates on disk.
//! [`schedule`] computes the times of renewals and retries. This crate does not serve the requests by which a CA verifies a name:
//! the agent passes the challenges to [`agent::Host`], which installs them in the server.
#![forbid(unsafe_code)]

pub mod agent;
pub mod base64url;
pub mod client;
pub mod fetch;
pub mod jws;
pub mod schedule;
pub mod settings;
pub mod state;
pub mod url;
