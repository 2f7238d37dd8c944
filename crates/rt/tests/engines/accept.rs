//! Listeners over real engines: the distribution of connections, and stopping a listener.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use io::op::PeerAddr;
use rt::thread::{Setup, start};
use rt::{Listener, Socket, now, sleep_until};

use super::common::{PATIENCE, listening, on_each_net};

const THREADS: usize = 4;
const CONNECTIONS: usize = 400;

/// Maximum number of connections of one thread: twice its share, because a busy machine delays some threads. If the
/// kernel always woke the same waiter, that thread would accept nearly all.
const FAIR_MAX: usize = CONNECTIONS / THREADS * 2;

/// Accepts until all senders of `stopped` are dropped; returns the number of connections.
async fn count_accepts(fd: OwnedFd, mut stopped: rt::mailbox::Receiver<()>) -> usize {
    let mut listener = Listener::new(fd, false);
    let stopper = listener.stopper();
    rt::spawn(async move {
        stopped.recv().await;
        stopper.stop();
    });
    let mut count = 0;
    while let Ok(fd) = listener.accept().await {
        count += 1;
        drop(Socket::new(fd));
    }
    count
}

#[test]
fn threads_share_a_listener_evenly() {
    on_each_net(|pair| {
        let (listener, address) = listening();
        let mut stops = Vec::new();
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let (stop, stopped) = rt::mailbox::channel(1);
                stops.push(stop);
                let setup = Setup { name: format!("accept {number}"), ..Setup::default() };
                let shared = listener.try_clone().unwrap();
                let main = move |_| count_accepts(shared, stopped);
                start(setup, PATIENCE, move || io::build(pair.config()), main).unwrap()
            })
            .collect();
        pair.run(async {
            for _ in 0..CONNECTIONS {
                // One at a time, with pauses: a thread accepts all connections of a burst, and all connections that
                // arrive while the others are not scheduled.
                let due = now() + Duration::from_millis(1);
                let mut socket = Socket::connect(address.clone()).await.unwrap();
                assert!(socket.reader.recv().await.unwrap().is_none(), "it was accepted and closed");
                drop(socket);
                sleep_until(due).await;
            }
        });
        drop(stops);
        let counts: Vec<usize> = workers.into_iter().map(|worker| worker.join().unwrap().0).collect();
        assert_eq!(counts.iter().sum::<usize>(), CONNECTIONS, "{counts:?}");
        assert!(counts.iter().all(|count| *count <= FAIR_MAX), "{:?}: {counts:?}", pair.names);
    });
}

#[test]
fn a_stopping_listener_returns_pending_connections() {
    on_each_net(|pair| {
        pair.run(async {
            let (fd, address) = listening();
            let mut listener = Listener::new(fd, true);
            let PeerAddr::Inet(address) = address else { unreachable!("it listens on loopback") };
            let first = TcpStream::connect(address).unwrap();
            drop(listener.accept().await.unwrap());
            let clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
            listener.stop();
            let mut count = 0;
            while listener.accept().await.is_ok() {
                count += 1;
            }
            while listener.accept_now().unwrap().is_some() {
                count += 1;
            }
            assert_eq!(count, clients.len());
            drop(first);
        });
    });
}
