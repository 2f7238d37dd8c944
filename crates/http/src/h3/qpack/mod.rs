//! QPACK, the compression of header sections (RFC 9204): the [`Decoder`] of a connection, and an encoder.
//!
//! The encoder uses only the static table, so a block does not depend on other blocks: it is final when it is written, and may be sent
//! in any order, or not at all. The peer's encoder may use a dynamic table if a capacity was announced to it.

mod decode;
mod encode;
mod static_table;
#[cfg(test)]
mod tests;

pub use decode::{Decoder, Section};
pub use encode::{
    Qpack, push_field, push_known, push_known_decimal, push_never_indexed, push_request, push_status,
};

use crate::multiplexed::CodingError;

/// Reason why a header section or an instruction cannot be decoded (RFC 9204 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpackError {
    /// The block ends inside a field.
    Incomplete,
    /// A number exceeds every valid value.
    Number,
    /// An index that does not exist, or that the prefix of the block does not declare.
    UnknownIndex,
    /// A string has an invalid Huffman code.
    HuffmanCode,
    /// An invalid Required Insert Count or Base (RFC 9204 section 4.5.1).
    Prefix,
    /// The capacity of the table, or an entry, exceeds the limit.
    Capacity,
}

impl From<CodingError> for QpackError {
    fn from(error: CodingError) -> QpackError {
        match error {
            CodingError::Truncated => QpackError::Incomplete,
            CodingError::Integer => QpackError::Number,
            CodingError::Huffman => QpackError::HuffmanCode,
        }
    }
}

/// Length in bytes of the prefix of a block that uses only the static table (RFC 9204 section 4.5.1).
pub(super) const STATIC_PREFIX: [u8; 2] = [0, 0];
