//! The content of the API: an object for each path, created on request.
//!
//! Fields of numbers that this server does not count are omitted. Paths of features that this server lacks exist and are
//! empty, because tools treat a missing path as an error.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use crate::status::limits::{self, LimitKind};
use crate::status::sessions::SessionZones;
use crate::status::zones::StatusZones;
use caching::metrics::Facts;
use caching::settings::Caches;
use core_modules::NGINX_VERSION;
use exchange::request::{Address, Request};
use peers::health::CheckCounts;
use peers::queue::QueueState;
use peers::{Group, PeerState, Upstreams};
use site::config::Section;
use site::shared_zone::DeclaredZone;
use telemetry::shared::respawned;
use telemetry::spans;
use telemetry::tally::Totals;
use telemetry::time_zone::since_1970;
use telemetry::traffic::{self, Codes, Sums, Zone};

/// Names at the root, in the order of nginx's list; the last one is not in that list.
const ROOT: &[&str] = &[
    "nginx",
    "processes",
    "connections",
    "slabs",
    "http",
    "stream",
    "resolvers",
    "ssl",
    "workers",
    "traces",
];

/// Names below `http`.
const HTTP: &[&str] = &[
    "requests",
    "server_zones",
    "location_zones",
    "caches",
    "limit_conns",
    "limit_reqs",
    "keyvals",
    "upstreams",
];

/// Names below `stream`, of which `zone_sync` is empty.
const STREAM: &[&str] = &["server_zones", "limit_conns", "keyvals", "zone_sync", "upstreams"];

/// Returns the object at a path after the version.
pub(super) fn at(request: &Request, path: &[&str]) -> Option<Value> {
    let (value, rest) = match path {
        [] => (json!(ROOT), path),
        ["nginx", rest @ ..] => (nginx(request), rest),
        ["connections", rest @ ..] => (connections(&request.conn.thread.shared.totals()), rest),
        ["ssl", rest @ ..] => (tls(request), rest),
        ["workers", rest @ ..] => (workers(request), rest),
        ["processes", rest @ ..] => (json!({ "respawned": respawned() }), rest),
        ["slabs", rest @ ..] => (slabs(request), rest),
        ["traces", rest @ ..] => {
            (json!({ "spans": json!(spans::counts().collect::<BTreeMap<_, _>>()) }), rest)
        }
        ["resolvers", rest @ ..] => (json!({}), rest),
        ["http"] => (json!(HTTP), &path[1..]),
        ["http", "requests", rest @ ..] => (requests(&request.conn.thread.shared.totals()), rest),
        ["http", "server_zones", rest @ ..] => {
            (zones(request, |numbers| Some(numbers.zone.server.to_string())), rest)
        }
        ["http", "location_zones", rest @ ..] => (zones(request, location_name), rest),
        ["http", "caches", rest @ ..] => (caches(request), rest),
        ["http", "upstreams", name, "servers", rest @ ..] => (servers(group(request, name)?), rest),
        ["http", "upstreams", rest @ ..] => (upstreams(request, Section::Http), rest),
        ["http", "limit_reqs", rest @ ..] => (limits(request, Section::Http, LimitKind::Requests), rest),
        ["http", "limit_conns", rest @ ..] => (limits(request, Section::Http, LimitKind::Connections), rest),
        ["stream"] => (json!(STREAM), &path[1..]),
        ["stream", "upstreams", name, "servers", rest @ ..] => {
            (servers(group_in(request, Section::Stream, name)?), rest)
        }
        ["stream", "upstreams", rest @ ..] => (upstreams(request, Section::Stream), rest),
        ["stream", "server_zones", rest @ ..] => (session_zones(request), rest),
        ["stream", "limit_conns", rest @ ..] => {
            (limits(request, Section::Stream, LimitKind::Connections), rest)
        }
        ["stream", "zone_sync", rest @ ..] => (json!({}), rest),
        _ => return None,
    };
    rest.iter().try_fold(value, |mut value, word| match &mut value {
        Value::Object(map) => map.remove(*word),
        // Servers are identified by their numbers.
        Value::Array(list) => list.iter().find(|item| item["id"].as_u64() == word.parse().ok()).cloned(),
        _ => None,
    })
}

/// Whether a path is a collection of objects by name.
pub(super) fn is_collection(path: &[&str]) -> bool {
    !matches!(path, ["http", "requests"]) && matches!(path, ["http" | "stream", _] | ["slabs" | "resolvers"])
}

/// Returns the group of an upstream block of `http`.
pub(super) fn group<'r>(request: &'r Request, name: &str) -> Option<&'r std::sync::Arc<Group>> {
    group_in(request, Section::Http, name)
}

fn group_in<'r>(request: &'r Request, section: Section, name: &str) -> Option<&'r std::sync::Arc<Group>> {
    request.config().section(section).of::<Upstreams>().groups().find(|group| group.label() == name)
}

/// Formats a time as `2026-11-25T22:00:00.123Z` (RFC 3339).
pub(crate) fn iso_8601(time: SystemTime) -> String {
    let (seconds, ms) = since_1970(time);
    let text = http::date::iso_8601(seconds, 0);
    // Without the time zone offset at its end.
    let text = String::from_utf8_lossy(&text[..19]).into_owned();
    format!("{text}.{ms:03}Z")
}

/// Returns `nginx`: facts about the process. Its load time is that of its first configuration.
fn nginx(request: &Request) -> Value {
    let address = match &request.conn.local {
        Address::Inet(address) => address.ip().to_string(),
        Address::Unix(_) => "unix:".to_owned(),
    };
    json!({
        "version": NGINX_VERSION,
        "build": concat!("ringroad-", env!("CARGO_PKG_VERSION")),
        "address": address,
        "generation": request.thread_config.number,
        "load_timestamp": iso_8601(request.conn.thread.shared.started()),
        "timestamp": iso_8601(rt::wall()),
        "pid": std::process::id(),
        "ppid": rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()),
    })
}

/// Returns `connections`. `dropped` is 0, because all accepted connections are handled: at `worker_connections` further
/// connections wait in the kernel's accept queue.
fn connections(totals: &Totals) -> Value {
    let idle = totals.waiting;
    json!({
        "accepted": totals.accepted,
        "dropped": 0,
        "active": totals.active.saturating_sub(idle),
        "idle": idle,
    })
}

/// Returns `http/requests`.
fn requests(totals: &Totals) -> Value {
    json!({ "total": totals.requests, "current": totals.reading + totals.writing })
}

/// Returns `ssl`: handshakes with clients. A resumed session counts as a handshake too.
pub(crate) fn tls(request: &Request) -> Value {
    let [full, resumed, failed] = request.conn.thread.shared.handshakes();
    json!({ "handshakes": full + resumed, "session_reuses": resumed, "handshakes_failed": failed })
}

/// Size in bytes of a page of nginx's shared memory.
const PAGE: u64 = 4096;

/// Returns `slabs`: the zones with counted bytes, in pages of nginx's size. No allocator slots exist here, so `slots`
/// is empty.
fn slabs(request: &Request) -> Value {
    let zone = |entry: &DeclaredZone| {
        let (bytes, used) = (entry.zone.bytes()?, entry.zone.used()?);
        let (pages, used) = (bytes / PAGE, used.div_ceil(PAGE));
        let pages = json!({ "used": used, "free": pages.saturating_sub(used) });
        Some((entry.name().to_owned(), json!({ "pages": pages, "slots": {} })))
    };
    request.config().http.zones.0.iter().filter_map(zone).collect()
}

/// Returns `workers`: the threads of this process, instead of nginx's worker processes.
fn workers(request: &Request) -> Value {
    let threads = request.conn.thread.shared.totals_of_threads();
    let worker = |(id, totals): (usize, &Totals)| {
        json!({
            "id": id,
            "pid": std::process::id(),
            "connections": connections(totals),
            "http": { "requests": requests(totals) },
        })
    };
    threads.iter().enumerate().map(worker).collect()
}

/// A zone with its counters.
pub(crate) struct ZoneNumbers {
    /// The names of server and location.
    pub(crate) zone: Zone,
    /// Whether `status_zone` named its location.
    pub(crate) is_named: bool,
    /// The counters, summed over all threads.
    pub(crate) sums: Sums,
}

impl ZoneNumbers {
    /// Returns all zones of a configuration, one at a time: the histograms of a zone take 2 KiB.
    pub(crate) fn all(request: &Request) -> impl Iterator<Item = ZoneNumbers> {
        let zones = request.config().http.of::<StatusZones>();
        let traffic = &request.conn.thread.shared.traffic;
        let pairs = zones.all().iter().zip(zones.are_named());
        pairs.map(|(zone, &is_named)| ZoneNumbers { zone: zone.clone(), is_named, sums: traffic.sums(zone) })
    }
}

/// Returns the name of a location's zone: the name in `status_zone`, else the server's name and the location's text.
pub(crate) fn location_name(numbers: &ZoneNumbers) -> Option<String> {
    let Zone { server, location } = &numbers.zone;
    match (numbers.is_named, location.is_empty()) {
        (_, true) => None,
        (true, _) => Some(location.to_string()),
        (false, _) => Some(format!("{server} {location}")),
    }
}

/// Returns `http/server_zones` or `http/location_zones`: the zones by name, joined if several have the same name.
///
/// A name with a slash cannot be part of a path, so its zone is only in the list.
fn zones(request: &Request, name: fn(&ZoneNumbers) -> Option<String>) -> Value {
    let mut joined: BTreeMap<String, Box<Sums>> = BTreeMap::new();
    for numbers in ZoneNumbers::all(request) {
        if let Some(name) = name(&numbers) {
            joined.entry(name).or_default().merge(&numbers.sums);
        }
    }
    let zone = |sums: &Sums| {
        json!({
            "requests": sums.requests(),
            "responses": responses(&sums.codes),
            "discarded": sums.unanswered,
            "received": sums.received,
            "sent": sums.sent,
        })
    };
    joined.iter().map(|(name, sums)| (name.clone(), zone(sums))).collect()
}

/// Returns `responses` of a server, location or upstream: counts by status class, and by status.
fn responses(codes: &Codes) -> Value {
    let each: Map<String, Value> =
        traffic::occurred(codes).map(|(code, count)| (code.to_owned(), count.into())).collect();
    let [first, second, third, fourth, fifth] = traffic::classes(codes);
    json!({
        "1xx": first,
        "2xx": second,
        "3xx": third,
        "4xx": fourth,
        "5xx": fifth,
        "codes": each,
        "total": codes.iter().sum::<u64>(),
    })
}

/// Returns `stream/server_zones`: the zones by name.
fn session_zones(request: &Request) -> Value {
    let counted = &request.conn.thread.shared.session_traffic;
    let zone = |zone: &Zone| {
        let sums = counted.sums(zone);
        let [_, second, _, fourth, fifth] = traffic::classes(&sums.codes);
        let numbers = json!({
            "connections": sums.requests(),
            "sessions": { "2xx": second, "4xx": fourth, "5xx": fifth, "total": sums.requests() },
            "discarded": 0,
            "received": sums.received,
            "sent": sums.sent,
        });
        (zone.server.to_string(), numbers)
    };
    request.config().section(Section::Stream).of::<SessionZones>().all().iter().map(zone).collect()
}

/// Returns `limit_reqs` or `limit_conns` of a block: results by zone. A limit of connections never delays.
fn limits(request: &Request, section: Section, kind: LimitKind) -> Value {
    let zones = limits::zones(&request.config().http);
    let zones = zones.filter(|zone| zone.kind == kind && zone.section == section);
    let results = |counts: [u64; 5]| -> Value {
        let pairs = limits::names().zip(counts);
        let pairs = pairs.filter(|(name, _)| kind == LimitKind::Requests || !name.starts_with("delayed"));
        pairs.map(|(name, count)| (name.to_owned(), count.into())).collect::<Map<_, _>>().into()
    };
    zones.map(|zone| (zone.name.to_owned(), results(zone.results))).collect()
}

/// Returns `http/caches`: the number of responses per cache status. Their bytes are not counted.
fn caches(request: &Request) -> Value {
    let caches = &request.config().http.of::<Caches>().zones;
    let cache = |facts: Facts| {
        let mut value = json!({ "size": facts.bytes.unwrap_or(0), "cold": facts.is_loading });
        if let Some(max_size) = facts.max_size {
            value["max_size"] = max_size.into();
        }
        for (status, count) in facts.requests {
            value[status] = json!({ "responses": count });
        }
        value
    };
    caches.iter().map(|zone| (zone.name().to_owned(), cache(Facts::of(zone.state())))).collect()
}

/// Returns `http/upstreams` or `stream/upstreams`: the servers of each group, including implicit groups.
fn upstreams(request: &Request, section: Section) -> Value {
    let shown = match section {
        Section::Http => peer,
        Section::Stream => session_peer,
    };
    let group = |group: &Group| {
        let peers: Vec<Value> = group.peers(rt::now()).iter().map(shown).collect();
        let mut value = json!({ "peers": peers });
        if let Some(zone) = group.zone() {
            value["zone"] = zone.into();
        }
        if let Some(QueueState { size, most, overflows }) = group.queue_state() {
            value["queue"] = json!({ "size": size, "max_size": most, "overflows": overflows });
        }
        value
    };
    let groups = request.config().section(section).of::<Upstreams>().groups();
    groups.map(|one| (one.label(), group(one))).collect()
}

/// Returns a server of `stream` with its counters.
fn session_peer(state: &PeerState) -> Value {
    let mut value = peer(state);
    if let Value::Object(fields) = &mut value {
        let connections = fields.remove("requests");
        fields.insert("connections".to_owned(), connections.unwrap_or_default());
        fields.remove("responses");
    }
    value
}

/// Returns a server with its counters. Times are averages since the start, in ms.
fn peer(peer: &PeerState) -> Value {
    let counts = &peer.counts;
    let mut value = json!({
        "id": peer.id,
        "server": &*peer.name,
        "name": &*peer.server,
        "backup": peer.backup,
        "weight": peer.weight,
        "state": peer.condition.name(),
        "active": peer.active,
        "requests": counts.chosen,
        "responses": responses(&counts.codes),
        "sent": counts.sent,
        "received": counts.received,
        "fails": counts.fails,
        "unavail": counts.unavailable,
        "health_checks": health_checks(peer.checks.unwrap_or_default()),
    });
    if peer.max_conns > 0 {
        value["max_conns"] = peer.max_conns.into();
    }
    if let Some(selected) = counts.selected {
        let since = rt::now().saturating_duration_since(selected);
        value["selected"] = iso_8601(rt::wall() - since).into();
    }
    let average = |count: u64, sum_s: f64| (count > 0).then(|| (sum_s / count as f64 * 1e3).round() as u64);
    let (responses, sum) = counts.responses;
    for (name, time) in [
        ("header_time", average(counts.header.count(), counts.header.sum_s())),
        ("response_time", average(responses, sum.as_secs_f64())),
    ] {
        if let Some(time) = time {
            value[name] = time.into();
        }
    }
    value
}

/// Returns the numbers of the active checks of a server; zeros without checks.
fn health_checks(counts: CheckCounts) -> Value {
    let CheckCounts { checks, fails, unhealthy, last_passed } = counts;
    let mut value = json!({ "checks": checks, "fails": fails, "unhealthy": unhealthy });
    if let Some(last_passed) = last_passed {
        value["last_passed"] = last_passed.into();
    }
    value
}

/// Returns the settings of a group's servers.
pub(super) fn servers(group: &Group) -> Value {
    group.peers(rt::now()).iter().map(server).collect()
}

/// Returns the settings of a server.
pub(super) fn server(peer: &PeerState) -> Value {
    json!({
        "id": peer.id,
        "server": &*peer.name,
        "weight": peer.weight,
        "max_conns": peer.max_conns,
        "max_fails": peer.max_fails,
        "fail_timeout": format!("{}s", peer.fail_timeout),
        "slow_start": format!("{}s", peer.slow_start_ms / 1000),
        "backup": peer.backup,
        "down": peer.condition == peers::Condition::Down,
        "drain": peer.condition == peers::Condition::Draining,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_have_milliseconds() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_108_000_042);
        assert_eq!(iso_8601(time), "2025-11-25T22:00:00.042Z");
    }

    #[test]
    fn collections_contain_objects_by_name() {
        assert!(is_collection(&["http", "server_zones"]) && is_collection(&["slabs"]));
        assert!(!is_collection(&["http", "requests"]) && !is_collection(&["nginx"]));
        assert!(!is_collection(&["http", "server_zones", "a"]));
    }
}
