//! Header field of gRPC for the deadline of a call (gRPC's PROTOCOL-HTTP2.md).

use std::time::Duration;

/// Maximum number of digits of a timeout.
const DIGITS_MAX: usize = 8;

/// Parses the value of `grpc-timeout`: one to eight digits and a unit, from hours to nanoseconds. Returns `None` for an invalid value.
#[must_use]
pub fn timeout(value: &[u8]) -> Option<Duration> {
    let (&unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_digits_and_a_unit() {
        for (text, wanted) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("004m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("0n", Duration::ZERO),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(timeout(text.as_bytes()), Some(wanted), "{text}");
        }
        for text in
            ["", "S", "1", "1s", "123456789S", "-1S", "+1S", "1.5S", " 1S", "1S ", "1 S", "1SS", "\u{661}S"]
        {
            assert_eq!(timeout(text.as_bytes()), None, "{text:?}");
        }
    }
}
