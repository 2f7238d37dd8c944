//! An origin within this process: one thread per connection. The scenario writes the responses.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::net::{Shutdown, shutdown};

use crate::failure::Failure;
use crate::method::pin;
use crate::peers::client::content_length;

/// A running origin. Dropping it closes the listener; its connections end when the clients close them.
pub(crate) struct Origin {
    pub(crate) port: u16,
    listener: Arc<TcpListener>,
    listening: Option<JoinHandle<()>>,
}

impl Origin {
    /// Starts the origin on this processor, or on all of them. `serve` handles a connection until its end.
    pub(crate) fn start(
        cpu: Option<usize>,
        serve: impl Fn(TcpStream) + Clone + Send + 'static,
    ) -> Result<Origin, Failure> {
        let failed = || Failure::kernel("listening on 127.0.0.1");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
        let port = listener.local_addr().map_err(failed())?.port();
        let listener = Arc::new(listener);
        let accepting = Arc::clone(&listener);
        let listening = thread::spawn(move || {
            // If pinning fails, it runs on any processor, and the figures are those of a busier machine.
            let _ = cpu.map(pin::this_thread);
            while let Ok((socket, _)) = accepting.accept() {
                let serve = serve.clone();
                thread::spawn(move || serve(socket));
            }
        });
        Ok(Origin { port, listener, listening: Some(listening) })
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // The accept in progress fails.
        let _ = shutdown(&*self.listener, Shutdown::Read);
        let _ = self.listening.take().map(JoinHandle::join);
    }
}

/// A request that was read completely.
pub(crate) struct Request {
    /// The bytes up to the empty line, and possibly a part of the body.
    pub(crate) head: Vec<u8>,
    pub(crate) body_bytes: usize,
}

/// Reads a request with its body of a known length; returns `None` at the end of the connection. A proxy sends the next
/// request only after the response, so no bytes are expected after the body.
pub(crate) fn read_request(socket: &mut impl Read) -> std::io::Result<Option<Request>> {
    let (mut head, mut part) = (Vec::new(), vec![0; 64 << 10]);
    let end = loop {
        match socket.read(&mut part)? {
            0 if head.is_empty() => return Ok(None),
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&part[..count]),
        }
        if let Some(at) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let length = content_length(&head[..end])?;
    let mut left = length.saturating_sub(head.len() - end);
    while left > 0 {
        match socket.read(&mut part)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => left = left.saturating_sub(count),
        }
    }
    Ok(Some(Request { head, body_bytes: length }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns at most this number of bytes per read.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let most = self.1.min(into.len());
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn the_origin_reads_a_complete_body_before_it_responds() {
        let request = [&b"POST / HTTP/1.1\r\ncontent-length: 1000\r\n\r\n"[..], &[b'u'; 1000]].concat();
        let bytes =
            |connection: &mut Slow<'_>| read_request(connection).unwrap().map(|request| request.body_bytes);
        for size in [1, 7, 600, 5000] {
            let mut connection = Slow(&request, size);
            assert_eq!(bytes(&mut connection), Some(1000));
            assert!(connection.0.is_empty(), "{size}: {} bytes are left", connection.0.len());
            assert_eq!(bytes(&mut connection), None);
        }
        let cut = &request[..request.len() - 1];
        assert!(read_request(&mut Slow(cut, 100)).is_err());
        let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(bytes(&mut Slow(get, 100)), Some(0));
    }
}
