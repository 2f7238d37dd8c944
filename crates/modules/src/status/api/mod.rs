//! `api`: the numbers of this process as JSON, under the paths of the `api` module in nginx's commercial version, so
//! that its tools can read them. Path versions 8 and 9 are identical here.
//!
//! [`tree`] has the content, [`change`] the requests that change servers of upstream groups, [`keyvals`] the pairs of `keyval`. Changes
//! need `write=on`, and are rejected if a browser sends them from another site.

mod change;
mod keyvals;
mod tree;

use std::net::IpAddr;
use std::rc::Rc;

use io::segments::Source;
use serde_json::{Value, json};

use super::conf::{Conf, Page};
use super::rebinding;
use exchange::phases::Step;
use exchange::rehearsal::Event;
use exchange::request::Request;
use exchange::response::ContentType;
use site::settings::core::FoundBy;

pub(super) use tree::{ZoneNumbers, tls};

/// Path versions that are served.
const VERSIONS: [&str; 2] = ["8", "9"];

/// The reason why a request fails: a status, a sentence, and a code for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    status: u16,
    text: &'static str,
    code: &'static str,
}

/// Returns an error of the API, with its code for programs and its text for people.
const fn fault(status: u16, code: &'static str, text: &'static str) -> Fault {
    Fault { status, text, code }
}

/// An unknown path, or a name that the configuration does not have.
const NOT_FOUND: Fault = fault(404, "PathNotFound", "path not found");
const UNKNOWN_VERSION: Fault = fault(404, "UnknownVersion", "unknown version");
/// The error without `write=on`, for any path.
const DISABLED: Fault = fault(405, "MethodDisabled", "method disabled: it needs \"write=on\"");
/// The error for methods that a path does not support.
const NOT_ALLOWED: Fault = fault(405, "MethodDisabled", "method not allowed for this path");
/// The error for requests from pages whose host name is not known to belong to this server.
const UNKNOWN_HOST: Fault =
    fault(403, "UnknownHost", "changes from pages of this host name are refused: see \"api_hosts\"");
/// The error for requests from pages of another site, which the operator's browser sends from inside the network.
const CROSS_SITE: Fault = fault(403, "CrossSite", "changes from pages of other sites are refused");
/// HTML forms cannot send this content type, so it is required.
const NO_JSON: Fault = fault(415, "JsonError", "the body of a change must have the type application/json");

/// Responds to a read request of the API; returns `None` for a change, and for pairs of `keyval`.
pub(super) fn run(_: &Conf, request: &mut Request) -> Option<Step> {
    if let Some(refusal) = rebinding::refuse(request) {
        return Some(refusal);
    }
    if keyvals::has(&path(request)) {
        return None;
    }
    let done = match request.method_text() {
        b"GET" | b"HEAD" => read(request, &segments(&path(request))).map(|value| (200, value)),
        b"POST" | b"PATCH" | b"DELETE" => return None,
        _ => Err(NOT_ALLOWED),
    };
    Some(respond(request, done))
}

/// Notes a change in a rehearsal, which does not carry it out; returns `None` for other requests.
pub(super) fn rehearse(request: &mut Request) -> Option<Step> {
    let page = request.scope().of::<Conf>().page;
    let method = request.method_text();
    let is_change = matches!(method, b"POST" | b"PATCH" | b"DELETE");
    if !matches!(page, Some(Page::Api { .. })) || !is_change {
        return None;
    }
    let is_delete = method == b"DELETE";
    if let Err(fault) = may_change(request, page.is_some_and(Page::may_write), is_delete) {
        return Some(respond(request, Err(fault)));
    }
    let text = "this method may change servers or pairs of the running server: not carried out".to_owned();
    request.note(|| Event::Said { label: "api", text });
    request.response.status = 200;
    Some(Step::Done)
}

/// Performs a change, and saves it if the group has a state file.
pub(super) async fn run_change(conf: &Conf, request: &mut Request) -> Step {
    let may_write = conf.page.is_some_and(Page::may_write);
    let is_delete = request.method_text() == b"DELETE";
    let path = path(request);
    if keyvals::has(&path) {
        return keyvals::run(request, &path, may_write).await;
    }
    let done = match may_change(request, may_write, is_delete) {
        Err(fault) => Err(fault),
        // The body is read first. Then this function is called again.
        Ok(()) if request.body.is_none() && !is_delete => return Step::ReadBody,
        Ok(()) => match change::body(request, change::BODY_MAX, change::TOO_LARGE).await {
            Ok(body) => change::run(request, &segments(&path), &body),
            Err(fault) => Err(fault),
        },
    };
    if done.is_ok()
        && let [_, "http", "upstreams", name, ..] = segments(&path).as_slice()
        && let Some(group) = tree::group(request, name).cloned()
    {
        let thread = Rc::clone(&request.conn.thread);
        gateways::save(&group, &thread).await;
    }
    respond(request, done)
}

/// Returns the part of the path below the location of the API.
fn path(request: &Request) -> String {
    let uri = String::from_utf8_lossy(&request.uri);
    match &request.scope().core.found_by {
        FoundBy::Exact(prefix) | FoundBy::Prefix(prefix) => {
            uri.strip_prefix(&**prefix).unwrap_or(&uri).to_owned()
        }
        FoundBy::Server | FoundBy::Pattern | FoundBy::Name => uri.into_owned(),
    }
}

/// Splits a path at its slashes.
fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|word| !word.is_empty()).collect()
}

/// Stores the result or the error in the response, as JSON.
fn respond(request: &mut Request, done: Result<(u16, Value), Fault>) -> Step {
    let (status, value) = done.unwrap_or_else(|fault| (fault.status, error(fault)));
    let response = &mut request.response;
    response.status = status;
    response.content_type = ContentType::Text("application/json".into());
    response.fields.push(b"Cache-Control", b"no-store");
    response.set_bytes(Source::Vec(value.to_string().into_bytes()));
    Step::Done
}

/// Returns the body of an error, in nginx's form.
fn error(Fault { status, text, code }: Fault) -> Value {
    json!({
        "error": { "status": status, "text": text, "code": code },
        "href": "https://nginx.org/en/docs/http/ngx_http_api_module.html",
    })
}

/// Returns the subtree at a path, with the requested fields.
fn read(request: &Request, path: &[&str]) -> Result<Value, Fault> {
    let Some((version, path)) = path.split_first() else { return Ok(json!([8, 9])) };
    if !VERSIONS.contains(version) {
        return Err(UNKNOWN_VERSION);
    }
    let value = tree::at(request, path).ok_or(NOT_FOUND)?;
    let fields = http::uri::arg(&request.args, b"fields");
    let fields: Option<Vec<String>> = fields.map(|text| {
        let text = String::from_utf8_lossy(text);
        text.split(',').map(str::to_owned).collect()
    });
    Ok(match fields {
        Some(fields) => with_fields(value, &fields, tree::is_collection(path)),
        None => value,
    })
}

/// Returns the fields of an object that have these names; of a collection, those of each of its objects.
fn with_fields(value: Value, fields: &[String], is_collection: bool) -> Value {
    let Value::Object(map) = value else { return value };
    let kept = map.into_iter().filter_map(|(name, value)| match is_collection {
        true => Some((name, with_fields(value, fields, false))),
        false => fields.contains(&name).then_some((name, value)),
    });
    Value::Object(kept.collect())
}

/// Checks that a request may change something: the directive allows it, the body is JSON, and no page of another site
/// sent it.
fn may_change(request: &Request, may_write: bool, is_delete: bool) -> Result<(), Fault> {
    if !may_write {
        return Err(DISABLED);
    }
    let field = |name: &'static [u8]| request.head.named(request.bytes(), name).next();
    let is_foreign_site =
        field(b"sec-fetch-site").is_some_and(|site| !matches!(site, b"same-origin" | b"none"));
    let host = field(b"host").unwrap_or_default();
    let is_foreign_origin = field(b"origin").is_some_and(|origin| {
        let at = memchr::memmem::find(origin, b"://").map_or(0, |at| at + 3);
        !origin[at..].eq_ignore_ascii_case(host)
    });
    if is_foreign_site || is_foreign_origin {
        return Err(CROSS_SITE);
    }
    // Only browsers send these fields. A browser that was led to this server's address by another site's name sends that name.
    let is_browser = field(b"origin").is_some() || field(b"sec-fetch-site").is_some();
    if is_browser && !is_known_host(host, request.scope().of::<Conf>().hosts.items()) {
        return Err(UNKNOWN_HOST);
    }
    let kind = field(b"content-type").unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if is_delete || kind.eq_ignore_ascii_case(b"application/json") { Ok(()) } else { Err(NO_JSON) }
}

/// Whether a host, with or without port, is an address, `localhost`, or one of these names.
fn is_known_host(host: &[u8], names: &[Box<str>]) -> bool {
    let Ok(host) = str::from_utf8(host) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    is_address
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_other_sites_are_unknown() {
        let names = [Box::from("status.example")];
        for host in ["127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080", "LocalHost:1", "Status.Example:443"]
        {
            assert!(is_known_host(host.as_bytes(), &names), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "",
            "localhost.evil.example",
            "[::1].x",
        ] {
            assert!(!is_known_host(host.as_bytes(), &names), "{host}");
        }
    }

    #[test]
    fn fields_are_selected_from_an_object_or_each_member() {
        let value = json!({ "a": { "x": 1, "y": 2 }, "b": { "y": 3 } });
        let fields = ["y".to_owned()];
        assert_eq!(with_fields(value.clone(), &fields, true), json!({ "a": { "y": 2 }, "b": { "y": 3 } }));
        assert_eq!(with_fields(value["a"].clone(), &fields, false), json!({ "y": 2 }));
        assert_eq!(with_fields(json!([1]), &fields, true), json!([1]));
    }
}
