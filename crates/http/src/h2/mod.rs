//! HTTP/2 without I/O (RFC 9113): frames, streams, flow control and header compression, for both ends.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`session`] | a connection: converts received bytes to events; states of streams, windows, limits | RFC 9113 sections 3 to 6 |
//! | [`send`] | sending: heads, bodies, resets, GOAWAY | RFC 9113 sections 4 to 6 |
//! | [`calm`] | limits on frames and requests without effect | RFC 9113 section 10.5 |
//! | [`flow`] | receive windows, which grow with the bytes that are consumed in a round trip | RFC 9113 section 5.2 |
//! | `late` | frames on streams whose response ended before their request | RFC 9113 section 8.1 |
//! | [`hpack`] | compression of header sections | RFC 7541 |
//! | [`frame`], [`settings`], [`error`] | frame encoding, settings, error codes | RFC 9113 sections 4, 6.5, 7 |
//!
//! Messages, priorities and limits that HTTP/3 shares are in [`multiplexed`](crate::multiplexed).
//! No function waits or reads a clock. Output is appended to a vector of the caller, in the order of sending.

pub mod calm;
#[cfg(test)]
mod client_tests;
pub mod error;
pub mod flow;
pub mod frame;
pub mod hpack;
mod late;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod message_tests;
#[cfg(test)]
mod must_tests;
mod round;
pub mod send;
pub mod session;
pub mod settings;
mod stream;
#[cfg(test)]
mod tests;

pub use error::{ErrorCode, Fault};
pub use flow::STREAM_WINDOW_MAX;
pub use frame::PREFACE;
pub use session::{Event, Limits, Session};

pub use crate::multiplexed::{
    Block, HeadFault, HeadReader, Malformed, Priority, ResponseFault, ResponseReader, Scheduler, Scratch,
    Strain,
};
