//! One client of `bench stream`: measures the time to the first byte, and the delay of each piece since it was sent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use http::framing::{ChunkedDecoder, Event};

use super::origin::{DIGITS, MARK};
use super::{GZIP, MESSAGE_BYTES, StreamKind, WEB_SOCKET};

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(super) struct StreamTimes {
    /// Time from the end of the request to the first byte of the response.
    pub(super) first_byte: Duration,
    /// Delays since the origin sent each piece; for a WebSocket message, the time until it was echoed completely.
    pub(super) delays: Vec<Duration>,
}

/// Requests one stream and reads it to its end.
pub(super) fn read(
    server: SocketAddr,
    kind: StreamKind,
    name: u64,
    epoch: Instant,
    pieces: usize,
) -> io::Result<StreamTimes> {
    let mut socket = TcpStream::connect_timeout(&server, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_nodelay(true)?;
    let asked = Instant::now();
    socket.write_all(kind.request(name).as_bytes())?;
    let mut reader = BufReader::with_capacity(64 << 10, socket);
    reader.fill_buf()?;
    let first_byte = asked.elapsed();
    let end = read_head(&mut reader)?;
    let delays =
        if kind == WEB_SOCKET { exchange(reader, pieces)? } else { delays(body(reader, end, kind), epoch)? };
    match delays.len() {
        count if count == pieces => Ok(StreamTimes { first_byte, delays }),
        count => Err(io::Error::other(format!("{count} of {pieces} pieces"))),
    }
}

/// The end of a body. A server that has received a complete body before it responds may send its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    Chunked,
    Length(u64),
}

/// Reads the header section; returns the end of the body. A body without a length ends with the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<BodyEnd> {
    let mut status = String::new();
    reader.read_line(&mut status)?;
    let status = status.trim_end();
    if !status.ends_with(" 200 OK") && !status.ends_with(" 101 Switching Protocols") {
        let said = if status.is_empty() { "no response" } else { status };
        return Err(io::Error::other(said));
    }
    let mut end = BodyEnd::Length(u64::MAX);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            None if line.trim_end().is_empty() => return Ok(end),
            Some(("transfer-encoding", "chunked")) => end = BodyEnd::Chunked,
            Some(("content-length", length)) => end = BodyEnd::Length(length.parse().unwrap_or(u64::MAX)),
            _ => {}
        }
    }
}

/// Returns the content of a response, decoded piece by piece.
fn body(reader: BufReader<TcpStream>, end: BodyEnd, kind: StreamKind) -> Box<dyn Read> {
    let content: Box<dyn Read> = match end {
        BodyEnd::Chunked => Box::new(Chunks { reader, decoder: ChunkedDecoder::without_limits() }),
        BodyEnd::Length(length) => Box::new(reader.take(length)),
    };
    if kind == GZIP { Box::new(GzDecoder::new(content)) } else { content }
}

/// The content of a chunked body.
struct Chunks {
    reader: BufReader<TcpStream>,
    decoder: ChunkedDecoder,
}

impl Read for Chunks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // The connection stays open after the end of the body.
        if self.decoder.is_done() {
            return Ok(0);
        }
        loop {
            let input = self.reader.fill_buf()?;
            let input = &input[..input.len().min(out.len())];
            let step = self.decoder.handle(input).map_err(|error| io::Error::other(format!("{error:?}")))?;
            let count = match step.event {
                Event::Data { start, end } => {
                    out[..end - start].copy_from_slice(&input[start..end]);
                    Some(end - start)
                }
                Event::More if !input.is_empty() => None,
                Event::More | Event::End => Some(0),
            };
            self.reader.consume(step.consumed);
            if let Some(count) = count {
                return Ok(count);
            }
        }
    }
}

/// Returns the delay of each piece: a line with the time at which it was sent.
fn delays(body: impl Read, epoch: Instant) -> io::Result<Vec<Duration>> {
    let mut delays = Vec::new();
    for line in BufReader::new(body).lines() {
        let line = line?;
        let now = epoch.elapsed();
        let sent = line.split_once(MARK).and_then(|(_, rest)| rest.get(..DIGITS)?.parse().ok());
        delays.extend(sent.map(|sent| now.saturating_sub(Duration::from_nanos(sent))));
    }
    Ok(delays)
}

/// Sends messages and waits for the echo of each; returns the times.
fn exchange(mut reader: BufReader<TcpStream>, messages: usize) -> io::Result<Vec<Duration>> {
    let message = vec![b'm'; MESSAGE_BYTES];
    let mut back = vec![0; MESSAGE_BYTES];
    let mut delays = Vec::new();
    for _ in 0..messages {
        let began = Instant::now();
        reader.get_mut().write_all(&message)?;
        reader.read_exact(&mut back)?;
        delays.push(began.elapsed());
    }
    Ok(delays)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_body_is_in_the_head() {
        for (field, expected) in [
            ("Content-Length: 12\r\n", BodyEnd::Length(12)),
            ("Transfer-Encoding: chunked\r\n", BodyEnd::Chunked),
            ("Connection: close\r\n", BodyEnd::Length(u64::MAX)),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{field}\r\nbody");
            let mut input = head.as_bytes();
            assert_eq!(read_head(&mut input).unwrap(), expected);
            assert_eq!(input, b"body");
        }
        let refused = read_head(&mut &b"HTTP/1.1 502 Bad Gateway\r\n\r\n"[..]).unwrap_err();
        assert_eq!(refused.to_string(), "HTTP/1.1 502 Bad Gateway");
    }

    #[test]
    fn each_line_with_a_time_is_a_piece() {
        let piece = |nanos: u64| format!("{MARK}{nanos:0DIGITS$} words\n\n");
        let body = piece(1) + &piece(2) + ": a comment\n";
        assert_eq!(delays(body.as_bytes(), Instant::now()).unwrap().len(), 2);
    }
}
