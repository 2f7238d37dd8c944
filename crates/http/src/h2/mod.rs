//! HTTP/2 without I/O (RFC 9113): frames, streams, flow control, header sections and priorities, for both ends.
//!
//! | module | holds | source |
//! |---|---|---|
//! | [`session`] | a connection: received bytes to events, states of streams, windows, limits | RFC 9113 sections 3 to 6 |
//! | [`send`] | what an end sends: heads, bodies, windows, resets, the end | RFC 9113 sections 4 to 6 |
//! | [`head`] | fields to request heads, and what is malformed | RFC 9113 section 8 |
//! | [`reply`] | fields to response heads of upstreams | RFC 9113 section 8 |
//! | [`hpack`] | header sections, compressed | RFC 7541 |
//! | [`priority`] | which stream sends next | RFC 9218 |
//! | [`frame`], [`settings`], [`error`] | bytes of frames, what the ends say of themselves, codes | RFC 9113 sections 4, 6.5, 7 |
//!
//! Nothing here waits or knows the time. Output is appended to a vector of the caller, in the order of sending.

#[cfg(test)]
mod client_tests;
pub mod error;
pub mod frame;
pub mod head;
pub mod hpack;
pub mod priority;
pub mod reply;
pub mod send;
pub mod session;
pub mod settings;
mod stream;
#[cfg(test)]
mod tests;

pub use error::{ErrorCode, Fault};
pub use frame::PREFACE;
pub use head::{HeadFault, HeadReader, Malformed, Scratch};
pub use priority::{Priority, Scheduler};
pub use reply::{ReplyFault, ReplyReader};
pub use session::{Block, Event, Limits, Session};
