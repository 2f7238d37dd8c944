//! Shows finished requests to operators: one line of JSON each, for `ringroad log` and `ringroad top`.
//!
//! Lines go through the [`Hub`] of the process. With `admin_socket` each request checks one flag of the hub at its end;
//! without the directive there is no check. Requests that were dropped without a response are shown too.

mod filter;

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::conf::Conf;
use caching::record::Record;
use exchange::marks::Marks;
use exchange::request::Request;
use site::address::Address;
use telemetry::time_zone::since_1970;
use telemetry::watch::{Admits, Facts, Hub};
use upstream::state::{ShownTry, cache_status_text, shown_tries};

pub use filter::{Filter, FilterError};

/// Whether the configuration has `admin_socket`.
#[derive(Debug, Default)]
pub(crate) struct Watchable(pub(crate) bool);

/// Maximum number of bytes of a URI, and of each other text from a client, in a line.
const TEXT_MAX: usize = 1024;

/// Returns the decision function of a filter, for a watcher.
pub fn admits(filter: Filter) -> Admits {
    Box::new(move |facts| filter.admits(facts))
}

/// Shows a request that has ended, if an operator watches.
pub(super) fn show(_: &Conf, request: &Request) {
    let hub = &request.conn.thread.shared.watch;
    if hub.is_watched() && request.depth == 0 && !request.is_detached {
        show_to(hub, request);
    }
}

/// Sends a finished request to the watchers whose filter it matches.
#[cold]
fn show_to(hub: &Hub, request: &Request) {
    let location = request.location();
    let root = request.server().root;
    let facts = Facts {
        server: &request.server().name,
        // The location of the server's own settings has no name.
        location: if request.location == root { "" } else { &location.name },
        code: request.response.status,
        time: request.elapsed(),
        cache: cache_status_text(request),
        client: match request.client() {
            Address::Inet(address) => Some(address.ip()),
            Address::Unix(_) => None,
        },
        method: request.method_text(),
    };
    hub.show(&facts, rt::now(), |line| {
        // Writing to a `Vec` cannot fail.
        let _ = serde_json::to_writer(line, &line_of(request, &facts));
    });
}

/// Returns the fields of a line.
fn line_of(request: &Request, facts: &Facts<'_>) -> Value {
    let mut client = Vec::new();
    request.client().show_address(&mut client);
    let mut protocol = Vec::new();
    let is_read = request.head.is_started();
    if is_read {
        request.head.push_protocol(&mut protocol);
    }
    let uri = if is_read { request.head.request_uri(request.bytes()) } else { b"" };
    let (seconds, ms) = since_1970(rt::wall());
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    put("time", json!(seconds as f64 + f64::from(ms) / 1e3));
    put("client", text(&client));
    put("connection", json!(request.conn.number));
    put("server", json!(facts.server));
    put("location", json!(facts.location));
    put("method", text(facts.method));
    put("scheme", json!(request.conn.scheme()));
    put("host", text(&request.host));
    if let Some(port) = request.named_port().filter(|_| is_read) {
        put("port", json!(port));
    }
    put("uri", text(uri));
    put("protocol", text(&protocol));
    put("code", json!(facts.code));
    put("received", json!(request.received));
    put("sent", json!(request.sent));
    put("completed", json!(request.completed));
    put("phases", phases(request));
    if let Some(mover) = request.mover {
        put("engine", json!(mover.to_string()));
    }
    if !facts.cache.is_empty() {
        put("cache", json!(facts.cache));
        put("cache_reason", json!(reason(request)));
    }
    let tries: Vec<Value> = shown_tries(request).map(|one| shown(&one)).collect();
    if !tries.is_empty() {
        put("upstreams", tries.into());
    }
    Value::Object(fields)
}

/// Returns the time in µs from the first byte of the request to the end of each phase. A phase that never waited ends
/// at the same time as the one before.
fn phases(request: &Request) -> Value {
    let marks = request.extensions.get::<Marks>().copied().unwrap_or_default();
    let since = |at: Instant| micros(at.saturating_duration_since(request.started));
    let received = marks.received.map_or(0, since);
    let found = marks.found.map_or(received, since).max(received);
    let opened = marks.opened.map_or(found, since).max(found);
    let last = micros(request.elapsed());
    let mut phases = json!({ "received": received, "found": found, "opened": opened, "last_byte": last });
    if request.sent > 0 {
        phases["first_byte"] = since(request.header_ready).max(opened).into();
    }
    phases
}

/// Returns the reasons for the cache's behaviour: why the upstream was queried, and why the response was not stored.
fn reason(request: &Request) -> String {
    let Some(record) = request.extensions.get::<Record>() else { return String::new() };
    let mut words = Vec::new();
    if record.collapsed {
        words.push("collapsed".to_owned());
    }
    words.extend(record.forwarded.map(|why| why.name().to_owned()));
    match &record.unstored {
        Some(why) => words.push(format!("not stored: {why}")),
        None if record.stored => words.push("stored".to_owned()),
        None => {}
    }
    words.extend(record.ttl_s.map(|ttl| format!("ttl {ttl} s")));
    words.join(", ")
}

/// Returns the fields of a try at an upstream.
fn shown(one: &ShownTry<'_>) -> Value {
    let [connect, header, response] = one.times.map(|time| time.map(micros));
    json!({
        "server": one.name,
        "code": one.status,
        "reused": one.is_reused,
        "connect": connect,
        "header": header,
        "response": response,
    })
}

/// Returns the number of complete microseconds, saturating at 64 bits.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the beginning of bytes from a client, as text.
fn text(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_MAX)]).into_owned().into()
}
