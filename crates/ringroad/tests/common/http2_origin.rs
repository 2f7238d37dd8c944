//! An HTTP/2 server that runs a test's script for each connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use http::h2::hpack::{Decoder, NeverIndexed};
use testkit::wait::DEFAULT_LIMIT;

use super::http2::{
    CONTINUATION, DATA, END, Fields, HEADERS, PING, RESET, SETTINGS, WHOLE, WINDOW, block, frame,
};

/// Initial window in bytes, before any SETTINGS.
const FIRST_WINDOW: u64 = 65_535;

/// The received part of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) stream: u32,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    /// The trailer fields.
    pub(crate) trailers: Fields,
    pub(crate) ended: bool,
    pub(crate) reset: Option<u32>,
    /// Names of the never-indexed fields of the last header section.
    pub(crate) never_indexed: Option<Box<NeverIndexed>>,
}

impl Asked {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn path(&self) -> &str {
        self.field(":path").unwrap_or_default()
    }
}

/// A connection of the server.
pub(crate) struct Conn {
    stream: TcpStream,
    buf: Vec<u8>,
    decoder: Decoder,
    /// Number of the connection, from 0.
    pub(crate) number: usize,
    pub(crate) requests: BTreeMap<u32, Asked>,
    /// Send windows by stream, where they differ from the initial ones.
    pub(crate) windows: BTreeMap<u32, u64>,
    /// Initial window of streams.
    pub(crate) initial: u64,
    /// Whether the server sends window updates for received data.
    pub(crate) opens: bool,
    /// Whether PINGs are acknowledged.
    pub(crate) acknowledges: bool,
    /// Number of received PINGs.
    pub(crate) pings: usize,
}

/// The server; it stops when dropped.
pub(crate) struct Http2Origin {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<usize>>,
}

impl Http2Origin {
    /// Starts a server that runs `script` for each connection; it sends `settings` first.
    pub(crate) fn start(settings: &[u8], script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Http2Origin {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (script, settings) = (Arc::new(script), settings.to_vec());
        let (ends, counts, streams) = (Arc::clone(&is_over), Arc::clone(&count), Arc::clone(&open));
        let thread = std::thread::spawn(move || {
            let mut workers = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                // Pushed before the check, so that `stop` shuts down every connection that is served.
                streams.lock().expect("no panic").push(stream.try_clone().expect("a descriptor"));
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let number = counts.fetch_add(1, Ordering::Relaxed);
                let (script, settings) = (Arc::clone(&script), settings.clone());
                workers.push(std::thread::spawn(move || {
                    let mut conn = Conn::new(stream, number);
                    if conn.send(&frame(SETTINGS, 0, 0, &settings)) {
                        script(&mut conn);
                    }
                    let _ = conn.stream.shutdown(std::net::Shutdown::Both);
                }));
            }
            workers.into_iter().filter_map(|worker| worker.join().err()).count()
        });
        Http2Origin { address, is_over, count, open, thread: Some(thread) }
    }

    /// Starts a server that responds to each request as soon as it is complete.
    pub(crate) fn answering(answer: impl Fn(&mut Conn, &Asked) + Send + Sync + 'static) -> Http2Origin {
        Http2Origin::start(&[], move |conn| {
            while let Some(asked) = conn.request() {
                answer(conn, &asked);
            }
        })
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Http2Origin {
    /// Stops the origin; returns the number of connections whose thread panicked, in the script or at an invalid frame.
    pub(crate) fn finish(mut self) -> usize {
        self.stop()
    }

    fn stop(&mut self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.open
            .lock()
            .expect("no panic")
            .iter()
            .for_each(|stream| _ = stream.shutdown(std::net::Shutdown::Both));
        let _ = TcpStream::connect(self.address);
        self.thread.take().map_or(0, |thread| thread.join().unwrap_or(1))
    }
}

impl Drop for Http2Origin {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Conn {
    fn new(stream: TcpStream, number: usize) -> Conn {
        stream.set_read_timeout(Some(DEFAULT_LIMIT)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Conn {
            stream,
            buf: Vec::new(),
            decoder: Decoder::default(),
            number,
            requests: BTreeMap::new(),
            windows: BTreeMap::new(),
            initial: FIRST_WINDOW,
            opens: true,
            acknowledges: true,
            pings: 0,
        }
    }

    /// Returns a second handle for sending.
    pub(crate) fn sender(&self) -> TcpStream {
        self.stream.try_clone().expect("a descriptor")
    }

    /// Sends bytes; returns whether the peer accepted them.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub(crate) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.send(&frame(kind, flags, stream, payload))
    }

    /// Returns the number of bytes that may be sent on a stream, or on the connection.
    pub(crate) fn window(&self, id: u32) -> u64 {
        let first = if id == 0 { FIRST_WINDOW } else { self.initial };
        self.windows.get(&id).copied().unwrap_or(first)
    }

    /// Begins a response.
    pub(crate) fn head(&mut self, stream: u32, status: u16, fields: &[(&str, &str)], ends: bool) {
        let status = status.to_string();
        let all = [&[(":status", status.as_str())][..], fields].concat();
        self.frame(HEADERS, WHOLE | if ends { END } else { 0 }, stream, &block(&all));
    }

    /// Sends a part of a body within its windows; returns `false` if the peer has closed the stream or connection.
    pub(crate) fn data(&mut self, stream: u32, body: &[u8], ends: bool) -> bool {
        let mut at = 0;
        while at < body.len() {
            // The number of bytes that both windows allow.
            let part = (self.window(0).min(self.window(stream)) as usize).min(16_384).min(body.len() - at);
            if part == 0 {
                let is_reset = |conn: &Conn| conn.requests.get(&stream).is_some_and(|it| it.reset.is_some());
                if !self.read_frame() || is_reset(self) {
                    return false;
                }
                continue;
            }
            let flags = if ends && at + part == body.len() { END } else { 0 };
            if !self.frame(DATA, flags, stream, &body[at..at + part]) {
                return false;
            }
            for id in [0, stream] {
                let left = self.window(id) - part as u64;
                self.windows.insert(id, left);
            }
            at += part;
        }
        !(body.is_empty() && ends) || self.frame(DATA, END, stream, &[])
    }

    /// Ends a response with a trailer section.
    pub(crate) fn trailers(&mut self, stream: u32, fields: &[(&str, &str)]) {
        self.frame(HEADERS, WHOLE | END, stream, &block(fields));
    }

    /// Sends a complete response.
    pub(crate) fn reply(&mut self, stream: u32, status: u16, fields: &[(&str, &str)], body: &[u8]) {
        self.head(stream, status, fields, body.is_empty());
        if !body.is_empty() {
            self.data(stream, body, true);
        }
    }

    /// Returns the next complete request; `None` if the peer has closed the connection.
    pub(crate) fn request(&mut self) -> Option<Asked> {
        loop {
            let whole =
                self.requests.iter().find(|(_, it)| it.ended && it.reset.is_none()).map(|(id, _)| *id);
            if let Some(id) = whole {
                return self.requests.remove(&id);
            }
            if !self.read_frame() {
                return None;
            }
        }
    }

    /// Reads frames until a condition is true; returns `false` if the peer has closed the connection.
    pub(crate) fn until(&mut self, holds: impl Fn(&Conn) -> bool) -> bool {
        while !holds(self) {
            if !self.read_frame() {
                return false;
            }
        }
        true
    }

    fn read_frame(&mut self) -> bool {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        loop {
            if self.buf.starts_with(PREFACE) {
                self.buf.drain(..PREFACE.len());
            }
            let is_preface = PREFACE.starts_with(&self.buf);
            if !is_preface && self.buf.len() >= 9 {
                let end = 9 + u32::from_be_bytes([0, self.buf[0], self.buf[1], self.buf[2]]) as usize;
                if self.buf.len() >= end {
                    let bytes: Vec<u8> = self.buf.drain(..end).collect();
                    let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
                    self.keep(bytes[3], bytes[4], stream, &bytes[9..]);
                    return true;
                }
            }
            let mut piece = [0; 65_536];
            match self.stream.read(&mut piece) {
                Ok(count @ 1..) => self.buf.extend_from_slice(&piece[..count]),
                _ => return false,
            }
        }
    }

    fn keep(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        match kind {
            HEADERS => {
                assert!(flags & WHOLE != 0, "no test has a head of several frames");
                let asked = self.requests.entry(stream).or_insert(Asked { stream, ..Asked::default() });
                let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
                let section = if asked.fields.is_empty() { &mut asked.fields } else { &mut asked.trailers };
                let decoded =
                    self.decoder.decode(payload, |name, value| section.push((text(name), text(value))));
                decoded.expect("a good block");
                asked.never_indexed = self.decoder.take_never_indexed();
                asked.ended |= flags & END != 0;
            }
            DATA => {
                if let Some(asked) = self.requests.get_mut(&stream) {
                    asked.body.extend_from_slice(payload);
                    asked.ended |= flags & END != 0;
                }
                if self.opens && !payload.is_empty() {
                    let bytes = (payload.len() as u32).to_be_bytes();
                    self.send(&[frame(WINDOW, 0, 0, &bytes), frame(WINDOW, 0, stream, &bytes)].concat());
                }
            }
            RESET => {
                self.requests.entry(stream).or_insert(Asked { stream, ..Asked::default() }).reset =
                    Some(number(0));
            }
            SETTINGS if flags & END == 0 => {
                let (all, _) = payload.as_chunks::<6>();
                let initial = all.iter().find(|setting| setting[..2] == [0, 4]);
                if let Some(&[_, _, a, b, c, d]) = initial {
                    self.initial = u32::from_be_bytes([a, b, c, d]).into();
                }
                self.frame(SETTINGS, END, 0, &[]);
            }
            PING if flags & END == 0 => {
                self.pings += 1;
                if self.acknowledges {
                    self.frame(PING, END, 0, payload);
                }
            }
            WINDOW => {
                let more = self.window(stream) + u64::from(number(0));
                self.windows.insert(stream, more);
            }
            CONTINUATION => panic!("no test has a head of several frames"),
            _ => {}
        }
    }
}
