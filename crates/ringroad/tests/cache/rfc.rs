//! Requirements of RFC 9111 and RFC 9110 on a cache where nginx deviates: dates, validation, credentials, ranges,
//! interim responses. `side_by_side/rfc9111.rs` has the complete table; here is a test for each behaviour that was once
//! wrong.
//!
//! The origin responds with the fields that a request names in `X-Say`, separated by `|`. A request whose
//! `If-None-Match` is in its own `X-Same` gets a 304 with those fields.

use crate::common;
use crate::common::BINARY;
use testkit::origin::{Object, Objects, Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Gate, Response, Server, Setup, date, wait};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  access_log off;
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@ keys_zone=z:1m;
  proxy_cache z;
  proxy_cache_key $uri$is_args$args;
  add_header X-Cache $upstream_cache_status always;
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /plain/ { proxy_cache off; proxy_pass http://@ORIGIN@; }
    location /hidden/ { proxy_hide_header Date; proxy_pass http://@ORIGIN@; }
    location /valid/ { proxy_cache_valid 200 1h; proxy_pass http://@ORIGIN@; }
    location /again/ { proxy_cache_revalidate on; proxy_pass http://@ORIGIN@; }
    location /uses/ { proxy_cache_min_uses 2; proxy_pass http://@ORIGIN@; }
    location /exact/ { if_modified_since exact; proxy_pass http://@ORIGIN@; }
    location /mine/ { proxy_cache_key $uri$http_authorization; proxy_cache_valid 200 1h; proxy_pass http://@ORIGIN@; }
    location /hints/ { early_hints 1; proxy_pass http://@ORIGIN@; }
    location /stale/ { proxy_cache_use_stale error http_503; proxy_pass http://@ORIGIN@; }
    location /habit/ { proxy_cache_use_stale error http_503 ignore_must_revalidate; proxy_pass http://@ORIGIN@; }
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
    let same = request.header("x-same").filter(|tag| request.header("if-none-match").as_ref() == Some(tag));
    let status =
        if same.is_some() { "304".to_owned() } else { request.header("x-status").unwrap_or_default() };
    let body = format!("{} {}", request.sequence, request.target);
    let reply = Reply::new(status.parse().unwrap_or(200));
    let reply = if same.is_some() { reply } else { reply.body(body) };
    let fields = request.header("x-say").unwrap_or_default();
    let fields = fields.split('|').filter_map(|field| field.split_once(": "));
    fields.fold(reply, |reply, (name, value)| reply.header(name, value))
}

impl Site {
    fn new() -> Site {
        Site::of(Origin::start(say))
    }

    fn of(origin: Origin) -> Site {
        let setup = Setup::new(CONF).origin(&origin);
        let server = setup.start(BINARY);
        Site { origin, setup, server }
    }

    fn ask(&self, target: &str, fields: &[(&str, &str)]) -> Response {
        Client::connect(self.server.addr(0)).request("GET", target, fields)
    }

    fn say(&self, target: &str, say: &str) -> Response {
        self.ask(target, &[("X-Say", say)])
    }

    /// Waits until this number of entries is stored.
    fn stored(&self, count: usize) {
        common::cache::wait_for_entries(&self.setup, count);
    }

    fn fetches(&self) -> u64 {
        self.origin.stats().requests
    }
}

#[track_caller]
fn cached(response: &Response) -> &str {
    response.field("X-Cache").unwrap_or("none")
}

fn at(seconds_from_now: i64) -> String {
    date::format(date::now().wrapping_add_signed(seconds_from_now))
}

#[test]
fn a_range_is_stored_as_part_of_a_200_response() {
    let objects = Objects::new();
    objects.put("/valid/a", Object::new(1000));
    let site = Site::of(Origin::objects(&objects));
    let ask = || site.ask("/valid/a", &[("Range", "bytes=10-19")]);
    // On a busy machine the first response has an age too, as its `Date` is of the previous second.
    let age = |response: &Response| response.field("Age").map_or(0, |age| age.parse().expect("a number"));
    let first = ask();
    assert!(first.status == 206 && age(&first) < 60, "{first:?}");
    site.stored(1);
    for _ in 0..3 {
        let response = ask();
        assert_eq!((response.status, cached(&response)), (206, "HIT"));
        assert!(response.field("Age").is_some() && age(&response) < 60, "{response:?}");
    }
    assert_eq!(site.fetches(), 1);
}

/// The response has no lifetime: it is forwarded without being stored, with the upstream's own `Age`.
#[test]
fn an_unstored_range_is_passed_on_with_the_age_of_the_upstream() {
    let objects = Objects::new();
    objects.put("/a", Object::new(1000));
    objects.put("/b", Object::new(1000).header("Age", "7"));
    let site = Site::of(Origin::objects(&objects));
    for (target, age) in [("/a", None), ("/b", Some("7"))] {
        let response = site.ask(target, &[("Range", "bytes=10-19")]);
        assert_eq!(
            (response.status, cached(&response), response.field("Age")),
            (206, "MISS", age),
            "{target}"
        );
    }
}

#[test]
fn responses_are_stored_if_the_key_contains_the_credentials() {
    let site = Site::new();
    let ask = |user: &str| site.ask("/mine/a", &[("Authorization", user)]);
    let first = ask("Basic YTpi").text();
    site.stored(1);
    let second = ask("Basic YTpi");
    assert_eq!((cached(&second), second.text()), ("HIT", first));
    assert_eq!(cached(&ask("Basic Yzpk")), "MISS");
    // Without such a key no response is shared.
    for _ in 0..2 {
        assert_eq!(cached(&site.ask("/valid/a", &[("Authorization", "Basic YTpi")])), "MISS");
    }
}

#[test]
fn a_stored_response_retains_its_date() {
    let site = Site::new();
    let (made, until) = (at(-100), at(1000));
    let text = format!("Date: {made}|Expires: {until}");
    let first = site.say("/a", &text);
    assert_eq!((first.field("Date"), cached(&first)), (Some(made.as_str()), "MISS"));
    site.stored(1);
    let second = site.say("/a", "");
    assert_eq!((second.field("Date"), cached(&second)), (Some(made.as_str()), "HIT"));
    // Also in a 304.
    let third = site.ask("/a", &[("If-Modified-Since", &at(0))]);
    assert_eq!((third.status, third.field("Date")), (304, Some(made.as_str())));
    assert_eq!(second.head.all("Date").count(), 1);
    // Without a cache, or where the field is hidden, the date is this server's, as in nginx.
    for target in ["/plain/a", "/hidden/a"] {
        assert_ne!(site.say(target, &text).field("Date"), Some(made.as_str()), "{target}");
    }
}

/// RFC 9110 section 6.6.1: a recipient that caches a response records the time of receipt.
#[test]
fn a_stored_response_without_a_date_gets_the_time_of_receipt() {
    let site = Site::of(Origin::raw(|connection| {
        while connection.read_request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nCache-Control: max-age=60\r\n\r\nx");
        }
    }));
    let first = site.say("/a", "");
    site.stored(1);
    common::until_stale(1);
    let second = site.say("/a", "");
    assert_eq!(cached(&second), "HIT");
    assert_eq!(second.field("Date"), first.field("Date"));
}

#[test]
fn expires_in_another_zone_is_stale() {
    let site = Site::new();
    for (number, (zone, is_good)) in
        [("GMT", true), ("UTC", false), ("EST", false), ("CET", false), ("+0000", false), ("", false)]
            .into_iter()
            .enumerate()
    {
        let target = format!("/{number}");
        let text = format!("Expires: {}", at(3600).replace("GMT", zone));
        let first = site.say(&target, &text).text();
        let is_stored = site.say(&target, &text).text() == first;
        assert_eq!(is_stored, is_good, "{zone}");
    }
}

/// Such a response is stored only if `proxy_cache_revalidate` is on, and is revalidated at each use.
#[test]
fn a_response_with_no_cache_is_stored_and_revalidated_at_each_use() {
    let site = Site::new();
    let fields = [("X-Say", "ETag: \"a\"|Cache-Control: no-cache"), ("X-Same", "\"a\"")];
    let mut stored = site.ask("/again/a", &fields);
    assert_eq!(cached(&stored), "MISS");
    site.stored(1);
    // The file exists shortly before the index has the entry; a request in between is a miss and replaces the entry.
    let revalidated = wait::until("a revalidation", Deadline::default(), || {
        let response = site.ask("/again/a", &fields);
        if cached(&response) != "MISS" {
            return Some(response);
        }
        stored = response;
        None
    });
    let (mut response, fetches) = (revalidated.expect("it is stored"), site.fetches());
    for count in 1..4 {
        assert_eq!((cached(&response), response.text()), ("REVALIDATED", stored.text()));
        response = site.ask("/again/a", &fields);
        assert_eq!(site.fetches(), fetches + count);
    }
    assert_eq!(site.origin.last_request().header("if-none-match").as_deref(), Some("\"a\""));
    // Where nothing is revalidated, a stored response would be useless.
    for _ in 0..2 {
        assert_eq!(cached(&site.ask("/a", &fields)), "MISS");
    }
    site.stored(1);
}

/// A fetch of a response with `no-cache` is not shared (RFC 9111 section 5.2.2.4): waiting requests are sent upstream themselves.
#[test]
fn requests_waiting_for_a_no_cache_response_are_sent_upstream() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.origin.set_handler(move |request| {
        let reply = Reply::text(request.sequence.to_string());
        let reply = reply.header("ETag", "\"a\"").header("Cache-Control", "no-cache");
        if request.sequence == 1 { reply.wait_first(&held) } else { reply }
    });
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(site.server.addr(0))).collect();
    for client in &mut clients {
        client.send("GET /again/a HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    site.origin.wait_for("the first request", |stats| stats.requests == 1);
    gate.open();
    let mut bodies: Vec<String> = clients.iter_mut().map(|client| client.response().text()).collect();
    bodies.sort();
    assert_eq!(bodies, ["1", "2", "3"]);
}

/// RFC 9111 section 4.3.4: a 304 with another strong validator does not apply to the stored response.
#[test]
fn a_304_with_another_tag_does_not_update_the_stored_response() {
    let site = Site::new();
    site.origin.set_handler(|request| match request.header("if-none-match") {
        Some(_) => Reply::new(304).header("ETag", "\"other\"").header("Cache-Control", "max-age=60"),
        None => Reply::text(request.sequence.to_string())
            .header("ETag", "\"a\"")
            .header("Cache-Control", "no-cache"),
    });
    assert_eq!(site.say("/again/a", "").text(), "1");
    site.stored(1);
    // The file has its name shortly before the index has the entry: a request in between is sent without a validator.
    let asked_with_tag = || {
        let response = site.say("/again/a", "");
        site.origin
            .requests()
            .iter()
            .any(|request| request.header("if-none-match").is_some())
            .then_some(response)
    };
    let response = wait::until("a request with a validator", Deadline::default(), asked_with_tag).unwrap();
    assert_eq!((response.status, response.text()), (200, site.fetches().to_string()));
}

#[test]
fn a_stored_200_retains_its_content_range() {
    let site = Site::new();
    let text = "Cache-Control: max-age=60|Content-Range: bytes 0-3/4";
    assert_eq!(site.say("/a", text).field("Content-Range"), Some("bytes 0-3/4"));
    site.stored(1);
    let second = site.say("/a", text);
    assert_eq!((second.status, cached(&second)), (200, "HIT"));
    assert_eq!(second.field("Content-Range"), Some("bytes 0-3/4"));
    let part = site.ask("/a", &[("Range", "bytes=0-0")]);
    assert_eq!((part.status, part.head.all("Content-Range").count()), (206, 1));
}

/// `s-maxage` alone does not forbid use of stale entries that the configuration allows: docs/caching.md explains it.
#[test]
fn must_revalidate_overrides_use_stale() {
    let site = Site::new();
    // Long enough that a slow machine stores them before they are stale.
    let controls = ["max-age=3", "max-age=3, must-revalidate", "max-age=3, proxy-revalidate", "s-maxage=3"];
    let locations = ["/stale/", "/habit/"];
    for location in locations {
        for (number, control) in controls.iter().enumerate() {
            site.say(&format!("{location}{number}"), &format!("Cache-Control: {control}"));
        }
    }
    site.stored(locations.len() * controls.len());
    common::until_stale(3);
    for location in locations {
        for (number, control) in controls.iter().enumerate() {
            let response = site.ask(&format!("{location}{number}"), &[("X-Status", "503")]);
            let is_stale = location == "/habit/" || !control.contains("revalidate");
            let wanted = if is_stale { (200, "STALE") } else { (503, "EXPIRED") };
            assert_eq!((response.status, cached(&response)), wanted, "{location} {control}");
        }
    }
}

#[test]
fn several_ranges_are_honoured_below_min_uses() {
    let objects = Objects::new();
    objects.put("/uses/a", Object::new(100_000).cache_control("max-age=60"));
    let site = Site::of(Origin::objects(&objects));
    let ask = || site.ask("/uses/a", &[("Range", "bytes=0-1,90000-90001")]);
    let first = ask();
    assert_eq!((first.status, cached(&first)), (206, "MISS"));
    assert_eq!(site.origin.last_request().header("range").as_deref(), Some("bytes=0-1,90000-90001"));
    // This is the second use: now the complete response is fetched and stored.
    let second = ask();
    assert_eq!((second.status, cached(&second)), (206, "MISS"));
    assert_eq!(site.origin.last_request().header("range"), None);
    site.stored(1);
    assert_eq!(cached(&ask()), "HIT");
}

#[test]
fn an_accel_expires_in_the_past_allows_stale_while_revalidate() {
    let site = Site::new();
    let moment = date::now() - 10;
    let text = format!("X-Accel-Expires: @{moment}|Cache-Control: max-age=60, stale-while-revalidate=600");
    let mut stored = site.say("/a", &text);
    assert_eq!(cached(&stored), "MISS");
    site.stored(1);
    // The first fetch ends shortly after its file has appeared: until then requests start no other one. A request at that moment may
    // find neither the fetch nor the entry.
    let mut fetches = 1;
    let second = wait::until("a background fetch", Deadline::default(), || {
        let response = site.say("/a", &text);
        if cached(&response) == "MISS" {
            (stored, fetches) = (response, fetches + 1);
            return None;
        }
        assert!(matches!(cached(&response), "STALE" | "UPDATING"), "{}", cached(&response));
        assert_eq!(response.text(), stored.text());
        (cached(&response) == "STALE").then_some(())
    });
    second.expect("a background fetch");
    site.origin.wait_for("the background fetch", |stats| stats.requests == fetches + 1);
    let short = format!("X-Accel-Expires: @{moment}|Cache-Control: max-age=60, stale-while-revalidate=5");
    for _ in 0..2 {
        assert_eq!(cached(&site.say("/b", &short)), "MISS");
    }
}

#[test]
fn if_modified_since_on_a_stored_response_follows_the_rfc() {
    let site = Site::new();
    // One clock reading for all dates: they are compared to the second.
    let now = date::now();
    let at = |seconds: i64| date::format(now.wrapping_add_signed(seconds));
    let (modified, made) = (at(-5000), at(-100));
    for target in ["/a", "/exact/a"] {
        site.say(target, &format!("Cache-Control: max-age=600|Last-Modified: {modified}|Date: {made}"));
    }
    site.say("/b", &format!("Cache-Control: max-age=600|Date: {made}"));
    site.stored(3);
    for (target, since, wanted) in [
        ("/a", at(-5001), 200),
        ("/a", modified.clone(), 304),
        ("/a", at(-4000), 304),
        ("/a", "yesterday".to_owned(), 200),
        // The date replaces an unknown modification time.
        ("/b", at(-101), 200),
        ("/b", at(-100), 304),
        ("/exact/a", modified.clone(), 304),
        ("/exact/a", at(-4000), 200),
    ] {
        let response = site.ask(target, &[("If-Modified-Since", &since)]);
        assert_eq!((response.status, cached(&response)), (wanted, "HIT"), "{target} {since}");
    }
}

#[test]
fn equivalent_accept_language_values_select_the_same_variant() {
    let site = Site::new();
    let ask = |languages: &str| {
        let fields =
            [("X-Say", "Cache-Control: max-age=60|Vary: Accept-Language"), ("Accept-Language", languages)];
        site.ask("/a", &fields)
    };
    assert_eq!(cached(&ask("de-CH, en;q=0.5")), "MISS");
    site.stored(1);
    for same in ["DE-ch,en;q=0.5", "en;q=0.50 , de-CH", "de-CH;q=1.0,en; q=0.5"] {
        assert_eq!(cached(&ask(same)), "HIT", "{same}");
    }
    assert_eq!(cached(&ask("de-CH, en;q=0.6")), "MISS");
}

#[test]
fn interim_responses_are_passed_on_for_a_miss() {
    let site = Site::of(Origin::start(|_| {
        let reply = Reply::text("x").header("Cache-Control", "max-age=60");
        reply.interim(103, &[("Link", "</a>")]).interim(102, &[]).interim(100, &[])
    }));
    let statuses = |target: &str| {
        let mut client = Client::connect(site.server.addr(0));
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let mut found = Vec::new();
        while found.last().is_none_or(|status| *status < 200) {
            found.push(client.head().status);
        }
        found
    };
    let first = statuses("/hints/a");
    assert!(first.contains(&102) && first.contains(&103) && !first.contains(&100), "{first:?}");
    site.stored(1);
    assert_eq!(statuses("/hints/a"), [200]);
    assert_eq!(statuses("/a"), [200]);
}

/// A background fetch must not write to the connection on which the response is being sent.
#[test]
fn interim_responses_of_a_background_fetch_are_dropped() {
    let site = Site::of(Origin::start(|request| {
        let control = "max-age=1, stale-while-revalidate=600";
        Reply::text(request.sequence.to_string())
            .header("Cache-Control", control)
            .interim(103, &[("Link", "</a>")])
    }));
    let mut client = Client::connect(site.server.addr(0));
    client.send("GET /hints/a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status, 103);
    assert_eq!(client.response().text(), "1");
    site.stored(1);
    common::until_stale(1);
    let response = client.request("GET", "/hints/a", &[]);
    assert_eq!((response.status, cached(&response), response.text().as_str()), (200, "STALE", "1"));
    site.origin.wait_for("the background fetch", |stats| stats.requests == 2 && stats.in_flight == 0);
    let head = client.request("GET", "/hints/a", &[]);
    assert_eq!(head.status, 200);
}
