//! Byte classes and scans shared by the parsers, and decimal numbers.
//!
//! The scans process eight bytes at a time in general-purpose registers, without unsafe code and without a runtime choice of an
//! instruction set. Scans of values first skip blocks of 16 bytes, a loop that the compiler vectorises.

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Returns the index of the first byte at or after `from` that is invalid in a field value: below 0x20 except HTAB, or DEL. Returns
/// `buf.len()` if no byte is invalid.
pub(crate) fn find_control(buf: &[u8], from: usize) -> usize {
    let mut at = from;
    loop {
        at = find_below::<0x20>(buf, at);
        if buf.get(at) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
}

/// Works like [`find_control`], but a tab counts as a control byte too.
pub(crate) fn find_any_control(buf: &[u8], from: usize) -> usize {
    find_below::<0x20>(buf, from)
}

/// Returns the index of the first byte at or after `from` that ends a request target: a space, a control byte or DEL. Returns
/// `buf.len()` if no byte ends it.
pub(crate) fn find_target_end(buf: &[u8], from: usize) -> usize {
    find_below::<0x21>(buf, from)
}

/// Returns the index of the first byte below `LIMIT` or equal to DEL.
#[inline]
fn find_below<const LIMIT: u8>(buf: &[u8], from: usize) -> usize {
    // Skips long values in blocks: the test for a hit in a block compiles to vector instructions, the search for its index does
    // not.
    let (blocks, _) = buf[from..].as_chunks::<16>();
    let is_free =
        |block: &&[u8; 16]| !block.iter().fold(false, |hit, &byte| hit | (byte < LIMIT) | (byte == 0x7f));
    let free = blocks.iter().take_while(is_free).count() * 16;
    find(buf, from + free, |word| {
        // Sums of seven-bit values stay within their byte, so each test is exact for every byte.
        let low = word & !HIGH_BITS;
        let not_below = low + LOW_BITS * (0x80 - LIMIT as u64);
        ((low + LOW_BITS) | !not_below) & !word & HIGH_BITS
    })
}

/// Returns the index of the first byte at or after `from` that a log line may escape: a quote, a backslash, or any byte except
/// printable ASCII. Returns `buf.len()` if there is no such byte.
#[must_use]
pub fn find_escapable(buf: &[u8], from: usize) -> usize {
    find(buf, from, |word| {
        let low = word & !HIGH_BITS;
        // Sums of seven-bit values stay within their byte. The highest bit is set unless both bytes are equal.
        let differs = |byte: u8| (low ^ (LOW_BITS * u64::from(byte))) + LOW_BITS * 0x7f;
        let printable = low + LOW_BITS * (0x80 - 0x20);
        (word | !(printable & differs(0x7f) & differs(b'"') & differs(b'\\'))) & HIGH_BITS
    })
}

/// `tchar` of RFC 9110 section 5.6.2, by byte.
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let (mut byte, others) = (0, b"!#$%&'*+-.^_`|~");
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    table
};

/// Whether a byte is allowed in a token (RFC 9110 section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

/// Returns the index of the first byte at or after `from` that is not a letter, digit or hyphen; `buf.len()` if there is no such
/// byte.
#[inline]
pub(crate) fn find_name_end(buf: &[u8], from: usize) -> usize {
    find(buf, from, |word| {
        let low = word & !HIGH_BITS;
        let lower = low | (LOW_BITS * 0x20);
        let letter = (lower + LOW_BITS * (0x80 - b'a' as u64)) & !(lower + LOW_BITS * (0x7f - b'z' as u64));
        let digit = (low + LOW_BITS * (0x80 - b'0' as u64)) & !(low + LOW_BITS * (0x7f - b'9' as u64));
        let hyphen = !((low ^ (LOW_BITS * b'-' as u64)) + LOW_BITS * 0x7f);
        !((letter | digit | hyphen) & !word) & HIGH_BITS
    })
}

/// Returns the index of the first byte at or after `from` for which `hits` sets the highest bit of that byte; `buf.len()` if there
/// is no such byte. `hits` must judge each byte of a word independently.
#[inline]
fn find(buf: &[u8], from: usize, hits: impl Fn(u64) -> u64) -> usize {
    let (words, rest) = buf[from..].as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let found = hits(u64::from_le_bytes(*word));
        if found != 0 {
            return from + index * 8 + (found.trailing_zeros() / 8) as usize;
        }
    }
    let rest_start = buf.len() - rest.len();
    match buf.last_chunk::<8>() {
        _ if rest.is_empty() => buf.len(),
        // The shift drops the bytes of the last word that precede `rest`.
        Some(last) => match hits(u64::from_le_bytes(*last)) >> (64 - 8 * rest.len()) {
            0 => buf.len(),
            found => rest_start + (found.trailing_zeros() / 8) as usize,
        },
        None => {
            let is_hit = |&byte: &u8| hits(u64::from(byte)) & 0x80 != 0;
            rest_start + rest.iter().position(is_hit).unwrap_or(rest.len())
        }
    }
}

/// Whether `name` equals `lower`, ignoring case. `lower` consists of lower-case letters and hyphens only.
pub(crate) fn name_eq_lower(name: &[u8], lower: &[u8]) -> bool {
    if name.len() != lower.len() {
        return false;
    }
    // The case bit is set for the letters of `lower`, which have bit 6, but not for its hyphens.
    let same = |a: &[u8; 8], b: &[u8; 8]| {
        let lower = u64::from_le_bytes(*b);
        u64::from_le_bytes(*a) | (lower >> 1) & (LOW_BITS * 0x20) == lower
    };
    if let (Some(name_last), Some(lower_last)) = (name.last_chunk::<8>(), lower.last_chunk::<8>()) {
        // The last word overlaps the one before it.
        let (names, lowers) = (name.as_chunks::<8>().0, lower.as_chunks::<8>().0);
        return same(name_last, lower_last) && names.iter().zip(lowers).all(|(a, b)| same(a, b));
    }
    name.iter().zip(lower).all(|(a, b)| a | (b >> 1) & 0x20 == *b)
}

/// Length of a window that contains every known field name and its colon.
const NAME_WINDOW: usize = 32;

/// Returns the index of the first colon, if it is among the first [`NAME_WINDOW`] bytes and all of these were received.
#[inline]
pub(crate) fn find_near_colon(bytes: &[u8]) -> Option<usize> {
    let words = bytes.first_chunk::<NAME_WINDOW>()?.as_chunks::<8>().0;
    words.iter().enumerate().find_map(|(index, word)| {
        let differs = u64::from_le_bytes(*word) ^ (LOW_BITS * b':' as u64);
        // Exact for the first byte that is zero.
        let zero = differs.wrapping_sub(LOW_BITS) & !differs & HIGH_BITS;
        (zero != 0).then(|| index * 8 + (zero.trailing_zeros() / 8) as usize)
    })
}

/// Parses `digits` as a decimal number. Returns `None` if it is empty, has another byte than a digit, or exceeds `i64::MAX`, the
/// limit of nginx's `off_t`.
#[must_use]
pub fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    i64::try_from(value).is_ok().then_some(value)
}

/// Appends `value` in decimal, without `core::fmt`.
pub fn push_decimal(out: &mut Vec<u8>, value: u64) {
    with_decimal(value, |digits| out.extend_from_slice(digits));
}

/// Calls `take` with the decimal digits of `value`.
pub fn with_decimal<R>(value: u64, take: impl FnOnce(&[u8]) -> R) -> R {
    let mut digits = [0u8; DECIMAL_LEN_MAX];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    take(&digits[at..])
}

/// Returns the number of decimal digits of `value`.
pub(crate) fn decimal_len(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Digits of `u64::MAX`.
const DECIMAL_LEN_MAX: usize = 20;

/// Removes spaces and tabs at both ends of `value` (OWS of RFC 9110 section 5.6.3).
pub(crate) fn trim_ows(value: &[u8]) -> &[u8] {
    let is_ows = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !is_ows(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_ows(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}

/// Returns the value of a hexadecimal digit.
pub(crate) fn hex_value(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_find_every_control_byte_at_every_offset() {
        // Miri would need minutes for all bytes.
        let step = if cfg!(miri) { 31 } else { 1 };
        for len in 0..40 {
            for at in 0..len {
                for byte in (0..=255u8).step_by(step) {
                    let mut buf = vec![b'a'; len];
                    buf[at] = byte;
                    let control = (byte < 0x20 && byte != b'\t') || byte == 0x7f;
                    assert_eq!(find_control(&buf, 0), if control { at } else { len }, "{byte:#x} at {at}");
                    let ends = byte <= 0x20 || byte == 0x7f;
                    assert_eq!(find_target_end(&buf, 0), if ends { at } else { len }, "{byte:#x} at {at}");
                }
            }
        }
    }

    #[test]
    fn name_scan_finds_every_other_byte_at_every_offset() {
        let step = if cfg!(miri) { 31 } else { 1 };
        for len in 0..20 {
            for at in 0..len {
                for byte in (0..=255u8).step_by(step) {
                    let mut buf = vec![b'a'; len];
                    buf[at] = byte;
                    let belongs = byte.is_ascii_alphanumeric() || byte == b'-';
                    assert_eq!(find_name_end(&buf, 0), if belongs { len } else { at }, "{byte:#x} at {at}");
                }
            }
        }
        assert_eq!(find_name_end(b"AZaz09-@[`{/:.,", 0), 7);
    }

    #[test]
    fn escape_scan_finds_every_escapable_byte_at_every_offset() {
        let step = if cfg!(miri) { 31 } else { 1 };
        for len in 0..20 {
            for at in 0..len {
                for byte in (0..=255u8).step_by(step) {
                    let mut buf = vec![b'a'; len];
                    buf[at] = byte;
                    let escaped = !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\');
                    assert_eq!(find_escapable(&buf, 0), if escaped { at } else { len }, "{byte:#x} at {at}");
                    assert_eq!(find_escapable(&buf, at + 1), len);
                }
            }
        }
    }

    #[test]
    fn names_compare_without_case() {
        for name in
            ["te", "host", "referer", "keep-alive", "if-modified-since", "x-forwarded-proto", "abcdefgh"]
        {
            let upper = name.to_ascii_uppercase();
            assert!(name_eq_lower(upper.as_bytes(), name.as_bytes()));
            for at in 0..name.len() {
                let mut other = upper.clone().into_bytes();
                other[at] = if other[at] == b'Q' { b'R' } else { b'Q' };
                assert!(!name_eq_lower(&other, name.as_bytes()), "{name} at {at}");
            }
            assert!(!name_eq_lower(&upper.as_bytes()[1..], name.as_bytes()));
        }
    }

    #[test]
    fn scan_classifies_each_byte_separately() {
        let buf = [0x80, 0xff, 0x80, 0x20, 0x21, 0x7e, 0x1f, 0x80, 0x00];
        assert_eq!(find_control(&buf, 0), 6);
        assert_eq!(find_control(&buf, 7), 8);
    }

    #[test]
    fn decimal_numbers_are_written_parsed_and_limited() {
        for value in [0, 1, 9, 10, 99, 100, 4096, u64::from(u32::MAX), i64::MAX as u64] {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            assert_eq!(out.len(), decimal_len(value));
            assert_eq!(parse_decimal(&out), Some(value));
        }
        for bad in
            ["", "-1", "+1", " 1", "1 ", "0x10", "1_0", "9223372036854775808", "99999999999999999999999"]
        {
            assert_eq!(parse_decimal(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse_decimal(b"000000000000000000000000000000012"), Some(12));
    }

    #[test]
    fn optional_white_space_is_trimmed_at_the_ends_only() {
        assert_eq!(trim_ows(b" \ta b\t "), b"a b");
        assert_eq!(trim_ows(b" \t "), b"");
        assert_eq!(trim_ows(b""), b"");
    }
}
