//! The machine's time zone, read once so that no request waits for its files.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A time zone with its rules for summer and winter.
#[derive(Clone, Debug)]
pub(crate) struct Zone(TimeZone);

impl Default for Zone {
    /// The machine's, or UTC where that is not to be found.
    fn default() -> Zone {
        Zone(TimeZone::try_system().unwrap_or(TimeZone::UTC))
    }
}

impl Zone {
    /// Seconds that local time is ahead of UTC at this moment.
    pub(crate) fn offset_at(&self, seconds: i64) -> i32 {
        Timestamp::from_second(seconds).map_or(0, |moment| self.0.to_offset(moment).seconds())
    }
}

/// Seconds and milliseconds since 1970.
pub(crate) fn since_1970(moment: SystemTime) -> (i64, u32) {
    let elapsed = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    (elapsed.as_secs() as i64, elapsed.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_summer_time() {
        let zone = Zone(TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a POSIX rule"));
        assert_eq!(zone.offset_at(1_736_942_400), 3600, "January 2025");
        assert_eq!(zone.offset_at(1_752_580_800), 7200, "July 2025");
        assert_eq!(Zone(TimeZone::UTC).offset_at(0), 0);
    }
}
