//! A scripted memcached server: it reads the lines of a connection, and sends the bytes that the test returns for each.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// The response to a line.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The bytes, in pieces that are sent separately.
    pieces: Vec<Vec<u8>>,
    closes: bool,
}

impl Reply {
    /// Returns these raw bytes as the response.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply { pieces: vec![bytes.into()], closes: false }
    }

    /// Returns the value of a key with these flags.
    pub fn value(key: &str, flags: u32, value: impl AsRef<[u8]>) -> Reply {
        let value = value.as_ref();
        let line = format!("VALUE {key} {flags} {}\r\n", value.len());
        Reply::raw([line.as_bytes(), value, b"\r\nEND\r\n"].concat())
    }

    /// Returns a miss.
    pub fn missing() -> Reply {
        Reply::raw("END\r\n")
    }

    /// Returns the same response, followed by the end of the connection.
    #[must_use]
    pub fn then_close(self) -> Reply {
        Reply { closes: true, ..self }
    }
}

/// A running server, which ends when it is dropped.
#[derive(Debug)]
pub struct Memcached {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Memcached {
    /// Starts a server; `script` returns the response to each line, without its line end.
    pub fn start(script: impl Fn(&[u8]) -> Reply + Send + Sync + 'static) -> Memcached {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let (is_over, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ends, count, script) = (Arc::clone(&is_over), Arc::clone(&connections), Arc::new(script));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                count.fetch_add(1, Ordering::Relaxed);
                let script = Arc::clone(&script);
                std::thread::spawn(move || serve(stream, &*script));
            }
        });
        Memcached { address, is_over, connections, thread: Some(thread) }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Responds to the lines of a connection until its end.
fn serve(stream: TcpStream, script: &dyn Fn(&[u8]) -> Reply) {
    let _ = stream.set_nodelay(true);
    let Ok(mut sender) = stream.try_clone() else { return };
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        if !matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        let reply = script(line.strip_suffix(b"\r\n").unwrap_or(&line));
        for piece in &reply.pieces {
            if sender.write_all(piece).is_err() {
                return;
            }
        }
        if reply.closes {
            // Orderly shutdown, so that the peer reads all sent bytes before the end.
            let _ = sender.shutdown(Shutdown::Write);
            return;
        }
    }
}
