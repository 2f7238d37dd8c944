//! Whether a stored response may be used: fresh, stale by permission, or only after revalidation (RFC 9111 sections
//! 4.2.4 and 5.2.1, RFC 5861).

use crate::cache_control::{CacheControl, DELTA_SECONDS_MAX, MaxStale, RequestCacheControl, Scope};

/// Reason to use a stale response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleUse {
    /// `stale-while-revalidate`: the response is revalidated in the background.
    WhileRevalidate,
    /// `stale-if-error`: the origin cannot be reached, or returned 500, 502, 503 or 504.
    IfError,
}

/// Reason not to use a stored response without revalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `no-cache`: even a fresh response needs revalidation.
    NoCache,
    /// `must-revalidate`
    MustRevalidate,
    /// `proxy-revalidate`
    ProxyRevalidate,
    /// `s-maxage`, which implies `proxy-revalidate` (RFC 9111 section 5.2.2.10).
    SMaxage,
    /// The response is stale, and no directive allows stale use.
    NotAllowed,
    /// The response has been stale for longer than allowed, or is older than the client's `max-age` or `min-fresh` permits.
    TooStale,
}

/// Returns for how many seconds after the end of its lifetime the directives of a response allow its use.
///
/// `proxy_cache_use_stale` has nginx's meaning and does not use this function. `s_maxage_forbids` applies the rule of RFC 9111 to
/// responses with `s-maxage`. Without it, as in nginx, a response with both `s-maxage` and an extension of RFC 5861 follows the
/// extension.
///
/// # Errors
/// [`Refusal`]; the strongest directive first.
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
    /// Revalidate it with the origin first, for this reason.
    Validate(Refusal),
}

/// Decides whether a stored response of this `age` and `lifetime` satisfies a request with these directives (RFC 9111 section
/// 5.2.1). `request` is empty if the client's directives are ignored, which is the default.
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
