//! Data over sockets: complete and in order, with every kind of receive and every kind of end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io::engine::EngineConfig;
use io::op::{Interest, PeerAddr, RecvInto};
use io::segments::Source;
use io::{Errno, Fd, NetOp, Op, Payload, Segments, Wait};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use testkit::TempDir;

use crate::harness::{Bench, PATIENCE, connection, on_each_pair, on_each_pair_with, pattern, received};

/// Receives until `len` bytes or the end of the stream have arrived.
fn recv_all(bench: &mut Bench, socket: &Fd, len: usize, mode: &str) -> Vec<u8> {
    let mut got = Vec::new();
    if mode == "stream" {
        let id = bench.submit(Op::Net(NetOp::Recv { socket: socket.clone(), into: RecvInto::Stream }));
        loop {
            let completion = bench.next(id);
            got.extend_from_slice(received(&completion.payload));
            if completion.result.unwrap() == 0 {
                assert!(!completion.more, "the end of the stream ends the operation");
                return got;
            }
            assert!(completion.more, "a stream goes on until its end");
        }
    }
    while got.len() < len {
        let into = match mode {
            "pool" => RecvInto::Pool,
            "large" => RecvInto::Large,
            _ => RecvInto::Owned(bench.engine.pool().get(16 << 10).unwrap()),
        };
        let completion = bench.recv(socket, into);
        assert!(completion.result.unwrap() > 0, "the peer has not closed yet");
        got.extend_from_slice(received(&completion.payload));
    }
    got
}

#[test]
fn bytes_arrive_completely_in_every_mode() {
    let bytes = pattern(700_001);
    on_each_pair(|bench| {
        for mode in ["owned", "pool", "large", "stream"] {
            let (ours, mut peer) = connection();
            let sent = bytes.clone();
            let sender = std::thread::spawn(move || {
                peer.write_all(&sent).unwrap();
                peer.shutdown(Shutdown::Write).unwrap();
                let mut echoed = Vec::new();
                peer.read_to_end(&mut echoed).unwrap();
                echoed
            });
            let got = recv_all(bench, &ours, bytes.len(), mode);
            assert!(got == bytes, "{mode}: {} bytes of {}", got.len(), bytes.len());
            bench.send_all(&ours, &got).unwrap();
            assert_eq!(
                bench.run(Op::Net(NetOp::Close { fd: ours.into_owned().unwrap() })).result,
                Ok(0),
                "{mode}"
            );
            assert!(sender.join().unwrap() == bytes, "{mode}: the echo differs");
        }
    });
}

/// A typical upstream response: a header section and 12 KiB of body are received in one receive instead of three.
#[test]
fn a_large_receive_reads_a_response_in_one_call() {
    let bytes = pattern(12 << 10);
    on_each_pair(|bench| {
        let (ours, mut peer) = connection();
        peer.write_all(&bytes).unwrap();
        let completion = bench.recv(&ours, RecvInto::Large);
        assert!(received(&completion.payload) == bytes, "all that was there");
    });
}

/// A body is received into the buffer that holds its first bytes.
#[test]
fn a_receive_into_a_buffer_with_content_appends() {
    on_each_pair(|bench| {
        let (ours, mut peer) = connection();
        let mut buf = bench.engine.pool().get(4096).unwrap();
        buf.append(b"abc");
        peer.write_all(b"def").unwrap();
        let completion = bench.recv(&ours, RecvInto::Owned(buf));
        assert_eq!(completion.result, Ok(3), "the result counts what is new");
        assert_eq!(received(&completion.payload), b"abcdef");
    });
}

#[test]
fn half_closed_connections_still_send() {
    on_each_pair(|bench| {
        let (ours, mut peer) = connection();
        peer.write_all(b"abc").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        loop {
            let completion = bench.recv(&ours, RecvInto::Pool);
            got.extend_from_slice(received(&completion.payload));
            if completion.result.unwrap() == 0 {
                break;
            }
        }
        assert_eq!(got, b"abc");
        assert_eq!(bench.recv(&ours, RecvInto::Pool).result, Ok(0), "an end stays one");
        bench.send_all(&ours, b"xyz").unwrap();
        let mut answer = [0; 3];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"xyz");
    });
}

#[test]
fn an_end_is_reported_with_the_receive_of_the_last_data() {
    on_each_pair(|bench| {
        for receives_first in [true, false] {
            for closes in [true, false] {
                let (ours, mut peer) = connection();
                let watch = Op::Net(NetOp::Poll { fd: ours.clone(), interest: Interest::HangUp });
                let receive = Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool });
                let (watch, receive) = if receives_first {
                    let receive = bench.submit(receive);
                    (bench.submit(watch), receive)
                } else {
                    (bench.submit(watch), bench.submit(receive))
                };
                peer.write_all(b"abc").unwrap();
                let completion = bench.next(receive);
                assert_eq!(received(&completion.payload), b"abc", "the data goes to the receive");
                // More data that no operation requests is not an end either.
                peer.write_all(b"def").unwrap();
                assert!(bench.next_within(watch, Duration::from_millis(20)).is_none());
                if closes {
                    drop(peer);
                } else {
                    peer.shutdown(Shutdown::Write).unwrap();
                }
                assert!(bench.next(watch).result.is_ok());
                let again = Op::Net(NetOp::Poll { fd: ours.clone(), interest: Interest::HangUp });
                assert!(bench.run(again).result.is_ok(), "an end stays one");
                assert_eq!(received(&bench.recv(&ours, RecvInto::Pool).payload), b"def");
            }
        }
    });
}

#[test]
fn a_waiting_receive_reports_the_end_and_a_reset() {
    on_each_pair(|bench| {
        for mode in 0..3 {
            for reset in [false, true] {
                let (ours, peer) = connection();
                let into = bench.destination(mode);
                let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into }));
                bench.turn(Duration::ZERO);
                if reset {
                    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
                }
                drop(peer);
                let completion = bench.next(id);
                let expected = if reset { Err(Errno::CONNRESET) } else { Ok(0) };
                assert_eq!((completion.result, completion.more), (expected, false));
                if reset {
                    assert!(bench.send_all(&ours, b"x").is_err(), "the peer is gone");
                }
            }
        }
    });
}

#[test]
fn a_send_to_a_peer_that_does_not_read_waits_and_can_be_cancelled() {
    on_each_pair(|bench| {
        let (ours, mut peer) = connection();
        let chunk: Arc<[u8]> = pattern(4 << 20).into();
        let mut accepted = 0;
        let waiting = loop {
            let data = Segments::from(Source::Shared(Arc::clone(&chunk)));
            let send = Op::Net(NetOp::Send { socket: ours.clone(), data, more: false, zero_copy: false });
            let id = bench.submit(send);
            match bench.next_within(id, Duration::from_millis(50)) {
                Some(completion) => accepted += completion.result.unwrap() as usize,
                None => break id,
            }
        };
        bench.engine.cancel(waiting);
        let completion = bench.next(waiting);
        assert!(matches!(completion.payload, Payload::Segments(_)));
        match completion.result {
            Ok(count) => accepted += count as usize,
            Err(error) => assert_eq!(error, Errno::CANCELED),
        }
        // Exactly the bytes that were reported as sent arrive.
        drop(ours);
        bench.assert_drains();
        let mut arrived = Vec::new();
        peer.read_to_end(&mut arrived).unwrap();
        assert_eq!(arrived.len(), accepted);
    });
}

#[test]
fn a_flood_does_not_starve_others() {
    on_each_pair(|bench| {
        let (flooded, mut flooder) = connection();
        let stop = Arc::new(AtomicBool::new(false));
        let flood = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let bytes = vec![7; 1 << 18];
                while !stop.load(Ordering::Relaxed) && flooder.write_all(&bytes).is_ok() {}
            })
        };
        let stream = bench.submit(Op::Net(NetOp::Recv { socket: flooded.clone(), into: RecvInto::Stream }));
        let (ours, mut peer) = connection();
        for round in 0..50 {
            let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
            peer.write_all(&[round]).unwrap();
            let mut batch = Vec::new();
            let answered = loop {
                let deadline = Instant::now() + PATIENCE;
                bench.engine.turn(Wait::Until(deadline), &mut batch).unwrap();
                assert!(Instant::now() < deadline, "there is always something to receive");
                let of_flood = batch.iter().filter(|completion| completion.id == stream).count();
                assert!(of_flood <= 64, "{of_flood} completions of one connection in a turn");
                if let Some(answer) = batch.iter().find(|completion| completion.id == id) {
                    break received(&answer.payload) == [round];
                }
                batch.clear();
            };
            assert!(answered);
        }
        stop.store(true, Ordering::Relaxed);
        bench.engine.abandon(stream);
        drop(flooded);
        // Closing resets the connection, since bytes are unread; after a shutdown, the sender would wait forever for
        // buffer space.
        bench.turn_until_idle();
        flood.join().unwrap();
    });
}

#[test]
fn receives_without_a_buffer_wait_for_one() {
    let few = |config: &mut EngineConfig| {
        config.recv_buffers = 16;
        config.pool_bytes_max = 5 << 20;
    };
    on_each_pair_with(few, |bench| {
        let bytes = pattern(400_000);
        let (ours, mut peer) = connection();
        let sent = bytes.clone();
        let sender = std::thread::spawn(move || {
            peer.write_all(&sent).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            peer
        });
        let mut hoarded: Vec<_> = std::iter::from_fn(|| bench.engine.pool().get(4096)).collect();
        let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Stream }));
        let mut held = Vec::new();
        while bench.engine.counters().recv_starved == 0 {
            bench.turn(Duration::from_millis(5));
            held.extend(bench.take_seen());
        }
        let mut got = Vec::new();
        hoarded.clear();
        loop {
            for completion in held.drain(..) {
                assert_eq!(completion.id, id);
                got.extend_from_slice(received(&completion.payload));
                if completion.result.unwrap() == 0 {
                    assert!(got == bytes, "{} bytes of {}", got.len(), bytes.len());
                    drop(sender.join().unwrap());
                    return;
                }
            }
            held.push(bench.next(id));
        }
    });
}

#[test]
fn connecting_succeeds_or_returns_the_reason() {
    on_each_pair(|bench| {
        let new_socket = |family: AddressFamily| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            Fd::from(rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap())
        };
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let ours = new_socket(AddressFamily::INET);
        let connect = Op::Net(NetOp::Connect { socket: ours.clone(), peer: PeerAddr::Inet(address) });
        assert_eq!(bench.run(connect).result, Ok(0));
        let (mut peer, _) = listener.accept().unwrap();
        let writable = Op::Net(NetOp::Poll { fd: ours.clone(), interest: Interest::Writable });
        assert!(bench.run(writable).result.unwrap() & libc::POLLOUT as u32 != 0);
        bench.send_all(&ours, b"hello").unwrap();
        let mut got = [0; 5];
        peer.read_exact(&mut got).unwrap();
        drop(listener);
        let refused = Op::Net(NetOp::Connect {
            socket: new_socket(AddressFamily::INET),
            peer: PeerAddr::Inet(address),
        });
        assert_eq!(bench.run(refused).result, Err(Errno::CONNREFUSED));
        let dir = TempDir::new("io");
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let ours = new_socket(AddressFamily::UNIX);
        let connect = Op::Net(NetOp::Connect { socket: ours.clone(), peer: PeerAddr::Unix(path) });
        assert_eq!(bench.run(connect).result, Ok(0));
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"unix").unwrap();
        let readable = Op::Net(NetOp::Poll { fd: ours.clone(), interest: Interest::Readable });
        assert!(bench.run(readable).result.unwrap() & libc::POLLIN as u32 != 0);
        assert_eq!(received(&bench.recv(&ours, RecvInto::Pool).payload), b"unix");
        let (socket, peer) = (new_socket(AddressFamily::UNIX), PeerAddr::Unix("x".repeat(300).into()));
        assert_eq!(bench.run(Op::Net(NetOp::Connect { socket, peer })).result, Err(Errno::NAMETOOLONG));
    });
}
