//! The HTTP/2 client: concurrent requests in frames of RFC 9113, on a keep-alive connection.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

/// Number of concurrent requests, each on a separate stream.
pub(crate) const AT_ONCE: u32 = 10;

/// The preface, an empty SETTINGS, and a WINDOW_UPDATE that opens the connection window for the complete run.
const BEGINNING: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x7f\xfe\0\0";

/// The header block of the first request: four of its fields are added to the dynamic table (RFC 7541 section 6.2.1).
const FIRST: &[u8] =
    b"\x82\x86\x44\x0a/page.html\x41\x0fwww.example.org\x7a\x0aclient/1.0\x53\x13text/html,*/*;q=0.8\x90";

/// The header block of all other requests: the four fields by their indexes in the dynamic table, where the newest one
/// has index 62.
const NEXT: &[u8] = b"\x82\x86\xc1\xc0\xbf\xbe\x90";

/// Size of a frame header; below, frame types and flags.
const HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// State of a connection.
#[derive(Default)]
pub(crate) struct Client {
    /// Id of the last stream; 0 before the first.
    stream: u32,
    /// Frames to be sent to the server.
    frames: Vec<u8>,
    /// Bytes of an incomplete frame.
    rest: Vec<u8>,
    /// Number of incomplete responses.
    missing: u32,
    /// Number of body bytes received.
    pub(crate) body: usize,
}

impl Client {
    /// Sends requests.
    pub(crate) fn ask(&mut self, client: &mut UnixStream) -> io::Result<()> {
        self.frames.clear();
        for _ in 0..AT_ONCE {
            let block = if self.stream == 0 { FIRST } else { NEXT };
            if self.stream == 0 {
                self.frames.extend_from_slice(BEGINNING);
                self.stream = 1;
            } else {
                self.stream += 2;
            }
            self.frames.extend_from_slice(&[0, 0, block.len() as u8, HEADERS, END_STREAM | END_HEADERS]);
            self.frames.extend_from_slice(&self.stream.to_be_bytes());
            self.frames.extend_from_slice(block);
        }
        self.missing += AT_ONCE;
        client.write_all(&self.frames)
    }

    /// Whether all responses are complete.
    pub(crate) fn is_served(&self) -> bool {
        self.missing == 0
    }

    /// Processes bytes received from the server.
    pub(crate) fn take(&mut self, received: &[u8], client: &mut UnixStream) -> io::Result<()> {
        self.rest.extend_from_slice(received);
        let mut at = 0;
        while let Some(&[high, middle, low, kind, flags, ..]) = self.rest.get(at..at + HEADER) {
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            if self.rest.len() < at + HEADER + length {
                break;
            }
            match kind {
                DATA | HEADERS => {
                    self.body += if kind == DATA { length } else { 0 };
                    self.missing -= u32::from(flags & END_STREAM != 0);
                }
                SETTINGS if flags & ACK == 0 => client.write_all(&[0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0])?,
                _ => {}
            }
            at += HEADER + length;
        }
        self.rest.drain(..at);
        Ok(())
    }
}
