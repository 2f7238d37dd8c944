//! Debug messages: a readable trace of each request, for all clients (`error_log … debug`) or for some (`debug_connection`).

use testkit::origin::{Origin, Reply};
use testkit::{Client, Content, Deadline, Server, TempDir};

use crate::common::{BINARY, http2};

/// Starts a server with these settings of its error log and events.
fn serve(level: &str, events: &str, origin: &Origin) -> Server {
    let conf = format!(
        "worker_processes 1; error_log logs/error.log {level}; events {{ {events} }}
         http {{ access_log off; proxy_cache_path logs/cache keys_zone=z:1m;
           upstream pair {{ server 127.0.0.1:9 max_fails=0; server {0} backup; }}
           server {{ listen 127.0.0.1:0; http2 on; server_name here; root html;
             location /files/ {{ alias html/; }}
             location /old/ {{ rewrite ^/old/(.*)$ /files/$1 last; }}
             location /closed {{ deny all; }}
             location /up {{ proxy_pass http://pair; }}
             location /cached {{ proxy_pass http://{0}; proxy_cache z; proxy_cache_valid 1h; }}
             location /keyed {{ proxy_pass http://{0}; proxy_cache z; proxy_cache_key $uri$http_cookie; }}
             location /post {{ proxy_pass http://{0}; }}
             error_page 404 /files/missing.txt; }} }}",
        origin.addr()
    );
    let builder = Server::builder(BINARY).conf(&conf).file("html/a", Content::new(1, 500));
    builder.file("html/missing.txt", Content::new(1, 10)).start()
}

/// Returns the debug messages, once one contains this text.
fn messages(server: &Server, last: &str) -> Vec<String> {
    server.wait_for_log(last, Deadline::default());
    let log = server.error_log();
    let of = |line: &str| {
        line.split_once("[debug] ")
            .and_then(|(_, text)| text.split_once(": "))
            .map(|(_, text)| text.to_owned())
    };
    log.lines().filter_map(of).collect()
}

/// Checks that these texts occur in messages, in this order.
#[track_caller]
fn assert_in_order(messages: &[String], texts: &[&str]) {
    let mut left = messages.iter();
    for text in texts {
        assert!(left.any(|message| message.contains(text)), "{text:?} is missing in {messages:#?}");
    }
}

fn origin() -> Origin {
    Origin::start(|_| Reply::text("up"))
}

#[test]
fn a_request_for_a_file_is_traced_from_the_accept_to_its_end() {
    let origin = origin();
    let server = serve("debug", "", &origin);
    assert_eq!(Client::connect(server.addr(0)).get("/files/a").status, 200);
    let messages = messages(&server, "end with status");
    assert_in_order(
        &messages,
        &[
            "*1 accepted connection of client 127.0.0.1",
            "*1 request 1: \"GET /files/a HTTP/1.1\" is processed by server \"here\"",
            "using location \"/files/\" for the URI \"/files/a\"",
            "content phase, module http_static: the response is ready",
            "response 200, a file of 500 bytes",
            "end with status 200, ",
        ],
    );
    let is_end = |message: &String| message.ends_with(" bytes sent, completely; keep-alive");
    assert!(messages.iter().any(is_end), "{messages:#?}");
}

#[test]
fn phases_that_decide_and_changes_of_the_uri_are_traced() {
    let origin = origin();
    let server = serve("debug", "", &origin);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/old/a").status, 200);
    assert_eq!(client.get("/closed").status, 403);
    assert_eq!(client.get("/none").status, 404);
    let messages = messages(&server, "end with status 404");
    assert_in_order(
        &messages,
        &[
            "request 1: using location \"/old/\"",
            "rewrite phase, module http_rewrite: ",
            "the URI is now \"/files/a\"",
            "using location \"/files/\" for the URI \"/files/a\"",
            "request 2: using location \"/closed\"",
            "access phase, module http_access: responds with status 403",
            "end with status 403",
            "request 3: internal redirect to \"/files/missing.txt\"",
        ],
    );
}

#[test]
fn upstream_tries_are_traced() {
    let origin = origin();
    let server = serve("debug", "", &origin);
    assert_eq!(Client::connect(server.addr(0)).get("/up").text(), "up");
    let messages = messages(&server, "end with status");
    let second = format!("address {}", origin.addr());
    assert_in_order(
        &messages,
        &[
            "content phase, module http_proxy: waits",
            "upstream try: server \"127.0.0.1:9\", address 127.0.0.1:9",
            "upstream try failed (502), another server is tried",
            &second,
            "upstream sent status 200",
            "content phase, module http_proxy: the response is ready",
        ],
    );
}

#[test]
fn proxy_protocol_headers_and_tls_handshakes_are_traced() {
    let conf = "worker_processes 1; error_log logs/error.log debug; events { } http { access_log off;
         server { listen 127.0.0.1:0 proxy_protocol; return 204; } }";
    let server = Server::builder(BINARY).conf(conf).start();
    let mut client = Client::connect(server.addr(0));
    client.send("PROXY TCP4 192.0.2.1 192.0.2.2 7000 80\r\nGET / HTTP/1.1\r\nHost: here\r\n\r\n");
    assert_eq!(client.response().status, 204);
    let messages = messages(&server, "end with status 204");
    assert_in_order(&messages, &["accepted connection", "PROXY protocol header of 40 bytes", "request 1: "]);
}

/// Logs are read by more people than may know these values, and are sent to other hosts.
#[test]
fn messages_contain_no_fields_of_requests_and_no_bodies() {
    let origin = origin();
    let server = serve("debug", "", &origin);
    let mut client = Client::connect(server.addr(0));
    let fields = [("Authorization", "Basic c2VjcmV0"), ("Cookie", "id=secret")];
    for path in ["/files/a", "/up", "/cached", "/keyed", "/old/a", "/closed"] {
        client.request("GET", path, &fields);
    }
    client.send(
        "POST /post HTTP/1.1\r\nHost: here\r\nAuthorization: Basic c2VjcmV0\r\nContent-Length: 6\r\n\r\nsecret",
    );
    assert_eq!(client.response().status, 200);
    let log = messages(&server, "\"POST /post HTTP/1.1\" is processed").join("\n");
    server.wait_for_log("request 7: end with status 200", Deadline::default());
    let log = log + &server.error_log();
    assert!(log.contains("cache: MISS, "), "{log}");
    assert!(!log.contains("secret") && !log.contains("c2VjcmV0"), "{log}");
}

#[test]
fn decisions_of_the_cache_are_traced() {
    let origin = origin();
    let server = serve("debug", "", &origin);
    let mut client = Client::connect(server.addr(0));
    for _ in 0..2 {
        assert_eq!(client.get("/cached").text(), "up");
    }
    let messages = messages(&server, "cache: HIT");
    assert_in_order(&messages, &["cache: MISS, the response is stored, key ", "cache: HIT, key "]);
    // The MD5, which is the name of the file in the cache.
    let key = messages.iter().find_map(|message| message.split_once("key ")).map(|(_, key)| key.len());
    assert_eq!(key, Some(32), "{messages:#?}");
}

#[test]
fn frames_of_http2_are_traced() {
    let origin = origin();
    let server = serve("debug", "", &origin);
    let mut client = http2::connect(&server);
    client.settle();
    assert_eq!(client.post("/post", &[], b"body").text(), "up");
    let messages = messages(&server, "end with status 200");
    assert_in_order(
        &messages,
        &[
            "HTTP/2: received a header section on stream 1, with body",
            "HTTP/2: received 4 bytes of a body on stream 1, the last",
        ],
    );
}

/// As in nginx, all messages of these connections are written to each log, whatever its level.
#[test]
fn debug_connection_traces_only_the_clients_that_it_names() {
    let origin = origin();
    for (events, is_traced) in [
        ("debug_connection 127.0.0.0/8;", true),
        ("debug_connection localhost;", true),
        ("debug_connection 192.0.2.1; debug_connection unix:; debug_connection 2001:db8::/32;", false),
    ] {
        let server = serve("notice", events, &origin);
        assert_eq!(Client::connect(server.addr(0)).get("/files/a").status, 200);
        if is_traced {
            server.wait_for_log("end with status 200", Deadline::default());
        }
        assert_eq!(Client::connect(server.addr(0)).get("/closed").status, 403);
        server.wait_for_log("access forbidden by rule", Deadline::default());
        assert_eq!(server.error_log().contains("[debug]"), is_traced, "{events}: {}", server.error_log());
    }
    let server = serve("info", "", &origin);
    assert_eq!(Client::connect(server.addr(0)).get("/closed").status, 403);
    server.wait_for_log("access forbidden by rule", Deadline::default());
    assert!(!server.error_log().contains("[debug]"), "{}", server.error_log());
}

#[test]
fn debug_connection_names_clients_of_unix_sockets() {
    let folder = TempDir::new("traces");
    let path = folder.path().join("socket");
    let conf = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ debug_connection unix:; }} http {{ access_log off;
         server {{ listen 127.0.0.1:0; listen unix:{}; return 204; }} }}",
        path.display()
    );
    let server = Server::builder(BINARY).conf(&conf).start();
    assert_eq!(Client::connect(server.addr(0)).get("/inet").status, 204);
    assert_eq!(Client::connect(server.addr(1)).get("/unix").status, 204);
    let messages = messages(&server, "end with status 204");
    assert_in_order(&messages, &["*2 request 1: \"GET /unix HTTP/1.1\" is processed"]);
    assert!(!messages.iter().any(|message| message.contains("/inet")), "{messages:#?}");
}
