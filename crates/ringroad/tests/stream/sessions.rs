//! Sessions from their accept to their end: bytes in both directions, half close, PROXY headers, log lines.

use std::io::Write;

use crate::support::{Upstream, closed_address, connect, echo, end, read_all, serve};
use testkit::Deadline;

#[test]
fn bytes_are_passed_in_both_directions_and_a_session_ends_with_its_client() {
    let upstream = Upstream::echo();
    let server = serve(&format!("server {{ listen 127.0.0.1:0; proxy_pass {}; }}", upstream.address));
    let mut client = connect(server.addr(0).tcp());
    assert_eq!(echo(&mut client, b"hello"), b"hello");
    let large: Vec<u8> = (0..1_000_000u32).map(|index| (index % 251) as u8).collect();
    let mut sender = client.try_clone().expect("a descriptor");
    let sent = large.clone();
    let sending = std::thread::spawn(move || sender.write_all(&sent).expect("it is sent"));
    assert!(crate::support::read_exactly(&mut client, large.len()) == large);
    sending.join().expect("it was sent");
    drop(client);
    let log = server.wait_for_access_log(1, Deadline::default());
    assert_eq!(log.lines().next(), Some("200 1000005 1000005"));
    let errors = server.wait_for_log("client disconnected", Deadline::default());
    assert!(
        errors.contains("bytes from/to client:1000005/1000005, bytes from/to upstream:1000005/1000005"),
        "{errors}"
    );
    for text in [" client 127.0.0.1:", " proxy 127.0.0.1:"] {
        server.wait_for_log(text, Deadline::default());
    }
}

#[test]
fn an_upstream_that_ends_first_ends_the_session_after_its_bytes() {
    let upstream = Upstream::named("name");
    let server = serve(&format!("server {{ listen 127.0.0.1:0; proxy_pass {}; }}", upstream.address));
    let mut client = connect(server.addr(0).tcp());
    assert_eq!(read_all(&mut client), b"name");
    let errors = server.wait_for_log("upstream disconnected", Deadline::default());
    assert!(errors.contains("bytes from/to client:0/4, bytes from/to upstream:4/0"), "{errors}");
}

#[test]
fn with_half_close_the_other_direction_continues() {
    let upstream = Upstream::start(|mut stream| {
        let received = read_all(&mut stream);
        let _ = stream.write_all(&received);
    });
    let server = serve(&format!(
        "server {{ listen 127.0.0.1:0; proxy_half_close on; proxy_pass {}; }}",
        upstream.address
    ));
    let mut client = connect(server.addr(0).tcp());
    client.write_all(b"question").expect("it is sent");
    end(&client);
    assert_eq!(read_all(&mut client), b"question");
    assert_eq!(server.wait_for_access_log(1, Deadline::default()).trim_end(), "200 8 8");
}

#[test]
fn a_session_without_data_ends_after_its_timeout() {
    let upstream = Upstream::echo();
    let server = serve(&format!(
        "server {{ listen 127.0.0.1:0; proxy_timeout 100ms; proxy_pass {}; }}",
        upstream.address
    ));
    let mut client = connect(server.addr(0).tcp());
    assert_eq!(read_all(&mut client), b"");
    server
        .wait_for_log("connection timed out (110: Connection timed out) while proxying", Deadline::default());
}

#[test]
fn the_header_of_the_proxy_protocol_may_be_cut_anywhere() {
    let upstream = Upstream::echo();
    let server = serve(&format!(
        "log_format client '$remote_addr $remote_port $proxy_protocol_addr $realip_remote_addr';
         server {{ listen 127.0.0.1:0 proxy_protocol; set_real_ip_from 127.0.0.1;
           access_log logs/clients.log client; proxy_pass {}; }}",
        upstream.address
    ));
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\n";
    for at in [1, 6, 20, header.len() - 1] {
        let mut client = connect(server.addr(0).tcp());
        client.set_nodelay(true).expect("an option");
        client.write_all(&header[..at]).expect("it is sent");
        client.write_all(&[&header[at..], b"data"].concat()).expect("it is sent");
        assert_eq!(crate::support::read_exactly(&mut client, 4), b"data");
    }
    let path = server.path("logs/clients.log");
    let line = testkit::wait::until("a line", Deadline::default(), || {
        let text = std::fs::read_to_string(&path).ok()?;
        text.lines().next().map(str::to_owned)
    });
    assert_eq!(line.expect("a session ended"), "192.0.2.1 5000 192.0.2.1 127.0.0.1");
    // Other bytes are refused.
    let mut client = connect(server.addr(0).tcp());
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is sent");
    assert_eq!(read_all(&mut client), b"");
    server
        .wait_for_log("broken header: \"GET / HTTP/1.1\" while reading PROXY protocol", Deadline::default());
}

#[test]
fn an_upstream_gets_the_header_of_the_proxy_protocol() {
    for (version, start) in
        [("on", &b"PROXY TCP4 127.0.0.1 127.0.0.1 "[..]), ("v2", b"\r\n\r\n\0\r\nQUIT\n\x21\x11")]
    {
        let (upstream, collected) = Upstream::collector();
        let server = serve(&format!(
            "server {{ listen 127.0.0.1:0; proxy_protocol {version}; proxy_pass {}; }}",
            upstream.address
        ));
        let mut client = connect(server.addr(0).tcp());
        client.write_all(b"data").expect("it is sent");
        drop(client);
        let bytes = collected.join().expect("the upstream runs");
        assert!(bytes.starts_with(start) && bytes.ends_with(b"data"), "{version}: {bytes:?}");
        let log = server.wait_for_access_log(1, Deadline::default());
        assert_eq!(log.trim_end(), "200 4 0", "{version}");
    }
}

#[test]
fn a_text_is_returned_and_variables_are_set() {
    let server = serve(
        "map $remote_addr $greeting { 127.0.0.1 hello; default none; }
         geo $where { 127.0.0.0/8 here; }
         server { listen 127.0.0.1:0; set $name \"$where!\"; return \"$greeting $name $protocol $server_addr\"; }",
    );
    let mut client = connect(server.addr(0).tcp());
    assert_eq!(read_all(&mut client), b"hello here! TCP 127.0.0.1");
    assert_eq!(server.wait_for_access_log(1, Deadline::default()).trim_end(), "200 0 25");
}

#[test]
fn an_unreachable_upstream_is_a_502_with_the_message_of_nginx() {
    let address = closed_address();
    let server = serve(&format!("server {{ listen 127.0.0.1:0; proxy_pass {address}; }}"));
    let mut client = connect(server.addr(0).tcp());
    assert_eq!(read_all(&mut client), b"");
    assert_eq!(server.wait_for_access_log(1, Deadline::default()).trim_end(), "502 0 0");
    let expected = format!(
        "connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1, server: {}, \
         upstream: \"{address}\", bytes from/to client:0/0, bytes from/to upstream:0/0",
        // The address as configured.
        "127.0.0.1:0"
    );
    let errors = server.wait_for_log("connect() failed", Deadline::default());
    assert!(errors.contains(&expected), "{errors}");
}
