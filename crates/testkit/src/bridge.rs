//! Runs tests of HTTP/1 over HTTP/2: a thread speaks HTTP/1 to the test's client and HTTP/2 to the server.
//!
//! [`PROTOCOL_VARIABLE`] enables the bridge for every [`Client`](crate::Client) that connects by TCP. A connection that
//! does not begin with a complete, ordinary request belongs to a test of HTTP/1 itself, and is passed through
//! unchanged. A later request that HTTP/2 cannot carry is also passed through, on a separate connection. The server
//! needs `http2 on`, which the harness adds.
//!
//! Requests are sent one after the other, each on a separate stream. Flow-control windows are opened as the test reads,
//! so that a slow reader slows down the server. A stream reset ends the test's connection, like a truncated HTTP/1
//! response.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use http::StatusCode;
use http::h2::hpack::{Decoder, push_field, push_request};
use rustix::event::{PollFd, PollFlags, poll};

/// The environment variable that selects the protocol to the server: `http2`.
pub const PROTOCOL_VARIABLE: &str = "RINGROAD_TEST_PROTOCOL";

// Frame types (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;

/// The flag END_STREAM of DATA and HEADERS, and ACK of SETTINGS and PING.
const END: u8 = 1;
/// The flag END_HEADERS of HEADERS and CONTINUATION.
const END_HEADERS: u8 = 4;

/// The client's connection preface (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The initial window size of streams and connections, in bytes (RFC 9113 section 6.9.2).
const WINDOW_BYTES: i64 = 65_535;

/// The maximum payload size that every peer accepts, in bytes (RFC 9113 section 4.2).
const FRAME_BYTES: usize = 16_384;

/// Whether tests connect to the server by HTTP/2.
pub(crate) fn is_enabled() -> bool {
    std::env::var(PROTOCOL_VARIABLE).is_ok_and(|value| value == "http2")
}

/// Connects to a server; returns the test's end of the bridge.
pub(crate) fn connect(to: SocketAddr) -> io::Result<(UnixStream, SocketAddr)> {
    let server = TcpStream::connect(to)?;
    server.set_nodelay(true)?;
    let local = server.local_addr()?;
    let (ours, tests) = UnixStream::pair()?;
    thread::spawn(move || {
        // An error ends both connections; the test sees a truncated connection, and its output has the reason.
        if let Err(error) = Bridge::new(ours, server, to).run() {
            eprintln!("bridge to {to}: {error}");
        }
    });
    Ok((tests, local))
}

/// Framing of the remaining body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    /// This number of bytes follows.
    Counted(u64),
    /// A chunk-size line follows.
    Chunked,
    /// This number of bytes of a chunk follows, and its line end.
    Chunk(u64),
    /// Nothing follows.
    Done,
}

/// An HTTP/1 request that HTTP/2 can carry.
#[derive(Debug)]
struct Request {
    /// Its encoded header block.
    block: Vec<u8>,
    body: Body,
    is_head: bool,
    closes: bool,
}

/// One connection of a test.
struct Bridge {
    /// Connection to the test's client.
    test: UnixStream,
    /// Connection to the server.
    server: TcpStream,
    /// The server's address, for an HTTP/1 connection.
    to: SocketAddr,
    /// Bytes from the test that are not forwarded yet, and whether its stream has ended.
    from_test: Vec<u8>,
    test_ended: bool,
    /// Bytes of incomplete frames.
    from_server: Vec<u8>,
    decoder: Decoder,
    /// Id of the last stream; 0 before the first.
    stream: u32,
    /// Remaining send windows of the connection and of the stream.
    windows: (i64, i64),
    /// Initial window of a new stream, from the server's settings.
    first_window: i64,
    exchange: Exchange,
    /// Whether the server has sent GOAWAY and accepts no further stream.
    is_leaving: bool,
}

/// Progress of a request and its response.
struct Exchange {
    /// Framing of the remaining request body.
    body: Body,
    /// Whether the request is a HEAD.
    is_head: bool,
    /// Whether the request has `Connection: close`.
    closes: bool,
    /// The header block received so far.
    header_block: Vec<u8>,
    /// Whether that block ends the stream.
    ends_after_headers: bool,
    /// Whether the header section of the response was sent to the test.
    has_head: bool,
    /// Whether the response is sent to the test with chunked coding.
    is_chunked: bool,
    /// Whether the response is complete.
    is_over: bool,
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            body: Body::Done,
            is_head: false,
            closes: false,
            header_block: Vec::new(),
            ends_after_headers: false,
            has_head: false,
            is_chunked: false,
            is_over: true,
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Bridge {
    fn new(test: UnixStream, server: TcpStream, to: SocketAddr) -> Bridge {
        Bridge {
            test,
            server,
            to,
            from_test: Vec::new(),
            test_ended: false,
            from_server: Vec::new(),
            decoder: Decoder::default(),
            stream: 0,
            windows: (WINDOW_BYTES, WINDOW_BYTES),
            first_window: WINDOW_BYTES,
            exchange: Exchange::default(),
            is_leaving: false,
        }
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            // If the response is already complete, this discards the remaining body.
            self.forward_body()?;
            if self.exchange.is_over && self.exchange.body == Body::Done {
                if self.exchange.closes || (self.test_ended && self.from_test.is_empty()) {
                    return Ok(());
                }
                if !self.from_test.is_empty() || self.test_ended {
                    match request(&self.from_test) {
                        Some((request, used)) if !self.is_leaving => {
                            self.from_test.drain(..used);
                            self.begin(request)?;
                        }
                        _ => return self.pass_through(),
                    }
                }
                self.forward_body()?;
            }
            if self.wait()? {
                return Ok(());
            }
        }
    }

    /// Waits for bytes of either side and reads them. Returns true if the test or the server has disconnected.
    fn wait(&mut self) -> io::Result<bool> {
        let reads_test = !self.test_ended && self.from_test.len() < 1 << 16;
        let events = if reads_test { PollFlags::IN } else { PollFlags::empty() };
        let mut set = [PollFd::new(&self.test, events), PollFd::new(&self.server, PollFlags::IN)];
        poll(&mut set, None)?;
        let (of_test, of_server) = (set[0].revents(), set[1].revents());
        let mut piece = [0; 65_536];
        if reads_test && of_test.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            let count = self.test.read(&mut piece)?;
            self.test_ended = count == 0;
            self.from_test.extend_from_slice(&piece[..count]);
        } else if of_test.contains(PollFlags::HUP) {
            // Both directions are closed: the client no longer reads the response.
            return Ok(true);
        }
        if of_server.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            let count = self.server.read(&mut piece)?;
            if count == 0 {
                return Ok(true);
            }
            self.from_server.extend_from_slice(&piece[..count]);
            self.take_frames()?;
        }
        Ok(false)
    }

    /// Connects the test with the server by HTTP/1.
    fn pass_through(self) -> io::Result<()> {
        let server = match self.stream {
            0 => self.server,
            _ => TcpStream::connect(self.to)?,
        };
        server.set_nodelay(true)?;
        (&server).write_all(&self.from_test)?;
        let (mut test, mut back) = (self.test.try_clone()?, server.try_clone()?);
        let forward = thread::spawn(move || {
            let _ = io::copy(&mut test, &mut back);
            let _ = back.shutdown(Shutdown::Write);
        });
        let _ = io::copy(&mut &server, &mut &self.test);
        let _ = self.test.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
        let _ = forward.join();
        Ok(())
    }

    /// Sends a frame. The call may block without a deadlock, because the server reads and sends concurrently.
    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
        let mut all = vec![a, b, c, kind, flags];
        all.extend_from_slice(&stream.to_be_bytes());
        all.extend_from_slice(payload);
        self.server.write_all(&all)
    }

    /// Sends the header section of a request, on a new stream.
    fn begin(&mut self, request: Request) -> io::Result<()> {
        if self.stream == 0 {
            self.server.write_all(PREFACE)?;
            self.frame(SETTINGS, 0, 0, &[])?;
        }
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        self.windows.1 = self.first_window;
        let mut flags = if request.body == Body::Done { END } else { 0 };
        let mut kind = HEADERS;
        let mut pieces = request.block.chunks(FRAME_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                flags |= END_HEADERS;
            }
            self.frame(kind, flags, self.stream, piece)?;
            (kind, flags) = (CONTINUATION, 0);
        }
        let Request { body, is_head, closes, .. } = request;
        self.exchange = Exchange { body, is_head, closes, is_over: false, ..Exchange::default() };
        Ok(())
    }

    /// Sends as much of the request body as is available and fits into the windows.
    fn forward_body(&mut self) -> io::Result<()> {
        while self.exchange.body != Body::Done {
            let room = match self.exchange.is_over {
                true => FRAME_BYTES,
                false => self.windows.0.min(self.windows.1).clamp(0, FRAME_BYTES as i64) as usize,
            };
            match self.exchange.body {
                Body::Counted(left) => {
                    let part =
                        self.from_test.len().min(room).min(usize::try_from(left).unwrap_or(usize::MAX));
                    if part == 0 {
                        break;
                    }
                    let bytes: Vec<u8> = self.from_test.drain(..part).collect();
                    let left = left - part as u64;
                    self.exchange.body = if left == 0 { Body::Done } else { Body::Counted(left) };
                    self.data(&bytes, left == 0)?;
                }
                Body::Chunked => {
                    let Some(line) = self.from_test.windows(2).position(|two| two == b"\r\n") else { break };
                    let text = std::str::from_utf8(&self.from_test[..line]).ok();
                    let size = text.and_then(crate::response::chunk_size);
                    match size.ok_or_else(|| broken("chunk size of a request"))? {
                        0 => {
                            // Trailers are skipped.
                            let end = self.from_test[line..].windows(4).position(|four| four == b"\r\n\r\n");
                            let Some(end) = end else { break };
                            self.from_test.drain(..line + end + 4);
                            self.exchange.body = Body::Done;
                            self.data(&[], true)?;
                        }
                        size => {
                            self.from_test.drain(..line + 2);
                            self.exchange.body = Body::Chunk(size);
                        }
                    }
                }
                Body::Chunk(0) if self.from_test.len() < 2 => break,
                Body::Chunk(0) => {
                    if !self.from_test.starts_with(b"\r\n") {
                        return Err(broken("no line end behind a chunk"));
                    }
                    self.from_test.drain(..2);
                    self.exchange.body = Body::Chunked;
                }
                Body::Chunk(left) => {
                    let part = self.part(left, room);
                    if part == 0 {
                        break;
                    }
                    let bytes: Vec<u8> = self.from_test.drain(..part).collect();
                    self.exchange.body = Body::Chunk(left - part as u64);
                    self.data(&bytes, false)?;
                }
                Body::Done => break,
            }
        }
        // The remaining body will not arrive.
        let is_cut = self.test_ended && self.from_test.is_empty() && self.exchange.body != Body::Done;
        if is_cut && !self.exchange.is_over {
            return Err(broken("the test's request ends in its body"));
        }
        Ok(())
    }

    /// Returns how many of the next `left` bytes are available and fit into `room`.
    fn part(&self, left: u64, room: usize) -> usize {
        self.from_test.len().min(room).min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Sends a piece of the body, unless the response has already ended the stream.
    fn data(&mut self, bytes: &[u8], is_last: bool) -> io::Result<()> {
        if self.exchange.is_over {
            return Ok(());
        }
        self.windows.0 -= bytes.len() as i64;
        self.windows.1 -= bytes.len() as i64;
        self.frame(DATA, if is_last { END } else { 0 }, self.stream, bytes)
    }

    /// Handles all complete frames.
    fn take_frames(&mut self) -> io::Result<()> {
        while let Some(length) = self.from_server.first_chunk::<9>() {
            let end = 9 + u32::from_be_bytes([0, length[0], length[1], length[2]]) as usize;
            if self.from_server.len() < end {
                break;
            }
            let bytes: Vec<u8> = self.from_server.drain(..end).collect();
            let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
            self.take(bytes[3], bytes[4], stream, &bytes[9..])?;
        }
        Ok(())
    }

    /// Handles a frame. Frames of earlier streams only open the connection window.
    fn take(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let is_current = stream == self.stream && !self.exchange.is_over;
        let number = || {
            let bytes = payload.first_chunk::<4>().ok_or_else(|| broken("short frame"))?;
            Ok::<u32, io::Error>(u32::from_be_bytes(*bytes))
        };
        match kind {
            DATA => {
                if is_current {
                    self.take_data(payload)?;
                }
                let bytes = (payload.len() as u32).to_be_bytes();
                if !payload.is_empty() {
                    self.frame(WINDOW, 0, 0, &bytes)?;
                }
                if is_current && flags & END != 0 {
                    self.end(&[])?;
                } else if is_current && !payload.is_empty() {
                    self.frame(WINDOW, 0, stream, &bytes)?;
                }
            }
            HEADERS | CONTINUATION => {
                if kind == HEADERS {
                    self.exchange.ends_after_headers = flags & END != 0;
                }
                self.exchange.header_block.extend_from_slice(payload);
                if flags & END_HEADERS != 0 {
                    self.take_headers(is_current)?;
                }
            }
            RESET if is_current => return Err(broken("a stream was reset")),
            SETTINGS if flags & END == 0 => {
                for &[a, b, c, d, e, f] in payload.as_chunks::<6>().0 {
                    if u16::from_be_bytes([a, b]) == 4 {
                        let value = i64::from(u32::from_be_bytes([c, d, e, f]));
                        self.windows.1 += value - self.first_window;
                        self.first_window = value;
                    }
                }
                self.frame(SETTINGS, END, 0, &[])?;
            }
            PING if flags & END == 0 => self.frame(PING, END, 0, payload)?,
            GO_AWAY => self.is_leaving = true,
            WINDOW if stream == 0 => self.windows.0 += i64::from(number()?),
            WINDOW if is_current => self.windows.1 += i64::from(number()?),
            _ => {}
        }
        Ok(())
    }

    /// Decodes a header block. Sends a header section to the test as HTTP/1; trailers complete the response.
    fn take_headers(&mut self, is_current: bool) -> io::Result<()> {
        let block = std::mem::take(&mut self.exchange.header_block);
        let mut fields: Vec<(String, String)> = Vec::new();
        let text = |bytes: &[u8]| bytes.iter().map(|&byte| char::from(byte)).collect::<String>();
        let decoded = self.decoder.decode(&block, |name, value| fields.push((text(name), text(value))));
        decoded.map_err(|_| broken("header block of the server"))?;
        if !is_current {
            return Ok(());
        }
        if self.exchange.has_head {
            return self.end(&fields);
        }
        if fields.first().is_none_or(|(name, _)| name != ":status") {
            return Err(broken("a response without a status"));
        }
        let status: u16 = fields.remove(0).1.parse().map_err(|_| broken("status"))?;
        let is_interim = status < 200;
        let has_length = fields.iter().any(|(name, _)| name == "content-length");
        let has_body = !is_interim && status != 204 && status != 304 && !self.exchange.is_head;
        let is_over = self.exchange.ends_after_headers;
        let reason = StatusCode::new(status).map_or("", StatusCode::reason);
        let mut head = format!("HTTP/1.1 {status} {reason}\r\n");
        for (name, value) in &fields {
            head.push_str(&format!("{}: {value}\r\n", capitalised(name)));
        }
        if !is_interim {
            self.exchange.has_head = true;
            self.exchange.is_chunked = has_body && !has_length && !is_over;
            if self.exchange.is_chunked {
                head.push_str("Transfer-Encoding: chunked\r\n");
            } else if has_body && !has_length {
                head.push_str("Content-Length: 0\r\n");
            }
            let connection = if self.exchange.closes { "close" } else { "keep-alive" };
            head.push_str(&format!("Connection: {connection}\r\n"));
        }
        head.push_str("\r\n");
        self.test.write_all(&bytes_of(&head))?;
        if is_over { self.end(&[]) } else { Ok(()) }
    }

    /// Sends a piece of the response to the test.
    fn take_data(&mut self, payload: &[u8]) -> io::Result<()> {
        if !self.exchange.has_head {
            return Err(broken("DATA before HEADERS"));
        }
        if payload.is_empty() {
            return Ok(());
        }
        if self.exchange.is_chunked {
            let line = format!("{:x}\r\n", payload.len());
            self.test.write_all(&[line.as_bytes(), payload, b"\r\n"].concat())
        } else {
            self.test.write_all(payload)
        }
    }

    /// Completes the response.
    fn end(&mut self, trailers: &[(String, String)]) -> io::Result<()> {
        if self.exchange.is_chunked {
            let mut text = String::from("0\r\n");
            for (name, value) in trailers {
                text.push_str(&format!("{}: {value}\r\n", capitalised(name)));
            }
            text.push_str("\r\n");
            self.test.write_all(text.as_bytes())?;
        }
        self.exchange.is_over = true;
        Ok(())
    }
}

/// Parses the request at the start of `bytes`; returns it with its length, if it is complete and HTTP/2 can carry it.
fn request(bytes: &[u8]) -> Option<(Request, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let text: String = bytes[..end].iter().map(|&byte| char::from(byte)).collect();
    let mut lines = text.split("\r\n");
    let (method, rest) = lines.next()?.split_once(' ')?;
    let target = rest.strip_suffix(" HTTP/1.1")?;
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_path = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_method || method == "CONNECT" || !is_path {
        return None;
    }
    let (mut host, mut fields) = (None, Vec::new());
    let (mut body, mut closes) = (Body::Done, false);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let name = name.to_ascii_lowercase();
        let value = value.trim_matches([' ', '\t']);
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) || value.chars().any(|char| char.is_ascii_control())
        {
            return None;
        }
        match name.as_str() {
            "host" if host.is_none() && !value.is_empty() => host = Some(value.to_owned()),
            "host" | "upgrade" | "keep-alive" | "proxy-connection" | "te" | "trailer" => return None,
            "connection" => match value.to_ascii_lowercase().as_str() {
                "close" => closes = true,
                "keep-alive" => {}
                _ => return None,
            },
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") && body == Body::Done => {
                body = Body::Chunked
            }
            "transfer-encoding" => return None,
            "content-length" if body == Body::Done && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                match value.parse().ok()? {
                    0 => {}
                    count => body = Body::Counted(count),
                }
                fields.push((name, value.to_owned()));
            }
            "content-length" => return None,
            _ => fields.push((name, value.to_owned())),
        }
    }
    let mut block = Vec::new();
    push_request(&mut block, method.as_bytes(), b"http", target.as_bytes(), &bytes_of(&host?));
    fields.iter().for_each(|(name, value)| push_field(&mut block, name.as_bytes(), &bytes_of(value)));
    Some((Request { block, body, is_head: method == "HEAD", closes }, end + 4))
}

/// Encodes a text of Latin-1 characters as bytes.
fn bytes_of(text: &str) -> Vec<u8> {
    text.chars().map(|char| char as u8).collect()
}

/// Returns a field name as HTTP/1 writes it: `Content-Type` for `content-type`. Tests that compare bytes expect the
/// server's usual form.
fn capitalised(name: &str) -> String {
    if name == "etag" {
        return "ETag".to_owned();
    }
    let mut starts = true;
    let upper = |char: char| {
        if std::mem::replace(&mut starts, char == '-') { char.to_ascii_uppercase() } else { char }
    };
    name.chars().map(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_requests_are_translated() {
        let carried = |text: &str| request(text.as_bytes()).map(|(request, used)| (request.body, used));
        assert_eq!(carried("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Some((Body::Done, 27)));
        let post = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(carried(post), Some((Body::Counted(3), post.len() - 3)));
        for text in [
            "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nA b: c\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert_eq!(carried(text), None, "{text}");
        }
    }
}
