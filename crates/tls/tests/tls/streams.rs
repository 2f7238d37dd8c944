//! Streams over real sockets: bodies of many records in both directions, an exhausted buffer pool, all kinds of
//! closing.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::{TLS12, TLS13, client, identity, keys, pattern, server};
use io::engine::{EngineConfig, NetKind};
use io::segments::Source;
use io::{Drained, Segments};
use rt::{Runtime, Socket};
use tls::handshake::{accept, connect, greet};
use tls::server::Versions;
use tls::signing::KeyKind;
use tls::turns::{STEPS_PER_TURN_MAX, Turns};
use tls::{Identity, Stream};

const PATIENCE: Duration = Duration::from_secs(180);

/// Runs a test with each network engine that this machine supports.
fn on_each_net<F: Future<Output = ()>>(pool_bytes_max: usize, test: impl Fn() -> F) {
    for net in [NetKind::Uring, NetKind::Epoll] {
        let config = EngineConfig {
            net,
            ring_entries: 256,
            recv_buffers: 64,
            pool_bytes_max,
            ..EngineConfig::default()
        };
        let Ok(engine) = io::build(config) else { continue };
        let mut runtime = Runtime::new(engine);
        runtime.block_on(async {
            let timer = rt::Timer::new();
            timer.set(rt::now() + PATIENCE);
            timer.limit(test()).await.expect("the test ends in time");
        });
        assert_eq!(runtime.shutdown(Instant::now() + PATIENCE), Drained::Clean, "{net:?}");
    }
}

/// Returns two connected sockets.
fn sockets() -> (Socket, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    let socket = |stream: TcpStream| {
        stream.set_nonblocking(true).unwrap();
        Socket::new(OwnedFd::from(stream))
    };
    (socket(near), socket(far))
}

/// Returns a client and its server after their handshake.
async fn streams(versions: Versions) -> (Stream, Stream) {
    let (mut near, mut far) = sockets();
    let keys = keys();
    let (client, server) = (client(versions), server(|settings| settings.tickets = Some(keys)));
    // The client sends first, because the end of its TLS 1.3 handshake is sent together with its first data.
    let there = async {
        let mut near = connect(&mut near, &client, "example.org").await.unwrap().over(near);
        send(&mut near, b"first").await;
        near
    };
    let here = async {
        let mut received = Vec::new();
        let hello = greet(&mut far, &mut received).await.unwrap();
        assert_eq!(hello.name.as_deref(), Some("example.org"));
        let turns = Turns::default();
        let mut far = accept(&mut far, &server, &hello, received, &turns).await.unwrap().over(far);
        assert_eq!(&far.recv().await.unwrap().unwrap()[..], b"first");
        far
    };
    rt::join(there, here).await
}

/// Runs a handshake whose client has to send a second ClientHello, while many other handshakes are in flight. Returns the number of
/// steps on other threads.
async fn offloaded_with_retry(identity: Identity) -> u64 {
    let (mut near, mut far) = sockets();
    let client = client(TLS13);
    let server = server(|settings| {
        settings.identities = vec![identity];
        // The client sends no key share for this group.
        settings.groups = tls::groups::parse("P-384").unwrap().supported;
    });
    let (turns, is_done) = (Turns::default(), Rc::new(Cell::new(false)));
    for _ in 0..4 * STEPS_PER_TURN_MAX {
        let (turns, is_done) = (turns.clone(), Rc::clone(&is_done));
        rt::spawn(async move {
            while !is_done.get() {
                turns.run(|| {}).await;
            }
        });
    }
    rt::yield_now().await;
    let there = async {
        let mut near = connect(&mut near, &client, "example.org").await.unwrap().over(near);
        send(&mut near, b"first").await;
        near
    };
    let here = async {
        let mut received = Vec::new();
        let hello = greet(&mut far, &mut received).await.unwrap();
        let handshaken = accept(&mut far, &server, &hello, received, &turns).await.unwrap();
        assert_eq!(handshaken.with_session(|session| session.curve()), Some("secp384r1"));
    };
    let _ = rt::join(there, here).await;
    is_done.set(true);
    turns.take_counts().offloaded
}

#[test]
fn the_signature_after_a_hello_retry_request_is_made_on_another_thread() {
    let pem = tls::issue::self_signed_pem(&[], KeyKind::Rsa2048, std::time::SystemTime::now()).unwrap();
    let rsa = Identity::from_pem(pem.as_bytes(), pem.as_bytes(), &[]).unwrap();
    on_each_net(1 << 20, || async {
        assert_eq!(offloaded_with_retry(rsa.clone()).await, 2);
        assert_eq!(offloaded_with_retry(identity()).await, 0, "ECDSA");
    });
}

async fn send(stream: &mut Stream, bytes: &[u8]) {
    let mut data = Segments::from(bytes.to_vec());
    poll_fn(|context| stream.poll_send(context, &mut data, false)).await.unwrap();
    assert!(data.is_empty() && !stream.has_unsent());
}

/// Sends and receives concurrently, until as many bytes have arrived as were sent.
async fn exchange(stream: &mut Stream, bytes: &[u8]) {
    let mut data = Segments::new();
    for part in bytes.chunks(1 << 20) {
        data.push(Source::Vec(part.to_vec()));
    }
    let (mut reader, mut writer) = stream.split();
    let mut received = Vec::new();
    let receive = async {
        while received.len() < bytes.len() {
            let buf = poll_fn(|context| reader.poll_recv(context)).await.unwrap().unwrap();
            received.extend_from_slice(&buf);
        }
    };
    let send = poll_fn(|context| writer.poll_send(context, &mut data, false));
    let ((), sent) = rt::join(receive, send).await;
    sent.unwrap();
    assert!(received == bytes);
}

#[test]
fn ten_mebibytes_are_sent_in_both_directions_concurrently() {
    on_each_net(64 << 20, || async {
        for versions in [TLS12, TLS13] {
            let (mut near, mut far) = streams(versions).await;
            let data = pattern(10 << 20);
            rt::join(exchange(&mut near, &data), exchange(&mut far, &data)).await;
        }
    });
}

#[test]
fn streams_continue_while_the_pool_is_exhausted() {
    on_each_net(4 << 20, || async {
        for versions in [TLS12, TLS13] {
            let (mut near, mut far) = streams(versions).await;
            let mut held = Vec::new();
            for bytes in [64 << 10, 16 << 10, 4 << 10, 1] {
                while let Some(buf) = rt::try_buffer(bytes) {
                    held.push(buf);
                }
            }
            // A small message after the tickets, then more bytes than the socket's send buffer accepts.
            let letters = async {
                send(&mut far, b"short").await;
                send(&mut far, &pattern(300_000)).await;
            };
            let give_back = async {
                for _ in 0..100 {
                    rt::yield_now().await;
                }
                drop(held);
            };
            let receive = async {
                let mut received = Vec::new();
                while received.len() < 300_005 {
                    received.extend_from_slice(&near.recv().await.unwrap().unwrap());
                }
                assert!(received.starts_with(b"short") && received[5..] == pattern(300_000));
            };
            rt::join(rt::join(letters, give_back), receive).await;
        }
    });
}

#[test]
fn small_data_is_encrypted_without_a_pool_buffer() {
    on_each_net(4 << 20, || async {
        let (mut near, mut far) = streams(TLS13).await;
        let mut held = Vec::new();
        for bytes in [64 << 10, 16 << 10, 4 << 10, 1] {
            while let Some(buf) = rt::try_buffer(bytes) {
                held.push(buf);
            }
        }
        // Tickets are pending in the session; they need more room than the data.
        let mut data = Segments::from(b"x".to_vec());
        far.send_now(&mut data, false).unwrap();
        assert!(data.is_empty());
        drop(held);
        assert_eq!(&near.recv().await.unwrap().unwrap()[..], b"x");
    });
}

#[test]
fn many_small_pieces_arrive_in_order() {
    on_each_net(64 << 20, || async {
        let (mut near, mut far) = streams(TLS13).await;
        let bytes = pattern(100_000);
        let (mut data, mut rest, mut number) = (Segments::new(), &bytes[..], 0);
        while !rest.is_empty() {
            number += 1;
            let (part, behind) = rest.split_at((number * 9_777 % 20_011 + 1).min(rest.len()));
            data.push(Source::Vec(part.to_vec()));
            rest = behind;
        }
        let receive = async {
            let mut received = Vec::new();
            while received.len() < bytes.len() {
                received.extend_from_slice(&near.recv().await.unwrap().unwrap());
            }
            assert!(received == bytes);
        };
        let send = poll_fn(|context| far.poll_send(context, &mut data, false));
        let ((), sent) = rt::join(receive, send).await;
        sent.unwrap();
    });
}

#[test]
fn a_close_with_or_without_close_notify_ends_the_stream() {
    on_each_net(64 << 20, || async {
        for sends_close_notify in [false, true] {
            let (mut near, mut far) = streams(TLS13).await;
            send(&mut far, b"last").await;
            if sends_close_notify {
                far.shutdown_write();
            } else {
                far.socket_mut().writer.shutdown();
            }
            assert_eq!(&near.recv().await.unwrap().unwrap()[..], b"last");
            assert!(near.recv().await.unwrap().is_none());
            assert!(near.recv().await.unwrap().is_none(), "it stays at its end");
            assert_eq!(near.with_session(tls::Session::peer_closed), sends_close_notify);
            assert!(near.failure().is_none());
        }
    });
}

#[test]
fn a_damaged_record_is_an_error_and_sends_an_alert() {
    on_each_net(64 << 20, || async {
        let (mut near, mut far) = streams(TLS13).await;
        let mut bytes = Segments::from([&[23, 3, 3, 0, 30][..], &[7; 30]].concat());
        near.socket_mut().writer.send_now(&mut bytes, false).unwrap();
        assert!(far.recv().await.is_err());
        assert!(far.recv().await.is_err() && far.failure().is_some());
        far.send_close_notify();
        assert!(near.recv().await.is_err());
        assert!(near.failure().unwrap().is_alert());
    });
}

#[test]
fn a_writer_and_a_handle_send_concurrently_with_the_reader() {
    on_each_net(64 << 20, || async {
        let (mut near, mut far) = streams(TLS13).await;
        let handle = far.handle();
        handle.send(Segments::from(b"handle".to_vec())).await.unwrap();
        let mut writer = far.writer();
        let bytes = pattern(1 << 20);
        let mut data = Segments::from(bytes.clone());
        let write = async {
            poll_fn(|context| writer.poll_send(context, &mut data, false)).await.unwrap();
            assert_eq!(writer.sent(), 1 << 20);
        };
        let read = async { assert_eq!(&far.recv().await.unwrap().unwrap()[..], b"beside") };
        let peer = async {
            send(&mut near, b"beside").await;
            let mut received = Vec::new();
            while received.len() < 6 + bytes.len() {
                received.extend_from_slice(&near.recv().await.unwrap().unwrap());
            }
            assert!(received.starts_with(b"handle") && received[6..] == bytes[..]);
        };
        rt::join(rt::join(write, read), peer).await;
        drop(writer);
        send(&mut far, b"owner").await;
        assert_eq!(&near.recv().await.unwrap().unwrap()[..], b"owner");
    });
}

#[test]
fn a_dropped_send_leaves_no_gap_in_the_records() {
    on_each_net(64 << 20, || async {
        let (mut near, mut far) = streams(TLS13).await;
        let bytes = pattern(8 << 20);
        let mut data = Segments::from(bytes.clone());
        // The peer does not read, so the send stays incomplete.
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            let sent = far.poll_send(context, &mut data, false);
            assert!(sent.is_pending());
            if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        assert!(far.has_unsent());
        let receive = async {
            let mut received = Vec::new();
            while received.len() < bytes.len() {
                received.extend_from_slice(&near.recv().await.unwrap().unwrap());
            }
            assert!(received == bytes);
        };
        let send = poll_fn(|context| far.poll_send(context, &mut data, false));
        let ((), sent) = rt::join(receive, send).await;
        sent.unwrap();
        assert!(!far.has_unsent());
    });
}

#[test]
fn dropped_streams_leave_nothing_in_flight() {
    on_each_net(64 << 20, || async {
        let (near, mut far) = streams(TLS13).await;
        let mut data = Segments::from(pattern(8 << 20));
        poll_fn(|context| {
            let _ = far.poll_send(context, &mut data, false);
            Poll::Ready(())
        })
        .await;
        drop(far);
        drop(near);
    });
}
