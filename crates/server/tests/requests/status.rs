//! Tests `stub_status`: the page, the variables, and the numbers of connections in every stage.

use crate::support::Site;
use testkit::{Client, Deadline};

/// Returns the page with these numbers.
fn page(active: u64, accepted: u64, requests: u64, [reading, writing, waiting]: [u64; 3]) -> String {
    format!(
        "Active connections: {active} \nserver accepts handled requests\n {accepted} {accepted} {requests} \n\
         Reading: {reading} Writing: {writing} Waiting: {waiting} \n"
    )
}

/// Sends requests until the last line of the page is `stages`, because the server detects the end of earlier
/// connections late. Returns the number of requests.
fn wait_for(client: &mut Client, stages: &str) -> u64 {
    let mut asked = 0;
    let look = || {
        asked += 1;
        let text = client.get("/status").text();
        text.ends_with(stages).then_some(())
    };
    let deadline = Deadline::default();
    testkit::wait::until("the numbers", deadline, look).unwrap_or_else(|_| panic!("{stages} does not come"));
    asked
}

#[test]
fn connections_are_counted_by_stage() {
    let site = Site::start(
        "stub_status",
        "server { listen 127.0.0.1:PORT;
                  location /status { stub_status; default_type text/html; }
                  location /old { if ($arg_x) { set $a b; } stub_status off; }
                  location /numbers { return 200
                      \"$connections_active $connections_reading $connections_writing $connections_waiting\"; }
                  location /status/inside { } location /status/limited { stub_status; limit_except GET { deny all; } } }",
    );
    let mut client = site.client();
    let response = client.get("/status");
    assert_eq!(response.text(), page(1, 1, 1, [0, 1, 0]));
    assert_eq!(response.field("Content-Type"), Some("text/plain"), "whatever default_type says");
    assert_eq!(client.get("/numbers").text(), "1 0 1 0");
    assert_eq!(
        client.get("/old?x=1").text(),
        page(1, 1, 3, [0, 1, 0]),
        "an if block has the content handler of its location"
    );
    assert_eq!(client.get("/status/inside").head.status, 404, "it is not inherited");
    assert_eq!(client.request("POST", "/status", &[]).head.status, 405);
    assert_eq!(client.request("POST", "/status/limited", &[]).head.status, 403);
    assert_eq!(client.request("HEAD", "/status", &[]).head.field("Content-Length"), Some("97"));
    let mut requests = 7;

    let mut idle = site.client();
    requests += wait_for(&mut client, "Reading: 0 Writing: 1 Waiting: 1 \n");
    idle.send("GET /numbers HTTP/1.1\r\nHost:");
    requests += wait_for(&mut client, "Reading: 1 Writing: 1 Waiting: 0 \n");
    idle.send(" a\r\n\r\n");
    assert_eq!(idle.response().text(), "2 0 1 1");
    requests += 1 + wait_for(&mut client, "Reading: 0 Writing: 1 Waiting: 1 \n");
    drop(idle);
    requests += wait_for(&mut client, "Reading: 0 Writing: 1 Waiting: 0 \n");
    assert_eq!(client.get("/status").text(), page(1, 2, requests + 1, [0, 1, 0]));
}
