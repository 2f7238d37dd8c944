//! Rules for storing a response, for its lifetime, and for stale responses: by the origin's fields, by the
//! configuration, and by the client's request.
//!
//! The origin responds with the fields that a request names in `X-Say`, separated by `|`, and with the status in
//! `X-Status`.

use crate::common;
use crate::common::BINARY;
use testkit::origin::{Object, Objects, Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Gate, Response, Server, Setup, date};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  log_format up '$upstream_cache_status|$status|$upstream_status|$request';
  access_log logs/access.log up;
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@ keys_zone=z:1m;
  proxy_cache z;
  proxy_cache_key $uri$is_args$args;
  add_header X-Cache $upstream_cache_status always;
  gzip_types *; gzip_min_length 1;
  map $sent_http_content_type $is_private { default 0; text/private 1; }
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /valid/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 1h; proxy_cache_valid 404 1h; proxy_cache_valid 418 0; }
    location /any/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 200 0; proxy_cache_valid any 1h; }
    location /cookies/ { proxy_pass http://@ORIGIN@; proxy_ignore_headers Set-Cookie; }
    location /deaf/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 1h;
      proxy_ignore_headers Cache-Control Expires X-Accel-Expires Vary; }
    location /guess/ { proxy_pass http://@ORIGIN@; proxy_cache_heuristic 10% 1h;
      location /guess/not/ { proxy_pass http://@ORIGIN@; proxy_cache_heuristic off; }
      location /guess/too/ { proxy_pass http://@ORIGIN@; }
      location /guess/little/ { proxy_pass http://@ORIGIN@; proxy_cache_heuristic 10% 3s; } }
    location /shared/ { proxy_pass http://@ORIGIN@; proxy_cache_s_maxage_stale on;
      location /shared/not/ { proxy_pass http://@ORIGIN@; proxy_cache_s_maxage_stale off; }
      location /shared/too/ { proxy_pass http://@ORIGIN@; } }
    location /authorized/ { proxy_pass http://@ORIGIN@; proxy_cache_authorized on; }
    location /error/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale error;
      location ~ /never$ { proxy_read_timeout 200ms; proxy_pass http://@ORIGIN@; } }
    location /timeout/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale timeout;
      location ~ /never$ { proxy_read_timeout 200ms; proxy_pass http://@ORIGIN@; } }
    location /invalid/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale invalid_header;
      location ~ /never$ { proxy_read_timeout 200ms; proxy_pass http://@ORIGIN@; } }
    location /statuses/ { proxy_pass http://@ORIGIN@;
      proxy_cache_use_stale http_500 http_502 http_503 http_504 http_403 http_404 http_429;
      location ~ /never$ { proxy_read_timeout 200ms; proxy_pass http://@ORIGIN@; } }
    location /no/ { proxy_pass http://@ORIGIN@;
      location ~ /never$ { proxy_read_timeout 200ms; proxy_pass http://@ORIGIN@; } }
    # What is to be stale is filled without haste.
    location ~ ^/fill(?<target>/.*)$ { proxy_cache_key $target; proxy_pass http://@ORIGIN@$target; }
    location /again/ { proxy_pass http://@ORIGIN@; proxy_cache_revalidate on; }
    location /streamed/ { proxy_pass http://@ORIGIN@; proxy_cache_revalidate on; proxy_buffering off; }
    location /beside/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale updating; proxy_cache_background_update on; }
    location /retained/ { proxy_pass http://@ORIGIN@; proxy_cache_valid any 1h; proxy_cache_use_stale error;
      proxy_cache_bypass $http_x_bypass; }
    location /uses/ { proxy_pass http://@ORIGIN@; proxy_cache_min_uses 3; }
    location /pass/ { proxy_pass http://@ORIGIN@; proxy_cache_bypass $http_x_bypass; proxy_no_cache $http_x_no_cache; }
    location /unwanted/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 1h; proxy_no_cache $is_private $sent_http_x_private; }
    location /post/ { proxy_pass http://@ORIGIN@; proxy_cache_methods POST; proxy_cache_key $uri$request_body; }
    location /head/ { proxy_pass http://@ORIGIN@; proxy_cache_convert_head off; proxy_cache_key $request_method$uri; }
    location /zip/ { proxy_pass http://@ORIGIN@; gzip on; }
    location /page/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 404 1h; proxy_intercept_errors on; error_page 404 /404.html; }
    location = /404.html { return 404 'a page of ours'; }
    location /redirected/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 200 1h; proxy_cache_use_stale http_403; }
    location /redirected/always/ { proxy_pass http://@ORIGIN@; proxy_cache_valid 200 1h; proxy_ignore_headers X-Accel-Redirect; }
    location = /internal { internal; return 200 'for this user'; }
    location /ssi/ { ssi on; ssi_types *; proxy_pass http://@ORIGIN@; }
    location /told/ { proxy_pass http://@ORIGIN@; add_header X-Told
      '$upstream_cache_age|$upstream_cache_etag|$upstream_cache_last_modified|$upstream_cache_status'; }
    location /status/ { proxy_pass http://@ORIGIN@; proxy_cache_status_header ringroad; }
  }
}
";

struct Site {
    origin: Origin,
    setup: Setup,
    server: Server,
}

/// Returns the response that a request describes.
fn say(request: &OriginRequest) -> Reply {
    let status = request.header("x-status").and_then(|status| status.parse().ok()).unwrap_or(200);
    let body = format!("{} {}", request.sequence, request.target);
    let fields = request.header("x-say").unwrap_or_default();
    let fields = fields.split('|').filter_map(|field| field.split_once(": "));
    fields.fold(Reply::new(status).body(body), |reply, (name, value)| reply.header(name, value))
}

impl Site {
    /// Waits until `count` responses, which are all that were requested, are stored and older than one second.
    #[track_caller]
    fn until_stale(&self, count: usize) {
        common::cache::wait_for_entries(&self.setup, count);
        common::until_stale(1);
    }

    fn new() -> Site {
        Site::of(Origin::start(say))
    }

    fn of(origin: Origin) -> Site {
        let setup = Setup::new(CONF).origin(&origin);
        let server = setup.start(BINARY);
        Site { origin, setup, server }
    }

    fn request(&self, target: &str, fields: &[(&str, &str)]) -> Response {
        Client::connect(self.server.addr(0)).request("GET", target, fields)
    }

    /// Makes a request; returns status and cache status.
    fn cached(&self, target: &str, fields: &[(&str, &str)]) -> (u16, String) {
        let response = self.request(target, fields);
        (response.status, response.field("X-Cache").unwrap_or("none").to_owned())
    }

    /// Makes a request twice; returns whether the second response is the stored first response.
    #[track_caller]
    fn stores(&self, target: &str, say: &str, more: &[(&str, &str)]) -> bool {
        let fields = [&[("X-Say", say)], more].concat();
        let (first, second) = (self.request(target, &fields), self.request(target, &fields));
        assert_eq!(first.field("X-Cache"), Some("MISS"), "{target} {say}");
        let is_hit = second.field("X-Cache") == Some("HIT");
        assert_eq!(is_hit, first.body == second.body, "{target} {say}");
        is_hit
    }
}

fn at(seconds_from_now: i64) -> String {
    date::format(date::now().wrapping_add_signed(seconds_from_now))
}

/// HTTP/0.9: the response has no head that could be stored, also where the configuration sets a lifetime.
#[test]
fn a_response_without_a_header_section_is_not_stored() {
    let site = Site::of(Origin::raw(|connection| {
        if connection.read_request().is_some() {
            connection.send("just text");
        }
    }));
    for _ in 0..2 {
        let response = site.request("/valid/old", &[]);
        assert_eq!((response.status, response.text().as_str()), (200, "just text"));
        assert_eq!(response.field("X-Cache"), Some("MISS"));
    }
}

/// Each row uses a separate target: the origin's fields, and whether the response is stored with a remaining lifetime.
#[test]
fn fields_of_the_origin_decide_about_storage() {
    let site = Site::new();
    let (now, past, future) = (at(0), at(-3600), at(3600));
    let cases = [
        ("/", String::new(), false),
        ("/", "Cache-Control: max-age=60".into(), true),
        ("/", "Cache-Control: public, max-age=60".into(), true),
        ("/", "Cache-Control: max-age=0".into(), false),
        ("/", "Cache-Control: max-age=60, s-maxage=0".into(), false),
        ("/", "Cache-Control: max-age=0, s-maxage=60".into(), true),
        ("/", "Cache-Control: max-age=60, no-store".into(), false),
        ("/", "Cache-Control: max-age=60|Cache-Control: private".into(), false),
        ("/", "Cache-Control: max-age=60, no-cache".into(), false),
        ("/", "Cache-Control: max-age=60|Set-Cookie: a=b".into(), false),
        ("/", "Cache-Control: max-age=60|Vary: *".into(), false),
        ("/", "Cache-Control: max-age=60|Vary: Accept-Language".into(), true),
        ("/", format!("Expires: {future}"), true),
        ("/", format!("Expires: {past}"), false),
        ("/", "Expires: 0".into(), false),
        ("/", format!("Date: {now}|Expires: {now}"), false),
        ("/", format!("Expires: {past}|Cache-Control: max-age=60"), true),
        ("/", format!("Expires: {future}|Cache-Control: max-age=0"), false),
        // Lifetimes that are over before the response is received: by Age, by Date.
        ("/", "Cache-Control: max-age=600|Age: 540".into(), true),
        ("/", "Cache-Control: max-age=600|Age: 600".into(), false),
        ("/", format!("Cache-Control: max-age=60|Date: {past}"), false),
        ("/", format!("Cache-Control: max-age=7200|Date: {past}"), true),
        // nginx's own field overrides all others.
        ("/", "X-Accel-Expires: 60".into(), true),
        ("/", "X-Accel-Expires: 60|Cache-Control: no-store".into(), true),
        ("/", "X-Accel-Expires: 0|Cache-Control: max-age=60".into(), false),
        ("/", "X-Accel-Expires: @1|Cache-Control: max-age=60".into(), false),
        ("/", "X-Accel-Expires: 60|Set-Cookie: a=b".into(), false),
        // A field for shared caches in front of the origin (RFC 9213).
        ("/", "CDN-Cache-Control: max-age=60|Cache-Control: no-store".into(), true),
        ("/", "CDN-Cache-Control: no-store|Cache-Control: max-age=60".into(), false),
        // No heuristic lifetime unless the configuration enables it, and only if the origin sets none.
        ("/", format!("Last-Modified: {past}"), false),
        ("/guess/", format!("Last-Modified: {past}"), true),
        ("/guess/", format!("Last-Modified: {past}|Cache-Control: public"), true),
        ("/guess/", String::new(), false),
        ("/guess/", format!("Last-Modified: {now}"), false),
        ("/guess/", format!("Last-Modified: {past}|Cache-Control: max-age=0"), false),
        ("/guess/", format!("Last-Modified: {past}|Expires: {past}"), false),
        ("/guess/", format!("Last-Modified: {past}|Cache-Control: no-store"), false),
        ("/guess/", format!("Last-Modified: {past}|Set-Cookie: a=b"), false),
        ("/guess/", format!("Last-Modified: {past}|Age: 300"), true),
        ("/guess/", format!("Last-Modified: {past}|Age: 400"), false),
        ("/guess/too/", format!("Last-Modified: {past}"), true),
        ("/guess/not/", format!("Last-Modified: {past}"), false),
        ("/valid/", String::new(), true),
        ("/valid/", "Cache-Control: max-age=0".into(), false),
        ("/valid/", format!("Expires: {past}"), false),
        ("/valid/", "Set-Cookie: a=b".into(), false),
        ("/valid/", "Cache-Control: public".into(), true),
        ("/any/", String::new(), false),
        ("/cookies/", "Cache-Control: max-age=60|Set-Cookie: a=b".into(), true),
        ("/deaf/", "Cache-Control: no-store, private|Expires: 0|X-Accel-Expires: 0|Vary: *".into(), true),
        ("/deaf/", "Set-Cookie: a=b".into(), false),
    ];
    for (number, (location, say, expected)) in cases.iter().enumerate() {
        assert_eq!(site.stores(&format!("{location}{number}"), say, &[]), *expected, "{location}: {say}");
    }
}

#[test]
fn each_status_has_its_own_lifetime() {
    let site = Site::new();
    let cases = [
        ("/valid/", "301", true),
        ("/valid/", "404", true),
        ("/valid/", "403", false),
        ("/valid/", "500", false),
        ("/valid/", "418", false),
        ("/any/", "500", true),
        ("/any/", "404", true),
        ("/", "404", false),
    ];
    for (location, status, expected) in cases {
        let target = format!("{location}{status}");
        assert_eq!(site.stores(&target, "", &[("X-Status", status)]), expected, "{target}");
    }
    assert!(site.stores("/503", "Cache-Control: max-age=60", &[("X-Status", "503")]));
}

#[test]
fn responses_to_authenticated_requests_are_not_shared() {
    let site = Site::new();
    let log_in = [("Authorization", "Basic YTpi")];
    assert!(!site.stores("/a", "Cache-Control: max-age=60", &log_in));
    assert!(site.stores("/b", "Cache-Control: max-age=60, public", &log_in));
    assert!(site.stores("/c", "Cache-Control: s-maxage=60", &log_in));
    assert!(site.stores("/authorized/a", "Cache-Control: max-age=60", &log_in));
    // A response that is stored for all clients is also used for requests with credentials.
    assert!(site.stores("/d", "Cache-Control: max-age=60", &[]));
    assert_eq!(site.cached("/d", &log_in), (200, "HIT".into()));
}

#[test]
fn clients_cannot_empty_the_cache() {
    let site = Site::new();
    assert!(site.stores("/a", "Cache-Control: max-age=60", &[]));
    for field in [("Cache-Control", "no-cache"), ("Cache-Control", "max-age=0"), ("Pragma", "no-cache")] {
        assert_eq!(site.cached("/a", &[field]), (200, "HIT".into()));
    }
}

#[test]
fn ages_grow_and_other_fields_are_unchanged() {
    let site = Site::new();
    let say = [("X-Say", "Cache-Control: max-age=60|Age: 7|X-Own: here|Connection: X-Hop|X-Hop: gone")];
    let first = site.request("/a", &say);
    let second = site.request("/a", &say);
    let age = |response: &Response| -> u64 {
        response.field("Age").expect("it has one").parse().expect("it is a number")
    };
    // The time in transit is part of the age (RFC 9111 section 4.2.3).
    assert!(7 <= age(&first) && age(&first) <= age(&second) && age(&second) < 60, "{first:?} {second:?}");
    assert_eq!(second.head.all("Age").count(), 1);
    assert_eq!((second.field("X-Own"), second.field("X-Hop")), (Some("here"), None));
    assert_eq!(second.field("Content-Length").map(str::to_owned), Some(second.body.len().to_string()));
    // A new response of the origin has no age.
    assert_eq!(site.request("/b", &[("X-Say", "Cache-Control: max-age=60")]).field("Age"), None);
}

/// The upstream may have checked the credentials of its request. A stored redirect would serve any client.
#[test]
fn a_redirect_to_an_internal_location_is_not_stored() {
    let site = Site::new();
    site.origin.set_handler(|request| match request.header("cookie") {
        Some(_) => Reply::text("own").header("X-Accel-Redirect", "/internal"),
        None => Reply::new(403).body("no"),
    });
    for target in ["/redirected/a", "/redirected/b"] {
        let first = site.request(target, &[("Cookie", "user=1")]);
        assert_eq!((first.status, first.text()), (200, "for this user".to_owned()), "{target}");
        assert_eq!(site.request(target, &[]).status, 403, "{target}");
    }
    // Without the redirect the response is like any other.
    let ignored = site.request("/redirected/always/a", &[("Cookie", "user=1")]);
    assert_eq!((ignored.status, ignored.text()), (200, "own".to_owned()));
    assert_eq!(site.cached("/redirected/always/a", &[]), (200, "HIT".into()));
}

#[test]
fn stale_responses_are_used_if_the_configuration_allows_it() {
    let site = Site::new();
    let is_filled = |request: &OriginRequest| request.header("x-fill").is_some();
    site.origin.set_handler(move |request| match request.header("x-fault").as_deref() {
        _ if is_filled(request) => Reply::text("old").header("X-Accel-Expires", "1"),
        Some("close") => Reply::close(),
        Some("never") => Reply::never(),
        Some("garbage") => Reply::raw("nonsense\r\n\r\n").closing(),
        Some(status) => Reply::new(status.parse().expect("it is one")).body("new"),
        None => Reply::text("new"),
    });
    let locations = ["error", "timeout", "invalid", "statuses", "no"];
    for location in locations {
        for fault in ["close", "never", "500", "502", "503", "504", "403", "404", "429", "410"] {
            let target = format!("/{location}/{fault}");
            assert_eq!(site.cached(&format!("/fill{target}"), &[("X-Fill", "1")]), (200, "MISS".into()));
        }
    }
    site.until_stale(locations.len() * 10);
    for location in locations {
        for fault in ["close", "never", "500", "502", "503", "504", "403", "404", "429", "410"] {
            let target = format!("/{location}/{fault}");
            let is_stale = match fault {
                "close" => location == "error",
                "never" => location == "timeout",
                "410" => false,
                _ => location == "statuses",
            };
            let got = site.cached(&target, &[("X-Fault", fault)]);
            let status = match fault {
                "close" => 502,
                "never" => 504,
                fault => fault.parse().expect("it is a status"),
            };
            let expected = if is_stale { (200, "STALE") } else { (status, "EXPIRED") };
            assert_eq!((got.0, got.1.as_str()), expected, "{target}");
        }
    }
}

/// As in nginx: only a response with a body is not stored because it is unbuffered.
#[test]
fn a_304_updates_a_stored_response_without_buffering() {
    let site = Site::new();
    site.origin.set_handler(|request| match request.header("if-none-match") {
        Some(_) => Reply::new(304).header("ETag", "\"a\"").header("X-Accel-Expires", "60"),
        None => say(request),
    });
    let fill = [("X-Say", "X-Accel-Expires: 1|ETag: \"a\"")];
    assert_eq!(site.cached("/fill/streamed/a", &fill), (200, "MISS".into()));
    site.until_stale(1);
    assert_eq!(site.cached("/streamed/a", &[]), (200, "REVALIDATED".into()));
    assert_eq!(site.cached("/streamed/a", &[]), (200, "HIT".into()));
}

/// nginx and others weaken the tag of a compressed 200, but their 304 has the strong one.
#[test]
fn a_304_with_the_strong_form_of_the_stored_weak_tag_confirms_the_stored_response() {
    let site = Site::new();
    site.origin.set_handler(|request| match request.header("if-none-match").as_deref() {
        Some("W/\"a\"") => Reply::new(304).header("ETag", "\"a\"").header("X-Accel-Expires", "1"),
        Some(_) => Reply::new(304).header("ETag", "\"b\""),
        None => say(request),
    });
    let fill = [("X-Say", "X-Accel-Expires: 1|ETag: W/\"a\"")];
    assert_eq!(site.cached("/fill/again/a", &fill), (200, "MISS".into()));
    for round in 1..=2 {
        site.until_stale(1);
        let got = site.request("/again/a", &[]);
        assert_eq!(got.field("ETag"), Some("W/\"a\""), "the stored tag stays weak");
        assert_eq!(got.field("X-Cache"), Some("REVALIDATED"), "round {round}");
    }
}

/// A failure of another variant, or of a request that makes no lookup, does not replace a stale response.
#[test]
fn retained_failures_do_not_replace_usable_stale_responses() {
    let site = Site::new();
    site.origin.set_handler(|request| match request.header("x-fault") {
        Some(_) => Reply::close(),
        None => say(request),
    });
    let of_a = [("X-Say", "X-Accel-Expires: 1|Vary: X-Kind"), ("X-Kind", "a")];
    assert_eq!(site.cached("/fill/retained/variants", &of_a), (200, "MISS".into()));
    assert_eq!(
        site.cached("/fill/retained/bypass", &[("X-Say", "X-Accel-Expires: 1")]),
        (200, "MISS".into())
    );
    site.until_stale(2);
    let (close, bypass) = (("X-Fault", "close"), ("X-Bypass", "1"));
    assert_eq!(site.cached("/retained/variants", &[close, ("X-Kind", "b")]), (502, "MISS".into()));
    assert_eq!(site.cached("/retained/variants", &[close, ("X-Kind", "a")]), (200, "STALE".into()));
    assert_eq!(site.cached("/retained/variants", &[("X-Kind", "b")]), (502, "HIT".into()));
    assert_eq!(site.cached("/retained/variants", &[("X-Kind", "c")]), (200, "MISS".into()));
    assert_eq!(site.cached("/retained/bypass", &[close, bypass]), (502, "BYPASS".into()));
    assert_eq!(site.cached("/retained/bypass", &[close]), (200, "STALE".into()));
    assert_eq!(site.cached("/retained/none", &[close, bypass]), (502, "BYPASS".into()));
    assert_eq!(site.cached("/retained/none", &[]), (200, "MISS".into()), "the failure is not retained");
}

#[test]
fn stale_responses_are_used_if_the_origin_allows_it() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.origin.set_handler(move |request| match (request.header("x-fill"), request.path()) {
        (Some(_), _) => say(request),
        (_, "/swr") => Reply::text("new").header("Cache-Control", "max-age=60").wait_first(&held),
        _ => Reply::new(503).body("ill"),
    });
    let fill = |target: &str, windows: &str| {
        // Long enough that a slow machine stores them before they are stale.
        let say = format!("Cache-Control: max-age=3{windows}");
        let (status, cached) = site.cached(target, &[("X-Fill", "1"), ("X-Say", &say)]);
        assert_eq!((status, cached.as_str()), (200, "MISS"));
    };
    fill("/swr", ", stale-while-revalidate=60");
    fill("/sie", ", stale-if-error=60");
    fill("/strict", ", stale-if-error=60, must-revalidate");
    fill("/short", ", stale-if-error=0");
    common::cache::wait_for_entries(&site.setup, 4);
    common::until_stale(3);
    // The first request starts a background fetch; later requests find it in progress.
    assert_eq!(site.cached("/swr", &[]), (200, "STALE".into()));
    gate.wait_reached();
    assert_eq!(site.cached("/swr", &[]), (200, "UPDATING".into()));
    gate.open();
    let fresh = || (site.cached("/swr", &[]).1 == "HIT").then_some(());
    testkit::wait::until("the new response", Deadline::default(), fresh).expect("it is stored");
    assert_eq!(site.request("/swr", &[]).text(), "new");
    assert_eq!(site.cached("/sie", &[]), (200, "STALE".into()));
    assert_eq!(site.cached("/strict", &[]), (503, "EXPIRED".into()));
    assert_eq!(site.cached("/short", &[]), (503, "EXPIRED".into()));
}

/// RFC 9111 section 5.2.2.10: `s-maxage` forbids stale responses, unless the configuration selects nginx's behaviour.
#[test]
fn s_maxage_forbids_stale_responses() {
    let site = Site::new();
    site.origin.set_handler(|request| match request.header("x-fill") {
        Some(_) => say(request),
        None => Reply::new(503).body("ill"),
    });
    let targets = ["/a", "/shared/a", "/shared/too/a", "/shared/not/a"];
    for target in targets {
        // The delay of a response is a part of its age: on a slow machine one second may be over before it is stored.
        let say = "Cache-Control: s-maxage=3, stale-if-error=60";
        let beside = "Cache-Control: s-maxage=3, stale-while-revalidate=60";
        assert_eq!(site.cached(target, &[("X-Fill", "1"), ("X-Say", say)]).1, "MISS");
        assert_eq!(site.cached(&format!("{target}-swr"), &[("X-Fill", "1"), ("X-Say", beside)]).1, "MISS");
    }
    // A response with a heuristic lifetime of three seconds is stale by then too, and one with six minutes is not.
    let old = format!("Last-Modified: {}", at(-3600));
    let guessed = |target: &str| site.cached(target, &[("X-Fill", "1"), ("X-Say", &old)]).1;
    assert_eq!((guessed("/guess/a"), guessed("/guess/little/a")), ("MISS".into(), "MISS".into()));
    common::cache::wait_for_entries(&site.setup, 2 * targets.len() + 2);
    common::until_stale(3);
    assert_eq!((guessed("/guess/a"), guessed("/guess/little/a")), ("HIT".into(), "EXPIRED".into()));
    for target in targets {
        let is_allowed = target.starts_with("/shared/") && !target.starts_with("/shared/not/");
        let expected = if is_allowed { (200, "STALE") } else { (503, "EXPIRED") };
        for target in [target.to_owned(), format!("{target}-swr")] {
            let (status, cached) = site.cached(&target, &[]);
            assert_eq!((status, cached.as_str()), expected, "{target}");
        }
    }
}

#[test]
fn background_updates_do_not_delay_the_client() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.origin.set_handler(move |request| match request.header("x-fill") {
        Some(_) => Reply::text("old").header("X-Accel-Expires", "1"),
        None => Reply::text("new").header("Cache-Control", "max-age=60").wait_first(&held),
    });
    site.request("/beside/a", &[("X-Fill", "1")]);
    site.until_stale(1);
    assert_eq!(site.cached("/beside/a", &[]), (200, "STALE".into()));
    gate.wait_reached();
    assert_eq!(site.cached("/beside/a", &[]), (200, "UPDATING".into()));
    gate.open();
    let fresh = || (site.cached("/beside/a", &[]).1 == "HIT").then_some(());
    testkit::wait::until("the new response", Deadline::default(), fresh).expect("it is stored");
    assert_eq!((site.request("/beside/a", &[]).text(), site.origin.stats().requests), ("new".into(), 2));
}

#[test]
fn valid_content_is_not_sent_again_by_the_origin() {
    let objects = Objects::new();
    for target in ["/again/a", "/again/dated", "/again/new", "/no/a"] {
        objects.put(target, Object::new(5000).header("X-Accel-Expires", "1").header("X-Version", "one"));
    }
    objects.change("/again/dated", |object| object.etag(testkit::origin::Etag::None));
    let site = Site::of(Origin::objects(&objects));
    for target in ["/again/a", "/again/dated", "/again/new", "/no/a"] {
        assert_eq!(site.cached(target, &[]), (200, "MISS".into()));
    }
    site.until_stale(4);
    for target in ["/again/a", "/again/dated", "/no/a"] {
        objects.change(target, |_| Object::new(5000).cache_control("max-age=60").header("X-Version", "two"));
    }
    objects.change("/again/dated", |object| object.etag(testkit::origin::Etag::None));
    objects.renew("/again/new");
    for (target, status) in [
        ("/again/a", "REVALIDATED"),
        ("/again/dated", "REVALIDATED"),
        ("/again/new", "EXPIRED"),
        ("/no/a", "EXPIRED"),
    ] {
        site.origin.forget_requests();
        let response = site.request(target, &[]);
        assert_eq!((response.status, response.field("X-Cache")), (200, Some(status)), "{target}");
        objects.content(target).assert_body(&response.body);
        let request = site.origin.last_request();
        assert_eq!(request.header("if-none-match").is_some(), matches!(target, "/again/a" | "/again/new"));
        assert_eq!(request.header("if-modified-since").is_some(), target.starts_with("/again/"));
    }
    // From now on the stored response has the fields of the 304.
    let response = site.request("/again/a", &[]);
    assert_eq!((response.field("X-Cache"), response.field("X-Version")), (Some("HIT"), Some("two")));
    assert_eq!(response.head.all("X-Version").count(), 1);
    assert_eq!(response.field("Cache-Control"), Some("max-age=60"));
}

/// Many applications send entity tags without quotes.
#[test]
fn a_tag_without_quotes_validates_a_response_with_the_same_text() {
    let site = Site::of(Origin::start(|request: &OriginRequest| {
        let status = if request.header("if-none-match").as_deref() == Some("abc") { 304 } else { 200 };
        // The first response becomes stale soon. The 304 for `/again/other` is for another version.
        let lifetime = if request.sequence <= 2 { "1" } else { "60" };
        let tag = if status == 304 && request.target == "/again/other" { "abd" } else { "abc" };
        let reply = Reply::new(status).header("ETag", tag).header("X-Accel-Expires", lifetime);
        if status == 304 { reply } else { reply.body("content") }
    }));
    for target in ["/again/same", "/again/other"] {
        assert_eq!(site.cached(target, &[]), (200, "MISS".into()));
    }
    site.until_stale(2);
    assert_eq!(site.cached("/again/same", &[]), (200, "REVALIDATED".into()));
    assert_eq!(site.cached("/again/other", &[]), (200, "EXPIRED".into()));
    for (tag, status) in [("abc", 304), ("\"x\", abc", 304), ("abcd", 200), ("\"abc\"", 200)] {
        assert_eq!(site.cached("/again/same", &[("If-None-Match", tag)]), (status, "HIT".into()), "{tag}");
    }
}

#[test]
fn conditions_of_clients_apply_to_the_stored_response() {
    let objects = Objects::new();
    objects.put("/a", Object::new(5000).cache_control("max-age=60"));
    let site = Site::of(Origin::objects(&objects));
    // A miss requests the complete object, whatever version the client has.
    let first = site.request("/a", &[("If-None-Match", "\"other\"")]);
    assert_eq!(first.status, 200);
    assert!(site.origin.last_request().header("if-none-match").is_none());
    let etag = first.field("ETag").expect("it has one").to_owned();
    let modified = first.field("Last-Modified").expect("it has one").to_owned();
    assert_eq!(site.request("/a", &[("If-None-Match", &etag)]).status, 304);
    assert_eq!(site.request("/a", &[("If-None-Match", &format!("\"x\", W/{etag}"))]).status, 304);
    assert_eq!(site.request("/a", &[("If-None-Match", "\"other\"")]).status, 200);
    assert_eq!(site.request("/a", &[("If-Modified-Since", &modified)]).status, 304);
    assert_eq!(site.request("/a", &[("If-Modified-Since", "Mon, 02 Jan 2012 00:00:00 GMT")]).status, 200);
    assert_eq!(site.request("/a", &[("If-Match", &etag)]).status, 200);
    assert_eq!(site.origin.stats().requests, 1);
    // The origin decides on conditions that the stored object does not meet.
    assert_eq!(site.request("/a", &[("If-Match", "\"other\"")]).status, 412);
    assert!(site.origin.last_request().header("if-match").is_some());
    assert_eq!(site.request("/a", &[("If-Unmodified-Since", "Mon, 02 Jan 2012 00:00:00 GMT")]).status, 412);
    assert_eq!(site.origin.stats().requests, 3);
    // The first client gets a 304 too, if it has the version being fetched.
    objects.put("/b", Object::new(5000).cache_control("max-age=60"));
    let b = Client::connect(site.origin.addr()).request("GET", "/b", &[("Connection", "close")]);
    let etag = b.field("ETag").expect("it has one").to_owned();
    assert_eq!(site.cached("/b", &[("If-None-Match", &etag)]), (304, "MISS".into()));
    assert_eq!(site.cached("/b", &[]), (200, "HIT".into()));
}

#[test]
fn only_cacheable_methods_are_cached() {
    let site = Site::new();
    let request = |method: &str, target: &str| {
        let fields = [("X-Say", "Cache-Control: max-age=60")];
        let response = Client::connect(site.server.addr(0)).request(method, target, &fields);
        (response.status, response.field("X-Cache").unwrap_or("none").to_owned(), response.body.len())
    };
    // HEAD fetches the complete object, which a later GET uses.
    assert_eq!(request("HEAD", "/a"), (200, "MISS".into(), 0));
    assert_eq!(site.origin.last_request().method, "GET");
    let (status, cached, length) = request("GET", "/a");
    assert_eq!((status, cached.as_str(), length > 0), (200, "HIT", true));
    assert_eq!(request("HEAD", "/a"), (200, "HIT".into(), 0));
    let head = Client::connect(site.server.addr(0)).request("HEAD", "/a", &[]);
    assert_eq!(head.field("Content-Length").map(str::to_owned), Some(length.to_string()));
    // Without conversion HEAD is sent upstream.
    assert_eq!(request("HEAD", "/head/a").1, "MISS");
    assert_eq!(site.origin.last_request().method, "HEAD");
    assert_eq!(request("GET", "/head/a").1, "MISS");
    assert_eq!(request("GET", "/head/a").1, "HIT");
    // Other methods are forwarded, and their responses are not stored.
    for method in ["PUT", "OPTIONS"] {
        assert_eq!((request(method, "/m").1, request(method, "/m").1), ("none".into(), "none".into()));
    }
    let post = |target: &str, body: &str| {
        let mut client = Client::connect(site.server.addr(0));
        let length = body.len();
        client.send(format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nX-Say: Cache-Control: max-age=60\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let response = client.response();
        (response.field("X-Cache").unwrap_or("none").to_owned(), response.text())
    };
    assert_eq!(post("/p", "a").0, "none");
    let first = post("/post/p", "one");
    assert_eq!((first.0.as_str(), site.origin.last_request().body), ("MISS", b"one".to_vec()));
    assert_eq!(post("/post/p", "one"), ("HIT".into(), first.1.clone()));
    assert_ne!(post("/post/p", "two").1, first.1);
}

#[test]
fn old_clients_get_responses_that_they_understand() {
    let origin =
        Origin::start(|_| Reply::text("in chunks").header("Cache-Control", "max-age=60").chunked(&[2]));
    let site = Site::of(origin);
    for status in ["MISS", "HIT"] {
        let mut client = Client::connect(site.server.addr(0));
        client.send("GET /a HTTP/1.0\r\n\r\n");
        let response = client.response();
        assert_eq!((response.text().as_str(), response.field("X-Cache")), ("in chunks", Some(status)));
        assert_eq!(response.field("Transfer-Encoding"), None);
    }
    assert_eq!(site.request("/a", &[]).field("Content-Length"), Some("9"));
}

#[test]
fn no_cache_sees_the_fields_of_the_response() {
    let site = Site::new();
    for (target, say, is_stored) in [
        ("/unwanted/field", "X-Private: yes", false),
        ("/unwanted/map", "Content-Type: text/private", false),
        ("/unwanted/zero", "Content-Type: text/plain|X-Private: 0", true),
    ] {
        assert_eq!(site.stores(target, say, &[]), is_stored, "{target}");
    }
}

#[test]
fn min_uses_bypass_and_no_cache_are_obeyed() {
    let site = Site::new();
    let say = ("X-Say", "Cache-Control: max-age=60");
    let statuses: Vec<String> = (0..5).map(|_| site.cached("/uses/a", &[say]).1).collect();
    assert_eq!(statuses, ["MISS", "MISS", "MISS", "HIT", "HIT"]);
    assert_eq!(site.cached("/pass/a", &[say, ("X-No-Cache", "1")]).1, "MISS");
    assert_eq!(site.cached("/pass/a", &[say]).1, "MISS");
    assert_eq!(site.cached("/pass/a", &[say, ("X-No-Cache", "1")]).1, "HIT");
    // A response fetched on a bypass replaces the stored one, except where that is forbidden.
    let new = site.request("/pass/a", &[say, ("X-Bypass", "1")]);
    assert_eq!(new.field("X-Cache"), Some("BYPASS"));
    let same = || (site.request("/pass/a", &[say]).body == new.body).then_some(());
    testkit::wait::until("the new one", Deadline::default(), same).expect("it is stored");
    let other = site.request("/pass/a", &[say, ("X-Bypass", "1"), ("X-No-Cache", "1")]);
    assert_ne!(other.body, new.body);
    assert_eq!(site.request("/pass/a", &[say, ("X-Bypass", "0")]).body, new.body);
}

#[test]
fn filters_apply_to_stored_responses() {
    let objects = Objects::new();
    objects.put("/zip/a", Object::new(300_000).cache_control("max-age=60"));
    let site = Site::of(Origin::objects(&objects));
    let mut bodies = Vec::new();
    for status in ["MISS", "HIT", "HIT"] {
        let response = site.request("/zip/a", &[("Accept-Encoding", "gzip")]);
        assert_eq!(
            (response.field("Content-Encoding"), response.field("X-Cache")),
            (Some("gzip"), Some(status))
        );
        bodies.push(response.body);
    }
    // The first client's encoder is flushed when the origin pauses.
    assert_eq!(bodies[1].len(), bodies[2].len());
    objects.content("/zip/a").assert_body(&site.request("/zip/a", &[]).body);

    let site = Site::new();
    let missing = [("X-Status", "404")];
    for _ in 0..2 {
        let response = site.request("/page/a", &missing);
        assert_eq!((response.status, response.text().as_str()), (404, "a page of ours"));
    }
    assert_eq!(site.origin.stats().requests, 1, "the response that the page replaces is stored");
}

#[test]
fn included_parts_of_a_page_are_cached_separately() {
    let origin = Origin::start(|request| {
        let reply = Reply::ok().header("Cache-Control", "max-age=60").header("Content-Type", "text/html");
        match request.path() {
            "/ssi/page" => {
                reply.body("<!--#include virtual=\"/ssi/part\" -->, <!--#include virtual=\"/ssi/part\" -->")
            }
            _ => reply.body(format!("part {}", request.sequence)),
        }
    });
    let site = Site::of(origin);
    let first = site.request("/ssi/page", &[]).text();
    assert_eq!(first, "part 2, part 2");
    assert_eq!(site.request("/ssi/page", &[]).text(), first);
    assert_eq!(site.origin.stats().requests, 2);
    assert_eq!(site.cached("/ssi/part", &[]), (200, "HIT".into()));
    // A range request for the page must not become a range of its parts.
    assert_eq!(site.request("/ssi/page", &[("Range", "bytes=0-3")]).status, 200);
}

/// `$upstream_cache_*` describe the stored response, and are empty if nothing was stored.
#[test]
fn variables_describe_the_stored_response() {
    let site = Site::new();
    let date = at(-3600);
    let say = format!("Cache-Control: max-age=60|ETag: \"one\"|Last-Modified: {date}|Age: 10");
    let told = || {
        let response = site.request("/told/a", &[("X-Say", &say)]);
        response.field("X-Told").unwrap_or_default().to_owned()
    };
    assert_eq!(told(), "|||MISS");
    let stored = || told().strip_suffix(&format!("|\"one\"|{date}|HIT"))?.parse::<u64>().ok();
    let first = testkit::wait::until("a stored response", Deadline::default(), stored).expect("it is stored");
    assert!(first < 60, "the time since the receipt, without the received Age: {first}");
    common::until_stale(1);
    let later = stored().expect("it is stored");
    assert!(later > first, "{later} after {first}");
}

#[test]
fn cache_status_reports_the_handling_of_the_request() {
    let site = Site::new();
    let told = |say: &str| {
        let response = site.request("/status/a", &[("X-Say", say)]);
        response.field("Cache-Status").unwrap_or_default().to_owned()
    };
    let first = told("Cache-Control: max-age=60");
    assert!(first.starts_with("ringroad; fwd=uri-miss; fwd-status=200"), "{first}");
    assert!(first.contains("; stored"), "{first}");
    // Until the entry has its final name, a request joins the fill.
    let hit = || told("").starts_with("ringroad; hit; ttl=").then_some(());
    testkit::wait::until("a hit", Deadline::default(), hit).expect("it is stored");
    let other = site.request("/status/b", &[("X-Say", "Cache-Control: no-store")]);
    let other = other.field("Cache-Status").unwrap_or_default();
    assert!(other.contains("fwd=uri-miss") && !other.contains("stored"), "{other}");
}
