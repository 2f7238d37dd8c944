//! HTTP/2 without I/O (RFC 9113): frames, streams, flow control and header sections.
//!
//! | module | holds | source |
//! |---|---|---|
//! | [`hpack`] | header sections, compressed | RFC 7541 |

pub mod hpack;
