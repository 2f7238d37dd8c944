//! Tests of sockets and listeners: backpressure, drops at every point, the order of closing.

use std::io::Read;
use std::os::unix::net::UnixListener;

use io::{Errno, Payload, Segments};

use super::fake::Fake;
use super::{pair, run, settle, start_and_drop, watch};
use crate::net::Appended;
use crate::{Listener, Socket, counters};

fn text(text: &'static [u8]) -> Segments {
    Segments::from(io::segments::Source::Static(text))
}

/// A `recv` that is dropped while it waits.
async fn expire_recv(socket: &mut Socket) {
    settle().await;
    start_and_drop(socket.reader.recv()).await;
}

#[test]
fn one_armed_receive_serves_many_calls() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        expire_recv(&mut socket).await;
        let recv = fake.only("Recv");
        fake.progress(recv, Ok(1), fake.bytes(b"a"));
        fake.progress(recv, Ok(1), fake.bytes(b"b"));
        assert!(socket.reader.try_recv().is_none(), "not before the next turn");
        settle().await;
        assert_eq!(&*socket.reader.try_recv().unwrap().unwrap().unwrap(), b"a");
        assert_eq!(&*socket.reader.recv().await.unwrap().unwrap(), b"b");
        assert!(socket.reader.try_recv().is_none());
        fake.complete(recv, Ok(0), Payload::None);
        assert!(socket.reader.recv().await.unwrap().is_none());
        assert!(socket.reader.recv().await.unwrap().is_none(), "the end stays the end");
        assert_eq!(counters().engine.submitted, 1);
    });
}

#[test]
fn a_full_queue_stops_the_receive_and_loses_nothing() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        expire_recv(&mut socket).await;
        let recv = fake.only("Recv");
        for byte in [b"0", b"1", b"2", b"3", b"4"] {
            fake.progress(recv, Ok(1), fake.bytes(byte));
        }
        settle().await;
        assert_eq!(fake.cancelled(), [recv], "once, at the fourth buffer");
        for byte in b'0'..=b'4' {
            assert_eq!(&*socket.reader.recv().await.unwrap().unwrap(), [byte]);
        }
        expire_recv(&mut socket).await;
        assert_ne!(fake.only("Recv"), recv, "armed anew once the queue is empty");
    });
}

#[test]
fn receives_that_would_block_wait_for_readiness() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        expire_recv(&mut socket).await;
        fake.complete(fake.only("Recv"), Err(Errno::AGAIN), Payload::None);
        expire_recv(&mut socket).await;
        fake.complete(fake.only("Poll"), Ok(1), Payload::None);
        expire_recv(&mut socket).await;
        fake.complete(fake.only("Recv"), Err(Errno::INTR), Payload::None);
        expire_recv(&mut socket).await;
        fake.complete(fake.only("Recv"), Err(Errno::CONNRESET), Payload::None);
        assert_eq!(socket.reader.recv().await.unwrap_err(), Errno::CONNRESET);
    });
}

#[test]
fn a_bulk_receive_returns_received_bytes_and_then_uses_its_buffer() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        expire_recv(&mut socket).await;
        let stream = fake.only("Recv");
        fake.progress(stream, Ok(1), fake.bytes(b"a"));
        settle().await;
        let bulk = || crate::pool().get(64 << 10).unwrap();
        assert_eq!(&*socket.reader.recv_into(bulk()).await.unwrap().unwrap(), b"a");
        let received =
            watch(async move { socket.reader.recv_into(bulk()).await.unwrap().unwrap().capacity() });
        settle().await;
        assert_eq!(fake.cancelled(), [stream]);
        fake.end_with_memory("Recv", Ok(5)).await;
        assert_eq!(received.take(), Some(64 << 10));
    });
}

#[test]
fn an_appending_receive_preserves_the_existing_content() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        expire_recv(&mut socket).await;
        let stream = fake.only("Recv");
        fake.progress(stream, Ok(1), fake.bytes(b"x"));
        settle().await;
        let mut held = crate::pool().get(4096).unwrap();
        held.append(b"ab");
        let Ok(Appended::Separate(held, early)) = socket.reader.recv_append(held).await else {
            panic!("x came first")
        };
        assert_eq!((&*held, &*early), (&b"ab"[..], &b"x"[..]));
        let received = watch(async move {
            match socket.reader.recv_append(held).await {
                Ok(Appended::Grown(buf)) => buf.to_vec(),
                other => panic!("{other:?}"),
            }
        });
        settle().await;
        assert_eq!(fake.cancelled(), [stream]);
        // A receive without bytes returns the buffer, and the next receive uses it.
        fake.give_back(fake.only("Recv"), Err(Errno::INTR));
        fake.end_with_memory("Recv", Ok(1)).await;
        assert_eq!(
            received.take().as_deref(),
            Some(&b"ab"[..]),
            "its engine changes nothing of what it holds"
        );
    });
}

#[test]
fn a_send_continues_until_all_is_sent() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        let sent = watch(async move { socket.writer.send(text(b"abcdef"), false).await.0 });
        fake.end_with_memory("Send", Ok(2)).await;
        fake.end_with_memory("Send", Err(Errno::INTR)).await;
        fake.end_with_memory("Send", Err(Errno::AGAIN)).await;
        fake.end("Poll", Ok(4), Payload::None).await;
        assert_eq!(sent.take(), None);
        fake.end_with_memory("Send", Ok(4)).await;
        assert_eq!(sent.take(), Some(Ok(())));
    });
}

#[test]
fn a_zero_copy_send_ends_with_its_count_and_retains_its_bytes() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        socket.writer.set_zero_copy(Some(4));
        let sent = watch(async move {
            let whole = socket.writer.send(text(b"abcd"), false).await;
            (whole.0, whole.1.is_empty(), socket)
        });
        settle().await;
        let send = fake.only("Send");
        fake.progress(send, Ok(4), Payload::None);
        settle().await;
        let (result, empty, mut socket) = sent.take().unwrap();
        assert_eq!((result, empty), (Ok(()), true));
        assert_eq!(fake.only("Send"), send, "the bytes stay with the engine");
        fake.give_back(send, Ok(0));
        // A short send continues when its segments are returned.
        let rest = watch(async move { socket.writer.send(text(b"abcdef"), false).await.0 });
        settle().await;
        let send = fake.only("Send");
        fake.progress(send, Ok(1), Payload::None);
        settle().await;
        assert_eq!(fake.only("Send"), send);
        fake.give_back(send, Ok(0));
        settle().await;
        let send = fake.only("Send");
        fake.progress(send, Ok(5), Payload::None);
        settle().await;
        assert_eq!(rest.take(), Some(Ok(())));
        fake.give_back(send, Ok(0));
        settle().await;
        assert_eq!(counters().operations, 0);
    });
}

#[test]
fn nothing_is_sent_after_a_dropped_send() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        start_and_drop(socket.writer.send(text(b"abc"), false)).await;
        assert_eq!(fake.abandoned(), 1);
        assert_eq!(socket.writer.send(text(b"def"), false).await.0, Err(Errno::CONNABORTED));
        let writable = std::future::poll_fn(|context| socket.writer.poll_writable(context)).await;
        assert_eq!(writable, Err(Errno::CONNABORTED));
    });
}

#[test]
fn a_socket_is_closed_after_its_receive_has_ended() {
    run(|fake| async move {
        fake.set_obeys(false);
        let (near, mut far) = pair();
        far.set_nonblocking(true).unwrap();
        let mut socket = Socket::new(near);
        expire_recv(&mut socket).await;
        let recv = fake.only("Recv");
        drop(socket);
        settle().await;
        assert_eq!(fake.cancelled(), [recv]);
        assert_eq!(counters().engine.submitted, 1, "no close while the receive is in flight");
        assert_eq!(far.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        // Bytes that were received in between are dropped, and their buffer is returned.
        fake.progress(recv, Ok(1), fake.bytes(b"x"));
        fake.complete(recv, Err(Errno::CANCELED), Payload::None);
        settle().await;
        assert_eq!(counters().engine.submitted, 2);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        assert_eq!(counters().operations, 0);
    });
}

#[test]
fn close_waits_for_the_end_and_can_be_dropped() {
    run(|fake| async move {
        let (near, mut far) = pair();
        let mut socket = Socket::new(near);
        expire_recv(&mut socket).await;
        socket.close().await;
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        let (near, mut far) = pair();
        fake.set_obeys(false);
        let mut socket = Socket::new(near);
        expire_recv(&mut socket).await;
        start_and_drop(socket.close()).await;
        fake.end("Recv", Err(Errno::CANCELED), Payload::None).await;
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    });
}

fn listening() -> (Listener, std::path::PathBuf) {
    let name = format!("ringroad-rt-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    (Listener::new(listener.into(), false), path)
}

fn accepted(fake: &Fake) {
    fake.complete(fake.only("Accept"), Ok(0), Payload::Accepted(pair().0));
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    run(|fake| async move {
        let (mut listener, path) = listening();
        start_and_drop(listener.accept()).await;
        accepted(&fake);
        listener.accept().await.unwrap();
        start_and_drop(listener.accept()).await;
        fake.complete(fake.only("Accept"), Err(Errno::MFILE), Payload::None);
        assert_eq!(listener.accept().await.unwrap_err(), Errno::MFILE, "the caller backs off");
        start_and_drop(listener.accept()).await;
        drop(listener);
        assert_eq!(fake.abandoned(), 1);
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_stopped_listener_returns_already_accepted_connections() {
    run(|fake| async move {
        fake.set_obeys(false);
        let (mut listener, path) = listening();
        let stopper = listener.stopper();
        let ended = watch(async move {
            let first = listener.accept().await.is_ok();
            (first, listener.accept().await.unwrap_err(), listener)
        });
        settle().await;
        stopper.stop();
        settle().await;
        assert!(ended.take().is_none(), "the accept has not ended yet");
        accepted(&fake);
        settle().await;
        let (first, error, listener) = ended.take().unwrap();
        assert_eq!((first, error), (true, Errno::CANCELED));
        assert!(listener.accept_now().unwrap().is_none());
        let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert!(listener.accept_now().unwrap().is_some());
        drop(client);
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_stopper_does_not_keep_the_socket_open() {
    run(|_| async move {
        let (listener, path) = listening();
        let stopper = listener.stopper();
        drop(listener);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_err(), "nothing listens");
        stopper.stop();
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn readiness_accepts_no_connection_and_an_armed_accept_can_be_stopped() {
    run(|fake| async move {
        let (mut listener, path) = listening();
        let ready = watch(async move {
            listener.ready().await;
            listener
        });
        fake.end("Poll", Ok(1), Payload::None).await;
        let mut listener = ready.take().unwrap();
        assert!(fake.flying().is_empty(), "nothing is accepted before the caller has made room");
        listener.set_multishot(true);
        start_and_drop(listener.accept()).await;
        let accept = fake.only("Accept");
        listener.set_multishot(false);
        settle().await;
        assert_eq!(fake.cancelled(), [accept], "it would take all that the kernel has");
        std::fs::remove_file(path).unwrap();
    });
}
