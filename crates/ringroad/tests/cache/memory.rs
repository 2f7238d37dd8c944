//! Hits in memory (`memory=`) share a converted header section and take a short path. Every kind of request gets the same responses
//! from a cache with memory as from a cache without.
//!
//! Two servers with the same locations have one cache each and the same origin. Their responses are compared. The origin has one
//! version of all objects at a time, which the test changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::BINARY;
use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Response, Server, Setup, wait};

const LOCATIONS: &str = r#"
    location / { proxy_pass http://@ORIGIN@; }
    location /hide/ { proxy_hide_header X-Own; proxy_pass_header Server; proxy_pass http://@ORIGIN@; }
    location /add/ { proxy_pass http://@ORIGIN@; add_header X-Arg $arg_a; add_header X-Sent $sent_http_x_own;
      add_header Last-Modified ""; add_header X-Cache $upstream_cache_status always; }
    location /tag/ { proxy_pass http://@ORIGIN@; add_header ETag '"mine"'; add_header X-Cache $upstream_cache_status always; }
    location /expires/ { proxy_pass http://@ORIGIN@; expires 1h; }
    location /charset/ { proxy_pass http://@ORIGIN@; charset utf-8; charset_types *; }
    location /zip/ { proxy_pass http://@ORIGIN@; gzip on; gzip_types *; gzip_min_length 1; gzip_vary on; }
    location /sub/ { proxy_pass http://@ORIGIN@; sub_filter version edition; sub_filter_types *; }
    location /more/ { proxy_pass http://@ORIGIN@; more_set_headers "X-Own: $arg_a"; more_clear_headers Link; }
    location /moved/ { proxy_pass http://@ORIGIN@; proxy_redirect http://origin.example/ http://$http_x_name/; }
    location /cookie/ { proxy_pass http://@ORIGIN@; proxy_ignore_headers Set-Cookie; proxy_cookie_path / /$http_x_name; }
    location /ranges/ { proxy_pass http://@ORIGIN@; proxy_force_ranges on; }
    location /page/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 404 1h; proxy_intercept_errors on; error_page 404 /page.html; }
    location = /page.html { return 404 'a page of ours'; }
    location /bypass/ { proxy_pass http://@ORIGIN@; proxy_cache_bypass $http_x_bypass; }
    location /control/ { proxy_pass http://@ORIGIN@; proxy_cache_request_control on; }
    location /status/ { proxy_pass http://@ORIGIN@; proxy_cache_status_header here; }
    location = /metrics { metrics; proxy_cache off; }
    location /rewritten/ { rewrite ^/rewritten(/.*)$ $1 last; }
    # The entries of other locations, with other settings.
    location ~ ^/other(?<target>/.*)$ { proxy_cache_key $target; proxy_hide_header ETag; add_header X-Other $arg_a;
      add_header X-Cache $upstream_cache_status always; proxy_pass http://@ORIGIN@$target; }
    location ~ ^/purge(?<target>/.*)$ { proxy_cache_key $target; proxy_cache_purge 1; proxy_pass http://@ORIGIN@$target; }
    location ~ ^/outdate(?<target>/.*)$ { proxy_cache_key $target; proxy_cache_purge 1; proxy_cache_purge_soft 1;
      proxy_pass http://@ORIGIN@$target; }
"#;

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  log_format sent '$status $body_bytes_sent $upstream_cache_status \"$sent_http_x_own\" \"$sent_http_etag\" \"$upstream_http_x_own\"';
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@-memory keys_zone=memory:1m memory=8m use_temp_path=off;
  proxy_cache_path @CACHE@-disk keys_zone=disk:1m use_temp_path=off;
  proxy_cache_key $uri;
  proxy_cache_revalidate on;
  add_header X-Cache $upstream_cache_status always;
  server { listen 127.0.0.1:0; server_name memory; proxy_cache memory; access_log logs/memory.log sent; @LOCATIONS@ }
  server { listen 127.0.0.1:0; server_name disk; proxy_cache disk; access_log logs/disk.log sent; @LOCATIONS@ }
}
";

/// Targets with their special fields, beside those of all responses.
const TARGETS: [&str; 19] = [
    "/plain",
    "/vary",
    "/odd",
    "/accel",
    "/401",
    "/hide/a",
    "/add/a",
    "/tag/a",
    "/expires/a",
    "/charset/a",
    "/zip/a",
    "/sub/a",
    "/more/a",
    "/moved/a",
    "/cookie/a",
    "/ranges/a",
    "/page/404",
    "/control/a",
    "/status/a",
];

/// Method, query and fields of a request.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Requests that must get their own response.
const REQUESTS: [Case; 27] = [
    ("GET", "", &[]),
    ("GET", "", &[("X-Name", "one.example")]),
    ("GET", "", &[("X-Name", "two.example")]),
    ("GET", "?a=1", &[]),
    ("GET", "?a=2", &[]),
    ("HEAD", "", &[]),
    ("HEAD", "", &[("Range", "bytes=0-3")]),
    ("GET", "", &[("Range", "bytes=0-3")]),
    ("GET", "", &[("Range", "bytes=-4")]),
    ("GET", "", &[("Range", "bytes=0-1,4-5")]),
    ("GET", "", &[("Range", "bytes=9999-")]),
    ("GET", "", &[("Range", "bytes=0-3"), ("If-Range", "\"v1\"")]),
    ("GET", "", &[("Range", "bytes=0-3"), ("If-Range", "\"v0\"")]),
    ("GET", "", &[("If-None-Match", "\"v1\"")]),
    ("GET", "", &[("If-None-Match", "\"v0\"")]),
    ("HEAD", "", &[("If-None-Match", "*")]),
    ("GET", "", &[("If-Modified-Since", "Sun, 22 Nov 2026 10:00:00 GMT")]),
    ("GET", "", &[("If-Modified-Since", "Sat, 21 Nov 2026 10:00:00 GMT")]),
    ("GET", "", &[("If-Match", "\"v1\"")]),
    ("GET", "", &[("If-Match", "\"v0\"")]),
    ("GET", "", &[("If-Unmodified-Since", "Sat, 21 Nov 2026 10:00:00 GMT")]),
    ("GET", "", &[("Accept-Encoding", "gzip")]),
    ("GET", "", &[("Accept-Language", "de")]),
    ("GET", "", &[("Cache-Control", "no-cache")]),
    ("GET", "", &[("Cache-Control", "only-if-cached")]),
    ("POST", "", &[("Content-Length", "0")]),
    ("GET", "", &[("Connection", "close")]),
];

/// Returns the response of the origin's current version.
fn reply(request: &OriginRequest, version: u64) -> Reply {
    let name = request.path().rsplit('/').next().unwrap_or_default();
    let (tag, own) = (format!("\"v{version}\""), format!("own {version}"));
    let fields = [
        ("Date", "Sun, 22 Nov 2026 10:00:01 GMT"),
        ("Server", "origin"),
        ("Content-Type", "text/html"),
        ("X-Accel-Expires", "3600"),
        ("Last-Modified", "Sun, 22 Nov 2026 10:00:00 GMT"),
        ("Link", "</style.css>; rel=preload"),
        ("X-Own", &own),
        ("X-Own", "second"),
        ("ETag", &tag),
    ];
    let is_valid = version == 2 && request.header("if-none-match").as_deref() == Some("\"v1\"");
    // The version 2 has other fields, and the body of version 1.
    let (status, content) = match name {
        _ if is_valid => (304, String::new()),
        "404" => (404, "no page".to_owned()),
        "401" => (401, "who are you?".to_owned()),
        _ if request.path().starts_with("/moved/") => (301, "elsewhere".to_owned()),
        _ => (200, format!("<html>version {version} of {}</html>", request.path())),
    };
    let tag_of_304 = [("ETag", "\"v1\""), ("X-Own", "own 2")];
    let reply = Reply::new(status);
    if is_valid {
        return tag_of_304.into_iter().fold(reply, |reply, (name, value)| reply.header(name, value));
    }
    let reply =
        fields.into_iter().fold(reply.body(content), |reply, (name, value)| reply.header(name, value));
    let language = request.header("accept-language").unwrap_or_default();
    match name {
        "vary" => reply.header("Vary", "Accept-Language").header("X-Language", &language),
        "odd" => reply.header("X@Y", "1").header("X-Control", "a\x01b"),
        "accel" => reply.header("X-Accel-Charset", "koi8-r").header("X-Accel-Limit-Rate", "100000"),
        "401" => reply.header("WWW-Authenticate", "Basic realm=\"a\""),
        _ if request.path().starts_with("/moved/") => reply
            .header("Location", "http://origin.example/x")
            .header("Refresh", "5; url=http://origin.example/y"),
        _ if request.path().starts_with("/cookie/") => reply.header("Set-Cookie", "a=b; path=/"),
        _ => reply,
    }
}

/// The names of both servers.
const SERVERS: [&str; 2] = ["memory", "disk"];

struct Site {
    version: Arc<AtomicU64>,
    server: Server,
    _origin: Origin,
    _setup: Setup,
}

impl Site {
    fn new() -> Site {
        let version = Arc::new(AtomicU64::new(1));
        let current = Arc::clone(&version);
        let origin = Origin::start(move |request| reply(request, current.load(Ordering::SeqCst)));
        let setup = Setup::new(&CONF.replace("@LOCATIONS@", LOCATIONS)).origin(&origin);
        let server = setup.start(BINARY);
        Site { version, server, _origin: origin, _setup: setup }
    }

    fn request(&self, server: &str, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        let mut client = Client::connect(self.server.addr(0));
        let fields = [&[("Host", server)], fields].concat();
        client.send(testkit::client::request_bytes(method, target, &fields));
        if method == "HEAD" { client.response_to_head() } else { client.response() }
    }

    /// Makes the same request to both servers; returns the response of the one with memory.
    #[track_caller]
    fn both(&self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        let [memory, disk] = SERVERS.map(|server| self.request(server, method, target, fields));
        assert_eq!(shown(&memory), shown(&disk), "{method} {target} {fields:?}");
        memory
    }

    /// Requests a target until both caches have an entry that is fresh, and the one with memory has used it several times.
    #[track_caller]
    fn fill(&self, target: &str, fields: &[(&str, &str)]) {
        for server in SERVERS {
            let is_hit = || {
                (self.request(server, "GET", target, fields).field("X-Cache") == Some("HIT")).then_some(())
            };
            wait::until("a hit", Deadline::default(), is_hit)
                .unwrap_or_else(|error| panic!("{target}: {error}"));
        }
        (0..4).for_each(|_| drop(self.request("memory", "GET", target, fields)));
    }
}

/// Returns a response as text: all fields in their order, without values that depend on the time, and without the text between
/// several ranges.
fn shown(response: &Response) -> String {
    let mut text = format!("{}\n", response.status);
    let is_multipart = response.field("Content-Type").is_some_and(|value| value.starts_with("multipart/"));
    for (name, value) in &response.head.fields {
        let is_hidden = matches!(name.as_str(), "Date" | "Age" | "Expires" | "Cache-Status")
            || is_multipart && name == "Content-Type";
        text.push_str(&format!("{name}: {}\n", if is_hidden { "" } else { value }));
    }
    match is_multipart {
        true => text.push_str(&response.body.len().to_string()),
        false => text.push_str(&response.text()),
    }
    text
}

/// Returns the number of hits that the cache with memory has found there.
fn memory_hits(site: &Site) -> u64 {
    let page = site.request("memory", "GET", "/metrics", &[]).text();
    let is_wanted = |line: &&str| line.contains("zone=\"memory\"") && line.contains("found=\"memory\"");
    let line = page.lines().find(is_wanted).unwrap_or_else(|| panic!("no lookups in {page}"));
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn every_kind_of_request_gets_the_same_response_as_without_memory() {
    let site = Site::new();
    for target in TARGETS {
        site.fill(target, &[]);
        for (method, query, fields) in REQUESTS {
            site.both(method, &format!("{target}{query}"), fields);
            // Nothing of this request is left in the next one.
            let response = site.both("GET", target, &[]);
            match method {
                // It has invalidated the entry.
                "POST" => site.fill(target, &[]),
                _ => assert_eq!(response.field("X-Cache"), Some("HIT"), "{target} after {method} {fields:?}"),
            }
        }
    }
    assert!(memory_hits(&site) > TARGETS.len() as u64 * REQUESTS.len() as u64);
}

#[test]
fn locations_with_other_settings_share_an_entry_and_no_header_section() {
    let site = Site::new();
    site.fill("/plain", &[]);
    for round in 0..4 {
        let plain = site.both("GET", "/plain", &[]);
        assert_eq!((plain.field("ETag"), plain.field("X-Other")), (Some("\"v1\""), None), "{round}");
        let other = site.both("GET", "/other/plain?a=1", &[]);
        assert_eq!((other.field("ETag"), other.field("X-Other")), (None, Some("1")), "{round}");
        assert_eq!(site.both("GET", "/rewritten/plain", &[]).field("ETag"), Some("\"v1\""), "{round}");
        assert_eq!((plain.field("X-Cache"), other.field("X-Cache")), (Some("HIT"), Some("HIT")), "{round}");
    }
}

#[test]
fn variants_are_distinguished_in_memory() {
    let site = Site::new();
    for language in ["de", "en"] {
        site.fill("/vary", &[("Accept-Language", language)]);
    }
    for _ in 0..3 {
        for language in ["de", "en"] {
            let response = site.both("GET", "/vary", &[("Accept-Language", language)]);
            let found = (response.field("X-Language"), response.field("X-Cache"));
            assert_eq!(found, (Some(language), Some("HIT")));
        }
    }
}

#[test]
fn purged_and_renewed_entries_are_not_served_from_memory() {
    let site = Site::new();
    site.fill("/plain", &[]);
    site.version.store(3, Ordering::SeqCst);
    assert_eq!(site.both("GET", "/plain", &[]).field("X-Own"), Some("own 1"), "it is fresh");
    assert_eq!(site.both("GET", "/purge/plain", &[]).status, 204);
    for expected in ["MISS", "HIT", "HIT", "HIT"] {
        let response = site.both("GET", "/plain", &[]);
        let found = (response.field("X-Cache"), response.field("X-Own"), response.text());
        assert_eq!(found, (Some(expected), Some("own 3"), "<html>version 3 of /plain</html>".to_owned()));
    }
}

#[test]
fn a_revalidated_entry_has_the_fields_of_the_confirmation() {
    let site = Site::new();
    site.fill("/plain", &[]);
    site.version.store(2, Ordering::SeqCst);
    assert_eq!(site.both("GET", "/plain", &[]).field("X-Own"), Some("own 1"), "it is fresh");
    assert_eq!(site.both("GET", "/outdate/plain", &[]).status, 204);
    for expected in ["REVALIDATED", "HIT", "HIT", "HIT"] {
        let response = site.both("GET", "/plain", &[]);
        let found = (response.field("X-Cache"), response.field("X-Own"), response.text());
        assert_eq!(found, (Some(expected), Some("own 2"), "<html>version 1 of /plain</html>".to_owned()));
    }
}
