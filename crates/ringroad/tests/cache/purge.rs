//! Removal of stored responses, tested with the binary: purges by key, pattern, tag and of everything, hard and soft,
//! and requests with unsafe methods. Also the request fields by which clients control the cache where that is allowed.

use crate::common;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{BINARY, ours_only};
use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Gate, Server, Setup};

/// One location for each way to purge; the key is the requested URI.
const CONF: &str = "worker_processes 2; error_log logs/error.log info;
events { }
http {
  keepalive_requests 100000;
  proxy_cache_path @CACHE@ levels=1:2 keys_zone=c:1m use_temp_path=off;
  map $request_method $is_purge { PURGE 1; default 0; }
  map $http_x_soft $is_soft { default 0; yes 1; }
  map $http_x_all $is_all { default 0; yes 1; }
  proxy_cache c;
  proxy_cache_purge $is_purge;
  proxy_cache_purge_soft $is_soft;
  proxy_cache_tag_header Surrogate-Key;
  proxy_cache_purge_tag_header Surrogate-Key;
  proxy_cache_status_header test;
  proxy_cache_bypass $http_x_bypass;
  add_header X-Cache $upstream_cache_status always;
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /all/ { proxy_cache_purge_all $is_all; proxy_pass http://@ORIGIN@; }
    location /habit/ { proxy_cache_invalidate off; proxy_pass http://@ORIGIN@; }
    location /control/ { proxy_cache_request_control on; proxy_pass http://@ORIGIN@; }
    location /bare/ { proxy_cache off; proxy_pass http://@ORIGIN@; }
    location /own/ { proxy_cache_key $request_method$uri$is_args$args; proxy_pass http://@ORIGIN@; }
    location /old/ { rewrite ^/old/(.*)$ /own/$1 last; }
  }
}
";

/// Returns an origin handler whose responses are numbered.
fn numbered() -> impl Fn(&OriginRequest) -> Reply + Send + Sync + 'static {
    let count = Arc::new(AtomicU64::new(0));
    move |request| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let reply = Reply::text(format!("{number}"));
        match request.method.as_str() {
            "GET" => {
                let tags = request.path().trim_matches('/').replace('/', " ");
                let fresh_for = if request.path().contains("brief") { "max-age=1" } else { "max-age=600" };
                // Some origins send several fields, others separate tags by commas.
                let tags = if request.path().contains("comma") { tags.replace(' ', ",") } else { tags };
                let reply = reply.header("Surrogate-Key", tags).header("Cache-Control", fresh_for);
                match request.path().contains("vary") {
                    true => reply.header("Vary", "X-Kind"),
                    false => reply,
                }
            }
            _ => {
                let get = |name: &str| request.header(name);
                let reply = match get("X-Location") {
                    Some(value) => reply.header("Location", value),
                    None => reply,
                };
                let reply = match get("X-Content-Location") {
                    Some(value) => reply.header("Content-Location", value),
                    None => reply,
                };
                match get("X-Fail") {
                    Some(_) => Reply::new(409),
                    None => reply,
                }
            }
        }
    }
}

fn start() -> (Origin, Setup, Server, Client) {
    let origin = Origin::start(numbered());
    let setup = Setup::new(CONF).origin(&origin);
    let server = setup.start(BINARY);
    let client = Client::connect(server.addr(0));
    (origin, setup, server, client)
}

/// Returns cache status and body.
fn get(client: &mut Client, target: &str, fields: &[(&str, &str)]) -> (String, String) {
    let response = client.request("GET", target, fields);
    (response.head.field("X-Cache").unwrap_or("-").to_owned(), response.text())
}

/// Repeats a request until its response is stored, not merely being filled: a fill ends after its clients have their
/// responses.
#[track_caller]
fn store(client: &mut Client, target: &str, fields: &[(&str, &str)]) -> String {
    for _ in 0..ASKED_MAX {
        let response = client.request("GET", target, fields);
        if response.head.field("Cache-Status").is_some_and(|value| value.starts_with("test; hit")) {
            return response.text();
        }
    }
    panic!("{target} is not stored");
}

/// Maximum number of requests, far more than are needed while a disk stores a few bytes.
const ASKED_MAX: u32 = 10_000;

fn status(client: &mut Client, method: &str, target: &str, fields: &[(&str, &str)]) -> u16 {
    client.request(method, target, fields).head.status
}

#[test]
fn a_purge_removes_one_entry_with_all_its_variants() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    let (origin, _setup, _server, mut client) = start();
    let other = store(&mut client, "/other", &[]);
    store(&mut client, "/vary", &[("X-Kind", "a")]);
    store(&mut client, "/vary", &[("X-Kind", "b")]);
    assert_eq!(status(&mut client, "PURGE", "/vary", &[]), 204);
    for kind in ["a", "b"] {
        assert_eq!(get(&mut client, "/vary", &[("X-Kind", kind)]).0, "MISS", "{kind}");
    }
    assert_eq!(get(&mut client, "/other", &[]), ("HIT".to_owned(), other));
    assert_eq!(status(&mut client, "PURGE", "/never-asked", &[]), 404);
    // The upstream receives no purge, but where no cache exists a purge is an ordinary request.
    assert!(origin.requests().iter().all(|request| request.method == "GET"));
    assert_eq!(status(&mut client, "PURGE", "/bare/x", &[]), 200);
    assert_eq!(origin.last_request().method, "PURGE");
}

#[test]
fn a_key_with_a_star_is_a_pattern() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    let (_origin, _setup, _server, mut client) = start();
    for target in ["/a/1", "/a/2?x", "/b/1"] {
        store(&mut client, target, &[]);
    }
    assert_eq!(status(&mut client, "PURGE", "/a/*", &[]), 204);
    assert_eq!(get(&mut client, "/a/1", &[]).0, "MISS");
    assert_eq!(get(&mut client, "/a/2?x", &[]).0, "MISS");
    assert_eq!(get(&mut client, "/b/1", &[]).0, "HIT");
}

#[test]
fn purges_by_tag_and_of_the_complete_cache() {
    if !ours_only("a directive that nginx does not have") {
        return;
    }
    let (_origin, _setup, server, mut client) = start();
    for target in ["/red/one", "/red/two", "/blue/one", "/comma/three"] {
        store(&mut client, target, &[]);
    }
    assert_eq!(status(&mut client, "PURGE", "/", &[("Surrogate-Key", "three")]), 204);
    assert_eq!(get(&mut client, "/comma/three", &[]).0, "MISS");
    assert_eq!(status(&mut client, "PURGE", "/", &[("Surrogate-Key", "one, green")]), 204);
    assert_eq!(get(&mut client, "/red/one", &[]).0, "MISS");
    assert_eq!(get(&mut client, "/blue/one", &[]).0, "MISS");
    assert_eq!(get(&mut client, "/red/two", &[]).0, "HIT");
    // A field without any tag must not become a purge of the key.
    assert_eq!(status(&mut client, "PURGE", "/red/two", &[("Surrogate-Key", " , ")]), 400);
    // A 400 closes its connection, as in nginx.
    let mut client = Client::connect(server.addr(0));
    let many = (0..65).map(|number| format!("t{number} ")).collect::<String>();
    assert_eq!(status(&mut client, "PURGE", "/", &[("Surrogate-Key", &many)]), 400);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(get(&mut client, "/red/two", &[]).0, "HIT");
    assert_eq!(status(&mut client, "GET", "/all/", &[("X-All", "yes")]), 204);
    assert_eq!(get(&mut client, "/red/two", &[]).0, "MISS");
}

#[test]
fn softly_purged_entries_are_revalidated() {
    if !ours_only("a directive that nginx does not have") {
        return;
    }
    let (_origin, _setup, _server, mut client) = start();
    // A purge removes an entry completely if it is still being filled, so the first requests may miss on a busy machine.
    let mut last = String::new();
    for number in 0..10 {
        let target = format!("/soft/{number}");
        let old = store(&mut client, &target, &[]);
        assert_eq!(status(&mut client, "PURGE", &target, &[("X-Soft", "yes")]), 204);
        let (status, new) = get(&mut client, &target, &[]);
        assert_ne!(old, new);
        assert_ne!(store(&mut client, &target, &[]), old);
        last = status;
        if last == "EXPIRED" {
            break;
        }
    }
    assert_eq!(last, "EXPIRED");
}

#[test]
fn a_purge_survives_a_restart_of_the_server() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    let (_origin, setup, server, mut client) = start();
    store(&mut client, "/gone", &[]);
    let kept = store(&mut client, "/kept", &[]);
    // Until the entries are stored, responses are sent from memory, which a killed process loses.
    common::cache::wait_for_entries(&setup, 2);
    assert_eq!(status(&mut client, "PURGE", "/gone", &[]), 204);
    drop(client);
    // Nothing is saved when the process is killed.
    server.signal(rustix::process::Signal::KILL);
    drop(server);
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(get(&mut client, "/gone", &[]).0, "MISS");
    assert_eq!(get(&mut client, "/kept", &[]), ("HIT".to_owned(), kept));
}

/// A purge that would not survive a crash is not reported as done, and a process that does not own the directory cannot
/// purge it.
#[test]
fn a_failed_purge_is_reported() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    let origin = Origin::start(numbered());
    let faults = "events { engine_fault write error=EIO path=@CACHE@/ringroad.purges while=@DATA@/switch; }";
    let setup = Setup::new(&CONF.replace("events { }", faults)).origin(&origin);
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    let all = ["/one", "/two*", "/all/x"];
    // Each purge on a separate connection: a 500 closes its connection.
    let purge = |server: &Server, target: &str| {
        let fields: &[(&str, &str)] = if target.starts_with("/all/") { &[("X-All", "yes")] } else { &[] };
        status(&mut Client::connect(server.addr(0)), "PURGE", target, fields)
    };
    store(&mut client, "/one", &[]);
    std::fs::write(setup.data().join("switch"), "").expect("a writable directory");
    for target in all {
        assert_eq!(purge(&server, target), 500, "{target}");
    }
    server
        .wait_for_log("cache purge failed: writing a purge failed: Input/output error", Deadline::default());
    std::fs::remove_file(setup.data().join("switch")).expect("it was made");
    for target in &all[1..] {
        assert_eq!(purge(&server, target), 204, "{target}");
    }
    // Nothing is stored for a second after the failure. In this time `store` could exceed its maximum number of requests.
    server.wait_for_log(": the disk works again", Deadline::default());
    // A second server with the same directory only reads, and purges nothing.
    store(&mut client, "/three", &[]);
    let other = setup.start(BINARY);
    for target in all {
        assert_eq!(purge(&other, target), 503, "{target}");
    }
    other.wait_for_log("cache purge failed: another process owns the cache's directory", Deadline::default());
    assert_eq!(get(&mut client, "/three", &[]).0, "HIT");
    drop((client, server));
    // The directory has no owner now.
    other.wait_for_log("this process fills the directory", Deadline::default());
    assert_eq!(purge(&other, "/two*"), 204);
}

/// A cache that could not be opened has nothing to purge, but it may be opened later.
#[test]
fn an_unavailable_cache_refuses_purges() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    let origin = Origin::start(numbered());
    let place = testkit::TempDir::new("no-folder");
    place.write("file", "");
    let setup = Setup::new(CONF).origin(&origin).cache_in(&place.path().join("file"));
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(status(&mut client, "PURGE", "/x", &[]), 503);
    server.wait_for_log("cache purge failed: the cache could not be opened", Deadline::default());
}

#[test]
fn responses_requested_before_a_purge_are_not_stored_after_it() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    for how in ["PURGE", "POST"] {
        let gate = Gate::new();
        let held = gate.clone();
        let count = AtomicU64::new(0);
        let origin = Origin::start(move |request| {
            if request.method == "POST" {
                return Reply::new(204);
            }
            // Marked by a field and not by its order: the response to this request may be sent after the next one's.
            let is_early = request.header("x-early").is_some();
            let number = if is_early { 0 } else { 1 + count.fetch_add(1, Ordering::Relaxed) };
            let reply = Reply::text(format!("{number}")).header("Cache-Control", "max-age=600");
            if is_early { reply.wait_first(&held) } else { reply }
        });
        let setup = Setup::new(CONF).origin(&origin);
        let server = setup.start(BINARY);
        let mut early = Client::connect(server.addr(0));
        early.send(testkit::client::request_bytes("GET", "/x", &[("X-Early", "yes")]));
        origin.wait_for("the first request", |stats| stats.of("/x") == 1);
        let mut client = Client::connect(server.addr(0));
        status(&mut client, how, "/x", &[]);
        // A later request does not join a fetch that was started before the purge.
        assert_eq!(get(&mut client, "/x", &[]).1, "1", "{how}");
        gate.open();
        assert_eq!(early.response().text(), "0", "{how}");
        assert_eq!(get(&mut client, "/x", &[]).1, "1", "{how}");
    }
}

/// The head of the early response arrives after the purge. Later requests join its fetch neither at the key of its
/// variant nor, after a bypass, as a new fetch.
#[test]
fn responses_requested_before_a_purge_are_not_joined_after_it() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    // Longer than the server gathers before it sends the head.
    let early_body = "early".repeat(40_000);
    for (how, bypass) in [("PURGE", "0"), ("POST", "0"), ("PURGE", "1"), ("POST", "1")] {
        let sent = early_body.clone();
        let (before_head, in_body) = (Gate::new(), Gate::new());
        let held = (before_head.clone(), in_body.clone());
        let origin = Origin::start(move |request| {
            if request.method == "POST" {
                return Reply::new(204);
            }
            let is_early = request.header("x-bypass").is_some();
            let reply = Reply::text(if is_early { sent.as_str() } else { "late" });
            let reply = reply.header("Cache-Control", "max-age=600").header("Vary", "X-Kind");
            if is_early { reply.wait_first(&held.0).wait_at(100_000, &held.1) } else { reply }
        });
        let setup = Setup::new(CONF).origin(&origin);
        let server = setup.start(BINARY);
        let mut early = Client::connect(server.addr(0));
        early.send(testkit::client::request_bytes("GET", "/x", &[("X-Bypass", bypass)]));
        origin.wait_for("the first request", |stats| stats.of("/x") == 1);
        let mut client = Client::connect(server.addr(0));
        status(&mut client, how, "/x", &[]);
        before_head.open();
        let head = early.head();
        assert_eq!(get(&mut client, "/x", &[]).1, "late", "{how}, bypass {bypass}");
        in_body.open();
        let body = std::io::read_to_string(early.body(&head)).expect("the rest of the early response");
        assert!(body == early_body, "{how}, bypass {bypass}: {} bytes", body.len());
        assert_eq!(get(&mut client, "/x", &[]).1, "late", "{how}, bypass {bypass}");
    }
}

#[test]
fn an_unsafe_request_invalidates_stored_responses() {
    if !ours_only("RFC 9111 section 4.4, which nginx does not implement") {
        return;
    }
    let (_origin, _setup, _server, mut client) = start();
    for method in ["POST", "PUT", "DELETE", "PATCH", "UNKNOWN"] {
        store(&mut client, "/page?q", &[]);
        assert_eq!(status(&mut client, method, "/page?q", &[]), 200);
        assert_eq!(get(&mut client, "/page?q", &[]).0, "MISS", "{method}");
    }
    store(&mut client, "/page?q", &[]);
    assert_eq!(status(&mut client, "POST", "/page?q", &[("X-Fail", "1")]), 409);
    assert_eq!(status(&mut client, "OPTIONS", "/page?q", &[]), 200);
    assert_eq!(get(&mut client, "/page?q", &[]).0, "HIT");
    store(&mut client, "/habit/x", &[]);
    assert_eq!(status(&mut client, "POST", "/habit/x", &[]), 200);
    assert_eq!(get(&mut client, "/habit/x", &[]).0, "HIT");
}

#[test]
fn location_targets_on_this_host_are_invalidated() {
    if !ours_only("RFC 9111 section 4.4, which nginx does not implement") {
        return;
    }
    let (_origin, _setup, server, mut client) = start();
    for target in ["/list", "/item", "/far"] {
        store(&mut client, target, &[]);
    }
    let here = format!("http://{}/list", server.addr(0));
    let fields = [
        ("X-Location", here.as_str()),
        ("X-Content-Location", "item"),
        ("Host", &server.addr(0).to_string()),
    ];
    assert_eq!(status(&mut client, "POST", "/new", &fields), 200);
    assert_eq!(get(&mut client, "/list", &[]).0, "MISS");
    assert_eq!(get(&mut client, "/item", &[]).0, "MISS");
    let fields = [("X-Location", "http://elsewhere.example/far")];
    assert_eq!(status(&mut client, "POST", "/new", &fields), 200);
    assert_eq!(get(&mut client, "/far", &[]).0, "HIT");
}

#[test]
fn invalidation_uses_the_key_of_a_get_request() {
    if !ours_only("RFC 9111 section 4.4, which nginx does not implement") {
        return;
    }
    let (origin, _setup, _server, mut client) = start();
    // The method is in the key, the path has escapes, and the URI is rewritten.
    for target in ["/own/a%2Fb%20c?x=1", "/old/x"] {
        store(&mut client, target, &[]);
        let before = origin.stats().requests;
        assert_eq!(status(&mut client, "POST", target, &[]), 200);
        assert_eq!(origin.stats().requests, before + 1, "nothing but the request itself goes upstream");
        assert_eq!(get(&mut client, target, &[]).0, "MISS", "{target}");
    }
}

#[test]
fn clients_may_force_newer_responses_where_configured() {
    if !ours_only("a directive that nginx does not have") {
        return;
    }
    let (_origin, _setup, _server, mut client) = start();
    let first = store(&mut client, "/control/a", &[]);
    let no_cache = [("Cache-Control", "no-cache")];
    let (status_word, second) = get(&mut client, "/control/a", &no_cache);
    assert_eq!(status_word, "EXPIRED");
    assert_ne!(first, second);
    // While the new response is being stored, it is as new as a response of the origin.
    for field in [("Pragma", "no-cache"), ("Cache-Control", "min-fresh=601")] {
        let is_new = (0..ASKED_MAX).any(|_| get(&mut client, "/control/a", &[field]).0 == "EXPIRED");
        assert!(is_new, "{field:?}");
    }
    for harmless in ["max-age=600", "min-fresh=300", "max-stale", "no-transform"] {
        assert_eq!(get(&mut client, "/control/a", &[("Cache-Control", harmless)]).0, "HIT", "{harmless}");
    }
    // In other locations a client cannot bypass the cache.
    store(&mut client, "/a", &[]);
    assert_eq!(get(&mut client, "/a", &no_cache).0, "HIT");
}

/// RFC 9111 section 5.2.2.4
#[test]
fn fields_named_by_no_cache_are_not_stored() {
    if !ours_only("nginx does not store such responses") {
        return;
    }
    let origin = Origin::start(|_| {
        Reply::text("x")
            .header("Cache-Control", "max-age=60, no-cache=\"X-One\"")
            .header("X-One", "1")
            .header("X-All", "2")
    });
    let setup = Setup::new(CONF).origin(&origin);
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    store(&mut client, "/x", &[]);
    let response = client.get("/x");
    assert_eq!((response.head.field("X-One"), response.head.field("X-All")), (None, Some("2")));
}

#[test]
fn only_if_cached_and_no_store_of_clients_are_obeyed() {
    if !ours_only("a directive that nginx does not have") {
        return;
    }
    let (origin, _setup, _server, mut client) = start();
    let only = [("Cache-Control", "only-if-cached")];
    assert_eq!(status(&mut client, "GET", "/control/b", &only), 504);
    assert_eq!(origin.stats().requests, 0);
    assert_eq!(get(&mut client, "/control/b", &[("Cache-Control", "no-store")]).0, "MISS");
    assert_eq!(status(&mut client, "GET", "/control/b", &only), 504);
    store(&mut client, "/control/b", &[]);
    assert_eq!(status(&mut client, "GET", "/control/b", &only), 200);
}

/// A variant that is still being written to the disk is available to requests; a purge removes it too.
#[test]
fn a_purge_removes_variants_that_are_still_being_written() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    let (_origin, _setup, _server, mut client) = start();
    for number in 0..60 {
        let target = format!("/vary/{number}");
        let old = ["a", "b"].map(|kind| store(&mut client, &target, &[("X-Kind", kind)]));
        assert_eq!(status(&mut client, "PURGE", &target, &[]), 204);
        let new = ["a", "b"].map(|kind| get(&mut client, &target, &[("X-Kind", kind)]).1);
        assert!(new.iter().all(|text| !old.contains(text)), "{number}: {old:?} {new:?}");
    }
}
