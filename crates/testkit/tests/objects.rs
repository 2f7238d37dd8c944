//! The correct origin, from the view of a client and of a cache.

use std::collections::HashSet;

use testkit::origin::objects::{check, variant};
use testkit::origin::{Etag, Framing, Object, Objects};
use testkit::response::{BodyLength, Response};
use testkit::{Client, Gate, Origin};

fn send_request(origin: &Origin, target: &str, fields: &[(&str, &str)]) -> Response {
    Client::connect(origin.addr()).request("GET", target, fields)
}

#[test]
fn an_object_is_found_and_self_checking() {
    let objects = Objects::new();
    objects.put("/a", Object::new(100_000).cache_control("max-age=60"));
    let origin = Origin::objects(&objects);
    let response = send_request(&origin, "/a?x=1", &[]);
    assert_eq!((response.status, response.field("cache-control")), (200, Some("max-age=60")));
    objects.content("/a").assert_body(&response.body);
    let first = check("/a", &response).expect("it is right");
    assert_eq!((first.version, first.size), (1, 100_000));
    objects.renew("/a");
    let newer = send_request(&origin, "/a", &[]);
    assert_eq!(check("/a", &newer).expect("it is right").version, 2);
    assert_ne!(newer.field("last-modified"), response.field("last-modified"));
    assert_ne!(newer.body, response.body);
    objects.remove("/a");
    assert_eq!(send_request(&origin, "/a", &[]).status, 404);
    assert_eq!((origin.stats().of("/a"), origin.stats().of("/a?x=1")), (2, 1));
}

#[test]
fn a_wrong_response_is_reported() {
    let objects = Objects::new();
    objects.put("/a", Object::new(1000)).put("/b", Object::new(1000).version(2));
    let origin = Origin::objects(&objects);
    let mut response = send_request(&origin, "/a", &[]);
    let wrong = |response: &Response| check("/a", response).expect_err("it is wrong").to_string();
    let other = send_request(&origin, "/b", &[]);
    assert!(wrong(&other).contains("another object's"), "{}", wrong(&other));
    response.body[700..].copy_from_slice(&other.body[700..]);
    assert!(wrong(&response).contains("wrong from offset 70"), "{}", wrong(&response));
    response.body.truncate(600);
    assert_eq!(wrong(&response), "600 bytes instead of 1000");
    response.head.fields.clear();
    assert_eq!(wrong(&response), "no usable ETag");
}

#[test]
fn ranges_are_served_as_requested() {
    let objects = Objects::new();
    objects.put("/a", Object::new(10_000)).put("/whole", Object::new(10).without_ranges());
    let origin = Origin::objects(&objects);
    let one = send_request(&origin, "/a", &[("Range", "bytes=100-299")]);
    assert_eq!((one.status, one.field("content-range")), (206, Some("bytes 100-299/10000")));
    assert_eq!(check("/a", &one).expect("it is right").parts[0], 100..300);
    let two = send_request(&origin, "/a", &[("Range", "bytes=0-0,-5000")]);
    assert_eq!(check("/a", &two).expect("it is right").parts, [0..1, 5000..10_000]);
    let mut cut = two.clone();
    cut.body.truncate(5000);
    assert!(check("/a", &cut).is_err());
    let none = send_request(&origin, "/a", &[("Range", "bytes=10000-")]);
    assert_eq!((none.status, none.field("content-range")), (416, Some("bytes */10000")));
    let etag = one.field("etag").expect("it has one");
    assert_eq!(send_request(&origin, "/a", &[("Range", "bytes=0-0"), ("If-Range", etag)]).status, 206);
    objects.renew("/a");
    assert_eq!(send_request(&origin, "/a", &[("Range", "bytes=0-0"), ("If-Range", etag)]).status, 200);
    let whole = send_request(&origin, "/whole", &[("Range", "bytes=0-0")]);
    assert_eq!((whole.status, whole.field("accept-ranges")), (200, None));
}

#[test]
fn conditional_responses_have_the_fields_of_the_object() {
    let objects = Objects::new();
    let object = Object::new(10).header("Expires", "0").etag(Etag::Weak);
    objects.put("/a", object).put("/deaf", Object::new(10).without_conditions());
    objects.put("/bare", Object::new(10).etag(Etag::None).without_last_modified().without_date());
    let origin = Origin::objects(&objects);
    let first = send_request(&origin, "/a", &[]);
    let etag = first.field("etag").expect("it has one");
    assert!(etag.starts_with("W/\"1.10."), "{etag}");
    let same = send_request(&origin, "/a", &[("If-None-Match", etag)]);
    assert_eq!((same.status, same.field("etag"), same.field("expires")), (304, Some(etag), Some("0")));
    assert_eq!((same.length, same.field("content-length")), (BodyLength::None, None));
    assert_eq!(send_request(&origin, "/deaf", &[("If-None-Match", "*")]).status, 200);
    let bare = send_request(&origin, "/bare", &[]);
    let names: Vec<&str> = bare.head.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Content-Type", "Accept-Ranges", "Content-Length"]);
    let post = Client::connect(origin.addr()).request("POST", "/a", &[("If-Match", "\"x\"")]);
    assert_eq!(post.status, 412);
}

#[test]
fn variants_have_separate_contents() {
    let objects = Objects::new();
    objects.put("/a", Object::new(500).vary(&["Accept-Encoding", "X"]));
    let origin = Origin::objects(&objects);
    let mut tags = HashSet::new();
    for value in ["br", "gzip"] {
        let response = send_request(&origin, "/a", &[("Accept-Encoding", value)]);
        assert_eq!(response.field("vary"), Some("Accept-Encoding, X"));
        let vary = ["Accept-Encoding".to_owned(), "X".to_owned()];
        let name = variant("/a", &vary, |name| (name != "X").then(|| value.to_owned()));
        check(&name, &response).expect("it is this variant");
        assert!(check("/a", &response).is_err());
        tags.insert(response.field("etag").expect("it has one").to_owned());
    }
    assert_eq!(tags.len(), 2);
}

#[test]
fn responses_can_be_tuned_and_rules_create_objects() {
    let gate = Gate::new();
    let held = gate.clone();
    let objects = Objects::new();
    objects.put(
        "/held",
        Object::new(1000).framing(Framing::Chunked).tune(move |request, reply| {
            reply.header("Set-Cookie", request.sequence.to_string()).wait_at(500, &held)
        }),
    );
    objects.rule(|target| target.strip_prefix("/n/")?.parse().ok().map(Object::new));
    let origin = Origin::objects(&objects);
    let mut client = Client::connect(origin.addr());
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.wait_reached();
    assert_eq!(origin.stats().in_flight, 1);
    gate.open();
    let response = client.response();
    assert_eq!((response.field("set-cookie"), response.length), (Some("1"), BodyLength::Chunked));
    check("/held", &response).expect("it is right");
    assert_eq!(send_request(&origin, "/n/77", &[]).body.len(), 77);
    assert_eq!(send_request(&origin, "/n/x", &[]).status, 404);
}
