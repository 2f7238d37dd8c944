//! WebDAV (RFC 4918): bodies of requests, the field `If`, and texts of responses.
//!
//! Bodies are untrusted XML: [`xml`] limits the depth and the number of elements, and refuses document types, so that no
//! entity is ever expanded.

pub mod body;
pub mod condition;
pub mod xml;
