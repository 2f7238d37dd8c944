//! A reply of the origin, correct or deliberately incorrect, and its timing.
//!
//! A [`Reply`] is a description; `send` executes it. [`At`] is a position in it, counted in bytes of the wire or of the
//! body, and [`Do`] the action there. Only the field that delimits the body is added automatically, so that a test
//! shows all other bytes that the proxy receives.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Content;
use crate::gate::Gate;
use crate::origin::connection::Connection;

/// A position in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// After this many bytes of any kind, including interim replies and garbage before the head.
    Wire(u64),
    /// After the head and this many bytes of the body; framing is not counted.
    Body(u64),
    /// After everything has been sent.
    End,
}

/// The action at a position.
#[derive(Clone, Debug)]
pub enum Do {
    /// Arrives at a gate and waits there.
    Wait(Gate),
    /// Closes the connection.
    Close,
    /// Closes the connection with a reset. On a unix socket, closes it.
    Reset,
    /// Sends nothing more and keeps the connection open until the peer closes it.
    Hang,
}

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By `Content-Length`.
    Length,
    /// By chunked coding.
    Chunked,
    /// By the end of the connection.
    UntilClose,
    /// Not delimited: no field is added and the connection stays open. For bodies that must not be sent.
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

/// Parameters of chunked coding.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    /// Chunk sizes in order; the last one repeats.
    pub(crate) sizes: Vec<u64>,
    pub(crate) extension: Vec<u8>,
    /// Texts that replace the size of the chunk with this number.
    pub(crate) size_texts: Vec<(u64, Vec<u8>)>,
    pub(crate) trailers: Vec<Vec<u8>>,
    pub(crate) has_last: bool,
}

/// A function that runs after the reply has been sent.
pub(crate) type Then = Arc<dyn Fn(&mut Connection) + Send + Sync>;

/// The default size of a chunk: 16 KiB.
const CHUNK_BYTES: u64 = 16 * 1024;

/// Description of the origin's response.
#[derive(Clone)]
pub struct Reply {
    /// Raw bytes that replace everything else.
    pub(crate) raw: Option<Vec<u8>>,
    /// Raw bytes before the status line, such as interim responses.
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
    /// A function that runs after the reply has been sent.
    pub(crate) then: Option<Then>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} {}, {} bytes)", self.status, self.reason, self.body_len())
    }
}

impl Reply {
    /// Creates a reply with this status, its usual reason phrase, and an empty body.
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

    /// Creates a 200 reply.
    pub fn ok() -> Reply {
        Reply::new(200)
    }

    /// Creates a 200 reply with this body.
    pub fn text(body: impl AsRef<[u8]>) -> Reply {
        Reply::ok().body(body)
    }

    /// Creates a reply of these raw bytes.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply { raw: Some(bytes.into()), ..Reply::ok() }
    }

    /// Creates no reply: the connection stays open until the peer closes it.
    pub fn never() -> Reply {
        Reply::raw("").at(At::Wire(0), Do::Hang)
    }

    /// Creates no reply: the connection is closed.
    pub fn close() -> Reply {
        Reply::raw("").at(At::Wire(0), Do::Close)
    }

    /// Creates no reply: the connection is reset.
    pub fn reset() -> Reply {
        Reply::raw("").at(At::Wire(0), Do::Reset)
    }

    /// Creates a 101 reply, after which all received bytes are echoed until the peer ends the stream.
    pub fn echo(protocol: &str) -> Reply {
        let reply = Reply::new(101).header("Connection", "upgrade").header("Upgrade", protocol);
        reply.framing(Framing::Unframed).then(Connection::echo)
    }

    /// Replaces the reason phrase.
    pub fn reason(mut self, reason: &str) -> Reply {
        self.reason = reason.to_owned();
        self
    }

    /// Replaces the version `HTTP/1.1`.
    pub fn version(mut self, version: &str) -> Reply {
        self.version = version.to_owned();
        self
    }

    /// Adds a field; the value may be any bytes.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Reply {
        self.lines.push([name.as_bytes(), b": ", value.as_ref()].concat());
        self
    }

    /// Adds a line to the head unchanged; only its CRLF is added.
    pub fn line(mut self, line: impl Into<Vec<u8>>) -> Reply {
        self.lines.push(line.into());
        self
    }

    /// Pads the head with a field to this many bytes, including its empty line.
    pub fn head_bytes(mut self, count: usize) -> Reply {
        self.head_bytes = Some(count);
        self
    }

    /// Inserts bytes before the status line: garbage, or an interim reply.
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

    /// Appends bytes to the body.
    pub fn body(mut self, bytes: impl AsRef<[u8]>) -> Reply {
        self.body.push(Source::Bytes(bytes.as_ref().into()));
        self
    }

    /// Appends a complete content to the body. It may have any size, because it is generated while it is sent.
    pub fn content(self, content: Content) -> Reply {
        self.content_range(content, 0..content.size())
    }

    /// Appends a range of a content to the body.
    pub fn content_range(mut self, content: Content, range: Range<u64>) -> Reply {
        self.body.push(Source::Content(content, range));
        self
    }

    /// Sets the framing of the body; the default is its length.
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

    /// Appends this to every chunk size: `;name=value`.
    pub fn chunk_extension(mut self, extension: &str) -> Reply {
        self.chunks.extension = extension.as_bytes().to_vec();
        self
    }

    /// Replaces the size of a chunk, counted from 0, by this text, valid or not.
    pub fn chunk_size_text(mut self, chunk: u64, text: impl Into<Vec<u8>>) -> Reply {
        self.chunks.size_texts.push((chunk, text.into()));
        self
    }

    /// Adds a field to the trailer section.
    pub fn trailer(mut self, name: &str, value: impl AsRef<[u8]>) -> Reply {
        self.chunks.trailers.push([name.as_bytes(), b": ", value.as_ref()].concat());
        self
    }

    /// Omits the last chunk, which has the size zero, and the bytes after it.
    pub fn without_last_chunk(mut self) -> Reply {
        self.chunks.has_last = false;
        self
    }

    /// Declares a length other than that of the body.
    pub fn declared_length(mut self, length: u64) -> Reply {
        self.declared = Some(length);
        self
    }

    /// Sends the body even if HTTP does not allow one: to HEAD, with 1xx, 204 and 304.
    pub fn with_body_always(mut self) -> Reply {
        self.always_body = true;
        self
    }

    /// Adds an action at a position. Several actions at one position are executed in the order of these calls.
    pub fn at(mut self, place: At, what: Do) -> Reply {
        self.events.push((place, what));
        self
    }

    /// Waits at a gate after this many bytes of the body.
    pub fn wait_at(self, body_bytes: u64, gate: &Gate) -> Reply {
        self.at(At::Body(body_bytes), Do::Wait(gate.clone()))
    }

    /// Waits at a gate before the first byte is sent.
    pub fn wait_first(self, gate: &Gate) -> Reply {
        self.at(At::Wire(0), Do::Wait(gate.clone()))
    }

    /// Sends `Connection: close` and closes.
    pub fn closing(self) -> Reply {
        self.header("Connection", "close").at(At::End, Do::Close)
    }

    /// Sends at most this many bytes in each tick: for load tests. Where the order of events matters, use a gate.
    pub fn pace(mut self, bytes: u64, tick: Duration) -> Reply {
        self.pace = Some((bytes.max(1), tick));
        self
    }

    /// Runs a function on the connection after the reply, such as the peer of an upgraded connection.
    pub fn then(mut self, then: impl Fn(&mut Connection) + Send + Sync + 'static) -> Reply {
        self.then = Some(Arc::new(then));
        self
    }

    /// Returns the length of the body in bytes.
    pub fn body_len(&self) -> u64 {
        self.body.iter().map(Source::len).sum()
    }

    /// Returns the head as it is sent, with its empty line.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} {}\r\n", self.version, self.status, self.reason).into_bytes();
        for line in &self.lines {
            head.extend_from_slice(line);
            head.extend_from_slice(b"\r\n");
        }
        let length = self.declared.unwrap_or_else(|| self.body_len());
        match self.framing {
            // RFC 9110 section 8.6: no `Content-Length` with these statuses.
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

    /// Whether a body is sent in the reply to this request method.
    pub(crate) fn has_body(&self, method: &str) -> bool {
        self.always_body || !(method == "HEAD" || self.status < 200 || matches!(self.status, 204 | 304))
    }
}

/// Returns the reason phrases of RFC 9110 that tests need.
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
