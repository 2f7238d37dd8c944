//! The Huffman code of strings (RFC 7541 section 5.2 and appendix B, RFC 9204 section 4.1.2).
//!
//! The code is canonical: the lengths of its symbols define it. Codes of up to eight bits are decoded by one table lookup, longer
//! codes by a search for their length.

use super::coding::CodingError;

/// Code length in bits of each byte, followed by that of the end-of-string symbol.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
];

/// The end-of-string symbol, which must not be sent.
const END: usize = 256;

/// Length in bits of the longest code.
const LONGEST: usize = 30;

/// Maximum length in bits of codes that are decoded by one lookup.
const SHORT: usize = 8;

/// Tables derived from the lengths.
struct Tables {
    /// The code of each symbol.
    codes: [u32; 257],
    /// Symbols in the order of their codes.
    ordered: [u16; 257],
    /// For each length, the first code after all codes of up to that length, left-aligned.
    ends: [u64; LONGEST + 1],
    /// For each length, its first code and the position of its symbol in `ordered`.
    firsts: [(u32, u16); LONGEST + 1],
    /// For the next eight bits, the symbol and its length; 0 if the code is longer.
    short: [(u8, u8); 1 << SHORT],
}

const TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut all = Tables {
        codes: [0; 257],
        ordered: [0; 257],
        ends: [0; LONGEST + 1],
        firsts: [(0, 0); LONGEST + 1],
        short: [(0, 0); 1 << SHORT],
    };
    let (mut code, mut place, mut length) = (0u32, 0, 1);
    while length <= LONGEST {
        code <<= 1;
        all.firsts[length] = (code, place as u16);
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                all.codes[symbol] = code;
                all.ordered[place] = symbol as u16;
                if length <= SHORT {
                    let (start, count) = ((code as usize) << (SHORT - length), 1 << (SHORT - length));
                    let mut at = start;
                    while at < start + count {
                        all.short[at] = (symbol as u8, length as u8);
                        at += 1;
                    }
                }
                code += 1;
                place += 1;
            }
            symbol += 1;
        }
        all.ends[length] = (code as u64) << (64 - length);
        length += 1;
    }
    all
}

/// Appends the decoded bytes of `input`.
pub(crate) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
    out.reserve(input.len() * 8 / 5 + 1);
    let (mut window, mut bits, mut at) = (0u64, 0usize, 0);
    loop {
        while bits <= 56 && at < input.len() {
            window |= u64::from(input[at]) << (56 - bits);
            bits += 8;
            at += 1;
        }
        let (symbol, length) = TABLES.short[(window >> 56) as usize];
        let (symbol, length) = match length {
            0 => long(window),
            length => (usize::from(symbol), usize::from(length)),
        };
        if length > bits {
            // The remaining bits are fewer than any code: they must be all ones, and less than a byte.
            let is_padding = bits < 8 && window == !(u64::MAX.checked_shr(bits as u32).unwrap_or(0));
            return if is_padding { Ok(()) } else { Err(CodingError::Huffman) };
        }
        if symbol == END {
            return Err(CodingError::Huffman);
        }
        out.push(symbol as u8);
        window <<= length;
        bits -= length;
    }
}

/// Returns the symbol of a code longer than eight bits, and its length.
fn long(window: u64) -> (usize, usize) {
    let mut length = SHORT + 1;
    while length < LONGEST && window >= TABLES.ends[length] {
        length += 1;
    }
    let (first, place) = TABLES.firsts[length];
    let code = (window >> (64 - length)) as u32;
    (usize::from(TABLES.ordered[usize::from(place) + (code - first) as usize]), length)
}

/// Returns the length of the encoded `text` in bytes.
pub(crate) fn encoded_len(text: &[u8]) -> usize {
    text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum::<usize>().div_ceil(8)
}

/// Appends the encoded `text`.
pub(crate) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut window, mut bits) = (0u64, 0usize);
    for &byte in text {
        let length = usize::from(LENGTHS[usize::from(byte)]);
        window = window << length | u64::from(TABLES.codes[usize::from(byte)]);
        bits += length;
        while bits >= 8 {
            bits -= 8;
            out.push((window >> bits) as u8);
        }
    }
    if bits > 0 {
        out.push((window << (8 - bits)) as u8 | (0xff >> bits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(input: &[u8]) -> Result<Vec<u8>, CodingError> {
        let mut out = Vec::new();
        decode(input, &mut out).map(|()| out)
    }

    /// RFC 7541 section 5.2.
    #[test]
    fn every_byte_is_encoded_and_decoded() {
        for first in 0..=255u8 {
            for second in [0, b'a', b'z', 0xff] {
                let text = [first, second, first];
                let mut coded = Vec::new();
                encode(&text, &mut coded);
                assert_eq!(coded.len(), encoded_len(&text));
                assert_eq!(decoded(&coded).as_deref(), Ok(&text[..]));
            }
        }
    }

    /// RFC 7541 appendix C.4.1 and C.6.1.
    #[test]
    fn the_examples_of_the_rfc_are_decoded_and_encoded() {
        let coded = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&coded).as_deref(), Ok(&b"www.example.com"[..]));
        let mut out = Vec::new();
        encode(b"www.example.com", &mut out);
        assert_eq!(out, coded);
        assert_eq!(decoded(&[0x64, 0x02]).as_deref(), Ok(&b"302"[..]));
    }

    /// RFC 7541 section 5.2: padding of more than seven bits, padding that is not ones, and the end symbol.
    #[test]
    fn wrong_padding_and_the_end_symbol_are_refused() {
        assert_eq!(decoded(&[]).as_deref(), Ok(&b""[..]));
        // `0` is five zeros.
        assert_eq!(decoded(&[0b0000_0111]).as_deref(), Ok(&b"0"[..]));
        assert_eq!(decoded(&[0b0000_0110]), Err(CodingError::Huffman), "padding of another bit");
        assert_eq!(decoded(&[0b0000_0111, 0xff]), Err(CodingError::Huffman), "padding of a byte and more");
        assert_eq!(decoded(&[0xff]), Err(CodingError::Huffman), "a byte of padding");
        assert_eq!(decoded(&[0xff; 4]), Err(CodingError::Huffman), "the end symbol");
        assert_eq!(decoded(&[0xff; 9]), Err(CodingError::Huffman));
    }
}
