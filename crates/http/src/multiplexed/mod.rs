//! Rules and codings that HTTP/2 and HTTP/3 have in common: their streams carry the same messages.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`head`] | conversion of fields to request heads, with validation | RFC 9113 section 8, RFC 9114 section 4 |
//! | [`response`] | conversion of fields to response heads | the same |
//! | [`trailers`] | validation of trailer sections | the same |
//! | [`writer`] | header blocks being written, with either compression | RFC 7541, RFC 9204 |
//! | [`priority`] | order in which streams send | RFC 9218 |
//! | [`calm`] | limits on frames and requests without effect | RFC 9113 section 10.5, RFC 9114 section 10.5 |
//! | [`coding`], [`huffman`], [`table`], [`mod@never`] | numbers and strings of compressed header sections, the dynamic table, fields that must not enter one | RFC 7541, RFC 9204 |

pub mod calm;
pub mod coding;
pub mod head;
pub(crate) mod huffman;
pub mod never;
pub mod priority;
pub mod response;
pub(crate) mod table;
pub mod trailers;
pub mod writer;

pub use calm::Strain;
pub use coding::CodingError;
pub use head::{HeadFault, HeadReader, Malformed, Scratch};
pub use never::NeverIndexed;
pub use priority::{Priority, Scheduler};
pub use response::{ResponseFault, ResponseReader};
pub use writer::{BlockWriter, KnownField};

/// Location of a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// A range of the input: start and end.
    Input(usize, usize),
    /// Memory of the session or stream, since the block arrived in several parts.
    Gathered,
}
