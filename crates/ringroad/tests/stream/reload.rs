//! Sessions and listening sockets across reloads and shutdowns.

use std::io::{Read, Write};

use rustix::process::Signal;

use crate::support::{Upstream, connect, echo, read_all, serve, serve_with};
use testkit::{Deadline, wait};

#[test]
fn sessions_continue_across_a_reload_and_new_ones_use_the_new_configuration() {
    let (old, new) = (Upstream::echo(), Upstream::named("new"));
    let mut server = serve(&format!("server {{ listen 127.0.0.1:0; proxy_pass {}; }}", old.address));
    let address = server.addr(0).tcp();
    let mut client = connect(address);
    assert_eq!(echo(&mut client, b"before"), b"before");
    let changed = server.conf().replace(&old.address.to_string(), &new.address.to_string());
    server.rewrite_conf(&changed);
    server.reload();
    wait::until("the new upstream", Deadline::default(), || {
        let mut other = connect(address);
        crate::support::end(&other);
        (read_all(&mut other) == b"new").then_some(())
    })
    .expect("the new configuration is used");
    assert_eq!(echo(&mut client, b"after"), b"after");
}

#[test]
fn a_shutdown_waits_for_sessions_until_its_timeout() {
    let upstream = Upstream::echo();
    let server = serve_with(
        "worker_shutdown_timeout 200ms;",
        &format!("server {{ listen 127.0.0.1:0; proxy_pass {}; }}", upstream.address),
    );
    let mut client = connect(server.addr(0).tcp());
    assert_eq!(echo(&mut client, b"a"), b"a");
    let access_log = server.path("logs/access.log");
    let mut reader = client.try_clone().expect("a descriptor");
    let reading = std::thread::spawn(move || read_all(&mut reader));
    assert!(server.quit_and_wait().success());
    assert_eq!(reading.join().expect("it ends"), b"");
    drop(access_log);
}

#[test]
fn a_reload_does_not_end_a_session_that_waits_for_its_first_bytes() {
    for (parameter, directive, parts) in [
        ("proxy_protocol", "", [&b"PROXY TCP4 192.0.2.1 "[..], b"192.0.2.2 1 2\r\n"]),
        // A record of a handshake, whose message is not a ClientHello.
        ("", "ssl_preread on;", [&b"\x16\x03"[..], b"\x01\0\x01\0"]),
    ] {
        let (old, new) = (Upstream::echo(), Upstream::named("new"));
        let mut server = serve(&format!(
            "server {{ listen 127.0.0.1:0 {parameter}; {directive} proxy_pass {}; }}
             server {{ listen 127.0.0.2:0; proxy_pass {}; }}",
            old.address, old.address
        ));
        let mut client = connect(server.addr(0).tcp());
        client.write_all(parts[0]).expect("the first part");
        server.wait_for_log("connected to", Deadline::default());
        let changed = server.conf().replace(&old.address.to_string(), &new.address.to_string());
        let address = server.addr(1).tcp();
        server.rewrite_conf(&changed);
        server.reload();
        wait::until("the new upstream", Deadline::default(), || {
            let mut other = connect(address);
            crate::support::end(&other);
            (read_all(&mut other) == b"new").then_some(())
        })
        .expect("the new configuration is used");
        client.write_all(parts[1]).expect("the second part");
        let expected: &[u8] = if parameter.is_empty() { &parts.concat() } else { b"" };
        assert_eq!(crate::support::read_exactly(&mut client, expected.len()), expected);
        assert_eq!(echo(&mut client, b"after"), b"after");
    }
}

#[test]
fn a_shutdown_ends_and_logs_sessions_that_are_not_connected_yet() {
    let silent = Upstream::start(|mut stream| _ = stream.read_to_end(&mut Vec::new()));
    let server = serve_with(
        "worker_shutdown_timeout 200ms;",
        &format!(
            "server {{ listen 127.0.0.1:0 proxy_protocol; proxy_pass {0}; }}
             server {{ listen 127.0.0.2:0; ssl_preread on; proxy_pass {0}; }}
             server {{ listen 127.0.0.3:0; proxy_ssl on; proxy_pass {0}; }}",
            silent.address
        ),
    );
    let clients: Vec<_> = (0..3).map(|index| connect(server.addr(index).tcp())).collect();
    server.wait_for_log_count(" connected to 127.0.0.", 3, Deadline::default());
    server.signal(Signal::QUIT);
    let log = server.wait_for_access_log(3, Deadline::default());
    assert_eq!(log, "200 0 0\n".repeat(3));
    server.wait_for_log_count("disconnected on shutdown", 3, Deadline::default());
    drop(clients);
}
