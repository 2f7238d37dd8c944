//! Ranges of cached objects: stored completely, being filled, or not stored. The origin's record shows the fetched
//! ranges, and every body is compared with the origin's object.

use crate::common;
use crate::common::BINARY;
use testkit::burst::assert_all_right;
use testkit::client::request_bytes;
use testkit::origin::{At, Do, Etag, Object, Objects, Origin, objects};
use testkit::{Burst, Client, Deadline, Gate, Response, Server, Setup};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  log_format up '$upstream_cache_status|$status|$upstream_status|$request';
  access_log logs/access.log up;
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@ keys_zone=z:1m;
  proxy_cache z;
  proxy_cache_key $uri$is_args$args;
  proxy_cache_status_header test;
  add_header X-Cache $upstream_cache_status always;
  gzip_types *; gzip_min_length 1;
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; proxy_cache_request_control on; }
    location /whole/ { proxy_pass http://@ORIGIN@; proxy_cache_parts off; }
    location /offset/ { proxy_pass http://@ORIGIN@; proxy_cache_max_range_offset 100000; }
    location ~ ^/streamed(?<target>/.*)$ { proxy_cache_key $target; proxy_pass http://@ORIGIN@$target; proxy_buffering off; }
    location /zip/ { proxy_pass http://@ORIGIN@; gzip on; }
    location /uses/ { proxy_pass http://@ORIGIN@; proxy_cache_min_uses 2; }
    location /any/ { proxy_pass http://@ORIGIN@; proxy_cache_valid any 1h; }
    location /stale/ { proxy_pass http://@ORIGIN@; proxy_cache_use_stale error timeout http_500; }
    location /again/ { proxy_pass http://@ORIGIN@; proxy_cache_revalidate on; }
  }
}
";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Unit of holes and stored parts in bytes.
const CHUNK: u64 = 64 * KIB;

fn cacheable_object(size: u64) -> Object {
    Object::new(size).cache_control("max-age=3600")
}

struct Site {
    objects: Objects,
    origin: Origin,
    setup: Setup,
    server: Server,
}

impl Site {
    fn new() -> Site {
        let objects = Objects::new();
        let origin = Origin::objects(&objects);
        let setup = Setup::new(CONF).origin(&origin);
        let server = setup.start(BINARY);
        Site { objects, origin, setup, server }
    }

    fn request(&self, target: &str, fields: &[(&str, &str)]) -> Response {
        Client::connect(self.server.addr(0)).request("GET", target, fields)
    }

    /// Requests a range; checks that the response is the origin's current object, and returns its cache status.
    #[track_caller]
    fn range(&self, target: &str, range: &str) -> String {
        self.range_with(target, range, &[])
    }

    #[track_caller]
    fn range_with(&self, target: &str, range: &str, more: &[(&str, &str)]) -> String {
        let response = self.checked(target, range, more);
        response.field("X-Cache").unwrap_or_default().to_owned()
    }

    /// Returns a response; checks that it is the origin's current object.
    #[track_caller]
    fn checked(&self, target: &str, range: &str, more: &[(&str, &str)]) -> Response {
        let response = self.request_range(target, range, more);
        self.settled();
        response
    }

    /// Like [`Self::checked`], but does not wait for the end of the origin's response.
    #[track_caller]
    fn request_range(&self, target: &str, range: &str, more: &[(&str, &str)]) -> Response {
        let response = self.request(target, &[&[("Range", range)], more].concat());
        assert_eq!(response.status, 206, "{range} of {target}");
        let checked =
            objects::check(target, &response).unwrap_or_else(|wrong| panic!("{range} of {target}: {wrong}"));
        let wanted: Vec<_> =
            range["bytes=".len()..].split(',').map(|one| resolve(one.trim(), checked.size)).collect();
        assert_eq!(checked.parts, wanted, "{range} of {target}");
        response
    }

    #[track_caller]
    fn request_all(&self, target: &str) -> String {
        let response = self.request(target, &[]);
        assert_eq!(response.status, 200, "{target}");
        objects::check(target, &response).unwrap_or_else(|wrong| panic!("{target}: {wrong}"));
        response.field("X-Cache").unwrap_or_default().to_owned()
    }

    /// Waits until a range is stored, which is shortly after its last client has received it.
    #[track_caller]
    fn until_stored(&self, target: &str, range: &str) {
        let stored = || is_stored(&self.checked(target, range, &[])).then_some(());
        testkit::wait::until("the fetched bytes to be stored", Deadline::default(), stored)
            .unwrap_or_else(|error| panic!("{error}"));
        let _ = self.ranges_at_origin();
    }

    /// Waits until a range is stored, without causing requests to the origin.
    #[track_caller]
    fn wait_until_stored(&self, target: &str, range: &str) {
        let fields = [("Range", range), ("Cache-Control", "only-if-cached")];
        let kept = || is_stored(&self.request(target, &fields)).then_some(());
        testkit::wait::until("the range to be stored", Deadline::default(), kept)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns the file of an entry, whose key is the target.
    fn file_of(&self, target: &str) -> std::path::PathBuf {
        let holds = |path: &std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes.windows(target.len()).any(|window| window == target.as_bytes())
        };
        let mut found = common::cache::entries(&self.setup).into_iter().filter(holds);
        found.next().unwrap_or_else(|| panic!("no entry for {target}"))
    }

    /// Waits until the origin has responded to all requests.
    fn settled(&self) {
        self.origin.wait_for("the end of all", |stats| stats.in_flight == 0);
    }

    /// Returns the ranges that the origin received since the last call, `-` for the complete object.
    fn ranges_at_origin(&self) -> Vec<String> {
        let requests = self.origin.requests();
        self.origin.forget_requests();
        requests.iter().map(|request| request.header("range").unwrap_or_else(|| "-".to_owned())).collect()
    }
}

/// Returns whether a response is a hit; a request that joined another's fetch is a hit too.
fn is_stored(response: &Response) -> bool {
    response.field("Cache-Status").is_some_and(|value| value.starts_with("test; hit"))
}

fn resolve(text: &str, size: u64) -> std::ops::Range<u64> {
    let (first, last) = text.split_once('-').expect("it is a range");
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) => first..(last + 1).min(size),
        (Ok(first), Err(_)) => first..size,
        (Err(_), last) => size - last.expect("it is a suffix").min(size)..size,
    }
}

/// Returns the range of complete chunks around a range.
fn chunks(first: u64, end: u64) -> String {
    format!("bytes={}-{}", first / CHUNK * CHUNK, end.next_multiple_of(CHUNK) - 1)
}

#[test]
fn stored_objects_serve_any_range() {
    let site = Site::new();
    for (target, size) in [("/small", 10_000), ("/large", 3 * MIB + 17)] {
        site.objects.put(target, cacheable_object(size));
        assert_eq!(site.request_all(target), "MISS");
        let _ = site.ranges_at_origin();
        let last = format!("bytes=-{}", size / 2);
        let edge = format!("bytes={}-{}", size - 1, size + 100);
        for range in ["bytes=0-0", "bytes=100-4999", "bytes=5000-", &last, &edge, "bytes=0-9,20-29,9000-9999"]
        {
            assert_eq!(site.range(target, range), "HIT");
        }
        let beyond = site.request(target, &[("Range", "bytes=99999999-")]);
        let content_range = format!("bytes */{size}");
        assert_eq!((beyond.status, beyond.field("Content-Range")), (416, Some(content_range.as_str())));
        let etag = site.request(target, &[]).field("ETag").expect("it has one").to_owned();
        assert_eq!(site.range_with(target, "bytes=1-2", &[("If-Range", &etag)]), "HIT");
        let other = site.request(target, &[("Range", "bytes=1-2"), ("If-Range", "\"other\"")]);
        assert_eq!((other.status, other.body.len() as u64), (200, size));
        assert_eq!(site.ranges_at_origin(), [""; 0]);
    }
}

#[test]
fn a_miss_fetches_only_the_needed_bytes() {
    let site = Site::new();
    site.objects.put("/a", cacheable_object(10 * MIB));
    assert_eq!(site.range("/a", "bytes=3000000-3100000"), "MISS");
    assert_eq!(site.ranges_at_origin(), [chunks(3_000_000, 3_100_001)]);
    site.until_stored("/a", "bytes=3000000-3100000");
    // Any stored range, including the chunks around the requested bytes.
    assert_eq!(site.range("/a", "bytes=3000000-3100000"), "HIT");
    assert_eq!(site.range("/a", "bytes=3050000-3050001"), "HIT");
    assert_eq!(site.range("/a", "bytes=2950000-3000000"), "HIT");
    assert_eq!(site.ranges_at_origin(), [""; 0]);
    assert_eq!(site.range("/a", "bytes=-1000"), "MISS");
    assert!(site.ranges_at_origin().len() == 1);
    site.until_stored("/a", "bytes=-1000");
    // A range across two stored parts: only the hole between them is fetched.
    assert_eq!(site.range("/a", "bytes=3400000-3500000"), "MISS");
    site.until_stored("/a", "bytes=3400000-3500000");
    let (from, to) = (3_100_001_u64.next_multiple_of(CHUNK), 3_400_000 / CHUNK * CHUNK);
    assert_eq!(site.range("/a", "bytes=3000000-3500000"), "MISS");
    assert_eq!(site.ranges_at_origin(), [format!("bytes={from}-{}", to - 1)]);
    site.until_stored("/a", "bytes=3000000-3500000");
    // The complete object, with the fewest holes: before and after.
    assert_eq!(site.request_all("/a"), "MISS");
    site.settled();
    let asked = site.ranges_at_origin();
    assert!(asked.len() <= 3 && asked[0].starts_with("bytes=0-"), "{asked:?}");
    site.until_stored("/a", "bytes=0-");
    assert_eq!(site.request_all("/a"), "HIT");
    assert_eq!(site.range("/a", "bytes=5-6,9000000-9000001"), "HIT");
    assert_eq!(site.ranges_at_origin(), [""; 0]);
}

/// If the condition of a range is false, the client gets the complete object, even if only a part of the object is stored.
#[test]
fn a_range_request_that_needs_the_complete_object_fetches_it() {
    let site = Site::new();
    site.objects.put("/a", cacheable_object(MIB));
    let response = site.request("/a", &[("Range", "bytes=200000-300000"), ("If-Range", "\"other\"")]);
    assert_eq!(response.status, 200);
    objects::check("/a", &response).expect("the complete object");
    // A filter that changes the body needs the complete object, whatever range the client requests.
    site.objects.put("/zip/a", cacheable_object(MIB));
    let fields = [("Range", "bytes=200000-300000"), ("Accept-Encoding", "gzip")];
    let zipped = site.request("/zip/a", &fields);
    assert_eq!((zipped.status, zipped.field("Content-Encoding")), (200, Some("gzip")));
    site.settled();
    // The same with a stored part after the requested range.
    site.range("/zip/a", "bytes=900000-");
    site.until_stored("/zip/a", "bytes=900000-");
    let zipped = site.request("/zip/a", &fields);
    assert_eq!(zipped.status, 200);
    site.objects.put("/b", cacheable_object(MIB));
    site.range("/b", "bytes=900000-");
    site.until_stored("/b", "bytes=900000-");
    let response = site.request("/b", &[("Range", "bytes=200000-300000"), ("If-Range", "\"other\"")]);
    objects::check("/b", &response).expect("the complete object");
    site.range("/b", "bytes=100-200");
}

#[test]
fn ranges_of_an_object_being_fetched_are_served() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    let size = 4 * MIB;
    site.objects.put(
        "/a",
        cacheable_object(size).tune(move |request, reply| match request.header("range") {
            None => reply.wait_at(2 * MIB, &held),
            Some(_) => reply,
        }),
    );
    let whole = Burst::new(site.server.addr(0)).get("/a", 1).expect(site.objects.content("/a")).start();
    gate.wait_reached();
    whole.wait_for("its first half", |progress| progress.body_bytes >= 2 * MIB - CHUNK);
    // Received bytes are served from the fill; bytes far ahead of it are fetched separately.
    let response = site.request("/a", &[("Range", "bytes=1000000-1000099")]);
    objects::check("/a", &response).expect("a correct range");
    assert_eq!(response.field("X-Cache"), Some("HIT"));
    let response = site.request("/a", &[("Range", "bytes=10-20,1000000-1000099")]);
    objects::check("/a", &response).expect("correct ranges");
    let response = site.request("/a", &[("Range", "bytes=4000000-4000099")]);
    objects::check("/a", &response).expect("a correct range");
    assert_eq!(site.ranges_at_origin(), ["-".to_owned(), chunks(4_000_000, 4_000_100)]);
    // A range that begins within the received bytes and ends after them joins the fill.
    let request = request_bytes("GET", "/a", &[("Range", "bytes=2000000-3000000")]);
    let along = Burst::new(site.server.addr(0)).request(request).keep(2 * MIB as usize).start();
    along.wait_for("its head", |progress| progress.heads == 1);
    gate.open();
    assert_all_right(&whole.join(), 200);
    objects::check("/a", &along.join()[0].response()).expect("a correct range");
    assert_eq!(site.request_all("/a"), "HIT");
    assert_eq!(site.ranges_at_origin(), [""; 0]);
}

#[test]
fn the_same_range_is_fetched_once() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put("/a", cacheable_object(4 * MIB).tune(move |_, reply| reply.wait_first(&held)));
    let request = request_bytes("GET", "/a", &[("Range", "bytes=1000000-1100000")]);
    let burst = (0..50)
        .fold(Burst::new(site.server.addr(0)).keep(200_000), |burst, _| burst.request(request.clone()));
    let running = burst.start();
    running.wait_for("all requests", |progress| progress.sent == 50);
    gate.wait_reached();
    gate.open();
    let outcomes = running.join();
    assert_all_right(&outcomes, 206);
    for outcome in &outcomes {
        objects::check("/a", &outcome.response()).expect("a correct range");
    }
    assert_eq!(site.origin.stats().requests, 1);
}

/// Requests that join have the bytes as soon as the first request has them, not only when the range is complete.
#[test]
fn requests_for_the_same_range_share_its_fetch() {
    let site = Site::new();
    let size = 12 * MIB;
    // More than is buffered in memory, from an offset that is not a chunk's start.
    for (number, range, held_at) in [(1, "bytes=1000000-9000000", 5 * MIB), (2, "bytes=-7000001", 3 * MIB)] {
        let target = format!("/{number}");
        let gate = Gate::new();
        let held = gate.clone();
        site.objects.put(&target, cacheable_object(size).tune(move |_, reply| reply.wait_at(held_at, &held)));
        let request = request_bytes("GET", &target, &[("Range", range)]);
        let clients = |count: usize| {
            let burst = Burst::new(site.server.addr(0)).keep(8 * MIB as usize);
            (0..count).fold(burst, |burst, _| burst.request(request.clone()))
        };
        let first = clients(1).start();
        gate.wait_reached();
        let others = clients(20).start();
        // The bytes received before the gate, for each client.
        let least = 20 * (held_at - 2 * MIB);
        others.wait_for("the first bytes", |progress| progress.heads == 20 && progress.body_bytes >= least);
        assert_eq!(site.origin.stats().of(&target), 1, "{range}");
        gate.open();
        for outcomes in [first.join(), others.join()] {
            assert_all_right(&outcomes, 206);
            for outcome in &outcomes {
                let checked = objects::check(&target, &outcome.response()).expect("a correct range");
                assert_eq!(checked.parts, [resolve(&range["bytes=".len()..], size)]);
            }
        }
        assert_eq!(site.origin.stats().of(&target), 1, "{range}");
        // Received bytes are stored, except those of incomplete chunks.
        site.wait_until_stored(&target, "bytes=6000000-8900000");
    }
}

#[test]
fn stored_ranges_serve_requests_for_these_bytes() {
    let site = Site::new();
    site.objects.put("/a", cacheable_object(12 * MIB));
    assert_eq!(site.range("/a", "bytes=1000000-5000000"), "MISS");
    site.wait_until_stored("/a", "bytes=2000000-4000000");
    assert_eq!(site.ranges_at_origin(), [chunks(1_000_000, 5_000_001)]);
    let only = |range| site.request("/a", &[("Range", range), ("Cache-Control", "only-if-cached")]).status;
    assert_eq!(only("bytes=1000000-5000000"), 206);
    assert_eq!(only("bytes=4000000-6000000"), 504);
    assert_eq!(only("bytes=0-"), 504);
    assert_eq!(site.ranges_at_origin(), [""; 0]);
}

/// A part of a range being fetched is not fetched again, unless it is far ahead.
#[test]
fn requests_for_a_subrange_share_the_fetch_of_the_range() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    let size = 12 * MIB;
    site.objects.put(
        "/a",
        cacheable_object(size).tune(move |request, reply| match request.header("range").as_deref() {
            Some("bytes=0-8060927") => reply.wait_at(2 * MIB, &held),
            _ => reply,
        }),
    );
    let first =
        Burst::new(site.server.addr(0)).request(request_bytes("GET", "/a", &[("Range", "bytes=0-8000000")]));
    let first = first.start();
    gate.wait_reached();
    site.request_range("/a", "bytes=1000000-1500000", &[]);
    assert_eq!(site.origin.stats().of("/a"), 1, "these bytes were received");
    site.request_range("/a", "bytes=7000000-7000099", &[]);
    assert_eq!(site.origin.stats().of("/a"), 2, "the range is 5 MiB ahead");
    gate.open();
    assert_all_right(&first.join(), 206);
}

/// Concurrent fetches of ranges of an object that was not stored before: none replaces another's entry.
#[test]
fn concurrent_first_ranges_are_all_stored() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put("/a", cacheable_object(8 * MIB).tune(move |_, reply| reply.wait_at(0, &held)));
    let ranges = ["bytes=0-99", "bytes=2000000-2200000", "bytes=4194304-4294303", "bytes=-70000"];
    let burst = Burst::new(site.server.addr(0)).keep(MIB as usize);
    let clients = ranges
        .iter()
        .fold(burst, |burst, range| burst.request(request_bytes("GET", "/a", &[("Range", range)])));
    let running = clients.start();
    site.origin.wait_for("all requests", |stats| stats.requests == ranges.len() as u64);
    gate.open();
    let outcomes = running.join();
    assert_all_right(&outcomes, 206);
    for outcome in &outcomes {
        objects::check("/a", &outcome.response()).expect("a correct range");
    }
    site.settled();
    for range in ["bytes=0-65535", "bytes=2031616-2162687", "bytes=4194304-4259839", "bytes=-65536"] {
        site.until_stored("/a", range);
    }
    assert_eq!(site.origin.stats().requests, ranges.len() as u64);
}

/// Two requests fetch different holes: both are stored.
#[test]
fn different_holes_are_filled_concurrently() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put(
        "/a",
        cacheable_object(8 * MIB).tune(move |request, reply| match request.header("range").as_deref() {
            Some("bytes=1048576-2097151") => reply.wait_at(2 * CHUNK, &held),
            _ => reply,
        }),
    );
    site.range("/a", "bytes=0-99");
    site.until_stored("/a", "bytes=0-99");
    let range = [("Range", "bytes=1048576-2097151")];
    let first = Burst::new(site.server.addr(0)).request(request_bytes("GET", "/a", &range)).start();
    gate.wait_reached();
    let stored = || is_stored(&site.request_range("/a", "bytes=4194304-4294303", &[])).then_some(());
    testkit::wait::until("the second hole to be stored", Deadline::default(), stored)
        .unwrap_or_else(|error| panic!("{error}"));
    gate.open();
    assert_all_right(&first.join(), 206);
    assert_eq!(site.ranges_at_origin(), [chunks(MIB, 2 * MIB), chunks(4 * MIB, 4 * MIB + 2 * CHUNK)]);
    site.until_stored("/a", "bytes=1048576-2097151");
    assert_eq!(site.ranges_at_origin(), [""; 0]);
}

/// A hole is fetched once, whichever requests need it; if a client disconnects, the others use the fetch that it had
/// begun.
#[test]
fn requests_that_need_the_same_hole_share_its_fetch() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put(
        "/a",
        cacheable_object(8 * MIB).tune(move |request, reply| match request.header("range").as_deref() {
            Some("bytes=0-65535") => reply,
            _ => reply.wait_at(MIB, &held),
        }),
    );
    site.range("/a", "bytes=0-99");
    site.until_stored("/a", "bytes=0-99");
    let mut first = Client::connect(site.server.addr(0));
    first.send(request_bytes("GET", "/a", &[]));
    assert_eq!(first.head().status, 200);
    gate.wait_reached();
    let others = Burst::new(site.server.addr(0)).get("/a", 20).expect(site.objects.content("/a")).start();
    others.wait_for("the received bytes", |progress| progress.body_bytes >= 20 * (MIB - CHUNK));
    first.reset();
    gate.open();
    assert_all_right(&others.join(), 200);
    assert_eq!(site.ranges_at_origin(), [chunks(CHUNK, 8 * MIB)]);
    assert_eq!(site.request_all("/a"), "HIT");
}

/// If the origin fails, all requests that waited for the fetch get the same failure.
#[test]
fn requests_waiting_for_a_range_get_its_failure() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put(
        "/a",
        cacheable_object(MIB).tune(move |_, reply| reply.wait_first(&held).at(At::Wire(0), Do::Close)),
    );
    let request = request_bytes("GET", "/a", &[("Range", "bytes=0-1000")]);
    let burst = (0..20).fold(Burst::new(site.server.addr(0)), |burst, _| burst.request(request.clone()));
    let running = burst.start();
    running.wait_for("all requests", |progress| progress.sent == 20);
    gate.wait_reached();
    // Requests that arrive after the failure are sent upstream themselves.
    let waiting = site.origin.stats().requests;
    gate.open();
    assert_all_right(&running.join(), 502);
    assert!(waiting == 1 && site.origin.stats().requests < 20, "{:?}", site.origin.stats());
}

/// The origin gets one request, whatever ranges the clients request.
#[test]
fn an_origin_without_ranges_gets_one_request() {
    let site = Site::new();
    let (gate, half) = (Gate::new(), Gate::new());
    let (held, middle) = (gate.clone(), half.clone());
    let object = cacheable_object(MIB).without_ranges();
    site.objects.put("/a", object.tune(move |_, reply| reply.wait_first(&held).wait_at(MIB / 2, &middle)));
    let request = |client: u64| {
        let range = format!("bytes={}-{}", 1000 + client % 3 * 300_000, 2000 + client % 3 * 300_000);
        request_bytes("GET", "/a", &[("Range", &range)])
    };
    let clients =
        |count: u64| (0..count).fold(Burst::new(site.server.addr(0)), |all, one| all.request(request(one)));
    let running = clients(1).start();
    gate.wait_reached();
    gate.open();
    half.wait_reached();
    let others = clients(60).start();
    others.wait_for("all requests", |progress| progress.sent == 60);
    others.wait_for("the available bytes", |progress| progress.ended == 40);
    half.open();
    for outcomes in [running.join(), others.join()] {
        assert_all_right(&outcomes, 206);
        for outcome in &outcomes {
            objects::check("/a", &outcome.response()).expect("a correct range");
        }
    }
    assert_eq!(site.origin.stats().requests, 1);
    site.until_stored("/a", "bytes=0-");
}

#[test]
fn a_newer_version_replaces_the_stored_ranges() {
    let site = Site::new();
    for (target, ranges) in [("/a", true), ("/b", false)] {
        site.objects.put(target, cacheable_object(MIB));
        assert_eq!(site.range(target, "bytes=0-1000"), "MISS");
        site.until_stored(target, "bytes=0-1000");
        site.objects.renew(target);
        if !ranges {
            site.objects.change(target, Object::without_ranges);
        }
        // The stored part is of the old version, the hole of the new one: never both in one response.
        assert_eq!(site.range(target, "bytes=0-400000"), "MISS");
        site.until_stored(target, "bytes=0-1000");
        let response = site.request(target, &[]);
        assert_eq!(objects::check(target, &response).expect("all bytes are of one version").version, 2);
    }
}

/// The second of two holes is of another version than the first: the head is already sent, so the response is
/// truncated.
#[test]
fn a_version_change_between_holes_truncates_the_response() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put(
        "/a",
        cacheable_object(8 * MIB).tune(move |request, reply| match request.header("x-hold") {
            Some(_) if request.header("range").is_some_and(|range| range.starts_with("bytes=0-")) => {
                reply.wait_first(&held)
            }
            _ => reply,
        }),
    );
    site.range("/a", "bytes=4000000-4100000");
    site.until_stored("/a", "bytes=4000000-4100000");
    let mut client = Client::connect(site.server.addr(0));
    client.send(request_bytes("GET", "/a", &[("X-Hold", "1")]));
    gate.wait_reached();
    site.objects.renew("/a");
    gate.open();
    let fault = client.try_response();
    assert!(fault.is_err(), "half of it is of another version");
    site.settled();
    let response = site.request("/a", &[]);
    assert_eq!(objects::check("/a", &response).expect("all bytes are of one version").version, 2);
}

#[test]
fn ranges_without_a_strong_validator_are_not_combined() {
    let site = Site::new();
    let weak = [
        cacheable_object(MIB).etag(Etag::Weak),
        cacheable_object(MIB).etag(Etag::Weak).without_last_modified(),
    ];
    for (number, object) in weak.into_iter().enumerate() {
        let target = format!("/weak{number}");
        site.objects.put(&target, object);
        let _ = site.ranges_at_origin();
        assert_eq!(site.range(&target, "bytes=0-1000"), "MISS");
        site.wait_until_stored(&target, "bytes=0-1000");
        // The complete object is one entry, of which any range is available.
        assert_eq!(site.range(&target, "bytes=500000-600000"), "HIT");
        assert_eq!(site.ranges_at_origin().len(), 2, "the range, then the complete object");
    }
}

/// Parts of such an object cannot be combined, so each range would cost a fetch.
#[test]
fn ranges_of_an_object_without_validators_are_fetched_once() {
    let site = Site::new();
    site.objects.put("/bare", cacheable_object(MIB).etag(Etag::None).without_last_modified());
    for start in 0..10 {
        let range = format!("bytes={}-{}", start * 100_000, start * 100_000 + 999);
        let response = site.request("/bare", &[("Range", &range)]);
        assert_eq!((response.status, response.body.len()), (206, 1000));
        let fields = [("Range", "bytes=0-1000"), ("Cache-Control", "only-if-cached")];
        let kept = || is_stored(&site.request("/bare", &fields)).then_some(());
        testkit::wait::until("the object to be stored", Deadline::default(), kept).expect("it can be stored");
    }
    assert_eq!(site.ranges_at_origin().len(), 2, "the first range, then the complete object");
}

/// If the object may not be stored, a range does not cost a transfer of the complete object.
#[test]
fn ranges_without_validators_that_may_not_be_stored_remain_ranges() {
    let site = Site::new();
    site.objects.put(
        "/bare",
        cacheable_object(MIB).cache_control("no-store").etag(Etag::None).without_last_modified(),
    );
    for _ in 0..3 {
        let response = site.request("/bare", &[("Range", "bytes=500000-600000")]);
        assert_eq!((response.status, response.field("X-Cache")), (206, Some("MISS")));
    }
    assert!(site.ranges_at_origin().iter().all(|range| range != "-"));
}

/// The fields of each part decide whether it may be stored (RFC 9111 section 3), not those of the entry that it could be added to.
#[test]
fn a_part_that_may_not_be_stored_is_not_added_to_an_entry() {
    let site = Site::new();
    let secret = [("Authorization", "Basic eDp5")];
    for (target, control, fields) in
        [("/no-store", "no-store", &[][..]), ("/private", "private", &[]), ("/secret", "", &secret)]
    {
        site.objects.put(target, cacheable_object(MIB));
        assert_eq!(site.range(target, "bytes=0-1000"), "MISS");
        site.until_stored(target, "bytes=0-1000");
        if !control.is_empty() {
            site.objects.change(target, |object| object.cache_control(control));
        }
        assert_eq!(site.range_with(target, "bytes=400000-400100", fields), "MISS", "{target}");
        assert_eq!(site.range(target, "bytes=400000-400100"), "MISS", "{target}");
        assert_eq!(site.ranges_at_origin().len(), 2, "{target}");
        assert_eq!(site.range(target, "bytes=0-1000"), "HIT", "{target}");
    }
}

/// Without buffering nothing is added to an entry, but its ranges are used.
#[test]
fn stored_ranges_are_hits_without_buffering() {
    let site = Site::new();
    site.objects.put("/a", cacheable_object(MIB));
    assert_eq!(site.range("/a", "bytes=300000-301000"), "MISS");
    site.until_stored("/a", "bytes=300000-301000");
    let response = site.request("/streamed/a", &[("Range", "bytes=300500-300509")]);
    assert_eq!((response.status, response.field("X-Cache"), response.body.len()), (206, Some("HIT"), 10));
    assert_eq!(site.ranges_at_origin(), [""; 0]);
    let response = site.request("/streamed/a", &[("Range", "bytes=600000-600009")]);
    assert_eq!((response.status, response.field("X-Cache"), response.body.len()), (206, Some("MISS"), 10));
    site.settled();
    assert_eq!(site.ranges_at_origin().len(), 1);
    assert_eq!(site.range("/a", "bytes=600000-600009"), "MISS", "it was not stored");
}

#[test]
fn a_416_response_is_not_stored() {
    let site = Site::new();
    site.objects.put("/any/a", cacheable_object(1000));
    let response = site.request("/any/a", &[("Range", "bytes=200000-300000")]);
    assert_eq!((response.status, response.field("Content-Range")), (416, Some("bytes */1000")));
    assert_eq!(site.request_all("/any/a"), "MISS");
    assert_eq!(site.request_all("/any/a"), "HIT");
}

#[test]
fn ranges_beyond_max_range_offset_are_passed_on() {
    let site = Site::new();
    site.objects.put("/offset/a", cacheable_object(MIB));
    for range in ["bytes=100001-100100", "bytes=100001-100100", "bytes=1000-2000"] {
        assert_eq!(site.range("/offset/a", range), "MISS");
    }
    assert_eq!(site.ranges_at_origin()[..2], ["bytes=100001-100100", "bytes=100001-100100"]);
    site.until_stored("/offset/a", "bytes=1000-2000");
}

/// The offset itself is beyond the limit, and so are the last bytes, whose offset is not known.
#[test]
fn ranges_at_max_range_offset_and_of_the_last_bytes_are_passed_on() {
    let site = Site::new();
    site.objects.put("/offset/a", cacheable_object(MIB));
    let passed = ["bytes=100000-100100", "bytes=100000-", "bytes=-5", "bytes=-5"];
    for range in passed {
        assert_eq!(site.range("/offset/a", range), "MISS");
    }
    assert_eq!(site.ranges_at_origin(), passed);
    // The first of several ranges counts, also of a HEAD request.
    let several = [("Range", "bytes=200000-200009,5-9")];
    assert_eq!(site.request("/offset/a", &several).field("X-Cache"), Some("MISS"));
    let _ = Client::connect(site.server.addr(0)).request("HEAD", "/offset/a", &several);
    site.settled();
    assert_eq!(site.ranges_at_origin(), [several[0].1; 2]);
    assert_eq!(site.range("/offset/a", "bytes=99999-100100"), "MISS");
    assert_eq!(site.ranges_at_origin(), ["bytes=65536-131071"]);
}

#[test]
fn the_complete_object_is_fetched_if_ranges_are_not_cached() {
    let site = Site::new();
    site.objects.put("/whole/a", cacheable_object(MIB));
    assert_eq!(site.range("/whole/a", "bytes=300000-300100"), "MISS");
    assert_eq!(site.ranges_at_origin(), ["-"]);
    assert_eq!(site.range("/whole/a", "bytes=-5"), "HIT");
    assert_eq!(site.request_all("/whole/a"), "HIT");
}

#[test]
fn min_uses_counts_range_requests_too() {
    let site = Site::new();
    site.objects.put("/uses/a", cacheable_object(MIB));
    let statuses = [(); 2].map(|()| site.range("/uses/a", "bytes=0-99"));
    assert_eq!(statuses, ["MISS", "MISS"]);
    site.until_stored("/uses/a", "bytes=0-99");
}

/// A complete stale object serves ranges if the origin fails, and is not discarded for a part.
#[test]
fn stale_objects_serve_ranges_if_the_origin_fails() {
    let site = Site::new();
    for target in ["/stale/a", "/stale/part", "/again/a"] {
        site.objects.put(target, Object::new(MIB).header("X-Accel-Expires", "1"));
    }
    site.request_all("/stale/a");
    site.request_all("/again/a");
    site.range("/stale/part", "bytes=0-99");
    site.until_stored("/stale/part", "bytes=0-99");
    common::until_stale(1);
    for target in ["/stale/a", "/stale/part"] {
        site.objects.change(target, |object| object.status(500));
    }
    site.objects.change("/again/a", |_| Object::new(MIB).header("X-Accel-Expires", "600"));
    assert_eq!(site.range("/stale/a", "bytes=500000-600000"), "STALE");
    assert_eq!(site.range("/stale/part", "bytes=0-99"), "STALE");
    // The requested range is not stored.
    assert_eq!(site.request("/stale/part", &[("Range", "bytes=500000-600000")]).status, 500);
    let _ = site.ranges_at_origin();
    assert_eq!(site.range("/again/a", "bytes=500000-600000"), "REVALIDATED");
    assert_eq!(site.request_all("/again/a"), "HIT");
    assert_eq!(site.origin.stats().of("/again/a"), 1);
}

/// A stale part is never combined with later bytes: a 304 makes it fresh again, any other response removes it.
#[test]
fn stale_ranges_are_revalidated_or_removed() {
    let site = Site::new();
    for target in ["/a", "/again/a", "/again/b", "/again/c"] {
        site.objects.put(target, Object::new(MIB).header("X-Accel-Expires", "1"));
        site.range(target, "bytes=0-99");
        site.until_stored(target, "bytes=0-99");
    }
    common::until_stale(1);
    site.objects.renew("/again/b");
    site.objects.change("/again/c", |_| Object::new(MIB).header("X-Accel-Expires", "600"));
    let _ = site.ranges_at_origin();
    // Another range of the same object, and the complete object: neither contains bytes of the old part.
    assert_eq!(site.range("/a", "bytes=200000-300000"), "EXPIRED");
    assert_eq!(site.ranges_at_origin(), [chunks(200_000, 300_001)]);
    assert_eq!(site.range("/again/a", "bytes=0-99"), "EXPIRED");
    assert_eq!(site.range("/again/b", "bytes=0-99"), "EXPIRED");
    let response = site.request("/again/b", &[]);
    assert_eq!(objects::check("/again/b", &response).expect("all bytes are of one version").version, 2);
    // A validated part would still not be the complete object.
    assert_eq!(site.request_all("/again/c"), "EXPIRED");
    assert_eq!(site.request_all("/again/c"), "HIT");
}

/// A range that is damaged on the disk becomes a hole, or the request becomes a miss. The bytes are fetched from the origin.
#[test]
fn damaged_ranges_are_fetched_again() {
    let mut site = Site::new();
    let spoils: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes[100] ^= 1,
        |bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        },
        |bytes| bytes.truncate(bytes.len() - 1000),
        |bytes| {
            let half = bytes.len() / 2;
            bytes[half..].fill(0);
        },
        Vec::clear,
    ];
    let targets: Vec<String> = (0..spoils.len()).map(|number| format!("/spoiled-{number}.")).collect();
    for target in &targets {
        site.objects.put(target, cacheable_object(MIB));
        site.range(target, "bytes=200000-500000");
        site.until_stored(target, "bytes=200000-500000");
    }
    let server = std::mem::replace(&mut site.server, site.setup.start(BINARY));
    drop(server);
    site.server.wait_for_log("this process fills the directory", Deadline::default());
    for (target, spoil) in targets.iter().zip(spoils) {
        let file = site.file_of(target);
        let mut bytes = std::fs::read(&file).expect("an entry");
        spoil(&mut bytes);
        std::fs::write(&file, bytes).expect("a file");
        let _ = site.ranges_at_origin();
        // The response is correct in any case, and the correct bytes are stored again.
        site.range(target, "bytes=200000-500000");
        assert!(!site.ranges_at_origin().is_empty(), "{target}: it was damaged");
        site.range(target, "bytes=100000-600000");
        site.request_all(target);
        site.until_stored(target, "bytes=200000-500000");
    }
}

/// The client has all its bytes before their chunk is complete.
#[test]
fn a_chunk_is_stored_after_its_client_has_all_bytes() {
    let site = Site::new();
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put("/a", cacheable_object(MIB).tune(move |_, reply| reply.wait_at(1000, &held)));
    // One chunk that other requests wait for, and one that takes too long and is abandoned.
    assert_eq!(site.request("/a", &[("Range", "bytes=0-99")]).status, 206);
    gate.wait_reached();
    gate.open();
    site.until_stored("/a", "bytes=1000-65535");
    assert_eq!(site.origin.stats().requests, 1);
    let gate = Gate::new();
    let held = gate.clone();
    site.objects.put(
        "/b",
        cacheable_object(32 * MIB).tune(move |request, reply| match request.sequence {
            2 => reply.wait_at(1000, &held),
            _ => reply,
        }),
    );
    let mut player = Client::connect(site.server.addr(0));
    player.send(request_bytes("GET", "/b", &[("Range", "bytes=0-")]));
    gate.wait_reached();
    assert_eq!(player.head().status, 206);
    player.reset();
    gate.open();
    site.origin.wait_for("the end of the fetch", |stats| stats.aborted == 1);
    site.until_stored("/b", "bytes=10-60000");
}

/// Objects that are larger than the memory buffers are written to the disk and read again.
#[test]
fn large_objects_are_served_unchanged() {
    let site = Site::new();
    let size = 24 * MIB + 4321;
    site.objects.put("/a", cacheable_object(size));
    let all = |clients: usize| {
        Burst::new(site.server.addr(0)).get("/a", clients).expect(site.objects.content("/a")).keep(0).run()
    };
    assert_all_right(&all(3), 200);
    assert_eq!(site.origin.stats().requests, 1);
    assert_all_right(&all(2), 200);
    let ranges = ["bytes=20000000-23000000", "bytes=-1000000", "bytes=0-5,12000000-13000000,65535-65536"];
    for range in ranges {
        assert_eq!(site.range("/a", range), "HIT");
    }
    // In parts, the first of which is far from the start.
    site.objects.put("/b", cacheable_object(size));
    for range in ["bytes=20000000-23000000", "bytes=1000000-15000000", "bytes=500000-21000000"] {
        assert_eq!(site.range("/b", range), "MISS");
    }
    let burst = Burst::new(site.server.addr(0)).get("/b", 1).expect(site.objects.content("/b")).keep(0);
    assert_all_right(&burst.run(), 200);
    site.until_stored("/b", "bytes=0-");
    assert_eq!(site.request_all("/b"), "HIT");
    assert_eq!(site.ranges_at_origin(), [""; 0]);
}
