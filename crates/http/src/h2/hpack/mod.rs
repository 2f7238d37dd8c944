//! HPACK, the compression of header sections (RFC 7541): [`Decoder`] and [`Encoder`], one of each per connection.
//!
//! A decoder passes each field on and stores only its table, so that the caller limits the fields. Fields beyond the limit must
//! still be decoded, because the table belongs to the complete connection.

mod decode;
mod encode;
mod static_table;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use crate::multiplexed::coding::push_integer;
pub use crate::multiplexed::never::NeverIndexed;

pub use decode::Decoder;
pub use encode::{
    Encoder, Hpack, indexed_name, known, push_field, push_indexed, push_indexed_decimal, push_never_indexed,
    push_request, push_status,
};

use crate::multiplexed::CodingError;

/// Reason why a header block cannot be decoded: a connection error of type COMPRESSION_ERROR (RFC 9113 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends inside a field.
    Truncated,
    /// A number exceeds every valid value.
    Integer,
    /// An index that does not exist.
    Index,
    /// A string has an invalid Huffman code.
    Huffman,
    /// The table size exceeds the limit, or changes after a field.
    TableSize,
}

/// Default size of a dynamic table in bytes (RFC 9113 section 6.5.2).
pub const TABLE_BYTES_DEFAULT: usize = 4096;

impl From<CodingError> for HpackError {
    fn from(error: CodingError) -> HpackError {
        match error {
            CodingError::Truncated => HpackError::Truncated,
            CodingError::Integer => HpackError::Integer,
            CodingError::Huffman => HpackError::Huffman,
        }
    }
}
