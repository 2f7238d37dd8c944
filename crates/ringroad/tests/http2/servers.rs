//! Several servers at an address: which of them serve requests of an HTTP/2 connection.

use crate::common::http2::{END, HEADERS, Http2, WHOLE, block};
use crate::common::serve_with;
use crate::requests::{certificate, handshake};

/// A request for a server with `http2 off` on the HTTP/2 connection of another server: 421 makes the client use another connection.
/// `http2` of `listen` applies to all servers of the address.
#[test]
fn a_server_without_http2_refuses_requests_of_another_servers_connection() {
    for (listen, own, status) in
        [("ssl", "http2 off;", 421), ("ssl", "http2 on;", 200), ("ssl http2", "", 200)]
    {
        let (pem, key, clients) = certificate(&[b"h2", b"http/1.1"]);
        let files = "ssl_certificate a.pem; ssl_certificate_key a.key;";
        let conf = format!(
            "worker_processes 1; events {{}} http {{ {files}
             server {{ listen 127.0.0.1:0 {listen}; server_name a.test; http2 on; return 200 a; }}
             server {{ listen 127.0.0.1:0 ssl; server_name b.test; {own} return 200 b; }} }}"
        );
        let server = serve_with(&conf, |builder| builder.text("conf/a.pem", &pem).text("conf/a.key", &key));
        let mut client = Http2::over(handshake(&server, &clients), &[]);
        let mut ask = |host: &str| {
            let stream = client.next_stream();
            let line = [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", host)];
            client.frame(HEADERS, WHOLE | END, stream, &block(&line));
            client.response(stream).status
        };
        assert_eq!((ask("a.test"), ask("b.test"), ask("a.test")), (200, status, 200), "{listen} {own}");
    }
}
