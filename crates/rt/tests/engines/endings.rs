//! Thousands of peers that send some bytes and close immediately: every receive ends.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::Duration;

use rt::local::WaitGroup;
use rt::{Listener, Socket, Timer, now, spawn};

use super::common::{Pair, listening, on_each_net};

/// Number of peer threads, and of connections that each makes.
const THREADS: usize = 4;
const CONNECTIONS: usize = 1000;
/// Time limit for all connections; a connection without a reported end lasts that long.
const LONGEST: Duration = Duration::from_secs(10);

/// Makes one connection: a few bytes in one or two pieces, and the end.
fn visit(mut peer: impl Write, number: usize, leave: impl FnOnce()) {
    let _ = peer.write_all(b"GET / ");
    if number.is_multiple_of(3) {
        std::thread::yield_now();
        let _ = peer.write_all(b"HTTP/1.1\r\n");
    }
    if number.is_multiple_of(2) {
        leave();
    }
}

fn over_tcp(address: std::net::SocketAddr) {
    for number in 0..CONNECTIONS {
        let peer = TcpStream::connect(address).unwrap();
        let reset = || rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        visit(&peer, number, reset);
    }
}

fn over_unix(path: &std::path::Path) {
    for number in 0..CONNECTIONS {
        let peer = UnixStream::connect(path).unwrap();
        visit(&peer, number, || peer.shutdown(std::net::Shutdown::Write).unwrap());
    }
}

/// Receives from `total` connections; returns how many had no reported end after the time limit.
fn lost(pair: Pair, listener: std::os::fd::OwnedFd, total: usize) -> usize {
    pair.run(async move {
        let mut listener = Listener::new(listener, true);
        let (gauge, ended) = (WaitGroup::new(), Rc::new(std::cell::Cell::new(0)));
        let until = now() + LONGEST;
        for _ in 0..total {
            let (counted, ended) = (gauge.enter(), Rc::clone(&ended));
            let fd = listener.accept().await.unwrap();
            spawn(async move {
                let _counted = counted;
                let mut socket = Socket::new(fd);
                let timer = Timer::new();
                timer.set(until);
                let all = async { while let Ok(Some(_)) = socket.reader.recv().await {} };
                let is_over = timer.limit(all).await.is_ok();
                ended.set(ended.get() + usize::from(is_over));
            });
        }
        gauge.wait_empty().await;
        total - ended.get()
    })
}

#[ignore = "takes seconds, and with a loss twenty"]
#[test]
fn peers_that_close_immediately_leave_no_receive_behind() {
    on_each_net(|pair| {
        let total = THREADS * CONNECTIONS;
        let (listener, address) = listening();
        let io::op::PeerAddr::Inet(address) = address else { unreachable!("it listens on loopback") };
        let peers: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(move || over_tcp(address))).collect();
        assert_eq!(lost(pair, listener, total), 0, "{:?} over tcp", pair.names);
        peers.into_iter().for_each(|peer| peer.join().unwrap());

        let path = std::env::temp_dir().join(format!("ringroad-endings-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let peers: Vec<_> = (0..THREADS)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || over_unix(&path))
            })
            .collect();
        assert_eq!(lost(pair, listener.into(), total), 0, "{:?} over unix", pair.names);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        std::fs::remove_file(&path).unwrap();
    });
}
