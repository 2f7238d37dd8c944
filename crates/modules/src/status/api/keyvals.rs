//! `http/keyvals` and `stream/keyvals`: the pairs of the zones of `keyval_zone`, and their changes.
//!
//! Bodies and responses may be large, so a helper thread parses and writes them. A change gets its response when it is in the state
//! file of the zone.

use std::sync::Arc;

use guards::keyval::{self, Change, Fault as TextFault, KeyvalZone, Refusal, now_ms};
use io::segments::Source;
use serde_json::{Value, json};

use super::change::{BODY_MAX, body};
use super::{Fault, NOT_ALLOWED, NOT_FOUND, UNKNOWN_VERSION, VERSIONS, fault, may_change, respond, segments};
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::ContentType;
use site::config::Section;

/// Maximum length of a body in bytes. It can fill a zone of several MiB, and takes about a tenth of a second to parse.
const KEYVAL_BODY_MAX: u64 = 16 << 20;

/// No zone of the block has this name.
const NO_ZONE: Fault = fault(404, "KeyvalNotFound", "keyval not found");
const NO_KEY: Fault = fault(404, "KeyvalKeyNotFound", "keyval key not found");
const KEY_EXISTS: Fault = fault(409, "KeyvalKeyExists", "key already exists");
const INVALID_JSON: Fault = fault(400, "KeyvalFormatError", "invalid JSON");
const INVALID_KEY: Fault = fault(400, "KeyvalFormatError", "invalid key format");
const INVALID_VALUE: Fault = fault(400, "KeyvalFormatError", "invalid value format");
const NO_PAIR: Fault = fault(400, "KeyvalFormatError", "key required");
const NO_TIMEOUT: Fault = fault(400, "KeyvalFormatError", "keyval timeout is not enabled");
const ONE_ADDED: Fault = fault(400, "KeyvalFormatError", "only one key can be added");
const ONE_CHANGED: Fault = fault(400, "KeyvalFormatError", "only one key can be updated");
/// The zone is full: no other pair is removed for a new one.
const NO_MEMORY: Fault = fault(507, "KeyvalOutOfMemory", "the zone has no memory for the pair");
const TOO_LARGE: Fault = fault(413, "KeyvalFormatError", "the body is too large");
const NOT_SAVED: Fault = fault(
    500,
    "KeyvalStateError",
    "the zone was changed, but its state file was not written: see the error log",
);
/// The next process has read the state file already and would lose the change.
const LEAVING: Fault = fault(503, "ShuttingDown", "this process is being replaced: repeat the change");
const FAILED: Fault = fault(500, "InternalError", "the request failed");

/// Returns the block and the rest of a path if it leads to zones of keyvals.
fn below<'p, 's>(path: &'p [&'s str]) -> Option<(Section, &'p [&'s str])> {
    match path {
        [_, "http", "keyvals", rest @ ..] => Some((Section::Http, rest)),
        [_, "stream", "keyvals", rest @ ..] => Some((Section::Stream, rest)),
        _ => None,
    }
}

/// Whether a path leads to zones of keyvals.
pub(super) fn has(path: &str) -> bool {
    below(&segments(path)).is_some()
}

/// The result of a request: a status, and an object, unless the status is 204.
type Done = Result<(u16, Vec<u8>), Fault>;

/// Responds to a request below `keyvals`.
pub(super) async fn run(request: &mut Request, path: &str, may_write: bool) -> Step {
    let segments = segments(path);
    let Some((section, rest)) = below(&segments) else { return respond(request, Err(NOT_FOUND)) };
    let version = segments.first().is_some_and(|version| VERSIONS.contains(version));
    let done = match request.method_text() {
        _ if !version => Err(UNKNOWN_VERSION),
        b"GET" | b"HEAD" => read(request, section, rest).await,
        b"POST" | b"PATCH" | b"DELETE" => {
            let is_delete = request.method_text() == b"DELETE";
            match may_change(request, may_write, is_delete) {
                Err(fault) => Err(fault),
                // The body is read first. Then this function is called again.
                Ok(()) if request.body.is_none() && !is_delete => return Step::ReadBody,
                Ok(()) => change(request, section, rest).await,
            }
        }
        _ => Err(NOT_ALLOWED),
    };
    match done {
        Err(fault) => respond(request, Err(fault)),
        Ok((status, text)) => {
            let response = &mut request.response;
            response.status = status;
            response.fields.push(b"Cache-Control", b"no-store");
            if status != 204 {
                response.content_type = ContentType::Text("application/json".into());
                response.set_bytes(Source::Vec(text));
            }
            Step::Done
        }
    }
}

/// Returns the zone of this name.
fn zone(request: &Request, section: Section, name: &str) -> Result<Arc<KeyvalZone>, Fault> {
    keyval::zones(request.config(), section).find(|zone| zone.name() == name).ok_or(NO_ZONE)
}

/// Returns the pairs of all zones, of one zone, or one pair.
async fn read(request: &Request, section: Section, rest: &[&str]) -> Done {
    let now = now_ms(rt::wall());
    let name = match rest {
        [] => {
            let zones: Vec<_> = keyval::zones(request.config(), section).collect();
            // Empty `fields` select the names alone.
            if http::uri::arg(&request.args, b"fields") == Some(b"") {
                let names: Vec<Value> = zones.iter().map(|zone| json!(zone.name())).collect();
                return Ok((200, Value::Array(names).to_string().into_bytes()));
            }
            let text = rt::offload(move || all(&zones, now)).await;
            return text.map(|text| (200, text)).ok_or(FAILED);
        }
        [name] => name,
        _ => return Err(NOT_FOUND),
    };
    let zone = zone(request, section, name)?;
    if let Some(key) = http::uri::arg(&request.args, b"key") {
        let mut decoded = Vec::with_capacity(key.len());
        http::uri::unescape(key, &mut decoded);
        let key = String::from_utf8(decoded).map_err(|_| NO_KEY)?;
        let value = zone.state().pairs.get(&key, now).ok_or(NO_KEY)?;
        return Ok((200, json!({ key: value }).to_string().into_bytes()));
    }
    let text = rt::offload(move || keyval::object_of(&zone.state().pairs.copy(now).1)).await;
    text.map(|text| (200, text)).ok_or(FAILED)
}

/// Returns an object with the pairs of each zone.
fn all(zones: &[Arc<KeyvalZone>], now: u64) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (index, zone) in zones.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(json!(zone.name()).to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(&keyval::object_of(&zone.state().pairs.copy(now).1));
    }
    out.push(b'}');
    out
}

/// Changes the pairs of a zone and saves them.
async fn change(request: &Request, section: Section, rest: &[&str]) -> Done {
    let [name] = rest else { return Err(if rest.is_empty() { NOT_ALLOWED } else { NOT_FOUND }) };
    let zone = zone(request, section, name)?;
    if request.conn.thread.is_leaving() {
        return Err(LEAVING);
    }
    let (text, now) = (body(request, KEYVAL_BODY_MAX, TOO_LARGE).await?, now_ms(rt::wall()));
    let status = match request.method_text() {
        b"DELETE" => {
            let zone = Arc::clone(&zone);
            rt::offload(move || zone.state().pairs.clear()).await.ok_or(FAILED)?;
            204
        }
        method => {
            let adds = method == b"POST";
            let changed = Arc::clone(&zone);
            let work = move || apply(&changed, adds, &text, now);
            // A small change takes less time than its way to another thread.
            let is_small = request.body.as_ref().is_none_or(|body| body.byte_count() <= BODY_MAX);
            let done = if is_small { Some(work()) } else { rt::offload(work).await };
            done.ok_or(FAILED)??;
            if adds { 201 } else { 204 }
        }
    };
    match keyval::save(&zone, &request.conn.thread).await {
        true => Ok((status, b"{}".to_vec())),
        false => Err(NOT_SAVED),
    }
}

/// Parses a body and makes its changes.
fn apply(zone: &KeyvalZone, adds: bool, text: &[u8], now: u64) -> Result<(), Fault> {
    let changes: Vec<(String, Change)> = keyval::changes(text).map_err(|fault| match fault {
        TextFault::Json(_) => INVALID_JSON,
        TextFault::Key => INVALID_KEY,
        TextFault::Value(_) => INVALID_VALUE,
    })?;
    let pairs = &zone.state().pairs;
    let done = if adds { pairs.add(changes, now) } else { pairs.change(changes, now) };
    done.map_err(|refusal| match refusal {
        Refusal::Full => NO_MEMORY,
        Refusal::Exists => KEY_EXISTS,
        Refusal::Missing => NO_KEY,
        Refusal::NoNetwork => INVALID_KEY,
        Refusal::Empty => NO_PAIR,
        Refusal::Several if adds => ONE_ADDED,
        Refusal::Several => ONE_CHANGED,
        Refusal::NoTimeout => NO_TIMEOUT,
        Refusal::NoValue => INVALID_VALUE,
    })
}
