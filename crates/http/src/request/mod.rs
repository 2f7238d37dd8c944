//! The request head (RFC 9112 sections 3 and 5), as ranges of the caller's buffer.
//!
//! Main types: [`Head`], filled by [`parse`] or a [`Composer`] under a [`Policy`]. A head is reused for the life of a connection:
//! [`Head::clear`] retains the memory of its field table. This module does not read bodies ([`crate::framing`]) or decode paths
//! ([`crate::uri`]).

mod compose;
mod error;
mod parse;
mod target;
#[cfg(test)]
mod tests;

pub use compose::{ChoosePolicy, Composer};
pub use error::ParseError;
pub use parse::parse;
pub use target::Target;

use crate::Span;
use crate::fields::{BodyLength, Field, FieldTable, HeaderId, Method, Version};
use crate::host::Host;

/// Result of a call of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The head is complete; the body, or the next request, starts at `head_len`.
    Complete {
        /// Length of the head in bytes, including empty lines before it and the empty line that ends it.
        head_len: u32,
    },
    /// The head is incomplete: append received bytes to the same buffer and call again.
    Incomplete,
}

/// State of the parser. It distinguishes a buffer limit reached in the request line (414) from one reached later (494).
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

/// Tolerance and limits of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `ignore_invalid_headers`: drop fields with invalid names instead of accepting them.
    pub ignore_invalid_headers: bool,
    /// `underscores_in_headers`: an underscore is valid in a name.
    pub underscores_in_headers: bool,
    /// `http_strict`: refuse input that nginx drops or tolerates.
    pub strict: bool,
    /// Accept CONNECT instead of refusing it with 405.
    pub allow_connect: bool,
    /// Accept TRACE instead of refusing it with 405.
    pub allow_trace: bool,
    /// Maximum length of the request line in bytes, including its line end.
    pub request_line_max: u32,
    /// Maximum length of a field line in bytes, including its line end.
    pub field_line_max: u32,
    /// Maximum length of the head in bytes.
    pub head_max: u32,
    /// `max_headers`: maximum number of field lines, including dropped lines.
    pub fields_max: u16,
}

/// One buffer of `large_client_header_buffers 4 8k`, nginx's default: the maximum length of a line.
pub const LINE_MAX_DEFAULT: u32 = 8 * 1024;
/// Maximum length of the head: nginx's `large_client_header_buffers 4 8k` plus `client_header_buffer_size 1k`.
pub const HEAD_MAX_DEFAULT: u32 = 33 * 1024;
/// nginx's default of `max_headers`; a browser sends about twenty.
pub const FIELDS_MAX_DEFAULT: u16 = 1000;

impl Default for Policy {
    /// Returns nginx's defaults.
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

/// A request head; see the module. All spans refer to the buffer that was parsed.
#[derive(Clone, Debug)]
pub struct Head {
    phase: Phase,
    /// Start of the current line.
    line_start: u32,
    /// Offset up to which the current line was searched for a line feed; 0 if it was not searched.
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
    /// Creates an empty head with room for the fields of an ordinary browser.
    #[must_use]
    pub fn new() -> Self {
        Self { fields: FieldTable::new(), ..EMPTY }
    }

    /// Resets the head for the next request. The field table retains its memory, unless a hostile request made it far larger than
    /// usual.
    pub fn clear(&mut self) {
        *self = Self { fields: self.fields.renewed(), ..EMPTY };
    }

    /// Returns the state of the parser.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the request line is incomplete: a full buffer then leads to 414, afterwards to 494.
    #[must_use]
    pub fn in_request_line(&self) -> bool {
        matches!(self.phase, Phase::BeforeRequest | Phase::RequestLine)
    }

    /// Returns the index of the start of the current line; a caller with nginx's buffer rules measures the line from here.
    #[must_use]
    pub fn line_start(&self) -> u32 {
        self.line_start
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns the method as received.
    #[must_use]
    pub fn method_span(&self) -> Span {
        self.method_span
    }

    /// Returns the form of the target.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// Returns the target as received.
    #[must_use]
    pub fn target_span(&self) -> Span {
        self.target_span
    }

    /// Returns the path and query of the target. If an absolute target has no path, the span is empty or starts with `?`. It is
    /// empty for the forms `*` and `host:port`.
    #[must_use]
    pub fn path(&self) -> Span {
        self.path
    }

    /// Returns the path and query as in nginx's `$request_uri`: `/` replaces a missing path.
    #[must_use]
    pub fn request_uri<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        if self.path.is_empty() { b"/" } else { self.path.of(buf) }
    }

    /// Returns the request line without its line end, for logs; empty if it is invalid, and in versions without a request line.
    #[must_use]
    pub fn request_line(&self) -> Span {
        self.request_line
    }

    /// Whether method, target and version have been parsed.
    #[must_use]
    pub fn is_started(&self) -> bool {
        !self.request_line.is_empty() || matches!(self.phase, Phase::Fields | Phase::Done)
    }

    /// Returns the effective version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Appends the version as the client sent it (`HTTP/1.7`), or nginx's text for versions without one (`HTTP/2.0`).
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

    /// Returns all fields in order, without those that the policy dropped.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields.lines
    }

    /// Sets the value of a field, or adds it; removes further fields of that name. The text is appended to `buf`, the buffer that
    /// was parsed. The parsed framing and host do not change.
    pub fn set_field(&mut self, buf: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        self.fields.set(buf, name, value);
    }

    /// Removes all fields whose name matches `is_one`. The parsed framing and host do not change.
    pub fn remove_fields(&mut self, buf: &[u8], is_one: impl Fn(&[u8]) -> bool) {
        self.fields.remove(buf, is_one);
    }

    /// Returns the value of the first field `id`.
    #[must_use]
    pub fn get<'a>(&self, buf: &'a [u8], id: HeaderId) -> Option<&'a [u8]> {
        self.field(id).map(|field| field.value.of(buf))
    }

    /// Returns the first field `id`.
    #[must_use]
    pub fn field(&self, id: HeaderId) -> Option<&Field> {
        self.fields.field(id)
    }

    /// Returns the values of all fields `id`, in order.
    pub fn all<'a>(&'a self, buf: &'a [u8], id: HeaderId) -> impl Iterator<Item = &'a [u8]> + Clone + 'a {
        self.fields.all(buf, id)
    }

    /// Returns the values of all fields with this name, ignoring case.
    pub fn named<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.named(buf, name)
    }

    /// Returns the values of all fields for nginx's variable `$http_<name>`: `name` is in lower case, with underscores for hyphens.
    pub fn variable<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.variable(buf, name)
    }

    /// Returns the number of fields that the policy dropped.
    #[must_use]
    pub fn ignored_count(&self) -> u16 {
        self.fields.ignored_count
    }

    /// Returns the first line that the policy dropped, for the error log.
    #[must_use]
    pub fn first_ignored(&self) -> Option<Span> {
        self.fields.first_ignored
    }

    /// Returns the host for the choice of a server: from the target if it has one, otherwise from `Host`; `None` only in
    /// HTTP/1.0. The `name` of the host is a span of the parsed buffer.
    #[must_use]
    pub fn host(&self) -> Option<Host> {
        self.host
    }

    /// Returns the text that [`Head::host`] was parsed from, including the port.
    #[must_use]
    pub fn host_text(&self) -> Span {
        self.host_text
    }

    /// Returns the length of the body.
    #[must_use]
    pub fn body(&self) -> BodyLength {
        self.body
    }
}

/// Initial state of a head, without a field table.
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
