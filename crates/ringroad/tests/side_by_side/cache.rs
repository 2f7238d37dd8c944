//! The same requests to Debian's nginx and to this server, each with a separate cache in front of a separate origin:
//! status, cache status, validators and bodies must be equal. Each body contains the number of the origin's request for
//! its target, which shows whether the response was stored or fetched.
//!
//! Where responses differ intentionally, the target is excluded here, or the request names the row of `docs/caching.md`
//! that documents it; the row is verified. The origin responds with the fields that a request names in `X-Say`,
//! separated by `|`.

use crate::common;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::common::BINARY;
use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::{Client, Response, Server, Setup, date};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@ keys_zone=z:1m levels=1:2 use_temp_path=off;
  proxy_cache z;
  proxy_cache_key $uri$is_args$args;
  add_header X-Cache $upstream_cache_status always;
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /valid/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 1h; proxy_cache_valid 404 1h; }
    location /any/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 200 0; proxy_cache_valid any 1h; }
    location /cookies/ { proxy_pass http://@ORIGIN@; proxy_ignore_headers Set-Cookie; }
    location /deaf/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 1h;
      proxy_ignore_headers Cache-Control Expires X-Accel-Expires Vary; }
    location /hidden/ { proxy_pass http://@ORIGIN@; proxy_hide_header Cache-Control; proxy_hide_header ETag; }
    location /uses/ { proxy_pass http://@ORIGIN@; proxy_cache_min_uses 2; }
    location /pass/ { proxy_pass http://@ORIGIN@; proxy_cache_bypass $http_x_bypass; proxy_no_cache $http_x_no_cache; }
    location /error/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale error;
      location ~ /never$ { proxy_read_timeout 300ms; proxy_pass http://@ORIGIN@; } }
    location /timeout/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale timeout;
      location ~ /never$ { proxy_read_timeout 300ms; proxy_pass http://@ORIGIN@; } }
    location /invalid/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale invalid_header; }
    location /statuses/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale http_500 http_502 http_503 http_504 http_403 http_404; }
    location /all/ { proxy_pass http://@ORIGIN@; proxy_cache_revalidate on; proxy_cache_valid any 1h;
      proxy_cache_use_stale error timeout invalid_header http_500 http_503 updating;
      location ~ /never$ { proxy_read_timeout 300ms; proxy_pass http://@ORIGIN@; } }
    # What is to be stale is filled without haste.
    location ~ ^/fill(?<target>/.*)$ { proxy_cache_key $target; proxy_pass http://@ORIGIN@$target; }
    location /again/ { proxy_pass http://@ORIGIN@; proxy_cache_revalidate on; }
    location /page/ { proxy_pass http://@ORIGIN@; proxy_cache_valid any 1h; proxy_intercept_errors on; error_page 404 410 /page.html; }
    location = /page.html { return 404 'a page'; }
    location /streamed/ { proxy_pass http://@ORIGIN@; proxy_buffering off; }
    location /buffered/ { proxy_pass http://@ORIGIN@; proxy_ignore_headers X-Accel-Buffering; }
    location /zip/ { proxy_pass http://@ORIGIN@; gzip on; gzip_types *; gzip_min_length 1; gzip_http_version 1.0; gzip_proxied any; }
  }
}
";

/// Compared fields; others are specific to each server.
const COMPARED: [&str; 11] = [
    "X-Cache",
    "ETag",
    "Last-Modified",
    "Cache-Control",
    "Expires",
    "Vary",
    "Set-Cookie",
    "Content-Type",
    "Content-Range",
    "Content-Encoding",
    "X-Own",
];

/// A request, and the response that its origin must send.
struct Case {
    method: &'static str,
    target: String,
    fields: Vec<(&'static str, String)>,
    differs: Option<&'static str>,
}

fn get(target: impl Into<String>) -> Case {
    Case { method: "GET", target: target.into(), fields: Vec::new(), differs: None }
}

impl Case {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Case {
        self.fields.push((name, value.into()));
        self
    }

    fn reply_with(self, fields: &str) -> Case {
        self.with("X-Say", fields)
    }

    fn by(self, method: &'static str) -> Case {
        Case { method, ..self }
    }

    fn differs(self, row: &'static str) -> Case {
        Case { differs: Some(row), ..self }
    }
}

/// A server with its cache and its origin.
struct Side {
    _origin: Origin,
    _setup: Setup,
    server: Server,
}

/// Returns the origin, the same for both servers.
fn origin() -> Origin {
    let counts: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    Origin::start(move |request: &OriginRequest| {
        let count = {
            let mut counts = counts.lock().expect("no panic");
            let count = counts.entry(request.target.clone()).or_default();
            *count += 1;
            *count
        };
        if let Some(etag) = request.header("if-none-match")
            && request.header("x-same").is_some()
        {
            return Reply::new(304).header("ETag", etag).header("Cache-Control", "max-age=60");
        }
        let status = match request.header("x-fault").as_deref() {
            Some("close") => return Reply::close(),
            Some("never") => return Reply::never(),
            Some("garbage") => return Reply::raw("HTTP/1.1 200 OK\r\nX\0: y\r\n\r\n").closing(),
            Some(status) => status.parse().expect("it is a status"),
            None => 200,
        };
        let reply = Reply::new(status).header("Content-Type", "text/plain");
        let fields = request.header("x-say").unwrap_or_default();
        let fields = fields.split('|').filter_map(|field| field.split_once(": "));
        let reply = fields.fold(reply, |reply, (name, value)| reply.header(name, value));
        let body = format!("{} {count} {}", request.target, "x".repeat(100));
        let reply = reply.body(body);
        if request.header("x-chunked").is_some() { reply.chunked(&[7]) } else { reply }
    })
}

/// Starts both servers; returns `None` if nginx is not installed.
fn sides() -> Option<(Side, Side)> {
    let theirs = {
        let origin = origin();
        let setup = Setup::new(CONF).origin(&origin);
        let server = setup.start_nginx()?;
        Side { _origin: origin, _setup: setup, server }
    };
    let origin = origin();
    let setup = Setup::new(CONF).origin(&origin);
    let server = setup.start(BINARY);
    Some((theirs, Side { _origin: origin, _setup: setup, server }))
}

fn response_text(side: &Side, case: &Case) -> String {
    let fields: Vec<(&str, &str)> = case.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let response = Client::connect(side.server.addr(0)).request(case.method, &case.target, &fields);
    shown(&response)
}

fn shown(response: &Response) -> String {
    let mut text = format!("{}\n", response.status);
    // nginx retains the response's fields in the error page that replaces it, and adds its own in addition.
    let compared = if response.status == 416 { &[][..] } else { &COMPARED[..] };
    for name in compared {
        for value in response.head.all(name) {
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    // Pages generated by a server contain its name; compressed bodies depend on its library.
    let is_page = response.text().contains("<center>") || response.field("Content-Encoding").is_some();
    if is_page { text } else { text + &response.text() }
}

/// Sends the cases sequentially to both, and compares.
fn compare((theirs, ours): &(Side, Side), cases: &[Case]) {
    const PAGE: &str = include_str!("../../../../docs/caching.md");
    let mut wrong = Vec::new();
    for case in cases {
        let (nginx, ringroad) = (response_text(theirs, case), response_text(ours, case));
        let asked = format!("{} {} {:?}", case.method, case.target, case.fields);
        match case.differs {
            None if nginx != ringroad => {
                wrong.push(format!("{asked}\n--- nginx\n{nginx}\n--- ringroad\n{ringroad}\n"));
            }
            Some(row) if nginx == ringroad || !PAGE.contains(&format!("| {row} |")) => {
                wrong.push(format!("{row} does not say how {asked} differs\n{nginx}"));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{} of {} requests:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn at(seconds_from_now: i64) -> String {
    date::format(date::now().wrapping_add_signed(seconds_from_now))
}

/// Response fields, and the row of those that differ from the second request on.
fn reply_fields() -> Vec<(String, Option<&'static str>)> {
    let (past, future) = (at(-3600), at(3600));
    let same = [
        String::new(),
        "Cache-Control: max-age=60".into(),
        "Cache-Control: public, max-age=60".into(),
        "Cache-Control: max-age=0".into(),
        "Cache-Control: max-age=60, s-maxage=0".into(),
        "Cache-Control: max-age=0, s-maxage=60".into(),
        "Cache-Control: s-maxage=60".into(),
        "Cache-Control: no-store".into(),
        "Cache-Control: no-cache".into(),
        "Cache-Control: private".into(),
        "Cache-Control: no-store, max-age=60".into(),
        "Cache-Control: max-age=60, private".into(),
        "Cache-Control: max-age=60|Cache-Control: no-cache".into(),
        "Cache-Control: max-age=60|Set-Cookie: a=b".into(),
        "Cache-Control: max-age=60|Set-Cookie: a=b|Set-Cookie: c=d".into(),
        "Cache-Control: max-age=60|Vary: *".into(),
        "Cache-Control: max-age=60|Vary: Accept-Language".into(),
        "Cache-Control: max-age=60|Vary: Accept-Encoding, User-Agent".into(),
        format!("Expires: {future}"),
        format!("Expires: {past}"),
        "Expires: 0".into(),
        "Expires: -1".into(),
        format!("Cache-Control: max-age=0|Expires: {future}"),
        format!("Expires: {future}|Cache-Control: no-store"),
        "X-Accel-Expires: 60".into(),
        "X-Accel-Expires: 0".into(),
        "X-Accel-Expires: off".into(),
        "X-Accel-Expires: 60|Cache-Control: no-store".into(),
        "X-Accel-Expires: 60|Cache-Control: private, max-age=0".into(),
        "X-Accel-Expires: 0|Cache-Control: max-age=60".into(),
        "X-Accel-Expires: 60|Set-Cookie: a=b".into(),
        "ETag: \"a\"|Cache-Control: max-age=60".into(),
        "ETag: W/\"a\"|Cache-Control: max-age=60|X-Own: here".into(),
        "Last-Modified: Mon, 02 Jan 2023 00:00:00 GMT|Cache-Control: max-age=60".into(),
        "Pragma: no-cache|Cache-Control: max-age=60".into(),
    ];
    let mut all: Vec<_> = same.into_iter().map(|say| (say, None)).collect();
    all.push(("Cache-Control: max-age=60|Age: 60".into(), Some("C1")));
    all.push((format!("Expires: {past}|Cache-Control: max-age=60"), Some("C23")));
    all.push(("Cache-Control: no-store|X-Accel-Expires: 60".into(), Some("C23")));
    all.push(("X-Accel-Expires: @1".into(), Some("C24")));
    all.push(("CDN-Cache-Control: max-age=60|Cache-Control: no-store".into(), Some("C4")));
    all
}

#[test]
fn stored_responses_match_nginx() {
    let Some(sides) = sides() else { return };
    let mut cases = Vec::new();
    for (number, (say, row)) in reply_fields().into_iter().enumerate() {
        for location in ["/", "/valid/", "/any/", "/cookies/", "/hidden/"] {
            let target = format!("{location}{number}");
            cases.push(get(&target).reply_with(&say));
            let again = get(&target).reply_with(&say);
            cases.push(match row {
                Some(row) => again.differs(row),
                None => again,
            });
        }
        // Where these fields are ignored, the servers do not differ.
        let target = format!("/deaf/{number}");
        cases.extend([get(&target).reply_with(&say), get(&target).reply_with(&say)]);
    }
    compare(&sides, &cases);
}

#[test]
fn cached_statuses_methods_and_conditions_match_nginx() {
    let Some(sides) = sides() else { return };
    let mut cases = Vec::new();
    for status in ["200", "201", "203", "301", "302", "307", "400", "403", "404", "410", "500", "503"] {
        for location in ["/", "/valid/", "/any/", "/page/"] {
            for say in ["", "Cache-Control: max-age=60"] {
                let target = format!("{location}{status}?{}", say.len());
                let case = || get(&target).with("X-Fault", status).reply_with(say);
                cases.extend([case(), case(), case().by("HEAD")]);
            }
        }
    }
    let say = "Accept-Ranges: bytes|Cache-Control: max-age=60|ETag: \"a\"|Last-Modified: Mon, 02 Jan 2023 00:00:00 GMT";
    for method in ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"] {
        cases.push(get("/methods").reply_with(say).by(method).with("Content-Length", "0"));
    }
    cases.push(get("/methods").reply_with(say).differs("C12"));
    for (number, method) in ["HEAD", "GET", "OPTIONS"].into_iter().enumerate() {
        let target = format!("/method{number}");
        cases.extend(["GET", method, "GET"].map(|method| get(&target).reply_with(say).by(method)));
    }
    for (name, value) in [
        ("If-None-Match", "\"a\""),
        ("If-None-Match", "\"b\", W/\"a\""),
        ("If-None-Match", "\"b\""),
        ("If-None-Match", "*"),
        ("If-Modified-Since", "Mon, 02 Jan 2023 00:00:00 GMT"),
        ("If-Modified-Since", "Sun, 01 Jan 2023 00:00:00 GMT"),
        ("If-Match", "\"a\""),
        ("If-Match", "\"b\""),
        ("If-Unmodified-Since", "Mon, 02 Jan 2023 00:00:00 GMT"),
        ("If-Unmodified-Since", "Sun, 01 Jan 2023 00:00:00 GMT"),
        ("Range", "bytes=0-9"),
        ("Range", "bytes=-5"),
        ("Range", "bytes=5-"),
        ("Range", "bytes=9999-"),
        ("Range", "bytes=x"),
        ("Cache-Control", "no-cache"),
        ("Pragma", "no-cache"),
        ("Accept-Encoding", "gzip"),
    ] {
        for location in ["/conditions", "/zip/conditions"] {
            let with = || get(location).reply_with(say).with(name, value);
            let is_for_origin = matches!((name, value), ("If-Match", "\"b\""))
                || name == "If-Unmodified-Since" && value.starts_with("Sun");
            cases.push(if is_for_origin { with().differs("C36") } else { with() });
            cases.push(match name {
                "Range" => with().by("HEAD").differs("C34"),
                _ if is_for_origin => with().by("HEAD").differs("C36"),
                _ => with().by("HEAD"),
            });
        }
    }
    let loose = "Cache-Control: max-age=60|ETag: abc";
    for tags in ["x", "abc", "\"x\", abc", "x,abc , y", "W/abc", "abcd", "\"abc\"", "abc x"] {
        cases.push(get("/loose").reply_with(loose).with("If-None-Match", tags));
    }
    for if_range in ["\"a\"", "\"b\"", "Mon, 02 Jan 2023 00:00:00 GMT", "Sun, 01 Jan 2023 00:00:00 GMT"] {
        cases.push(get("/conditions").reply_with(say).with("Range", "bytes=3-7").with("If-Range", if_range));
    }
    compare(&sides, &cases);
}

#[test]
fn variants_min_uses_bypass_and_chunks_match_nginx() {
    let Some(sides) = sides() else { return };
    let mut cases = Vec::new();
    let say = "Cache-Control: max-age=60|Vary: Accept-Language";
    for language in ["de", "fr", "de", "it", "fr", "de", "it"] {
        cases.push(get("/language").reply_with(say).with("Accept-Language", language));
    }
    cases.extend([get("/language").reply_with(say), get("/language").reply_with(say)]);
    cases.push(get("/language").reply_with(say).with("Accept-Language", "").differs("C25"));
    let kept = "Cache-Control: max-age=60";
    cases.extend((0..4).map(|_| get("/uses/a").reply_with(kept)));
    for (name, value) in
        [("X-No-Cache", "1"), ("X-No-Cache", "0"), ("X-No-Cache", "1"), ("X-Bypass", "0"), ("X-Bypass", "1")]
    {
        cases.push(get("/pass/a").reply_with(kept).with(name, value));
    }
    for target in ["/chunked", "/valid/chunked"] {
        cases.extend((0..2).map(|_| get(target).reply_with(kept).with("X-Chunked", "1")));
    }
    // A request with credentials: nginx reuses its stored response.
    let log_in = || get("/own").reply_with(kept).with("Authorization", "Basic YTpi");
    cases.extend([log_in(), log_in().differs("C7")]);
    compare(&sides, &cases);
}

#[test]
fn unbuffered_responses_are_stored_as_rarely_as_by_nginx() {
    let Some(sides) = sides() else { return };
    let mut cases = Vec::new();
    for location in ["/", "/streamed/", "/buffered/"] {
        for buffering in ["", "|X-Accel-Buffering: no", "|X-Accel-Buffering: Yes", "|X-Accel-Buffering: x"] {
            let target = format!("{location}{}", buffering.len());
            let say = format!("Cache-Control: max-age=60{buffering}");
            cases.extend((0..2).map(|_| get(&target).reply_with(&say)));
        }
    }
    compare(&sides, &cases);
}

/// `proxy_cache_valid` also applies if no upstream sends a response: the origin gets one request for each key.
#[test]
fn retained_failures_match_nginx() {
    let Some(sides) = sides() else { return };
    let mut cases = Vec::new();
    // `/valid/` has lifetimes for other statuses only.
    for target in ["/any/close", "/any/garbage", "/all/never", "/page/close", "/valid/close"] {
        let fault = target.rsplit('/').next().expect("it is a path");
        let failing = || get(target).with("X-Fault", fault);
        cases.extend([failing(), failing(), failing().by("HEAD")]);
        cases.push(get(target).reply_with("Cache-Control: max-age=60"));
    }
    compare(&sides, &cases);
}

#[test]
fn stale_responses_match_nginx() {
    let Some(sides) = sides() else { return };
    let locations = ["error", "timeout", "invalid", "statuses", "all", "again", "valid"];
    let faults =
        ["close", "never", "garbage", "500", "502", "503", "504", "403", "404", "410", "200", "same"];
    let fill = "X-Accel-Expires: 1|ETag: \"a\"|Last-Modified: Mon, 02 Jan 2023 00:00:00 GMT";
    // A response that replaces a stored one must still be fresh at the next request, on a slow machine too.
    let same = "X-Accel-Expires: 60|ETag: \"a\"|Last-Modified: Mon, 02 Jan 2023 00:00:00 GMT";
    let mut fills = Vec::new();
    let mut cases = Vec::new();
    for location in locations {
        // Each origin that never responds costs a timeout.
        let has_time = matches!(location, "error" | "timeout" | "all");
        for fault in faults.into_iter().filter(|fault| has_time || *fault != "never") {
            let target = format!("/{location}/{fault}");
            fills.push(get(format!("/fill{target}")).reply_with(fill));
            let case = || match (fault, location) {
                ("same", "all" | "again") => get(&target).reply_with(same).with("X-Same", "1").differs("C11"),
                ("same", _) => get(&target).reply_with(same).with("X-Same", "1"),
                _ => get(&target).reply_with("Cache-Control: max-age=60").with("X-Fault", fault),
            };
            cases.push(case());
            // With `updating` the old response is correct until the new one is stored.
            if location != "all" && fault != "never" {
                cases.push(case());
            }
        }
    }
    compare(&sides, &fills);
    common::until_stale(1);
    compare(&sides, &cases);
}
