//! Programs of Debian behind `stream`, and groups with many servers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{connect, read_all, read_exactly, serve, serve_with};
use testkit::{Deadline, ports, wait};

/// A name server with one name, `a.test`.
struct Dnsmasq(Child, SocketAddr);

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Dnsmasq {
    /// Starts it; `None` if the program is not installed.
    fn start(address_of_name: Ipv4Addr) -> Option<Dnsmasq> {
        let port = ports::free_port();
        let started = Command::new("dnsmasq")
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"])
            .args(["--listen-address=127.0.0.1", "--bind-interfaces", "--pid-file="])
            .arg(format!("--port={port}"))
            .arg(format!("--address=/a.test/{address_of_name}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = started else {
            testkit::skip("dnsmasq is not installed (apt-get install dnsmasq-base)");
            return None;
        };
        let server = Dnsmasq(child, SocketAddr::from(([127, 0, 0, 1], port)));
        wait::until("dnsmasq", Deadline::default(), || resolve(server.1)).expect("it starts");
        Some(server)
    }
}

/// A query for the addresses of `a.test`.
const QUERY: &[u8] = b"\x56\x78\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01";

/// Returns the address in a response.
fn address_in(response: &[u8]) -> Option<Ipv4Addr> {
    let last = response.last_chunk::<4>()?;
    (response.starts_with(&QUERY[..2]) && response[7] == 1).then(|| Ipv4Addr::from(*last))
}

/// Resolves the name over UDP; `None` without a response.
fn resolve(server: SocketAddr) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time limit");
    socket.send_to(QUERY, server).expect("it is sent");
    let mut buffer = [0; 512];
    let count = socket.recv(&mut buffer).ok()?;
    address_in(&buffer[..count])
}

#[test]
fn dnsmasq_is_balanced_checked_and_replaced_over_udp_and_tcp() {
    let addresses = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let (Some(one), Some(two)) = (Dnsmasq::start(addresses[0]), Dnsmasq::start(addresses[1])) else { return };
    let (first, second) = (one.1, two.1);
    let server = serve(&format!(
        "upstream dns {{ server {first}; server {second}; }}
         match dns {{ send \\x12\\x34\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\x01; expect ~ ^\\x12\\x34; }}
         server {{ listen 127.0.0.1:0 udp; proxy_pass dns; proxy_responses 1; proxy_timeout 2s;
           health_check udp match=dns interval=50ms; health_check_timeout 1s; }}
         server {{ listen 127.0.0.2:0; proxy_pass dns; }}"
    ));
    let udp = server.addr(0).tcp();
    let found: Vec<_> = (0..8).filter_map(|_| resolve(udp)).collect();
    assert!(addresses.iter().all(|address| found.contains(address)), "{found:?}");
    // Over TCP a message has its length before it.
    let mut client: TcpStream = connect(server.addr(1).tcp());
    let mut query = (QUERY.len() as u16).to_be_bytes().to_vec();
    query.extend_from_slice(QUERY);
    std::io::Write::write_all(&mut client, &query).expect("it is sent");
    let len = u16::from_be_bytes(*read_exactly(&mut client, 2).first_chunk().expect("two bytes"));
    let response = read_exactly(&mut client, len.into());
    assert!(address_in(&response).is_some(), "{response:?}");
    drop(one);
    server.wait_for_log(
        &format!("health check \"dns\" of peer {first} in upstream \"dns\""),
        Deadline::default(),
    );
    assert!((0..10).all(|_| resolve(udp) == Some(addresses[1])), "the other one serves all");
    drop(two);
}

#[test]
fn a_thousand_servers_are_checked_while_sessions_are_served() {
    const SERVERS: u32 = 1000;
    let is_open = Arc::new(AtomicBool::new(true));
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let accepts = Arc::clone(&is_open);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if !accepts.load(Ordering::Relaxed) {
                return;
            }
            // The address that the client has connected to is the name of the server.
            let name = stream.local_addr().map(|address| address.ip().to_string()).unwrap_or_default();
            let _ = std::io::Write::write_all(&mut &stream, name.as_bytes());
        }
    });
    let address = |number: u32| Ipv4Addr::from_bits(0x7f01_0000 + 1 + number);
    let servers: String = (0..SERVERS).map(|number| format!("server {}:{port};", address(number))).collect();
    let server = serve_with(
        "",
        &format!(
            "upstream group {{ {servers} }}
             server {{ listen 127.0.0.1:0; proxy_pass group; proxy_next_upstream off;
               health_check interval=500ms jitter=100ms mandatory; }}"
        ),
    );
    server.wait_for_log_count("peer is healthy", SERVERS as usize, Deadline::default());
    // Each session gets the next server, while checks go on.
    let names: std::collections::BTreeSet<Vec<u8>> =
        (0..200).map(|_| read_all(&mut connect(server.addr(0).tcp()))).collect();
    assert_eq!(names.len(), 200);
    is_open.store(false, Ordering::Relaxed);
    drop(TcpStream::connect((address(0), port)));
    server.wait_for_log_count("peer is unhealthy", SERVERS as usize, Deadline::default());
    assert_eq!(read_all(&mut connect(server.addr(0).tcp())), b"");
    server.wait_for_log("no live upstreams", Deadline::default());
}
