//! Whether a response may be stored in a shared cache, and for how long it is good (RFC 9111 sections 3, 3.3 and 3.5).
//!
//! [`judge`] combines the response, the request and the configuration. The default is the stricter of nginx and the
//! RFC: nginx stores no response with `Set-Cookie`, `no-cache` or `private` in any form. The RFC forbids to store one
//! to a request with `Authorization` unless the response allows it.

use super::{
    AccelExpires, CacheFields, Expires, Heuristic, Lifetime, LifetimeSource, StaleUse, Times, stale,
};
use crate::cache_control::{CacheControl, Scope};

/// Why a response is not stored. The order is the order of the checks: of several reasons the first is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotStored {
    /// An interim response or a change of protocol.
    Interim,
    /// A 304, which updates a stored response and is not stored itself.
    NotModified,
    /// A 206, and the cache does not put parts together here.
    Partial,
    /// `X-Accel-Expires: 0`
    AccelOff,
    /// `no-store`
    NoStore,
    /// `private`, also with fields.
    Private,
    /// `no-cache` without fields.
    NoCache,
    /// `must-understand`, and the status is not understood.
    StatusNotUnderstood,
    /// `Set-Cookie`
    SetCookie,
    /// `Vary: *`
    VaryAny,
    /// The request had `Authorization` and nothing in the response lets a shared cache store it.
    Authorization,
    /// No field limits its freshness.
    NoLifetime,
    /// It has expired already, or is as old as it may become, and nothing allows to use it stale.
    Expired,
}

/// Fields of a response that are taken for absent: `proxy_ignore_headers`.
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
}

impl CacheFields {
    /// The fields without those that are to be ignored. `Age` stays: it is no instruction.
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

/// The configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `proxy_ignore_headers`
    pub ignored: Ignored,
    /// `proxy_cache_valid` for this status, in seconds. As in nginx it applies where the response itself gives no
    /// lifetime, and counts from the arrival of the response.
    pub valid: Option<u32>,
    /// Heuristic freshness.
    pub heuristic: Option<Heuristic>,
    /// Whether parts (206) are put together.
    pub stores_parts: bool,
    /// Whether answers to requests with `Authorization` are stored like others: nginx's habit.
    pub stores_authorized: bool,
    /// Whether a response that needs validation at each use (`no-cache`, expired) is stored if it has a validator.
    /// nginx does not store it.
    pub stores_for_validation: bool,
    /// Whether `s-maxage` forbids to serve stale: see [`stale`].
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

/// Facts of an exchange besides the response's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The status of the response.
    pub status: u16,
    /// Whether the request had `Authorization`.
    pub is_authorized: bool,
    /// When it took place.
    pub times: Times,
}

/// The terms of storing a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How long it is fresh, counted from when it was made.
    pub lifetime: Lifetime,
    /// How old it was when it came.
    pub initial_age: u32,
    /// When it stops being fresh, in seconds since 1970: not later than when it came, if it was stale by then.
    pub fresh_until: i64,
    /// For how many seconds after that it may be served while it is validated in the background.
    pub stale_while_revalidate: u32,
    /// For how many seconds after that it may be served when the origin fails.
    pub stale_if_error: u32,
    /// `must-revalidate` or `proxy-revalidate`: once stale it is not used without validation.
    pub must_revalidate: bool,
    /// `no-cache`: it is not used without validation at all.
    pub no_cache: bool,
    /// Whether `no-cache` names fields, which must not be served without asking
    /// ([`crate::cache_control::qualified_fields`]).
    pub has_qualified_fields: bool,
}

/// Whether a response may be stored, and for how long it is good.
///
/// Methods are not checked: `proxy_cache_methods` decides on those before. The order of sources of a lifetime is
/// nginx's, `X-Accel-Expires`, `Cache-Control`, `Expires`, `proxy_cache_valid`, and then the heuristic.
///
/// # Errors
/// [`NotStored`]
pub fn judge(fields: &CacheFields, exchange: Exchange, rules: &Rules) -> Result<Verdict, NotStored> {
    let fields = fields.without(rules.ignored);
    storable(&fields, exchange, rules)?;
    let control = &fields.control;
    let lifetime = lifetime(&fields, exchange, rules);
    let validates = rules.stores_for_validation && fields.has_validator();
    let lifetime = match lifetime {
        // Fresh at no time: a cache asks at each use.
        _ if validates && control.no_cache == Scope::Whole && fields.accel_expires.is_none() => {
            Lifetime { seconds: 0, source: LifetimeSource::MaxAge }
        }
        Some(lifetime) => lifetime,
        None => return Err(NotStored::NoLifetime),
    };
    // Lifetimes from the configuration, or from fields for this cache alone, count from now.
    let local = matches!(lifetime.source, LifetimeSource::AccelExpires | LifetimeSource::Configured);
    let initial_age = fields.initial_age(exchange.times);
    let fresh_for = i64::from(lifetime.seconds) - if local { 0 } else { i64::from(initial_age) };
    let now = exchange.times.response;
    let fresh_until = match fields.accel_expires {
        // A moment in the past counts as it is: windows for stale use begin there.
        Some(AccelExpires::At(at)) => at,
        _ => now.saturating_add(fresh_for),
    };
    let window = |why| stale(control, why, rules.s_maxage_forbids_stale).unwrap_or(0);
    let (while_revalidate, if_error) = (window(StaleUse::WhileRevalidate), window(StaleUse::IfError));
    let longest = i64::from(while_revalidate.max(if_error));
    if fresh_until.saturating_add(longest) <= now && !validates {
        return Err(NotStored::Expired);
    }
    // Fields that `X-Accel-Expires` overrules, as in `storable`.
    let heeds_no_cache = fields.accel_expires.is_none();
    Ok(Verdict {
        lifetime,
        initial_age,
        fresh_until,
        stale_while_revalidate: while_revalidate,
        stale_if_error: if_error,
        must_revalidate: control.must_revalidate || control.proxy_revalidate,
        no_cache: heeds_no_cache && control.no_cache == Scope::Whole,
        has_qualified_fields: control.no_cache == Scope::Fields,
    })
}

/// Whether anything forbids to store the response (RFC 9111 section 3), its lifetime apart. `fields` are without the
/// ignored ones.
///
/// # Errors
/// [`NotStored`]
pub fn storable(fields: &CacheFields, exchange: Exchange, rules: &Rules) -> Result<(), NotStored> {
    let control = &fields.control;
    // `X-Accel-Expires` outranks the directives, as in nginx: its sender means this cache. It does not change the
    // permitted readers of a response, so the rules about cookies and credentials remain.
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

/// Whether a status is understood for caching (RFC 9111 section 3, for `must-understand`): the final statuses of RFC
/// 9110.
#[must_use]
pub fn is_understood(status: u16) -> bool {
    matches!(status, 200..=206 | 300..=305 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505)
}

fn lifetime(fields: &CacheFields, exchange: Exchange, rules: &Rules) -> Option<Lifetime> {
    let Exchange { status, times, .. } = exchange;
    if let Some(accel) = fields.accel_expires {
        let seconds = accel.seconds_left(times.response);
        return Some(Lifetime { seconds, source: LifetimeSource::AccelExpires });
    }
    let configured = || rules.valid.map(|seconds| Lifetime { seconds, source: LifetimeSource::Configured });
    fields
        .lifetime(status, times, None)
        .or_else(configured)
        .or_else(|| fields.lifetime(status, times, rules.heuristic))
}
