//! One client of a server that speaks TLS, by blocking calls: to see that the server is there, and for connections that stay
//! idle. Loads have their own ([`crate::load`]).

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tls::{Client, Session, TlsError};

/// How long the server may take for anything.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection whose handshake is done.
pub(crate) struct SecureClient {
    socket: TcpStream,
    session: Session,
    plain: Vec<u8>,
}

fn broken(error: TlsError) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

impl SecureClient {
    /// Connects and makes the handshake.
    pub(crate) fn connect(address: SocketAddr, client: &Client) -> Result<SecureClient, Error> {
        let socket = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut session = client.session(&address.to_string(), "bench").map_err(broken)?;
        session.read(&mut [], &mut |_| {}).map_err(broken)?;
        let mut client = SecureClient { socket, session, plain: Vec::new() };
        client.socket.write_all(&client.session.output())?;
        while client.session.is_handshaking() {
            client.receive()?;
        }
        Ok(client)
    }

    /// Asks for a path, and waits for the end of the response: of its header section, and so many bytes.
    pub(crate) fn get(&mut self, path: &str, content_bytes: usize) -> Result<String, Error> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
        let mut sealed = vec![0; self.session.sealed_bytes(request.len())];
        let len = self.session.seal(request.as_bytes(), &mut sealed).map_err(broken)?;
        self.socket.write_all(&sealed[..len])?;
        self.plain.clear();
        loop {
            let end = self.plain.windows(4).position(|four| four == b"\r\n\r\n");
            if end.is_some_and(|end| self.plain.len() >= end + 4 + content_bytes) {
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
        let plain = &mut self.plain;
        let read = self.session.read(&mut bytes[..len], &mut |bytes| plain.extend_from_slice(bytes));
        read.map_err(broken)?;
        self.socket.write_all(&self.session.output())
    }
}
