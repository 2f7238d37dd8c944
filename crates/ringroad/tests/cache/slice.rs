//! `slice`, tested with the binary: large responses fetched and stored in slices, ranges of them, and slices of
//! different versions. Debian's nginx passes the same tests.

use crate::common::{BINARY, against_nginx};
use testkit::origin::{Object, Objects, Origin, Reply};
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

/// Returns the ranges that the origin received, in order.
fn ranges(origin: &Origin) -> Vec<String> {
    let requests = origin.requests();
    origin.forget_requests();
    requests.iter().map(|request| request.header("Range").unwrap_or_default()).collect()
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
    let Some((_setup, server)) = start(&origin) else { return };
    let get = |range: String| {
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", "/a", &[("Range", &range)]));
        client.try_response()
    };
    let over = |first: u64| format!("bytes={}-{}", first * SLICE + 5, (first + 2) * SLICE - 5);
    let of_one = |slice: u64| format!("bytes={}-{}", slice * SLICE, slice * SLICE + 9);
    // The old version of the middle slice, the new one of the others.
    assert_eq!(get(of_one(1)).expect("a response").status, 206);
    objects.renew("/a");
    let first = get(over(0)).expect("the old slice is replaced");
    let new = objects.content("/a");
    assert_eq!(first.body, new.bytes(5..2 * SLICE - 4), "new slices before the old one");
    // The old version of the first slice: its head cannot be completed, but the next response is complete.
    objects.renew("/a");
    assert_eq!(get(of_one(2)).expect("a response").status, 206);
    assert!(get(over(1)).is_err(), "the version of the head is gone");
    let again = testkit::wait::until("a complete response", Deadline::default(), || get(over(1)).ok());
    let new = objects.content("/a");
    assert_eq!(again.expect("the slice was replaced").body, new.bytes(SLICE + 5..3 * SLICE - 4));
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
