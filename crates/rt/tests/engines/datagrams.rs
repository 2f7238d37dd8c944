//! Datagrams over real engines: a response, no response, and a receive that a timer ends.

use std::net::UdpSocket;
use std::time::Duration;

use io::segments::Source;
use io::{Buf, Errno, Segments};
use rt::net::Datagram;
use rt::{ConnectOptions, Timer, now};

use super::common::{PATIENCE, on_each_net};

fn peer() -> UdpSocket {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer
}

fn buf() -> Buf {
    rt::pool().get(4096).unwrap()
}

async fn send(socket: &Datagram, bytes: &'static [u8]) {
    let data = Segments::from(Source::Static(bytes));
    assert_eq!(socket.send(data).await.0, Ok(()));
}

#[test]
fn a_datagram_query_gets_its_response() {
    on_each_net(|pair| {
        pair.run(async {
            let peer = peer();
            let mut socket =
                Datagram::connect(peer.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
            for (question, answers) in [(&b"name?"[..], [&b"address"[..], b""]), (b"", [b"x", b"yy"])] {
                send(&socket, question).await;
                let mut space = [0; 100];
                let (count, from) = peer.recv_from(&mut space).unwrap();
                assert_eq!(&space[..count], question);
                assert_eq!(socket.local().unwrap(), io::op::PeerAddr::Inet(from));
                for answer in answers {
                    peer.send_to(answer, from).unwrap();
                }
                // A datagram from another sender is not received.
                UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"forged", from).unwrap();
                for answer in answers {
                    assert_eq!(&*socket.recv(buf()).await.unwrap(), answer);
                }
            }
        });
    });
}

#[test]
fn a_dropped_receive_loses_no_datagram() {
    on_each_net(|pair| {
        pair.run(async {
            let peer = peer();
            let mut socket =
                Datagram::connect(peer.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
            send(&socket, b"?").await;
            let from = peer.recv_from(&mut [0; 10]).unwrap().1;
            for answer in [&b"late"[..], b"later"] {
                let timer = Timer::new();
                timer.set(now() + Duration::from_millis(5));
                assert!(timer.limit(socket.recv(buf())).await.is_err(), "silence");
                peer.send_to(answer, from).unwrap();
                assert_eq!(&*socket.recv(buf()).await.unwrap(), answer);
            }
            // A receive is in flight when the socket is dropped.
            let timer = Timer::new();
            timer.expire_now();
            assert!(timer.limit(socket.recv(buf())).await.is_err());
        });
    });
}

#[test]
fn an_unreachable_peer_fails_only_one_call() {
    on_each_net(|pair| {
        pair.run(async {
            let peer = peer();
            let address = peer.local_addr().unwrap();
            drop(peer);
            let mut socket = Datagram::connect(address, &ConnectOptions::default()).unwrap();
            send(&socket, b"?").await;
            assert_eq!(socket.recv(buf()).await.unwrap_err(), Errno::CONNREFUSED);
            send(&socket, b"?").await;
            assert_eq!(socket.recv(buf()).await.unwrap_err(), Errno::CONNREFUSED);
        });
    });
}
