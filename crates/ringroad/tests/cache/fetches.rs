//! Fetches of one key that overlap, stall, or deliver less than announced: a client never gets an older response after
//! a newer one, never waits endlessly for another client's fetch, and never gets a wrong byte.

use crate::common::BINARY;
use testkit::burst::{Outcome, assert_all_right};
use testkit::client::request_bytes;
use testkit::origin::{self, At, Do, Etag, Framing, Object, Objects, Origin, OriginRequest, Reply};
use testkit::{Burst, Client, Content, Gate, Response, Server, Setup};

const CONF: &str = "worker_processes 2; error_log logs/error.log info;
events { worker_connections 1024; @FAULTS@ }
http {
  access_log off;
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@ keys_zone=z:1m;
  proxy_cache z;
  proxy_cache_key $uri$is_args$args;
  proxy_cache_bypass $http_x_refresh;
  add_header X-Cache $upstream_cache_status always;
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    # A fetch that brings nothing for so long is left alone.
    location /short/ { proxy_pass http://@ORIGIN@; proxy_cache_lock_timeout 200ms; }
    location /plain-head/ { proxy_pass http://@ORIGIN@; proxy_cache_convert_head off; }
    location /own-head/ {
      proxy_pass http://@ORIGIN@;
      proxy_cache_convert_head off;
      proxy_cache_key $request_method$uri;
    }
    location /on/ { proxy_pass http://@ORIGIN@; proxy_cache_lock on; proxy_cache_lock_timeout 200ms; }
  }
}
";

fn start_with(origin: &Origin, faults: &str) -> (Setup, Server) {
    let setup = Setup::new(&CONF.replace("@FAULTS@", faults)).origin(origin);
    let server = setup.start(BINARY);
    (setup, server)
}

fn start(origin: &Origin) -> (Setup, Server) {
    start_with(origin, "")
}

fn cacheable_object(size: u64) -> Object {
    Object::new(size).cache_control("max-age=3600")
}

/// Returns the version of the object in a response; checks that the response is complete and of one version.
#[track_caller]
fn version(target: &str, response: &Response) -> u64 {
    match origin::objects::check(target, response) {
        Ok(checked) => checked.version,
        Err(wrong) => panic!("{target}: {wrong}\n{:?}", response.head),
    }
}

/// A small body is written when it is complete, a large one while it is received.
const SIZES: [u64; 3] = [1000, 100_000, 1_000_000];

#[test]
fn no_client_gets_an_older_response_after_the_last_byte_of_a_newer_one() {
    let objects = Objects::new();
    objects.rule(|target| Some(cacheable_object(target.rsplit_once('-')?.1.parse().ok()?)));
    let origin = Origin::objects(&objects);
    // The disk is slow: the response is complete long before its entry has its final name.
    let (_setup, server) = start_with(&origin, "engine_fault write delay=2ms;");
    let mut old = 0;
    for size in SIZES {
        let target = format!("/a-{size}");
        objects.put(&target, cacheable_object(size));
        let (mut client, mut other) = (Client::connect(server.addr(0)), Client::connect(server.addr(0)));
        version(&target, &client.get(&target));
        for round in 2..52 {
            objects.renew(&target);
            let new = client.request("GET", &target, &[("X-Refresh", "1")]);
            assert_eq!(version(&target, &new), round);
            // The same connection, and one that may be served by another thread.
            for client in [&mut client, &mut other] {
                old += u64::from(version(&target, &client.get(&target)) != round);
            }
        }
    }
    assert_eq!(old, 0, "of 300 responses");
}

#[test]
fn an_older_response_that_ends_last_does_not_replace_a_newer_one() {
    let gate = Gate::new();
    let objects = Objects::new();
    let held = gate.clone();
    let tune = move |request: &OriginRequest, reply: Reply| match request.sequence {
        1 => reply.wait_at(50_000, &held),
        _ => reply,
    };
    objects.put("/a", cacheable_object(100_000).tune(tune));
    let origin = Origin::objects(&objects);
    let (_setup, server) = start(&origin);
    let mut first = Client::connect(server.addr(0));
    first.send(request_bytes("GET", "/a", &[]));
    gate.wait_reached();
    objects.renew("/a");
    let mut client = Client::connect(server.addr(0));
    assert_eq!(version("/a", &client.request("GET", "/a", &[("X-Refresh", "1")])), 2);
    assert_eq!(version("/a", &client.get("/a")), 2);
    gate.open();
    assert_eq!(version("/a", &first.response()), 1);
    for _ in 0..50 {
        assert_eq!(version("/a", &first.get("/a")), 2);
    }
    assert_eq!(origin.stats().requests, 2);
}

/// The first fetch stops at the gate. The clients that have joined it still get their responses, and so does a later
/// one; the first client waits.
#[track_caller]
fn only_the_first_client_waits(
    target: &str,
    object: Object,
    request: &[u8],
    stop_at: Option<u64>,
) -> (Vec<Outcome>, Vec<OriginRequest>) {
    let gate = Gate::new();
    let objects = Objects::new();
    let held = gate.clone();
    let tune = move |request: &OriginRequest, reply: Reply| match (request.sequence, stop_at) {
        (1, Some(place)) => reply.wait_at(place, &held),
        (1, None) => reply.wait_first(&held),
        _ => reply,
    };
    objects.put(target, object.tune(tune));
    let origin = Origin::objects(&objects);
    let (_setup, server) = start(&origin);
    let burst = (0..6).fold(Burst::new(server.addr(0)).keep(4_000_000), |burst, _| burst.request(request));
    let running = burst.start();
    gate.wait_reached();
    running.wait_for("all clients but the first", |progress| progress.ended == 5);
    let mut late = Client::connect(server.addr(0));
    late.send(request);
    let late = late.response();
    assert!(matches!(late.status, 200 | 206), "{target}");
    assert_eq!(running.progress().ended, 5, "{target}: the first one still waits");
    gate.open();
    let outcomes = running.join();
    assert_all_right(&outcomes, late.status);
    for outcome in &outcomes {
        assert_eq!(outcome.body, late.body, "{target}: client {}", outcome.client);
    }
    (outcomes, origin.requests())
}

#[test]
fn a_fetch_that_stalls_blocks_no_other_client() {
    let get = |target: &str| request_bytes("GET", target, &[]);
    let bare = |size| cacheable_object(size).etag(Etag::None).without_last_modified();
    for (target, object, stop_at) in [
        ("/short/head", cacheable_object(300_000), None),
        ("/short/small", cacheable_object(1000), Some(500)),
        ("/short/strong", cacheable_object(300_000), Some(150_000)),
        ("/short/bare", bare(300_000), Some(150_000)),
        ("/short/chunked", bare(300_000).framing(Framing::Chunked), Some(150_000)),
        ("/short/far", cacheable_object(3_000_000), Some(2_000_000)),
        ("/short/no-ranges", cacheable_object(3_000_000).without_ranges(), Some(2_000_000)),
        ("/on/head", cacheable_object(300_000), None),
        ("/on/strong", cacheable_object(300_000), Some(150_000)),
    ] {
        let (outcomes, requests) = only_the_first_client_waits(target, object, &get(target), stop_at);
        let content = Content::named(target, 1, outcomes[0].body_bytes);
        content.assert_body(&outcomes[0].body);
        // A position far from the start is not reached by a fetch from the start for this client.
        let has_range = requests.iter().any(|request| request.header("range").is_some());
        assert_eq!(has_range, stop_at == Some(2_000_000), "{target}");
    }
}

#[test]
fn a_range_that_stalls_blocks_no_other_client() {
    for stop_at in [None, Some(100_000)] {
        let request = request_bytes("GET", "/short/a", &[("Range", "bytes=1000-250000")]);
        let (outcomes, _) =
            only_the_first_client_waits("/short/a", cacheable_object(300_000), &request, stop_at);
        let content = Content::named("/short/a", 1, 300_000);
        assert_eq!(outcomes[0].body, content.bytes(1000..250_001));
    }
}

#[test]
fn a_client_whose_fetch_stalls_gets_no_byte_of_another_response() {
    const SIZE: u64 = 300_000;
    let gate = Gate::new();
    let held = gate.clone();
    let content = |sequence: u64| Content::new(sequence, SIZE);
    let origin = Origin::start(move |request| {
        let reply = Reply::ok().header("Cache-Control", "max-age=3600").content(content(request.sequence));
        if request.sequence == 1 { reply.wait_at(SIZE / 2, &held) } else { reply }
    });
    let (_setup, server) = start(&origin);
    let running = Burst::new(server.addr(0)).get("/short/a", 6).keep(SIZE as usize).start();
    gate.wait_reached();
    running.wait_for("all clients but the first", |progress| progress.ended == 5);
    gate.open();
    let outcomes = running.join();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.body == content(1).bytes(0..SIZE)).count(), 1);
    let (mut cut, mut whole) = (0, 0);
    for outcome in &outcomes {
        match &outcome.fault {
            // The received bytes are of the first response.
            Some(_) => {
                cut += 1;
                assert_eq!(outcome.body, content(1).bytes(0..outcome.body_bytes));
            }
            // A client that arrived after the first fetch had stalled may get another response.
            None => {
                whole += 1;
                let is_whole = |sequence| outcome.body == content(sequence).bytes(0..SIZE);
                assert!((1..=origin.stats().requests).any(is_whole), "client {}", outcome.client);
            }
        }
    }
    assert_eq!((cut + whole, cut > 0), (6, true), "{whole} are complete");
}

/// Parts whose length differs from their `Content-Range`; complete responses are correct.
#[test]
fn a_range_of_the_wrong_length_is_not_stored() {
    const SIZE: u64 = 1_000_000;
    const PART: std::ops::Range<u64> = 0..131_072;
    let content = Content::new(7, SIZE);
    let origin = Origin::start(|_| Reply::new(404));
    // Whether the part's length is announced, and the number of bytes that are sent.
    for (is_told, count) in [(true, 100_000), (true, 0), (true, 140_000), (false, 100_000), (false, 140_000)]
    {
        let (_setup, server) = start(&origin);
        let gate = Gate::new();
        let held = gate.clone();
        origin.set_handler(move |request| {
            let reply =
                |status| Reply::new(status).header("Cache-Control", "max-age=3600").header("ETag", "\"a\"");
            if request.header("range").is_none() {
                return reply(200).content(content);
            }
            let range = format!("bytes {}-{}/{SIZE}", PART.start, PART.end - 1);
            let part = reply(206).header("Content-Range", range).content_range(content, 0..count);
            if is_told { part } else { part.chunked(&[]).at(At::Body(50_000), Do::Wait(held.clone())) }
        });
        let range = [("Range", "bytes=0-120000")];
        let wanted = content.bytes(0..120_001);
        let mut client = Client::connect(server.addr(0));
        client.send(request_bytes("GET", "/a", &[range[0], ("Connection", "close")]));
        if is_told {
            let response = client.response();
            assert!(
                response.status == 206 && response.body == wanted,
                "{count} bytes: {:?} {:?}",
                response.head,
                origin.requests()
            );
        } else {
            // The head is sent before the length is known: the response is truncated, so that it does not look
            // complete. If the part is too long, the client may have received its range before that is known.
            let head = client.head();
            assert_eq!(head.status, 206, "{count} bytes");
            gate.open();
            let body = client.read_to_end();
            let is_truncated = body.len() < wanted.len();
            assert!((is_truncated || count > PART.end) && wanted.starts_with(&body), "{count} bytes");
        }
        // Nothing of the wrong part is stored.
        for range in [&range[..], &[]] {
            let response = Client::connect(server.addr(0)).request("GET", "/a", range);
            let wanted = if range.is_empty() { content.bytes(0..SIZE) } else { wanted.clone() };
            assert_eq!(response.status, if range.is_empty() { 200 } else { 206 }, "{count} bytes");
            assert!(response.body == wanted, "{count} bytes");
        }
    }
}

/// The origin receives a GET, and the body is fetched for the cache in the background.
#[test]
fn a_head_request_does_not_wait_for_the_body() {
    let bare = |size| cacheable_object(size).etag(Etag::None).without_last_modified();
    for (target, object) in [
        ("/small", cacheable_object(1000)),
        ("/medium", cacheable_object(50_000)),
        ("/large", cacheable_object(1_000_000)),
        ("/chunked", bare(50_000).framing(Framing::Chunked)),
    ] {
        let gate = Gate::new();
        let objects = Objects::new();
        let held = gate.clone();
        objects.put(target, object.tune(move |_, reply| reply.wait_at(10, &held)));
        let origin = Origin::objects(&objects);
        let (_setup, server) = start(&origin);
        // The origin is still sending the body.
        for status in ["MISS", "HIT"] {
            let response = Client::connect(server.addr(0)).request("HEAD", target, &[]);
            assert_eq!((response.status, response.field("X-Cache")), (200, Some(status)), "{target}");
            let length = response.field("Content-Length").is_some();
            assert_eq!(length, target != "/chunked", "{target}");
        }
        gate.open();
        let response = Client::connect(server.addr(0)).get(target);
        assert_eq!(response.field("X-Cache"), Some("HIT"), "{target}");
        objects.content(target).assert_body(&response.body);
        assert_eq!(origin.stats().requests, 1, "{target}");
    }
}

/// With `proxy_cache_convert_head off` a response to HEAD is stored for HEAD, whether the method is in the key or not,
/// and never used for GET.
#[test]
fn a_head_response_is_stored_separately_if_not_converted() {
    const SIZE: u64 = 50_000;
    for target in ["/plain-head/a", "/own-head/a"] {
        let objects = Objects::new();
        objects.put(target, cacheable_object(SIZE).vary(&["Accept-Language"]));
        objects.put(&format!("{target}-plain"), cacheable_object(SIZE));
        let origin = Origin::objects(&objects);
        let (_setup, server) = start(&origin);
        let mut client = Client::connect(server.addr(0));
        let mut head = |target: &str, language: &str| {
            let response = client.request("HEAD", target, &[("Accept-Language", language)]);
            assert_eq!((response.status, response.field("Content-Length")), (200, Some("50000")));
            response.field("X-Cache").unwrap_or_default().to_owned()
        };
        let mut other = Client::connect(server.addr(0));
        for target in [target.to_owned(), format!("{target}-plain")] {
            let before = origin.stats().requests;
            assert_eq!([head(&target, "de"), head(&target, "de")], ["MISS", "HIT"], "{target}");
            let response = other.request("GET", &target, &[("Accept-Language", "de")]);
            assert_eq!(response.field("X-Cache"), Some("MISS"), "{target}");
            assert_eq!(response.body.len() as u64, SIZE, "{target}");
            let response = other.request("GET", &target, &[("Accept-Language", "de")]);
            assert_eq!(response.field("X-Cache"), Some("HIT"), "{target}");
            assert_eq!(response.body.len() as u64, SIZE, "{target}");
            assert_eq!(head(&target, "de"), "HIT", "{target}");
            assert_eq!(origin.stats().requests - before, 2, "{target}");
        }
    }
}
