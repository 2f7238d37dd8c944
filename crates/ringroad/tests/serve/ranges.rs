//! Ranges and conditions for files: `Range`, `If-Range`, `If-*`, entity tags and times.
//!
//! `serve/bytes.rs` compares the bytes for every way to send a file; here one way suffices.

use crate::common::{client, one_server, ours_only, serve_with};
use testkit::client::request_bytes;
use testkit::{Burst, Client, Content, Response, Server};

/// Odd, and larger than one page.
const SIZE: u64 = 10_007;

const CONTENT: Content = Content::new(31, SIZE);

fn site(server_directives: &str) -> Server {
    let conf = one_server("types { image/x-test bin; }", &format!("root html; {server_directives}"));
    serve_with(&conf, |builder| builder.file("html/a.bin", CONTENT).text("html/empty.bin", ""))
}

fn ranged(client: &mut Client, value: &str) -> Response {
    client.request("GET", "/a.bin", &[("Range", value)])
}

#[test]
fn a_single_range_is_served() {
    let server = site("");
    let mut client = client(&server);
    for (value, start, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=0-9", 0, 10),
        ("bytes=1-", 1, SIZE),
        ("bytes=10006-10006", SIZE - 1, SIZE),
        ("bytes=4095-4096", 4095, 4097),
        ("bytes=5000-99999999", 5000, SIZE),
        ("bytes=-1", SIZE - 1, SIZE),
        ("bytes=-100", SIZE - 100, SIZE),
        ("bytes=-99999", 0, SIZE),
        ("bytes = 3 - 4 ", 3, 5),
    ] {
        let response = ranged(&mut client, value);
        if value.contains(' ') {
            // White space is accepted where nginx accepts it: around the numbers, not before the equals sign.
            assert_eq!(response.status, 200, "{value}");
            continue;
        }
        assert_eq!(response.status, 206, "{value}");
        let wanted = format!("bytes {start}-{}/{SIZE}", end - 1);
        assert_eq!(response.field("content-range"), Some(wanted.as_str()), "{value}");
        assert_eq!(response.field("content-length"), Some((end - start).to_string().as_str()), "{value}");
        assert_eq!(response.field("content-type"), Some("image/x-test"), "{value}");
        assert_eq!(response.field("accept-ranges"), None, "nginx sends it only with complete files: {value}");
        CONTENT.assert_range(start..end, &response.body);
    }
    assert_eq!(ranged(&mut client, "bytes= 3 - 4 ").status, 206);
}

#[test]
fn unsatisfiable_ranges_are_refused() {
    let server = site("");
    let mut client = client(&server);
    for value in ["bytes=10007-", "bytes=20000-30000", "bytes=-0", "bytes=10007-10008,20000-"] {
        let response = ranged(&mut client, value);
        assert_eq!(response.status, 416, "{value}");
        assert_eq!(response.field("content-range"), Some(format!("bytes */{SIZE}").as_str()), "{value}");
    }
    for value in ["bytes=5-4", "bytes=x-", "bytes=1", "bytes=--1"] {
        assert_eq!(ranged(&mut client, value).status, 416, "{value}");
    }
    for value in ["lines=0-1", "byte=0-1", "0-1", "", "bytes="] {
        let response = ranged(&mut client, value);
        assert_eq!(response.status, 200, "with an unknown unit, the complete file is sent: {value}");
        CONTENT.assert_body(&response.body);
    }
    let empty = client.request("GET", "/empty.bin", &[("Range", "bytes=0-0")]);
    assert_eq!((empty.status, empty.body.len()), (200, 0), "nginx ignores ranges of an empty file");
}

#[test]
fn several_ranges_are_served_as_multipart() {
    let server = site("");
    let mut client = client(&server);
    let ranges = [(0, 1), (4095, 4098), (SIZE - 5, SIZE)];
    let response = ranged(&mut client, "bytes=0-0,4095-4097, -5");
    assert_eq!(response.status, 206);
    assert_eq!(response.field("content-range"), None);
    let kind = response.field("content-type").expect("parts have a type");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("the type of parts");
    let mut wanted = Vec::new();
    for (start, end) in ranges {
        let head = format!(
            "\r\n--{boundary}\r\nContent-Type: image/x-test\r\nContent-Range: bytes {start}-{}/{SIZE}\r\n\r\n",
            end - 1
        );
        wanted.extend(head.as_bytes());
        wanted.extend(CONTENT.bytes(start..end));
    }
    wanted.extend(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert_eq!(String::from_utf8_lossy(&response.body), String::from_utf8_lossy(&wanted));
    assert_eq!(response.body, wanted);
    assert_eq!(response.field("content-length"), Some(wanted.len().to_string().as_str()));
    // The ranges may be in any order, and unsatisfiable ones are omitted.
    let unordered = ranged(&mut client, "bytes=100-199,0-9,20000-");
    assert_eq!(unordered.status, 206);
    assert!(unordered.field("content-type").is_some_and(|kind| kind.starts_with("multipart/")));
    let one_left = ranged(&mut client, "bytes=7-8,20000-");
    assert_eq!(one_left.field("content-range"), Some(format!("bytes 7-8/{SIZE}").as_str()));
    CONTENT.assert_range(7..9, &one_left.body);
}

#[test]
fn ranges_with_more_bytes_than_the_file_get_the_complete_file() {
    let server = site("");
    let mut client = client(&server);
    let response = ranged(&mut client, "bytes=0-,0-,0-");
    assert_eq!(response.status, 200, "more bytes than the file has");
    CONTENT.assert_body(&response.body);
}

#[test]
fn max_ranges_limits_ranges() {
    let server = site("max_ranges 2; location /none/ { max_ranges 0; alias html/; }");
    let mut client = client(&server);
    assert_eq!(ranged(&mut client, "bytes=0-0,2-2").status, 206);
    let many = ranged(&mut client, "bytes=0-0,2-2,4-4");
    assert_eq!(many.status, 200);
    CONTENT.assert_body(&many.body);
    let none = client.request("GET", "/none/a.bin", &[("Range", "bytes=0-0")]);
    assert_eq!((none.status, none.field("accept-ranges")), (200, None));
}

#[test]
fn head_requests_may_have_a_range() {
    let server = site("");
    let response = client(&server).request("HEAD", "/a.bin", &[("Range", "bytes=5-9")]);
    assert_eq!((response.status, response.field("content-length")), (206, Some("5")));
}

#[test]
fn if_range_decides_between_range_and_complete_file() {
    let server = site("");
    let mut client = client(&server);
    let whole = client.get("/a.bin");
    let etag = whole.field("etag").expect("an entity tag").to_owned();
    let modified = whole.field("last-modified").expect("a time").to_owned();
    let mut status =
        |value: &str| client.request("GET", "/a.bin", &[("Range", "bytes=0-0"), ("If-Range", value)]).status;
    assert_eq!(status(&etag), 206);
    assert_eq!(status(&modified), 206);
    assert_eq!(status("\"other\""), 200);
    assert_eq!(status(&format!("W/{etag}")), 200, "a weak tag does not compare strongly");
    assert_eq!(status("Thu, 01 Jan 1970 00:00:01 GMT"), 200);
    assert_eq!(status("nonsense"), 200);
}

#[test]
fn a_fresh_copy_gets_a_304() {
    let server = site("");
    let mut client = client(&server);
    let whole = client.get("/a.bin");
    let etag = whole.field("etag").expect("an entity tag").to_owned();
    let modified = whole.field("last-modified").expect("a time").to_owned();
    let mut with = |fields: &[(&str, &str)]| client.request("GET", "/a.bin", fields);
    let fresh = with(&[("If-None-Match", &etag)]);
    assert_eq!((fresh.status, fresh.body.len()), (304, 0));
    assert_eq!(fresh.field("etag"), Some(etag.as_str()));
    assert_eq!(fresh.field("last-modified"), Some(modified.as_str()));
    assert_eq!((fresh.field("content-length"), fresh.field("content-type")), (None, None));
    assert_eq!(with(&[("If-None-Match", &format!("W/{etag}"))]).status, 304);
    assert_eq!(with(&[("If-None-Match", &format!("\"x\", {etag}"))]).status, 304);
    assert_eq!(with(&[("If-None-Match", "*")]).status, 304);
    assert_eq!(with(&[("If-None-Match", "\"x\"")]).status, 200);
    assert_eq!(with(&[("If-Modified-Since", &modified)]).status, 304);
    assert_eq!(with(&[("If-Modified-Since", "Thu, 01 Jan 1970 00:00:01 GMT")]).status, 200);
    assert_eq!(with(&[("If-Modified-Since", "nonsense")]).status, 200);
    // The entity tag is checked before the time, and in nginx both must match.
    assert_eq!(with(&[("If-None-Match", "\"x\""), ("If-Modified-Since", &modified)]).status, 200);
    assert_eq!(with(&[("If-None-Match", &etag), ("If-Modified-Since", &modified)]).status, 304);
    // A condition is evaluated before the range.
    assert_eq!(with(&[("If-None-Match", &etag), ("Range", "bytes=0-0")]).status, 304);
}

#[test]
fn a_failed_precondition_returns_412() {
    let server = site("");
    let mut client = client(&server);
    let whole = client.get("/a.bin");
    let etag = whole.field("etag").expect("an entity tag").to_owned();
    let modified = whole.field("last-modified").expect("a time").to_owned();
    // A separate connection each: nginx closes it after a 412.
    let status = |name: &str, value: &str| {
        Client::connect(server.addr(0)).request("GET", "/a.bin", &[(name, value)]).status
    };
    assert_eq!(status("If-Match", &etag), 200);
    assert_eq!(status("If-Match", "*"), 200);
    assert_eq!(status("If-Match", "\"x\""), 412);
    assert_eq!(status("If-Match", &format!("W/{etag}")), 412);
    assert_eq!(status("If-Unmodified-Since", &modified), 200);
    assert_eq!(status("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:01 GMT"), 412);
}

#[test]
fn if_modified_since_compares_times_as_configured() {
    let server = site(
        "location /off/ { if_modified_since off; alias html/; } \
         location /before/ { if_modified_since before; alias html/; } \
         location /untagged/ { etag off; alias html/; }",
    );
    let mut client = client(&server);
    let modified = client.get("/a.bin").field("last-modified").expect("a time").to_owned();
    let later = "Fri, 31 Dec 2099 23:59:59 GMT";
    let mut since =
        |target: &str, time: &str| client.request("GET", target, &[("If-Modified-Since", time)]).status;
    assert_eq!(since("/a.bin", later), 200, "`exact` is the default");
    assert_eq!(since("/before/a.bin", later), 304);
    assert_eq!(since("/before/a.bin", &modified), 304);
    assert_eq!(since("/off/a.bin", &modified), 200);
    assert_eq!(since("/untagged/a.bin", &modified), 304);
    assert_eq!(client.get("/untagged/a.bin").field("etag"), None);
}

/// Each part of a multipart response needs a buffer. Requests that retained one buffer while they waited for the next would block
/// each other until the timeout.
#[test]
fn multipart_responses_complete_with_few_buffers() {
    if !ours_only("the test is about this server's buffers") {
        return;
    }
    let size = 1 << 20;
    let content = Content::new(32, size);
    for (net, way) in [("io_uring", "aio io_uring; directio 1;"), ("epoll", "aio threads;")] {
        let conf = one_server("", &format!("root html; {way}"))
            .replace("events {}", &format!("events {{ use {net}; try_cached off; buffer_pool 4m; }}"));
        let server = serve_with(&conf, |builder| builder.file("html/b.bin", content));
        let ranges = "bytes=0-199999,300000-499999,600000-799999,850000-1048575";
        let request = request_bytes("GET", "/b.bin", &[("Range", ranges)]);
        let burst = (0..60).fold(Burst::new(server.addr(0)), |burst, _| burst.request(request.clone()));
        testkit::burst::assert_all_right(&burst.run(), 206);
    }
}
