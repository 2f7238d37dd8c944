//! HPACK, the compression of header sections (RFC 7541): [`Decoder`] and [`Encoder`], one of each per connection.
//!
//! A decoder passes each field on and stores only its table, so that the caller limits the fields. Fields beyond the limit must
//! still be decoded, because the table belongs to the complete connection.

mod decode;
mod encode;
mod huffman;
mod never;
mod table;
#[cfg(test)]
mod tests;

pub use decode::Decoder;
pub use encode::{
    Encoder, indexed_name, known, push_field, push_indexed, push_indexed_decimal, push_never_indexed,
    push_request, push_status,
};
pub use never::NeverIndexed;

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

/// Maximum value of a number: more than the length of any block.
const INTEGER_MAX: u32 = 1 << 24;

/// Decodes a number that begins with the last `prefix` bits of the first byte (RFC 7541 section 5.1). Returns the number and its
/// length.
fn integer(input: &[u8], prefix: u32) -> Result<(usize, usize), HpackError> {
    let mask = (1u32 << prefix) - 1;
    let first = u32::from(*input.first().ok_or(HpackError::Truncated)?) & mask;
    if first < mask {
        return Ok((first as usize, 1));
    }
    let (mut value, mut shift, mut at) = (first, 0, 1);
    loop {
        let byte = *input.get(at).ok_or(HpackError::Truncated)?;
        at += 1;
        // Four more bytes contain 28 bits.
        if shift > 21 {
            return Err(HpackError::Integer);
        }
        value += u32::from(byte & 0x7f) << shift;
        shift += 7;
        if value > INTEGER_MAX {
            return Err(HpackError::Integer);
        }
        if byte & 0x80 == 0 {
            return Ok((value as usize, at));
        }
    }
}

/// Appends a number after the bits of `first` above the prefix.
#[inline]
pub(super) fn push_integer(out: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        out.push(first | value as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}
