//! Times of stored responses: milliseconds since 1970.

use std::time::SystemTime;

use telemetry::time_zone::since_1970;

/// Returns the current time in ms since 1970.
pub fn now_ms() -> i64 {
    milliseconds(rt::wall())
}

/// Converts a time to ms since 1970.
pub fn milliseconds(moment: SystemTime) -> i64 {
    let (seconds, millis) = since_1970(moment);
    seconds.saturating_mul(1000).saturating_add(i64::from(millis))
}
