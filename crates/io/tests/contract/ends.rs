//! Every operation ends exactly once, also when it is cancelled or abandoned, and leaks nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use io::facts::DeviceId;
use io::op::{Interest, PeerAddr, RecvInto};
use io::{Errno, Fd, NetOp, Op, Payload, Segments};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use testkit::TempDir;

use crate::harness::{Bench, connection, listener, on_each_pair, open};

/// Time to wait for something that must not happen.
const A_MOMENT: Duration = Duration::from_millis(20);

/// Returns a socket whose send buffer is full and stays full: unlike TCP, a unix socket does not move data by itself.
fn full_socket() -> (Fd, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 1 << 10]).is_ok() {}
    (Fd::from(OwnedFd::from(ours)), peer)
}

fn send(socket: &Fd) -> Op {
    let data = Segments::from(vec![1; 1 << 16]);
    Op::Net(NetOp::Send { socket: socket.clone(), data, more: false, zero_copy: false })
}

/// Returns an address whose listener has a full backlog, so that connects stay pending.
fn silent_address() -> (OwnedFd, TcpStream, SocketAddr) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    rustix::net::bind(&socket, &any).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    // A backlog of 0 holds one connection.
    let filler = TcpStream::connect(address).unwrap();
    (socket, filler, address)
}

fn new_socket() -> Fd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Fd::from(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap())
}

/// Runs turns until no operation is in flight, and then a further turn.
fn settle(bench: &mut Bench) {
    bench.turn_until_idle();
    bench.turn(A_MOMENT);
}

/// Checks that the other end is closed or reset. A read that times out means that the connection is still open.
fn assert_ended(peer: &mut TcpStream) {
    match peer.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("the connection is still open: {other:?}"),
    }
}

/// One waiting operation of each kind, with the sockets that keep it waiting.
struct Waiting {
    operations: Vec<(&'static str, Op)>,
    _peers: (UnixStream, TcpStream),
    _silent: (OwnedFd, TcpStream),
}

fn waiting_operations(bench: &mut Bench) -> Waiting {
    let (full, full_peer) = full_socket();
    let (idle, idle_peer) = connection();
    let (listening, _) = listener();
    let (silent, filler, address) = silent_address();
    let owned = RecvInto::Owned(bench.engine.pool().get(4096).unwrap());
    let recv = |into: RecvInto| Op::Net(NetOp::Recv { socket: idle.clone(), into });
    let operations = vec![
        ("accept", Op::Net(NetOp::Accept { listener: listening.clone(), multishot: false })),
        ("multishot accept", Op::Net(NetOp::Accept { listener: listener().0, multishot: true })),
        ("recv into a buffer", recv(owned)),
        ("recv from the pool", recv(RecvInto::Pool)),
        ("recv stream", recv(RecvInto::Stream)),
        ("send", send(&full)),
        ("connect", Op::Net(NetOp::Connect { socket: new_socket(), peer: PeerAddr::Inet(address) })),
        ("poll readable", Op::Net(NetOp::Poll { fd: idle.clone(), interest: Interest::Readable })),
        ("poll writable", Op::Net(NetOp::Poll { fd: full.clone(), interest: Interest::Writable })),
        ("poll for the end", Op::Net(NetOp::Poll { fd: idle.clone(), interest: Interest::HangUp })),
    ];
    Waiting { operations, _peers: (full_peer, idle_peer), _silent: (silent, filler) }
}

#[test]
fn a_cancelled_operation_ends_once_and_returns_its_memory() {
    on_each_pair(|bench| {
        let mut waiting = waiting_operations(bench);
        for (name, op) in waiting.operations.drain(..) {
            let id = bench.submit(op);
            assert!(bench.next_within(id, A_MOMENT).is_none(), "{name} should wait");
            bench.engine.cancel(id);
            bench.engine.cancel(id);
            let completion = bench.next(id);
            // A send may have transferred some bytes before.
            let cancelled = completion.result == Err(Errno::CANCELED);
            assert!(cancelled || (name == "send" && completion.result.is_ok()), "{name}: {completion:?}");
            assert!(!completion.more, "{name}");
            match name {
                "send" => assert!(matches!(completion.payload, Payload::Segments(_)), "{name}"),
                "recv into a buffer" => assert!(matches!(completion.payload, Payload::Buf(_)), "{name}"),
                _ => {}
            }
            assert!(bench.next_within(id, Duration::ZERO).is_none(), "{name} ended twice");
        }
        assert!(bench.take_seen().is_empty());
    });
}

#[test]
fn an_abandoned_operation_never_completes_visibly() {
    on_each_pair(|bench| {
        let held = bench.bytes_held();
        let mut waiting = waiting_operations(bench);
        for (_, op) in waiting.operations.drain(..) {
            let id = bench.submit(op);
            bench.turn(Duration::ZERO);
            bench.engine.abandon(id);
        }
        // An operation that completes immediately, but whose completion has not been collected.
        let nop = bench.submit(Op::NOP);
        bench.engine.abandon(nop);
        settle(bench);
        assert!(bench.take_seen().is_empty());
        bench.assert_drains();
        assert_eq!(bench.bytes_held(), held, "a buffer is missing");
    });
}

#[test]
fn a_finished_operation_id_cancels_no_other_operation() {
    on_each_pair(|bench| {
        let old = bench.submit(Op::NOP);
        assert_eq!(bench.next(old).result, Ok(0));
        let (ours, mut peer) = connection();
        let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
        assert_ne!(old, id);
        bench.engine.cancel(old);
        bench.engine.abandon(old);
        assert!(bench.next_within(id, A_MOMENT).is_none(), "another operation was hit");
        peer.write_all(b"x").unwrap();
        assert_eq!(bench.next(id).result, Ok(1));
    });
}

#[test]
fn connections_of_an_abandoned_accept_are_closed() {
    on_each_pair(|bench| {
        // The connection arrives before or after the caller abandons the accept.
        for (multishot, before) in [(false, true), (false, false), (true, true), (true, false)] {
            let (listening, address) = listener();
            let id = bench.submit(Op::Net(NetOp::Accept { listener: listening.clone(), multishot }));
            bench.turn(Duration::ZERO);
            let mut peer = TcpStream::connect(address).unwrap();
            peer.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
            if before {
                bench.turn(A_MOMENT);
            }
            bench.engine.abandon(id);
            settle(bench);
            drop(bench.take_seen());
            drop(listening);
            // Whether or not it was accepted, the connection must be closed now.
            assert_ended(&mut peer);
        }
    });
}

#[test]
fn the_file_of_an_abandoned_open_is_closed() {
    on_each_pair(|bench| {
        let dir = TempDir::new("io");
        let path = dir.write("abandoned", b"x");
        for turns_before in [false, true] {
            let id = bench.submit(open(&path, 0, DeviceId(0), bench.pair.via()));
            if turns_before {
                bench.turn(Duration::ZERO);
            }
            let seen_before = bench.take_seen();
            bench.engine.abandon(id);
            settle(bench);
            assert!(bench.take_seen().is_empty());
            drop(seen_before);
        }
        let open_files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let leaked = open_files.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link == path));
        assert_eq!(leaked.count(), 0);
    });
}

#[test]
fn a_descriptor_stays_open_while_an_operation_uses_it() {
    on_each_pair(|bench| {
        let (ours, mut peer) = connection();
        let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
        bench.turn(Duration::ZERO);
        let ours = ours.into_owned().expect_err("the operation holds it too");
        let number = std::os::fd::AsRawFd::as_raw_fd(&ours.as_fd());
        drop(ours);
        assert!(std::fs::exists(format!("/proc/self/fd/{number}")).unwrap());
        bench.engine.cancel(id);
        assert_eq!(bench.next(id).result, Err(Errno::CANCELED));
        // The last owner was dropped, so the peer sees the end of the stream.
        bench.turn(Duration::ZERO);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_reused_descriptor_number_means_the_new_descriptor() {
    on_each_pair(|bench| {
        for round in 0..50u8 {
            let (ours, mut peer) = connection();
            let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
            bench.turn(Duration::ZERO);
            peer.write_all(&[round]).unwrap();
            let completion = bench.next(id);
            assert_eq!(crate::harness::received(&completion.payload), [round]);
            match round % 3 {
                0 => drop(ours),
                1 => {
                    bench.run(Op::Net(NetOp::Close { fd: ours.into_owned().unwrap() }));
                }
                _ => {
                    // Unwrapped and wrapped again: the registration of the old owner must not apply.
                    let again = Fd::from(ours.into_owned().unwrap());
                    let id =
                        bench.submit(Op::Net(NetOp::Recv { socket: again.clone(), into: RecvInto::Pool }));
                    bench.turn(Duration::ZERO);
                    peer.write_all(b"again").unwrap();
                    assert_eq!(bench.next(id).result, Ok(5));
                }
            }
        }
    });
}

#[test]
fn a_drain_ends_waiting_operations() {
    on_each_pair(|bench| {
        let mut waiting = waiting_operations(bench);
        for (_, op) in waiting.operations.drain(..) {
            bench.submit(op);
        }
        bench.turn(Duration::ZERO);
        // While the peers of its operations exist.
        bench.assert_drains();
    });
}
