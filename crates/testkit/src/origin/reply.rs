//! The response of the origin, right or wrong on purpose, and its timing.
//!
//! A [`Reply`] is a description; `send` carries it out. Places in it are named by [`At`], counted in bytes of the wire
//! or of the body, and what happens there by [`Do`]. It adds only the field that frames the body, so that a test sees
//! in its own text the bytes sent to the proxy.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Content;
use crate::gate::Gate;
use crate::origin::connection::Connection;

/// A place in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// When this many bytes of any kind have been sent, interim replies and garbage before the head included.
    Wire(u64),
    /// When the head and this many bytes of the body have been sent; framing is not counted.
    Body(u64),
    /// When everything has been sent.
    End,
}

/// What happens at a place.
#[derive(Clone, Debug)]
pub enum Do {
    /// Arrives at a gate and waits there.
    Wait(Gate),
    /// Closes the connection.
    Close,
    /// Closes the connection with a reset. A unix socket knows none and closes.
    Reset,
    /// Sends nothing any more and keeps the connection until the other side closes it.
    Hang,
}

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By `Content-Length`.
    Length,
    /// In chunks.
    Chunked,
    /// By the end of the connection.
    UntilClose,
    /// By nothing: no field is added and the connection stays open. For bodies that must not be there.
    Unframed,
}

/// A piece of a body.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Bytes(Arc<[u8]>),
    Content(Content, Range<u64>),
}

impl Source {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Content(_, range) => range.end - range.start,
        }
    }
}

/// How chunks are made.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    /// Sizes one after the other; the last one repeats.
    pub(crate) sizes: Vec<u64>,
    pub(crate) extension: Vec<u8>,
    /// Texts that replace the size of the chunk with this number.
    pub(crate) size_texts: Vec<(u64, Vec<u8>)>,
    pub(crate) trailers: Vec<Vec<u8>>,
    pub(crate) has_last: bool,
}

/// What runs when the reply has been sent.
pub(crate) type Then = Arc<dyn Fn(&mut Connection) + Send + Sync>;

/// The default size of a chunk: 16 KiB.
const CHUNK_BYTES: u64 = 16 * 1024;

/// A description of the origin's response.
#[derive(Clone)]
pub struct Reply {
    /// Replaces everything else.
    pub(crate) raw: Option<Vec<u8>>,
    pub(crate) before: Vec<u8>,
    pub(crate) version: String,
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) lines: Vec<Vec<u8>>,
    pub(crate) body: Vec<Source>,
    pub(crate) framing: Framing,
    pub(crate) declared: Option<u64>,
    pub(crate) chunks: Chunks,
    pub(crate) head_bytes: Option<usize>,
    pub(crate) events: Vec<(At, Do)>,
    pub(crate) pace: Option<(u64, Duration)>,
    pub(crate) always_body: bool,
    pub(crate) then: Option<Then>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} {}, {} bytes)", self.status, self.reason, self.body_len())
    }
}

impl Reply {
    /// A reply with this status, its usual reason, and an empty body.
    pub fn new(status: u16) -> Reply {
        Reply {
            raw: None,
            before: Vec::new(),
            version: "HTTP/1.1".to_owned(),
            status,
            reason: usual_reason(status).to_owned(),
            lines: Vec::new(),
            body: Vec::new(),
            framing: Framing::Length,
            declared: None,
            chunks: Chunks {
                sizes: vec![CHUNK_BYTES],
                extension: Vec::new(),
                size_texts: Vec::new(),
                trailers: Vec::new(),
                has_last: true,
            },
            head_bytes: None,
            events: Vec::new(),
            pace: None,
            always_body: false,
            then: None,
        }
    }

    /// A 200.
    pub fn ok() -> Reply {
        Reply::new(200)
    }

    /// A 200 with this body.
    pub fn text(body: impl AsRef<[u8]>) -> Reply {
        Reply::ok().body(body)
    }

    /// These bytes and nothing else, whatever they are.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply { raw: Some(bytes.into()), ..Reply::ok() }
    }

    /// No answer: the connection stays open until the other side closes it.
    pub fn never() -> Reply {
        Reply::raw("").at(At::Wire(0), Do::Hang)
    }

    /// No answer: the connection is closed.
    pub fn close() -> Reply {
        Reply::raw("").at(At::Wire(0), Do::Close)
    }

    /// No answer: the connection is reset.
    pub fn reset() -> Reply {
        Reply::raw("").at(At::Wire(0), Do::Reset)
    }

    /// 101, then everything that comes is sent back until the other side ends.
    pub fn echo(protocol: &str) -> Reply {
        let reply = Reply::new(101).header("Connection", "upgrade").header("Upgrade", protocol);
        reply.framing(Framing::Unframed).then(Connection::echo)
    }

    /// Replaces the reason phrase.
    pub fn reason(mut self, reason: &str) -> Reply {
        self.reason = reason.to_owned();
        self
    }

    /// Replaces the version, `HTTP/1.1`.
    pub fn version(mut self, version: &str) -> Reply {
        self.version = version.to_owned();
        self
    }

    /// Adds a field; the value may be any bytes.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Reply {
        self.lines.push([name.as_bytes(), b": ", value.as_ref()].concat());
        self
    }

    /// Adds a line to the head, byte for byte; its CRLF is added.
    pub fn line(mut self, line: impl Into<Vec<u8>>) -> Reply {
        self.lines.push(line.into());
        self
    }

    /// Fills the head with a field until it has this many bytes, its empty line included.
    pub fn head_bytes(mut self, count: usize) -> Reply {
        self.head_bytes = Some(count);
        self
    }

    /// Puts bytes before the status line: garbage, or an interim reply.
    pub fn before(mut self, bytes: impl AsRef<[u8]>) -> Reply {
        self.before.extend_from_slice(bytes.as_ref());
        self
    }

    /// Sends an interim reply (100, 103) with these fields first.
    pub fn interim(self, status: u16, fields: &[(&str, &str)]) -> Reply {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let reason = usual_reason(status);
        self.before(format!("HTTP/1.1 {status} {reason}\r\n{fields}\r\n"))
    }

    /// Adds bytes to the body.
    pub fn body(mut self, bytes: impl AsRef<[u8]>) -> Reply {
        self.body.push(Source::Bytes(bytes.as_ref().into()));
        self
    }

    /// Adds a whole content to the body, of any size: it is made while it is sent.
    pub fn content(self, content: Content) -> Reply {
        self.content_range(content, 0..content.size())
    }

    /// Adds a range of a content to the body.
    pub fn content_range(mut self, content: Content, range: Range<u64>) -> Reply {
        self.body.push(Source::Content(content, range));
        self
    }

    /// Sets the framing of the body; by its length otherwise.
    pub fn framing(mut self, framing: Framing) -> Reply {
        self.framing = framing;
        self
    }

    /// Sends the body in chunks of these sizes; the last size repeats.
    pub fn chunked(mut self, sizes: &[u64]) -> Reply {
        self.framing = Framing::Chunked;
        if !sizes.is_empty() {
            self.chunks.sizes = sizes.to_vec();
        }
        self
    }

    /// Puts this after every chunk size: `;name=value`.
    pub fn chunk_extension(mut self, extension: &str) -> Reply {
        self.chunks.extension = extension.as_bytes().to_vec();
        self
    }

    /// Puts this text in the place of the size of a chunk, counted from 0, right or not.
    pub fn chunk_size_text(mut self, chunk: u64, text: impl Into<Vec<u8>>) -> Reply {
        self.chunks.size_texts.push((chunk, text.into()));
        self
    }

    /// Adds a field to the trailer section.
    pub fn trailer(mut self, name: &str, value: impl AsRef<[u8]>) -> Reply {
        self.chunks.trailers.push([name.as_bytes(), b": ", value.as_ref()].concat());
        self
    }

    /// Leaves out the last chunk, which has the size zero, and the bytes behind it.
    pub fn without_last_chunk(mut self) -> Reply {
        self.chunks.has_last = false;
        self
    }

    /// Announces another length than that of the body.
    pub fn declared_length(mut self, length: u64) -> Reply {
        self.declared = Some(length);
        self
    }

    /// Sends the body also where HTTP allows none: to HEAD, with 1xx, 204 and 304.
    pub fn with_body_always(mut self) -> Reply {
        self.always_body = true;
        self
    }

    /// Lets something happen at a place. More than one thing at one place happen in the order of these calls.
    pub fn at(mut self, place: At, what: Do) -> Reply {
        self.events.push((place, what));
        self
    }

    /// Arrives at a gate when this many bytes of the body have been sent.
    pub fn wait_at(self, body_bytes: u64, gate: &Gate) -> Reply {
        self.at(At::Body(body_bytes), Do::Wait(gate.clone()))
    }

    /// Arrives at a gate before the first byte is sent.
    pub fn wait_first(self, gate: &Gate) -> Reply {
        self.at(At::Wire(0), Do::Wait(gate.clone()))
    }

    /// Sends `Connection: close` and closes.
    pub fn closing(self) -> Reply {
        self.header("Connection", "close").at(At::End, Do::Close)
    }

    /// Sends at most this many bytes in each tick: for load tests. An order needs a gate instead.
    pub fn pace(mut self, bytes: u64, tick: Duration) -> Reply {
        self.pace = Some((bytes.max(1), tick));
        self
    }

    /// Runs something on the connection when the reply has been sent: the other side of an upgrade.
    pub fn then(mut self, then: impl Fn(&mut Connection) + Send + Sync + 'static) -> Reply {
        self.then = Some(Arc::new(then));
        self
    }

    /// How many bytes the body has.
    pub fn body_len(&self) -> u64 {
        self.body.iter().map(Source::len).sum()
    }

    /// The head as it goes out, with its empty line.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} {}\r\n", self.version, self.status, self.reason).into_bytes();
        for line in &self.lines {
            head.extend_from_slice(line);
            head.extend_from_slice(b"\r\n");
        }
        let length = self.declared.unwrap_or_else(|| self.body_len());
        match self.framing {
            // RFC 9110 section 8.6: these have none.
            Framing::Length if self.status < 200 || self.status == 204 => {}
            // A 304 without a body has no length unless the test sets one.
            Framing::Length if self.status == 304 && length == 0 && self.declared.is_none() => {}
            Framing::Length => head.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes()),
            Framing::Chunked => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Framing::UntilClose | Framing::Unframed => {}
        }
        if let Some(wanted) = self.head_bytes {
            const NAME: &[u8] = b"X-Pad: ";
            let padding = wanted.saturating_sub(head.len() + NAME.len() + 4);
            head.extend_from_slice(NAME);
            head.resize(head.len() + padding, b'p');
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    /// Whether a body goes out in answer to a request with this method.
    pub(crate) fn has_body(&self, method: &str) -> bool {
        self.always_body || !(method == "HEAD" || self.status < 200 || matches!(self.status, 204 | 304))
    }
}

/// The reason phrases of RFC 9110 that tests meet.
fn usual_reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        410 => "Gone",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}
