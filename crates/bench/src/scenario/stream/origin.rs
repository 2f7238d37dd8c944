//! The origin of `bench stream`: it sends pieces with pauses between them, each with the time at which it was sent, or sends
//! back what it is sent.
//!
//! It runs in this process, so that it and the clients have one clock.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::method::{pause, pin};

/// What stands before the time in each piece.
pub(super) const MARK: &str = "data: ";

/// Digits of the time, in nanoseconds.
pub(super) const DIGITS: usize = 20;

/// Time between two pieces.
const PIECE_EVERY: Duration = Duration::from_millis(10);

/// What follows the time: an event of a few words.
const WORDS: &str = " the next words of an answer that is made while it is sent";

/// A running origin. Dropping it ends what listens; its connections end with their other sides.
pub(super) struct Origin {
    port: u16,
    is_ended: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Origin {
    /// Starts it on these processors; times are counted from `epoch`, and streams end after so many pieces.
    pub(super) fn start(epoch: Instant, cpu: Option<usize>, length: Duration) -> Result<Origin, Failure> {
        let failed = |error| Failure::Kernel { doing: "listening on 127.0.0.1".to_owned(), error };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let is_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_ended);
        let pieces = pieces(length);
        let listening = thread::spawn(move || {
            // Where it cannot be pinned, it runs anywhere: the figures are then those of a busier machine.
            let _ = cpu.map(pin::this_thread);
            while let Ok((socket, _)) = listener.accept() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                thread::spawn(move || serve(socket, epoch, pieces));
            }
        });
        Ok(Origin { port, is_ended, listening: Some(listening) })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.listening.take().map(JoinHandle::join);
    }
}

/// Pieces of a stream of this length, at least a few.
pub(super) fn pieces(length: Duration) -> usize {
    (length.as_nanos() / PIECE_EVERY.as_nanos()).max(3) as usize
}

/// Requests of one connection. An error ends it: its other side is gone.
fn serve(mut socket: TcpStream, epoch: Instant, pieces: usize) {
    let _ = socket.set_nodelay(true);
    while let Some(head) = read_head(&mut socket) {
        let upgrades =
            head.to_ascii_lowercase().windows(b"\nupgrade:".len()).any(|part| part == b"\nupgrade:");
        let served = if upgrades { echo(&mut socket) } else { stream(&mut socket, epoch, pieces) };
        if served.is_err() {
            return;
        }
    }
}

/// A request without a body; none at the end of the connection.
fn read_head(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut part = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        let count = socket.read(&mut part).ok().filter(|&count| count > 0)?;
        head.extend_from_slice(&part[..count]);
    }
    Some(head)
}

/// The header section at once, then a piece after each pause.
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

/// Another protocol: sends back whatever comes.
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
