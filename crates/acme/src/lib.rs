//! An ACME client (RFC 8555) for a dedicated process: its calls block, so no process that serves clients uses it.
//!
//! It does not serve the requests by which a CA verifies a name: the agent passes the challenges to [`agent::Host`], which
//! installs them in the server. Private keys are created by `tls` and stored here as text in PEM. This crate has no directives.
//!
//! Crates of the workspace that it may use: `http`, `tls`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`agent`], [`client`] | obtains and renews certificates, with `Host` as its interface to the server; the protocol: directory, account, orders, authorizations, certificates |
//! | [`jws`] | signed requests |
//! | [`base64url`] | the encoding of their parts |
//! | [`fetch`] | requests over https, each on a new connection |
//! | [`url`] | URLs and links of CAs |
//! | [`schedule`] | the times of renewals and retries |
//! | [`settings`] | CAs, and the certificates to obtain from each |
//! | [`state`] | the files with accounts and certificates |
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
