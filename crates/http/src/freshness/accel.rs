//! `X-Accel-Expires`: the caching time that an origin sets for nginx. It overrides other fields.

use crate::cache_control::delta_seconds;

/// The value of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccelExpires {
    /// `0`: the response is not stored.
    Off,
    /// Fresh for this many seconds from now.
    Seconds(u32),
    /// `@` and seconds since 1970: fresh until that time.
    At(i64),
}

impl AccelExpires {
    /// Parses the value like nginx: a text that is not a number counts as an absent field.
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

    /// Returns the remaining seconds at `now`; 0 if the time has passed.
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
    fn x_accel_expires_values_are_parsed() {
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
