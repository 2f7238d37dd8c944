//! One client of `bench stream`: measures the time to the first byte, and the delay of each piece since it was sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flate2::{Decompress, FlushDecompress};
use http::framing::{ChunkedDecoder, Event};

use super::origin::{DIGITS, MARK};
use super::{GZIP, MESSAGE_BYTES, StreamKind, WEB_SOCKET};

/// Timeout of each operation.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The times that one client measured.
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
    let rest = client.read_head(asked)?;
    if kind == WEB_SOCKET {
        client.exchange(pieces)?;
    } else {
        client.read_pieces(kind, rest, epoch)?;
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

impl StreamClient {
    /// Reads up to the end of the header section; returns the bytes after it.
    fn read_head(&mut self, asked: Instant) -> Result<Vec<u8>, String> {
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
                return if is_right { Ok(rest) } else { Err(line.escape_ascii().to_string()) };
            }
        }
    }

    /// Reads and decodes the body to its end.
    fn read_pieces(&mut self, kind: StreamKind, mut received: Vec<u8>, epoch: Instant) -> Result<(), String> {
        let mut chunks = ChunkedDecoder::without_limits();
        let mut inflate = (kind == GZIP).then(|| Decompress::new_gzip(15));
        let (mut body, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let mut ended = false;
            let coded = match kind.is_chunked() {
                true => unframed(&mut chunks, &received, &mut ended)?,
                false => std::mem::take(&mut received),
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
                return if kind.is_chunked() { Err("the body ended early".to_owned()) } else { Ok(()) };
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
