//! `queue`: requests that wait for a server of their group.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{self, BINARY, ours_only};
use testkit::{Client, Deadline, Origin, Reply, Server, Setup, wait};

/// Starts a server with this directive in its group, whose server has `max_conns`.
fn serve(origin: &Origin, max_conns: usize, queue: &str) -> Server {
    let conf = format!(
        "worker_processes 2; events {{ }}
         http {{
           upstream back {{ server @ORIGIN@ max_conns={max_conns}; {queue} }}
           server {{
             listen 127.0.0.1:0;
             set_real_ip_from 127.0.0.1; real_ip_header X-Client;
             location / {{ proxy_pass http://back; }}
             location /api {{ api; }}
             location /metrics {{ metrics; }}
           }}
         }}"
    );
    Setup::new(&conf).value("ORIGIN", &origin.addr().to_string()).start(BINARY)
}

/// Starts an origin that responds to one request for each message.
fn held() -> (Origin, Sender<()>) {
    let (release, released) = channel();
    let released = Mutex::new(released);
    let origin = Origin::start(move |request| {
        // The end of the test releases all.
        let _ = released.lock().expect("no panic").recv();
        Reply::text(request.target.clone())
    });
    (origin, release)
}

/// Sends a request of a client with this address.
fn send(server: &Server, target: &str, ip: &str) -> Client {
    let mut client = common::client(server);
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-Client: {ip}\r\n\r\n"));
    client
}

/// Returns the `api` object of the group.
fn group(server: &Server) -> Value {
    let text = common::client(server).get("/api/9/http/upstreams/back").text();
    serde_json::from_str(&text).expect("JSON")
}

/// Returns the numbers of the queue.
fn queue(server: &Server) -> Value {
    group(server)["queue"].clone()
}

/// Waits until this many requests wait.
fn wait_for_size(server: &Server, size: usize) {
    let found = wait::until("the queue", Deadline::default(), || {
        (queue(server)["size"] == json!(size)).then_some(())
    });
    assert!(found.is_ok(), "{}", queue(server));
}

#[test]
fn clients_take_turns_and_a_full_queue_refuses_the_last_of_a_greedy_one() {
    if !ours_only("queue") {
        return;
    }
    let (origin, release) = held();
    let server = serve(&origin, 1, "queue 3;");
    assert_eq!(queue(&server), json!({ "size": 0, "max_size": 3, "overflows": 0 }));
    let mut first = send(&server, "/1", "192.0.2.1");
    origin.wait_for("a request", |stats| stats.requests == 1);
    let mut second = send(&server, "/2", "192.0.2.1");
    wait_for_size(&server, 1);
    let mut third = send(&server, "/3", "192.0.2.1");
    wait_for_size(&server, 2);
    let fourth = send(&server, "/4", "192.0.2.2");
    wait_for_size(&server, 3);
    assert_eq!(send(&server, "/5", "192.0.2.1").response().status, 502, "the queue is full");
    server.wait_for_log("upstream queue is full", Deadline::default());
    // Another client gets the place of the greedy one's last request.
    let mut sixth = send(&server, "/6", "192.0.2.3");
    assert_eq!(third.response().status, 502);
    // A client that leaves has no place.
    drop(fourth);
    wait_for_size(&server, 2);
    assert_eq!(queue(&server), json!({ "size": 2, "max_size": 3, "overflows": 2 }));
    for (client, target) in [(&mut first, "/1"), (&mut second, "/2"), (&mut sixth, "/6")] {
        release.send(()).expect("the origin waits");
        assert_eq!(client.response().text(), target);
    }
    let targets: Vec<String> = origin.requests().iter().map(|request| request.target.clone()).collect();
    assert_eq!(targets, ["/1", "/2", "/6"]);
    let metrics = common::client(&server).get("/metrics").text();
    for row in [
        "ringroad_upstream_queue{upstream=\"back\"} 0",
        "ringroad_upstream_queue_overflows_total{upstream=\"back\"} 2",
    ] {
        assert!(metrics.contains(row), "{row}: {metrics}");
    }
}

#[test]
fn a_request_waits_no_longer_than_the_timeout() {
    if !ours_only("queue") {
        return;
    }
    let (origin, release) = held();
    let server = serve(&origin, 1, "queue 3 timeout=300ms;");
    let mut first = send(&server, "/1", "192.0.2.1");
    origin.wait_for("a request", |stats| stats.requests == 1);
    let started = Instant::now();
    assert_eq!(send(&server, "/2", "192.0.2.1").response().status, 502);
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
    server.wait_for_log("upstream queue timed out", Deadline::default());
    assert_eq!(queue(&server), json!({ "size": 0, "max_size": 3, "overflows": 0 }));
    release.send(()).expect("the origin waits");
    assert_eq!(first.response().text(), "/1");
}

#[test]
fn all_requests_of_a_burst_are_served_within_the_limit_of_the_server() {
    if !ours_only("queue") {
        return;
    }
    let (active, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, seen) = (Arc::clone(&active), Arc::clone(&most));
    let origin = Origin::start(move |_| {
        seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        wait::let_pass(Duration::from_millis(2));
        now.fetch_sub(1, Ordering::SeqCst);
        Reply::text("served")
    });
    let server = serve(&origin, 2, "queue 100;");
    let mut clients: Vec<Client> =
        (0..60).map(|number| send(&server, "/x", &format!("192.0.2.{}", number % 7))).collect();
    for client in &mut clients {
        assert_eq!(client.response().text(), "served");
    }
    assert!(most.load(Ordering::SeqCst) <= 2, "{}", most.load(Ordering::SeqCst));
    assert_eq!(queue(&server), json!({ "size": 0, "max_size": 100, "overflows": 0 }));
}

/// A server that may be used again wakes the queue, without the end of another request.
#[test]
fn a_server_that_is_no_longer_down_serves_the_queue() {
    if !ours_only("queue") {
        return;
    }
    let origin = Origin::start(|_| Reply::text("served"));
    let conf = "worker_processes 1; events { }
      http { upstream back { zone back 64k; server @ORIGIN@ down; server 127.0.0.1:1 down; queue 9; }
        server { listen 127.0.0.1:0; location / { proxy_pass http://back; } location /api { api write=on; } } }";
    let server = Setup::new(conf).value("ORIGIN", &origin.addr().to_string()).start(BINARY);
    let mut waiting = send(&server, "/x", "192.0.2.1");
    wait_for_size(&server, 1);
    let (body, id) = ("{\"down\":false}", group(&server)["peers"][0]["id"].clone());
    let mut client = common::client(&server);
    client.send(format!(
        "PATCH /api/9/http/upstreams/back/servers/{id} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.response().status, 200);
    assert_eq!(waiting.response().text(), "served");
}
