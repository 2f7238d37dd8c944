//! Each datagram is received completely and separately, also an empty one, and also if several arrived together.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;

use io::op::RecvInto;
use io::segments::Source;
use io::{Errno, Fd, NetOp, Op, Segments};

use crate::harness::{Bench, PATIENCE, on_each_pair, pattern, received};

/// Returns the engine's socket and its blocking peer.
fn datagrams() -> (Fd, UdpSocket) {
    let (ours, peer) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    ours.connect(peer.local_addr().unwrap()).unwrap();
    peer.connect(ours.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    ours.set_nonblocking(true).unwrap();
    let fd = Fd::from(OwnedFd::from(ours));
    fd.set_datagrams();
    (fd, peer)
}

fn recv(bench: &mut Bench, socket: &Fd, owned: bool) -> Vec<u8> {
    let into = match owned {
        true => RecvInto::Owned(bench.engine.pool().get(4096).unwrap()),
        false => RecvInto::Pool,
    };
    let completion = bench.recv(socket, into);
    assert_eq!(completion.result, Ok(received(&completion.payload).len() as u32));
    received(&completion.payload).to_vec()
}

fn send(bench: &mut Bench, socket: &Fd, parts: &[&'static [u8]]) -> Result<u32, Errno> {
    let mut data = Segments::new();
    parts.iter().for_each(|part| data.push(Source::Static(part)));
    bench.run(Op::Net(NetOp::Send { socket: socket.clone(), data, more: false, zero_copy: false })).result
}

#[test]
fn datagrams_are_received_one_by_one() {
    on_each_pair(|bench| {
        for owned in [true, false] {
            let (ours, peer) = datagrams();
            // One datagram that is waited for, then several that arrived before.
            let waiting = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
            bench.turn(std::time::Duration::ZERO);
            peer.send(b"first").unwrap();
            assert_eq!(received(&bench.next(waiting).payload), b"first");
            let sent: [&[u8]; 4] = [b"one", b"", b"three", &pattern(4000)];
            for datagram in sent {
                peer.send(datagram).unwrap();
            }
            for datagram in sent {
                assert!(recv(bench, &ours, owned) == datagram, "{} bytes", datagram.len());
            }
            // A datagram that is too long is truncated, and its remaining bytes are not received as another one.
            peer.send(&pattern(5000)).unwrap();
            peer.send(b"next").unwrap();
            assert!(recv(bench, &ours, true) == pattern(5000)[..4096]);
            assert_eq!(recv(bench, &ours, owned), b"next");
        }
    });
}

#[test]
fn a_send_is_one_datagram_and_a_closed_peer_is_reported() {
    on_each_pair(|bench| {
        let (ours, peer) = datagrams();
        let mut space = [0; 100];
        for (parts, whole) in
            [(&[b"a".as_slice(), b"bc", b"def"][..], b"abcdef".as_slice()), (&[], b""), (&[b"x"], b"x")]
        {
            assert_eq!(send(bench, &ours, parts), Ok(whole.len() as u32));
            let count = peer.recv(&mut space).unwrap();
            assert_eq!(&space[..count], whole);
        }
        let too_long = vec![0; 70_000];
        let data = Segments::from(too_long);
        let op = Op::Net(NetOp::Send { socket: ours.clone(), data, more: false, zero_copy: false });
        assert_eq!(bench.run(op).result, Err(Errno::MSGSIZE));
        drop(peer);
        assert_eq!(send(bench, &ours, &[b"anybody?"]), Ok(8));
        // The error is reported by ICMP, which on loopback has arrived when the send returns.
        assert_eq!(bench.recv(&ours, RecvInto::Pool).result, Err(Errno::CONNREFUSED));
    });
}
