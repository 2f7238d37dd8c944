//! Connections over real engines: many concurrent ones, ends of streams, backpressure.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use super::common::{expect, listening, on_each_net, send};
use io::Errno;
use io::op::PeerAddr;
use rt::local::WaitGroup;
use rt::thread::{Setup, start};
use rt::{Either, Listener, Socket, Timer, counters, now, select, sleep_until, spawn};

const CONNECTIONS: usize = 200;

/// Returns bytes that differ for each connection and round.
fn pattern(connection: usize, round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 7 + connection * 31 + round * 131) as u8).collect()
}

/// Returns the received bytes on every connection until the listener is stopped.
async fn echo(mut listener: Listener) -> usize {
    let gauge = WaitGroup::new();
    let mut served = 0;
    while let Ok(fd) = listener.accept().await {
        served += 1;
        let counted = gauge.enter();
        spawn(async move {
            let _counted = counted;
            let mut socket = Socket::new(fd);
            let mut answer = Vec::new();
            while let Ok(Some(buf)) = socket.reader.recv().await {
                answer.clear();
                answer.extend_from_slice(&buf);
                drop(buf);
                answer = send(&mut socket, answer).await;
            }
        });
    }
    gauge.wait_empty().await;
    served
}

async fn client(address: PeerAddr, number: usize) {
    let mut socket = Socket::connect(address).await.unwrap();
    for (round, len) in [1, 100, 5000, 70_000].into_iter().enumerate() {
        let bytes = pattern(number, round, len);
        let (reader, writer) = socket.split();
        let segments = io::Segments::from(bytes.clone());
        // Both directions concurrently: the peer responds before it has read everything.
        let mut sending = std::pin::pin!(writer.send(segments, false));
        let mut got = Vec::new();
        let mut sent = false;
        while got.len() < len {
            let received = match sent {
                true => reader.recv().await,
                false => match select(reader.recv(), sending.as_mut()).await {
                    Either::Left(received) => received,
                    Either::Right((result, _)) => {
                        result.unwrap();
                        sent = true;
                        continue;
                    }
                },
            };
            got.extend_from_slice(&received.unwrap().expect("the echo goes on"));
        }
        if !sent {
            sending.await.0.unwrap();
        }
        assert!(got == bytes, "connection {number}, round {round}");
    }
    socket.writer.shutdown();
    assert!(socket.reader.recv().await.unwrap().is_none(), "the echo ends with us");
}

#[test]
fn many_connections_are_echoed() {
    on_each_net(|pair| {
        let (listener, address) = listening();
        let (stop, mut stopped) = rt::mailbox::channel::<()>(1);
        let setup = Setup { name: "echo".into(), cpus: vec![0], panic_hook: None };
        let build = move || io::build(pair.config());
        let worker = start(setup, super::common::PATIENCE, build, move |_| async move {
            let listener = Listener::new(listener, true);
            let stopper = listener.stopper();
            spawn(async move {
                assert_eq!(stopped.recv().await, None);
                stopper.stop();
            });
            (echo(listener).await, counters())
        });
        let worker = worker.unwrap();
        pair.run(async move {
            let gauge = WaitGroup::new();
            for number in 0..CONNECTIONS {
                let (counted, address) = (gauge.enter(), address.clone());
                spawn(async move {
                    client(address, number).await;
                    drop(counted);
                });
            }
            gauge.wait_empty().await;
            assert_eq!(counters().panics, 0);
        });
        drop(stop);
        let ((served, counters), drained) = worker.join().unwrap();
        assert_eq!(served, CONNECTIONS);
        assert_eq!((counters.panics, counters.unmatched), (0, 0));
        assert_eq!(drained, io::Drained::Clean);
    });
}

/// Returns a connected pair: our socket, and a peer that the test uses with blocking calls.
fn pair_of_sockets() -> (Socket, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    // A blocking read that never ends would block the whole runtime, including its timers.
    far.set_read_timeout(Some(super::common::PATIENCE)).unwrap();
    (Socket::new(near.into()), far)
}

#[test]
fn a_dropped_socket_is_closed_although_a_receive_is_armed() {
    on_each_net(|pair| {
        pair.run(async {
            let (mut socket, mut far) = pair_of_sockets();
            let timer = Timer::new();
            timer.set(now() + Duration::from_millis(2));
            assert!(timer.limit(socket.reader.recv()).await.is_err());
            drop(socket);
            while counters().operations > 0 {
                rt::yield_now().await;
            }
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
            let (mut socket, mut far) = pair_of_sockets();
            timer.expire_now();
            assert!(timer.limit(socket.reader.recv()).await.is_err());
            socket.close().await;
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
        });
    });
}

#[test]
fn bytes_survive_a_dropped_receive() {
    on_each_net(|pair| {
        pair.run(async {
            let (mut socket, mut far) = pair_of_sockets();
            let timer = Timer::new();
            timer.expire_now();
            assert!(timer.limit(socket.reader.recv()).await.is_err());
            far.write_all(b"abc").unwrap();
            sleep_until(now() + Duration::from_millis(2)).await;
            expect(&mut socket, b"abc").await;
            let buf = rt::pool().get(64 << 10).unwrap();
            timer.expire_now();
            assert!(timer.limit(socket.reader.recv_into(buf)).await.is_err());
            far.write_all(b"def").unwrap();
            expect(&mut socket, b"def").await;
            drop(far);
            assert!(socket.reader.recv().await.unwrap().is_none());
        });
    });
}

#[test]
fn a_flood_is_throttled_and_arrives_completely() {
    const BYTES: usize = 4 << 20;
    // More than the receive buffers of the engine.
    const HELD_MAX: u64 = 2 << 20;
    on_each_net(|pair| {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let flood = std::thread::spawn(move || far.write_all(&pattern(1, 1, BYTES)));
        pair.run(async {
            let mut socket = Socket::new(near.into());
            let wanted = pattern(1, 1, BYTES);
            let (mut place, mut paused) = (0, false);
            while let Some(buf) = socket.reader.recv().await.unwrap() {
                assert!(wanted[place..place + buf.len()] == *buf);
                place += buf.len();
                drop(buf);
                if place >= BYTES / 4 && !std::mem::replace(&mut paused, true) {
                    // A reader that pauses holds a few buffers, not all data of the peer.
                    sleep_until(now() + Duration::from_millis(20)).await;
                    let pool = rt::pool().counters();
                    let held = pool.bytes - pool.idle_bytes;
                    assert!(held < HELD_MAX, "{held} bytes are held for a reader that pauses");
                }
            }
            assert_eq!(place, BYTES);
        });
        flood.join().unwrap().unwrap();
    });
}

#[test]
fn a_bulk_receive_follows_a_stream() {
    on_each_net(|pair| {
        pair.run(async {
            let (mut socket, mut far) = pair_of_sockets();
            far.write_all(b"head").unwrap();
            expect(&mut socket, b"head").await;
            let wanted = pattern(2, 2, 100_000);
            let writer = {
                let wanted = wanted.clone();
                std::thread::spawn(move || far.write_all(&wanted))
            };
            let mut got = Vec::new();
            loop {
                let buf = rt::pool().get(64 << 10).unwrap();
                match socket.reader.recv_into(buf).await.unwrap() {
                    Some(buf) => got.extend_from_slice(&buf),
                    None => break,
                }
            }
            assert!(got == wanted);
            writer.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_send_to_a_peer_that_does_not_read_makes_no_progress() {
    on_each_net(|pair| {
        pair.run(async {
            let (mut socket, mut far) = pair_of_sockets();
            let timer = Timer::new();
            timer.set(now() + Duration::from_millis(5));
            let bytes = pattern(3, 3, 4 << 20);
            assert!(timer.limit(send(&mut socket, bytes)).await.is_err());
            let before = socket.writer.progress();
            far.read_exact(&mut vec![0; 64 << 10]).unwrap();
            let after = socket.writer.progress();
            assert!(after > before || after == 0, "{before} {after}");
            let segments = io::Segments::from(io::segments::Source::Static(b"more"));
            assert_eq!(socket.writer.send(segments, false).await.0, Err(Errno::CONNABORTED));
        });
    });
}

#[test]
fn addresses_and_options_of_a_connection_are_available() {
    on_each_net(|pair| {
        pair.run(async {
            let (listener, address) = listening();
            let mut listener = Listener::new(listener, false);
            assert_eq!(listener.local().unwrap(), address);
            let ours = Rc::new(Socket::connect(address.clone()).await.unwrap());
            let theirs = Socket::new(listener.accept().await.unwrap());
            assert_eq!(ours.peer().unwrap(), address);
            assert_eq!(theirs.peer().unwrap(), ours.local().unwrap());
            theirs.set_nodelay(true).unwrap();
            theirs.set_cork(true).unwrap();
            let (near, _far) = pair_of_sockets();
            assert_eq!(near.peer().unwrap(), PeerAddr::Unix(Default::default()));
            assert!(near.set_nodelay(true).is_err());
        });
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    on_each_net(|pair| {
        pair.run(async {
            let (listener, address) = listening();
            drop(listener);
            assert_eq!(Socket::connect(address).await.err(), Some(Errno::CONNREFUSED));
        });
    });
}
