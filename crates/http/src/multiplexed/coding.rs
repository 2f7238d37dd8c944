//! Numbers and strings of compressed header sections (RFC 7541 section 5, RFC 9204 section 4.1).
//!
//! A string may be Huffman-coded. Its first byte has a flag for this, above the prefix of its length.

use super::huffman;

/// Reason why a number or a string cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodingError {
    /// The input ends inside it.
    Truncated,
    /// A number exceeds every valid value.
    Integer,
    /// A string has an invalid Huffman code.
    Huffman,
}

/// Maximum value of a number: more than the length of any block.
const INTEGER_MAX: u32 = 1 << 24;

/// Decodes a number that begins with the last `prefix` bits of the first byte (RFC 7541 section 5.1). Returns the number and its
/// length.
pub(crate) fn integer(input: &[u8], prefix: u32) -> Result<(usize, usize), CodingError> {
    let mask = (1u32 << prefix) - 1;
    let first = u32::from(*input.first().ok_or(CodingError::Truncated)?) & mask;
    if first < mask {
        return Ok((first as usize, 1));
    }
    let (mut value, mut shift, mut at) = (first, 0, 1);
    loop {
        let byte = *input.get(at).ok_or(CodingError::Truncated)?;
        at += 1;
        // Four more bytes contain 28 bits.
        if shift > 21 {
            return Err(CodingError::Integer);
        }
        value += u32::from(byte & 0x7f) << shift;
        shift += 7;
        if value > INTEGER_MAX {
            return Err(CodingError::Integer);
        }
        if byte & 0x80 == 0 {
            return Ok((value as usize, at));
        }
    }
}

/// Works like [`integer`] for numbers of up to 62 bits, such as stream numbers and counts (RFC 9204 section 4.1.1).
pub(crate) fn long_integer(input: &[u8], prefix: u32) -> Result<(u64, usize), CodingError> {
    let mask = (1u64 << prefix) - 1;
    let first = u64::from(*input.first().ok_or(CodingError::Truncated)?) & mask;
    if first < mask {
        return Ok((first, 1));
    }
    let (mut value, mut shift, mut at) = (first, 0, 1);
    loop {
        let byte = *input.get(at).ok_or(CodingError::Truncated)?;
        at += 1;
        // Nine more bytes contain 63 bits.
        if shift > 56 {
            return Err(CodingError::Integer);
        }
        value += u64::from(byte & 0x7f) << shift;
        shift += 7;
        if value >= 1 << 62 {
            return Err(CodingError::Integer);
        }
        if byte & 0x80 == 0 {
            return Ok((value, at));
        }
    }
}

/// Appends a number after the bits of `first` above the prefix.
#[inline]
pub(crate) fn push_integer(out: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
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

/// A string of a block.
#[derive(Clone, Copy)]
pub(crate) enum Text {
    /// A range of the block.
    Plain { start: usize, end: usize },
    /// In separate memory.
    Decoded,
}

impl Text {
    /// Returns the bytes.
    pub(crate) fn of<'a>(self, block: &'a [u8], decoded: &'a [u8]) -> &'a [u8] {
        match self {
            Text::Plain { start, end } => &block[start..end],
            Text::Decoded => decoded,
        }
    }
}

/// Decodes a string whose length has a prefix of `prefix` bits (RFC 7541 section 5.2, RFC 9204 section 4.1.2), into `memory` if it is
/// Huffman-coded. Returns the string and its end.
#[inline]
pub(crate) fn text(
    block: &[u8],
    start: usize,
    prefix: u32,
    memory: &mut Vec<u8>,
) -> Result<(Text, usize), CodingError> {
    let input = block.get(start..).unwrap_or_default();
    let (len, used) = integer(input, prefix)?;
    let is_coded = input[0] & 1 << prefix != 0;
    let (start, end) = (start + used, start + used + len);
    let coded = block.get(start..end).ok_or(CodingError::Truncated)?;
    if !is_coded {
        return Ok((Text::Plain { start, end }, end));
    }
    memory.clear();
    huffman::decode(coded, memory)?;
    Ok((Text::Decoded, end))
}

/// Appends a string after the bits of `first` above its flag. If `huffman` is set, it is Huffman-coded unless this makes it longer.
pub(crate) fn push_text(out: &mut Vec<u8>, first: u8, prefix: u32, text: &[u8], huffman: bool) {
    let coded = if huffman { huffman::encoded_len(text) } else { usize::MAX };
    if coded < text.len() {
        push_integer(out, first | 1 << prefix, prefix, coded);
        return huffman::encode(text, out);
    }
    push_integer(out, first, prefix, text.len());
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9204 section 4.1.1: integers of up to 62 bits are decoded.
    #[test]
    fn numbers_of_62_bits_are_decoded() {
        for value in [0, 62, 63, 64, 1 << 24, (1 << 32) + 5, (1 << 62) - 1] {
            let mut out = Vec::new();
            push_integer(&mut out, 0x40, 6, value);
            assert_eq!(long_integer(&out, 6), Ok((value as u64, out.len())), "{value}");
            assert_eq!(long_integer(&out[..out.len() - 1], 6), Err(CodingError::Truncated));
        }
        let mut out = Vec::new();
        push_integer(&mut out, 0, 6, 1 << 62);
        assert_eq!(long_integer(&out, 6), Err(CodingError::Integer));
        assert_eq!(long_integer(&[0xff; 12], 7), Err(CodingError::Integer));
    }

    #[test]
    fn strings_are_coded_with_every_prefix() {
        for (string, huffman) in
            [(&b"www.example.com"[..], true), (b"\x01\xff", true), (b"abc", false), (b"", true)]
        {
            for prefix in 3..=7 {
                let (mut out, mut memory) = (Vec::new(), Vec::new());
                push_text(&mut out, 0, prefix, string, huffman);
                let (read, end) = text(&out, 0, prefix, &mut memory).expect("a string");
                assert_eq!((read.of(&out, &memory), end), (string, out.len()));
            }
        }
    }
}
