//! HTTP/3 without I/O (RFC 9114): frames, control streams and header sections, for both ends. QUIC gives the bytes of the streams.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`session`] | a connection: `control` (streams that are not requests: settings, GOAWAY, priorities, QPACK), `messages` (header sections and bodies of request streams) | RFC 9114 sections 4 to 7 |
//! | [`request`] | the frames of one request stream | RFC 9114 sections 4.1 and 7.2 |
//! | [`settings`], [`error`] | settings, limits; errors and their codes | RFC 9114 sections 7.2.4 and 8 |
//! | [`qpack`] | compression of header sections | RFC 9204 |
//! | [`frame`] | integers, types and lengths of frames | RFC 9114 section 7.1 |
//! | [`hq`] | requests of HTTP/0.9 over QUIC, for tests of QUIC | |
//!
//! Messages, priorities and limits that HTTP/2 shares are in [`multiplexed`](crate::multiplexed). No function waits or reads a clock.
//! Output is appended to vectors of the caller, one for each stream of this end.

pub mod error;
pub mod frame;
pub mod hq;
pub mod qpack;
pub mod request;
pub mod session;
pub mod settings;

pub use error::{Http3ErrorCode, Http3Fault, RequestFault, StreamFailure};
pub use request::{RequestEvent, RequestStep, RequestStream};
pub use session::{DecodedSection, Http3Output, Http3Session, UniEvent, UniStep};
pub use settings::{Http3Limits, Http3Settings};

pub use crate::multiplexed::{
    Block, HeadFault, HeadReader, Malformed, Priority, ResponseFault, ResponseReader, Scheduler, Scratch,
    Strain,
};
