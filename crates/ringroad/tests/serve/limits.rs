//! Limits and counters of the complete server: zones and counters are shared by all threads, and survive a reload.

use std::time::Duration;

use crate::common::{BINARY, against_nginx, ours_only, serve};
use testkit::cgroup::MemoryLimit;
use testkit::{Client, Deadline, Server, wait};

/// Returns a configuration with a limited page and the counters, on several threads; a marker identifies the
/// configuration that serves a request.
fn conf(marker: &str, limit: &str) -> String {
    format!(
        "worker_processes 4; events {{ }} http {{ {limit}
           server {{ listen 127.0.0.1:0; server_name a;
             location / {{ limit_req zone=one burst=3 nodelay; }}
             location /held {{ limit_conn two 2; }}
             location /status {{ stub_status; }} location /marker {{ return 200 {marker}; }} }} }}"
    )
}

const ZONES: &str =
    "limit_req_zone $server_name zone=one:1m rate=1r/m; limit_conn_zone $server_name zone=two:1m;";

/// Returns the sorted statuses of requests on separate connections, so that all threads get some.
fn statuses(server: &Server, target: &str, count: usize) -> Vec<u16> {
    let mut clients: Vec<Client> = (0..count).map(|_| Client::connect(server.addr(0))).collect();
    for client in &mut clients {
        client.send(testkit::client::request_bytes("GET", target, &[]));
    }
    let mut statuses: Vec<u16> = clients.iter_mut().map(|client| client.response().status).collect();
    statuses.sort_unstable();
    statuses
}

/// Reloads and waits until every thread has the new configuration, which has this marker.
fn reload(server: &mut Server, conf: &str, marker: &str) {
    // The test harness assigned nginx's port.
    let address = server.addr(0).to_string();
    let conf = if against_nginx() { conf.replace("127.0.0.1:0", &address) } else { conf.to_owned() };
    server.rewrite_conf(&conf);
    server.reload();
    let took = || {
        let answers = (0..8).map(|_| Client::connect(server.addr(0)).get("/marker").text());
        answers.into_iter().all(|text| text == marker).then_some(())
    };
    wait::until("the new configuration", Deadline::default(), took).expect("it comes into force");
}

fn start(conf: &str) -> Server {
    let server = serve(conf);
    testkit::write(server.path("html/index.html"), "page").expect("a page");
    testkit::write(server.path("html/held"), vec![0; 8 << 20]).expect("a large file");
    server
}

#[test]
fn a_zone_is_shared_by_all_threads_and_survives_a_reload() {
    let mut server = start(&conf("first", ZONES));
    let all = statuses(&server, "/", 12);
    assert_eq!(all, [[200; 4].as_slice(), &[503; 8]].concat(), "one, and three of the burst");
    // The new rate applies from now on; the bucket's level is unchanged.
    reload(&mut server, &conf("second", &ZONES.replace("1r/m", "2r/m")), "second");
    assert_eq!(statuses(&server, "/", 2), [503; 2]);
    // A zone with another size is a new zone.
    reload(&mut server, &conf("third", &ZONES.replace("one:1m", "one:2m")), "third");
    assert_eq!(statuses(&server, "/", 5), [200, 200, 200, 200, 503]);
}

#[test]
fn connections_are_counted_across_threads_and_reloads() {
    let mut server = start(&conf("first", ZONES));
    let hold = || {
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", "/held", &[]));
        assert_eq!(client.head().status, 200);
        client
    };
    let held = [hold(), hold()];
    assert_eq!(statuses(&server, "/held", 4), [503; 4]);
    reload(&mut server, &conf("second", ZONES), "second");
    assert_eq!(statuses(&server, "/held", 4), [503; 4], "requests before the reload still count");
    drop(held);
    let free = || (statuses(&server, "/held", 1) == [200]).then_some(());
    wait::until("a free place", Deadline::default(), free).expect("the responses in flight have ended");
}

#[test]
fn stub_status_counters_continue_after_a_reload_in_place() {
    if !ours_only("nginx stores them differently") {
        return;
    }
    let mut server = start(&conf("first", ZONES));
    let numbers = |server: &Server| {
        let text = Client::connect(server.addr(0)).get("/status").text();
        let line = text.lines().nth(2).expect("the third line has them").to_owned();
        let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        (numbers[0], numbers[1], numbers[2])
    };
    for _ in 0..8 {
        numbers(&server);
    }
    let before = Some(numbers(&server));
    assert_eq!(before, Some((9, 9, 9)), "all threads are in the sums");
    reload(&mut server, &conf("second", ZONES), "second");
    let (accepted, handled, requests) = numbers(&server);
    assert!(accepted >= 18 && accepted == handled && accepted == requests, "{accepted} {handled} {requests}");
}

#[test]
fn limits_apply_once_to_a_request_and_its_subrequests() {
    let conf = "events { } http { limit_req_zone $server_name zone=one:1m rate=1r/m;
        limit_conn_zone $server_name zone=two:1m;
        server { listen 127.0.0.1:0; server_name a; root html; log_subrequest on;
          location = /page { ssi on; ssi_types *; default_type text/html; }
          location /part { limit_req zone=one; limit_conn two 1; }
          location = /whole { ssi on; ssi_types *; limit_req zone=one burst=9 nodelay; limit_conn two 1; } } }";
    let server = serve(conf);
    let page = "<!--#include virtual=\"/part\" wait=\"yes\" -->|".repeat(3);
    for (name, text) in [("page", page.as_str()), ("whole", &page), ("part", "ok")] {
        testkit::write(server.path(&format!("html/{name}")), text).expect("a file of the test");
    }
    // On one connection, as each request has then ended before the next is processed.
    let mut client = Client::connect(server.addr(0));
    let mut text = |target: &str| client.get(target).text();
    assert_eq!(text("/page"), "ok|ok|ok|", "only the first part is counted");
    let again = text("/page");
    assert!(again.contains("503 Service") && again.ends_with("|ok|ok|"), "refused once: {again}");
    assert_eq!(text("/whole"), "ok|ok|ok|", "the page itself was counted");
}

/// The next send would be due after minutes: until then a client that has left would occupy its slot.
#[test]
fn a_rate_limited_client_that_left_gives_back_its_slot_promptly() {
    let server = start(
        "worker_processes 1; events { } http { limit_conn_zone $server_name zone=one:1m;
         server { listen 127.0.0.1:0; server_name a; limit_conn one 1;
           location /held { limit_rate 1; limit_rate_after 4k; } location /read { limit_rate 1; limit_rate_after 4k; alias html/held; sendfile off; }
           location /text { alias html/index.html; } } }",
    );
    for target in ["/held", "/read"] {
        for is_reset in [false, true] {
            let mut client = Client::connect(server.addr(0));
            client.send(testkit::client::request_bytes("GET", target, &[]));
            assert_eq!(client.head().status, 200, "{target}");
            let busy = Client::connect(server.addr(0)).get("/text").status;
            assert_eq!(busy, 503, "{target}: the slot is occupied");
            match is_reset {
                true => client.reset(),
                false => drop(client),
            }
            let free = || {
                let mut next = Client::connect(server.addr(0));
                next.send(testkit::client::request_bytes("GET", "/text", &[("Connection", "close")]));
                (next.head().status == 200).then_some(())
            };
            wait::until("the slot", Deadline::after(Duration::from_secs(20)), free)
                .unwrap_or_else(|_| panic!("{target} {is_reset}: the slot stays occupied"));
        }
    }
}

/// Pages of files in the send queues of sockets count against the memory limit, and the kernel cannot evict them. Each way to send a
/// file therefore limits what it queues for clients that read nothing.
#[test]
fn responses_that_nobody_reads_do_not_exceed_a_memory_limit() {
    const CLIENTS: u64 = 400;
    const REQUESTS: u64 = 8;
    const MIB: u64 = 1 << 20;
    for (net, body, part) in [
        ("epoll", "sendfile on; aio off;", MIB),
        ("epoll", "sendfile on; aio off;", 32 << 10),
        ("epoll", "sendfile on; aio threads;", MIB),
        ("epoll", "sendfile off; aio threads;", MIB),
        ("epoll", "", MIB),
        ("io_uring", "", MIB),
        ("io_uring", "sendfile off;", MIB),
    ] {
        let Some(limit) = MemoryLimit::new("unread", 128 << 20) else { return };
        let conf = format!(
            "worker_processes 1; events {{ use {net}; worker_connections 1024; }} http {{ access_log off; \
             server {{ listen 127.0.0.1:0; root html; {body} location = /ok {{ return 200 ok; }} }} }}"
        );
        let builder = Server::builder(BINARY).conf(&conf).shell(&limit.enter()).text("html/big.bin", "");
        // The pages of a hole are read into the page cache as others are, and are charged to the server.
        let file = std::fs::File::options().write(true).open(builder.dir().join("html/big.bin"));
        file.and_then(|file| file.set_len(CLIENTS * REQUESTS * part)).expect("a sparse file");
        let server = match builder.try_start() {
            Ok(server) => server,
            Err(reason) if net == "io_uring" && reason.contains("io_uring") => {
                testkit::skip(format_args!("io_uring is not available: {reason}"));
                continue;
            }
            Err(reason) => panic!("{reason}"),
        };
        let worker = server.workers();
        let unread = |number: u64| {
            let mut client = Client::connect(server.addr(0));
            for index in number * REQUESTS..(number + 1) * REQUESTS {
                let range = format!("bytes={}-{}", index * part, (index + 1) * part - 1);
                client.send(testkit::client::request_bytes("GET", "/big.bin", &[("Range", &range)]));
            }
            client
        };
        let clients: Vec<Client> = (0..CLIENTS).map(unread).collect();
        // Each of these is answered after the server has continued the responses that can be continued.
        for _ in 0..20 {
            wait::let_pass(Duration::from_millis(50));
            assert_eq!(limit.kills(), 0, "{net} {body}");
            assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net} {body}");
        }
        for mut client in clients {
            assert_eq!(client.head().status, 206, "{net} {body}");
        }
        assert_eq!((limit.kills(), server.workers()), (0, worker), "{net} {body}");
    }
}
