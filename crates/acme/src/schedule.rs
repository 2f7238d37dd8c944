//! Computes when certificates are renewed and when failures are retried. Times are in seconds since 1970. The present time and
//! random numbers are arguments.

use std::time::Duration;

/// Pause after the first failure. It is long enough for a CA that restarts, and acceptable for an operator who waits for the
/// result.
const PAUSE_MIN: Duration = Duration::from_secs(60);

/// Maximum pause between retries. CAs limit failures per hour and per week; one failure per day is below all limits. Renewal
/// begins when a third of the validity remains, which leaves weeks for such retries.
pub const PAUSE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Time between queries for renewal information if the CA sets none (RFC 9773 section 4.3.1).
pub const QUERY_TIME: Duration = Duration::from_secs(6 * 60 * 60);

/// Minimum and maximum of a time between queries that the CA sets.
pub const QUERY_TIME_BOUNDS: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(24 * 60 * 60));

/// The time window in which a CA requests renewal of a certificate (RFC 9773 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Start of the window.
    pub start: i64,
    /// End of the window.
    pub end: i64,
}

/// Returns when to renew a certificate that is valid from `begins` to `expires`. This is a random time in the CA's window, which
/// spreads the CA's load. Without a window it is the time when a third of the validity remains. `fraction` is a random number
/// from 0 to less than 1.
pub fn renewal(begins: i64, expires: i64, window: Option<Window>, fraction: f64) -> i64 {
    debug_assert!((0.0..1.0).contains(&fraction), "{fraction} is no fraction");
    match window {
        Some(Window { start, end }) => start + ((end - start) as f64 * fraction) as i64,
        None => expires - (expires - begins).max(0) / 3,
    }
}

/// Returns the pause after this number of consecutive failures. The pause doubles each time, and varies randomly by a quarter so
/// that many servers do not retry simultaneously. `fraction` is a random number from 0 to less than 1.
pub fn pause(failures: u32, fraction: f64) -> Duration {
    debug_assert!((0.0..1.0).contains(&fraction), "{fraction} is no fraction");
    let doubled = PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(PAUSE_MAX).mul_f64(0.75 + fraction / 2.0)
}

/// Parses a time such as `2026-01-02T03:04:05.678Z` (RFC 3339).
pub fn parse_time(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<i64>().ok()
    };
    let marks = text.as_bytes();
    let has =
        |index: usize, byte: u8| marks.get(index).is_some_and(|found| found.eq_ignore_ascii_case(&byte));
    if !(has(4, b'-') && has(7, b'-') && has(10, b't') && has(13, b':') && has(16, b':')) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let zone = text.get(19..)?.trim_start_matches(['.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let at = text.len().checked_sub(6).filter(|_| zone.len() == 6 && has(text.len() - 3, b':'))?;
            let seconds = number(at + 1..at + 3)? * 3600 + number(at + 4..at + 6)? * 60;
            match marks[at] {
                b'+' => seconds,
                b'-' => -seconds,
                _ => return None,
            }
        }
    };
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset)
}

/// Returns the days from 1970 to a date of the Gregorian calendar. The year begins in March in this computation, so that a leap
/// day is its last day.
fn days(year: i64, month: i64, day: i64) -> i64 {
    debug_assert!((1..=12).contains(&month) && (1..=31).contains(&day), "months and days are 1-based");
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_in_the_window_or_at_a_third_of_its_lifetime() {
        let window = Some(Window { start: 100, end: 200 });
        assert_eq!(renewal(0, 900, window, 0.0), 100);
        assert_eq!(renewal(0, 900, window, 0.5), 150);
        assert_eq!(renewal(0, 900, None, 0.5), 600);
        assert_eq!(renewal(900, 0, None, 0.5), 0, "one that was never valid is due");
    }

    #[test]
    fn retry_pauses_double_up_to_a_day() {
        let middle = |failures| pause(failures, 0.5).as_secs();
        assert_eq!([middle(1), middle(2), middle(3), middle(100)], [60, 120, 240, 86_400]);
        assert_eq!((pause(1, 0.0).as_secs(), pause(1, 0.999).as_secs()), (45, 74));
    }

    #[test]
    fn times_are_parsed_in_every_zone() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-25T21:43:21Z", 1_795_643_001),
            ("2026-11-25T22:43:21.123456+01:00", 1_795_643_001),
            ("2026-11-25T17:13:21-04:30", 1_795_643_001),
            ("2024-02-29T00:00:00Z", 1_709_164_800),
            ("2000-03-01t00:00:00z", 951_868_800),
        ] {
            assert_eq!(parse_time(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "2026-11-25",
            "2026-11-25T21:43:21",
            "2026-13-25T21:43:21Z",
            "2026-11-25T21:43:21X1:1",
            "2026-11-25T21:43:21+999:00",
            "é",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
