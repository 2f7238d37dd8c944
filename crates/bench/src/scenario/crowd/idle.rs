//! Connections that ask once and then stay open without a word.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::failure::Failure;

/// How long one of them may wait for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Some of them. Dropping it closes all.
pub(super) struct Idle {
    sockets: Vec<TcpStream>,
}

impl Idle {
    /// Opens them one after the other: the next one when the one before has its answer, so that no queue overflows and
    /// the server has done with each.
    pub(super) fn open(server: SocketAddr, count: u32) -> Result<Idle, Failure> {
        let mut sockets = Vec::with_capacity(count as usize);
        for at in 0..count {
            let failed = Failure::kernel(format!("idle connection {} of {count}", at + 1));
            sockets.push(ask(server).map_err(failed)?);
        }
        Ok(Idle { sockets })
    }

    /// Fails if the server has ended one of them.
    pub(super) fn check_open(&self) -> Result<(), Failure> {
        let is_open = |socket: &TcpStream| {
            let waits = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
            let looked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0]));
            looked.map_or_else(waits, |bytes| bytes > 0)
        };
        match self.sockets.iter().filter(|socket| !is_open(socket)).count() {
            0 => Ok(()),
            ended => Err(Failure::Other(format!(
                "{ended} of {} idle connections were ended by the server",
                self.sockets.len()
            ))),
        }
    }
}

/// A connection that has had one answer, without a body.
fn ask(server: SocketAddr) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect_timeout(&server, ANSWER_TIMEOUT)?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")?;
    let mut head = [0; 1024];
    let mut filled = 0;
    // The end of the head is the end of the answer to `return 200`.
    while !head[..filled].ends_with(b"\r\n\r\n") {
        match socket.read(&mut head[filled..])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            bytes => filled += bytes,
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_connection_that_the_server_ends_is_noticed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let answer = |listener: &TcpListener| {
                let (mut socket, _) = listener.accept().unwrap();
                assert!(socket.read(&mut [0; 512]).unwrap() > 0);
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                socket
            };
            (answer(&listener), answer(&listener))
        });
        let idle = Idle::open(address, 2).unwrap();
        let (first, second) = server.join().unwrap();
        idle.check_open().unwrap();
        drop(first);
        // The end arrives before the peek that looks for it, or is waited for by it.
        idle.sockets[0].set_nonblocking(false).unwrap();
        assert_eq!(idle.sockets[0].peek(&mut [0]).unwrap(), 0);
        assert!(idle.check_open().unwrap_err().to_string().starts_with("1 of 2 idle connections"));
        drop(second);
    }
}
