//! A blocking client of a server, with or without TLS: for readiness checks and idle connections. Loads use a different
//! client ([`crate::load`]).

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tls::{Session, TlsError};

use crate::failure::Failure;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection with a completed handshake.
pub(crate) struct Client {
    socket: TcpStream,
    session: Option<Session>,
    plain: Vec<u8>,
}

fn broken(error: TlsError) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

impl Client {
    /// Connects, and performs the TLS handshake if `tls` is set.
    pub(crate) fn connect(address: SocketAddr, tls: Option<&tls::Client>) -> Result<Client, Error> {
        let socket = TcpStream::connect_timeout(&address, RESPONSE_TIMEOUT)?;
        socket.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        let mut client = Client { socket, session: None, plain: Vec::new() };
        if let Some(tls) = tls {
            let mut session = tls.session(&address.to_string(), "bench").map_err(broken)?;
            session.read(&mut [], &mut |_| {}).map_err(broken)?;
            client.socket.write_all(&session.output())?;
            client.session = Some(session);
        }
        while client.session.as_ref().is_some_and(Session::is_handshaking) {
            client.receive()?;
        }
        Ok(client)
    }

    /// Requests a path; returns the complete response. It ends with its header section unless it has a length.
    pub(crate) fn get(&mut self, path: &str) -> Result<String, Error> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
        match &mut self.session {
            None => self.socket.write_all(request.as_bytes())?,
            Some(session) => {
                let mut sealed = vec![0; session.sealed_bytes(request.len())];
                let len = session.seal(request.as_bytes(), &mut sealed).map_err(broken)?;
                self.socket.write_all(&sealed[..len])?;
            }
        }
        self.plain.clear();
        loop {
            if let Some(end) = self.plain.windows(4).position(|four| four == b"\r\n\r\n")
                && self.plain.len() >= end + 4 + content_length(&self.plain[..end]).unwrap_or(0)
            {
                return Ok(String::from_utf8_lossy(&self.plain).into_owned());
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> Result<(), Error> {
        let mut bytes = [0; 16 << 10];
        let len = self.socket.read(&mut bytes)?;
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (plain, bytes) = (&mut self.plain, &mut bytes[..len]);
        let Some(session) = &mut self.session else {
            plain.extend_from_slice(bytes);
            return Ok(());
        };
        session.read(bytes, &mut |bytes| plain.extend_from_slice(bytes)).map_err(broken)?;
        self.socket.write_all(&session.output())
    }

    /// Whether the server has not closed the connection.
    fn is_open(&self) -> bool {
        let waits = |error: Error| error.kind() == ErrorKind::WouldBlock;
        let looked = self.socket.set_nonblocking(true).and_then(|()| self.socket.peek(&mut [0]));
        looked.map_or_else(waits, |bytes| bytes > 0)
    }
}

/// Requests a path over a new connection; returns the response.
pub(crate) fn get(server: SocketAddr, path: &str) -> Result<String, Error> {
    Client::connect(server, None)?.get(path)
}

/// Returns `Content-Length` of a header section; 0 without one. Transfer codings are not supported.
pub(crate) fn content_length(head: &[u8]) -> Result<usize, Error> {
    let invalid = || Error::from(ErrorKind::InvalidData);
    let text = std::str::from_utf8(head).map_err(|_| invalid())?;
    let fields = || text.lines().filter_map(|line| line.split_once(':'));
    if fields().any(|(name, _)| name.eq_ignore_ascii_case("transfer-encoding")) {
        return Err(invalid());
    }
    match fields().find(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        Some((_, value)) => value.trim().parse().map_err(|_| invalid()),
        None => Ok(0),
    }
}

/// Connections that sent one request and then stay idle. Dropping the value closes all.
pub(crate) struct Idle(Vec<Client>);

impl Idle {
    /// Opens the connections sequentially: each waits for its response before the next one is opened, so that no
    /// backlog overflows.
    pub(crate) fn open(
        server: SocketAddr,
        tls: Option<&tls::Client>,
        count: u32,
        path: &str,
    ) -> Result<Idle, Failure> {
        let mut clients = Vec::with_capacity(count as usize);
        for at in 0..count {
            let failed = Failure::kernel(format!("idle connection {} of {count}", at + 1));
            let asked = Client::connect(server, tls).and_then(|mut client| client.get(path).map(|_| client));
            clients.push(asked.map_err(failed)?);
        }
        Ok(Idle(clients))
    }

    /// Fails if the server has closed one of the connections.
    pub(crate) fn check_open(&self) -> Result<(), Failure> {
        match self.0.iter().filter(|client| !client.is_open()).count() {
            0 => Ok(()),
            ended => {
                let all = self.0.len();
                Err(Failure::Other(format!("the server closed {ended} of {all} idle connections")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn silence_and_other_protocols_are_not_responses() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let response = || get(address, "/ready");
        let speak = |words: &'static [u8]| {
            let listener = listener.try_clone().unwrap();
            std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                assert!(socket.read(&mut [0; 512]).unwrap() > 0);
                socket.write_all(words).unwrap();
            })
        };
        for (words, is_response) in
            [(&b"HTTP/1.1 204 No Content\r\n\r\n"[..], true), (b"220 mail ready\r\n", false), (b"", false)]
        {
            let speaker = speak(words);
            assert_eq!(response().is_ok(), is_response);
            speaker.join().unwrap();
        }
        drop(listener);
        assert!(response().is_err());
    }

    #[test]
    fn chunked_bodies_are_refused() {
        assert!(content_length(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }

    #[test]
    fn a_connection_closed_by_the_server_is_detected() {
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
        let idle = Idle::open(address, None, 2, "/").unwrap();
        let (first, second) = server.join().unwrap();
        idle.check_open().unwrap();
        drop(first);
        // Waits for the FIN, so that the check below sees it.
        idle.0[0].socket.set_nonblocking(false).unwrap();
        assert_eq!(idle.0[0].socket.peek(&mut [0]).unwrap(), 0);
        assert!(idle.check_open().unwrap_err().to_string().starts_with("the server closed 1 of 2 idle"));
        drop(second);
    }
}
