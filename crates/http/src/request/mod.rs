//! The request head (RFC 9112 sections 3 and 5): the request, as ranges of the caller's buffer.
//!
//! Main types: [`Head`], filled by [`parse`] or a [`Composer`] under a [`Policy`]. A head is reused for the life of a connection:
//! [`Head::clear`] keeps its field table. Nothing here reads a body ([`crate::framing`]) or decodes a path
//! ([`crate::uri`]).

mod compose;
mod error;
mod header_id;
mod method;
mod parse;
mod target;
#[cfg(test)]
mod tests;

pub use compose::Composer;
pub use error::ParseError;
pub use header_id::HeaderId;
pub use method::Method;
pub use parse::parse;
pub use target::Target;

use crate::Span;
pub use crate::fields::Field;
use crate::fields::FieldTable;
use crate::host::Host;

/// The result of a parser call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The head is complete; the body, or the next request, starts at `head_len`.
    Complete {
        /// Bytes of the head, with empty lines before it and the one that ends it.
        head_len: u32,
    },
    /// More bytes are needed: append them to the same buffer and call again.
    Incomplete,
}

/// Where the parser stands; distinguishes a buffer limit that was hit in the request line (414) from one hit later
/// (494).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Before the first byte of the request line; empty lines may precede it.
    #[default]
    BeforeRequest,
    /// In the request line.
    RequestLine,
    /// In the field lines.
    Fields,
    /// The head is complete.
    Done,
}

/// HTTP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1, and every later 1.x.
    #[default]
    Http11,
    /// HTTP/2
    Http2,
    /// HTTP/3
    Http3,
}

/// The length of a request's body, as far as the header section determines it. Whatever the protocol, it is known when
/// the head is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// The request has no body.
    #[default]
    None,
    /// Exactly this many bytes; may be zero.
    Exactly(u64),
    /// The end of the body determines it: the last chunk in HTTP/1.1, the end of the stream in later versions.
    Unknown,
}

impl BodyLength {
    /// Whether there is anything to read.
    #[must_use]
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Exactly(0))
    }
}

/// How tolerant the parser is, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `ignore_invalid_headers`: drop fields with odd names instead of keeping them.
    pub ignore_invalid_headers: bool,
    /// `underscores_in_headers`: an underscore does not make a name odd.
    pub underscores_in_headers: bool,
    /// `http_strict`: refuse what nginx drops or tolerates.
    pub strict: bool,
    /// Let CONNECT through to the caller instead of 405.
    pub allow_connect: bool,
    /// Let TRACE through to the caller instead of 405.
    pub allow_trace: bool,
    /// Longest request line in bytes, with its line end.
    pub request_line_max: u32,
    /// Longest field line in bytes, with its line end.
    pub field_line_max: u32,
    /// Longest head in bytes.
    pub head_max: u32,
    /// `max_headers`: most field lines, dropped ones included.
    pub fields_max: u16,
}

/// One buffer of `large_client_header_buffers 4 8k`, nginx's default: no line may be longer.
pub const LINE_MAX_DEFAULT: u32 = 8 * 1024;
/// All buffers of `large_client_header_buffers 4 8k` and one `client_header_buffer_size 1k` before them.
pub const HEAD_MAX_DEFAULT: u32 = 33 * 1024;
/// nginx's default of `max_headers`; a browser sends about twenty.
pub const FIELDS_MAX_DEFAULT: u16 = 1000;

impl Default for Policy {
    /// nginx's defaults.
    fn default() -> Self {
        Self {
            ignore_invalid_headers: true,
            underscores_in_headers: false,
            strict: false,
            allow_connect: false,
            allow_trace: false,
            request_line_max: LINE_MAX_DEFAULT,
            field_line_max: LINE_MAX_DEFAULT,
            head_max: HEAD_MAX_DEFAULT,
            fields_max: FIELDS_MAX_DEFAULT,
        }
    }
}

/// A request head; see the module. All spans point into the buffer that was parsed.
#[derive(Clone, Debug)]
pub struct Head {
    phase: Phase,
    /// Start of the line in flight.
    line_start: u32,
    /// The end of the part of the present line that was searched for a line feed; 0 when none was.
    scanned: u32,
    method: Method,
    method_span: Span,
    target: Target,
    target_span: Span,
    path: Span,
    request_line: Span,
    version: Version,
    minor: u16,
    fields: FieldTable,
    host: Option<Host>,
    host_text: Span,
    body: BodyLength,
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
}

impl Head {
    /// An empty head with room for an ordinary browser's fields.
    #[must_use]
    pub fn new() -> Self {
        Self { fields: FieldTable::new(), ..EMPTY }
    }

    /// Makes the head ready for the next request; the field table keeps its memory unless a hostile request
    /// made it far larger than an ordinary one needs.
    pub fn clear(&mut self) {
        *self = Self { fields: self.fields.renewed(), ..EMPTY };
    }

    /// Where the parser stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the request line is still incomplete: a full buffer means 414 then, 494 afterwards.
    #[must_use]
    pub fn in_request_line(&self) -> bool {
        matches!(self.phase, Phase::BeforeRequest | Phase::RequestLine)
    }

    /// Index at which the line in flight starts; a caller with nginx's buffer rules measures the line from here.
    #[must_use]
    pub fn line_start(&self) -> u32 {
        self.line_start
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method as it was written.
    #[must_use]
    pub fn method_span(&self) -> Span {
        self.method_span
    }

    /// The form of the target.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// The target as it was written.
    #[must_use]
    pub fn target_span(&self) -> Span {
        self.target_span
    }

    /// Path and query of the target; empty, or starting with `?`, where an absolute target has no path, and
    /// empty for the forms `*` and `host:port`.
    #[must_use]
    pub fn path(&self) -> Span {
        self.path
    }

    /// Path and query as nginx's `$request_uri`: `/` replaces a missing one.
    #[must_use]
    pub fn request_uri<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        if self.path.is_empty() { b"/" } else { self.path.of(buf) }
    }

    /// The request line without its line end, for logs; empty where it cannot be read, and in versions without one.
    #[must_use]
    pub fn request_line(&self) -> Span {
        self.request_line
    }

    /// Whether method, target and version are known.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        !self.request_line.is_empty() || matches!(self.phase, Phase::Fields | Phase::Done)
    }

    /// The version to behave by.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Appends the version as the client wrote it (`HTTP/1.7`), or as nginx shows one that has no text (`HTTP/2.0`).
    pub fn push_protocol(&self, out: &mut Vec<u8>) {
        match self.version {
            Version::Http10 | Version::Http11 => {
                out.extend_from_slice(b"HTTP/1.");
                crate::push_decimal(out, self.minor.into());
            }
            Version::Http2 => out.extend_from_slice(b"HTTP/2.0"),
            Version::Http3 => out.extend_from_slice(b"HTTP/3.0"),
        }
    }

    /// All fields in order, without those that the policy dropped.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields.lines
    }

    /// Gives a field another value, or adds it; further fields of that name are taken away. The text is appended to `buf`,
    /// which was parsed. The framing and the host already parsed stay.
    pub fn set_field(&mut self, buf: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        self.fields.set(buf, name, value);
    }

    /// Removes all fields with a matching name. The framing and the host already parsed stay.
    pub fn remove_fields(&mut self, buf: &[u8], is_one: impl Fn(&[u8]) -> bool) {
        self.fields.remove(buf, is_one);
    }

    /// Value of the first field `id`.
    #[must_use]
    pub fn get<'a>(&self, buf: &'a [u8], id: HeaderId) -> Option<&'a [u8]> {
        self.field(id).map(|field| field.value.of(buf))
    }

    /// The first field `id`.
    #[must_use]
    pub fn field(&self, id: HeaderId) -> Option<&Field> {
        self.fields.field(id)
    }

    /// Values of all fields `id`, in order.
    pub fn all<'a>(&'a self, buf: &'a [u8], id: HeaderId) -> impl Iterator<Item = &'a [u8]> + Clone + 'a {
        self.fields.all(buf, id)
    }

    /// Values of all fields with this name, in any case of letters.
    pub fn named<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.named(buf, name)
    }

    /// Values of all fields that nginx's variable `$http_<name>` stands for: lower case, hyphens as underscores.
    pub fn variable<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.variable(buf, name)
    }

    /// How many fields the policy dropped.
    #[must_use]
    pub fn ignored_count(&self) -> u16 {
        self.fields.ignored_count
    }

    /// The first line that the policy dropped, for the error log.
    #[must_use]
    pub fn first_ignored(&self) -> Option<Span> {
        self.fields.first_ignored
    }

    /// The host to choose a server by, from the target if it names one, else from `Host`; `None` only in
    /// HTTP/1.0. Its `name` is a span of the parsed buffer.
    #[must_use]
    pub fn host(&self) -> Option<Host> {
        self.host
    }

    /// The text that [`Head::host`] was read from, with its port.
    #[must_use]
    pub fn host_text(&self) -> Span {
        self.host_text
    }

    /// How long the body is.
    #[must_use]
    pub fn body(&self) -> BodyLength {
        self.body
    }
}

/// A head before its first byte, without a field table.
const EMPTY: Head = Head {
    phase: Phase::BeforeRequest,
    line_start: 0,
    scanned: 0,
    method: Method::Other,
    method_span: Span::EMPTY,
    target: Target::Origin,
    target_span: Span::EMPTY,
    path: Span::EMPTY,
    request_line: Span::EMPTY,
    version: Version::Http11,
    minor: 0,
    fields: FieldTable::EMPTY,
    host: None,
    host_text: Span::EMPTY,
    body: BodyLength::None,
};
