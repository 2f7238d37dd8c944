//! The end of a stream that arrives together with its last bytes, before they are collected, in every order.
//!
//! A multishot receive must report such an end too. With io_uring, only the engine's own check of the socket detects
//! it, because the kernel handles both with one wake-up (Linux 6.18).

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use io::op::RecvInto;
use io::{Errno, Fd, NetOp, Op, OpId};

use crate::harness::{Bench, connection, on_each_net, pattern, received};

/// Maximum time until an end is reported: shorter than the timeout of the tests, so that the message names the case.
const SOON: Duration = Duration::from_secs(180);

/// The action by which a peer ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// It closes both directions.
    Closing,
    /// It shuts down its sending direction, and continues to receive.
    HalfClosing,
    /// It resets the connection.
    Resetting,
}

const WAYS: [Leaves; 3] = [Leaves::Closing, Leaves::HalfClosing, Leaves::Resetting];

/// The peer of a connection.
enum Peer {
    Tcp(std::net::TcpStream),
    Unix(UnixStream),
}

impl Peer {
    fn send(&mut self, bytes: &[u8]) {
        match self {
            Peer::Tcp(peer) => peer.write_all(bytes).unwrap(),
            Peer::Unix(peer) => peer.write_all(bytes).unwrap(),
        }
    }

    /// Ends the connection; returns the peer if its socket remains open.
    fn leave(self, how: Leaves) -> Option<Peer> {
        match (&self, how) {
            (Peer::Tcp(peer), Leaves::HalfClosing) => peer.shutdown(Shutdown::Write).unwrap(),
            (Peer::Unix(peer), Leaves::HalfClosing) => peer.shutdown(Shutdown::Write).unwrap(),
            (Peer::Tcp(peer), Leaves::Resetting) => {
                rustix::net::sockopt::set_socket_linger(peer, Some(Duration::ZERO)).unwrap();
            }
            // A unix socket is reset when it is closed with unread bytes.
            _ => {}
        }
        (how == Leaves::HalfClosing).then_some(self)
    }
}

fn pair(unix: bool, how: Leaves) -> (Fd, Peer) {
    if !unix {
        let (ours, peer) = connection();
        return (ours, Peer::Tcp(peer));
    }
    let (mut ours, peer) = UnixStream::pair().unwrap();
    if how == Leaves::Resetting {
        ours.write_all(b"never read").unwrap();
    }
    ours.set_nonblocking(true).unwrap();
    (Fd::from(OwnedFd::from(ours)), Peer::Unix(peer))
}

/// Runs turns until `bytes` have been received, in any number of pieces; returns the end of the stream if it was
/// reported too.
fn hears(bench: &mut Bench, stream: OpId, bytes: &[u8], about: &str) -> Option<Result<u32, Errno>> {
    let mut got = Vec::new();
    while got.len() < bytes.len() {
        let completion = bench.next(stream);
        got.extend_from_slice(received(&completion.payload));
        if !completion.more {
            assert!(got == bytes, "{} bytes: {about}", got.len());
            return Some(completion.result);
        }
    }
    assert!(got == bytes, "{} bytes: {about}", got.len());
    None
}

/// Checks the end of a stream, which only the engine can detect.
fn ends(bench: &mut Bench, stream: OpId, how: Leaves, about: &str) {
    let completion = bench.next_within(stream, SOON).unwrap_or_else(|| panic!("no end: {about}"));
    let expected = if how == Leaves::Resetting { Err(Errno::CONNRESET) } else { Ok(0) };
    assert_eq!((completion.result, completion.more), (expected, false), "{about}");
}

#[test]
fn an_end_received_with_the_last_bytes_is_reported() {
    on_each_net(|bench| {
        for (unix, how) in [false, true].into_iter().flat_map(|unix| WAYS.map(|how| (unix, how))) {
            for (armed_first, len) in
                [true, false].into_iter().flat_map(|first| [1, 10_000].map(|len| (first, len)))
            {
                let about = format!("unix {unix}, {how:?}, armed first {armed_first}, {len} bytes");
                let (socket, mut peer) = pair(unix, how);
                let bytes = pattern(len);
                let receive = Op::Net(NetOp::Recv { socket, into: RecvInto::Stream });
                let (stream, _open) = if armed_first {
                    let stream = bench.submit(receive);
                    bench.turn(Duration::ZERO);
                    peer.send(&bytes);
                    (stream, peer.leave(how))
                } else {
                    peer.send(&bytes);
                    let open = peer.leave(how);
                    (bench.submit(receive), open)
                };
                match hears(bench, stream, &bytes, &about) {
                    None => ends(bench, stream, how, &about),
                    // Epoll may report both in one turn.
                    Some(end) => assert_eq!(end.is_err(), how == Leaves::Resetting, "{about}"),
                }
            }
        }
    });
}

#[test]
fn an_end_received_with_a_request_is_reported_after_its_response() {
    on_each_net(|bench| {
        for unix in [false, true] {
            let about = format!("unix {unix}");
            let (socket, mut peer) = pair(unix, Leaves::HalfClosing);
            if !unix {
                socket.set_tcp();
            }
            peer.send(b"request");
            let _open = peer.leave(Leaves::HalfClosing);
            let stream =
                bench.submit(Op::Net(NetOp::Recv { socket: socket.clone(), into: RecvInto::Stream }));
            let end = hears(bench, stream, b"request", &about);
            bench.send_all(&socket, b"answer").unwrap();
            if end.is_none() {
                ends(bench, stream, Leaves::HalfClosing, &about);
            }
        }
    });
}
