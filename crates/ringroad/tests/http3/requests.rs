//! Requests and responses.

use std::collections::HashMap;
use std::path::Path;

use testkit::{Content, Deadline, TempDir};

use crate::client::{Client, Options, tls_config};
use crate::{address, serve, writable};

const LARGE: usize = 10 << 20;

/// Returns a location for uploads to this directory.
fn uploads(site: &Path) -> String {
    let site = site.display();
    format!(
        "location /put/ {{ root {site}; client_body_temp_path {site}/temp; dav_methods PUT; create_full_put_path on; }}"
    )
}

#[test]
fn files_and_variables_are_sent() {
    let large = Content::new(7, LARGE as u64);
    let server = serve(
        2,
        "location = /facts { return 200 '$http3 $server_protocol $scheme $ssl_protocol $ssl_alpn_protocol $request'; }",
        |builder| builder.text("html/small.txt", "small").file("html/large.bin", large),
    );
    let mut client = Client::connect(address(&server));
    let reply = client.get("/facts");
    assert_eq!(reply.text(), "h3 HTTP/3.0 https TLSv1.3 h3 GET /facts HTTP/3.0");
    assert_eq!(reply.field("content-length"), Some(reply.body.len().to_string().as_str()));
    let reply = client.get("/small.txt");
    assert_eq!((reply.status, reply.text().as_str()), (200, "small"));
    assert_eq!(client.get("/missing").status, 404);
    let reply = client.get("/large.bin");
    assert_eq!(reply.body.len(), LARGE);
    large.compare(0..LARGE as u64, &mut &reply.body[..]).expect("the bytes of the file");
    let id = client.send("HEAD", "/large.bin", &[], None);
    let reply = client.reply(id);
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.field("content-length"), Some(LARGE.to_string().as_str()));
    let log = server.wait_for_access_log(5, Deadline::default());
    assert!(log.contains("GET /small.txt 200 5 HTTP/3.0 h3 TLSv1.3"), "{log}");
}

#[test]
fn bodies_are_received() {
    let data = TempDir::new("http3");
    let site = writable(&data);
    let (site, directives) = (site.clone(), uploads(&site));
    let server = serve(1, &directives, |builder| builder);
    let mut client = Client::connect(address(&server));
    for (index, len) in [0, 5, 70_000, LARGE].into_iter().enumerate() {
        let body: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        let path = format!("/put/{index}");
        let fields = [("content-length", len.to_string())];
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // The length of the last body is not announced.
        let fields = if index == 3 { &[][..] } else { &fields };
        let id = client.send("PUT", &path, fields, Some(&body));
        assert_eq!(client.reply(id).status, 201);
        let stored = std::fs::read(site.join(&path[1..])).expect("a file");
        assert!(stored == body, "{len}: {} bytes", stored.len());
    }
}

#[test]
fn many_streams_are_served_concurrently() {
    let server =
        serve(2, "location = /hello { return 200 hello; }", |builder| builder.text("html/a", "file"));
    let mut client = Client::connect(address(&server));
    let mut streams = Vec::new();
    for index in 0..500 {
        streams.push(client.send("GET", if index % 2 == 0 { "/hello" } else { "/a" }, &[], None));
    }
    for (index, id) in streams.into_iter().enumerate() {
        assert_eq!(client.reply(id).text(), if index % 2 == 0 { "hello" } else { "file" });
    }
}

/// A client that does not read one response receives the others.
#[test]
fn a_stream_that_is_not_read_blocks_no_other() {
    let server = serve(1, "location = /hello { return 200 hello; }", |builder| {
        builder.file("html/large.bin", Content::new(3, LARGE as u64))
    });
    let mut client =
        Client::with(address(&server), Options { stream_window: 64 << 10, ..Options::default() });
    let slow = client.send("GET", "/large.bin", &[], None);
    client.set_reading(slow, false);
    for _ in 0..20 {
        assert_eq!(client.get("/hello").text(), "hello");
    }
    let fast = client.send("GET", "/large.bin", &[], None);
    assert_eq!(client.reply(fast).body.len(), LARGE);
    assert_eq!(client.partial(slow).body.len(), 0);
    client.set_reading(slow, true);
    assert_eq!(client.reply(slow).body.len(), LARGE);
}

#[test]
fn trailers_and_interim_responses_are_sent() {
    let data = TempDir::new("http3");
    let directives = format!("add_trailer X-Sum done; {}", uploads(&writable(&data)));
    let server = serve(1, &directives, |builder| builder.text("html/a", "file"));
    let mut client = Client::connect(address(&server));
    let reply = client.get("/a");
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "done".to_owned())]);
    let id = client.open("PUT", "/put/b", &[("expect", "100-continue"), ("content-length", "3")], false);
    client.drive_until(|client| !client.partial(id).interim.is_empty());
    client.send_data(id, b"abc", true);
    let reply = client.reply(id);
    assert_eq!((reply.interim, reply.status), (vec![100], 201));
    // Trailers of a request end its body.
    let id = client.open("PUT", "/put/c", &[], false);
    client.send_data(id, b"abc", false);
    client.send_trailers(id, &[("x-sum", "1")]);
    assert_eq!(client.reply(id).status, 201);
}

#[test]
fn a_cancelled_request_is_logged() {
    let server =
        serve(1, "limit_rate 100k; location = /hello { limit_rate 0; return 200 hello; }", |builder| {
            builder.file("html/large.bin", Content::new(3, LARGE as u64))
        });
    let mut client = Client::connect(address(&server));
    let id = client.send("GET", "/large.bin", &[], None);
    assert_eq!(client.wait_for_head(id), 200);
    client.cancel(id);
    let upload = client.open("PUT", "/hello", &[("content-length", "1000000")], false);
    client.cancel(upload);
    assert_eq!(client.get("/hello").text(), "hello");
    let log = server.wait_for_access_log(2, Deadline::default());
    assert!(log.contains("GET /large.bin 200"), "{log}");
}

#[test]
fn violations_get_a_status_and_a_reset() {
    let data = TempDir::new("http3");
    let directives = format!("location / {{ return 200 $host; }} {}", uploads(&writable(&data)));
    let server = serve(1, &directives, |builder| builder);
    let mut client = Client::connect(address(&server));
    let id = client.send("GET", "/", &[("connection", "close")], None);
    assert_eq!(client.reply(id).status, 400);
    let id = client.send("GET", "/", &[("x-long", "x".repeat(50_000).as_str())], None);
    assert!([400, 431].contains(&client.reply(id).status));
    assert_eq!(client.get("/").text(), "localhost");
    // CANCEL_PUSH on the stream of a request, whose body the server awaits, is an error of the connection.
    let id = client.open("PUT", "/put/x", &[("content-length", "10")], false);
    client.send_raw(id, &[0x03, 0x00]);
    client.drive_until(|client| client.lost.is_some());
    let lost = format!("{:?}", client.lost);
    assert!(lost.contains("261") || lost.contains("0x105") || lost.contains("Application"), "{lost}");
    assert_eq!(Client::connect(address(&server)).get("/").text(), "localhost");
}

#[test]
fn http_0_9_over_quic_is_served_if_enabled() {
    let server = serve(1, "http3_hq on; location = /facts { return 200 '$http3'; }", |builder| {
        builder.file("html/large.bin", Content::new(3, 1 << 20))
    });
    let options =
        Options { alpn: b"hq-interop".to_vec(), tls: tls_config(b"hq-interop"), ..Options::default() };
    let mut client = Client::with(address(&server), options);
    assert_eq!(client.get("/facts").text(), "hq");
    assert_eq!(client.get("/large.bin").body.len(), 1 << 20);
}

/// Each connection is served by one thread, whichever socket the kernel would choose.
#[test]
fn connections_are_distributed_to_threads() {
    let server = serve(3, "location / { return 200 '$pid $connection'; }", |builder| builder);
    let mut clients: Vec<Client> = (0..12).map(|_| Client::connect(address(&server))).collect();
    let mut numbers = HashMap::new();
    for _ in 0..3 {
        for (index, client) in clients.iter_mut().enumerate() {
            let text = client.get("/").text();
            assert_eq!(numbers.entry(index).or_insert_with(|| text.clone()), &text);
        }
    }
}
