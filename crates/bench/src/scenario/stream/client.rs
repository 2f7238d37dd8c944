//! One client of `bench stream`: measures the time to the first byte, and the delay of each piece since it was sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flate2::{Decompress, FlushDecompress};
use http::framing::{ChunkedDecoder, Event};

use super::origin::{DIGITS, MARK};
use super::{GZIP, MESSAGE_BYTES, StreamKind, WEB_SOCKET};

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
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
) -> Result<StreamTimes, String> {
    let mut client =
        StreamClient { socket: connect(server).map_err(describe)?, times: StreamTimes::default() };
    let asked = Instant::now();
    let request = kind.request(name);
    client.socket.write_all(request.as_bytes()).map_err(describe)?;
    let (end, rest) = client.read_head(asked)?;
    if kind == WEB_SOCKET {
        client.exchange(pieces)?;
    } else {
        client.read_pieces(kind, end, rest, epoch)?;
    }
    match client.times.delays.len() {
        count if count == pieces => Ok(client.times),
        count => Err(format!("{count} of {pieces} pieces")),
    }
}

fn connect(server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&server, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn describe(error: std::io::Error) -> String {
    error.to_string()
}

struct StreamClient {
    socket: TcpStream,
    times: StreamTimes,
}

/// The end of a body. A server that has received a complete body before it responds may send its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    Chunked,
    Length(usize),
    Close,
}

impl BodyEnd {
    fn of(head: &[u8]) -> BodyEnd {
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        match length {
            Some(bytes) => BodyEnd::Length(bytes),
            None if head.contains("\ntransfer-encoding: chunked") => BodyEnd::Chunked,
            None => BodyEnd::Close,
        }
    }
}

impl StreamClient {
    /// Reads up to the end of the header section; returns the end of the body, and the bytes after the section.
    fn read_head(&mut self, asked: Instant) -> Result<(BodyEnd, Vec<u8>), String> {
        let (mut head, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let count = self.socket.read(&mut part).map_err(describe)?;
            if head.is_empty() {
                self.times.first_byte = asked.elapsed();
            }
            if count == 0 {
                return Err("no response".to_owned());
            }
            head.extend_from_slice(&part[..count]);
            if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let rest = head.split_off(end + 4);
                let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
                let is_right = line.ends_with(b" 200 OK") || line.ends_with(b" 101 Switching Protocols");
                let end = BodyEnd::of(&head);
                return if is_right { Ok((end, rest)) } else { Err(line.escape_ascii().to_string()) };
            }
        }
    }

    /// Reads and decodes the body to its end.
    fn read_pieces(
        &mut self,
        kind: StreamKind,
        end: BodyEnd,
        mut received: Vec<u8>,
        epoch: Instant,
    ) -> Result<(), String> {
        let mut total = 0;
        let mut chunks = ChunkedDecoder::without_limits();
        let mut inflate = (kind == GZIP).then(|| Decompress::new_gzip(15));
        let (mut body, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            total += received.len();
            let mut ended = end == BodyEnd::Length(total);
            let coded = match end {
                BodyEnd::Chunked => unframed(&mut chunks, &received, &mut ended)?,
                BodyEnd::Length(_) | BodyEnd::Close => std::mem::take(&mut received),
            };
            match &mut inflate {
                Some(inflate) => inflated(inflate, &coded, &mut body)?,
                None => body.extend_from_slice(&coded),
            }
            self.take_pieces(&mut body, epoch);
            if ended {
                return Ok(());
            }
            let count = self.socket.read(&mut part).map_err(describe)?;
            if count == 0 {
                return if end == BodyEnd::Close { Ok(()) } else { Err("the body ended early".to_owned()) };
            }
            received = part[..count].to_vec();
        }
    }

    /// Records the delays of complete pieces; an incomplete piece stays in the buffer.
    fn take_pieces(&mut self, body: &mut Vec<u8>, epoch: Instant) {
        let now = epoch.elapsed();
        let complete = body.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let rest = body.split_off(complete);
        for line in std::mem::replace(body, rest).split(|&byte| byte == b'\n') {
            let start = line.windows(MARK.len()).position(|bytes| bytes == MARK.as_bytes());
            let digits = start.and_then(|start| line.get(start + MARK.len()..start + MARK.len() + DIGITS));
            let sent = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
            self.times.delays.extend(sent.map(|sent| now.saturating_sub(Duration::from_nanos(sent))));
        }
    }

    /// Sends messages and waits for the echo of each.
    fn exchange(&mut self, messages: usize) -> Result<(), String> {
        let message = vec![b'm'; MESSAGE_BYTES];
        let mut back = vec![0; MESSAGE_BYTES];
        for _ in 0..messages {
            let began = Instant::now();
            self.socket.write_all(&message).map_err(describe)?;
            self.socket.read_exact(&mut back).map_err(describe)?;
            self.times.delays.push(began.elapsed());
        }
        Ok(())
    }
}

/// Returns the content of the chunks in these bytes.
fn unframed(chunks: &mut ChunkedDecoder, mut bytes: &[u8], ended: &mut bool) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    loop {
        let step = chunks.handle(bytes).map_err(|error| format!("{error:?}"))?;
        match step.event {
            Event::Data { start, end } => content.extend_from_slice(&bytes[start..end]),
            Event::More => return Ok(content),
            Event::End => {
                *ended = true;
                return Ok(content);
            }
        }
        bytes = &bytes[step.consumed..];
    }
}

/// Decompresses the available bytes and appends the result.
fn inflated(inflate: &mut Decompress, coded: &[u8], body: &mut Vec<u8>) -> Result<(), String> {
    let mut at = 0;
    while at < coded.len() {
        body.reserve(16 << 10);
        let before = inflate.total_in();
        inflate
            .decompress_vec(&coded[at..], body, FlushDecompress::None)
            .map_err(|error| error.to_string())?;
        let taken = (inflate.total_in() - before) as usize;
        at += taken;
        if taken == 0 && body.len() < body.capacity() {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_body_is_in_the_head() {
        for (field, expected) in [
            ("Content-Length: 12\r\n", BodyEnd::Length(12)),
            ("Transfer-Encoding: chunked\r\n", BodyEnd::Chunked),
            ("Connection: close\r\n", BodyEnd::Close),
        ] {
            assert_eq!(BodyEnd::of(format!("HTTP/1.1 200 OK\r\n{field}\r\n").as_bytes()), expected);
        }
    }
}
