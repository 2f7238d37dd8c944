//! The head of an upstream's response (RFC 9112 sections 4 and 5): the response, as ranges of the caller's buffer.
//!
//! Main types: [`ReplyHead`], filled by [`parse`] within [`Limits`]. It is reused for the life of a connection:
//! [`ReplyHead::clear`] keeps its field table. Where the body ends is [`crate::framing::ReplyFraming`]; whether the
//! response may be stored is [`crate::freshness`]. Writing a head is [`crate::response`]; heads that are kept are
//! written by [`HeadWriter`] and read by [`parse_written`].
//!
//! The parser takes what nginx's upstream parser takes, and [`ReplyError`] lists where it is stricter.

mod error;
mod parse;
#[cfg(test)]
mod tests;
mod writer;

pub use error::ReplyError;
pub use parse::{parse, parse_cgi, parse_fields};
pub use writer::{HeadWriter, parse_written};

use std::borrow::Cow;

use crate::fields::FieldTable;
use crate::request::{Field, HeaderId, Version};
use crate::{Span, StatusCode};

/// The result of a parser call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyProgress {
    /// The head is complete; the body, or after an interim response the next head, starts at `head_len`.
    Complete {
        /// Bytes of the head, with the empty line that ends it.
        head_len: u32,
    },
    /// More bytes are needed: append them to the same buffer and call again.
    Incomplete,
    /// There is no status line: a response of HTTP/0.9, all of which is body. nginx passes such bytes on with status
    /// 200 and closes the connection; whether to do that is the caller's choice.
    Http09,
}

/// Limits of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest head in bytes: `proxy_buffer_size`.
    pub head_max: u32,
    /// Most field lines.
    pub fields_max: u16,
}

/// nginx's default of `proxy_buffer_size`, one page: more than the cookies and policies of an ordinary site.
pub const HEAD_MAX_DEFAULT: u32 = 4 * 1024;
/// As many field lines as a request may have by default; what bounds them in practice is the size of the head.
pub const FIELDS_MAX_DEFAULT: u16 = 1000;

impl Default for Limits {
    /// nginx's defaults.
    fn default() -> Self {
        Self { head_max: HEAD_MAX_DEFAULT, fields_max: FIELDS_MAX_DEFAULT }
    }
}

/// One field line as bytes: the input of the functions for caching, from either source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'a> {
    /// The name as a number.
    pub id: HeaderId,
    /// The name as received.
    pub name: &'a [u8],
    /// The value without white space at its ends.
    pub value: &'a [u8],
}

impl<'a> FieldLine<'a> {
    /// A line from its two parts.
    #[must_use]
    pub fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self { id: HeaderId::of(name), name, value }
    }
}

/// A response head; see the module. All spans point into the buffer that was parsed.
#[derive(Clone, Debug)]
pub struct ReplyHead {
    phase: ReplyPhase,
    /// Start of the line in flight.
    line_start: u32,
    /// Up to where the line in flight is known to have no line feed.
    scanned: u32,
    version: Version,
    status: StatusCode,
    status_text: Span,
    reason: Span,
    fields: FieldTable,
    content_length: Option<u64>,
    chunked: bool,
    /// Whether it is of a script, which has no status line.
    is_cgi: bool,
}

/// Where the parser stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyPhase {
    /// Before the end of the status line.
    StatusLine,
    /// In the field lines.
    Fields,
    /// The head is complete.
    Done,
}

impl Default for ReplyHead {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplyHead {
    /// An empty head with room for an ordinary response's fields.
    #[must_use]
    pub fn new() -> Self {
        Self { fields: FieldTable::new(), ..EMPTY }
    }

    /// Makes the head ready for the next response; the field table keeps its memory unless a hostile response made
    /// it far larger than an ordinary one needs.
    pub fn clear(&mut self) {
        *self = Self { fields: self.fields.renewed(), ..EMPTY };
    }

    /// The version to behave by. nginx takes any version from 1.0 on; from 1.1 on it is spoken to as 1.1.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The status, from 100 to 999.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether another head follows on the connection (RFC 9110 section 15.2). 101 is not among these: after it the
    /// connection speaks another protocol.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        matches!(self.status.code(), 100 | 102..=199)
    }

    /// Status and reason as they were written (`403.1 Forbidden` too), which nginx sends to its client.
    #[must_use]
    pub fn status_text(&self) -> Span {
        self.status_text
    }

    /// Whether it is read as that of a script, which has no status line.
    #[must_use]
    pub fn is_cgi(&self) -> bool {
        self.is_cgi
    }

    /// Status and reason for storage and for the client: those of the response, or of this server if a script has sent no
    /// reason.
    #[must_use]
    pub fn status_line<'a>(&self, buf: &'a [u8]) -> Cow<'a, [u8]> {
        match self.is_cgi && self.status_text.is_empty() {
            true => Cow::Owned(format!("{} {}", self.status.code(), self.status.reason()).into_bytes()),
            false => Cow::Borrowed(self.status_text.of(buf)),
        }
    }

    /// The reason as it was sent; `None` if a script has sent none.
    #[must_use]
    pub fn told_reason<'a>(&self, buf: &'a [u8]) -> Option<&'a [u8]> {
        (!self.is_cgi || !self.reason.is_empty()).then(|| self.reason.of(buf))
    }

    /// The reason phrase; often empty.
    #[must_use]
    pub fn reason(&self) -> Span {
        self.reason
    }

    /// All fields in order, but for those that were left out.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields.lines
    }

    /// The fields as bytes, in order.
    pub fn lines<'a>(&'a self, buf: &'a [u8]) -> impl Iterator<Item = FieldLine<'a>> + Clone + 'a {
        self.fields.lines.iter().map(|field| FieldLine {
            id: field.id,
            name: field.name.of(buf),
            value: field.value.of(buf),
        })
    }

    /// The first field `id`.
    #[must_use]
    pub fn field(&self, id: HeaderId) -> Option<&Field> {
        self.fields.field(id)
    }

    /// Value of the first field `id`.
    #[must_use]
    pub fn get<'a>(&self, buf: &'a [u8], id: HeaderId) -> Option<&'a [u8]> {
        self.field(id).map(|field| field.value.of(buf))
    }

    /// Values of all fields `id`, in order.
    pub fn all<'a>(&'a self, buf: &'a [u8], id: HeaderId) -> impl Iterator<Item = &'a [u8]> + Clone + 'a {
        self.fields.all(buf, id)
    }

    /// Values of all fields with this name, in any case of letters.
    pub fn named<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.named(buf, name)
    }

    /// Values of all fields that nginx's variable `$upstream_http_<name>` stands for: lower case, hyphens as
    /// underscores.
    pub fn variable<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.variable(buf, name)
    }

    /// How many lines were left out: second fields of a name that has one value ([`HeaderId::is_first_only`]), and
    /// status lines that some servers repeat among the fields.
    #[must_use]
    pub fn ignored_count(&self) -> u16 {
        self.fields.ignored_count
    }

    /// The first line that was left out, for the error log.
    #[must_use]
    pub fn first_ignored(&self) -> Option<Span> {
        self.fields.first_ignored
    }

    /// The value of `Content-Length`.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Whether `Transfer-Encoding` is `chunked`.
    #[must_use]
    pub fn is_chunked(&self) -> bool {
        self.chunked
    }

    /// Index at which the line in flight starts; after an error that is the offending line, for the log.
    #[must_use]
    pub fn line_start(&self) -> u32 {
        self.line_start
    }
}

/// A head before its first byte, without a field table.
const EMPTY: ReplyHead = ReplyHead {
    phase: ReplyPhase::StatusLine,
    line_start: 0,
    scanned: 0,
    version: Version::Http11,
    status: StatusCode::OK,
    status_text: Span::EMPTY,
    reason: Span::EMPTY,
    fields: FieldTable::EMPTY,
    content_length: None,
    chunked: false,
    is_cgi: false,
};
