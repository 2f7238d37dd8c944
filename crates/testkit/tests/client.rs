//! The scripted client against a minimal server of std::net, one connection and one script per test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::client::request_bytes;
use testkit::response::{BodyLength, Fault};
use testkit::{Client, Content, ListenAddr, TempDir};

/// Accepts one connection and passes it to `script`.
fn serve(script: impl FnOnce(TcpStream) + Send + 'static) -> (ListenAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = listener.local_addr().expect("a bound socket has an address");
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the test connects");
        script(stream);
    });
    (ListenAddr::Tcp(address), thread)
}

fn read_until(stream: &mut impl Read, end: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(end) && stream.read(&mut byte).expect("the client sends or closes") == 1 {
        seen.push(byte[0]);
    }
    seen
}

#[test]
fn pipelined_requests_get_their_responses_in_order() {
    let (address, server) = serve(|mut stream| {
        for body in ["first", "second"] {
            read_until(&mut stream, b"\r\n\r\n");
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                .expect("the client reads");
        }
    });
    let mut client = Client::connect(&address);
    let requests = [request_bytes("GET", "/1", &[]), request_bytes("GET", "/2", &[("host", "b")])].concat();
    client.send_in_pieces(&requests, 7);
    assert_eq!(client.response().text(), "first");
    assert_eq!(client.response().text(), "second");
    client.expect_end();
    server.join().expect("the script ends");
}

#[test]
fn the_request_is_sent_as_given() {
    let (address, server) = serve(|mut stream| {
        let request = read_until(&mut stream, b"\r\n\r\n");
        assert_eq!(request, b"HEAD /x HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-1\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n").expect("the client reads");
    });
    let response = Client::connect(&address).request("HEAD", "/x", &[("Range", "bytes=0-1")]);
    assert_eq!((response.length, response.field("CONTENT-LENGTH")), (BodyLength::None, Some("500")));
    server.join().expect("the script ends");
}

#[test]
fn a_half_closed_connection_still_reads() {
    let (address, server) = serve(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("the client closes its half");
        stream.write_all(&all).expect("the client reads");
    });
    let mut client = Client::connect(&address);
    client.send("abc").half_close();
    assert_eq!(client.read_exact(2), b"ab");
    assert_eq!(client.read_to_end(), b"c");
    server.join().expect("the script ends");
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let content = Content::new(2, 300_000);
    let (address, server) = serve(move |mut stream| {
        stream.write_all(&content.bytes(0..content.size())).expect("the client reads in the end");
    });
    let mut client = Client::connect_narrow(address.tcp(), 4096);
    let start = client.read_slowly(20_000, 5_000, Duration::from_millis(1));
    content.assert_range(0..20_000, &start);
    content.compare(20_000..content.size(), &mut client.rest()).expect("the rest is right");
    server.join().expect("the script ends");
}

#[test]
fn a_long_body_is_compared_while_it_is_received() {
    let content = Content::new(4, 1_000_000);
    let (address, server) = serve(move |mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").expect("the client reads");
        for start in (0..content.size()).step_by(70_000) {
            let part = content.bytes(start..(start + 70_000).min(content.size()));
            write!(stream, "{:x}\r\n", part.len()).expect("the client reads");
            stream.write_all(&part).expect("the client reads");
            stream.write_all(b"\r\n").expect("the client reads");
        }
        stream.write_all(b"0\r\n\r\n").expect("the client reads");
    });
    let mut client = Client::connect(&address);
    let head = client.head();
    content.compare(0..content.size(), &mut client.body(&head)).expect("every byte is right");
    client.expect_end();
    server.join().expect("the script ends");
}

#[test]
fn a_silent_server_times_out() {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let (address, server) = serve(move |stream| {
        wait.recv().expect_err("the sender is dropped, never used");
        drop(stream);
    });
    let mut client = Client::connect(&address);
    client.expect_silence(Duration::from_millis(5));
    client.deadline(Duration::from_millis(20));
    match client.try_response() {
        Err(Fault::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }
    drop(done);
    client.deadline(testkit::wait::DEFAULT_LIMIT).expect_end();
    server.join().expect("the script ends");
}

#[test]
fn a_reset_is_reported_as_a_reset() {
    let (address, server) = serve(|mut stream| {
        let error = stream.read(&mut [0; 8]).expect_err("the client resets");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
    Client::connect(&address).reset();
    server.join().expect("the script ends");
}

#[test]
fn unix_sockets_work_like_tcp() {
    let dir = TempDir::new("unix");
    let path = dir.path().join("sock");
    let listener = UnixListener::bind(&path).expect("a fresh directory");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the test connects");
        read_until(&mut stream, b"\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nto the end").expect("the client reads");
    });
    let response = Client::connect(&ListenAddr::Unix(path)).get("/");
    assert_eq!((response.text().as_str(), response.length), ("to the end", BodyLength::Close));
    server.join().expect("the script ends");
}
