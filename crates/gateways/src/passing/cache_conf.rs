//! Cache directives: which responses may be stored, for how long, where, and when a stale response is used.
//!
//! Lists follow nginx: the first use in a block replaces the inherited list, further uses append. Sets of keywords, methods and
//! cases work the same way. A condition is true if one of its values is neither empty nor `0`.
//!
//! The values are stored in `caching::settings`; `caching` implements them.

use std::sync::Arc;
use std::time::Duration;

use conf::{Args, Contexts, Error, Level, Object, Span, Spec, value};
use http::freshness::Heuristic;

use crate::Directive;
use crate::exposure::{Exposure, is_met_by_all};
use crate::passing::cache_path;
use crate::passing::conf::{Conf, conf};
use crate::passing::protocol::{Family, Passing, Rows};
use crate::passing::spec::row;
use caching::failures::Stale;
use caching::settings::{CacheUse, Caches, IGNORE_MUST_REVALIDATE, OFF, POST, Valid, Zone, bit};
use site::config::{Cx, Http, Layered};
use site::declaration::{LEVELS, OWN};
use site::template::{Template, variable_name};

impl<F: Family> Rows<F> {
    /// Which responses may be stored, for how long, where, and when a stale response is used.
    pub(crate) const CACHE: &'static [Directive] = &[
        // A zone may be used before the line that declares it, so its existence is checked at the end.
        Directive::scope(
            row("_cache", Args::Exactly(1), "The cache for responses, by the name of its zone, or `off`.")
                .default("off"),
            |scope, cx| set_zone(conf::<F>(scope), cx),
        ),
        Directive::http(
            Spec::new(
                "",
                "_cache_path",
                Contexts::HTTP,
                Args::AtLeast(2),
                "A cache: its directory, `keys_zone=NAME:SIZE`, and its limits. `verify=TIME` is the time for which a verification of an \
                 entry's checksums is valid (default 1h; `off`: until the worker exits). `scrub=TIME` is the interval in which all \
                 entries are read and verified in the background (default `off`).",
            )
            .many(),
            cache_path::declare,
        ),
        // By default the key is the URL of the request to the upstream: scheme, host and URI as sent.
        Directive::scope(
            Spec { default: F::KEY_DEFAULT, ..row("_cache_key", Args::Exactly(1), "The text that identifies stored responses.") },
            |scope, cx| {
                conf::<F>(scope).cache.key = Some(Arc::new(cx.template(cx.arg(0))?));
                conf::<F>(scope).cache.credential_key =
                    names_credential(cx.arg(0)).then(|| cx.statement.span().clone());
                Ok(())
            },
        ),
        // Header fields of the response have precedence.
        Directive::scope(
            row(
                "_cache_valid",
                Args::AtLeast(1),
                "How long responses of these statuses, or of `any`, are fresh without a lifetime of the upstream.",
            )
            .many(),
            |scope, cx| add_valid(conf::<F>(scope), cx),
        ),
        // GET and HEAD cannot be removed, as in nginx.
        Directive::scope(
            row(
                "_cache_methods",
                Args::AtLeast(1),
                "Methods whose responses are stored, in addition to GET and HEAD.",
            )
            .default("GET HEAD")
            .many(),
            |scope, cx| conf::<F>(scope).cache.methods.add(METHODS, cx),
        ),
        // The response is still stored, so that a request can replace an entry.
        Directive::scope(
            row(
                "_cache_bypass",
                Args::AtLeast(1),
                "Requests bypass the cache if one of these values is neither empty nor `0`.",
            )
            .many(),
            |scope, cx| add_predicates(&mut conf::<F>(scope).cache.bypass, cx),
        ),
        // Usually combined with `proxy_cache_bypass`, for requests of known clients.
        Directive::scope(
            row(
                "_no_cache",
                Args::AtLeast(1),
                "Responses are not stored if one of these values is neither empty nor `0`.",
            )
            .many(),
            |scope, cx| add_predicates(&mut conf::<F>(scope).cache.no_store, cx),
        ),
        // Most entries are requested only once; storing them would evict others that are requested again.
        Directive::scope(
            row("_cache_min_uses", Args::Exactly(1), "Number of requests after which a response is stored.")
                .default("1"),
            |scope, cx| cx.number(&mut conf::<F>(scope).cache.min_uses),
        ),
        // With `updating`, all requests but the fetching one get the stale response immediately.
        Directive::scope(
            row(
                "_cache_use_stale",
                Args::AtLeast(1),
                "When a stale response is used. `ignore_must_revalidate` extends this to responses with `must-revalidate` or \
                 `proxy-revalidate`.",
            )
                .default("off")
                .many(),
            |scope, cx| conf::<F>(scope).cache.use_stale.add(USE_STALE, cx),
        ),
        // When off, the request that fetches waits, even if `updating` serves other requests immediately.
        Directive::scope(
            row(
                "_cache_background_update",
                Args::Flag,
                "Fetches a new response in the background of a request that gets a stale response.",
            )
            .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.background_update),
        ),
        // A 304 costs the upstream and the network less than a body that is already stored.
        Directive::scope(
            row("_cache_revalidate", Args::Flag, "Revalidates stale responses by conditional requests.")
                .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.revalidate),
        ),
        // Three states: an explicit `off` sends every request upstream; unset, requests wait for the first fetch.
        Directive::scope(
            row("_cache_lock", Args::Flag, "Whether requests wait for a response that one of them fetches."),
            |scope, cx| {
                let mut on = false;
                cx.flag(&mut on)?;
                conf::<F>(scope).cache.lock = Some(on);
                Ok(())
            },
        ),
        // With `proxy_cache_lock on` the responses to these fetches are not stored: the fetch in flight may still store one.
        Directive::scope(
            row("_cache_lock_timeout", Args::Exactly(1), "How long requests wait for a fetch without progress before they start another fetch.")
                .default("5s"),
            |scope, cx| {
                let mut time = Duration::ZERO;
                cx.milliseconds(&mut time)?;
                conf::<F>(scope).cache.lock_timeout = Some(time);
                Ok(())
            },
        ),
        // A fetch that hangs must not block other requests for ever.
        Directive::scope(
            row(
                "_cache_lock_age",
                Args::Exactly(1),
                "How long a fetch may make no progress before another fetch starts.",
            )
            .default("5s"),
            |scope, cx| {
                let mut time = Duration::ZERO;
                cx.milliseconds(&mut time)?;
                conf::<F>(scope).cache.lock_age = Some(time);
                Ok(())
            },
        ),
        // Without a limit, a request for a range near the end of a large file waits for all preceding bytes.
        Directive::scope(
            row(
                "_cache_max_range_offset",
                Args::Exactly(1),
                "Ranges that start at this offset or beyond are passed on to the upstream, and their responses are not stored.",
            ),
            |scope, cx| {
                let mut most = 0;
                cx.offset(&mut most)?;
                conf::<F>(scope).cache.max_range_offset = Some(most);
                Ok(())
            },
        ),
        Directive::scope(
            own(
                "_cache_authorized",
                Args::Flag,
                "Stores responses to requests with `Authorization` like other responses.",
            )
            .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.stores_authorized),
        ),
        Directive::scope(
            own("_cache_finish", Args::Flag, "Completes a fetch for the cache after all its clients have disconnected.")
                .default("on"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.finishes_fills),
        ),
        Directive::scope(
            own("_cache_parts", Args::Flag, "Requests and stores ranges of responses that are not stored completely.")
                .default("on"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.stores_parts),
        ),
        Directive::scope(
            own(
                "_cache_tag_header",
                Args::Exactly(1),
                "The response field with the tags by which responses can be purged.",
            ),
            |scope, cx| {
                conf::<F>(scope).cache.tag_header = field_name(cx)?;
                Ok(())
            },
        ),
        // Off, as in nginx: a client must not be able to make a shared cache useless.
        Directive::scope(
            own("_cache_request_control", Args::Flag, "Obeys `Cache-Control` and `Pragma` of requests.")
                .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.heeds_requests),
        ),
        Directive::scope(
            own(
                "_cache_status_header",
                Args::Exactly(1),
                "Adds `Cache-Status` (RFC 9211) with this name for the cache, or `off`.",
            )
            .default("off"),
            |scope, cx| {
                let name = cx.arg(0);
                conf::<F>(scope).cache.status_name = (name != "off").then(|| name.as_bytes().into());
                Ok(())
            },
        ),
        // From commercial nginx.
        Directive::scope(
            Spec::new(
                OWN,
                "_cache_purge",
                LEVELS,
                Args::AtLeast(1),
                "Removes the requested entry if one of these values is neither empty nor `0`.",
            )
            .many(),
            |scope, cx| {
                let is_open = cx.statement.texts().any(|text| is_met_by_all(cx.tree, text));
                let open = is_open.then(|| cx.statement.name.text.as_str().into());
                scope.make_mut::<Exposure>().purges.make_mut(cx.block).push(open);
                add_predicates(&mut conf::<F>(scope).cache.purge, cx)
            },
        ),
        // After a soft purge the entry can still be used if no upstream responds, and for `stale-while-revalidate`.
        Directive::scope(
            own(
                "_cache_purge_soft",
                Args::AtLeast(1),
                "A purge makes entries stale, instead of removing them, if one of these values is neither empty nor `0`.",
            )
            .many(),
            |scope, cx| add_predicates(&mut conf::<F>(scope).cache.purge_soft, cx),
        ),
        Directive::scope(
            own(
                "_cache_purge_all",
                Args::AtLeast(1),
                "Removes all entries of the cache if one of these values is neither empty nor `0`.",
            )
            .many(),
            |scope, cx| add_predicates(&mut conf::<F>(scope).cache.purge_all, cx),
        ),
        // `proxy_cache_tag_header` defines the tags of responses.
        Directive::scope(
            own(
                "_cache_purge_tag_header",
                Args::Exactly(1),
                "The field of purge requests with tags to purge instead of a key, or `off`.",
            )
            .default("off"),
            |scope, cx| {
                conf::<F>(scope).cache.purge_tag_header = field_name(cx)?;
                Ok(())
            },
        ),
        // RFC 9111 section 4.4; `off` is nginx's behaviour.
        Directive::scope(
            own(
                "_cache_invalidate",
                Args::Flag,
                "Removes the stored responses of a URI when a request with an unsafe method changes it.",
            )
            .default("on"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.invalidates),
        ),
        // RFC 9111 section 4.2.2: a response that has not changed for long is unlikely to change soon. nginx has no heuristic.
        Directive::scope(
            own(
                "_cache_heuristic",
                Args::Between(1, 2),
                "Lifetime of responses without a lifetime: a share of the time since `Last-Modified`, such as `10%`, and the maximum \
                 lifetime; or `off`.",
            )
            .default("off"),
            |scope, cx| set_heuristic(conf::<F>(scope), cx),
        ),
        // RFC 9111 section 5.2.2.10; `on` is nginx's behaviour.
        Directive::scope(
            own(
                "_cache_s_maxage_stale",
                Args::Flag,
                "Obeys `stale-while-revalidate` and `stale-if-error` also with `s-maxage`, which forbids stale use.",
            )
            .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).cache.s_maxage_stale),
        ),
    ];
}

const USE_STALE: &[(&str, u64)] = &[
    ("error", bit(Stale::Error)),
    ("timeout", bit(Stale::Timeout)),
    ("invalid_header", bit(Stale::InvalidHeader)),
    ("updating", bit(Stale::Updating)),
    ("http_500", bit(Stale::Http500)),
    ("http_502", bit(Stale::Http502)),
    ("http_503", bit(Stale::Http503)),
    ("http_504", bit(Stale::Http504)),
    ("http_403", bit(Stale::Http403)),
    ("http_404", bit(Stale::Http404)),
    ("http_429", bit(Stale::Http429)),
    ("ignore_must_revalidate", IGNORE_MUST_REVALIDATE),
    ("off", OFF),
    ("non_idempotent", NON_IDEMPOTENT),
];

/// A parameter that nginx accepts because `proxy_next_upstream` has it. It has no effect.
const NON_IDEMPOTENT: u64 = 1 << 61;

const METHODS: &[(&str, u64)] = &[("GET", 1), ("HEAD", 2), ("POST", POST)];

/// Sets the zone: `off`, a name, or variables that give one of these.
fn set_zone(conf: &mut Conf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    if text == "off" {
        conf.cache.zone = Zone::Off;
        return Ok(());
    }
    if conf.stores_of(cx.block) {
        let prefix = conf.prefix;
        return Err(
            cx.error(format_args!("\"{prefix}_cache\" directive is incompatible with \"{prefix}_store\""))
        );
    }
    // `proxy_cache` cancels a `proxy_store` of enclosing blocks.
    conf.forget_store();
    let template = cx.template(text)?;
    conf.cache.zone = match template.constant() {
        Some(name) => {
            let zone = cx.http.zones.named(name, cx.statement)?;
            let (directive, span) = (format!("{}_cache", conf.prefix), cx.statement.span().clone());
            cx.http.make_mut::<Caches>().uses.push(CacheUse { zone: Arc::clone(&zone), directive, span });
            Zone::Named(zone)
        }
        None => Zone::Variable(Arc::new(template)),
    };
    conf.cache_block = cx.block;
    Ok(())
}

/// Whether a key distinguishes requests by credentials.
fn names_credential(mut text: &str) -> bool {
    while let Some(dollar) = text.find('$') {
        text = &text[dollar + 1..];
        match variable_name(text) {
            Ok(("http_authorization", _)) => return true,
            Ok((_, len)) => text = &text[len..],
            Err(_) => return false,
        }
    }
    false
}

/// Warns if the key contains credentials and no setting permits storing the response.
pub(super) fn warn_of_credentials<F: Family>(http: &Http, warnings: &mut Vec<Error>) {
    let mut warned: Vec<&Span> = Vec::new();
    for location in &http.locations {
        let Conf { cache, prefix, .. } = &location.scope.of::<Passing<F>>().conf;
        let is_open = cache.stores_authorized || !cache.valid.items().is_empty() || !cache.zone.is_on();
        let Some(span) = cache.credential_key.as_ref().filter(|span| !is_open && !warned.contains(span))
        else {
            continue;
        };
        warned.push(span);
        let message = format_args!(
            "\"{prefix}_cache_key\" has \"$http_authorization\", but without \"{prefix}_cache_valid\" responses to \
             requests with \"Authorization\" are stored only if they allow it (\"public\", \"s-maxage\", \
             \"must-revalidate\")"
        );
        warnings.push(Error::at(span.clone(), message).with_level(Level::Warn));
    }
}

/// Returns an error, with nginx's message, if a used cache is not declared.
pub(super) fn check(http: &Http) -> Result<(), Error> {
    match http.of::<Caches>().uses.iter().find(|used| used.zone.declared().is_none()) {
        Some(CacheUse { zone, directive, span }) => {
            let directive = directive.to_string();
            Err(Error::undefined(span.clone(), Object::Cache { directive }, zone.name()))
        }
        None => Ok(()),
    }
}

/// Statuses to which a time without statuses applies.
const USUAL: [u16; 3] = [200, 301, 302];

/// Parses statuses and a time, or only a time.
fn add_valid(conf: &mut Conf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let texts: Vec<&str> = cx.statement.texts().collect();
    let (time, statuses) = texts.split_last().expect("the table demands an argument");
    let time = value::seconds(time).map_err(|_| cx.error(format_args!("invalid time value \"{time}\"")))?;
    let time = Duration::from_secs(time);
    let list = conf.cache.valid.make_mut(cx.block);
    if statuses.is_empty() {
        list.extend(USUAL.map(|status| Valid { status: Some(status), time }));
    }
    for text in statuses {
        let status = match *text {
            "any" => None,
            text => match value::number(text) {
                Ok(status @ 100..=599) => Some(status as u16),
                _ => return Err(cx.error(format_args!("invalid status \"{text}\""))),
            },
        };
        list.push(Valid { status, time });
    }
    Ok(())
}

/// Creates a directive that nginx does not have.
const fn own(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new(OWN, name, LEVELS, args, help)
}

/// Default of the maximum heuristic lifetime in seconds: a day.
const HEURISTIC_MAX: u32 = 86_400;

/// Parses a percentage and a time.
fn set_heuristic(conf: &mut Conf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let texts: Vec<&str> = cx.statement.texts().collect();
    if text == "off" && texts.len() == 1 {
        conf.cache.heuristic = None;
        return Ok(());
    }
    let percent = text.strip_suffix('%').and_then(|digits| digits.parse().ok());
    let Some(percent) = percent.filter(|percent| (1..=100).contains(percent)) else {
        return Err(cx.error(format_args!("invalid share \"{text}\"")));
    };
    let seconds_max = match texts.get(1) {
        None => HEURISTIC_MAX,
        Some(time) => {
            let seconds = value::seconds(time);
            let seconds = seconds.map_err(|_| cx.error(format_args!("invalid time value \"{time}\"")))?;
            seconds.min(u64::from(u32::MAX)) as u32
        }
    };
    conf.cache.heuristic = Some(Heuristic { percent, seconds_max });
    Ok(())
}

/// Returns the name of a field; `None` for `off`.
fn field_name(cx: &Cx<'_>) -> Result<Option<Arc<[u8]>>, Error> {
    match cx.arg(0) {
        "off" => Ok(None),
        name if http::structured::is_token(name.as_bytes()) => Ok(Some(name.as_bytes().into())),
        name => Err(cx.error(format_args!("invalid field name \"{name}\""))),
    }
}

fn add_predicates(list: &mut Layered<Template>, cx: &mut Cx<'_>) -> Result<(), Error> {
    for text in cx.statement.texts() {
        let template = cx.template(text)?;
        list.make_mut(cx.block).push(template);
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/cache.rs"]
mod tests;
