//! QUIC below HTTP/3: lost packets, other addresses, Retry, resumption.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::sys::{DatagramsToSend, send_datagrams};
use rcgen::ExtendedKeyUsagePurpose;
use testkit::{Content, Deadline};

use crate::client::{Client, Options};
use crate::common::tls::{Authority, files};
use crate::{address, conf, serve};

#[test]
fn lost_packets_are_sent_again() {
    let len = 1 << 20;
    let server = serve(1, "", |builder| builder.file("html/large.bin", Content::new(3, len as u64)));
    let mut client = Client::with(address(&server), Options { loss: 5, ..Options::default() });
    for _ in 0..2 {
        let reply = client.get("/large.bin");
        Content::new(3, len as u64)
            .compare(0..len as u64, &mut &reply.body[..])
            .expect("the bytes of the file");
    }
}

#[test]
fn a_client_may_change_its_address() {
    let len = 4 << 20;
    let server = serve(3, "location = /port { return 200 $remote_port; }", |builder| {
        builder.file("html/large.bin", Content::new(3, len as u64))
    });
    let mut client = Client::connect(address(&server));
    let before = client.get("/port").text();
    let id = client.send("GET", "/large.bin", &[], None);
    client.wait_for_head(id);
    client.rebind();
    assert_eq!(client.reply(id).body.len(), len);
    assert_ne!(client.get("/port").text(), before);
}

#[test]
fn clients_prove_their_address_with_quic_retry() {
    for gso in ["on", "off"] {
        let server = serve(2, &format!("quic_retry on; quic_gso {gso};"), |builder| {
            builder.file("html/large.bin", Content::new(3, 1 << 20))
        });
        let mut client = Client::connect(address(&server));
        assert_eq!(client.get("/large.bin").body.len(), 1 << 20);
    }
}

/// A request in early data is served before the handshake is complete if the client has proved its address by a token, and if no certificate
/// of it is verified.
#[test]
fn sessions_are_resumed_and_early_data_is_accepted() {
    let cases = [
        ("on", true, "r1"),
        ("on", false, "r"),
        ("off", true, "r"),
        ("on; ssl_verify_client optional_no_ca", true, "r"),
    ];
    for (early, has_token, expected) in cases {
        let directives = format!(
            "ssl_early_data {early}; location / {{ return 200 '$ssl_session_reused$ssl_early_data'; }} \
             location = /once {{ if ($ssl_early_data) {{ return 425; }} return 200 once; }}"
        );
        let server = serve(2, &directives, |builder| builder);
        let mut options = Options::default();
        let mut client = Client::with(address(&server), options.clone());
        assert_eq!(client.get("/").text(), ".");
        // A token follows the handshake.
        client.drive_for(Duration::from_millis(100));
        if !has_token {
            options.tokens = Options::default().tokens;
        }
        let mut client = Client::begin(address(&server), options);
        // The client has the keys of early data if the session permits it.
        assert_eq!(client.connection.has_0rtt(), early != "off");
        let (id, once) = (client.send("GET", "/", &[], None), client.send("GET", "/once", &[], None));
        assert_eq!(client.reply(id).text(), expected, "{early} {has_token}");
        assert_eq!(client.reply(once).status, if expected == "r1" { 425 } else { 200 });
        assert_eq!(client.connection.accepted_0rtt(), early != "off");
        assert_eq!(client.get("/once").text(), "once");
    }
}

/// The server does not wait for the end of a handshake longer than `client_header_timeout`, although it has served early data.
#[test]
fn a_handshake_with_early_data_must_end() {
    let server = serve(
        1,
        "ssl_early_data on; client_header_timeout 1s; keepalive_timeout 1h; location / { return 200 x; }",
        |builder| builder,
    );
    let options = Options::default();
    let mut client = Client::with(address(&server), options.clone());
    assert_eq!(client.get("/").text(), "x");
    client.drive_for(Duration::from_millis(100));
    let mut client = Client::begin(address(&server), options);
    client.is_held = true;
    client.send("GET", "/", &[], None);
    for packet in client.packets() {
        client.socket().send_to(&packet, address(&server)).expect("a socket");
    }
    server.wait_for_access_log(2, Deadline::default());
    server.wait_for_log("client timed out", Deadline::default());
}

#[test]
fn a_server_without_the_protocol_refuses_the_handshake() {
    let server = serve(1, "http3 off; http3_hq on;", |builder| builder);
    let client = Client::with(address(&server), Options::default());
    let lost = format!("{:?}", client.lost.as_ref().expect("a refusal"));
    assert!(lost.contains("120") || lost.contains("crypto") || lost.contains("protocol"), "{lost}");
    server.wait_for_log("SSL_do_handshake() failed", Deadline::default());
}

#[test]
fn an_idle_connection_is_closed() {
    let server = serve(1, "keepalive_timeout 1s; location / { return 200 x; }", |builder| builder);
    let mut client = Client::connect(address(&server));
    assert_eq!(client.get("/").text(), "x");
    client.drive_until(|client| client.lost.is_some());
    assert!(format!("{:?}", client.lost).contains("Application"), "{:?}", client.lost);
}

#[test]
fn a_connection_ends_after_its_number_of_requests() {
    let server = serve(1, "keepalive_requests 3; location / { return 200 x; }", |builder| builder);
    let mut client = Client::connect(address(&server));
    for _ in 0..3 {
        assert_eq!(client.get("/").text(), "x");
    }
    client.drive_until(|client| client.lost.is_some());
    assert!(client.goaways.len() == 2 && client.goaways[1] >= 12, "{:?}", client.goaways);
}

/// A client whose idle timeout is short gets a response that takes longer.
#[test]
fn a_client_with_a_short_idle_timeout_gets_a_late_response() {
    let upstream = testkit::Origin::raw(|connection| {
        let Some(_) = connection.read_head() else { return };
        testkit::wait::let_pass(Duration::from_secs(4));
        connection.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate");
    });
    let directives = format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", upstream.port());
    let server = serve(1, &directives, |builder| builder);
    let options = Options { idle: Duration::from_millis(1500), ..Options::default() };
    let mut client = Client::with(address(&server), options);
    assert_eq!(client.get("/").text(), "late");
}

/// A connection continues while the certificate of its client is checked by OCSP.
#[test]
fn a_connection_continues_during_an_ocsp_request() {
    let responder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = responder.local_addr().expect("an address").port();
    let authority = Authority::new("root");
    let (own, identity) =
        (authority.server("localhost"), authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth));
    let directives = format!(
        "ssl_client_certificate root.pem; ssl_verify_client on; ssl_ocsp leaf; \
         ssl_ocsp_responder http://127.0.0.1:{port}/; location / {{ return 200 x; }}"
    );
    let server = crate::common::serve_with(&conf(1, &directives), |builder| {
        files(builder, "a", &own).text("conf/root.pem", &authority.pem)
    });
    let tls13: &'static rustls::SupportedProtocolVersion = &rustls::version::TLS13;
    let mut tls = (*authority.clients(&[tls13], Some(&identity))).clone();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let options = Options { tls: Arc::new(tls), ..Options::default() };
    let mut client = Client::with(address(&server), options);
    let id = client.send("GET", "/", &[], None);
    // The responder is silent, and the end of the handshake is confirmed meanwhile.
    let (socket, _) = responder.accept().expect("a request for the status of the certificate");
    client.drive_until(|client| client.connection.stats().frame_rx.handshake_done > 0);
    assert_eq!(client.partial(id).status, 0);
    drop(socket);
    drop(responder);
    assert_eq!(client.reply(id).status, 400);
}

/// The kernel joins packets of one sender. If they are those of several connections, each reaches its thread.
#[test]
fn joined_packets_of_several_connections_reach_their_threads() {
    let threads = 4;
    let server = serve(threads, "location / { return 200 x; }", |builder| builder);
    // Connections of several threads: the first two bytes of their IDs decide.
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(address(&server))).collect();
    let mut packets = Vec::new();
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.get("/").status, 200);
        client.drive_for(Duration::from_millis(30));
        client.is_held = true;
        client.open("GET", &format!("/joined{index:02}"), &[], true);
        let ready = client.packets();
        packets.extend(ready.into_iter().filter(|packet| packet.len() > 40));
    }
    assert_eq!(packets.len(), 16);
    // An acknowledgement that is due makes a packet longer: those of the most frequent length are sent.
    let of_length = |length| packets.iter().filter(|packet| packet.len() == length).count();
    let segment = packets.iter().map(Vec::len).max_by_key(|&length| of_length(length)).expect("16 packets");
    packets.retain(|packet| packet.len() == segment);
    let count = packets.len();
    assert!(count >= 8, "{count} packets have the same length");
    let message = DatagramsToSend {
        to: address(&server),
        from: None,
        ecn: 0,
        segment: u16::try_from(segment).ok(),
        bytes: &packets.concat(),
    };
    if send_datagrams(clients[0].socket().as_fd(), &message).is_err() {
        return testkit::skip("the kernel does not split packets");
    }
    let end = Instant::now() + Duration::from_secs(20);
    while server.access_log().matches("/joined").count() < count {
        assert!(Instant::now() < end, "{}", server.access_log());
        testkit::wait::let_pass(Duration::from_millis(20));
    }
}

/// Packets are lost, arrive late, overtake others, and may have 1200 bytes at most.
#[test]
fn bad_networks_lose_no_bytes() {
    let len = 300 << 10;
    for control in ["cubic", "bbr"] {
        let server = serve(1, &format!("quic_congestion_control {control};"), |builder| {
            builder.file("html/large.bin", Content::new(3, len as u64))
        });
        let good = Options::default();
        let delay = Duration::from_millis(25);
        for options in [
            Options { loss: 5, ..good.clone() },
            Options { delay, reorder: 20, ..good.clone() },
            Options { mtu: 1200, delay, loss: 1, ..good.clone() },
        ] {
            let mut client = Client::with(address(&server), options);
            let reply = client.get("/large.bin");
            let compared = Content::new(3, len as u64).compare(0..len as u64, &mut &reply.body[..]);
            compared.expect("the bytes of the file");
        }
    }
}

/// Returns a number of the page of metrics.
fn metric(client: &mut Client, name: &str) -> u64 {
    let page = client.get("/metrics").text();
    let line = page.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {page}"));
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// A client with a token of an earlier connection need not prove its address again; a token is accepted once.
#[test]
fn clients_with_a_token_get_no_retry() {
    let server = serve(1, "quic_retry on; location = /metrics { metrics; }", |builder| builder);
    let options = Options::default();
    // Each packet of the first ClientHello may get a Retry packet.
    let mut first = None;
    for _ in 0..4 {
        let mut client = Client::with(address(&server), options.clone());
        client.drive_for(Duration::from_millis(50));
        let retries = metric(&mut client, "event=\"retry\"");
        assert!(retries > 0 && retries == *first.get_or_insert(retries), "{first:?} {retries}");
    }
    let mut other = Client::connect(address(&server));
    assert!(metric(&mut other, "event=\"retry\"") > first.unwrap_or_default());
}

#[test]
fn events_of_quic_are_counted() {
    let server = serve(1, "ssl_early_data on; location = /metrics { metrics; }", |builder| {
        builder.text("html/a", "file")
    });
    let options = Options::default();
    let mut first = Client::with(address(&server), options.clone());
    assert_eq!(first.get("/a").text(), "file");
    let mut second = Client::begin(address(&server), options);
    assert_eq!(second.get("/a").text(), "file");
    second.rebind();
    assert_eq!(second.get("/a").text(), "file");
    second.drive_for(Duration::from_millis(1200));
    for (event, count) in
        [("connection", 2), ("retry", 0), ("early_accepted", 1), ("early_refused", 0), ("migration", 1)]
    {
        assert_eq!(metric(&mut second, &format!("event=\"{event}\"")), count, "{event}");
    }
    assert!(metric(&mut second, "quic_packets_total{result=\"sent\"") > 5);
}
