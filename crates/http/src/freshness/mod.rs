//! The age of a response, its freshness lifetime (RFC 9111 section 4.2), and its permitted uses when stale.
//!
//! [`CacheFields`] is collected once from the fields of a response. Separate functions compute from it:
//! [`CacheFields::initial_age_ms`] and [`current_age`], [`CacheFields::lifetime`], [`stale`] windows, and in [`store`] whether the
//! response may be stored. [`store::judge`] combines them with the configuration. Fields have whole seconds; ages and
//! times of this machine are in milliseconds, because whole seconds would use up short lifetimes. No function reads a clock.

mod accel;
mod reuse;
pub mod store;
#[cfg(test)]
mod tests;

pub use accel::AccelExpires;
pub use reuse::{Refusal, Reuse, StaleUse, reuse, stale};

use crate::cache_control::{CacheControl, DELTA_SECONDS_MAX, delta_seconds, targeted};
use crate::conditional::Strength;
use crate::fields::FieldLine;
use crate::fields::HeaderId;
use crate::{conditional, date};

/// The value of `Expires`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expires {
    /// The field is absent.
    #[default]
    Absent,
    /// The value is not a date (often `0`): the response has already expired (RFC 9111 section 5.3).
    Invalid,
    /// Expires at this time.
    At(i64),
}

/// The fields of a response that affect storing and reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFields {
    /// The directives of the first valid targeted field, otherwise of `Cache-Control`.
    pub control: CacheControl,
    /// Index of the targeted field that the directives are from. `Expires` is ignored then (RFC 9213 section 2.2).
    pub targeted: Option<usize>,
    /// `Expires`, not yet compared with `Date`.
    pub expires: Expires,
    /// `Date`; `None` if absent or invalid.
    pub date: Option<i64>,
    /// `Age` in seconds; `None` if absent or invalid.
    pub age: Option<u32>,
    /// `Last-Modified`; `None` if absent or invalid.
    pub last_modified: Option<i64>,
    /// Strength of `ETag`.
    pub etag: Option<Strength>,
    /// Whether `Set-Cookie` is present.
    pub has_set_cookie: bool,
    /// Whether `Vary` is present.
    pub has_vary: bool,
    /// Whether `Vary` contains `*`.
    pub varies_always: bool,
    /// `X-Accel-Expires`, which only nginx and this server obey.
    pub accel_expires: Option<AccelExpires>,
}

impl CacheFields {
    /// Collects the fields of a response. `targets` lists the names of targeted fields in order of preference; if it is empty,
    /// only `Cache-Control` is used. If a field with a single value is repeated, the first line counts.
    #[must_use]
    pub fn collect<'a, I>(lines: I, targets: &[&[u8]]) -> Self
    where
        I: Iterator<Item = FieldLine<'a>> + Clone,
    {
        let target = targeted(lines.clone(), targets);
        let mut found = Self::default();
        let [mut expires, mut date, mut age, mut last_modified, mut etag, mut accel_expires] = [None; 6];
        for line in lines {
            let first = match line.id {
                HeaderId::CacheControl => {
                    found.control.read(line.value);
                    continue;
                }
                HeaderId::Vary => {
                    found.has_vary = true;
                    found.varies_always |= crate::vary::names([line.value]).any(|name| name == b"*");
                    continue;
                }
                HeaderId::SetCookie => {
                    found.has_set_cookie = true;
                    continue;
                }
                HeaderId::Expires => &mut expires,
                HeaderId::Date => &mut date,
                HeaderId::Age => &mut age,
                HeaderId::LastModified => &mut last_modified,
                HeaderId::Etag => &mut etag,
                HeaderId::XAccelExpires => &mut accel_expires,
                _ => continue,
            };
            first.get_or_insert(line.value);
        }
        Self {
            control: target.map_or(found.control, |target| target.control),
            targeted: target.map(|target| target.index),
            expires: expires.map_or(Expires::Absent, parse_expires),
            date: date.and_then(date::parse_expiration),
            age: parse_age(age),
            last_modified: last_modified.and_then(date::parse_http),
            etag: etag.and_then(conditional::strength),
            accel_expires: accel_expires.and_then(AccelExpires::parse),
            ..found
        }
    }

    /// Whether the response can be revalidated.
    #[must_use]
    pub fn has_validator(&self) -> bool {
        self.etag.is_some() || self.last_modified.is_some()
    }

    /// Returns the age of the response at its arrival in ms (RFC 9111 section 4.2.3, `corrected_initial_age`).
    ///
    /// A response without a valid `Date` is assumed to be generated at its arrival (RFC 9110 section 6.6.1).
    #[must_use]
    pub fn initial_age_ms(&self, times: Times) -> i64 {
        let delay = times.response_ms.saturating_sub(times.request_ms).max(0);
        let corrected = self.declared_age_ms().saturating_add(delay);
        clamp_age_ms(self.apparent_age_ms(times).max(corrected))
    }

    /// Returns the value of `Age` in ms: the age for which the upstream vouches, without delays and clock differences.
    #[must_use]
    pub fn declared_age_ms(&self) -> i64 {
        i64::from(self.age.unwrap_or(0)) * 1000
    }

    /// Returns the age according to `Date` in ms. `Date` names a second, within which the response may have been generated at any
    /// time. Unless the response is clearly older than its request, only the part after that second counts: otherwise a response
    /// that was generated for the request would lose up to a second of its lifetime.
    fn apparent_age_ms(&self, times: Times) -> i64 {
        let Some(date) = self.date else { return 0 };
        if date.saturating_add(1) < times.request_ms.div_euclid(1000) {
            return times.response_s().saturating_sub(date).saturating_mul(1000);
        }
        times.response_ms.saturating_sub(date.saturating_mul(1000).saturating_add(999))
    }

    /// Returns the freshness lifetime for a shared cache, counted from the generation of the response (RFC 9111 section 4.2.1).
    /// The sources in order: `s-maxage`, `max-age`, `Expires` minus `Date`, and the heuristic if it is enabled and allowed for
    /// `status`. `None` if no source applies.
    #[must_use]
    pub fn lifetime(&self, status: u16, times: Times, heuristic: Option<Heuristic>) -> Option<Lifetime> {
        let by = |source| move |seconds| Lifetime { seconds, source };
        self.control
            .s_maxage
            .map(by(LifetimeSource::SMaxage))
            .or_else(|| self.control.max_age.map(by(LifetimeSource::MaxAge)))
            .or_else(|| self.expires_lifetime(times).map(by(LifetimeSource::Expires)))
            .or_else(|| {
                let allowed = is_heuristically_cacheable(status) || self.control.public;
                let heuristic = heuristic.filter(|_| allowed)?;
                self.heuristic_lifetime(times, heuristic).map(by(LifetimeSource::Heuristic))
            })
    }

    /// Returns `Expires` minus `Date`; 0 for an invalid date, `None` if a targeted field is used.
    #[must_use]
    pub fn expires_lifetime(&self, times: Times) -> Option<u32> {
        match self.expires {
            _ if self.targeted.is_some() => None,
            Expires::Absent => None,
            Expires::Invalid => Some(0),
            Expires::At(at) => {
                Some(clamp_seconds(at.saturating_sub(self.date.unwrap_or(times.response_s()))))
            }
        }
    }

    /// Returns the heuristic lifetime: a percentage of the time since the last modification (RFC 9111 section 4.2.2).
    #[must_use]
    pub fn heuristic_lifetime(&self, times: Times, heuristic: Heuristic) -> Option<u32> {
        let unchanged = self.date.unwrap_or(times.response_s()).saturating_sub(self.last_modified?);
        let share = i128::from(unchanged.max(0)) * i128::from(heuristic.percent) / 100;
        Some(share.min(i128::from(heuristic.seconds_max.min(DELTA_SECONDS_MAX))) as u32)
    }
}

/// Times of a request and of the arrival of its response, in ms since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time at which the request was sent to the upstream.
    pub request_ms: i64,
    /// Time at which the head of the response was complete.
    pub response_ms: i64,
}

impl Times {
    /// Returns the second of the arrival, to compare it with dates.
    #[must_use]
    pub fn response_s(self) -> i64 {
        self.response_ms.div_euclid(1000)
    }
}

/// Source of a lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeSource {
    /// `s-maxage`
    SMaxage,
    /// `max-age`
    MaxAge,
    /// `Expires`, valid or invalid.
    Expires,
    /// The heuristic based on `Last-Modified`.
    Heuristic,
    /// `X-Accel-Expires`
    AccelExpires,
    /// `proxy_cache_valid`
    Configured,
}

/// A freshness lifetime and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The lifetime in seconds.
    pub seconds: u32,
    /// The source.
    pub source: LifetimeSource,
}

/// Heuristic freshness, off unless configured: an origin that sends no caching fields does not expect to be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heuristic {
    /// Percentage of the time since `Last-Modified`.
    pub percent: u8,
    /// Maximum heuristic lifetime, in seconds.
    pub seconds_max: u32,
}

impl Default for Heuristic {
    /// Returns the typical percentage of RFC 9111 section 4.2.2, and one day: for longer heuristic lifetimes RFC 7234 required a
    /// warning.
    fn default() -> Self {
        Self { percent: 10, seconds_max: 24 * 3600 }
    }
}

/// Returns the age of a stored response at `now_ms` in seconds (RFC 9111 section 4.2.3, `current_age`): the value of `Age` in a
/// response from the cache. If the clock was set back, the age does not fall below the initial age.
#[must_use]
pub fn current_age(initial_age_ms: i64, response_time_ms: i64, now_ms: i64) -> u32 {
    let resident_ms = now_ms.saturating_sub(response_time_ms).max(0);
    clamp_seconds(initial_age_ms.saturating_add(resident_ms) / 1000)
}

/// Parses `Age` (RFC 9111 section 5.1): the first of several values counts; a value that is not a number is ignored.
pub fn parse_age<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<u32> {
    let first = values.into_iter().next()?.split(|&byte| byte == b',').next()?;
    delta_seconds(crate::bytes::trim_ows(first))
}

/// Parses `Expires` (RFC 9111 section 5.3). A date in another time zone than GMT is invalid (section 4.2).
#[must_use]
pub fn parse_expires(value: &[u8]) -> Expires {
    date::parse_expiration(value).map_or(Expires::Invalid, Expires::At)
}

/// Whether a response with this status may have a heuristic lifetime (RFC 9110 section 15.1). 206 is included; 304 is not, because
/// it is never a stored response.
#[must_use]
pub fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

fn clamp_age_ms(ms: i64) -> i64 {
    ms.clamp(0, i64::from(DELTA_SECONDS_MAX) * 1000)
}

fn clamp_seconds(seconds: i64) -> u32 {
    seconds.clamp(0, i64::from(DELTA_SECONDS_MAX)) as u32
}
