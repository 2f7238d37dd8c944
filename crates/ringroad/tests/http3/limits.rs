//! Slots of connections and streams, memory for bodies, and priorities.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::{Content, Deadline};

use crate::client::{Client, Options};
use crate::common::tls::{Authority, files};
use crate::{address, conf, serve};

const LARGE: usize = 8 << 20;

/// Starts a server with this number of slots, and an address for TCP at index 1.
fn serve_few(slots: u32, directives: &str) -> testkit::Server {
    let own = Authority::new("root").server("localhost");
    let text = conf(1, &format!("listen 127.0.0.1:0; {directives}"))
        .replace("events {}", &format!("events {{ worker_connections {slots}; }}"));
    crate::common::serve_with(&text, |builder| files(builder, "a", &own))
}

/// A request may end after its connection, whose handle another connection has by then.
#[test]
fn a_late_request_does_not_end_another_connection() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = upstream.local_addr().expect("an address").port();
    let server = serve(
        1,
        &format!(
            "location /slow {{ proxy_pass http://127.0.0.1:{port}; proxy_ignore_client_abort on; }} \
             location = /hello {{ return 200 hello; }}"
        ),
        |builder| builder,
    );
    let mut first = Client::connect(address(&server));
    first.send("GET", "/slow", &[], None);
    first.drive_for(Duration::from_millis(50));
    let (mut accepted, _) = upstream.accept().expect("the request of the first client");
    first.close();
    // The first connection is drained after three probe timeouts, whose initial value is about a second.
    first.drive_until(|client| client.connection.is_drained());
    first.drive_for(Duration::from_millis(500));
    let mut second = Client::connect(address(&server));
    assert_eq!(second.get("/hello").text(), "hello");
    let mut request = [0; 4096];
    let _ = accepted.read(&mut request).expect("a request");
    accepted.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("an open connection");
    server.wait_for_access_log(2, Deadline::default());
    for _ in 0..3 {
        second.drive_for(Duration::from_millis(50));
        assert_eq!(second.get("/hello").text(), "hello");
    }
}

/// Whatever the last packets of a client are, its connection ends.
#[test]
fn connections_end_whatever_their_clients_do() {
    let mut server =
        serve(1, "client_header_timeout 1s; keepalive_timeout 1s; location / { return 200 x; }", |builder| {
            builder
        });
    let to = address(&server);
    let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(to)).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        match index % 4 {
            0 => client.close(),
            1 => drop(client.get("/")),
            2 => {
                let id = client.open("GET", "/", &[], false);
                client.cancel(id);
            }
            _ => {}
        }
    }
    let mut begun: Vec<Client> = (0..20).map(|_| Client::begin(to, Options::default())).collect();
    for (index, client) in begun.iter_mut().enumerate() {
        client.transmit();
        if index % 2 == 0 {
            client.close();
        }
    }
    for client in &mut clients {
        // Clients confirm the end of the connection.
        client.drive_for(Duration::from_millis(100));
    }
    server.signal(rustix::process::Signal::QUIT);
    let status = server.wait_until_ended(Deadline::after(Duration::from_secs(40)));
    assert!(status.success(), "{status}");
}

#[test]
fn header_sections_above_32_kib_are_received() {
    let server =
        serve(1, "large_client_header_buffers 8 64k; location / { return 200 $http_x_last; }", |builder| {
            builder
        });
    let mut client = Client::connect(address(&server));
    let long = "x".repeat(45_000);
    let id = client.send("GET", "/", &[("x-long", &long), ("x-last", "end")], None);
    let reply = client.reply(id);
    assert_eq!((reply.status, reply.text().as_str()), (200, "end"));
}

/// STOP_SENDING ends only one direction of a stream; the server ends the other one.
#[test]
fn declined_uploads_give_their_streams_back() {
    let server = serve(
        1,
        "http3_max_concurrent_streams 2; location = /hello { return 200 hello; } \
         location /put/ { root html; dav_methods PUT; }",
        |builder| builder,
    );
    let mut client = Client::connect(address(&server));
    for _ in 0..6 {
        let id = client.open("PUT", "/put/x", &[("content-length", "100000")], false);
        client.drive_for(Duration::from_millis(20));
        client.decline(id);
    }
    assert_eq!(client.get("/hello").text(), "hello");
}

/// Forged packets get a quarter of the slots; then clients have to prove their address by a Retry packet.
#[test]
fn unproved_handshakes_get_a_share_of_the_slots() {
    let server = serve_few(64, "location / { return 200 x; }");
    let (mut retries, mut handshakes) = (0, 0);
    let mut silent = Vec::new();
    for _ in 0..100 {
        let mut client = Client::begin(address(&server), Options::default());
        client.transmit();
        let socket = client.take_socket();
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        let mut packet = [0; 2048];
        socket.recv(&mut packet).expect("a response");
        // The types of long headers: Initial is 0, Retry is 3.
        match packet[0] >> 4 & 3 {
            0 => handshakes += 1,
            3 => retries += 1,
            other => panic!("{other}"),
        }
        silent.push(socket);
    }
    assert_eq!((handshakes, retries), (16, 84));
    // All others have their slots.
    let mut clients: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(server.addr(1).tcp()).expect("an open port")).collect();
    for client in &mut clients {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("an open connection");
        let mut response = [0; 4096];
        assert!(client.read(&mut response).expect("a response") > 0);
    }
    assert_eq!(Client::connect(address(&server)).get("/").text(), "x");
}

/// A connection that was closed to make room needs no slot, so no other connection is closed in its place. Packets of other clients do not make
/// an idle connection busy.
#[test]
fn a_closed_connection_gives_its_slot_to_others() {
    let server = serve_few(64, "location / { return 200 x; }");
    let mut idle: Vec<Client> = (0..48).map(|_| Client::connect(address(&server))).collect();
    for client in &mut idle {
        assert_eq!(client.get("/").text(), "x");
        // The client acknowledges the response.
        client.drive_for(Duration::from_millis(40));
    }
    let (to, is_done) = (address(&server), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            while !is_done.load(Ordering::Relaxed) {
                // Too short for a packet.
                let _ = socket.send_to(&[0x40; 12], to);
            }
        });
        let ask = |client: &mut TcpStream| {
            client.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("an open connection");
            let mut response = [0; 4096];
            client.read(&mut response).expect("a response")
        };
        let mut clients = Vec::new();
        for _ in 0..50 {
            let mut client = TcpStream::connect(server.addr(1).tcp()).expect("an open port");
            assert!(ask(&mut client) > 0);
            clients.push(client);
        }
        let open = clients.iter_mut().filter_map(|client| (ask(client) > 0).then_some(())).count();
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(open, 50, "only connections of QUIC were idle for long");
    });
}

/// A client may send no more bytes than its share of the thread's memory for bodies, however often it opens and cancels requests.
#[test]
fn cancelled_uploads_leave_no_credit() {
    let server = serve(
        1,
        "http3_stream_buffer_size 16m; location = /hello { return 200 hello; } \
         location /wait { limit_req zone=one burst=1000; dav_methods PUT; }",
        |builder| builder,
    );
    let options = Options { send_window: 4 << 30, ..Options::default() };
    let mut client = Client::with(address(&server), options);
    let open = |client: &mut Client| client.open("PUT", "/wait", &[("content-length", "90000000")], false);
    for _ in 0..6 {
        let uploads: Vec<_> = (0..8).map(|_| open(&mut client)).collect();
        client.drive_for(Duration::from_millis(60));
        uploads.into_iter().for_each(|id| client.cancel(id));
        client.drive_for(Duration::from_millis(60));
        assert_eq!(client.get("/hello").text(), "hello");
    }
    let uploads: Vec<_> = (0..24).map(|_| open(&mut client)).collect();
    client.drive_for(Duration::from_millis(100));
    let piece = vec![0; 1 << 20];
    let mut credit = 0;
    for id in uploads {
        while let Ok(written) = client.connection.send_stream(id).write(&piece) {
            credit += written;
        }
    }
    // An eighth of 256 MiB, and the memory of the connection itself.
    assert!((1 << 20..33 << 20).contains(&credit), "{credit}");
}

/// The stream of an invalid upload is given back when the work of its request has ended.
#[test]
fn an_invalid_upload_counts_until_its_work_has_ended() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = upstream.local_addr().expect("an address").port();
    let server = serve(
        1,
        &format!(
            "http3_max_concurrent_streams 2; location = /hello {{ return 200 hello; }} location /slow {{ \
             proxy_pass http://127.0.0.1:{port}; proxy_request_buffering off; proxy_ignore_client_abort on; }}"
        ),
        |builder| builder,
    );
    let mut client = Client::connect(address(&server));
    let mut accepted = Vec::new();
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let id = client.open("PUT", "/slow", &[("content-length", "10")], false);
        client.send_data(id, b"12345", false);
        client.drive_for(Duration::from_millis(50));
        accepted.push(upstream.accept().expect("the request").0);
        uploads.push(id);
    }
    for id in &uploads {
        // More bytes than announced.
        client.send_data(*id, b"1234567890", true);
    }
    client.drive_for(Duration::from_millis(300));
    let open_before = client.connection.streams().open(quinn_proto::Dir::Bi);
    let work = accepted.iter().filter(|socket| is_open(socket)).count();
    assert!(open_before.is_none() || work < 2, "{open_before:?} {work}");
    drop(accepted);
    if open_before.is_none() {
        assert_eq!(client.get("/hello").text(), "hello");
    }
}

/// Whether the peer of a connection has not closed it.
fn is_open(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; 4096];
    loop {
        match (&*socket).read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// A response that was reset, here because the request's body is invalid, is not complete in the log.
#[test]
fn a_reset_response_is_not_complete() {
    let own = Authority::new("root").server("localhost");
    let upstream = testkit::Origin::raw(|connection| {
        let Some(_) = connection.read_head() else { return };
        connection.send("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\nbegin");
        connection.wait_for_close();
    });
    let directives = format!(
        "location / {{ proxy_pass http://127.0.0.1:{}; proxy_request_buffering off; proxy_buffering off; }}",
        upstream.port()
    );
    let text = conf(1, &directives).replace("$ssl_protocol'", "$ssl_protocol [$request_completion]'");
    let server = crate::common::serve_with(&text, |builder| files(builder, "a", &own));
    let mut client = Client::connect(address(&server));
    let id = client.open("PUT", "/", &[("content-length", "10")], false);
    assert_eq!(client.wait_for_head(id), 200);
    client.send_data(id, b"12345678901234567890", true);
    let reply = client.reply(id);
    assert!(reply.reset.is_some(), "{reply:?}");
    let log = server.wait_for_access_log(1, Deadline::default());
    assert!(log.contains("[]"), "{log}");
}

/// An urgent response overtakes one that began earlier: with equal shares it would end later.
#[test]
fn urgent_responses_overtake_earlier_ones() {
    let server = serve(1, "", |builder| builder.file("html/large.bin", Content::new(3, LARGE as u64)));
    let mut client = Client::connect(address(&server));
    let background = client.send("GET", "/large.bin", &[("priority", "u=7")], None);
    client.drive_until(|client| client.partial(background).body.len() > 1 << 20);
    let urgent = client.send("GET", "/large.bin", &[("priority", "u=0")], None);
    client.drive_until(|client| client.partial(urgent).is_complete || client.partial(background).is_complete);
    let (first, second) = (client.partial(urgent).body.len(), client.partial(background).body.len());
    assert!(first == LARGE && second < LARGE, "{first} {second}");
    assert_eq!(client.reply(background).body.len(), LARGE);
}
