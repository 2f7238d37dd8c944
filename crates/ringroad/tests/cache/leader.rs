//! The request that leads a shared fetch and the fetch itself have the same identifiers. The variables of the configuration are those
//! at the beginning of the fetch, whatever others assign or compute meanwhile.

use std::collections::BTreeSet;

use crate::common::BINARY;
use crate::common::cache::entries;
use testkit::burst::assert_all_right;
use testkit::client::request_bytes;
use testkit::origin::{Object, Objects, Origin, OriginRequest, Reply};
use testkit::{Burst, Client, Deadline, Gate, Server, Setup};

const CONF: &str = "worker_processes 2; error_log logs/error.log info;
events { worker_connections 4096; }
http {
  log_format values '$request_id|$uid_set|$upstream_cache_status|$status';
  access_log logs/access.log values;
  log_format private '$private|$status';
  map $upstream_http_x_private $private { 1 1; default 0; }
  proxy_cache_path @CACHE@ keys_zone=z:1m use_temp_path=off;
  proxy_cache z;
  proxy_cache_key $uri;
  proxy_cache_valid 200 206 416 1h;
  proxy_http_version 1.1;
  add_header X-Cache $upstream_cache_status;
  add_header X-Id $request_id;
  add_header X-Uid $uid_set;
  userid on;
  server {
    listen 127.0.0.1:0;
    proxy_set_header X-Id $request_id;
    proxy_set_header X-Uid $uid_set;
    location / { proxy_pass http://@ORIGIN@; }
    location /set/ {
      set $uid_reset 1;
      set $ancient_browser old;
      proxy_set_header X-Uid $uid_set;
      proxy_set_header X-Browser $ancient_browser;
      proxy_pass http://@ORIGIN@;
    }
    location /private/ {
      access_log logs/access.log private;
      proxy_no_cache $private;
      proxy_pass http://@ORIGIN@;
    }
    location /page {
      ssi on;
      default_type text/html;
      return 200 '<!--# include virtual=\"/part/a\" --><!--# include virtual=\"/part/b\" -->';
    }
    location /part/a { set $part a; proxy_set_header X-Part $part; proxy_pass http://@ORIGIN@; }
    location /part/b { set $part b; proxy_set_header X-Part $part; proxy_pass http://@ORIGIN@; }
    location /slice/ { slice 100k; proxy_set_header Range $slice_range; proxy_pass http://@ORIGIN@; }
    location /updated/ {
      proxy_cache_use_stale updating;
      proxy_cache_background_update on;
      proxy_set_header X-Id $request_id;
      proxy_pass http://@ORIGIN@;
    }
  }
}
";

/// Size of a slice in bytes.
const SLICE: u64 = 100 << 10;

fn start(origin: &Origin) -> (Setup, Server) {
    let setup = Setup::new(CONF).origin(origin);
    let server = setup.start(BINARY);
    (setup, server)
}

/// Returns the values that a request to the origin had.
fn sent(request: &OriginRequest) -> [String; 2] {
    ["X-Id", "X-Uid"].map(|name| request.header(name).unwrap_or_default())
}

/// Returns the values in the line of the access log that has `end`.
fn logged(log: &str, end: &str) -> Vec<String> {
    let line = log.lines().find(|line| line.ends_with(end)).unwrap_or_else(|| panic!("no {end}: {log}"));
    line.split('|').take(2).map(str::to_owned).collect()
}

#[test]
fn a_miss_has_the_identifiers_that_its_fetch_has_sent() {
    let origin = Origin::start(|_| Reply::text("a"));
    let (_setup, server) = start(&origin);
    let response = Client::connect(server.addr(0)).get("/a");
    let values = sent(&origin.last_request());
    assert!(values.iter().all(|value| !value.is_empty()), "{values:?}");
    let received = ["X-Id", "X-Uid"].map(|name| response.field(name).unwrap_or_default());
    assert_eq!(received, values, "response");
    let log = server.wait_for_access_log(1, Deadline::default());
    assert_eq!(logged(&log, "|MISS|200"), values, "access log");
}

#[test]
fn a_fetch_has_the_values_that_the_configuration_has_assigned() {
    let origin = Origin::start(|_| Reply::text("a"));
    let (_setup, server) = start(&origin);
    let cookie = [("Cookie", "uid=fwAAAWsBkbCWixzVAwMDAg==")];
    let response = Client::connect(server.addr(0)).request("GET", "/set/a", &cookie);
    let request = origin.last_request();
    assert_eq!(request.header("X-Browser").as_deref(), Some("old"));
    let uid = request.header("X-Uid").expect("the identifier was reset");
    assert_eq!(response.field("X-Uid"), Some(uid.as_str()));
}

#[test]
fn a_client_that_disconnects_is_logged_with_the_identifiers_of_its_fetch() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| Reply::text("a").wait_first(&held));
    let (_setup, server) = start(&origin);
    let mut leader = Client::connect(server.addr(0));
    leader.send(request_bytes("GET", "/a", &[]));
    gate.wait_reached();
    leader.reset();
    let log = server.wait_for_access_log(1, Deadline::default());
    gate.open();
    assert_eq!(logged(&log, "|499"), sent(&origin.last_request()));
}

#[test]
fn the_log_of_a_client_that_left_does_not_permit_to_store_a_private_response() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| Reply::text("a").header("X-Private", "1").wait_first(&held));
    let (_setup, server) = start(&origin);
    let mut leader = Client::connect(server.addr(0));
    leader.send(request_bytes("GET", "/private/a", &[]));
    gate.wait_reached();
    leader.reset();
    // The line is written without a response, so the variable has its default.
    assert_eq!(server.wait_for_access_log(1, Deadline::default()).trim(), "0|499");
    gate.open();
    let mut client = Client::connect(server.addr(0));
    for _ in 0..3 {
        assert_eq!(client.get("/private/a").field("X-Cache"), Some("MISS"));
    }
}

/// Both includes are requested at once, and share their variables.
#[test]
fn an_include_does_not_change_the_variables_of_the_fetch_of_another() {
    let origin = Origin::start(|request| Reply::text(request.header("X-Part").unwrap_or_default()));
    let (_setup, server) = start(&origin);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/page").text(), "ab");
    for part in ["a", "b"] {
        let response = client.get(&format!("/part/{part}"));
        assert_eq!((response.text(), response.field("X-Cache")), (part.to_owned(), Some("HIT")));
    }
}

/// The first response is shared with the waiting requests, or each of them fetches its own.
#[test]
fn waiting_requests_keep_their_own_identifiers() {
    for (target, control) in [("/shared", "max-age=60"), ("/own", "no-store")] {
        let gate = Gate::new();
        let held = gate.clone();
        let origin = Origin::start(move |request| {
            let id = request.header("X-Id").unwrap_or_default();
            Reply::text(id).header("Cache-Control", control).wait_first(&held)
        });
        let (_setup, server) = start(&origin);
        let running = Burst::new(server.addr(0)).get(target, 20).start();
        gate.wait_reached();
        running.wait_for("all requests", |progress| progress.sent == 20);
        gate.open();
        let outcomes = running.join();
        assert_all_right(&outcomes, 200);
        let field =
            |name: &'static str| outcomes.iter().map(move |outcome| outcome.field(name).expect("it is sent"));
        assert_eq!(field("X-Id").collect::<BTreeSet<_>>().len(), 20, "{target}");
        assert_eq!(field("X-Uid").collect::<BTreeSet<_>>().len(), 20, "{target}");
        let fetched: Vec<String> =
            origin.requests().iter().filter_map(|request| request.header("X-Id")).collect();
        for outcome in &outcomes {
            let id = outcome.field("X-Id").expect("it is sent").as_bytes();
            match (control, outcome.field("X-Cache")) {
                (_, Some("MISS")) => assert_eq!(outcome.body, id, "{target}"),
                (_, status) => assert_eq!((status, &*outcome.body), (Some("HIT"), fetched[0].as_bytes())),
            }
        }
        let expected = if target == "/own" { 20 } else { 1 };
        assert_eq!(fetched.len(), expected, "{target}");
    }
}

/// As in nginx, an update in the background belongs to the request that caused it.
#[test]
fn an_update_in_the_background_has_the_identifier_of_its_request() {
    let origin =
        Origin::start(|_| Reply::text("a").header("Cache-Control", "max-age=1, stale-while-revalidate=100"));
    let (_setup, server) = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.get("/updated/a");
    let until_stale =
        || Some(client.get("/updated/a")).filter(|response| response.field("X-Cache") != Some("HIT"));
    let response =
        testkit::wait::until("a stale response", Deadline::default(), until_stale).expect("it is stale");
    origin.wait_for("the update", |stats| stats.requests >= 2);
    assert_eq!(response.field("X-Id").map(str::to_owned), origin.requests()[1].header("X-Id"));
}

/// The key does not contain the range of the slice: clients get the ranges that they request, and no slice is stored.
#[test]
fn slices_with_one_key_are_complete_and_not_stored() {
    let objects = Objects::new();
    let length = 2 * SLICE + 5000;
    objects.put("/slice/a", Object::new(length));
    let origin = Origin::objects(&objects);
    let (setup, server) = start(&origin);
    let mut client = Client::connect(server.addr(0));
    let content = objects.content("/slice/a");
    for turn in 0..3 {
        let response = client.get("/slice/a");
        assert_eq!((response.status, response.field("Content-Range")), (200, None), "{turn}");
        content.assert_body(&response.body);
        let range = format!("bytes={}-{}", SLICE - 9, SLICE + 9);
        let response = client.request("GET", "/slice/a", &[("Range", &range)]);
        let place = format!("bytes {}-{}/{length}", SLICE - 9, SLICE + 9);
        assert_eq!((response.status, response.field("Content-Range")), (206, Some(&*place)), "{turn}");
        content.assert_range(SLICE - 9..SLICE + 10, &response.body);
        let beyond = client.request("GET", "/slice/a", &[("Range", "bytes=9000000-")]);
        assert_eq!(beyond.status, 416);
    }
    assert_eq!(entries(&setup), Vec::<std::path::PathBuf>::new());
}

#[test]
fn requests_that_wait_for_a_slice_with_one_key_get_what_they_request() {
    let gate = Gate::new();
    let objects = Objects::new();
    let held = gate.clone();
    let object = Object::new(3 * SLICE).tune(move |request, reply| match request.sequence {
        1 => reply.wait_first(&held),
        _ => reply,
    });
    objects.put("/slice/a", object);
    let origin = Origin::objects(&objects);
    let (_setup, server) = start(&origin);
    let mut clients: Vec<(Client, u64)> = Vec::new();
    for number in 0..9 {
        let start = number % 3 * SLICE + number;
        let mut client = Client::connect(server.addr(0));
        client.send(request_bytes("GET", "/slice/a", &[("Range", &format!("bytes={start}-"))]));
        clients.push((client, start));
        if number == 0 {
            gate.wait_reached();
        }
    }
    gate.open();
    let content = objects.content("/slice/a");
    for (mut client, start) in clients {
        let response = client.response();
        assert_eq!(response.status, 206, "{start}");
        content.assert_range(start..3 * SLICE, &response.body);
    }
}
