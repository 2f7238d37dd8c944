//! `X-Accel-Expires`, by which an origin tells nginx how long to keep a response, regardless of other fields.

use crate::cache_control::delta_seconds;

/// The value of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccelExpires {
    /// `0`: the response is not stored.
    Off,
    /// For this many seconds from now on.
    Seconds(u32),
    /// `@` and seconds since 1970: up to that time.
    At(i64),
}

impl AccelExpires {
    /// Reads the value as nginx does: text that is no number counts as no field.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        if let Some(time) = value.strip_prefix(b"@") {
            return crate::parse_decimal(time).map(|time| Self::At(time as i64));
        }
        Some(match delta_seconds(value)? {
            0 => Self::Off,
            seconds => Self::Seconds(seconds),
        })
    }

    /// Seconds that are left at `now`; none where the time has come.
    #[must_use]
    pub fn seconds_left(self, now: i64) -> u32 {
        match self {
            Self::Off => 0,
            Self::Seconds(seconds) => seconds,
            Self::At(time) => super::clamp_seconds(time.saturating_sub(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        for (value, wanted, left) in [
            ("0", Some(AccelExpires::Off), 0),
            ("60", Some(AccelExpires::Seconds(60)), 60),
            ("@0", Some(AccelExpires::At(0)), 0),
            ("@1100", Some(AccelExpires::At(1100)), 100),
            ("@900", Some(AccelExpires::At(900)), 0),
            ("@9223372036854775807", Some(AccelExpires::At(i64::MAX)), 1 << 31),
            ("@9223372036854775808", None, 0),
            ("off", None, 0),
            ("-1", None, 0),
            ("", None, 0),
            ("@", None, 0),
            ("60s", None, 0),
        ] {
            let found = AccelExpires::parse(value.as_bytes());
            assert_eq!(found, wanted, "{value:?}");
            assert_eq!(found.map_or(0, |found| found.seconds_left(1000)), left, "{value:?}");
        }
    }
}
