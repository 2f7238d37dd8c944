//! A relay that delays the bytes of both directions, as a network with a long round trip does. Its bandwidth is not limited.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::method::pause;
use crate::scenario::origin::Origin;

/// Bytes of one read: as many as a socket buffer holds.
const PIECE_BYTES: usize = 1 << 20;

/// Starts a relay to this address on this processor. Each byte arrives half of `round_trip` after it was sent.
pub(super) fn start(cpu: Option<usize>, target: SocketAddr, round_trip: Duration) -> Result<Origin, Failure> {
    Origin::start(cpu, move |near| {
        // The server may have exited.
        let Ok(far) = TcpStream::connect(target) else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (Ok(near_out), Ok(far_out)) = (near.try_clone(), far.try_clone()) else { return };
        let back = thread::spawn(move || pass(far, near_out, round_trip / 2));
        pass(near, far_out, round_trip / 2);
        let _ = back.join();
    })
}

/// Passes on one direction until its end.
fn pass(from: TcpStream, to: TcpStream, delay: Duration) {
    let (pieces, due) = channel();
    let writer = thread::spawn(move || write(to, &due));
    read(from, &pieces, delay);
    drop(pieces);
    let _ = writer.join();
}

fn read(mut from: TcpStream, pieces: &Sender<(Instant, Vec<u8>)>, delay: Duration) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if pieces.send((Instant::now() + delay, piece[..count].to_vec())).is_err() {
            return;
        }
    }
}

fn write(mut to: TcpStream, due: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((at, piece)) = due.recv() {
        pause(at.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
