//! An HTTP/2 client controlled by a test: sends given frames, and composes requests.
//!
//! It acknowledges SETTINGS, and sends window updates only if [`Http2::opens`] is set.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use http::h2::hpack::{Decoder, NeverIndexed};
use testkit::Server;
use testkit::wait::DEFAULT_LIMIT;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GO_AWAY: u8 = 7;
pub(crate) const WINDOW: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const PRIORITY_UPDATE: u8 = 16;

pub(crate) const END: u8 = 1;
pub(crate) const WHOLE: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) type Fields = Vec<(String, String)>;

/// The received parts of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Got {
    /// Status and fields of the response.
    pub(crate) status: u16,
    pub(crate) fields: Fields,
    /// Statuses of interim responses, with their fields.
    pub(crate) interim: Vec<(u16, Fields)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    pub(crate) ended: bool,
    pub(crate) reset: Option<u32>,
    /// Names of the never-indexed fields of the last header section.
    pub(crate) never_indexed: Option<Box<NeverIndexed>>,
    /// Lengths of the DATA frames of the stream.
    pub(crate) frames: Vec<usize>,
}

impl Got {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection.
pub(crate) struct Http2<S> {
    stream: S,
    buf: Vec<u8>,
    decoder: Decoder,
    next: u32,
    pub(crate) streams: BTreeMap<u32, Got>,
    /// Last stream IDs and error codes of GOAWAY frames.
    pub(crate) goaways: Vec<(u32, u32)>,
    pub(crate) settings: Vec<(u16, u32)>,
    pub(crate) pings: Vec<Vec<u8>>,
    /// Stream IDs in the order of their DATA frames.
    pub(crate) order: Vec<u32>,
    /// Window increments from the server, by stream.
    pub(crate) windows: BTreeMap<u32, u64>,
    /// Number of body bytes that were sent within windows.
    sent: u64,
    /// Whether the client sends window updates for received data.
    pub(crate) opens: bool,
    /// Whether the server's PINGs are acknowledged.
    pub(crate) acknowledges: bool,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut all = vec![a, b, c, kind, flags];
    all.extend_from_slice(&stream.to_be_bytes());
    all.extend_from_slice(payload);
    all
}

pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// Returns a header block that does not use the dynamic table.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            match text.len() {
                len @ 0..=126 => out.push(len as u8),
                len => {
                    let mut rest = len - 127;
                    out.push(127);
                    while rest >= 128 {
                        out.push(rest as u8 | 128);
                        rest >>= 7;
                    }
                    out.push(rest as u8);
                }
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// Connects in clear text to the first listener.
pub(crate) fn connect(server: &Server) -> Http2<TcpStream> {
    connect_with(server, &[])
}

/// Like [`connect`], with a SETTINGS payload.
pub(crate) fn connect_with(server: &Server, settings: &[u8]) -> Http2<TcpStream> {
    let stream = TcpStream::connect(server.addr(0).tcp()).expect("a listener");
    stream.set_read_timeout(Some(DEFAULT_LIMIT)).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    Http2::over(stream, settings)
}

impl<S: Read + Write> Http2<S> {
    pub(crate) fn over(stream: S, settings: &[u8]) -> Http2<S> {
        Http2::try_over(stream, settings).expect("a server that reads")
    }

    /// Like [`Http2::over`], for a server that may close the connection at any time.
    pub(crate) fn try_over(stream: S, settings: &[u8]) -> std::io::Result<Http2<S>> {
        Http2::try_over_first(stream, &frame(SETTINGS, 0, 0, settings))
    }

    /// Like [`Http2::over`], with this first frame.
    pub(crate) fn over_first(stream: S, first: &[u8]) -> Http2<S> {
        Http2::try_over_first(stream, first).expect("a server that reads")
    }

    fn try_over_first(stream: S, first: &[u8]) -> std::io::Result<Http2<S>> {
        let mut client = Http2 {
            stream,
            buf: Vec::new(),
            decoder: Decoder::default(),
            next: 1,
            streams: BTreeMap::new(),
            goaways: Vec::new(),
            settings: Vec::new(),
            pings: Vec::new(),
            order: Vec::new(),
            windows: BTreeMap::new(),
            sent: 0,
            opens: true,
            acknowledges: true,
        };
        client.try_send(&[PREFACE, first].concat())?;
        Ok(client)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("a server that reads");
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    pub(crate) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.send(&frame(kind, flags, stream, payload));
    }

    /// Returns the next stream ID.
    pub(crate) fn next_stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Begins a request, whose body follows unless `ends`.
    pub(crate) fn begin(&mut self, method: &str, path: &str, fields: &[(&str, &str)], ends: bool) -> u32 {
        let stream = self.next_stream();
        let line = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "here")];
        let payload = block(&[&line[..], fields].concat());
        self.frame(HEADERS, WHOLE | if ends { END } else { 0 }, stream, &payload);
        stream
    }

    /// Returns the number of the next stream.
    pub(crate) fn number(&self) -> u32 {
        self.next
    }

    /// Sends a GET request for a path; returns its stream ID.
    pub(crate) fn ask(&mut self, path: &str) -> u32 {
        self.begin("GET", path, &[], true)
    }

    /// Sends a GET request for a path; returns the complete response.
    pub(crate) fn get(&mut self, path: &str) -> Got {
        let stream = self.ask(path);
        self.response(stream)
    }

    /// Sends a request with a body as fast as the server's windows allow.
    pub(crate) fn post(&mut self, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Got {
        let stream = self.begin("POST", path, fields, body.is_empty());
        if !body.is_empty() {
            self.body(stream, body);
        }
        self.response(stream)
    }

    /// Sends a body within its windows, with END_STREAM.
    pub(crate) fn body(&mut self, stream: u32, body: &[u8]) {
        self.part_of_body(stream, body, END);
    }

    /// Sends a body before a trailer section.
    pub(crate) fn body_without_end(&mut self, stream: u32, body: &[u8]) {
        self.part_of_body(stream, body, 0);
    }

    /// Sends up to `most` bytes of a body without an end, as far as the windows that were received allow. Returns their number.
    pub(crate) fn offer(&mut self, stream: u32, most: usize) -> usize {
        let mut sent = 0;
        self.settle();
        loop {
            let initial =
                self.settings.iter().rev().find(|(id, _)| *id == 4).map_or(65_535, |(_, value)| *value);
            let window = |id: u32, first: u64| first + self.windows.get(&id).copied().unwrap_or(0);
            let room =
                (window(stream, initial.into()) - sent as u64).min(window(0, 65_535) - self.sent) as usize;
            let part = room.min(most - sent).min(16_384);
            if part == 0 {
                let windows = self.windows.clone();
                self.settle();
                if sent == most || windows == self.windows {
                    return sent;
                }
                continue;
            }
            self.frame(DATA, 0, stream, &vec![7; part]);
            sent += part;
            self.sent += part as u64;
        }
    }

    fn part_of_body(&mut self, stream: u32, body: &[u8], end: u8) {
        let (mut sent, count) = (0, body.len());
        while sent < count {
            // The initial windows are those of RFC 9113; the server's SETTINGS may have changed that of streams.
            let initial =
                self.settings.iter().rev().find(|(id, _)| *id == 4).map_or(65_535, |(_, value)| *value);
            let window = |id: u32, first: u64| first + self.windows.get(&id).copied().unwrap_or(0);
            let of_stream = window(stream, initial.into()).saturating_sub(sent as u64);
            let room = of_stream.min(window(0, 65_535).saturating_sub(self.sent));
            let is_over = self.streams.get(&stream).is_some_and(|got| got.ended || got.reset.is_some());
            if is_over {
                return;
            }
            let part = (room as usize).min(count - sent).min(16_384);
            if part == 0 {
                self.read_frame().expect("a window");
                continue;
            }
            let flags = if sent + part == count { end } else { 0 };
            self.frame(DATA, flags, stream, &body[sent..sent + part]);
            sent += part;
            self.sent += part as u64;
        }
    }

    /// Returns the complete response of a stream, or the received part if the stream was reset.
    #[track_caller]
    pub(crate) fn response(&mut self, stream: u32) -> Got {
        self.until(|client| client.streams.get(&stream).is_some_and(|got| got.ended || got.reset.is_some()));
        self.streams[&stream].clone()
    }

    /// Reads frames until a condition is true.
    #[track_caller]
    pub(crate) fn until(&mut self, holds: impl Fn(&Http2<S>) -> bool) {
        while !holds(self) {
            if let Err(error) = self.read_frame() {
                panic!("{error}; goaways {:?}, streams {:?}", self.goaways, self.shown());
            }
        }
    }

    fn shown(&self) -> Vec<String> {
        let one = |(id, got): (&u32, &Got)| {
            format!(
                "{id}: {} {} bytes, ended {}, reset {:?}",
                got.status,
                got.body.len(),
                got.ended,
                got.reset
            )
        };
        self.streams.iter().map(one).collect()
    }

    /// Reads frames until the server closes the connection.
    #[track_caller]
    pub(crate) fn until_closed(&mut self) {
        loop {
            match self.read_frame() {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it stays open"),
                Err(_) => return,
            }
        }
    }

    /// Waits until the server has received everything sent before.
    #[track_caller]
    pub(crate) fn settle(&mut self) {
        let count = self.pings.len();
        self.frame(PING, 0, 0, b"settled?");
        self.until(|client| client.pings.len() > count);
    }

    /// Reads a frame and stores its content.
    pub(crate) fn read_frame(&mut self) -> std::io::Result<()> {
        while self.buf.len() < 9 || self.buf.len() < 9 + self.payload_len() {
            let mut piece = [0; 65_536];
            let count = self.stream.read(&mut piece)?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.buf.extend_from_slice(&piece[..count]);
        }
        let end = 9 + self.payload_len();
        let bytes: Vec<u8> = self.buf.drain(..end).collect();
        let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
        self.keep(bytes[3], bytes[4], stream, &bytes[9..]);
        Ok(())
    }

    fn payload_len(&self) -> usize {
        u32::from_be_bytes([0, self.buf[0], self.buf[1], self.buf[2]]) as usize
    }

    fn keep(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        match kind {
            DATA => {
                let got = self.streams.entry(stream).or_default();
                got.body.extend_from_slice(payload);
                got.frames.push(payload.len());
                got.ended |= flags & END != 0;
                self.order.push(stream);
                if self.opens && !payload.is_empty() {
                    let bytes = (payload.len() as u32).to_be_bytes();
                    // The server may have closed the connection already.
                    let _ = self
                        .try_send(&[frame(WINDOW, 0, 0, &bytes), frame(WINDOW, 0, stream, &bytes)].concat());
                }
            }
            HEADERS => self.head(flags, stream, payload),
            RESET => self.streams.entry(stream).or_default().reset = Some(number(0)),
            SETTINGS if flags & END == 0 => {
                let (all, _) = payload.as_chunks::<6>();
                self.settings.extend(all.iter().map(|&[i, j, a, b, c, d]| {
                    (u16::from_be_bytes([i, j]), u32::from_be_bytes([a, b, c, d]))
                }));
                // The server may have closed the connection already.
                let _ = self.try_send(&frame(SETTINGS, END, 0, &[]));
            }
            PING if flags & END != 0 => self.pings.push(payload.to_vec()),
            PING if self.acknowledges => {
                let _ = self.try_send(&frame(PING, END, 0, payload));
            }
            GO_AWAY => self.goaways.push((number(0), number(4))),
            WINDOW => *self.windows.entry(stream).or_default() += u64::from(number(0)),
            _ => {}
        }
    }

    fn head(&mut self, flags: u8, stream: u32, payload: &[u8]) {
        assert!(flags & WHOLE != 0, "no test has a head of several frames");
        let mut fields = Fields::new();
        let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let decoded = self.decoder.decode(payload, |name, value| fields.push((text(name), text(value))));
        decoded.expect("a good block");
        let never_indexed = self.decoder.take_never_indexed();
        let got = self.streams.entry(stream).or_default();
        got.never_indexed = never_indexed;
        let status: Option<u16> = match fields.first() {
            Some((name, value)) if name == ":status" => value.parse().ok(),
            _ => None,
        };
        match status {
            Some(status @ 100..=199) => got.interim.push((status, fields.split_off(1))),
            Some(status) => (got.status, got.fields) = (status, fields.split_off(1)),
            None => got.trailers = fields,
        }
        got.ended |= flags & END != 0;
    }
}
