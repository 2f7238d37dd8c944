//! The processing of a request: its phases, its error pages and the resulting response. This crate has no sockets.
//!
//! [`course`] runs the phases of a request, [`error_page`] responds to errors and redirects, [`effect`] computes the
//! effective settings of a request. [`prepare`] runs the filters and decides how the response is sent, [`facts`] caches
//! results of modules for a request. [`client`] is the interface to its connection, [`takeover`] is for connections
//! that change their protocol. [`ocsp`] requests the status of certificates from their authorities.
#![forbid(unsafe_code)]

pub mod accept_encoding;
pub mod acme;
mod body_filter;
pub mod capacity;
pub mod certificates;
pub mod charset;
pub mod client;
pub mod course;
pub mod credentials;
pub mod cut_off;
pub mod disk_space;
pub mod effect;
pub mod error_log;
pub mod error_page;
pub mod facts;
pub mod files;
pub mod filter;
pub mod http2;
mod locate;
pub mod marks;
pub mod module;
pub mod ocsp;
pub mod phases;
pub mod prepare;
pub mod pump;
pub mod reclaim;
pub mod request;
pub mod request_body;
pub mod response;
pub mod response_head;
pub mod secured;
pub mod sending;
pub mod stored_file;
pub mod streaming;
pub mod subrequest;
pub mod takeover;
pub mod thread;
pub mod tls;
pub mod tls_arguments;
mod trace;
pub mod transport;
