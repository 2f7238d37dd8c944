//! The PROXY protocol header before the first request: `listen … proxy_protocol`.

use std::fmt;

use http::proxy_protocol::{self, Progress, ProxyError, V2_LEN_MAX};

use crate::opening::Opening;
use exchange::capacity::Waits;
use site::config::Section;
use telemetry::{ForLog, Level, Reason};

impl Opening {
    /// Reads the header; an error means that the connection must end. It may arrive in pieces of any size, but completely within
    /// `client_header_timeout`, in `stream` `proxy_protocol_timeout`.
    pub(crate) async fn read_proxy_header(&mut self) -> Result<(), NoHeader> {
        let end = rt::now() + self.default.proxy_header_timeout();
        loop {
            match proxy_protocol::parse(self.early.bytes()) {
                Ok(Progress::Complete { len, header }) => {
                    self.early.consume(len);
                    if self.is_traced() {
                        self.trace(format_args!("PROXY protocol header of {len} bytes"));
                    }
                    if let Some(header) = header {
                        // The cell is empty: this runs once per connection.
                        let _ = self.info.proxy.set(Box::new(header));
                    }
                    return Ok(());
                }
                Ok(Progress::Incomplete) => {}
                Err(error) => {
                    self.complain(Level::Error, Complaint { error, input: self.early.bytes() });
                    return Err(NoHeader::Invalid);
                }
            }
            // A reload may wake this wait, so the deadline is set each time.
            self.timer.set(end);
            let waiting = self.thread.capacity.waits(Waits::First, &self.timer, self.wire.fd());
            let received = self.timer.limit(self.wire.recv()).await;
            let is_given_up = waiting.is_chosen();
            drop(waiting);
            match received {
                Err(rt::Elapsed) if is_given_up => return Err(NoHeader::Ended),
                Ok(Ok(Some(buf))) => match self.early.add(buf, V2_LEN_MAX) {
                    true => {}
                    false => return Err(NoHeader::Ended),
                },
                // A peer that disconnects without sending a byte may be a port check.
                Ok(Ok(None)) if self.early.bytes().is_empty() => {
                    self.complain(Level::Info, format_args!("client closed connection"));
                    return Err(NoHeader::Ended);
                }
                Ok(Ok(None)) => {
                    let (error, input) = (ProxyError::Broken, self.early.bytes());
                    self.complain(Level::Error, Complaint { error, input });
                    return Err(NoHeader::Invalid);
                }
                Ok(Err(errno)) => {
                    self.complain(Level::Info, format_args!("recv() failed ({})", Reason(errno)));
                    return Err(NoHeader::Ended);
                }
                // Woken to release a configuration version, not by the deadline. A session of `stream` keeps its version.
                Err(rt::Elapsed)
                    if rt::now() < end && (self.renew() || self.default.section == Section::Stream) => {}
                Err(rt::Elapsed) => {
                    let what = format_args!("client timed out (110: Connection timed out)");
                    self.complain(Level::Info, what);
                    return Err(NoHeader::Ended);
                }
            }
        }
    }

    fn complain(&self, level: Level, what: impl fmt::Display) {
        self.log_failure(level, what, "reading PROXY protocol");
    }
}

/// The reason why a connection has no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// The received bytes are not a header.
    Invalid,
    /// The connection ended, or the time limit has passed.
    Ended,
}

/// An invalid header, formatted with nginx's message.
struct Complaint<'a> {
    error: ProxyError,
    /// The bytes received instead of a valid header.
    input: &'a [u8],
}

impl fmt::Display for Complaint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            ProxyError::Broken => {
                let line = proxy_protocol::first_line(self.input);
                write!(f, "broken header: \"{}\"", line.for_log())
            }
            ProxyError::Version(version) => write!(f, "unknown PROXY protocol version: {version}"),
            ProxyError::TooLarge => f.write_str("header is too large"),
            ProxyError::TooSmall => f.write_str("header is too small for its addresses"),
        }
    }
}
