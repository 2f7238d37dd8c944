//! A relay of datagrams between clients and a server: it loses some, delays some behind their successors, and loses those that are too long for the route.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest datagram of a route with the smallest MTU that QUIC permits (RFC 9000 section 14).
pub(crate) const SMALLEST: usize = 1200;

/// What happens to datagrams in each direction.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    /// Of a hundred datagrams, this number is lost.
    pub(crate) loss: u32,
    /// Of a hundred datagrams, this number arrives after its successor.
    pub(crate) late: u32,
    /// Longer datagrams are lost.
    pub(crate) longest: usize,
    /// After each such number of datagrams the next ones of a client have another port, as behind a NAT that has forgotten it.
    pub(crate) port_after: usize,
}

impl Route {
    pub(crate) const PERFECT: Route = Route { loss: 0, late: 0, longest: usize::MAX, port_after: usize::MAX };
}

/// Numbers of datagrams that did not arrive as they were sent.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) moved: AtomicUsize,
    pub(crate) lost: AtomicUsize,
    pub(crate) late: AtomicUsize,
    pub(crate) too_long: AtomicUsize,
}

/// One direction of a path.
struct Direction {
    path: Route,
    counts: Arc<Counts>,
    seed: u32,
    /// A datagram that its successor overtakes.
    held: Option<(Vec<u8>, Instant)>,
}

impl Direction {
    fn new(path: Route, counts: &Arc<Counts>, seed: u32) -> Direction {
        Direction { path, counts: Arc::clone(counts), seed, held: None }
    }

    /// Returns a number below 100.
    fn draw(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.seed >> 16) % 100
    }

    fn pass(&mut self, datagram: &[u8], send: impl Fn(&[u8]) -> io::Result<usize>) {
        let count = |counter: &AtomicUsize| {
            counter.fetch_add(1, Ordering::SeqCst);
        };
        if datagram.len() > self.path.longest {
            return count(&self.counts.too_long);
        }
        if self.draw() < self.path.loss {
            return count(&self.counts.lost);
        }
        if self.held.is_none() && self.draw() < self.path.late {
            self.held = Some((datagram.to_vec(), Instant::now()));
            return count(&self.counts.late);
        }
        // An endpoint that is closed makes the next send fail; the datagram is lost.
        let _ = send(datagram);
        if let Some((held, _)) = self.held.take() {
            let _ = send(&held);
        }
    }

    /// Sends a datagram that has no successor.
    fn release(&mut self, send: impl Fn(&[u8]) -> io::Result<usize>) {
        let is_old = |(_, since): &mut (Vec<u8>, Instant)| since.elapsed() > Duration::from_millis(5);
        if let Some((held, _)) = self.held.take_if(is_old) {
            let _ = send(&held);
        }
    }
}

/// A client of the relay.
struct Sender {
    /// The socket to the server.
    back: Arc<UdpSocket>,
    there: Direction,
    /// Number of its datagrams.
    count: usize,
}

/// Starts a relay before a server, which runs until the end of the process. Returns its address and what it counts.
pub(crate) fn start(server: SocketAddr, path: Route) -> (SocketAddr, Arc<Counts>) {
    let front = Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    front.set_read_timeout(Some(Duration::from_millis(5))).expect("a socket");
    let (address, counts) = (front.local_addr().expect("an address"), Arc::new(Counts::default()));
    let shared = Arc::clone(&counts);
    thread::spawn(move || {
        let mut clients: HashMap<SocketAddr, Sender> = HashMap::new();
        let mut buffer = vec![0; 65_535];
        loop {
            if let Ok((len, client)) = front.recv_from(&mut buffer) {
                let seed = clients.len() as u32;
                let open = || open(&front, client, server, Direction::new(path, &shared, seed + 1000));
                let Sender { back, there, count } = clients.entry(client).or_insert_with(|| Sender {
                    back: open(),
                    there: Direction::new(path, &shared, seed),
                    count: 0,
                });
                *count += 1;
                if count.is_multiple_of(path.port_after) {
                    *back = open();
                    shared.moved.fetch_add(1, Ordering::SeqCst);
                }
                there.pass(&buffer[..len], |datagram| back.send(datagram));
            }
            for Sender { back, there, .. } in clients.values_mut() {
                there.release(|datagram| back.send(datagram));
            }
        }
    });
    (address, counts)
}

/// Opens a socket for a client, and passes its datagrams of the server on.
fn open(
    front: &Arc<UdpSocket>,
    client: SocketAddr,
    server: SocketAddr,
    mut back: Direction,
) -> Arc<UdpSocket> {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    socket.connect(server).expect("an address");
    socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a socket");
    let (front, receiving) = (Arc::clone(front), Arc::clone(&socket));
    thread::spawn(move || {
        let mut buffer = vec![0; 65_535];
        loop {
            match receiving.recv(&mut buffer) {
                Ok(len) => back.pass(&buffer[..len], |datagram| front.send_to(datagram, client)),
                Err(_) => back.release(|datagram| front.send_to(datagram, client)),
            }
        }
    });
    socket
}
