//! HTTP dates for the testkit: [`format()`] writes one, [`parse`] reads one.
//!
//! The module does not use crate `http`, whose bugs could otherwise hide from the tests. It supports only the preferred
//! format (RFC 9110 section 5.6.7, IMF-fixdate) and years from 1970 on.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns the current time in seconds since 1970.
pub fn now() -> u64 {
    // A clock before 1970 is invalid.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Formats seconds since 1970: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn format(seconds: u64) -> String {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS[(days % 7) as usize];
    let mut year = 1970;
    while days >= year_days(year) {
        days -= year_days(year);
        year += 1;
    }
    let mut month = 0;
    while days >= month_days(year, month) {
        days -= month_days(year, month);
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let month = MONTHS[month];
    format!("{weekday}, {:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT", days + 1)
}

/// Parses a date to seconds since 1970.
pub fn parse(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else { return None };
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok().filter(|&year| year >= 1970)?);
    let month = MONTHS.iter().position(|&name| name == month)?;
    let parts: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hour, minute, second] = parts[..] else { return None };
    let days = (1970..year).map(year_days).sum::<u64>();
    let days = days + (0..month).map(|month| month_days(year, month)).sum::<u64>() + day.checked_sub(1)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_days(year: u64, month: usize) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_formatted_and_parsed() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(format(seconds), text);
            assert_eq!(parse(text), Some(seconds));
        }
        for text in ["", "Sun, 00 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "0"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
