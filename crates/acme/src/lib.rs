//! A client of certificate authorities (ACME, RFC 8555), for a process that does nothing else: its calls block.
//!
//! [`settings`] describes the certificates, [`agent`] obtains and renews them. [`client`] speaks the protocol over
//! [`fetch`], which makes requests over https to a [`url`]; [`jws`] signs them. [`state`] keeps accounts and certificates
//! on the disk, [`schedule`] computes when a certificate is renewed and when a failure is tried again. Requests by which
//! an authority checks a name are served by others: the agent has a [`agent::Host`] install their responses.
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
