//! The age of a response, its freshness lifetime (RFC 9111 section 4.2), and its permitted uses afterwards.
//!
//! [`CacheFields`] is read once from a response's fields. From it come the ingredients, each a separate function:
//! [`CacheFields::initial_age`] and [`current_age`], [`CacheFields::lifetime`], [`stale`] windows, and in [`store`]
//! whether the response may be stored at all. [`store::judge`] combines them with the configuration. All times are
//! seconds since 1970; nothing here reads a clock.

mod accel;
mod reuse;
pub mod store;
#[cfg(test)]
mod tests;

pub use accel::AccelExpires;
pub use reuse::{Refusal, Reuse, StaleUse, reuse, stale};

use crate::cache_control::{CacheControl, DELTA_SECONDS_MAX, delta_seconds, targeted};
use crate::conditional::Strength;
use crate::reply::FieldLine;
use crate::request::HeaderId;
use crate::{conditional, date};

/// The value of `Expires`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expires {
    /// The field is absent.
    #[default]
    Absent,
    /// It is no date, `0` above all: the response has expired already (RFC 9111 section 5.3).
    Invalid,
    /// At this time.
    At(i64),
}

/// The information of a response's fields on storing and reusing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFields {
    /// The directives: of the first valid targeted field, else of `Cache-Control`.
    pub control: CacheControl,
    /// Which targeted field they are from. `Expires` does not count beside one (RFC 9213 section 2.2).
    pub targeted: Option<usize>,
    /// `Expires`, as it stands.
    pub expires: Expires,
    /// `Date`; an invalid one is as none.
    pub date: Option<i64>,
    /// `Age` in seconds; an invalid one is as none.
    pub age: Option<u32>,
    /// `Last-Modified`; an invalid one is as none.
    pub last_modified: Option<i64>,
    /// The kind of `ETag`.
    pub etag: Option<Strength>,
    /// `Set-Cookie` is there.
    pub has_set_cookie: bool,
    /// `Vary` is there.
    pub has_vary: bool,
    /// `Vary` has `*`.
    pub varies_always: bool,
    /// `X-Accel-Expires`, with which an origin speaks to nginx alone.
    pub accel_expires: Option<AccelExpires>,
}

impl CacheFields {
    /// Reads the fields of a response. `targets` are the names of targeted fields in order of preference; none, and
    /// only `Cache-Control` counts. Of a field that has one value the first line counts.
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

    /// How old the response was when it came (RFC 9111 section 4.2.3, `corrected_initial_age`), in seconds.
    ///
    /// A response without a valid `Date` is taken to have been made when it came (RFC 9110 section 6.6.1).
    #[must_use]
    pub fn initial_age(&self, times: Times) -> u32 {
        let apparent = times.response.saturating_sub(self.date.unwrap_or(times.response));
        let delay = times.response.saturating_sub(times.request).max(0);
        let corrected = i64::from(self.age.unwrap_or(0)).saturating_add(delay);
        clamp_seconds(apparent.max(corrected))
    }

    /// How long the response is fresh for a shared cache, counted from when it was made (RFC 9111 section 4.2.1):
    /// `s-maxage`, then `max-age`, then `Expires` less `Date`, then the heuristic if enabled and allowed for `status`.
    /// `None` without the field.
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

    /// `Expires` less `Date`; 0 for an invalid date, and none beside a targeted field.
    #[must_use]
    pub fn expires_lifetime(&self, times: Times) -> Option<u32> {
        match self.expires {
            _ if self.targeted.is_some() => None,
            Expires::Absent => None,
            Expires::Invalid => Some(0),
            Expires::At(at) => Some(clamp_seconds(at.saturating_sub(self.date.unwrap_or(times.response)))),
        }
    }

    /// A share of the time since the last change (RFC 9111 section 4.2.2).
    #[must_use]
    pub fn heuristic_lifetime(&self, times: Times, heuristic: Heuristic) -> Option<u32> {
        let unchanged = self.date.unwrap_or(times.response).saturating_sub(self.last_modified?);
        let share = i128::from(unchanged.max(0)) * i128::from(heuristic.percent) / 100;
        Some(share.min(i128::from(heuristic.seconds_max.min(DELTA_SECONDS_MAX))) as u32)
    }
}

/// When a request was sent and its response's head came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When the request was sent to the upstream.
    pub request: i64,
    /// When the head of the response had come.
    pub response: i64,
}

/// Where a lifetime is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeSource {
    /// `s-maxage`
    SMaxage,
    /// `max-age`
    MaxAge,
    /// `Expires`, also an invalid one.
    Expires,
    /// A guess from `Last-Modified`.
    Heuristic,
    /// `X-Accel-Expires`
    AccelExpires,
    /// `proxy_cache_valid`
    Configured,
}

/// A freshness lifetime and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Seconds.
    pub seconds: u32,
    /// The source.
    pub source: LifetimeSource,
}

/// Heuristic freshness, which is off unless configured: an origin without the fields does not expect to be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heuristic {
    /// Share of the time since `Last-Modified`, in percent.
    pub percent: u8,
    /// Longest lifetime that is guessed, in seconds.
    pub seconds_max: u32,
}

impl Default for Heuristic {
    /// The typical share of RFC 9111 section 4.2.2, and a day: beyond that RFC 7234 required a warning.
    fn default() -> Self {
        Self { percent: 10, seconds_max: 24 * 3600 }
    }
}

/// How old a stored response is at `now` (RFC 9111 section 4.2.3, `current_age`), in seconds: the value of `Age` when it
/// is served. A clock that was set back does not make it younger than it came.
#[must_use]
pub fn current_age(initial_age: u32, response_time: i64, now: i64) -> u32 {
    let resident = now.saturating_sub(response_time).max(0);
    clamp_seconds(i64::from(initial_age).saturating_add(resident))
}

/// `Age` (RFC 9111 section 5.1): of several values the first counts, and one that is no number is as none.
pub fn parse_age<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<u32> {
    let first = values.into_iter().next()?.split(|&byte| byte == b',').next()?;
    delta_seconds(crate::bytes::trim_ows(first))
}

/// `Expires` (RFC 9111 section 5.3). A date in another zone than GMT is invalid (section 4.2).
#[must_use]
pub fn parse_expires(value: &[u8]) -> Expires {
    date::parse_expiration(value).map_or(Expires::Invalid, Expires::At)
}

/// Whether a response with this status may have a heuristic lifetime (RFC 9110 section 15.1). 206 is one of them; a 304
/// is not a stored response.
#[must_use]
pub fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

fn clamp_seconds(seconds: i64) -> u32 {
    seconds.clamp(0, i64::from(DELTA_SECONDS_MAX)) as u32
}
