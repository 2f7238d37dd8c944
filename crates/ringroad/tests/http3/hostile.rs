//! Hostile clients.

use std::net::UdpSocket;
use std::time::Duration;

use testkit::Content;

use crate::client::{Client, Options};
use crate::{address, serve};

/// Before a client has proved its address, it receives at most three times the bytes that it has sent (RFC 9000 section 8.1).
#[test]
fn an_unproved_address_gets_at_most_three_times_its_bytes() {
    let server = serve(1, "location / { return 200 x; }", |builder| builder);
    let mut client = Client::begin(address(&server), Options::default());
    client.transmit();
    let mut received = 0;
    let sent = client.sent_bytes;
    assert!(sent >= 1200);
    // The client is silent; the server repeats its packets, with growing pauses.
    let socket = client.take_socket();
    socket.set_read_timeout(Some(Duration::from_secs(3))).expect("a socket");
    let mut space = [0; 2048];
    while let Ok(count) = socket.recv(&mut space) {
        received += count as u64;
    }
    // quinn-proto sends a datagram while at least one byte is left.
    assert!(received > 0 && received < 3 * sent + 1200, "{sent} sent, {received} received");
}

#[test]
fn forged_packets_disturb_nobody() {
    let server = serve(2, "location / { return 200 x; }", |builder| builder);
    let mut client = Client::connect(address(&server));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut random = 1_u64;
    for round in 0..3000_u32 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let len = if round % 3 == 0 { 1200 } else { (random >> 40) as usize % 1300 };
        let mut packet: Vec<u8> = (0..len).map(|at| (random >> (at % 56)) as u8 ^ at as u8).collect();
        if let Some(head) = packet.first_chunk_mut::<6>() {
            // Initial packets of version 1, packets of unknown versions, and short headers.
            *head = match round % 3 {
                0 => [0xc3, 0, 0, 0, 1, 8],
                1 => [0xc3, 0x1a, 0x2a, 0x3a, 0x4a, 8],
                _ => [0x43, head[1], head[2], head[3], head[4], head[5]],
            };
        }
        socket.send_to(&packet, address(&server)).expect("a socket");
        if round % 500 == 0 {
            assert_eq!(client.get("/").text(), "x");
        }
    }
    assert_eq!(client.get("/").text(), "x");
    assert_eq!(Client::connect(address(&server)).get("/").text(), "x");
}

/// Whoever repeats the first packets of a client, from its address or another, opens at most one connection, disturbs nobody, and gets no more
/// than three times the bytes.
#[test]
fn replayed_first_packets_open_one_connection() {
    let server = serve(1, "location / { return 200 x; } location = /metrics { metrics; }", |builder| builder);
    let mut client = Client::begin(address(&server), Options::default());
    let first = client.packets();
    let attacker = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let replay = |socket: &UdpSocket| {
        for packet in &first {
            socket.send_to(packet, address(&server)).expect("a socket");
        }
        first.iter().map(Vec::len).sum::<usize>()
    };
    replay(client.socket());
    assert_eq!(client.get("/").text(), "x");
    let mut other = Client::connect(address(&server));
    let mut sent = 0;
    for round in 0..300 {
        sent += replay(&attacker);
        replay(client.socket());
        if round % 50 == 0 {
            assert_eq!((client.get("/").text(), other.get("/").text()), ("x".into(), "x".into()));
        }
    }
    // Those of the client, of the other client, and one whose client never answers.
    let page = other.get("/metrics").text();
    let accepted = page.lines().find(|line| line.starts_with("ringroad_connections_accepted_total "));
    let accepted = accepted.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).expect("a number");
    assert!((2..=3).contains(&accepted), "{accepted}");
    attacker.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    let (mut received, mut space) = (0, [0; 2048]);
    while let Ok(count) = attacker.recv(&mut space) {
        received += count;
    }
    assert!(received <= 3 * sent, "{sent} sent, {received} received");
    assert_eq!((client.get("/").text(), other.get("/").text()), ("x".into(), "x".into()));
}

/// Unfinished handshakes occupy slots only until others need them.
#[test]
fn unfinished_handshakes_make_room() {
    let directives = "location / { return 200 x; }";
    let own = crate::common::tls::Authority::new("root").server("localhost");
    let text = crate::conf(1, directives).replace("events {}", "events { worker_connections 64; }");
    let server = crate::common::serve_with(&text, |builder| crate::common::tls::files(builder, "a", &own));
    let silent: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = Client::begin(address(&server), Options::default());
            client.transmit();
            client
        })
        .collect();
    let mut client = Client::connect(address(&server));
    assert_eq!(client.get("/").text(), "x");
    drop(silent);
}

/// A flood of packets with IDs of no connection gets few stateless resets (RFC 9000 section 10.3.3), each shorter than its packet, and others are
/// served. The first packet with an ID gets none: it could be a late one of a client that has changed its ID.
#[test]
fn a_flood_of_unknown_ids_gets_few_resets() {
    let server = serve(1, "location / { return 200 x; }", |builder| builder);
    let mut client = Client::connect(address(&server));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    let began = std::time::Instant::now();
    let send = |id: u32| {
        let mut packet = [0x55; 60];
        packet[..5].copy_from_slice(&[0x40, 0, 0, 0, 0]);
        packet[5..9].copy_from_slice(&id.to_be_bytes());
        socket.send_to(&packet, address(&server)).expect("a socket");
    };
    let mut space = [0; 2048];
    send(1000);
    assert!(socket.recv(&mut space).is_err(), "it may be late");
    for round in 0..20_000_u32 {
        send(round % 200);
        if round % 2000 == 0 {
            assert_eq!(client.get("/").text(), "x");
        }
    }
    testkit::wait::let_pass(Duration::from_millis(600));
    send(1);
    let mut resets = 0;
    while let Ok(count) = socket.recv(&mut space) {
        assert!(count < 60, "{count}");
        resets += 1;
    }
    let most = 2 + began.elapsed().as_millis() / 20;
    assert!(resets > 0 && resets <= most, "{resets} of {most}");
    assert_eq!(Client::connect(address(&server)).get("/").text(), "x");
}

/// Clients that read none of 128 responses occupy the memory of their send windows, and others are served.
#[test]
fn slow_readers_with_many_streams_delay_nobody() {
    let server = serve(1, "location = /hello { return 200 hello; }", |builder| {
        builder.file("html/large.bin", Content::new(3, 8 << 20))
    });
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/statm", server.worker())).expect("it runs");
        status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
    };
    let mut other = Client::connect(address(&server));
    assert_eq!(other.get("/hello").text(), "hello");
    let before = memory();
    let mut slow = Vec::new();
    for _ in 0..8 {
        let options = Options { stream_window: 4 << 10, ..Options::default() };
        let mut client = Client::with(address(&server), options);
        for _ in 0..120 {
            let id = client.send("GET", "/large.bin", &[], None);
            client.set_reading(id, false);
        }
        slow.push(client);
    }
    for _ in 0..20 {
        slow.iter_mut().for_each(|client| client.drive_for(Duration::from_millis(5)));
        assert_eq!(other.get("/hello").text(), "hello");
    }
    // A piece of 64 KiB for each of 960 responses, and the windows of eight connections.
    let grown = memory().saturating_sub(before);
    assert!(grown < 160 << 20, "{grown} bytes");
}
