//! Many concurrent clients and a slow one, against the scripted origin.

use std::time::Duration;

use testkit::burst::{Burst, SlowClient, assert_all_right};
use testkit::client::request_bytes;
use testkit::origin::{At, Do, Framing, Object, Objects, OnAccept};
use testkit::{Content, Deadline, Gate, Origin, Reply};

#[test]
fn concurrent_clients_get_correct_responses() {
    let gate = Gate::new();
    let held = gate.clone();
    let objects = Objects::new();
    let object = Object::new(50_000).framing(Framing::Chunked);
    objects.put("/a", object.tune(move |_, reply| reply.wait_at(20_000, &held)));
    let origin = Origin::objects(&objects);
    let content = objects.content("/a");
    let burst = Burst::new(origin.addr()).get("/a", 100).threads(3).expect(content).start();
    gate.wait_reached_by(100);
    let progress = burst.wait_for("all heads", |progress| progress.heads == 100);
    assert_eq!((progress.connected, progress.sent, progress.ended), (100, 100, 0));
    assert_eq!(origin.stats().in_flight_max, 100);
    gate.open();
    let outcomes = burst.join();
    assert_all_right(&outcomes, 200);
    for (index, outcome) in outcomes.iter().enumerate() {
        assert_eq!((outcome.client, outcome.body_bytes), (index, 50_000));
        assert_eq!(outcome.checksum, content.checksum(0..50_000));
        assert!(outcome.first_byte <= outcome.last_byte);
        content.assert_body(&outcome.response().body);
    }
}

#[test]
fn each_client_has_a_separate_request() {
    let origin = Origin::start(|request| Reply::text(&request.target).header("Set-Cookie", &request.target));
    let burst = (0..20).fold(Burst::new(origin.addr()), |burst, index| {
        burst.request(request_bytes("GET", &format!("/{index}"), &[]))
    });
    let gate = Gate::new();
    let running = burst.hold(&gate).start();
    gate.wait_reached();
    assert_eq!((running.progress().connected, origin.stats().requests), (20, 0));
    gate.open();
    for (index, outcome) in running.join().iter().enumerate() {
        assert_eq!(outcome.field("set-cookie"), Some(format!("/{index}").as_str()));
        assert_eq!(outcome.response().text(), format!("/{index}"));
    }
}

#[test]
fn failures_are_reported_for_each_client() {
    let content = Content::new(1, 1000);
    let origin = Origin::start(move |request| match request.path() {
        "/short" => Reply::ok().content(Content::new(1, 900)),
        "/wrong" => Reply::ok().content_range(content, 0..500).content_range(content, 0..500),
        "/cut" => Reply::ok().content(content).at(At::Body(10), Do::Close),
        "/reset" => Reply::reset(),
        "/late" => Reply::never(),
        _ => Reply::ok().content(content),
    });
    let targets = ["/", "/short", "/wrong", "/cut", "/reset"];
    let burst = targets
        .iter()
        .fold(Burst::new(origin.addr()), |burst, target| burst.request(request_bytes("GET", target, &[])));
    let outcomes = burst.expect(content).run();
    let fault = |index: usize| outcomes[index].fault.as_deref().unwrap_or("");
    assert!(outcomes[0].is_right(), "{:?}", outcomes[0]);
    assert_eq!((outcomes[1].wrong_at, fault(1)), (Some(900), ""));
    assert_eq!((outcomes[2].wrong_at, fault(2)), (Some(500), ""));
    assert_eq!((outcomes[3].status, fault(3)), (200, "connection ended in the body"));
    assert!(fault(4).starts_with("receive: "), "{}", fault(4));
    let late = Burst::new(origin.addr()).get("/late", 1);
    let late = late.deadline(Deadline::after(Duration::from_millis(20))).run();
    assert_eq!((late[0].status, late[0].fault.as_deref()), (0, Some("the deadline passed")));
    origin.refuse();
    let refused = Burst::new(origin.addr()).get("/", 2).run();
    assert!(refused[1].fault.as_deref().is_some_and(|fault| fault.starts_with("connect: ")));
}

#[test]
#[should_panic(expected = "1 of 2 clients")]
fn a_wrong_status_fails_the_assertion() {
    let origin = Origin::replies([Reply::ok(), Reply::new(500)]);
    assert_all_right(&Burst::new(origin.addr()).get("/", 2).run(), 200);
}

#[test]
fn dropped_clients_end() {
    let origin = Origin::start(|_| Reply::never());
    let running = Burst::new(origin.addr()).get("/", 5).start();
    origin.wait_for("all requests", |stats| stats.requests == 5);
    drop(running);
    origin.wait_for("their end", |stats| stats.connections_open == 0);
}

/// The load that the burst was designed for, once: a thousand clients with 1 MiB each.
#[test]
fn a_thousand_clients_receive_a_mebibyte_each() {
    let content = Content::new(5, 1 << 20);
    let wire = [&b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n"[..], &content.bytes(0..1 << 20)];
    let reply = Reply::raw(wire.concat()).at(At::End, Do::Close);
    let origin = Origin::start(move |_| reply.clone());
    let outcomes = Burst::new(origin.addr()).get("/", 1000).keep(0).expect(content).run();
    assert_all_right(&outcomes, 200);
    assert_eq!(origin.stats().connections, 1000);
}

#[test]
fn a_slow_client_reads_as_far_as_permitted() {
    let content = Content::new(2, 8_000_000);
    let reply = Reply::ok().content(content);
    let origin = Origin::start(move |_| reply.clone());
    let (first, second) = (Gate::new(), Gate::new());
    let stops = vec![(0, first.clone()), (1_000_000, second.clone())];
    let request = request_bytes("GET", "/", &[]);
    let client = SlowClient::start(origin.addr(), &request, stops, Some(4096));
    first.wait_reached();
    let stats = origin.wait_for("the request", |stats| stats.requests == 1);
    // The reply is larger than the socket buffers of both sides.
    assert_eq!(stats.replies, 0);
    first.open();
    second.wait_reached();
    assert_eq!(origin.stats().replies, 0);
    second.open();
    let outcome = client.join();
    assert!(outcome.is_right(), "{:?}", outcome.fault);
    content.assert_body(&outcome.response().body);
}

#[test]
fn a_slow_client_can_disconnect() {
    let content = Content::new(2, 50_000_000);
    let reply = Reply::ok().content(content);
    let origin = Origin::start(move |_| reply.clone());
    let gate = Gate::new();
    let request = request_bytes("GET", "/", &[]);
    let client = SlowClient::start(origin.addr(), &request, vec![(100, gate.clone())], Some(4096));
    gate.wait_reached();
    client.leave();
    origin.wait_for("the abort", |stats| stats.aborted == 1 && stats.connections_open == 0);
    origin.on_accept(OnAccept::Close);
}
