//! `dashboard`: an HTML page, and its data.
//!
//! The page is part of the binary. It fetches `?snapshot` from its own URL once a second and computes rates and
//! percentiles itself, so that the server keeps no state for it. Its content security policy forbids it to load
//! anything else.
//!
//! Names from the configuration are inserted as text nodes, never as markup. The page cannot change anything, so other
//! sites gain nothing by framing it; its policy forbids frames and forms nevertheless.

use http::fields::Method;
use io::segments::Source;
use serde_json::{Map, Value, json};
use telemetry::histogram::Distribution;
use telemetry::reloads::Reloads;
use telemetry::time_zone::since_1970;
use telemetry::traffic;

use super::api::ZoneNumbers;
use super::conf::Conf;
use super::limits::{self, LimitKind, LimitZone};
use super::rebinding;
use super::sessions::SessionZones;
use caching::metrics::Facts;
use caching::settings::Caches;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::ContentType;
use peers::Upstreams;
use site::config::Section;

/// The page with its style and its script, as sent to the browser except for [`NONCE`].
const PAGE: &str = include_str!("dashboard.html");

/// The query that requests the data.
const SNAPSHOT: &[u8] = b"snapshot";

/// The placeholder for the nonce that allows the page's own script and style (CSP level 3, section 2.3.1).
const NONCE: &str = "@NONCE@";

/// Responds with the page or its data.
pub(super) fn run(_: &Conf, request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    if let Some(refusal) = rebinding::refuse(request) {
        return refusal;
    }
    let (kind, body, policy) = match request.args == SNAPSHOT {
        true => ("application/json", snapshot(request).to_string(), "default-src 'none'".to_owned()),
        false => {
            let nonce = nonce();
            let policy = format!(
                "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
                 connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            );
            ("text/html; charset=utf-8", PAGE.replace(NONCE, &nonce), policy)
        }
    };
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text(kind.into());
    for (name, value) in [
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", policy.as_str()),
    ] {
        response.fields.push(name.as_bytes(), value.as_bytes());
    }
    response.set_bytes(Source::Vec(body.into_bytes()));
    Step::Done
}

/// Returns a text that other sites cannot predict.
fn nonce() -> String {
    use std::hash::{BuildHasher, RandomState};
    // The keys of `RandomState` are seeded by the kernel's random generator, and differ for each call.
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

/// Returns all current numbers of the page.
fn snapshot(request: &Request) -> Value {
    let (config, shared) = (&request.config().http, &request.conn.thread.shared);
    let totals = shared.totals();
    let seconds = |time| {
        let (seconds, ms) = since_1970(time);
        seconds as f64 + f64::from(ms) / 1e3
    };
    let caches = config.of::<Caches>().zones.iter();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "started": seconds(shared.started()),
        "now": seconds(rt::wall()),
        "generation": request.thread_config.number,
        "reloads": reloads(),
        "threads": request.config().main().workers.count(),
        "is_leaving": shared.is_leaving(),
        "connections": {
            "accepted": totals.accepted,
            "active": totals.active.saturating_sub(totals.waiting),
            "idle": totals.waiting,
        },
        "requests": { "total": totals.requests, "current": totals.reading + totals.writing },
        "zones": ZoneNumbers::all(request).filter(|zone| zone.sums.requests() > 0).map(zone).collect::<Value>(),
        "peers": peers(request),
        "sessions": sessions(request),
        "limits": limits::zones(config).map(limit).collect::<Value>(),
        "tls": super::api::tls(request),
        "caches": caches.map(|zone| cache(zone.name(), &Facts::of(zone.state()))).collect::<Value>(),
        "certificates": core_modules::expiries(config).into_iter().map(certificate).collect::<Value>(),
    })
}

/// Returns the numbers of reloads by outcome, and whether the last reload was refused.
fn reloads() -> Value {
    let Reloads { by_outcome: [in_place, replacement, refused], is_last_refused } = Reloads::current();
    json!({ "in_place": in_place, "replacement": replacement, "refused": refused, "is_last_refused": is_last_refused })
}

/// Returns a row of the table of locations. The page computes rates from the difference of two snapshots.
fn zone(numbers: ZoneNumbers) -> Value {
    let sums = &numbers.sums;
    json!({
        "server": &*numbers.zone.server,
        "location": &*numbers.zone.location,
        "requests": sums.requests(),
        "codes": object(traffic::occurred(&sums.codes)),
        "received": sums.received,
        "sent": sums.sent,
        "engines": object(sums.moved()),
        "times": times(&sums.duration),
    })
}

/// Returns the counts above zero, by name.
fn object(pairs: impl Iterator<Item = (&'static str, u64)>) -> Value {
    let map: Map<String, Value> = pairs.map(|(name, count)| (name.to_owned(), count.into())).collect();
    Value::Object(map)
}

/// Returns the non-empty buckets as pairs of index and count; the page subtracts those of an earlier snapshot.
fn times(times: &Distribution) -> Value {
    let buckets = times.counts().iter().enumerate().filter(|(_, count)| **count > 0);
    buckets.map(|(index, count)| json!([index, count])).collect()
}

/// Returns the servers of all groups in one list, in the order of the configuration.
fn peers(request: &Request) -> Value {
    let groups = request.config().http.of::<Upstreams>().groups();
    let peers = groups.flat_map(|group| {
        let label = group.label();
        group.peers(rt::now()).into_iter().map(move |peer| {
            json!({
                "upstream": label,
                "id": peer.id,
                "server": &*peer.name,
                "state": peer.condition.name(),
                "backup": peer.backup,
                "weight": peer.weight,
                "active": peer.active,
                "requests": peer.counts.chosen,
                "codes": object(traffic::occurred(&peer.counts.codes)),
                "fails": peer.counts.fails,
                "times": times(&peer.counts.header),
            })
        })
    });
    peers.collect()
}

/// Returns the servers of `stream` that have had sessions. As for locations, the page computes the rates from the difference of two
/// snapshots.
fn sessions(request: &Request) -> Value {
    let counted = &request.conn.thread.shared.session_traffic;
    let zones = request.config().section(Section::Stream).of::<SessionZones>().all().iter();
    let sums = zones.map(|zone| (zone, counted.sums(zone))).filter(|(_, sums)| sums.requests() > 0);
    let rows = sums.map(|(zone, sums)| {
        json!({
            "server": &*zone.server,
            "sessions": sums.requests(),
            "codes": object(traffic::occurred(&sums.codes)),
            "received": sums.received,
            "sent": sums.sent,
            "times": times(&sums.duration),
        })
    });
    rows.collect()
}

/// Returns a row of the table of limits. The results are in the order of [`limits::names`].
fn limit(zone: LimitZone<'_>) -> Value {
    let kind = match (zone.kind, zone.section) {
        (LimitKind::Requests, _) => "requests",
        (LimitKind::Connections, Section::Http) => "connections",
        (LimitKind::Connections, Section::Stream) => "sessions",
    };
    json!({ "zone": zone.name, "kind": kind, "results": zone.results, "used": zone.used, "size": zone.size })
}

/// Returns a row of the table of caches. A cache that could not be opened has no size.
fn cache(zone: &str, facts: &Facts) -> Value {
    json!({
        "zone": zone,
        "size": facts.bytes.unwrap_or(0),
        "max_size": facts.max_size,
        "entries": facts.entries,
        "evicted": facts.evicted,
        "is_loading": facts.is_loading,
        "is_degraded": facts.is_degraded,
        "requests": object(facts.requests.iter().copied()),
    })
}

/// Returns a row of the table of certificates; the page marks certificates that expire soon.
fn certificate((server, path, end): (&str, &std::path::Path, i64)) -> Value {
    json!({ "server": server, "path": path.display().to_string(), "end": end })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of the page in the binary, in bytes.
    const PAGE_MAX: usize = 60 << 10;

    #[test]
    fn the_page_is_small_and_has_no_external_urls() {
        assert!(PAGE.len() < PAGE_MAX);
        assert_eq!(PAGE.matches(NONCE).count(), 2, "its script and its style");
        let indices = PAGE.matches("//").count();
        assert_eq!(indices, PAGE.matches("http://www.w3.org/2000/svg").count(), "a name space is no address");
        assert_ne!(nonce(), nonce());
    }
}
