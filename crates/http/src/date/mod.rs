//! Dates of HTTP (RFC 9110 section 5.6.7) and of nginx's logs.
//!
//! All functions receive seconds since 1970; none reads a clock or a time zone. [`DateCache`] formats each second once;
//! [`parse_http`] parses the three forms that clients may send.

mod parse;

pub use parse::{normalise, parse_as_written, parse_expiration, parse_http};

/// Length of an HTTP date: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub const HTTP_LEN: usize = 29;
/// Length of `$time_local`: `21/Nov/2026:09:30:00 +0000`.
pub const COMMON_LOG_LEN: usize = 26;
/// Length of `$time_iso8601`: `2026-11-21T09:30:00+00:00`.
pub const ISO_8601_LEN: usize = 25;
/// Length of a time in the error log: `2026/11/21 09:30:00`.
pub const ERROR_LOG_LEN: usize = 19;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
const WEEKDAYS: [&[u8; 3]; 7] = [b"Sun", b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat"];

/// First second of year 0 and last second of year 9999. Years outside do not fit into four digits, so times outside (from a damaged
/// file system) are clamped.
const UNIX_MIN: i64 = -62_167_219_200;
const UNIX_MAX: i64 = 253_402_300_799;
const DAY_S: i64 = 86_400;

/// A date and time of day in the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// 0 to 9999.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
    /// 0 is Sunday.
    pub weekday: u8,
}

impl Civil {
    /// Converts `unix` seconds since 1970 to a date in UTC.
    #[must_use]
    pub fn from_unix(unix: i64) -> Self {
        let unix = unix.clamp(UNIX_MIN, UNIX_MAX);
        let (days, second_of_day) = (unix.div_euclid(DAY_S), unix.rem_euclid(DAY_S));
        let (year, month, day) = date_of_days(days);
        Self {
            year: year as u16,
            month: month as u8,
            day: day as u8,
            hour: (second_of_day / 3600) as u8,
            minute: (second_of_day / 60 % 60) as u8,
            second: (second_of_day % 60) as u8,
            weekday: weekday_of(days),
        }
    }

    /// Converts to seconds since 1970, in UTC; ignores the weekday.
    #[must_use]
    pub fn to_unix(self) -> i64 {
        let days = days_of_date(i64::from(self.year), i64::from(self.month), i64::from(self.day));
        days * DAY_S + i64::from(self.hour) * 3600 + i64::from(self.minute) * 60 + i64::from(self.second)
    }
}

/// Returns the weekday of a day, counted from 1970; 0 is Sunday.
fn weekday_of(days: i64) -> u8 {
    // 1970 began on a Thursday.
    (days + 4).rem_euclid(7) as u8
}

/// Days from 1 March to the start of the month. The calendar year starts in March here, so that the leap day is last. The lengths
/// of the months repeat every five months: 153 days.
fn days_before_month(month_from_march: i64) -> i64 {
    (153 * month_from_march + 2) / 5
}

/// Days from 1970 to a date.
fn days_of_date(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + days_before_month(month) + day - 1 - DAYS_TO_1970
}

/// Days from 1 March of year 0 to 1 January 1970.
const DAYS_TO_1970: i64 = 719_468;
/// Number of days in 400 Gregorian years.
const ERA_DAYS: i64 = 146_097;

/// Converts days since 1970 to year, month and day.
fn date_of_days(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    // Subtracts the leap days before dividing by 365: one in 4 years, none in 100, one in 400.
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - days_before_month(month_from_march) + 1;
    let (month, next_year) =
        if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    (era * 400 + year_of_era + next_year, month, day)
}

/// Formats `Sun, 06 Nov 1994 08:49:37 GMT`.
#[must_use]
pub fn http(unix: i64) -> [u8; HTTP_LEN] {
    let civil = Civil::from_unix(unix);
    let mut text = *b"Sun, 06 Nov 1994 08:49:37 GMT";
    text[..3].copy_from_slice(WEEKDAYS[usize::from(civil.weekday)]);
    put_two(&mut text, 5, civil.day);
    text[8..11].copy_from_slice(MONTHS[usize::from(civil.month) - 1]);
    put_four(&mut text, 12, civil.year);
    put_time(&mut text, 17, civil);
    text
}

/// Formats the date as in cookies, `Sun, 22-Nov-26 12:42:24 GMT`. Years from 2038 on have four digits, as in nginx: old clients
/// misread two digits above 37.
pub fn cookie(unix: i64) -> Vec<u8> {
    let date = http(unix);
    // `Sun, 22 Nov 2026 12:42:24 GMT`
    let year = if &date[12..16] > b"2037".as_slice() { &date[12..16] } else { &date[14..16] };
    [&date[..7], b"-", &date[8..11], b"-", year, &date[16..]].concat()
}

/// Formats `21/Nov/2026:09:30:00 +0000` for a zone `offset_minutes` east of UTC.
#[must_use]
pub fn common_log(unix: i64, offset_minutes: i16) -> [u8; COMMON_LOG_LEN] {
    let civil = Civil::from_unix(local(unix, offset_minutes));
    let mut text = *b"21/Nov/2026:09:30:00 +0000";
    put_two(&mut text, 0, civil.day);
    text[3..6].copy_from_slice(MONTHS[usize::from(civil.month) - 1]);
    put_four(&mut text, 7, civil.year);
    put_time(&mut text, 12, civil);
    let (sign, hours, minutes) = split_offset(offset_minutes);
    text[21] = sign;
    put_two(&mut text, 22, hours);
    put_two(&mut text, 24, minutes);
    text
}

/// Formats `2026-11-21T09:30:00+00:00` for a zone `offset_minutes` east of UTC.
#[must_use]
pub fn iso_8601(unix: i64, offset_minutes: i16) -> [u8; ISO_8601_LEN] {
    let civil = Civil::from_unix(local(unix, offset_minutes));
    let mut text = *b"2026-11-21T09:30:00+00:00";
    put_four(&mut text, 0, civil.year);
    put_two(&mut text, 5, civil.month);
    put_two(&mut text, 8, civil.day);
    put_time(&mut text, 11, civil);
    let (sign, hours, minutes) = split_offset(offset_minutes);
    text[19] = sign;
    put_two(&mut text, 20, hours);
    put_two(&mut text, 23, minutes);
    text
}

/// Formats `2026/11/21 09:30:00` for a zone `offset_minutes` east of UTC.
#[must_use]
pub fn error_log(unix: i64, offset_minutes: i16) -> [u8; ERROR_LOG_LEN] {
    let civil = Civil::from_unix(local(unix, offset_minutes));
    let mut text = *b"2026/11/21 09:30:00";
    put_four(&mut text, 0, civil.year);
    put_two(&mut text, 5, civil.month);
    put_two(&mut text, 8, civil.day);
    put_time(&mut text, 11, civil);
    text
}

fn local(unix: i64, offset_minutes: i16) -> i64 {
    unix.saturating_add(i64::from(offset_minutes) * 60)
}

fn split_offset(offset_minutes: i16) -> (u8, u8, u8) {
    let minutes = offset_minutes.unsigned_abs();
    (if offset_minutes < 0 { b'-' } else { b'+' }, (minutes / 60 % 100) as u8, (minutes % 60) as u8)
}

fn put_time(text: &mut [u8], at: usize, civil: Civil) {
    put_two(text, at, civil.hour);
    put_two(text, at + 3, civil.minute);
    put_two(text, at + 6, civil.second);
}

fn put_two(text: &mut [u8], at: usize, value: u8) {
    text[at] = b'0' + value / 10;
    text[at + 1] = b'0' + value % 10;
}

fn put_four(text: &mut [u8], at: usize, value: u16) {
    put_two(text, at, (value / 100) as u8);
    put_two(text, at + 2, (value % 100) as u8);
}

/// The formatted texts of the current second. One cache per thread, updated once per event-loop turn.
#[derive(Clone, Debug)]
pub struct DateCache {
    unix: i64,
    offset_minutes: i16,
    http: [u8; HTTP_LEN],
    common_log: [u8; COMMON_LOG_LEN],
    iso_8601: [u8; ISO_8601_LEN],
    error_log: [u8; ERROR_LOG_LEN],
}

impl DateCache {
    /// Creates a cache for the time `now`.
    #[must_use]
    pub fn new(now: i64, offset_minutes: i16) -> Self {
        Self {
            unix: now,
            offset_minutes,
            http: http(now),
            common_log: common_log(now, offset_minutes),
            iso_8601: iso_8601(now, offset_minutes),
            error_log: error_log(now, offset_minutes),
        }
    }

    /// Updates the cache to `now`; costs a comparison if the second has not changed.
    pub fn update(&mut self, now: i64, offset_minutes: i16) {
        if now != self.unix || offset_minutes != self.offset_minutes {
            *self = Self::new(now, offset_minutes);
        }
    }

    /// Returns the second that the texts were formatted for.
    #[must_use]
    pub fn unix(&self) -> i64 {
        self.unix
    }

    /// Returns the text for `Date`.
    #[must_use]
    pub fn http(&self) -> &[u8; HTTP_LEN] {
        &self.http
    }

    /// Returns the text for `$time_local`.
    #[must_use]
    pub fn common_log(&self) -> &[u8; COMMON_LOG_LEN] {
        &self.common_log
    }

    /// Returns the text for `$time_iso8601`.
    #[must_use]
    pub fn iso_8601(&self) -> &[u8; ISO_8601_LEN] {
        &self.iso_8601
    }

    /// Returns the text for the error log.
    #[must_use]
    pub fn error_log(&self) -> &[u8; ERROR_LOG_LEN] {
        &self.error_log
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn http_dates_are_formatted() {
        for (unix, text) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (-1, "Wed, 31 Dec 1969 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (i64::MIN, "Sat, 01 Jan 0000 00:00:00 GMT"),
        ] {
            assert_eq!(http(unix), text.as_bytes(), "{unix}");
        }
    }

    #[test]
    fn log_dates_are_formatted_in_time_zones() {
        let unix = 1_795_253_400; // 21 November 2026, 09:30 UTC
        assert_eq!(&common_log(unix, 0), b"21/Nov/2026:09:30:00 +0000");
        assert_eq!(&common_log(unix, 330), b"21/Nov/2026:15:00:00 +0530");
        assert_eq!(&common_log(unix, -600), b"20/Nov/2026:23:30:00 -1000");
        assert_eq!(&iso_8601(unix, 0), b"2026-11-21T09:30:00+00:00");
        assert_eq!(&iso_8601(unix, -210), b"2026-11-21T06:00:00-03:30");
        assert_eq!(&error_log(unix, 60), b"2026/11/21 10:30:00");
    }

    #[test]
    fn every_day_of_the_calendar_follows_the_previous_one() {
        let is_leap =
            |year: u16| year.is_multiple_of(400) || (year.is_multiple_of(4) && !year.is_multiple_of(100));
        // The calendar, including weekdays, repeats every 400 years. Miri would need minutes for all days.
        let (first, last) = if cfg!(miri) { (2000, 2002) } else { (1600, 2500) };
        let mut expected = Civil { year: first, month: 1, day: 1, hour: 0, minute: 0, second: 0, weekday: 6 };
        let mut unix = expected.to_unix();
        while expected.year < last {
            assert_eq!(Civil::from_unix(unix), expected);
            assert_eq!(expected.to_unix(), unix);
            let february = if is_leap(expected.year) { 29 } else { 28 };
            let length =
                [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][usize::from(expected.month) - 1];
            expected.weekday = (expected.weekday + 1) % 7;
            expected.day += 1;
            if expected.day > length {
                (expected.day, expected.month) = (1, expected.month + 1);
            }
            if expected.month > 12 {
                (expected.month, expected.year) = (1, expected.year + 1);
            }
            unix += DAY_S;
        }
    }

    #[test]
    fn the_cached_date_follows_the_clock() {
        let mut cache = DateCache::new(0, 0);
        assert_eq!(cache.http(), b"Thu, 01 Jan 1970 00:00:00 GMT");
        cache.update(784_111_777, 60);
        assert_eq!(cache.unix(), 784_111_777);
        assert_eq!(cache.http(), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(cache.common_log(), b"06/Nov/1994:09:49:37 +0100");
        assert_eq!(cache.iso_8601(), b"1994-11-06T09:49:37+01:00");
        assert_eq!(cache.error_log(), b"1994/11/06 09:49:37");
    }

    proptest! {
        #[test]
        fn formatted_dates_are_parsed(unix in 0i64..=UNIX_MAX) {
            prop_assert_eq!(parse_http(&http(unix)), Some(unix));
            prop_assert_eq!(Civil::from_unix(unix).to_unix(), unix);
        }
    }
}
