//! `Cache-Control` of responses (RFC 9111 section 5.2.2, RFC 5861, RFC 8246) and requests (section 5.2.1), and targeted fields such
//! as `CDN-Cache-Control` (RFC 9213).
//!
//! [`CacheControl`] contains the directives of a response, [`RequestCacheControl`] those of a request. Both are parsed from the
//! values of all lines of the field. [`crate::freshness`] applies them to storing and reuse.
//!
//! An origin's error makes caching stricter, never laxer: an invalid age counts as 0, a restricting directive counts with any
//! argument, and an unclosed quote does not hide later directives.

mod element;
mod targeted;

pub(crate) use element::delta_seconds;
pub use targeted::{Targeted, targeted};

use element::{Argument, elements};

/// Maximum number of seconds; larger values are replaced by it (RFC 9111 section 1.2.2).
pub const DELTA_SECONDS_MAX: u32 = 1 << 31;

/// What a directive with optional field names applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The directive is absent.
    #[default]
    Nothing,
    /// The directive names fields and applies to these ([`qualified_fields`]).
    Fields,
    /// The directive applies to the complete response.
    Whole,
}

/// The `Cache-Control` of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// `no-store`
    pub no_store: bool,
    /// `no-cache`, with or without field names.
    pub no_cache: Scope,
    /// `private`, with or without field names.
    pub private: Scope,
    /// `public`
    pub public: bool,
    /// `must-revalidate`
    pub must_revalidate: bool,
    /// `proxy-revalidate`
    pub proxy_revalidate: bool,
    /// `must-understand`
    pub must_understand: bool,
    /// `no-transform`
    pub no_transform: bool,
    /// `immutable` (RFC 8246)
    pub immutable: bool,
    /// `max-age` in seconds.
    pub max_age: Option<u32>,
    /// `s-maxage` in seconds.
    pub s_maxage: Option<u32>,
    /// `stale-while-revalidate` in seconds (RFC 5861).
    pub stale_while_revalidate: Option<u32>,
    /// `stale-if-error` in seconds (RFC 5861).
    pub stale_if_error: Option<u32>,
}

impl CacheControl {
    /// Parses the values of all `Cache-Control` lines of a response.
    ///
    /// The first of several equal directives counts (RFC 9111 section 4.2.1); for `no-cache` and `private`, the widest scope
    /// counts. Names are case-insensitive; unknown directives are ignored.
    #[must_use]
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut found = Self::default();
        values.into_iter().for_each(|value| found.read(value));
        found
    }

    /// Adds the directives of another line.
    pub(crate) fn read(&mut self, value: &[u8]) {
        for (name, argument) in elements(value) {
            self.add(name, argument);
        }
    }

    fn add(&mut self, name: &[u8], argument: Argument<'_>) {
        let mut lower = [0; NAME_LEN_MAX];
        let Some(lower) = lower_case(name, &mut lower) else { return };
        match lower {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = self.no_cache.widened(argument),
            b"private" => self.private = self.private.widened(argument),
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"no-transform" => self.no_transform = true,
            b"immutable" => self.immutable = true,
            b"max-age" => set_first(&mut self.max_age, argument),
            b"s-maxage" => set_first(&mut self.s_maxage, argument),
            b"stale-while-revalidate" => set_first(&mut self.stale_while_revalidate, argument),
            b"stale-if-error" => set_first(&mut self.stale_if_error, argument),
            _ => {}
        }
    }
}

impl Scope {
    /// Returns the scope after another occurrence of the directive. An argument without a field name counts as no argument.
    fn widened(self, argument: Argument<'_>) -> Self {
        match argument.field_names().next() {
            Some(_) if self != Self::Whole => Self::Fields,
            _ => Self::Whole,
        }
    }
}

/// Sets the first value. A missing or malformed number of seconds counts as 0: by RFC 9111 section 4.2.1 such a response is stale.
fn set_first(place: &mut Option<u32>, argument: Argument<'_>) {
    place.get_or_insert(argument.seconds().unwrap_or(0));
}

/// Length of the longest known directive name.
const NAME_LEN_MAX: usize = 22;
const _: () = assert!(NAME_LEN_MAX == "stale-while-revalidate".len());

/// Converts `name` to lower case; `None` if it is longer than all known names.
fn lower_case<'b>(name: &[u8], buf: &'b mut [u8; NAME_LEN_MAX]) -> Option<&'b [u8]> {
    let lower = buf.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    Some(lower)
}

/// A directive that may name fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qualified {
    /// `no-cache="…"`: these fields must not be reused without revalidation.
    NoCache,
    /// `private="…"`: these fields must not be stored by a shared cache.
    Private,
}

/// Returns the field names in all occurrences of a directive, from the values of all `Cache-Control` lines of a response.
pub fn qualified_fields<'a, I>(values: I, directive: Qualified) -> impl Iterator<Item = &'a [u8]>
where
    I: IntoIterator<Item = &'a [u8]>,
{
    let wanted: &[u8] = match directive {
        Qualified::NoCache => b"no-cache",
        Qualified::Private => b"private",
    };
    values
        .into_iter()
        .flat_map(elements)
        .filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
        .flat_map(|(_, argument)| argument.field_names())
}

/// Staleness that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxStale {
    /// Any staleness.
    Any,
    /// At most this many seconds.
    Seconds(u32),
}

/// The `Cache-Control` of a request. Like nginx, this server ignores it unless a directive enables it: a client must not be able to
/// make a shared cache useless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCacheControl {
    /// `no-cache`, or `Pragma: no-cache` without `Cache-Control`.
    pub no_cache: bool,
    /// `no-store`
    pub no_store: bool,
    /// `no-transform`
    pub no_transform: bool,
    /// `only-if-cached`
    pub only_if_cached: bool,
    /// `max-age` in seconds.
    pub max_age: Option<u32>,
    /// `min-fresh` in seconds; ignored when malformed.
    pub min_fresh: Option<u32>,
    /// `max-stale`; ignored when malformed.
    pub max_stale: Option<MaxStale>,
    /// `stale-if-error` in seconds (RFC 5861 section 4); ignored when malformed.
    pub stale_if_error: Option<u32>,
}

impl RequestCacheControl {
    /// Parses the values of all `Cache-Control` and `Pragma` lines of a request. `Pragma` counts only if `Cache-Control` is absent
    /// (RFC 9111 section 5.4).
    #[must_use]
    pub fn parse<'a>(
        values: impl IntoIterator<Item = &'a [u8]>,
        pragma: impl IntoIterator<Item = &'a [u8]>,
    ) -> Self {
        let mut found = Self::default();
        let mut present = false;
        for value in values {
            present = true;
            for (name, argument) in elements(value) {
                found.add(name, argument);
            }
        }
        let is_no_cache = |(name, _): (&[u8], Argument<'_>)| name.eq_ignore_ascii_case(b"no-cache");
        if !present {
            found.no_cache = pragma.into_iter().flat_map(elements).any(is_no_cache);
        }
        found
    }

    /// Whether the client refuses a response of this age. `max-age=0` requires revalidation, even within the second of the
    /// response's arrival.
    #[must_use]
    pub fn is_too_old(&self, age: u32) -> bool {
        self.max_age.is_some_and(|most| age > most || most == 0)
    }

    fn add(&mut self, name: &[u8], argument: Argument<'_>) {
        let mut lower = [0; NAME_LEN_MAX];
        let Some(lower) = lower_case(name, &mut lower) else { return };
        match lower {
            b"no-cache" => self.no_cache = true,
            b"no-store" => self.no_store = true,
            b"no-transform" => self.no_transform = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => set_first(&mut self.max_age, argument),
            b"min-fresh" => self.min_fresh = self.min_fresh.or(argument.seconds()),
            b"stale-if-error" => self.stale_if_error = self.stale_if_error.or(argument.seconds()),
            b"max-stale" => {
                let any = (argument == Argument::None).then_some(MaxStale::Any);
                self.max_stale = self.max_stale.or(any).or_else(|| argument.seconds().map(MaxStale::Seconds));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
