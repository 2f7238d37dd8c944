//! Extended CONNECT (RFC 9220): streams that carry another protocol, such as WebSocket.

use testkit::origin::{Origin, Reply};

use crate::client::Client;
use crate::{address, serve};

/// WebSocket over HTTP/3: a separate stream, concurrent with other requests of the connection.
#[test]
fn websocket_uses_a_separate_stream() {
    let origin = Origin::start(|request| match request.path() {
        "/ws" => {
            assert_eq!(request.method, "GET");
            assert_eq!(request.header("Sec-WebSocket-Key").map(|key| key.len()), Some(24));
            Reply::echo("websocket")
        }
        _ => Reply::text("beside"),
    });
    let directives = format!(
        "location / {{ proxy_pass http://127.0.0.1:{port}; }} location /ws {{ proxy_pass http://127.0.0.1:{port}; \
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}",
        port = origin.port()
    );
    let server = serve(1, &directives, |builder| builder);
    let mut client = Client::connect(address(&server));
    let fields = [(":protocol", "websocket"), ("sec-websocket-version", "13")];
    let id = client.open("CONNECT", "/ws", &fields, false);
    assert_eq!(client.wait_for_head(id), 200);
    assert_eq!(client.partial(id).field("sec-websocket-accept"), None);
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    for (count, part) in content.chunks(10_000).enumerate() {
        client.send_data(id, part, false);
        let here = count * 10_000 + part.len();
        client.drive_until(|client| client.partial(id).body.len() == here);
        if count == 3 {
            assert_eq!(client.get("/").text(), "beside");
        }
    }
    assert!(client.partial(id).body == content);
    client.send_data(id, &[], true);
    let reply = client.reply(id);
    assert!(reply.is_complete && reply.reset.is_none(), "the upstream returns the end of the stream");
    // If a client resets the stream, the connection to the upstream is closed.
    let id = client.open("CONNECT", "/ws", &fields, false);
    assert_eq!(client.wait_for_head(id), 200);
    client.cancel(id);
    assert_eq!(client.get("/").text(), "beside");
    client.close();
    origin.wait_for("the end", |stats| stats.connections_open == 0);
}

/// A handler that does not switch the protocol sends no successful response.
#[test]
fn other_handlers_open_no_tunnel() {
    let server = serve(1, "location / { return 200 x; }", |builder| builder);
    let mut client = Client::connect(address(&server));
    let fields = [(":protocol", "websocket"), ("sec-websocket-version", "13")];
    let id = client.open("CONNECT", "/", &fields, false);
    assert_eq!(client.wait_for_head(id), 501);
    assert_eq!(client.get("/").text(), "x");
}
