//! Byte classes and scans shared by the parsers, and decimal numbers.
//!
//! The scans look at eight bytes per step in ordinary registers: a head is short, so a wide vector unit would
//! spend more on its edges than it saves.

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Index of the first byte at or after `from` that may not stand in a field value: below 0x20 but HTAB, or DEL.
/// Answers `buf.len()` when there is none.
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

/// Index of the first byte at or after `from` that ends a request target: a space, a control byte or DEL.
/// Answers `buf.len()` when there is none.
pub(crate) fn find_target_end(buf: &[u8], from: usize) -> usize {
    find_below::<0x21>(buf, from)
}

/// Index of the first byte below `LIMIT` or equal to DEL.
fn find_below<const LIMIT: u8>(buf: &[u8], from: usize) -> usize {
    let (words, rest) = buf[from..].as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let below = word.wrapping_sub(LOW_BITS * LIMIT as u64) & !word;
        let del = word ^ (LOW_BITS * 0x7f);
        let del = del.wrapping_sub(LOW_BITS) & !del;
        // A borrow can only spoil bytes above a true hit, so the lowest bit that is set is always right.
        let hits = (below | del) & HIGH_BITS;
        if hits != 0 {
            return from + index * 8 + (hits.trailing_zeros() / 8) as usize;
        }
    }
    let at = rest.iter().position(|&byte| byte < LIMIT || byte == 0x7f).unwrap_or(rest.len());
    from + words.len() * 8 + at
}

/// `digits` as a number; `None` when empty, when another byte than a digit occurs, or above `i64::MAX`, which is
/// the largest size that a file or nginx's `off_t` can have.
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

/// Appends `value` in decimal without going through a formatter.
pub fn push_decimal(out: &mut Vec<u8>, value: u64) {
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
    out.extend_from_slice(&digits[at..]);
}

/// Number of decimal digits of `value`.
pub(crate) fn decimal_len(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Digits of `u64::MAX`.
const DECIMAL_LEN_MAX: usize = 20;

/// `value` without spaces and tabs at both ends (OWS of RFC 9110 section 5.6.3).
pub(crate) fn trim_ows(value: &[u8]) -> &[u8] {
    let is_ows = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !is_ows(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_ows(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}

/// Value of a hexadecimal digit.
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
    fn scans_find_every_control_byte_at_every_place() {
        for len in 0..40 {
            for at in 0..len {
                for byte in 0..=255u8 {
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
    fn scan_sees_a_hit_behind_bytes_that_could_borrow() {
        let buf = [0x80, 0xff, 0x80, 0x20, 0x21, 0x7e, 0x1f, 0x80, 0x00];
        assert_eq!(find_control(&buf, 0), 6);
        assert_eq!(find_control(&buf, 7), 8);
    }

    #[test]
    fn decimal_round_trip_and_limits() {
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
