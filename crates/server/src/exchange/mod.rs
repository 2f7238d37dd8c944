//! The life of one request: its phases, its error pages and the response that comes out of them. There is no socket here.
//!
//! [`course`] takes a request through its phases, [`error_page`] answers errors and redirects, [`effect`] works out
//! what some settings mean for one request, [`prepare`] runs the filters and settles how the response is sent,
//! [`facts`] are what modules have found out about it, [`client`] is what a request may ask of its connection, [`takeover`] is for connections that change their protocol.

pub(crate) mod client;
pub(crate) mod course;
pub(crate) mod effect;
pub(crate) mod error_page;
pub(crate) mod facts;
pub(crate) mod files;
pub(crate) mod prepare;
pub(crate) mod streaming;
pub(crate) mod takeover;
