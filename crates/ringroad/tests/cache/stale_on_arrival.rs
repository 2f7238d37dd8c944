//! Responses whose lifetime ends before they arrive, because of a slow origin, a clock difference or `Age`: requests that
//! waited for the fetch share its response, and only one fetch at a time is in flight.

use std::time::{Duration, SystemTime};

use crate::common::BINARY;
use testkit::burst::assert_all_right;
use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::{Burst, Client, Server, Setup};

const CONF: &str = "worker_processes 2; error_log logs/error.log info;
events { }
http {
  proxy_cache_path @CACHE@ keys_zone=z:1m;
  proxy_cache z;
  proxy_cache_key $uri$is_args$args;
  add_header X-Cache $upstream_cache_status always;
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /revalidated { proxy_pass http://@ORIGIN@; proxy_cache_revalidate on; }
    location /hasty { proxy_pass http://@ORIGIN@; proxy_cache_lock_timeout 200ms; }
  }
}
";

fn start(origin: &Origin) -> (Setup, Server) {
    let setup = Setup::new(CONF).origin(origin);
    let server = setup.start(BINARY);
    (setup, server)
}

/// Lets time pass at the origin: the duration of a fetch is what these tests are about, so no event ends it.
#[expect(clippy::disallowed_methods, reason = "the origin's time is the input of the test")]
fn take(delay: Duration) {
    std::thread::sleep(delay);
}

/// Number of concurrent requests.
const CROWD: usize = 20;

/// Sends twice as many concurrent requests as [`CROWD`], in two rounds, while the origin needs `delay` for each response.
/// Returns the number of fetches.
fn fetches_of(delay: Duration, reply: impl Fn(&OriginRequest) -> Reply + Send + Sync + 'static) -> u64 {
    let origin = Origin::start(move |request| {
        take(delay);
        reply(request)
    });
    let (_setup, server) = start(&origin);
    for round in 1..=2 {
        let outcomes = Burst::new(server.addr(0)).get("/", CROWD).start().join();
        assert_all_right(&outcomes, 200);
        let hits = outcomes.iter().filter(|outcome| outcome.field("X-Cache") == Some("HIT")).count();
        assert!(hits >= CROWD / 2, "round {round}: {hits} of {CROWD} share a fetch");
    }
    origin.stats().requests
}

fn dated(seconds_ago: u64, control: &str) -> Reply {
    let date = SystemTime::now() - Duration::from_secs(seconds_ago);
    let seconds = date.duration_since(SystemTime::UNIX_EPOCH).expect("now is after 1970").as_secs();
    let date = String::from_utf8(http::date::http(seconds as i64).to_vec()).expect("a date is ASCII");
    Reply::text("shared").header("Date", date).header("Cache-Control", control)
}

#[test]
fn a_fetch_that_outlasts_the_lifetime_is_shared_by_those_who_waited() {
    // Each round needs one fetch; a request that arrives after a response needs another.
    let fetches = fetches_of(Duration::from_millis(1100), |_| dated(0, "max-age=1"));
    assert!(fetches <= 6, "{fetches} fetches for {} requests", 2 * CROWD);
}

#[test]
fn a_lifetime_of_a_second_is_not_used_up_by_a_shorter_fetch() {
    let origin = Origin::start(|_| {
        take(Duration::from_millis(100));
        dated(0, "max-age=2")
    });
    let (_setup, server) = start(&origin);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/").field("X-Cache"), Some("MISS"));
    assert_eq!(client.get("/").field("X-Cache"), Some("HIT"));
    assert_eq!(origin.stats().requests, 1);
}

#[test]
fn an_origin_whose_clock_is_behind_gets_one_request_at_a_time() {
    let fetches = fetches_of(Duration::from_millis(500), |_| dated(100, "max-age=5"));
    assert!(fetches <= 6, "{fetches} fetches for {} requests", 2 * CROWD);
}

#[test]
fn a_response_with_an_age_above_its_lifetime_is_shared_by_those_who_waited() {
    let fetches = fetches_of(Duration::from_millis(500), |_| dated(0, "max-age=5").header("Age", "100"));
    assert!(fetches <= 6, "{fetches} fetches for {} requests", 2 * CROWD);
}

/// RFC 9111 section 5.2.2.2 forbids to use such a response for another request.
#[test]
fn must_revalidate_forbids_to_share_a_response_that_was_sent_stale() {
    let origin = Origin::start(|_| dated(0, "max-age=5, must-revalidate").header("Age", "100"));
    let (_setup, server) = start(&origin);
    let outcomes = Burst::new(server.addr(0)).get("/", CROWD).start().join();
    assert_all_right(&outcomes, 200);
    assert_eq!(origin.stats().requests, CROWD as u64);
}

#[test]
fn a_stale_response_is_not_used_for_a_request_that_did_not_wait() {
    let origin = Origin::start(|_| dated(0, "max-age=5").header("Age", "100"));
    let (_setup, server) = start(&origin);
    let mut client = Client::connect(server.addr(0));
    for _ in 0..3 {
        assert_ne!(client.get("/").field("X-Cache"), Some("HIT"));
    }
    assert_eq!(origin.stats().requests, 3);
}

#[test]
fn a_confirmation_that_is_stale_on_arrival_is_shared_by_those_who_waited() {
    let origin = Origin::start(|request| {
        take(Duration::from_millis(500));
        let reply = match request.header("If-None-Match") {
            Some(_) => Reply::new(304),
            None => Reply::text("shared"),
        };
        reply.header("ETag", "\"one\"").header("Cache-Control", "max-age=5").header("Age", "100")
    });
    let (_setup, server) = start(&origin);
    Client::connect(server.addr(0)).get("/revalidated");
    let outcomes = Burst::new(server.addr(0)).get("/revalidated", CROWD).start().join();
    assert_all_right(&outcomes, 200);
    let fetches = origin.stats().requests;
    assert!(fetches <= 4, "{fetches} fetches for {CROWD} requests");
}

/// A slow origin must not get more requests because it is slow: clients wait for its response, however long it takes.
#[test]
fn an_origin_that_needs_longer_than_the_stall_limit_gets_one_request_at_a_time() {
    let fetches = fetches_of(Duration::from_millis(5200), |_| dated(0, "max-age=5"));
    assert!(fetches <= 4, "{fetches} fetches for {} requests", 2 * CROWD);
}

/// With an explicit limit one more fetch starts after each stall, but never one for each waiting client.
#[test]
fn repeated_stalls_do_not_end_coalescing() {
    let origin = Origin::start(|_| {
        take(Duration::from_millis(1500));
        dated(0, "max-age=5")
    });
    let (_setup, server) = start(&origin);
    let outcomes = Burst::new(server.addr(0)).get("/hasty", CROWD).start().join();
    assert_all_right(&outcomes, 200);
    let fetches = origin.stats().requests;
    assert!(fetches <= 6, "{fetches} fetches for {CROWD} requests");
}
