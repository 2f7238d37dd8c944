//! `slice`, tested with the binary: large responses fetched and stored in slices, ranges of them, and slices of
//! different versions. Debian's nginx passes the same tests.

use crate::common::cache::{entries, wait_for_entries};
use crate::common::{BINARY, against_nginx};
use testkit::origin::{Etag, Object, Objects, Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Server, Setup};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  proxy_cache_path @CACHE@ levels=1:2 keys_zone=c:1m use_temp_path=off;
  add_header X-Cache $upstream_cache_status;
  server {
    listen 127.0.0.1:0;
    slice 100k;
    location / {
      proxy_cache c;
      proxy_cache_key $uri$is_args$args$slice_range;
      proxy_set_header Range $slice_range;
      proxy_http_version 1.1;
      proxy_cache_valid 200 206 1h;
      proxy_pass http://@ORIGIN@;
    }
    location /direct/ { proxy_set_header Range $slice_range; proxy_pass http://@ORIGIN@; }
    location /plain/ { slice 0; proxy_pass http://@ORIGIN@; }
  }
}
";

/// Size of a slice in bytes.
const SLICE: u64 = 100 << 10;

fn start(origin: &Origin) -> Option<(Setup, Server)> {
    let setup = Setup::new(CONF).origin(origin);
    let server = match against_nginx() {
        true => setup.start_nginx()?,
        false => setup.start(BINARY),
    };
    Some((setup, server))
}

/// Starts the server with a page of metrics, for [`wait_for_stored`].
fn start_with_metrics(origin: &Origin) -> (Setup, Server) {
    let conf =
        CONF.replace("    location /plain/", "    location = /metrics { metrics; }\n    location /plain/");
    let setup = Setup::new(&conf).origin(origin);
    let server = setup.start(BINARY);
    (setup, server)
}

/// Waits until this number of entries exists, and no response is being written: such a response counts as current, also for a
/// moment after its file has its final name.
fn wait_for_stored((setup, server): (&Setup, &Server), count: usize) {
    wait_for_entries(setup, count);
    let is_idle = || {
        let page = Client::connect(server.addr(0)).get("/metrics").text();
        page.lines().any(|line| line == "ringroad_cache_fetches{zone=\"c\"} 0").then_some(())
    };
    testkit::wait::until("no fetch in flight", Deadline::default(), is_idle).expect("all entries are stored");
}

/// Returns the ranges that the origin received, in order, except those of revalidations.
fn ranges(origin: &Origin) -> Vec<String> {
    let requests = origin.requests();
    origin.forget_requests();
    let is_new = |request: &&OriginRequest| request.header("If-None-Match").is_none();
    requests.iter().filter(is_new).map(|request| request.header("Range").unwrap_or_default()).collect()
}

fn slices(numbers: &[u64]) -> Vec<String> {
    let text = |number: &u64| format!("bytes={}-{}", number * SLICE, (number + 1) * SLICE - 1);
    numbers.iter().map(text).collect()
}

#[test]
fn a_response_is_fetched_and_stored_in_slices() {
    let objects = Objects::new();
    objects
        .put("/a", Object::new(2 * SLICE + 5000))
        .put("/small", Object::new(10))
        .put("/even", Object::new(2 * SLICE));
    let origin = Origin::objects(&objects);
    let Some((_setup, server)) = start(&origin) else { return };
    let mut client = Client::connect(server.addr(0));
    for target in ["/a", "/small", "/even"] {
        let response = client.get(target);
        assert_eq!((response.head.status, response.head.field("Content-Range")), (200, None), "{target}");
        assert_eq!(response.head.field("Accept-Ranges"), Some("bytes"), "{target}");
        objects.content(target).assert_body(&response.body);
        let expected = if target == "/a" {
            3
        } else if target == "/even" {
            2
        } else {
            1
        };
        assert_eq!(ranges(&origin), slices(&[0, 1, 2][..expected]), "{target}");
    }
    // No slice is fetched again.
    let response = client.get("/a");
    objects.content("/a").assert_body(&response.body);
    assert_eq!(response.head.field("X-Cache"), Some("HIT"));
    assert_eq!(ranges(&origin), Vec::<String>::new());
}

#[test]
fn ranges_fetch_only_the_slices_that_they_overlap() {
    let objects = Objects::new();
    let length = 4 * SLICE + 700;
    objects.put("/a", Object::new(length)).put("/direct/b", Object::new(length));
    let origin = Origin::objects(&objects);
    let Some((_setup, server)) = start(&origin) else { return };
    let mut client = Client::connect(server.addr(0));
    for (target, first, last, touched) in [
        ("/a", SLICE + 5, SLICE + 9, &[1][..]),
        ("/a", SLICE - 1, SLICE, &[0]),
        ("/a", SLICE + 1, 3 * SLICE, &[2, 3]),
        ("/a", 4 * SLICE, length - 1, &[4]),
        ("/a", 0, length - 1, &[]),
        ("/direct/b", 2 * SLICE - 7, 3 * SLICE + 7, &[1, 2, 3]),
    ] {
        let range = format!("bytes={first}-{last}");
        let response = client.request("GET", target, &[("Range", &range)]);
        assert_eq!(response.head.status, 206, "{target} {range}");
        let place = format!("bytes {first}-{last}/{length}");
        assert_eq!(response.head.field("Content-Range"), Some(place.as_str()));
        objects.content(target).assert_range(first..last + 1, &response.body);
        assert_eq!(ranges(&origin), slices(touched), "{target} {range}");
    }
    // The total size is unknown before the first slice is received.
    let response = client.request("GET", "/direct/b", &[("Range", "bytes=-9")]);
    assert_eq!((response.head.status, response.body.len()), (206, 9));
    assert_eq!(ranges(&origin), slices(&[0, 4]));
}

#[test]
fn responses_that_are_not_slices_are_passed_on() {
    let origin = Origin::start(|request| match request.path() {
        "/whole" => Reply::text("all of it"),
        "/missing" => Reply::new(404).body("none"),
        _ => Reply::text(request.header("Range").unwrap_or_else(|| "no range".into())),
    });
    let Some((_setup, server)) = start(&origin) else { return };
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/whole").text(), "all of it");
    let missing = client.get("/missing");
    assert_eq!((missing.head.status, missing.text().as_str()), (404, "none"));
    assert_eq!(client.get("/plain/x").text(), "no range");
}

/// The object has changed while some of its slices were stored: the slices of the old version are fetched again.
#[test]
fn a_changed_object_does_not_break_ranges_over_its_stored_slices() {
    if against_nginx() {
        return;
    }
    let objects = Objects::new();
    objects.put("/a", Object::new(3 * SLICE));
    let origin = Origin::objects(&objects);
    let (setup, server) = start_with_metrics(&origin);
    let get = |range: String| {
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", "/a", &[("Range", &range)]));
        client.try_response()
    };
    let over = |first: u64| format!("bytes={}-{}", first * SLICE + 5, (first + 2) * SLICE - 5);
    let of_one = |slice: u64| format!("bytes={}-{}", slice * SLICE, slice * SLICE + 9);
    // The old version of the middle slice, the new one of the others.
    assert_eq!(get(of_one(1)).expect("a response").status, 206);
    wait_for_stored((&setup, &server), 1);
    objects.renew("/a");
    let first = get(over(0)).expect("the old slice is replaced");
    let new = objects.content("/a");
    assert_eq!(first.body, new.bytes(5..2 * SLICE - 4), "new slices before the old one");
    wait_for_stored((&setup, &server), 2);
    // The old version of the first slice: it is replaced before the head is sent.
    objects.renew("/a");
    assert_eq!(get(of_one(2)).expect("a response").status, 206);
    let again = get(over(1)).expect("the first slice is replaced");
    let new = objects.content("/a");
    assert_eq!(again.body, new.bytes(SLICE + 5..3 * SLICE - 4));
}

/// Whether a slice was stored before the object changed, or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredSlice {
    No,
    Old,
    New,
}

/// Every combination of missing, old and new slices, with each kind of validator: responses are complete, and of one version.
#[test]
fn a_changed_object_is_sent_completely_whatever_slices_are_stored() {
    if against_nginx() {
        return;
    }
    let objects = Objects::new();
    let origin = Origin::objects(&objects);
    let (setup, server) = start_with_metrics(&origin);
    let mut client = Client::connect(server.addr(0));
    let mut of_others = 0;
    let kinds = [StoredSlice::No, StoredSlice::Old, StoredSlice::New];
    for combination in 0..27 {
        let stored = [combination % 3, combination / 3 % 3, combination / 9].map(|kind| kinds[kind]);
        for validator in ["strong", "weak", "date", "none"] {
            let target = format!("/{validator}/{combination}");
            let length = 3 * SLICE - 7;
            let object = Object::new(length);
            let object = match validator {
                "strong" => object,
                "weak" => object.etag(Etag::Weak),
                "date" => object.etag(Etag::None),
                _ => object.etag(Etag::None).without_last_modified(),
            };
            objects.put(&target, object.clone());
            let old = objects.content(&target);
            let mut store = |kind| {
                for slice in (0..3).filter(|slice| stored[*slice as usize] == kind) {
                    let range = format!("bytes={}-{}", slice * SLICE, slice * SLICE + 9);
                    assert_eq!(client.request("GET", &target, &[("Range", &range)]).head.status, 206);
                }
            };
            store(StoredSlice::Old);
            // A response that is still being written counts as current.
            let of_this = stored.iter().filter(|kind| **kind == StoredSlice::Old).count();
            wait_for_stored((&setup, &server), of_others + of_this);
            of_others += 3;
            // Without validators, versions differ in their length only.
            objects.put(&target, object.version(2).size(length - 11));
            store(StoredSlice::New);
            let what = format!("{validator} {stored:?}");
            origin.forget_requests();
            client.send(testkit::client::request_bytes("GET", &target, &[("Range", "bytes=5-")]));
            let response = client.try_response().unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let expected = match stored {
                // The upstream is not contacted.
                [StoredSlice::Old, StoredSlice::Old, StoredSlice::Old] => old,
                _ => objects.content(&target),
            };
            assert_eq!(response.head.status, 206, "{what}");
            let is_old = stored == [StoredSlice::Old; 3];
            let expected_length = if is_old { length } else { length - 11 };
            assert_eq!(response.body.len() as u64, expected_length - 5, "{what}");
            expected.assert_range(5..5 + response.body.len() as u64, &response.body);
            if stored.iter().all(|kind| *kind == stored[0]) && stored[0] != StoredSlice::No {
                assert_eq!(ranges(&origin), slices(&[]), "{what}: all slices are stored");
            }
        }
    }
}

/// A slice is missing, and the first one is of the current version: the upstream confirms it without sending it again.
#[test]
fn a_stored_first_slice_is_confirmed_and_not_fetched_again() {
    if against_nginx() {
        return;
    }
    let objects = Objects::new();
    objects.put("/a", Object::new(3 * SLICE));
    let origin = Origin::objects(&objects);
    let (setup, server) = start_with_metrics(&origin);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.request("GET", "/a", &[("Range", "bytes=0-9")]).head.status, 206);
    wait_for_stored((&setup, &server), 1);
    origin.forget_requests();
    let response = client.get("/a");
    objects.content("/a").assert_body(&response.body);
    assert_eq!(response.head.field("X-Cache"), Some("REVALIDATED"));
    let requests = origin.requests();
    let conditions: Vec<bool> =
        requests.iter().map(|request| request.header("If-None-Match").is_some()).collect();
    assert_eq!(conditions, [true, false, false]);
    assert_eq!(ranges(&origin), slices(&[1, 2]));
    // The object is gone: the client gets the error, and no incomplete response.
    assert_eq!(client.request("GET", "/b", &[]).head.status, 404);
    objects.put("/b", Object::new(3 * SLICE));
    assert_eq!(client.request("GET", "/b", &[("Range", "bytes=0-9")]).head.status, 206);
    wait_for_stored((&setup, &server), 4);
    objects.remove("/b");
    assert_eq!(client.get("/b").head.status, 404);
}

/// The head has been sent: closing the connection shows that the body is incomplete.
#[test]
fn slices_of_different_versions_are_not_combined() {
    let content = testkit::Content::new(3, 3 * SLICE);
    for (target, expected) in [
        ("/etag", "etag mismatch in slice response"),
        ("/status", "unexpected status code 404 in slice response"),
        ("/range", "unexpected range in slice response: 102400-102410"),
        ("/no-length", "no complete length in slice response"),
        ("/no-range", "invalid range in slice response"),
    ] {
        let origin = Origin::start(move |request| {
            let range = request.header("Range").unwrap_or_default();
            let is_first = range.starts_with("bytes=0-");
            let etag = if is_first || request.path() != "/etag" { "\"one\"" } else { "\"two\"" };
            let (start, end) = if is_first { (0, SLICE) } else { (SLICE, 2 * SLICE) };
            let part = |end: u64, place: &str| {
                let reply = Reply::new(206).body(content.bytes(start..end)).header("ETag", etag);
                if place.is_empty() { reply } else { reply.header("Content-Range", place) }
            };
            match request.path() {
                "/status" if !is_first => Reply::new(404),
                "/range" if !is_first => {
                    part(start + 10, &format!("bytes {start}-{}/{}", start + 9, 3 * SLICE))
                }
                "/no-length" if !is_first => part(end, &format!("bytes {start}-{}/*", end - 1)),
                "/no-range" if !is_first => part(end, ""),
                _ => part(end, &format!("bytes {start}-{}/{}", end - 1, 3 * SLICE)),
            }
        });
        let Some((_setup, server)) = start(&origin) else { return };
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", target, &[]));
        assert!(client.try_response().is_err(), "{target} must be truncated");
        server.wait_for_log(expected, Deadline::default());
    }
}

/// A response that cannot be served is not stored: the next request gets the slice from the upstream.
#[test]
fn a_response_that_is_not_the_slice_is_not_stored() {
    if against_nginx() {
        return;
    }
    let content = testkit::Content::new(3, 2 * SLICE);
    for (wrong, place) in
        [("short", "0-99/204800"), ("other", "102400-204799/204800"), ("unknown", "0-102399/*")]
    {
        let origin = Origin::start(move |request| {
            let start = if request.header("Range") == slices(&[1]).pop() { SLICE } else { 0 };
            let (start, end, place) = match request.sequence {
                1 if wrong == "short" => (0, 100, place.to_owned()),
                1 if wrong == "other" => (SLICE, 2 * SLICE, place.to_owned()),
                1 => (0, SLICE, place.to_owned()),
                _ => (start, start + SLICE, format!("{start}-{}/{}", start + SLICE - 1, 2 * SLICE)),
            };
            let reply = Reply::new(206).body(content.bytes(start..end)).header("ETag", "\"a\"");
            reply.header("Content-Range", format!("bytes {place}"))
        });
        let Some((setup, server)) = start(&origin) else { return };
        let mut client = Client::connect(server.addr(0));
        assert_eq!(client.get("/a").head.status, 500, "{wrong}");
        // Longer than an entry takes to be published.
        testkit::wait::let_pass(std::time::Duration::from_millis(100));
        assert_eq!(entries(&setup).len(), 0, "{wrong}");
        let response = Client::connect(server.addr(0)).get("/a");
        assert_eq!(response.head.status, 200, "{wrong}");
        content.assert_body(&response.body);
    }
}

/// Each slice is an entry with its own key; a purge is for the response, and so is the invalidation by an unsafe request.
#[test]
fn a_purge_of_a_sliced_response_removes_all_slices() {
    if against_nginx() {
        return;
    }
    const PURGES: &str = "proxy_cache c; proxy_cache_purge $is_purge;";
    let conf = CONF
        .replace("proxy_cache c;", PURGES)
        .replace("  server {", "  map $request_method $is_purge { PURGE 1; default 0; }\n  server {");
    let objects = Objects::new();
    objects.put("/a", Object::new(3 * SLICE)).put("/b", Object::new(3 * SLICE));
    let origin = Origin::objects(&objects);
    let setup = Setup::new(&conf).origin(&origin);
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    for target in ["/a", "/b"] {
        client.get(target);
        assert_eq!(ranges(&origin), slices(&[0, 1, 2]));
        client.get(target);
        assert_eq!(ranges(&origin), slices(&[]));
    }
    assert_eq!(client.request("PURGE", "/a", &[]).status, 204);
    client.get("/a");
    assert_eq!(ranges(&origin), slices(&[0, 1, 2]));
    client.get("/b");
    assert_eq!(ranges(&origin), slices(&[]), "another response");
    assert_eq!(client.request("DELETE", "/b", &[]).status, 200);
    ranges(&origin);
    client.get("/b");
    assert_eq!(ranges(&origin), slices(&[0, 1, 2]), "after a change");
}
