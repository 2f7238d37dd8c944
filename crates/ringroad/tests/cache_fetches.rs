//! Fetches of one key that overlap, stall, or bring less than was announced: a client never gets an older response after a
//! newer one, never waits for the fetch of another client without end, and never gets a wrong byte.

mod common;

use common::BINARY;
use testkit::client::request_bytes;
use testkit::origin::{self, Object, Objects, Origin, OriginRequest, Reply};
use testkit::{Client, Gate, Response, Server, Setup};

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

fn kept(size: u64) -> Object {
    Object::new(size).cache_control("max-age=3600")
}

/// The version of the object that a response is of; the response is whole and of one piece.
#[track_caller]
fn version(target: &str, response: &Response) -> u64 {
    match origin::objects::check(target, response) {
        Ok(checked) => checked.version,
        Err(wrong) => panic!("{target}: {wrong}\n{:?}", response.head),
    }
}

/// A small body is written when it is complete, a large one while it comes.
const SIZES: [u64; 3] = [1000, 100_000, 1_000_000];

#[test]
fn no_client_gets_an_older_response_after_the_last_byte_of_a_newer_one() {
    let objects = Objects::new();
    objects.rule(|target| Some(kept(target.rsplit_once('-')?.1.parse().ok()?)));
    let origin = Origin::objects(&objects);
    // The disk is slow: the response is complete long before its entry is in its place.
    let (_setup, server) = start_with(&origin, "engine_fault write delay=2ms;");
    let mut old = 0;
    for size in SIZES {
        let target = format!("/a-{size}");
        objects.put(&target, kept(size));
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
    objects.put("/a", kept(100_000).tune(tune));
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
