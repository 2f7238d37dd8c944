//! Tests `limit_req` and `limit_conn` over a socket. The settings of their directives, the errors of invalid ones and
//! their inheritance are tested in the modules.

use std::time::{Duration, Instant};

use crate::support::Site;
use testkit::{Client, Deadline};

/// Starts a site with an access log of statuses, and one small and one large file.
fn start(label: &str, http: &str) -> Site {
    let site = Site::start(
        label,
        &format!(
            "log_format short '$status $limit_req_status $limit_conn_status'; access_log short.log short; {http}"
        ),
    );
    site.folder.write("html/index.html", "index");
    // Larger than the socket buffers of both ends: a response that fits into them ends before it is read.
    site.folder.write("html/large", vec![b'x'; 16 << 20]);
    site
}

/// Sends requests one after the other on one connection.
fn statuses(site: &Site, target: &str, count: usize) -> Vec<u16> {
    let mut client = site.client();
    (0..count).map(|_| client.get(target).head.status).collect()
}

/// Returns the first line of the error log that contains this text, from the text on.
fn logged(site: &Site, what: &str) -> String {
    let line = || {
        let lines = site.lines("error.log", 1);
        let line = lines.iter().find(|line| line.contains(what))?;
        Some(line[line.find(what).expect("it was found")..].to_owned())
    };
    let deadline = Deadline::default();
    testkit::wait::until("a line of the error log", deadline, line).expect("it is written")
}

/// Returns the `[level]` of the first line of the error log that contains this text.
fn level(site: &Site, what: &str) -> String {
    logged(site, what);
    let lines = site.lines("error.log", 1);
    let line = lines.iter().find(|line| line.contains(what)).expect("it was found before");
    line.split(['[', ']']).nth(1).expect("a line has a level").to_owned()
}

#[test]
fn requests_above_the_rate_are_refused() {
    let site = start(
        "limit_req",
        "limit_req_zone $arg_key zone=one:1m rate=1r/m; error_log error.log info;
         server { listen 127.0.0.1:PORT; limit_req zone=one burst=1 nodelay;
                  location /teapot { limit_req_status 418; limit_req_log_level warn; root html; } }",
    );
    let begun = Instant::now();
    assert_eq!(statuses(&site, "/?key=a", 4), [200, 200, 503, 503]);
    assert_eq!(statuses(&site, "/?key=b", 1), [200], "another key has another bucket");
    assert_eq!(statuses(&site, "/", 4), [200; 4], "an empty key is not limited");
    assert_eq!(statuses(&site, "/teapot?key=a", 1), [418], "the zone is the same everywhere");
    let expected = ["200 PASSED -", "200 PASSED -", "503 REJECTED -", "503 REJECTED -", "200 PASSED -"];
    let lines = site.lines("short.log", 10);
    assert_eq!(lines[..5], expected);
    assert_eq!((lines[5].as_str(), lines[9].as_str()), ("200 - -", "418 REJECTED -"));
    let line = logged(&site, "limiting requests");
    let excess = line.strip_prefix("limiting requests, excess: ").and_then(|rest| rest.get(..5));
    let excess: f64 = excess.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    // The rate is one per minute, so at most the elapsed share of a minute has left the bucket.
    let gone = begun.elapsed().as_secs_f64() / 60.0;
    assert!((2.0 - gone - 0.001..=2.0).contains(&excess), "{line}, {gone} gone");
    assert!(line.contains(" by zone \"one\", client: 127.0.0.1, server: , request: \"GET /?key=a"), "{line}");
    assert_eq!(level(&site, "limiting requests"), "error");
    assert_eq!(level(&site, "GET /teapot"), "warn");
}

#[test]
fn requests_above_the_delay_wait_for_their_turn() {
    let site = start(
        "limit_req_delay",
        "limit_req_zone $server_name zone=one:1m rate=1r/s; error_log error.log info;
         server { listen 127.0.0.1:PORT; server_name a; limit_req zone=one burst=4 delay=1; }",
    );
    let start = Instant::now();
    assert_eq!(statuses(&site, "/", 4), [200; 4]);
    // The first two pass immediately; the others need two seconds, less the time elapsed.
    assert!(start.elapsed() >= Duration::from_millis(1900), "{:?}", start.elapsed());
    let lines = site.lines("short.log", 4);
    assert_eq!((lines[0].as_str(), lines[3].as_str()), ("200 PASSED -", "200 DELAYED -"));
    let line = logged(&site, "delaying request");
    // The third request has two before it, less the excess that has drained since.
    let excess = ["delaying request, excess: 1.", "delaying request, excess: 2.000"];
    assert!(excess.iter().any(|start| line.starts_with(start)), "{line}");
    assert!(line.contains(", by zone \"one\", client"), "{line}");
    assert_eq!(level(&site, "delaying request"), "warn");
}

#[test]
fn a_client_that_disconnects_ends_its_delay() {
    let site = start(
        "limit_req_gone",
        "limit_req_zone $server_name zone=one:1m rate=1r/m; error_log error.log info;
         server { listen 127.0.0.1:PORT; server_name a; limit_req zone=one burst=9; }",
    );
    assert_eq!(statuses(&site, "/", 1), [200]);
    let mut client = site.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    logged(&site, "delaying request");
    // Bytes during the delay are another request, and not the end of the connection.
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect_silence(Duration::from_millis(20));
    drop(client);
    assert_eq!(site.lines("short.log", 2)[1], "499 DELAYED -");
    let line = logged(&site, "client prematurely closed connection");
    assert!(line.starts_with("client prematurely closed connection, client: 127.0.0.1"), "{line}");
}

#[test]
fn a_dry_run_counts_and_logs() {
    let site = start(
        "limit_req_dry",
        "limit_req_zone $server_name zone=one:1m rate=1r/m; limit_req_dry_run on;
         error_log error.log info;
         server { listen 127.0.0.1:PORT; server_name a; limit_req zone=one burst=1; }",
    );
    assert_eq!(statuses(&site, "/", 3), [200; 3]);
    let expected = ["200 PASSED -", "200 DELAYED_DRY_RUN -", "200 REJECTED_DRY_RUN -"];
    assert_eq!(site.lines("short.log", 3), expected);
    assert!(logged(&site, "delaying request").starts_with("delaying request, dry run, excess: "));
    assert!(logged(&site, "limiting requests").starts_with("limiting requests, dry run, excess: "));
}

#[test]
fn a_request_refused_by_one_limit_is_not_counted_by_others() {
    let site = start(
        "limit_req_several",
        "limit_req_zone $arg_a zone=a:1m rate=1r/m; limit_req_zone $arg_b zone=b:1m rate=1r/m;
         server { listen 127.0.0.1:PORT; error_page 503 /page; limit_req zone=a burst=1 nodelay; limit_req zone=b;
                  location /a { limit_req zone=a; root html; } location /page { return 299 page; } }",
    );
    assert_eq!(statuses(&site, "/?a=1&b=1", 1), [200]);
    // Rejected by b, and the error page is not checked again; the bucket of a has space for one more.
    assert_eq!(statuses(&site, "/?a=1&b=1", 3), [503; 3]);
    assert_eq!(statuses(&site, "/?a=1&b=2", 2), [200, 503]);
    assert_eq!(statuses(&site, "/?a=2", 2), [200; 2], "the last limit has no key, and the first counts");
    assert_eq!(statuses(&site, "/?a=2", 1), [503]);
    assert!(logged(&site, "by zone \"b\"").starts_with("by zone \"b\""));
}

/// Returns a connection whose response is in flight as long as the connection lives.
fn hold_request(site: &Site, target: &str) -> Client {
    let mut client = site.client();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(client.head().status, 200);
    client
}

/// Sends requests until the response has this status, because the server detects the end of another request slightly
/// later than its client.
fn wait_for_status(site: &Site, target: &str, status: u16) {
    let look = || (site.status(target) == status).then_some(());
    testkit::wait::until("the status", Deadline::default(), look).expect("it comes");
}

#[test]
fn requests_above_the_limit_of_connections_are_refused() {
    let site = start(
        "limit_conn",
        "error_log error.log info; limit_conn_zone $arg_key zone=one:1m; limit_conn_zone $server_name zone=all:1m;
         server { listen 127.0.0.1:PORT; server_name a; limit_conn one 2; limit_conn all 3;
                  location /dry { alias html; limit_conn_dry_run on; }
                  location /429 { alias html; limit_conn_status 429; limit_conn_log_level info; } }",
    );
    let first = hold_request(&site, "/large?key=a");
    let second = hold_request(&site, "/large?key=a");
    assert_eq!(site.status("/?key=a"), 503);
    assert_eq!(site.status("/429/?key=a"), 429);
    assert_eq!(site.status("/dry/?key=a"), 200);
    assert_eq!(site.status("/?key=b"), 200);
    let third = hold_request(&site, "/large?key=b");
    assert_eq!(site.status("/?key=b"), 503, "the other zone is full, and its count in the first goes back");
    let lines = site.lines("short.log", 5);
    let expected =
        ["503 - REJECTED", "429 - REJECTED", "200 - REJECTED_DRY_RUN", "200 - PASSED", "503 - REJECTED"];
    assert_eq!(lines, expected);
    assert!(
        logged(&site, "limiting connections").starts_with("limiting connections by zone \"one\", client")
    );
    assert!(logged(&site, "dry run").starts_with("dry run by zone \"one\""));
    assert_eq!(
        (level(&site, "limiting connections"), level(&site, "GET /429")),
        ("error".into(), "info".into())
    );
    // A request no longer counts, whether its connection is reset or closed.
    first.reset();
    drop(second);
    wait_for_status(&site, "/?key=a", 200);
    drop(third);
    wait_for_status(&site, "/?key=b", 200);
}

#[test]
fn an_idle_connection_does_not_count() {
    let site = start(
        "limit_conn_idle",
        "limit_conn_zone $server_name zone=all:1m;
         server { listen 127.0.0.1:PORT; server_name a; limit_conn all 1; }",
    );
    let mut clients: Vec<Client> = (0..3).map(|_| site.client()).collect();
    for _ in 0..3 {
        for client in &mut clients {
            let look = || (client.get("/").head.status == 200).then_some(());
            let deadline = Deadline::default();
            testkit::wait::until("a place", deadline, look).expect("the one before has ended");
        }
    }
}
