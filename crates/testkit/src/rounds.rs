//! A relay that counts round trips: a network with a long delay, without the delay.
//!
//! [`Rounds`] passes bytes on in one direction at a time. It collects all that both ends send until neither sends more, passes the
//! bytes of one direction on, and then turns to the other. So an end gets the other's bytes only in response to its own, as over a
//! network whose delay is longer than any computation; the number of turns is that of the round trips.
//!
//! The only clock is the time after which an end counts as silent. A busy machine may split a turn, so tests leave some room above
//! the expected number.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::gate::lock;

/// Time without bytes after which both ends count as silent.
const SILENT: Duration = Duration::from_millis(40);

/// The relay; it stops when dropped.
#[derive(Debug)]
pub struct Rounds {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The bytes of both directions that were not passed on, and which ends have closed.
#[derive(Debug, Default)]
struct Pipes {
    bytes: [Vec<u8>; 2],
    ended: [bool; 2],
    /// Number of reads so far.
    reads: u64,
}

type Shared = Arc<(Mutex<Pipes>, Condvar)>;

impl Rounds {
    /// Starts a relay to this address.
    pub fn to(target: SocketAddr) -> Rounds {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let (count, is_over): (Arc<AtomicUsize>, Arc<AtomicBool>) = Default::default();
        let (counts, ends) = (Arc::clone(&count), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let counts = Arc::clone(&counts);
                std::thread::spawn(move || relay(near, target, &counts));
            }
        });
        Rounds { address, count, is_over, thread: Some(thread) }
    }

    /// Returns the address of the relay.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of times that bytes of clients were passed on.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Relays one connection until both ends have closed it.
fn relay(near: TcpStream, target: SocketAddr, count: &AtomicUsize) {
    let Ok(far) = TcpStream::connect(target) else { return };
    let shared = Shared::default();
    let ends = [near, far];
    for (index, end) in ends.iter().enumerate() {
        let _ = end.set_nodelay(true);
        let (mut end, shared) = (end.try_clone().expect("a descriptor"), Arc::clone(&shared));
        std::thread::spawn(move || read_all(&mut end, index, &shared));
    }
    let mut from = 0;
    while let Some((bytes, has_ended)) = turn(&shared, &mut from) {
        let mut to = &ends[1 - from];
        count.fetch_add(usize::from(from == 0 && !bytes.is_empty()), Ordering::Relaxed);
        // The end may have closed its connection.
        let _ = to.write_all(&bytes);
        if has_ended {
            let _ = to.shutdown(Shutdown::Write);
        }
        from = 1 - from;
    }
    ends.iter().for_each(|end| _ = end.shutdown(Shutdown::Both));
}

fn read_all(end: &mut TcpStream, index: usize, shared: &Shared) {
    let mut piece = vec![0; 256 << 10];
    loop {
        let count = end.read(&mut piece).unwrap_or(0);
        let mut pipes = lock(&shared.0);
        pipes.reads += 1;
        pipes.bytes[index].extend_from_slice(&piece[..count]);
        pipes.ended[index] |= count == 0;
        shared.1.notify_all();
        if count == 0 {
            return;
        }
    }
}

/// Waits until both ends are silent. Returns the bytes of the direction whose turn it is, and whether its end has closed the
/// connection; of the other direction if this one has none. `None` when both ends have closed it.
fn turn(shared: &Shared, from: &mut usize) -> Option<(Vec<u8>, bool)> {
    let mut pipes = lock(&shared.0);
    loop {
        let before = pipes.reads;
        let waited = shared.1.wait_timeout(pipes, SILENT);
        pipes = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        if pipes.reads != before {
            continue;
        }
        for index in [*from, 1 - *from] {
            let bytes = std::mem::take(&mut pipes.bytes[index]);
            if !bytes.is_empty() || pipes.ended == [true, true] || index == *from && pipes.ended[index] {
                *from = index;
                let is_over = bytes.is_empty() && pipes.ended == [true, true];
                return (!is_over).then_some((bytes, pipes.ended[index]));
            }
        }
    }
}
