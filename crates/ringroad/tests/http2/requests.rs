//! HTTP/2 to clients: its negotiation, requests and responses of every kind, concurrent streams, flow control, the end
//! of a connection. Hostile clients are tested in `http2/limits.rs`.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::http2::{
    self, DATA, END, HEADERS, Http2, PING, RESET, SETTINGS, WHOLE, WINDOW, block, frame, setting,
};
use crate::common::{BINARY, client, one_server, ours_only, serve, serve_with};
use rcgen::{CertificateParams, KeyPair};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testkit::files::Content;
use testkit::origin::{Origin, Reply};
use testkit::server::ServerBuilder;
use testkit::{Client, Deadline, Gate, Server, Setup, date};

/// Starts a server with HTTP/2 in clear text.
fn start(server: &str) -> Server {
    serve(&one_server("http2 on;", server))
}

/// Starts the same server in front of an origin.
pub(super) fn proxy(origin: &Origin, http: &str, locations: &str) -> Server {
    let text = format!(
        "worker_processes 1; events {{}} http {{ http2 on; {http} server {{ listen 127.0.0.1:0; {locations}\n\
         location / {{ proxy_pass http://@ORIGIN@; }} }} }}"
    );
    Setup::new(&text).origin(origin).start(BINARY)
}

/// Lets some time pass between two frames of a slow client.
pub(super) fn pause(time: Duration) {
    testkit::wait::let_pass(time);
}

pub(super) fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|place| (place % 251) as u8).collect()
}

#[test]
fn a_clear_text_request_by_prior_knowledge_is_served() {
    let server = serve(&one_server(
        "http2 on; log_format line '$request|$status|$body_bytes_sent|$http2|$connection_requests'; \
         access_log logs/access.log line;",
        "location / { return 200 '$server_protocol|$http2|$request|$host|$scheme|$http_x|$http_cookie'; }",
    ));
    let mut client = http2::connect(&server);
    let fields = [("x", "y"), ("cookie", "a=b"), ("cookie", "c=d")];
    let stream = client.begin("GET", "/a?b", &fields, true);
    let got = client.response(stream);
    assert_eq!((got.status, got.ended, got.reset), (200, true, None));
    assert_eq!(got.text(), "HTTP/2.0|h2c|GET /a?b HTTP/2.0|here|http|y|a=b; c=d");
    assert_eq!(got.field("content-length"), Some(got.body.len().to_string().as_str()));
    assert!(
        got.fields.iter().all(|(name, _)| name != "connection" && name != "transfer-encoding"),
        "{got:?}"
    );
    client.get("/");
    let log = server.wait_for_access_log(2, Deadline::default());
    assert!(log.starts_with("GET /a?b HTTP/2.0|200|51|h2c|1\nGET / HTTP/2.0|200|"), "{log}");
    // HTTP/1.1 works as before.
    let response = Client::connect(server.addr(0)).get("/");
    assert!(response.text().starts_with("HTTP/1.1||GET / HTTP/1.1"), "{}", response.text());
}

/// The preface in pieces, the first of which could begin another method.
#[test]
fn a_preface_in_pieces_is_distinguished_from_other_methods() {
    let server = start("location / { return 200 $request_method; }");
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    all.extend(frame(SETTINGS, 0, 0, &[]));
    let line = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here")];
    all.extend(frame(HEADERS, WHOLE | END, 1, &block(&line)));
    let mut plain = client(&server);
    plain.send_in_pieces(&all, 1);
    let preface = plain.read_exact(9);
    assert_eq!(preface[3], SETTINGS);
    let mut post = client(&server);
    post.send_in_pieces("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 1);
    assert_eq!(post.response().text(), "POST");
}

/// The connection ends at the first timeout, and not as an incomplete request of HTTP/1 at a second one.
#[test]
fn an_incomplete_preface_times_out_once() {
    let http =
        "http2 on; client_header_timeout 200ms; log_format line $status; access_log logs/access.log line;";
    let server = serve(&one_server(http, "location / { return 200 x; }"));
    let mut silent = client(&server);
    silent.send("P").expect_end();
    assert_eq!(client(&server).get("/").status, 200);
    // A request of HTTP/1 would have a line with 408.
    assert_eq!(server.wait_for_access_log(1, Deadline::default()), "200\n");
}

#[test]
fn the_preface_is_refused_without_the_http2_directive() {
    if !ours_only("nginx sends another response") {
        return;
    }
    let server = serve(&one_server("", "location / { return 200 x; }"));
    let mut plain = client(&server);
    plain.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(plain.response().status, 400);
}

/// Returns a certificate for `a.test` with its key, and the configuration of a client that trusts it.
pub(super) fn certificate(alpn: &[&[u8]]) -> (String, String, Arc<ClientConfig>) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
    let pem = params.self_signed(&key).expect("a certificate").pem();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    (pem, key.serialize_pem(), Arc::new(config))
}

fn with_tls(listen: &str, server: &str, (pem, key): (&str, &str)) -> Server {
    let conf = format!(
        "worker_processes 1; events {{}} http {{ server {{ listen 127.0.0.1:0 ssl{listen}; server_name a.test;\n\
         ssl_certificate a.pem; ssl_certificate_key a.key; {server} }} }}"
    );
    let files = |builder: ServerBuilder| builder.text("conf/a.pem", pem).text("conf/a.key", key);
    serve_with(&conf, files)
}

pub(super) fn handshake(
    server: &Server,
    clients: &Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let socket = TcpStream::connect(server.addr(0).tcp()).expect("a listener");
    socket.set_read_timeout(Some(testkit::wait::DEFAULT_LIMIT)).expect("a socket");
    let name = ServerName::try_from("a.test").expect("a name");
    let connection = ClientConnection::new(Arc::clone(clients), name).expect("a client");
    let mut tls = StreamOwned::new(connection, socket);
    tls.conn.complete_io(&mut tls.sock).expect("a handshake");
    tls
}

#[test]
fn alpn_selects_http2_if_it_is_enabled() {
    // RFC 9113 section 3.2: `h2c` must not be selected by ALPN.
    let (pem, key, clients) = certificate(&[b"h2c", b"h2", b"http/1.1"]);
    let location =
        "location / { return 200 '$http2|$ssl_alpn_protocol|$scheme'; } location /f { root html; }";
    for (listen, http2) in [("", "http2 on;"), (" http2", "")] {
        let server = with_tls(listen, &format!("{http2} {location}"), (&pem, &key));
        let tls = handshake(&server, &clients);
        assert_eq!(tls.conn.alpn_protocol(), Some(&b"h2"[..]), "{listen} {http2}");
        let mut client = Http2::over(tls, &[]);
        assert_eq!(client.get("/").text(), "h2|h2|https");
        assert_eq!(client.get("/f/none").status, 404);
    }
    let server = with_tls("", location, (&pem, &key));
    assert_eq!(handshake(&server, &clients).conn.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[test]
fn bodies_of_all_kinds_are_served_unchanged() {
    let content = Content::new(1, 700_001);
    let whole = content.bytes(0..700_001);
    let text: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
    let server = serve_with(
        &one_server(
            "http2 on;",
            "root html; gzip_types text/plain; add_header X-Own ' 1 ';
             location /empty { return 204; }
             location /sub/ { alias html/; sub_filter line LINE; sub_filter_once off; sub_filter_types *; add_trailer T done; }
             location /zip/ { alias html/; gzip on; }
             location /slow/ { alias html/; limit_rate 400k; }
             location /moved { return 301 /other; }
             location /read/ { alias html/; aio threads; sendfile off; output_buffers 2 32k; }",
        ),
        |builder| {
            builder
                .text("html/text.txt", &text)
                .text("html/small.txt", "hello")
                .file("html/file.bin", content)
        },
    );
    let mut client = http2::connect(&server);
    for path in ["/file.bin", "/read/file.bin"] {
        let got = client.get(path);
        assert_eq!((got.status, got.field("content-length")), (200, Some("700001")));
        assert!(got.body == whole && got.ended, "{path} {}", got.body.len());
        assert!(got.frames.iter().all(|len| *len <= 8192), "http2_chunk_size");
    }
    let small = client.get("/small.txt");
    assert_eq!((small.text().as_str(), small.field("x-own")), ("hello", Some("1")));
    let head = client.begin("HEAD", "/file.bin", &[], true);
    let head = client.response(head);
    assert_eq!((head.status, head.field("content-length"), head.body.len()), (200, Some("700001"), 0));
    let etag = small.field("etag").expect("a tag").to_owned();
    let fresh = client.begin("GET", "/small.txt", &[("if-none-match", &etag)], true);
    assert_eq!(client.response(fresh).status, 304);
    let part = client.begin("GET", "/file.bin", &[("range", "bytes=10-19")], true);
    let part = client.response(part);
    assert_eq!((part.status, part.body.as_slice()), (206, &whole[10..20]));
    let parts = client.begin("GET", "/file.bin", &[("range", "bytes=0-1,5-6")], true);
    assert_eq!(client.response(parts).status, 206);
    let empty = client.get("/empty");
    assert_eq!((empty.status, empty.body.len(), empty.ended), (204, 0, true));
    let moved = client.get("/moved");
    assert_eq!(
        (moved.status, moved.field("location")),
        (301, Some(format!("http://here:{}/other", server.addr(0).tcp().port()).as_str()))
    );
    let filtered = client.get("/sub/text.txt");
    assert_eq!(filtered.text(), text.replace("line", "LINE"));
    assert_eq!((filtered.field("content-length"), filtered.trailers.len()), (None, 1));
    assert_eq!(filtered.trailers[0], ("t".to_owned(), "done".to_owned()));
    let zipped = client.begin("GET", "/zip/text.txt", &[("accept-encoding", "gzip")], true);
    let zipped = client.response(zipped);
    assert_eq!(zipped.field("content-encoding"), Some("gzip"));
    let mut plain = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&zipped.body[..]), &mut plain)
        .expect("gzip");
    assert_eq!(plain, text);
    assert!(client.get("/slow/file.bin").body == whole);
    assert_eq!(client.get("/none").status, 404);
}

/// RFC 9113 section 4.1: no frame is longer than the client allows, even if larger pieces of the body are available.
#[test]
fn frames_are_no_longer_than_the_client_allows() {
    let content = Content::new(2, 300_001);
    let conf = one_server("http2 on; http2_chunk_size 1m;", "root html;");
    let server = serve_with(&conf, |builder| builder.file("html/file.bin", content));
    for (allowed, settings) in [(16_384, vec![]), (40_000, setting(5, 40_000))] {
        let mut client = http2::connect_with(&server, &settings);
        // Waits until the server has received the client's settings.
        client.settle();
        let got = client.get("/file.bin");
        content.assert_body(&got.body);
        let longest = got.frames.iter().max().copied().unwrap_or_default();
        assert!(longest <= allowed, "{longest} {allowed}");
    }
}

/// A length over the limit is refused before the body arrives. The limit of a named location applies only to a body without
/// an announced length.
#[test]
fn announced_lengths_are_compared_after_redirects() {
    let server = start(
        "client_max_body_size 1k; rewrite ^/server$ /small last;
         location = /small { client_max_body_size 10; return 200 small; }
         location = /copy { return 204; }
         location = /location { rewrite ^ /small last; }
         location = /files { try_files none /small; }
         location = /named { try_files none @small; }
         location @small { client_max_body_size 10; mirror /copy; }",
    );
    for target in ["/small", "/server", "/location", "/files"] {
        let mut client = http2::connect(&server);
        let stream = client.begin("POST", target, &[("content-length", "50000000000")], false);
        assert_eq!(client.response(stream).status, 413, "{target}");
        assert_eq!(client.post(target, &[("content-length", "5")], b"hello").status, 200, "{target}");
    }
    let mut client = http2::connect(&server);
    assert_eq!(client.post("/named", &[("content-length", "20")], &[b'x'; 20]).status, 404);
    assert_eq!(client.post("/named", &[], &[b'x'; 20]).status, 413);
}

#[test]
fn request_bodies_are_read() {
    let server = start(
        "client_max_body_size 100k; client_body_early_read $arg_read; location / { return 200 '$content_length|$request_body'; }
         location /none { return 200 none; }",
    );
    let mut client = http2::connect(&server);
    assert_eq!(client.post("/?read=1", &[("content-length", "5")], b"hello").text(), "5|hello");
    assert_eq!(client.post("/?read=1", &[], b"hello").text(), "5|hello", "the length is determined");
    assert_eq!(client.post("/?read=1", &[], b"").text(), "|");
    let long = "x".repeat(10_000);
    assert_eq!(client.post("/?read=1", &[], long.as_bytes()).text(), format!("10000|{long}"));
    assert_eq!(client.post("/?read=1", &[("content-length", "200000")], &[b'x'; 200_000]).status, 413);
    assert_eq!(client.post("/?read=1", &[], &[b'x'; 200_000]).status, 413);
    // A body that the location does not need: the response is sent immediately, and RST_STREAM with NO_ERROR asks the client to
    // stop.
    let stream = client.begin("POST", "/none", &[], false);
    client.frame(DATA, 0, stream, &[b'x'; 1000]);
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.ended && got.reset.is_some()));
    let got = client.streams[&stream].clone();
    assert_eq!((got.status, got.reset), (200, Some(0)));
    // A trailer section ends the body.
    let stream = client.begin("POST", "/?read=1", &[], false);
    client.frame(DATA, 0, stream, b"with ");
    client.frame(DATA, 0, stream, b"trailers");
    client.frame(HEADERS, WHOLE | END, stream, &block(&[("x-sum", "1")]));
    assert_eq!(client.response(stream).text(), "13|with trailers");
}

#[test]
fn uploads_are_passed_on_buffered_and_unbuffered() {
    let origin = Origin::start(|request| {
        let sum: u64 = request.body.iter().map(|&byte| u64::from(byte)).sum();
        Reply::text(format!("{} {} {:?}", request.body.len(), sum, request.header("content-length")))
    });
    let server = proxy(
        &origin,
        "client_max_body_size 0; client_body_buffer_size 64k;",
        "location /pieces { proxy_http_version 1.1; proxy_request_buffering off; proxy_pass http://@ORIGIN@; }",
    );
    let body = numbers(900_000);
    let sum: u64 = body.iter().map(|&byte| u64::from(byte)).sum();
    let mut client = http2::connect(&server);
    for path in ["/whole", "/pieces"] {
        let length = body.len().to_string();
        let got = client.post(path, &[("content-length", &length)], &body);
        assert_eq!(got.text(), format!("900000 {sum} Some(\"900000\")"), "{path}");
        client = http2::connect(&server);
    }
    let got = client.post("/whole", &[], &body);
    assert_eq!(got.text(), format!("900000 {sum} Some(\"900000\")"), "the length is determined");
    let mut client = http2::connect(&server);
    assert_eq!(client.post("/pieces", &[], &body).text(), format!("900000 {sum} None"), "in chunks");
    // A client that waits for a 100.
    let mut client = http2::connect(&server);
    let stream = client.begin("POST", "/whole", &[("expect", "100-continue")], false);
    client.until(|client| client.streams.get(&stream).is_some_and(|got| !got.interim.is_empty()));
    client.frame(DATA, END, stream, b"x");
    let got = client.response(stream);
    assert_eq!((got.status, got.interim.as_slice()), (200, &[(100, vec![])][..]));
}

/// Trailers and early hints from an upstream are forwarded; connection fields are not.
#[test]
fn early_hints_and_trailers_of_upstreams_are_passed_on() {
    let origin = Origin::raw(|connection| {
        while let Some(request) = connection.read_request() {
            let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
            let head = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nX: y\r\n\
                        Trailer: T\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: last\r\n\r\n";
            let early = if request.path() == "/hints" { hints } else { "" };
            connection.send(format!("{early}{head}"));
        }
    });
    let server = proxy(&origin, "proxy_http_version 1.1;", "early_hints 1; proxy_pass_trailers on;");
    let mut client = http2::connect(&server);
    let got = client.get("/hints");
    assert_eq!(got.interim, [(103, vec![("link".to_owned(), "</a>".to_owned())])]);
    assert_eq!((got.text().as_str(), got.field("x")), ("abc", Some("y")));
    assert_eq!(got.trailers, [("t".to_owned(), "last".to_owned())]);
    assert!(
        got.fields.iter().all(|(name, _)| !name.contains("connection") && name != "keep-alive"),
        "{got:?}"
    );
}

/// A delayed response does not block other streams.
#[test]
fn streams_do_not_wait_for_each_other() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::raw(move |connection| {
        while let Some(request) = connection.read_request() {
            if request.path() == "/slow" && !connection.pass(&held) {
                return;
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup");
        }
    });
    let server = proxy(&origin, "", "location /own { return 200 own; }");
    let mut client = http2::connect(&server);
    let slow = client.ask("/slow");
    let streams: Vec<u32> =
        (0..50).map(|number| client.ask(if number % 2 == 0 { "/own" } else { "/fast" })).collect();
    for stream in &streams {
        assert_eq!(client.response(*stream).status, 200);
    }
    assert!(!client.streams.contains_key(&slow));
    gate.open();
    assert_eq!(client.response(slow).text(), "up");
}

/// A stream whose window is full waits; other streams continue, and the memory for it is bounded.
#[test]
fn a_full_window_blocks_only_its_own_stream() {
    let content = Content::new(1, 3_000_000);
    let server = serve_with(&one_server("http2 on;", "root html;"), |builder| {
        builder.file("html/file.bin", content).text("html/small.txt", "hello")
    });
    let mut client = http2::connect_with(&server, &setting(4, 1000));
    client.opens = false;
    client.frame(WINDOW, 0, 0, &(1u32 << 30).to_be_bytes());
    let held = client.ask("/file.bin");
    client.until(|client| client.streams.get(&held).is_some_and(|got| got.body.len() == 1000));
    assert_eq!(client.get("/small.txt").text(), "hello");
    // SETTINGS change windows of existing streams (RFC 9113 section 6.9.2).
    client.frame(SETTINGS, 0, 0, &setting(4, 5000));
    client.until(|client| client.streams[&held].body.len() == 5000);
    client.settle();
    assert_eq!(client.streams[&held].body.len(), 5000);
    client.frame(SETTINGS, 0, 0, &setting(4, 100));
    client.frame(WINDOW, 0, held, &4900u32.to_be_bytes());
    client.settle();
    assert_eq!(client.streams[&held].body.len(), 5000, "the window was below zero");
    client.frame(WINDOW, 0, held, &3_000_000u32.to_be_bytes());
    assert!(client.response(held).body == content.bytes(0..3_000_000));
}

#[test]
fn a_stream_that_its_client_does_not_read_is_reset() {
    let server = serve_with(&one_server("http2 on;", "root html; send_timeout 300ms;"), |builder| {
        builder.file("html/file.bin", Content::new(1, 100_000))
    });
    let mut client = http2::connect_with(&server, &setting(4, 10));
    client.opens = false;
    let stream = client.ask("/file.bin");
    let got = client.response(stream);
    assert_eq!((got.body.len(), got.ended, got.reset), (10, false, Some(1)));
    assert_eq!(client.get("/none").status, 404, "the connection goes on");
}

/// A response that waits for another response is not reset, however long the other takes, while the client reads.
#[test]
fn a_response_that_waits_for_another_is_not_reset() {
    // A machine that stops for as long as the timeout proves nothing; then a longer timeout is tried.
    for timeout in [1, 2, 4, 8, 16].map(Duration::from_secs) {
        let text =
            format!("root html; send_timeout {}s; location /text {{ return 200 hello; }}", timeout.as_secs());
        let server = serve_with(&one_server("http2 on;", &text), |builder| {
            let builder = builder.file("html/first.bin", Content::new(1, 3_000_000));
            builder.file("html/other.bin", Content::new(2, 90_000))
        });
        let mut client = http2::connect_with(&server, &setting(4, 1 << 30));
        client.opens = false;
        let first = client.ask("/first.bin");
        client.until(|client| client.streams.get(&first).is_some_and(|got| got.body.len() == 65_535));
        let waiting = [client.ask("/other.bin"), client.ask("/text")];
        let (start, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
        while start.elapsed() < timeout * 5 / 2 {
            let received =
                |client: &Http2<TcpStream>| client.streams.values().map(|got| got.body.len()).sum::<usize>();
            let wanted = received(&client) + 100;
            client.frame(WINDOW, 0, 0, &100u32.to_be_bytes());
            client.until(|client| received(client) == wanted);
            longest = longest.max(last.elapsed());
            last = Instant::now();
            pause(timeout / 100);
        }
        client.frame(WINDOW, 0, 0, &(1u32 << 30).to_be_bytes());
        let got = waiting.map(|stream| client.response(stream));
        let got = got.each_ref().map(|got| (got.body.len(), got.reset));
        if got == [(90_000, None), (5, None)] {
            return;
        }
        assert!(longest >= timeout / 2, "{got:?} after {longest:?}");
    }
    panic!("this machine is too slow");
}

/// A cancelled request ends its processing; the log has nginx's status.
#[test]
fn a_reset_cancels_the_request() {
    let origin = Origin::raw(|connection| {
        connection.read_request();
        connection.wait_for_close();
    });
    let server = proxy(&origin, "log_format line '$uri $status'; access_log logs/access.log line;", "");
    let mut client = http2::connect(&server);
    let stream = client.ask("/slow");
    origin.wait_for("the request", |stats| stats.requests > 0);
    client.frame(RESET, 0, stream, &8u32.to_be_bytes());
    let log = server.wait_for_access_log(1, Deadline::default());
    assert_eq!(log, "/slow 499\n");
    drop(client);
    // Closing the connection ends all its streams.
    let mut client = http2::connect(&server);
    client.ask("/one");
    client.ask("/two");
    origin.wait_for("the requests", |stats| stats.requests > 2);
    drop(client);
    let log = server.wait_for_access_log(3, Deadline::default());
    assert_eq!(log.matches(" 499").count(), 3, "{log}");
}

/// As in nginx the header section counts with its compressed size.
#[test]
fn request_length_is_that_of_the_header_block() {
    let server = start("location / { return 200 $request_length; }");
    let mut client = http2::connect(&server);
    let bytes = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here")]);
    let stream = client.next_stream();
    client.frame(HEADERS, WHOLE | END, stream, &bytes);
    assert_eq!(client.response(stream).text(), bytes.len().to_string());
}

/// RFC 9113 section 8.1.1: a malformed request gets a response and a stream error.
#[test]
fn malformed_requests_are_refused_and_the_connection_continues() {
    let server = start("error_log logs/error.log info; location / { return 200 x; }");
    let mut client = http2::connect(&server);
    let line = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here")];
    for fields in [
        [&line[..], &[("Upper", "x")]].concat(),
        [&line[..], &[("connection", "close")]].concat(),
        [&line[..], &[(":path", "/other")]].concat(),
        line[1..].to_vec(),
        [&line[..], &[("content-length", "5")]].concat(),
        [&line[..3], &[("host", "a b")]].concat(),
    ] {
        let stream = client.next_stream();
        client.frame(HEADERS, WHOLE | END, stream, &block(&fields));
        let got = client.response(stream);
        // An invalid `Host` is an error in any version of HTTP.
        let reset = (!fields.contains(&("host", "a b"))).then_some(1);
        assert_eq!((got.status, got.reset), (400, reset), "{fields:?}");
    }
    let long = "x".repeat(40_000);
    let stream = client.next_stream();
    let payload = block(&[&line[..], &[("x", &long)]].concat());
    let (first, rest) = payload.split_at(16_000);
    client.frame(HEADERS, END, stream, first);
    let (second, third) = rest.split_at(16_000);
    client.frame(http2::CONTINUATION, 0, stream, second);
    client.frame(http2::CONTINUATION, WHOLE, stream, third);
    assert_eq!(client.response(stream).status, 431);
    // A request whose body has not been received is reset after the response.
    let stream = client.next_stream();
    client.frame(HEADERS, WHOLE, stream, &block(&[&line[..], &[("te", "gzip")]].concat()));
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.reset.is_some()));
    assert_eq!((client.streams[&stream].status, client.streams[&stream].reset), (400, Some(1)));
    assert_eq!(client.get("/").text(), "x");
    server.wait_for_log("client sent connection-specific header", Deadline::default());
}

/// RFC 9113 section 5.4.1: a connection error is sent in GOAWAY before the connection is closed.
#[test]
fn connection_errors_are_sent_in_a_goaway_with_their_code() {
    let server = start("location / { return 200 x; }");
    for (bytes, code) in [
        (frame(DATA, 0, 1, b"x"), 1),
        (frame(SETTINGS, 0, 0, &[0; 5]), 6),
        (frame(HEADERS, WHOLE | END, 1, &[0xff; 8]), 9),
        (frame(WINDOW, 0, 0, &0x7fff_ffff_u32.to_be_bytes()), 3),
    ] {
        let mut client = http2::connect(&server);
        client.send(&bytes);
        client.until_closed();
        assert_eq!(client.goaways.last().map(|(_, code)| *code), Some(code), "{bytes:?}");
    }
}

#[test]
fn a_connection_closes_after_keepalive_requests_and_keepalive_time() {
    let server = start("keepalive_requests 3; location / { return 200 x; }");
    let mut client = http2::connect(&server);
    for _ in 0..3 {
        assert_eq!(client.get("/").status, 200);
    }
    client.until_closed();
    // The first GOAWAY announces the end of the connection, the second one the last stream ID (RFC 9113 section 6.8).
    assert_eq!(client.goaways, [(0x7fff_ffff, 0), (5, 0)]);
    let server = start("keepalive_timeout 100ms; location / { return 200 x; }");
    let mut client = http2::connect(&server);
    assert_eq!(client.get("/").status, 200);
    client.until_closed();
    assert_eq!(client.goaways, [(1, 0)]);
}

/// Unless `lingering_close` is off, the server continues to read after the last response, as with HTTP/1.
#[test]
fn lingering_close_can_be_turned_off() {
    for (setting, reads_on) in [("on", true), ("off", false)] {
        let http = format!("http2 on; lingering_time 1h; lingering_timeout 1h; lingering_close {setting};");
        let server = serve(&one_server(&http, "keepalive_requests 1; location / { return 200 x; }"));
        let mut client = http2::connect(&server);
        assert_eq!(client.get("/").status, 200);
        client.until_closed();
        // Less than what is received after the end, which is limited. After a close each send but the first gets a reset.
        let is_refused = (0..8).any(|_| {
            pause(Duration::from_millis(20));
            client.try_send(&[0; 16 << 10]).is_err()
        });
        assert_eq!(is_refused, !reads_on, "{setting}");
    }
}

/// PING frames do not extend the time for the first request, nor that of an idle connection.
#[test]
fn frames_without_a_request_do_not_extend_timeouts() {
    let text = "client_header_timeout 2s; keepalive_timeout 2s; location / { return 200 x; }";
    for requests in 0..2 {
        let server = start(text);
        let mut client = http2::connect(&server);
        (0..requests).for_each(|_| assert_eq!(client.get("/").status, 200));
        while client.try_send(&frame(PING, 0, 0, b"12345678")).is_ok() && client.read_frame().is_ok() {
            pause(Duration::from_millis(10));
        }
        client.until_closed();
        // Not ENHANCE_YOUR_CALM, after a thousand frames.
        assert_eq!(client.goaways, [(requests, 0)]);
    }
}

/// The time for a header section applies to a frame that arrives byte by byte.
#[test]
fn a_header_section_in_slow_pieces_times_out() {
    let text = "client_header_timeout 2s; keepalive_timeout 1h; location / { return 200 x; }";
    for requests in 0..2 {
        let server = start(text);
        let mut client = http2::connect(&server);
        (0..requests).for_each(|_| assert_eq!(client.get("/").status, 200));
        client.settle();
        let slow = frame(HEADERS, WHOLE | END, 3, &[0; 16_000]);
        let is_refused = slow.iter().any(|byte| {
            pause(Duration::from_millis(10));
            client.try_send(&[*byte]).is_err()
        });
        assert!(is_refused, "after {requests} requests");
    }
}

/// The waiting streams are first polled by the task of the connection, and later by separate tasks, which the end of the fetch
/// must wake.
#[test]
fn a_stream_that_waits_for_the_fetch_of_another_is_woken() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin =
        Origin::start(move |_| Reply::text("up").header("Cache-Control", "max-age=60").wait_first(&held));
    let setup = Setup::new(
        "error_log logs/error.log notice; events {} http { proxy_cache_path @CACHE@ keys_zone=z:1m; proxy_cache z; proxy_cache_key k;
         proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h;
         server { listen 127.0.0.1:0; http2 on; location / { proxy_pass http://@ORIGIN@; } location /own { return 200 own; } } }",
    )
    .origin(&origin);
    let server = setup.start(BINARY);
    // After this line a lookup does not wait for the disk, so that a stream waits first for the fetch.
    server.wait_for_log("entries known", Deadline::default());
    let (mut client, mut other) = (http2::connect(&server), http2::connect(&server));
    let leader = client.ask("/a");
    gate.wait_reached();
    let followers = [client.ask("/b"), client.ask("/c")];
    let follower = other.ask("/d");
    // After this response the streams before it wait.
    assert_eq!((client.get("/own").text(), other.get("/own").text()), ("own".to_owned(), "own".to_owned()));
    gate.open();
    for stream in [leader, followers[0], followers[1]] {
        assert_eq!(client.response(stream).text(), "up");
    }
    assert_eq!(other.response(follower).text(), "up");
    assert_eq!(origin.stats().requests, 1);
}

/// A stopping worker serves begun requests, and requests that a client sends before it has received the GOAWAY.
#[test]
fn a_graceful_stop_sends_two_goaways_and_loses_no_request() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::raw(move |connection| {
        while connection.read_request().is_some() {
            if !connection.pass(&held) {
                return;
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup");
        }
    });
    let server = proxy(&origin, "", "location /own { return 200 own; }");
    let mut client = http2::connect(&server);
    let slow = client.ask("/slow");
    client.acknowledges = false;
    origin.wait_for("the request", |stats| stats.requests > 0);
    server.signal(Signal::QUIT);
    client.until(|client| !client.goaways.is_empty());
    assert_eq!(client.goaways, [(0x7fff_ffff, 0)]);
    assert_eq!(client.get("/own").text(), "own");
    gate.open();
    assert_eq!(client.response(slow).text(), "up");
    client.until_closed();
    assert_eq!(client.goaways, [(0x7fff_ffff, 0), (3, 0)]);
}

/// Before a stop with a delay, and while the server is drained, new connections are accepted. Each serves a request
/// before its end is announced: otherwise a client without a load balancer would connect again and again.
#[test]
fn a_new_connection_of_a_leaving_server_serves_a_request() {
    if !ours_only("shutdown_delay") {
        return;
    }
    let text = one_server("http2 on;", "location / { return 200 own; }");
    let server = serve(&format!("shutdown_delay 1h; {text}"));
    server.signal(Signal::QUIT);
    server.wait_for_log("readiness checks fail", Deadline::default());
    // The master logs this line before it notifies the worker.
    let leaves = || (client(&server).get("/").field("connection") == Some("close")).then_some(());
    testkit::wait::until("the worker", Deadline::default(), leaves).expect("the worker is notified");
    for _ in 0..2 {
        let mut client = http2::connect(&server);
        client.settle();
        assert!(client.goaways.is_empty());
        assert_eq!(client.get("/").text(), "own");
        client.until_closed();
        assert_eq!(client.goaways, [(0x7fff_ffff, 0), (1, 0)]);
    }
}

/// The idle time may end while the end of the connection is announced: the thread must not stop.
#[test]
fn an_idle_connection_whose_time_ends_during_a_shutdown_closes() {
    let origin = Origin::start(|_| Reply::ok().body("up"));
    let server = proxy(&origin, "", "keepalive_timeout 600ms;");
    let mut client = http2::connect(&server);
    assert_eq!(client.get("/").text(), "up");
    client.acknowledges = false;
    server.signal(Signal::QUIT);
    client.until_closed();
    assert_eq!(client.goaways.last(), Some(&(1, 0)));
}

/// A reload in place closes no connection; begun streams keep their configuration.
#[test]
fn a_reload_in_place_closes_no_connection() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::raw(move |connection| {
        while connection.read_request().is_some() {
            if !connection.pass(&held) {
                return;
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup");
        }
    });
    let mut server = proxy(&origin, "", "add_header X-Version 1; location /own { return 200 one; }");
    let mut client = http2::connect(&server);
    let slow = client.ask("/slow");
    assert_eq!(client.get("/own").text(), "one");
    origin.wait_for("the request", |stats| stats.requests > 0);
    let text = server.conf().replace("X-Version 1", "X-Version 2").replace("200 one", "200 two");
    server.rewrite_conf(&text);
    server.reload();
    let is_new = || (client.get("/own").text() == "two").then_some(());
    testkit::wait::until("the new configuration", Deadline::default(), is_new).expect("a reload");
    gate.open();
    let got = client.response(slow);
    assert_eq!((got.text().as_str(), got.field("x-version")), ("up", Some("1")));
    assert!(client.goaways.is_empty());
}

/// RFC 9218: urgent responses are sent first, incremental ones share the connection, and a PRIORITY_UPDATE frame
/// overrides the field.
#[test]
fn responses_are_ordered_by_priority() {
    let content = Content::new(1, 200_000);
    let whole = content.bytes(0..200_000);
    let server =
        serve_with(&one_server("http2 on;", "root html;"), |builder| builder.file("html/file.bin", content));
    let order_of = |priorities: &[&str], update: Option<(usize, &str)>| {
        let mut client = http2::connect_with(&server, &setting(4, 1 << 20));
        client.opens = false;
        // A request of the lowest urgency uses up the connection's window.
        let filler = client.begin("GET", "/file.bin", &[("priority", "u=7")], true);
        client.until(|client| client.streams.get(&filler).is_some_and(|got| got.body.len() == 65_535));
        let begin = |client: &mut Http2<TcpStream>, priority: &&str| {
            let fields: Vec<_> = priority.split(';').map(|line| ("priority", line)).collect();
            client.begin("GET", "/file.bin", &fields, true)
        };
        let streams: Vec<u32> = priorities.iter().map(|priority| begin(&mut client, priority)).collect();
        client.until(|client| client.streams.len() == priorities.len() + 1);
        if let Some((place, text)) = update {
            let payload = [&streams[place].to_be_bytes()[..], text.as_bytes()].concat();
            client.frame(http2::PRIORITY_UPDATE, 0, 0, &payload);
        }
        client.settle();
        client.order.clear();
        while streams.iter().any(|stream| !client.streams[stream].ended) {
            client.frame(WINDOW, 0, 0, &8192u32.to_be_bytes());
            client.settle();
        }
        streams.iter().for_each(|stream| assert!(client.streams[stream].body == whole));
        let last =
            |stream: &u32| client.order.iter().rposition(|other| other == stream).expect("it has ended");
        streams.iter().map(last).collect::<Vec<_>>()
    };
    let ends = order_of(&["u=5", "u=1", "u=3"], None);
    assert!(ends[1] < ends[2] && ends[2] < ends[0], "{ends:?}");
    let ends = order_of(&["u=5", "u=1", "u=3"], Some((0, "u=0")));
    assert!(ends[0] < ends[1] && ends[1] < ends[2], "{ends:?}");
    let ends = order_of(&["u=2, i", "u=2, i", "u=2, i"], None);
    let (first, last) = (ends.iter().min(), ends.iter().max());
    assert!(last.zip(first).is_some_and(|(last, first)| last - first < 10), "{ends:?}");
    let ends = order_of(&["", "", ""], None);
    assert!(ends[0] < ends[1] && ends[1] < ends[2], "one after the other: {ends:?}");
    let ends = order_of(&["i;u=5", "u=4"], None);
    assert!(ends[1] < ends[0], "two field lines: {ends:?}");
}

/// As in nginx, obsolete directives cause warnings.
#[test]
fn obsolete_directives_cause_warnings() {
    let old = "http2_push /x; http2_push_preload on; http2_max_field_size 1k; http2_max_header_size 1k; \
               http2_max_requests 5; http2_idle_timeout 5s; http2_recv_timeout 5s; http2_max_concurrent_pushes 5; \
               http2_pool_size 4k; http2_streams_index_size 32; http2_chunk_size 100m; http2_recv_buffer_size 1m; \
               http2_max_concurrent_streams 7; http2_body_preread_size 10;";
    let conf = format!(
        "worker_processes 1; events {{}} http {{ {old} http2 on; server {{ listen 127.0.0.1:0 http2; return 200 x; }} }}"
    );
    let server = serve(&conf);
    let mut client = http2::connect(&server);
    assert_eq!(client.get("/").text(), "x");
    assert!(client.settings.contains(&(3, 7)) && client.settings.contains(&(4, 10)), "{:?}", client.settings);
    let said = server.stderr() + &server.error_log();
    for text in [
        "the \"http2_push\" directive is obsolete, ignored",
        "the \"http2_max_field_size\" directive is obsolete, use the \"large_client_header_buffers\" directive instead",
        "the \"http2_max_requests\" directive is obsolete, use the \"keepalive_requests\" directive instead",
        "the \"http2_idle_timeout\" directive is obsolete, use the \"keepalive_timeout\" directive instead",
        "the \"http2_recv_timeout\" directive is obsolete, use the \"client_header_timeout\" directive instead",
        "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
}

/// Modules do not depend on the protocol: a response is the same over HTTP/1 and HTTP/2, except for connection fields.
#[test]
fn responses_are_the_same_over_http1_and_http2() {
    let text: String = (0..5000).map(|number| format!("line {number} &amp; more\n")).collect();
    let server = serve_with(
        &one_server(
            "http2 on; gzip_min_length 100; map $arg_m $mapped { a 1; default 0; } charset_types text/plain;
             limit_req_zone $arg_limit zone=one:1m rate=1r/m;",
            "root html; index index.html; error_page 404 /404.html; add_header X-Mapped $mapped always;
             etag on; types { text/html html; text/plain txt; }
             location /list/ { autoindex on; }
             location /json/ { alias html/list/; autoindex on; autoindex_format json; }
             location /ssi/ { alias html/; ssi on; ssi_types text/plain; }
             location /sub/ { alias html/; sub_filter line LINE; sub_filter_once off; sub_filter_types *; }
             location /add/ { alias html/; addition_types *; add_after_body /small.txt; add_before_body /small.txt; }
             location /char/ { alias html/; charset koi8-r; override_charset on; }
             location /zip/ { alias html/; gzip on; gzip_types *; }
             location /ret { return 200 \"$request_method $uri $args\" ; }
             location /moved { return 302 /other?a=b; }
             location /text { return 418 teapot; }
             location /empty.gif { empty_gif; }
             location /try { try_files $uri /small.txt; }
             location /denied { deny all; }
             location /auth { auth_basic closed; auth_basic_user_file users; }
             location /inner { internal; }
             location /re { rewrite ^/re/(.*)$ /$1 last; }
             location /limited { limit_req zone=one; try_files /small.txt =404; }
             location /expires { alias html/small.txt; expires 1h; }
             location /vary/ { alias html/; gzip on; gzip_vary on; gzip_types *; }
             location /threads/ { alias html/; aio threads; directio 1k; }
             location /rated/ { alias html/; limit_rate 10m; }
             location /post { error_page 405 =200 /small.txt; }",
        ),
        |builder| {
            builder
                .text("html/index.html", "<p>index</p>")
                .text("html/404.html", "<p>nothing</p>")
                .text("html/small.txt", "small")
                .text("html/text.txt", &text)
                .text("html/list/a b.txt", "a")
                .text("html/list/c.txt", "c")
                .text("html/page.txt", "<!--#include virtual=\"/small.txt\" --> and <!--#echo var=\"request_method\" -->")
                .text("conf/users", "user:{PLAIN}secret\n")
                .file("html/file.bin", Content::new(1, 300_000))
        },
    );
    let plain = [""; 0];
    let cases: Vec<(&str, &str, Vec<&str>)> = [
        "/",
        "/list/",
        "/json/",
        "/list",
        "/none",
        "/text.txt",
        "/file.bin",
        "/ssi/page.txt",
        "/sub/text.txt",
        "/add/text.txt",
        "/char/small.txt",
        "/zip/text.txt",
        "/moved",
        "/text",
        "/empty.gif",
        "/try/this",
        "/denied",
        "/auth",
        "/inner",
        "/re/small.txt",
        "/limited?limit=",
        "/expires",
        "/vary/text.txt",
        "/threads/file.bin",
        "/rated/text.txt",
        "/a%20b/../small.txt",
        "/?m=a",
    ]
    .into_iter()
    .flat_map(|path| ["GET", "HEAD"].map(|method| (method, path, plain.to_vec())))
    .chain([
        ("GET", "/text.txt", vec!["Range: bytes=5-10"]),
        ("GET", "/text.txt", vec!["Range: bytes=5-10,20-30"]),
        ("GET", "/text.txt", vec!["Range: bytes=999999-"]),
        ("GET", "/text.txt", vec!["If-Match: \"none\""]),
        ("GET", "/text.txt", vec!["If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT"]),
        ("GET", "/zip/text.txt", vec!["Accept-Encoding: gzip"]),
        ("GET", "/vary/text.txt", vec!["Accept-Encoding: gzip"]),
        ("GET", "/auth", vec!["Authorization: Basic dXNlcjpzZWNyZXQ="]),
        ("POST", "/text.txt", vec![]),
        ("DELETE", "/", vec![]),
        ("OPTIONS", "/ret", vec![]),
        ("TRACE", "/", vec![]),
    ])
    .collect();
    let mut client = http2::connect(&server);
    let mut compared = 0;
    for (method, path, fields) in cases {
        let lines: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let mut plain = Client::connect(server.addr(0));
        plain.send(format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{lines}\r\n"));
        let one = if method == "HEAD" { plain.response_to_head() } else { plain.response() };
        let fields: Vec<(String, &str)> = fields
            .iter()
            .filter_map(|field| field.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value))
            .collect();
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let stream = client.begin(method, path, &fields, true);
        let two = client.response(stream);
        assert_eq!(one.status, two.status, "{method} {path}");
        assert_eq!(comparable(&one.head.fields), comparable(&two.fields), "{method} {path}");
        if one.status != 206 || fields.is_empty() {
            assert!(one.body == two.body, "{method} {path}: {} and {} bytes", one.body.len(), two.body.len());
        }
        compared += 1;
    }
    assert_eq!(compared, 66);
}

/// Returns the fields that are the same in both protocols, with lower-case names. `Expires` is in seconds after `Date`,
/// and the numbers of multipart boundaries are removed.
fn comparable(fields: &[(String, String)]) -> Vec<(String, String)> {
    let fields: Vec<(String, &str)> =
        fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
    let date = fields.iter().find(|(name, _)| name == "date").and_then(|(_, date)| date::parse(date));
    let of_connection = ["connection", "transfer-encoding", "date", "keep-alive"];
    let same = fields.into_iter().filter(|(name, _)| !of_connection.contains(&name.as_str()));
    same.map(|(name, value)| {
        let value = match (name.as_str(), date, date::parse(value)) {
            ("expires", Some(date), Some(expires)) => format!("{} s", expires.abs_diff(date)),
            _ => value.split("boundary=").next().unwrap_or_default().to_owned(),
        };
        (name, value)
    })
    .collect()
}

/// Other HTTP/2 clients, if they are installed.
#[test]
fn other_http2_clients_get_their_responses() {
    let server = serve_with(&one_server("http2 on;", "root html; "), |builder| {
        builder.file("html/file.bin", Content::new(1, 500_000)).text("html/small.txt", "hello")
    });
    let address = server.addr(0).tcp();
    let run = |program: &str, args: &[&str]| {
        let output = std::process::Command::new(program).args(args).output().ok()?;
        Some((output.status.success(), output.stdout))
    };
    let url = |path: &str| format!("http://{address}{path}");
    // curl 7.88 cannot send a second request with prior knowledge on the same connection, to nginx either.
    for (path, wanted) in
        [("/file.bin", Content::new(1, 500_000).bytes(0..500_000)), ("/small.txt", b"hello".to_vec())]
    {
        match run("curl", &["-sS", "-m", "20", "--http2-prior-knowledge", &url(path)]) {
            Some((is_good, got)) => assert!(is_good && got == wanted, "curl: {is_good}, {} bytes", got.len()),
            None => testkit::skip(format_args!("curl is not installed")),
        }
    }
    let args = ["-n", "500", "-c", "5", "-m", "20", &url("/file.bin"), &url("/small.txt")];
    match run("h2load", &args) {
        Some((is_good, said)) => {
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(is_good && said.contains("500 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
        }
        None => testkit::skip(format_args!("h2load is not installed")),
    }
    if let Some((is_good, said)) = run("nghttp", &["-ans", &url("/small.txt"), &url("/file.bin")]) {
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(is_good && said.matches(" 200 ").count() == 2, "{said}");
    }
}
