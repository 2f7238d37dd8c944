//! Numbers of `stream` in the API and in the metrics: sessions by server, limits of connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};
use testkit::{Client, Deadline, Server, wait};

use crate::common::BINARY;

fn json(server: &Server, path: &str) -> Value {
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", &format!("/api/9/{path}"), &[]));
    serde_json::from_str(&client.response().text()).expect("JSON")
}

/// Sends bytes to an address of `stream`, and reads until the end of the session.
fn session(server: &Server, address: usize, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.addr(address).tcp()).expect("it listens");
    let (mut received, _) = (Vec::new(), stream.write_all(bytes));
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut received);
    received
}

#[test]
fn sessions_are_counted_by_server_and_limits_by_zone() {
    let conf = "worker_processes 2; error_log logs/error.log notice; events { }
        http { access_log off; limit_conn_zone $uri zone=requests:32k;
          server { listen 127.0.0.1:0; location /api { api; } location /metrics { metrics; }
            location /limited { limit_conn requests 1; return 204; } } }
        stream { limit_conn_zone $remote_addr zone=clients:32k;
          server { listen 127.0.0.2:0; status_zone texts; limit_conn clients 5; return 'a text'; }
          server { listen 127.0.0.3:0; server_name b.example; deny all; return x; }
          server { listen 127.0.0.4:0; status_zone off; return 'not counted'; }
          server { listen 127.0.0.5:0; return x; } }";
    let server = Server::start(BINARY, conf);
    for _ in 0..3 {
        assert_eq!(session(&server, 1, b"hello"), b"a text");
    }
    assert_eq!(session(&server, 2, b""), b"");
    assert_eq!(session(&server, 3, b""), b"not counted");
    let counted = || {
        let zones = json(&server, "stream/server_zones");
        let total = |name: &str| zones[name]["connections"].as_u64();
        (total("texts") == Some(3) && total("b.example") == Some(1)).then_some(zones)
    };
    let zones = wait::until("the sessions", Deadline::default(), counted).expect("they have ended");
    let names: Vec<&String> = zones.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["127.0.0.5:0", "b.example", "texts"]);
    assert_eq!(zones["texts"]["sessions"], json!({ "2xx": 3, "4xx": 0, "5xx": 0, "total": 3 }));
    assert_eq!(zones["b.example"]["sessions"], json!({ "2xx": 0, "4xx": 1, "5xx": 0, "total": 1 }));
    assert_eq!(zones["texts"]["sent"], json!(18));
    assert_eq!(json(&server, "stream/server_zones/texts/connections"), json!(3));
    let limits = json!({ "clients": { "passed": 3, "rejected": 0, "rejected_dry_run": 0 } });
    assert_eq!(json(&server, "stream/limit_conns"), limits);
    let names = json(&server, "http/limit_conns");
    assert_eq!(names.as_object().expect("an object").keys().collect::<Vec<_>>(), ["requests"]);
    // The numbers of a zone continue after a reload.
    server.reload();
    server.wait_for_log("in place", Deadline::default());
    session(&server, 1, b"");
    let counted = || (json(&server, "stream/server_zones/texts/connections") == json!(4)).then_some(());
    wait::until("the fourth session", Deadline::default(), counted).expect("it has ended");
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", "/metrics", &[]));
    let metrics = client.response().text();
    for line in [
        "ringroad_stream_sessions_total{server=\"texts\",code=\"200\"} 4",
        "ringroad_stream_sessions_total{server=\"b.example\",code=\"403\"} 1",
        "ringroad_stream_sent_bytes_total{server=\"texts\"} 24",
        "ringroad_stream_session_duration_seconds_count{server=\"texts\"} 4",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("server=\"off\""), "{metrics}");
}
