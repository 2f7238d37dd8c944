//! Whether a response may be stored in a shared cache, and how long it is usable (RFC 9111 sections 3, 3.3 and 3.5).
//!
//! [`judge`] combines the response, the request and the configuration. If nginx and the RFC differ, the stricter rule is the
//! default. nginx stores no response with `Set-Cookie`, `no-cache` or any form of `private`. The RFC forbids to store the
//! response to a request with `Authorization` unless the response allows it.

use super::{
    AccelExpires, CacheFields, Expires, Heuristic, Lifetime, LifetimeSource, StaleUse, Times, stale,
};
use crate::cache_control::{CacheControl, Scope};

/// Reason why a response is not stored. The checks run in this order, and the first failing check gives the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotStored {
    /// An interim response or a protocol switch.
    Interim,
    /// A 304: it updates a stored response and is not stored itself.
    NotModified,
    /// A 206, and the cache does not combine partial responses here.
    Partial,
    /// `X-Accel-Expires: 0`
    AccelOff,
    /// `no-store`
    NoStore,
    /// `private`, with or without field names.
    Private,
    /// `no-cache` without field names.
    NoCache,
    /// `must-understand`, and the status is not understood.
    StatusNotUnderstood,
    /// `Set-Cookie`
    SetCookie,
    /// `Vary: *`
    VaryAny,
    /// The request had `Authorization`, and the response does not allow a shared cache to store it.
    Authorization,
    /// No source gives a freshness lifetime.
    NoLifetime,
    /// The response has no lifetime left by its own statement, and stale use is not allowed.
    Expired,
}

/// Response fields that are treated as absent: `proxy_ignore_headers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// `Cache-Control` and targeted fields.
    pub cache_control: bool,
    /// `Expires`
    pub expires: bool,
    /// `Set-Cookie`
    pub set_cookie: bool,
    /// `Vary`
    pub vary: bool,
    /// `X-Accel-Expires`
    pub accel_expires: bool,
    /// `X-Accel-Redirect`
    pub accel_redirect: bool,
    /// `X-Accel-Buffering`
    pub accel_buffering: bool,
}

impl CacheFields {
    /// Returns the fields without the ignored ones. `Age` remains, since it is not an instruction.
    #[must_use]
    pub fn without(self, ignored: Ignored) -> Self {
        let mut kept = self;
        if ignored.cache_control {
            (kept.control, kept.targeted) = (CacheControl::default(), None);
        }
        if ignored.expires {
            kept.expires = Expires::Absent;
        }
        if ignored.set_cookie {
            kept.has_set_cookie = false;
        }
        if ignored.vary {
            (kept.has_vary, kept.varies_always) = (false, false);
        }
        if ignored.accel_expires {
            kept.accel_expires = None;
        }
        kept
    }
}

/// Settings of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `proxy_ignore_headers`
    pub ignored: Ignored,
    /// `proxy_cache_valid` for this status, in seconds. As in nginx it applies if the response itself gives no lifetime, and counts
    /// from the arrival of the response.
    pub valid: Option<u32>,
    /// Heuristic freshness; `None` if it is off.
    pub heuristic: Option<Heuristic>,
    /// Whether partial responses (206) are combined.
    pub stores_parts: bool,
    /// Whether responses to requests with `Authorization` are stored like others, as in nginx.
    pub stores_authorized: bool,
    /// Whether a response that needs revalidation at each use (`no-cache`, expired) is stored if it has a validator. nginx does not
    /// store such responses.
    pub stores_for_validation: bool,
    /// Whether `s-maxage` forbids stale use: see [`stale`].
    pub s_maxage_forbids_stale: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            ignored: Ignored::default(),
            valid: None,
            heuristic: None,
            stores_parts: false,
            stores_authorized: false,
            stores_for_validation: false,
            s_maxage_forbids_stale: true,
        }
    }
}

/// Facts about an exchange besides the fields of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The status of the response.
    pub status: u16,
    /// Whether the request had `Authorization`.
    pub is_authorized: bool,
    /// Times of the request and of the response.
    pub times: Times,
}

/// Terms under which a response is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageTerms {
    /// Freshness lifetime, counted from the generation of the response.
    pub lifetime: Lifetime,
    /// Age of the response at its arrival, in ms.
    pub initial_age_ms: i64,
    /// Time at which the response becomes stale, in ms since 1970. Not later than the arrival if the response arrived stale.
    pub fresh_until_ms: i64,
    /// Whether requests that waited for this response may use it. This includes a response with a lifetime that a delay, a clock
    /// difference or its `Age` used up before its arrival: without sharing, each of these requests would be sent to the upstream.
    pub is_shareable: bool,
    /// Number of seconds after `fresh_until_ms` for which the stale response may be used during a background revalidation.
    pub stale_while_revalidate: u32,
    /// Number of seconds after `fresh_until_ms` for which the stale response may be used if the origin fails.
    pub stale_if_error: u32,
    /// `must-revalidate` or `proxy-revalidate`: once stale, the response needs revalidation before each use.
    pub must_revalidate: bool,
    /// `no-cache`: the response needs revalidation before each use, even while fresh.
    pub no_cache: bool,
    /// Whether `no-cache` names fields. These must not be sent without revalidation ([`crate::cache_control::qualified_fields`]).
    pub has_qualified_fields: bool,
}

/// Decides whether a response may be stored, and how long it is usable.
///
/// Methods are not checked; the caller has applied `proxy_cache_methods` before. The sources of a lifetime are used in nginx's
/// order: `X-Accel-Expires`, `Cache-Control`, `Expires`, `proxy_cache_valid`, then the heuristic.
///
/// # Errors
/// [`NotStored`]
pub fn judge(fields: &CacheFields, exchange: Exchange, rules: &Rules) -> Result<StorageTerms, NotStored> {
    let fields = fields.without(rules.ignored);
    storable(&fields, exchange, rules)?;
    let control = &fields.control;
    let lifetime = lifetime(&fields, exchange, rules);
    let validates = rules.stores_for_validation && fields.has_validator();
    let lifetime = match lifetime {
        // Never fresh: the cache revalidates at each use.
        _ if validates && control.no_cache == Scope::Whole && fields.accel_expires.is_none() => {
            Lifetime { seconds: 0, source: LifetimeSource::MaxAge }
        }
        Some(lifetime) => lifetime,
        None => return Err(NotStored::NoLifetime),
    };
    // Lifetimes from the configuration or from `X-Accel-Expires` count from the arrival.
    let local = matches!(lifetime.source, LifetimeSource::AccelExpires | LifetimeSource::Configured);
    let initial_age_ms = fields.initial_age_ms(exchange.times);
    let lifetime_ms = i64::from(lifetime.seconds) * 1000;
    let now_ms = exchange.times.response_ms;
    let fresh_until_ms = match fields.accel_expires {
        // A time in the past is not adjusted: the windows for stale use begin at it.
        Some(AccelExpires::At(at)) => at.saturating_mul(1000),
        _ => now_ms.saturating_add(lifetime_ms - if local { 0 } else { initial_age_ms }),
    };
    let window = |why| stale(control, why, rules.s_maxage_forbids_stale).unwrap_or(0);
    let (while_revalidate, if_error) = (window(StaleUse::WhileRevalidate), window(StaleUse::IfError));
    let must_revalidate = control.must_revalidate || control.proxy_revalidate;
    let is_usable_for = |seconds: u32| fresh_until_ms.saturating_add(i64::from(seconds) * 1000) > now_ms;
    // RFC 9111 section 5.2.2.2: a response that was stale when the upstream sent it is not used for another request.
    let is_forbidden = must_revalidate && !local && fields.declared_age_ms() >= lifetime_ms;
    let has_lifetime = lifetime.seconds > 0 && !is_forbidden;
    if !has_lifetime && !is_usable_for(while_revalidate.max(if_error)) && !validates {
        return Err(NotStored::Expired);
    }
    // `X-Accel-Expires` overrides `no-cache`, as in `storable`.
    let heeds_no_cache = fields.accel_expires.is_none();
    Ok(StorageTerms {
        lifetime,
        initial_age_ms,
        fresh_until_ms,
        is_shareable: has_lifetime || is_usable_for(while_revalidate),
        stale_while_revalidate: while_revalidate,
        stale_if_error: if_error,
        must_revalidate,
        no_cache: heeds_no_cache && control.no_cache == Scope::Whole,
        has_qualified_fields: control.no_cache == Scope::Fields,
    })
}

/// Checks whether a rule other than the lifetime forbids to store the response (RFC 9111 section 3). `fields` must not include
/// ignored fields.
///
/// # Errors
/// [`NotStored`]
pub fn storable(fields: &CacheFields, exchange: Exchange, rules: &Rules) -> Result<(), NotStored> {
    let control = &fields.control;
    // `X-Accel-Expires` overrides the directives, as in nginx: its sender addresses this cache. The rules for cookies and
    // credentials still apply, since the field does not change who may read the response.
    let overruled = fields.accel_expires.is_some();
    let validates = rules.stores_for_validation && fields.has_validator();
    match exchange.status {
        100..=199 => Err(NotStored::Interim),
        304 => Err(NotStored::NotModified),
        206 if !rules.stores_parts => Err(NotStored::Partial),
        _ if fields.accel_expires == Some(AccelExpires::Off) => Err(NotStored::AccelOff),
        _ if control.no_store && !overruled => Err(NotStored::NoStore),
        _ if control.private != Scope::Nothing && !overruled => Err(NotStored::Private),
        _ if control.no_cache == Scope::Whole && !overruled && !validates => Err(NotStored::NoCache),
        status if control.must_understand && !is_understood(status) => Err(NotStored::StatusNotUnderstood),
        _ if fields.has_set_cookie => Err(NotStored::SetCookie),
        _ if fields.varies_always => Err(NotStored::VaryAny),
        _ if exchange.is_authorized && !rules.stores_authorized && !shares_authorized(control) => {
            Err(NotStored::Authorization)
        }
        _ => Ok(()),
    }
}

/// Whether a response to a request with `Authorization` may be stored (RFC 9111 section 3.5).
#[must_use]
pub fn shares_authorized(control: &CacheControl) -> bool {
    control.public || control.must_revalidate || control.s_maxage.is_some()
}

/// Whether a status is understood for caching (RFC 9111 section 3, `must-understand`): the final statuses of RFC 9110.
#[must_use]
pub fn is_understood(status: u16) -> bool {
    matches!(status, 200..=206 | 300..=305 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505)
}

fn lifetime(fields: &CacheFields, exchange: Exchange, rules: &Rules) -> Option<Lifetime> {
    let Exchange { status, times, .. } = exchange;
    if let Some(accel) = fields.accel_expires {
        let seconds = accel.seconds_left(times.response_s());
        return Some(Lifetime { seconds, source: LifetimeSource::AccelExpires });
    }
    let configured = || rules.valid.map(|seconds| Lifetime { seconds, source: LifetimeSource::Configured });
    fields
        .lifetime(status, times, None)
        .or_else(configured)
        .or_else(|| fields.lifetime(status, times, rules.heuristic))
}
