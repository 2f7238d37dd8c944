//! Parsing of the three forms of HTTP dates (RFC 9110 section 5.6.7).
//!
//! As tolerant as nginx: the weekday is not checked, and text after the time is ignored (`GMT`, or `; length=` from old browsers).
//! Two-digit years below 70 belong to this century.

use super::{Civil, DAY_S, HTTP_LEN, MONTHS, WEEKDAYS, weekday_of};
use crate::bytes::trim_ows;

/// Parses an HTTP date to seconds since 1970. Returns `None` for any other text; callers then treat the field as absent.
#[must_use]
pub fn parse_http(text: &[u8]) -> Option<i64> {
    if let Some(unix) = text.try_into().ok().and_then(preferred) {
        return Some(unix);
    }
    let mut reader = DateReader { rest: trim_ows(text) };
    match memchr::memchr(b',', reader.rest) {
        Some(comma) => {
            reader.rest = trim_ows(&reader.rest[comma + 1..]);
            reader.day_first()
        }
        None => reader.asctime(),
    }
}

/// Works like [`parse_http`], for an expiration time (RFC 9111 section 4.2): `None` if the time zone is not GMT, or if other
/// text follows. Letters are case-insensitive.
#[must_use]
pub fn parse_expiration(text: &[u8]) -> Option<i64> {
    if let Some(unix) = parse_as_written(text) {
        return Some(unix);
    }
    let text = trim_ows(text).to_ascii_uppercase();
    match memchr::memchr(b',', &text) {
        Some(comma) => {
            let rest = &text[comma + 1..];
            let date = rest.strip_suffix(b" GMT")?;
            let mut reader = DateReader { rest: trim_ows(date) };
            reader.day_first().filter(|_| reader.rest.is_empty())
        }
        None => {
            let mut reader = DateReader { rest: &text };
            reader.asctime().filter(|_| reader.rest.is_empty())
        }
    }
}

/// Works like [`parse_http`], but accepts only the form that [`super::http`] writes; `None` for any other form. Formatting the
/// result restores the same text.
#[must_use]
pub fn parse_as_written(text: &[u8]) -> Option<i64> {
    let unix = preferred(text.try_into().ok()?)?;
    let weekday = WEEKDAYS[usize::from(weekday_of(unix.div_euclid(DAY_S)))];
    (text.ends_with(b" GMT") && text.starts_with(weekday)).then_some(unix)
}

/// Returns the text that [`super::http`] writes for a date; `None` if [`parse_http`] rejects the date.
#[must_use]
pub fn normalise(text: &[u8]) -> Option<[u8; HTTP_LEN]> {
    match parse_as_written(text) {
        Some(_) => text.try_into().ok(),
        None => parse_http(text).map(super::http),
    }
}

/// Parses the form that all servers send, `Sun, 06 Nov 1994 08:49:37 GMT`; `None` for texts that may have another form.
// Inlined: the compiler would emit a call, which costs 5 % of the parsing time.
#[inline(always)]
fn preferred(text: &[u8; HTTP_LEN]) -> Option<i64> {
    let two = |at: usize| match [text[at], text[at + 1]] {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            Some(u16::from(tens - b'0') * 10 + u16::from(ones - b'0'))
        }
        _ => None,
    };
    let is_plain = text[..3].iter().all(u8::is_ascii_alphabetic)
        && text[3..5] == *b", "
        && [7, 11, 16].iter().all(|&at| text[at] == b' ')
        && [19, 22].iter().all(|&at| text[at] == b':');
    if !is_plain {
        return None;
    }
    let month = MONTHS.iter().position(|&month| text[8..11] == *month)?;
    unix(two(12)? * 100 + two(14)?, month as u16 + 1, two(5)?, two(17)?, two(20)?, two(23)?)
}

struct DateReader<'a> {
    rest: &'a [u8],
}

impl DateReader<'_> {
    /// Parses `06 Nov 1994 08:49:37 GMT` or `06-Nov-94 08:49:37 GMT`.
    fn day_first(&mut self) -> Option<i64> {
        let day = self.number(2)?;
        let separator = self.byte()?;
        let month = self.month()?;
        let year = match separator {
            b' ' if self.byte()? == b' ' => self.number(4)?,
            b'-' if self.byte()? == b'-' => {
                let year = self.number(2)?;
                year + if year < 70 { 2000 } else { 1900 }
            }
            _ => return None,
        };
        self.expect(b' ')?;
        let (hour, minute, second) = self.time()?;
        unix(year, month, day, hour, minute, second)
    }

    /// Parses `Sun Nov  6 08:49:37 1994`.
    fn asctime(&mut self) -> Option<i64> {
        let space = memchr::memchr(b' ', self.rest)?;
        self.rest = &self.rest[space + 1..];
        let month = self.month()?;
        self.expect(b' ')?;
        let day = if self.rest.first() == Some(&b' ') {
            self.rest = &self.rest[1..];
            self.number(1)?
        } else {
            self.number(2)?
        };
        self.expect(b' ')?;
        let (hour, minute, second) = self.time()?;
        self.expect(b' ')?;
        let year = self.number(4)?;
        unix(year, month, day, hour, minute, second)
    }

    fn time(&mut self) -> Option<(u16, u16, u16)> {
        let hour = self.number(2)?;
        self.expect(b':')?;
        let minute = self.number(2)?;
        self.expect(b':')?;
        Some((hour, minute, self.number(2)?))
    }

    fn month(&mut self) -> Option<u16> {
        let (name, rest) = self.rest.split_at_checked(3)?;
        self.rest = rest;
        let index = MONTHS.iter().position(|month| month.eq_ignore_ascii_case(name))?;
        Some(index as u16 + 1)
    }

    fn number(&mut self, digits: usize) -> Option<u16> {
        let (text, rest) = self.rest.split_at_checked(digits)?;
        self.rest = rest;
        crate::parse_decimal(text).map(|value| value as u16)
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.byte()? == wanted).then_some(())
    }
}

/// Converts a date to seconds since 1970. Refuses dates that do not exist.
fn unix(year: u16, month: u16, day: u16, hour: u16, minute: u16, second: u16) -> Option<i64> {
    if !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let narrow = |value: u16| value as u8;
    let civil = Civil {
        year,
        month: narrow(month),
        day: narrow(day),
        hour: narrow(hour),
        minute: narrow(minute),
        second: narrow(second),
        weekday: 0,
    };
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u16::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (day <= days).then(|| civil.to_unix())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_three_date_forms_are_parsed() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            " Sun, 06 Nov 1994 08:49:37 GMT ",
            "Mon, 06 Nov 1994 08:49:37 GMT; length=1234",
            "Sun,06 Nov 1994 08:49:37",
            "SUN, 06 NOV 1994 08:49:37 gmt",
        ] {
            assert_eq!(parse_http(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(parse_http(b"Thu, 29-Feb-68 00:00:00 GMT"), Some(3_097_699_200));
        assert_eq!(parse_http(b"Thu Jan 01 00:00:00 1970"), Some(0));
    }

    #[test]
    fn strict_parsing_accepts_one_form_only() {
        assert_eq!(parse_as_written(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        for text in [
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06-Nov-94 08:49:37   GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37  GMT",
            "Sun,06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "",
        ] {
            assert_eq!(parse_as_written(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn all_forms_are_normalised_to_the_preferred_form() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Mon, 06 nov 1994 08:49:37 UTC",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(normalise(text.as_bytes()), Some(*b"Sun, 06 Nov 1994 08:49:37 GMT"), "{text}");
        }
        assert_eq!(normalise(b"Sun, 32 Nov 1994 08:49:37 GMT"), None);
    }

    #[test]
    fn a_zone_other_than_gmt_gives_no_expiration_time() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "sun, 06 nov 1994 08:49:37 gmt",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            " Sun, 06 Nov 1994 08:49:37 GMT ",
        ] {
            assert_eq!(parse_expiration(text.as_bytes()), Some(784_111_777), "{text}");
        }
        for text in [
            "Sun, 06 Nov 1994 08:49:37 EST",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 GMT; length=1",
            "Sun Nov  6 08:49:37 1994 EST",
            "Sunday, 06-Nov-94 08:49:37 CET",
            "0",
            "",
        ] {
            assert_eq!(parse_expiration(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn invalid_dates_are_refused() {
        for text in [
            "",
            "0",
            "Sun",
            ",",
            "Sun, ",
            "Sun, 06 Nov 1994",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06-Nov 1994 08:49:37 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 00:00:00 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:00 GMT",
            "Sun, 06 Nov 1994 08:49:60 GMT",
            "Sun, 06 Nov 1994 08.49.37 GMT",
            "Sun Nov 6 08:49:37 1994",
            "2026-11-21T09:30:00Z",
        ] {
            assert_eq!(parse_http(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        /// The fast path returns the same as the general parser, also for a date with one wrong byte.
        #[test]
        fn the_fast_path_and_the_general_parser_agree(unix in 0..=super::super::UNIX_MAX, at in 0..HTTP_LEN, byte: u8, day in 1..=31u8) {
            let mut text = super::super::http(unix);
            text[5..7].copy_from_slice(format!("{day:02}").as_bytes());
            for changed in [text[at], byte] {
                text[at] = changed;
                let mut padded = text.to_vec();
                padded.push(b' ');
                prop_assert_eq!(parse_http(&text), parse_http(&padded));
            }
        }

        /// An accepted text is formatted to the same text. A text with one changed byte is formatted to itself or refused.
        #[test]
        fn strictly_parsed_dates_are_formatted_to_the_same_text(unix in super::super::UNIX_MIN..=super::super::UNIX_MAX, at in 0..HTTP_LEN, byte: u8) {
            let mut text = super::super::http(unix);
            prop_assert_eq!(parse_as_written(&text), Some(unix));
            text[at] = byte;
            if let Some(other) = parse_as_written(&text) {
                prop_assert_eq!(super::super::http(other), text);
            }
        }

        #[test]
        fn no_input_panics(text in "[A-Za-z, :0-9-]{0,40}") {
            let _ = parse_http(text.as_bytes());
        }
    }
}
