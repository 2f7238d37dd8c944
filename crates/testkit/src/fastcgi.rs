//! A scripted FastCGI server: it reads complete requests, and sends the bytes that the test returns for each.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A received request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Names and values, in order.
    pub params: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the connection is to stay open (FCGI_KEEP_CONN).
    pub keeps: bool,
}

impl Request {
    /// Returns the value of a parameter; the last one if the name is repeated.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The response to a request, and whether the connection is closed after it.
#[derive(Debug)]
pub struct Reply(Vec<u8>, bool);

impl Reply {
    /// Returns these raw bytes as the response.
    pub fn raw(bytes: Vec<u8>, closes: bool) -> Reply {
        Reply(bytes, closes)
    }

    /// Returns a successful response with this output of a CGI script. The connection is closed unless the request
    /// permits to keep it open.
    pub fn script(request: &Request, text: impl AsRef<[u8]>) -> Reply {
        let stdout = text.as_ref().chunks(u16::MAX.into()).flat_map(|piece| record(STDOUT, piece));
        let bytes = stdout.chain(record(STDOUT, b"")).chain(record(END_REQUEST, &[0; 8])).collect();
        Reply(bytes, !request.keeps)
    }
}

/// Record type: end of the request.
pub const END_REQUEST: u8 = 3;
/// Record type: output.
pub const STDOUT: u8 = 6;
/// Record type: error message.
pub const STDERR: u8 = 7;

/// Encodes a record of request 1.
pub fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).expect("a record is short").to_be_bytes();
    [&[1, kind, 0, 1, len[0], len[1], 0, 0], content].concat()
}

/// A running server, which ends when it is dropped.
#[derive(Debug)]
pub struct FastCgi {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl FastCgi {
    /// Starts a server whose responses `script` returns.
    pub fn start(script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> FastCgi {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let (is_over, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (script, ends, count, open) =
            (Arc::new(script), Arc::clone(&is_over), Arc::clone(&connections), Arc::clone(&streams));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                count.fetch_add(1, Ordering::Relaxed);
                open.lock().expect("no panic").extend(stream.try_clone());
                let script = Arc::clone(&script);
                std::thread::spawn(move || serve(stream, &*script));
            }
        });
        FastCgi { address, is_over, connections, streams, thread: Some(thread) }
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

impl Drop for FastCgi {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for stream in self.streams.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Serves the requests of a connection until its end.
fn serve(mut stream: TcpStream, script: &dyn Fn(&Request) -> Reply) {
    // TCP_NODELAY: the end of a long response must not wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    while let Ok(request) = read(&mut stream) {
        let Reply(bytes, closes) = script(&request);
        if stream.write_all(&bytes).is_err() || closes {
            break;
        }
    }
    // Orderly shutdown, so that the peer reads all sent bytes before the end.
    let _ = stream.shutdown(std::net::Shutdown::Write);
}

fn read(stream: &mut TcpStream) -> io::Result<Request> {
    let (mut request, mut params) = (Request::default(), Vec::new());
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header)?;
        assert_eq!((header[0], header[2], header[3]), (1, 0, 1), "version and number of a request");
        let mut content = vec![0; usize::from(u16::from_be_bytes([header[4], header[5]]))];
        stream.read_exact(&mut content)?;
        stream.read_exact(&mut vec![0; usize::from(header[6])])?;
        match (header[1], content.is_empty()) {
            (1, _) => request.keeps = content[2] & 1 == 1,
            (4, true) => request.params = pairs(&params),
            (4, false) => params.extend(content),
            (5, false) => request.body.extend(content),
            (5, true) => return Ok(request),
            (kind, _) => panic!("a record of type {kind}"),
        }
    }
}

fn pairs(mut bytes: &[u8]) -> Vec<(String, String)> {
    fn length(bytes: &mut &[u8]) -> usize {
        let (len, used) = match bytes[0] {
            len @ 0..0x80 => (len.into(), 1),
            _ => (u32::from_be_bytes([bytes[0] & 0x7f, bytes[1], bytes[2], bytes[3]]) as usize, 4),
        };
        *bytes = &bytes[used..];
        len
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (name, value) = (length(&mut bytes), length(&mut bytes));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.push((text(&bytes[..name]), text(&bytes[name..name + value])));
        bytes = &bytes[name + value..];
    }
    found
}
