//! HPACK, the compression of header sections (RFC 7541): [`Decoder`] and [`Encoder`], one of each for a connection.
//!
//! A decoder returns each field as it comes and keeps only its table, so that its caller limits the fields. A field beyond
//! the limit still has to be decoded: the table is that of the whole connection.

mod decode;
mod encode;
mod huffman;
mod table;
#[cfg(test)]
mod tests;

pub use decode::Decoder;
pub use encode::{Encoder, known, push_field, push_known, push_known_decimal, push_request, push_status};

/// Why a header block cannot be decoded: in HTTP/2 a connection error of type COMPRESSION_ERROR (RFC 9113 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends inside a field.
    Truncated,
    /// A number is larger than anything that it could stand for.
    Integer,
    /// An index that no table has.
    Index,
    /// A text is no Huffman code.
    Huffman,
    /// The table is to be larger than was allowed, or its size changes behind a field.
    TableSize,
}

/// Bytes of a dynamic table where nothing else is agreed (RFC 9113 section 6.5.2).
pub const TABLE_BYTES_DEFAULT: usize = 4096;

/// The most that a number can be: more than any block is long.
const INTEGER_MAX: u32 = 1 << 24;

/// Reads a number that begins with the last `prefix` bits of the first byte (RFC 7541 section 5.1); it, and where it
/// ends.
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
        // Four bytes more make 28 bits.
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

/// Appends a number behind the bits that `first` has above the prefix.
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
