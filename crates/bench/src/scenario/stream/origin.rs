//! The origin of `bench stream`: it sends pieces at intervals, each with its send time, or echoes received bytes.
//!
//! It runs in this process, so that it and the clients share one clock.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::method::pause;
use crate::scenario::origin::{Origin, Request, read_request};

/// The text before the time in each piece.
pub(super) const MARK: &str = "data: ";

/// Number of digits of the time, in nanoseconds.
pub(super) const DIGITS: usize = 20;

const PIECE_EVERY: Duration = Duration::from_millis(10);

/// The text after the time, as long as a brief event.
const WORDS: &str = " the next words of a response that is made while it is sent";

/// Starts the origin on this processor; times count from `epoch`, and streams end after `length`.
pub(super) fn start(epoch: Instant, cpu: Option<usize>, length: Duration) -> Result<Origin, Failure> {
    let pieces = pieces(length);
    Origin::start(cpu, move |socket| serve(socket, epoch, pieces))
}

/// Returns the number of pieces of a stream of this duration, at least three.
pub(super) fn pieces(length: Duration) -> usize {
    (length.as_nanos() / PIECE_EVERY.as_nanos()).max(3) as usize
}

/// Serves the requests of one connection. An error ends it: the client has closed it.
fn serve(mut socket: TcpStream, epoch: Instant, pieces: usize) {
    let _ = socket.set_nodelay(true);
    while let Ok(Some(Request { head, .. })) = read_request(&mut socket) {
        let upgrades =
            head.to_ascii_lowercase().windows(b"\nupgrade:".len()).any(|part| part == b"\nupgrade:");
        let served = if upgrades { echo(&mut socket) } else { stream(&mut socket, epoch, pieces) };
        if served.is_err() {
            return;
        }
    }
}

/// Sends the header section immediately, then a piece after each interval.
fn stream(socket: &mut TcpStream, epoch: Instant, pieces: usize) -> std::io::Result<()> {
    socket.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    for _ in 0..pieces {
        pause(PIECE_EVERY);
        let piece = format!("{MARK}{:0DIGITS$}{WORDS}\n\n", epoch.elapsed().as_nanos());
        socket.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes())?;
    }
    socket.write_all(b"0\r\n\r\n")
}

/// Switches the protocol and echoes all received bytes.
fn echo(socket: &mut TcpStream) -> std::io::Result<()> {
    socket.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    )?;
    let mut part = [0; 16 << 10];
    loop {
        match socket.read(&mut part)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => socket.write_all(&part[..count])?,
        }
    }
}
