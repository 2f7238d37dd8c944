//! An accepted connection, for a raw script or for the loop that sends replies.
//!
//! [`Connection`] parses requests strictly and sends the scripted reply. Every read also returns when the peer or the
//! origin ends the connection, and reports this by its return value. So a script is a loop that stops at such a value.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use crate::gate::{Gate, Stop};
use crate::origin::hub::Hub;
use crate::origin::reply::Reply;
use crate::origin::request::{OriginRequest, RequestBody};
use crate::origin::send;
use crate::socket::Socket;

/// Maximum size of a request head: 1 MiB, more than any proxy forwards.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// Maximum size of a stored request body: 256 MiB, so that a faulty proxy does not exhaust the memory.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The state of a connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It stays open for another request.
    Kept,
    /// It is to be closed.
    Close,
    /// It is to be reset.
    Reset,
    /// The peer disconnected before everything was sent.
    Aborted,
}

/// A connection that the origin accepted.
pub struct Connection {
    socket: Arc<Socket>,
    hub: Arc<Hub>,
    /// Bytes that were read and not consumed yet.
    input: Vec<u8>,
    number: u64,
    requests: u64,
    /// Whether a request counts as in flight.
    in_flight: bool,
}

impl Connection {
    pub(crate) fn new(socket: Arc<Socket>, hub: Arc<Hub>, number: u64) -> Connection {
        Connection { socket, hub, input: Vec::new(), number, requests: 0, in_flight: false }
    }

    /// Returns the number of the connection, counted from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Reads a request with its body. Returns `None` if the connection ends instead.
    pub fn read_request(&mut self) -> Option<OriginRequest> {
        let mut request = self.read_head()?;
        if request.lists("expect", "100-continue") {
            self.send("HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.read_body(&mut request).then(|| {
            self.hub.record_body(&request);
            request
        })
    }

    /// Reads the head of a request. Returns `None` if the connection ends instead.
    pub fn read_head(&mut self) -> Option<OriginRequest> {
        self.finish_request();
        let head = self.until(b"\r\n\r\n", HEAD_BYTES_MAX, self.input.is_empty())?;
        match OriginRequest::parse(&head[..head.len() - 2]) {
            Ok(mut request) => {
                self.requests += 1;
                self.in_flight = true;
                (request.connection, request.number) = (self.number, self.requests);
                self.hub.record(&mut request);
                Some(request)
            }
            Err(what) => {
                self.hub.fault(format!("malformed request: {what}"));
                None
            }
        }
    }

    /// Reads the body that follows a head into the request; returns false if it is incomplete.
    pub fn read_body(&mut self, request: &mut OriginRequest) -> bool {
        match request.body_framing() {
            Ok(RequestBody::Counted(length)) => {
                let body = self.read_exact(length as usize);
                let whole = body.is_some();
                request.body = body.unwrap_or_default();
                whole
            }
            Ok(RequestBody::Chunked) => self.read_chunks(request).is_some(),
            Err(what) => {
                self.hub.fault(format!("malformed request {} {}: {what}", request.method, request.target));
                false
            }
        }
    }

    fn read_chunks(&mut self, request: &mut OriginRequest) -> Option<()> {
        loop {
            let line = self.until(b"\r\n", HEAD_BYTES_MAX, false)?;
            let text = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let digits = text.split(';').next().unwrap_or("");
            let Ok(size) = u64::from_str_radix(digits, 16) else {
                self.hub.fault(format!("malformed chunk size {text:?}"));
                return None;
            };
            if size == 0 {
                break;
            }
            request.chunks.push(size);
            request.body.extend(self.read_exact(size as usize)?);
            if self.read_exact(2)? != b"\r\n" || request.body.len() > BODY_BYTES_MAX {
                self.hub
                    .fault(format!("no end after a chunk of {size}, {} bytes so far", request.body.len()));
                return None;
            }
        }
        loop {
            let line = self.until(b"\r\n", HEAD_BYTES_MAX, false)?;
            if line.len() == 2 {
                return Some(());
            }
            request.trailers.push(line[..line.len() - 2].to_vec());
        }
    }

    /// Reads this many bytes. Returns `None` if the connection ends before.
    pub fn read_exact(&mut self, count: usize) -> Option<Vec<u8>> {
        if count > BODY_BYTES_MAX {
            self.hub.fault(format!("a body of {count} bytes"));
            return None;
        }
        while self.input.len() < count {
            if self.fill() == 0 {
                self.hub.update(|state| state.stats.cut_requests += 1);
                return None;
            }
        }
        let rest = self.input.split_off(count);
        Some(std::mem::replace(&mut self.input, rest))
    }

    /// Reads the available bytes, at least one. Returns `None` if the connection ends.
    pub fn read_some(&mut self) -> Option<Vec<u8>> {
        if self.input.is_empty() && self.fill() == 0 {
            return None;
        }
        Some(std::mem::take(&mut self.input))
    }

    /// Sends bytes unchanged; returns false if the peer has disconnected.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.write(bytes.as_ref()).is_ok()
    }

    /// Sends the reply to a request.
    pub fn reply(&mut self, request: &OriginRequest, reply: &Reply) -> Ended {
        let mut ended = send::send_reply(self, &request.method, reply);
        match ended {
            Ended::Aborted => self.hub.update(|state| state.stats.aborted += 1),
            _ => self.hub.update(|state| state.stats.replies += 1),
        }
        self.finish_request();
        if let (Ended::Kept, Some(then)) = (ended, &reply.then) {
            then(self);
            ended = Ended::Close;
        }
        ended
    }

    /// Arrives at a gate and waits there; returns false if the origin ends instead.
    pub fn pass(&self, gate: &Gate) -> bool {
        gate.pass(self.stop())
    }

    /// Waits until the peer closes the connection; received bytes are discarded.
    pub fn wait_for_close(&mut self) {
        while self.fill() > 0 {
            self.input.clear();
        }
    }

    /// Echoes all received bytes until the peer ends the stream.
    pub fn echo(&mut self) {
        while let Some(bytes) = self.read_some() {
            if !self.send(bytes) {
                return;
            }
        }
    }

    /// Shuts down the sending direction only.
    pub fn half_close(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Makes the next close a reset.
    pub fn reset(&mut self) {
        self.socket.reset_on_close();
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.hub.stop
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)?;
        if !bytes.is_empty() {
            self.hub.update(|state| state.stats.bytes_sent += bytes.len() as u64);
        }
        Ok(())
    }

    /// Stops counting the last request as in flight.
    pub(crate) fn finish_request(&mut self) {
        if std::mem::take(&mut self.in_flight) {
            self.hub.update(|state| state.stats.in_flight -= 1);
        }
    }

    /// Reads up to and including `end`. The end of the connection counts as a truncated request, unless it `may_end`
    /// before the first byte.
    fn until(&mut self, end: &[u8], limit: usize, may_end: bool) -> Option<Vec<u8>> {
        let mut searched = 0;
        loop {
            let from = searched.min(self.input.len());
            if let Some(at) = self.input[from..].windows(end.len()).position(|window| window == end) {
                let rest = self.input.split_off(from + at + end.len());
                return Some(std::mem::replace(&mut self.input, rest));
            }
            searched = (self.input.len() + 1).saturating_sub(end.len());
            if self.input.len() > limit {
                self.hub.fault(format!("more than {limit} bytes without an end"));
                return None;
            }
            if self.fill() == 0 {
                if !(may_end && self.input.is_empty()) {
                    self.hub.update(|state| state.stats.cut_requests += 1);
                }
                return None;
            }
        }
    }

    /// Reads more input. Returns 0 at the end of the connection and after an error, which a script does not
    /// distinguish.
    fn fill(&mut self) -> usize {
        let mut buffer = [0; 16 * 1024];
        let count = loop {
            match self.socket.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome.unwrap_or(0),
            }
        };
        self.input.extend_from_slice(&buffer[..count]);
        count
    }
}
