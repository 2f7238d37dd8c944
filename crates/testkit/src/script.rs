//! A scripted SCGI or uwsgi server: it reads one complete request per connection, and sends the bytes that the test
//! returns.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi,
}

/// A received request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Names and values, in order.
    pub params: Vec<(String, String)>,
    /// The uwsgi modifiers.
    pub modifiers: (u8, u8),
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the value of a parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A running server, which ends when it is dropped.
#[derive(Debug)]
pub struct ScriptServer {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptServer {
    /// Starts a server whose responses `script` returns; it closes each connection after its response.
    pub fn start(
        protocol: Protocol,
        script: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static,
    ) -> ScriptServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, script) = (Arc::clone(&is_over), Arc::new(script));
        let thread = std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let script = Arc::clone(&script);
                std::thread::spawn(move || {
                    let Ok(request) = read(protocol, &mut stream) else { return };
                    let _ = stream.write_all(&script(&request));
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        ScriptServer { address, is_over, thread: Some(thread) }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ScriptServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read(protocol: Protocol, stream: &mut TcpStream) -> io::Result<Request> {
    let mut request = match protocol {
        Protocol::Scgi => scgi(stream)?,
        Protocol::Uwsgi => uwsgi(stream)?,
    };
    let length = request.param("CONTENT_LENGTH").unwrap_or_default().parse().unwrap_or(0);
    request.body = vec![0; length];
    stream.read_exact(&mut request.body)?;
    Ok(request)
}

fn scgi(stream: &mut TcpStream) -> io::Result<Request> {
    let mut len = 0;
    loop {
        let [byte] = exact(stream)?;
        match byte {
            b'0'..=b'9' => len = len * 10 + usize::from(byte - b'0'),
            b':' => break,
            _ => panic!("the length of a netstring"),
        }
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    assert_eq!((exact(stream)?, bytes.last()), ([b','], Some(&0)), "the end of a netstring");
    let mut parts = bytes[..len - 1].split(|byte| *byte == 0).map(text);
    let mut params = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        params.push((name, value));
    }
    assert_eq!(params[0].0, "CONTENT_LENGTH", "the first parameter");
    assert_eq!(
        params.iter().filter(|(name, value)| name == "SCGI" && value == "1").count(),
        1,
        "the version"
    );
    Ok(Request { params, ..Request::default() })
}

fn uwsgi(stream: &mut TcpStream) -> io::Result<Request> {
    let [modifier1, low, high, modifier2] = exact(stream)?;
    let mut bytes = vec![0; u16::from_le_bytes([low, high]).into()];
    stream.read_exact(&mut bytes)?;
    let (mut rest, mut params) = (&bytes[..], Vec::new());
    let part = |rest: &mut &[u8]| {
        let (len, behind) = rest.split_first_chunk().expect("a length");
        let (part, behind) = behind.split_at(u16::from_le_bytes(*len).into());
        *rest = behind;
        text(part)
    };
    while !rest.is_empty() {
        let name = part(&mut rest);
        params.push((name, part(&mut rest)));
    }
    Ok(Request { params, modifiers: (modifier1, modifier2), ..Request::default() })
}

fn exact<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
