//! Outgoing connections: their options, attempts that are abandoned, and idle connections that are reused.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use io::Errno;
use io::op::PeerAddr;
use rt::net::ConnectStep;
use rt::{ConnectOptions, Either, Socket, Timer, counters, now, select, yield_now};
use rustix::net::sockopt;

use super::common::{PATIENCE, expect, on_each_net, send};

fn listener() -> (TcpListener, PeerAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = PeerAddr::Inet(listener.local_addr().unwrap());
    (listener, address)
}

/// Returns an address that never responds, because the backlog of its listener is full; the listener is returned with
/// it.
fn silent() -> (std::os::fd::OwnedFd, TcpStream, PeerAddr) {
    use rustix::net::{AddressFamily, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let filler = TcpStream::connect(address).unwrap();
    (socket, filler, PeerAddr::Inet(address))
}

async fn operations_end() {
    while counters().operations > 0 {
        yield_now().await;
    }
}

#[test]
fn the_options_of_a_connection_are_set() {
    on_each_net(|pair| {
        pair.run(async {
            let (listener, address) = listener();
            let own = Ipv4Addr::new(127, 0, 0, 7);
            let options = ConnectOptions {
                bind: Some(SocketAddr::from((own, 0))),
                bind_address_no_port: true,
                keepalive: true,
                nodelay: true,
                receive_buffer: Some(100_000),
                send_buffer: Some(50_000),
                ..ConnectOptions::default()
            };
            let mut socket = Socket::connect_with(address, &options).await.unwrap();
            let (mut peer, from) = listener.accept().unwrap();
            assert_eq!(from.ip(), IpAddr::V4(own));
            assert!(sockopt::socket_keepalive(&socket).unwrap());
            assert!(sockopt::tcp_nodelay(&socket).unwrap());
            // The kernel doubles the requested size for its own overhead (socket(7)).
            assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), 200_000);
            assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), 100_000);
            send(&mut socket, b"hello".to_vec()).await;
            let mut got = [0; 5];
            peer.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"hello");
        });
    });
}

#[test]
fn a_failed_connect_reports_its_step() {
    on_each_net(|pair| {
        pair.run(async {
            let (listener, address) = listener();
            let far = ConnectOptions {
                // RFC 5737: an address that belongs to no machine.
                bind: Some(SocketAddr::from(([192, 0, 2, 1], 0))),
                ..ConnectOptions::default()
            };
            let error = Socket::connect_with(address.clone(), &far).await.err().unwrap();
            assert_eq!((error.step, error.errno), (ConnectStep::Bind, Errno::ADDRNOTAVAIL));
            assert!(error.to_string().starts_with("bind() failed ("), "{error}");
            drop(listener);
            let error =
                Socket::connect_with(address.clone(), &ConnectOptions::default()).await.err().unwrap();
            assert_eq!((error.step, error.errno), (ConnectStep::Connect, Errno::CONNREFUSED));
            assert_eq!(Socket::connect(address).await.err(), Some(Errno::CONNREFUSED));
        });
    });
}

/// Returns the number of sockets of the system with the local address `own` (proc_net(5): the bytes of the address in
/// native byte order).
#[allow(clippy::disallowed_methods, reason = "the kernel's table is in memory")]
fn sockets_of(own: Ipv4Addr) -> usize {
    let wanted = format!("{:08X}:", u32::from_ne_bytes(own.octets()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().filter(|line| line.split(": ").nth(1).is_some_and(|rest| rest.starts_with(&wanted))).count()
}

#[test]
fn a_dropped_connect_leaves_no_open_socket() {
    // An address that no other test and no other run uses distinguishes these sockets.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 64 + high, middle, low);
    on_each_net(|pair| {
        let (_listener, _filler, address) = silent();
        let options = ConnectOptions { bind: Some(SocketAddr::from((own, 0))), ..ConnectOptions::default() };
        pair.run(async {
            for _ in 0..20 {
                let seen = async {
                    yield_now().await;
                    sockets_of(own)
                };
                match select(Socket::connect_with(address.clone(), &options), seen).await {
                    Either::Left(_) => panic!("it cannot succeed"),
                    Either::Right(seen) => assert!(seen > 0, "the attempt was under way"),
                }
            }
            operations_end().await;
            assert_eq!(sockets_of(own), 0);
        });
    });
}

/// Lets `Reader::readable` start its receive and drops the future, as the pool of idle connections does when it reuses
/// a connection.
async fn make_idle(socket: &mut Socket) {
    let timer = Timer::new();
    timer.set(now() + Duration::from_millis(5));
    assert!(timer.limit(socket.reader.readable()).await.is_err(), "there is no news");
}

#[test]
fn an_idle_connection_is_quiet_and_can_be_reused() {
    on_each_net(|pair| {
        pair.run(async {
            let (listener, address) = listener();
            let mut socket = Socket::connect(address).await.unwrap();
            let mut peer = listener.accept().unwrap().0;
            assert!(socket.reader.is_quiet(), "asked of the kernel: no receive is armed yet");
            for round in 0..3u8 {
                make_idle(&mut socket).await;
                let entries = counters().engine.kernel_entries;
                assert!(socket.reader.is_quiet());
                assert_eq!(counters().engine.kernel_entries, entries);
                send(&mut socket, vec![round]).await;
                let mut got = [0; 1];
                peer.read_exact(&mut got).unwrap();
                peer.write_all(&[round, round]).unwrap();
                expect(&mut socket, &[round, round]).await;
            }
        });
    });
}

#[test]
fn an_idle_connection_reports_unexpected_data_and_close() {
    on_each_net(|pair| {
        pair.run(async {
            let (listener, address) = listener();
            // The peer closes it while it is idle.
            let mut socket = Socket::connect(address.clone()).await.unwrap();
            let peer = listener.accept().unwrap().0;
            make_idle(&mut socket).await;
            drop(peer);
            socket.reader.readable().await;
            assert!(!socket.reader.is_quiet());
            assert!(socket.reader.recv().await.unwrap().is_none());
            // The peer sends data, which is not lost.
            let mut socket = Socket::connect(address.clone()).await.unwrap();
            let mut peer = listener.accept().unwrap().0;
            make_idle(&mut socket).await;
            peer.write_all(b"HTTP/1.1 408").unwrap();
            socket.reader.readable().await;
            assert!(!socket.reader.is_quiet());
            socket.reader.readable().await;
            expect(&mut socket, b"HTTP/1.1 408").await;
            // The peer resets it while no task waits in `readable`.
            let mut socket = Socket::connect(address.clone()).await.unwrap();
            let peer = listener.accept().unwrap().0;
            make_idle(&mut socket).await;
            sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
            drop(peer);
            while socket.reader.is_quiet() {
                yield_now().await;
            }
            assert_eq!(socket.reader.recv().await.unwrap_err(), Errno::CONNRESET);
            // The end had arrived before any call.
            let mut socket = Socket::connect(address).await.unwrap();
            drop(listener.accept().unwrap());
            while socket.reader.is_quiet() {
                yield_now().await;
            }
        });
    });
}

#[test]
fn a_tunnel_closes_each_direction_separately() {
    on_each_net(|pair| {
        pair.run(async {
            let (listener, address) = listener();
            let mut socket = Socket::connect(address).await.unwrap();
            let mut peer = listener.accept().unwrap().0;
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            let far = std::thread::spawn(move || {
                let mut got = Vec::new();
                peer.read_to_end(&mut got).unwrap();
                // Our sending direction is closed; the other one continues.
                peer.write_all(&got).unwrap();
            });
            let (reader, writer) = socket.split();
            let mut got = Vec::new();
            let read = async {
                while let Some(buf) = reader.recv().await.unwrap() {
                    got.extend_from_slice(&buf);
                }
            };
            let write = async {
                for _ in 0..10 {
                    let data = io::Segments::from(vec![7; 30_000]);
                    writer.send(data, false).await.0.unwrap();
                }
                writer.shutdown();
            };
            rt::join(read, write).await;
            assert_eq!(got.len(), 300_000);
            far.join().unwrap();
        });
    });
}
