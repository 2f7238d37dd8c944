//! Servers with a `stream` block, and scripted upstreams.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::BINARY;
use testkit::Server;

/// Time limit of every read and write of a test.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts a server with this `stream` block, whose access log has status and bytes.
pub(crate) fn serve(stream: &str) -> Server {
    serve_with("", stream)
}

/// Works like [`serve`], with directives of the process.
pub(crate) fn serve_with(main: &str, stream: &str) -> Server {
    let conf = format!(
        "{main} worker_processes 1; error_log logs/error.log info; events {{ }}
         stream {{ log_format ends '$status $bytes_received $bytes_sent';
           access_log logs/access.log ends; {stream} }}"
    );
    Server::builder(BINARY).conf(&conf).start()
}

/// Connects to an address, with time limits.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    stream.set_write_timeout(Some(LIMIT)).expect("a time limit");
    stream
}

/// Returns all bytes until the end of the stream.
pub(crate) fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the stream ends");
    bytes
}

/// Returns exactly this many bytes.
pub(crate) fn read_exactly(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).expect("the bytes arrive");
    bytes
}

/// Sends a text, and returns the response of the same length.
pub(crate) fn echo(stream: &mut TcpStream, text: &[u8]) -> Vec<u8> {
    stream.write_all(text).expect("the text is sent");
    read_exactly(stream, text.len())
}

/// Closes the sending direction.
pub(crate) fn end(stream: &TcpStream) {
    stream.shutdown(Shutdown::Write).expect("the connection is open");
}

/// An upstream that calls a function for each connection.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
}

impl Upstream {
    /// Starts an upstream. Its thread ends with the test program.
    pub(crate) fn start(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        Upstream { address }
    }

    /// Starts an upstream that sends back what it receives, and ends after its client.
    pub(crate) fn echo() -> Upstream {
        Upstream::start(|mut stream| {
            let mut buffer = [0; 65536];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        })
    }

    /// Starts an upstream that sends its name, and ends when its client does.
    pub(crate) fn named(name: &'static str) -> Upstream {
        Upstream::start(move |mut stream| {
            let _ = stream.write_all(name.as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        })
    }

    /// Starts an upstream that returns all bytes that one client sends.
    pub(crate) fn collector() -> (Upstream, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let collected = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            bytes
        });
        (Upstream { address }, collected)
    }
}

/// Returns an address on which nothing listens.
pub(crate) fn closed_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it is bound")
}
