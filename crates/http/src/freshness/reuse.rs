//! Whether a stored response may be used: fresh, stale by permission, or only after revalidation (RFC 9111 sections
//! 4.2.4 and 5.2.1, RFC 5861).

use crate::cache_control::{CacheControl, DELTA_SECONDS_MAX, MaxStale, RequestCacheControl, Scope};

/// Why a stale response would be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleUse {
    /// While it is validated in the background: `stale-while-revalidate`.
    WhileRevalidate,
    /// Because the origin cannot be reached or answered 500, 502, 503 or 504: `stale-if-error`.
    IfError,
}

/// Why a stale response must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `no-cache`: not even a fresh one is used unasked.
    NoCache,
    /// `must-revalidate`
    MustRevalidate,
    /// `proxy-revalidate`
    ProxyRevalidate,
    /// `s-maxage`, which has the meaning of `proxy-revalidate` in it (RFC 9111 section 5.2.2.10).
    SMaxage,
    /// Nothing allows it.
    NotAllowed,
    /// It is stale for longer than is allowed.
    TooStale,
}

/// For how many seconds a response may be used beyond its lifetime, according to the response itself.
///
/// `proxy_cache_use_stale` has nginx's meaning and does not use this. `s_maxage_forbids` is the rule of RFC 9111 for a
/// response with `s-maxage`; without it, as in nginx, a response that has both `s-maxage` and an extension of RFC 5861
/// follows the extension.
///
/// # Errors
/// [`Refusal`], in the order of the directives' strength.
pub fn stale(control: &CacheControl, why: StaleUse, s_maxage_forbids: bool) -> Result<u32, Refusal> {
    let allowed = match why {
        StaleUse::WhileRevalidate => control.stale_while_revalidate,
        StaleUse::IfError => control.stale_if_error,
    };
    match allowed {
        _ if control.no_cache == Scope::Whole => Err(Refusal::NoCache),
        _ if control.must_revalidate => Err(Refusal::MustRevalidate),
        _ if control.proxy_revalidate => Err(Refusal::ProxyRevalidate),
        _ if control.s_maxage.is_some() && s_maxage_forbids => Err(Refusal::SMaxage),
        None | Some(0) => Err(Refusal::NotAllowed),
        Some(seconds) => Ok(seconds),
    }
}

/// The permitted use of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Serve it.
    Fresh,
    /// Serve it stale: the client accepts it.
    Stale,
    /// Ask the origin first; why.
    Validate(Refusal),
}

/// Whether a response of `age` seconds with this `lifetime` satisfies a request with these directives (RFC 9111 section
/// 5.2.1). Where a client's directives are ignored, which is the default, `request` is empty.
#[must_use]
pub fn reuse(control: &CacheControl, lifetime: u32, age: u32, request: &RequestCacheControl) -> Reuse {
    if control.no_cache == Scope::Whole || request.no_cache {
        return Reuse::Validate(Refusal::NoCache);
    }
    if request.is_too_old(age) {
        return Reuse::Validate(Refusal::TooStale);
    }
    // A response is fresh while its lifetime exceeds its age (section 4.2).
    let fresh_for = lifetime.saturating_sub(age);
    if fresh_for > 0 && fresh_for >= request.min_fresh.unwrap_or(0) {
        return Reuse::Fresh;
    }
    let Some(max_stale) = request.max_stale.filter(|_| fresh_for == 0) else {
        return Reuse::Validate(if fresh_for == 0 { Refusal::NotAllowed } else { Refusal::TooStale });
    };
    let most = match max_stale {
        MaxStale::Any => DELTA_SECONDS_MAX,
        MaxStale::Seconds(seconds) => seconds,
    };
    // A client cannot allow uses that the origin forbids.
    let with_permission = CacheControl { stale_while_revalidate: Some(most.max(1)), ..*control };
    match stale(&with_permission, StaleUse::WhileRevalidate, true) {
        Err(refusal) => Reuse::Validate(refusal),
        Ok(_) if age.saturating_sub(lifetime) > most => Reuse::Validate(Refusal::TooStale),
        Ok(_) => Reuse::Stale,
    }
}
