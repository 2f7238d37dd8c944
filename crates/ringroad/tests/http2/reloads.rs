//! Connections of both protocols at an address that a reload in place removes, or switches to TLS or the PROXY protocol.

use std::net::TcpStream;

use crate::common::http2::{END, HEADERS, Http2, WHOLE, block, frame};
use crate::common::tls::{Authority, files};
use crate::common::{ours_only, serve_with};
use testkit::wait::DEFAULT_LIMIT;
use testkit::{Client, Content, Deadline};

/// If the connections stayed open, their next request could be served by a server block that does not listen on the address, in
/// clear text by a server that requires TLS, or with the address of a proxy instead of its client's.
#[test]
fn a_reload_closes_connections_to_a_removed_or_switched_address() {
    if !ours_only("nginx closes the connections of its old workers") {
        return;
    }
    let own = Authority::new("root").server("a.test");
    let large = Content::new(9, 3 << 20);
    let conf = |second: &str| {
        format!(
            "worker_processes 1; events {{}} http {{ http2 on; access_log off; lingering_timeout 30s; \
             server {{ listen 127.0.0.1:0; location / {{ return 200 first; }} }} {second} }}"
        )
    };
    let plain = "server { listen 127.0.0.2:0; root html; location = / { return 200 second; } }";
    let switched = "server { listen 127.0.0.2:0 ssl; ssl_certificate a.pem; ssl_certificate_key a.key; \
                    location / { return 200 secret; } }";
    let proxied = "server { listen 127.0.0.2:0 proxy_protocol; location / { return 200 proxied; } }";
    for second in ["", switched, proxied] {
        let mut server =
            serve_with(&conf(plain), |builder| files(builder, "a", &own).file("html/large.bin", large));
        let address = server.addr(1).clone();
        let mut kept = Client::connect(&address);
        assert_eq!(kept.get("/").text(), "second");
        let stream = TcpStream::connect(address.tcp()).expect("a listener");
        stream.set_read_timeout(Some(DEFAULT_LIMIT)).expect("a socket");
        let mut streams = Http2::over(stream, &[]);
        assert_eq!(streams.get("/").text(), "second");
        let mut slow = Client::connect_narrow(address.tcp(), 4096);
        slow.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = slow.head();
        server.rewrite_conf(&conf(second));
        server.reload();
        server.wait_for_log("in place", Deadline::default());
        // The server may have closed the connections already.
        let _ = kept.try_send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        kept.expect_end();
        let asked = streams.next_stream();
        let line = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here")];
        let _ = streams.try_send(&frame(HEADERS, WHOLE | END, asked, &block(&line)));
        let status = |client: &Http2<TcpStream>| client.streams.get(&asked).map_or(0, |got| got.status);
        while status(&streams) == 0 && streams.read_frame().is_ok() {}
        assert_eq!(status(&streams), 0, "{second}: {:?}", streams.streams);
        assert!(streams.goaways.last().is_some_and(|(_, code)| *code == 0), "{second}");
        // The response in flight is completed.
        large.compare(0..3 << 20, &mut slow.body(&head)).unwrap_or_else(|mismatch| panic!("{mismatch:?}"));
        slow.expect_end();
        assert_eq!(Client::connect(server.addr(0)).get("/").text(), "first");
    }
}
