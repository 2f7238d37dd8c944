//! The machine's time zone. It is read once, so that no request waits for its files.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::civil::Time;
use jiff::tz;
use jiff::{SignedDuration, Timestamp};

/// A time zone with its rules for daylight saving time.
#[derive(Clone, Debug)]
pub struct TimeZone(tz::TimeZone);

impl Default for TimeZone {
    /// Reads the time zone of the machine; falls back to UTC.
    fn default() -> TimeZone {
        TimeZone(tz::TimeZone::try_system().unwrap_or(tz::TimeZone::UTC))
    }
}

impl TimeZone {
    /// Returns the offset of local time from UTC in seconds, at this time.
    pub fn offset_at(&self, seconds: i64) -> i32 {
        Timestamp::from_second(seconds).map_or(0, |moment| self.0.to_offset(moment).seconds())
    }

    /// Returns the next time after `now` at which local time is `seconds` after midnight.
    pub fn next_daily(&self, now: i64, seconds: i64) -> i64 {
        let moment = Timestamp::from_second(now).unwrap_or_default();
        let mut day = self.0.to_datetime(moment).date();
        loop {
            // A time that the change to summer time skips is moved to after the gap.
            let civil = day.to_datetime(Time::midnight()).saturating_add(SignedDuration::from_secs(seconds));
            let found = self.0.to_ambiguous_timestamp(civil).compatible().map(Timestamp::as_second);
            match (found, day.tomorrow()) {
                (Ok(found), Ok(tomorrow)) if found <= now => day = tomorrow,
                (Ok(found), _) => return found,
                // The calendar ends here.
                (Err(_), _) => return now,
            }
        }
    }

    /// Formats a time as strftime(3) does, in local time or GMT. Returns `None` if the format is not supported.
    pub fn format(&self, seconds: i64, gmt: bool, format: &str) -> Option<String> {
        // C libraries, and thus nginx, name this zone GMT instead of UTC.
        let zone = if gmt { tz::TimeZone::posix("GMT0").ok()? } else { self.0.clone() };
        let moment = Timestamp::from_second(seconds).ok()?.to_zoned(zone);
        jiff::fmt::strtime::format(format, &moment).ok()
    }
}

/// Returns seconds since 1970, and the milliseconds of the present second.
pub fn since_1970(moment: SystemTime) -> (i64, u32) {
    let elapsed = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    (elapsed.as_secs() as i64, elapsed.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_summer_time() {
        let zone = TimeZone(tz::TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a POSIX rule"));
        assert_eq!(zone.offset_at(1_736_942_400), 3600, "January 2025");
        assert_eq!(zone.offset_at(1_752_580_800), 7200, "July 2025");
        assert_eq!(TimeZone(tz::TimeZone::UTC).offset_at(0), 0);
    }

    #[test]
    fn the_next_time_of_day_is_local_and_ahead() {
        const HOUR: i64 = 3600;
        let utc = TimeZone(tz::TimeZone::UTC);
        for (now, seconds, expected) in [
            (0, HOUR, HOUR),
            (HOUR - 1, HOUR, HOUR),
            (HOUR, HOUR, 25 * HOUR),
            (5, 0, 24 * HOUR),
            (5, 24 * HOUR, 24 * HOUR),
        ] {
            assert_eq!(utc.next_daily(now, seconds), expected, "{now} {seconds}");
        }
        let zone = TimeZone(tz::TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a POSIX rule"));
        // The evening before the change to summer time, which skips the hour from 2 to 3.
        let evening = 1_743_278_400;
        assert_eq!(zone.next_daily(evening, 12 * HOUR) - evening, 14 * HOUR);
        assert_eq!(zone.next_daily(evening, 2 * HOUR + 1800) - evening, 5 * HOUR + 1800);
    }
}
