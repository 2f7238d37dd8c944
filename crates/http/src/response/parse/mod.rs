//! The head of an upstream's response (RFC 9112 sections 4 and 5), as ranges of the caller's buffer.
//!
//! Main types: [`ParsedResponse`], filled by [`parse`] within [`Limits`]. A head is reused for the life of a connection:
//! [`ParsedResponse::clear`] retains the memory of its field table. [`crate::framing::ResponseFraming`] determines the end of the body,
//! [`crate::freshness`] whether the response may be stored. [`crate::response::encode`] writes heads for clients. Heads for storage are
//! written by [`HeadWriter`] and parsed by [`parse_written`].
//!
//! The parser accepts the same input as nginx's upstream parser; [`ResponseError`] lists where it is stricter.

mod error;
mod parser;
#[cfg(test)]
mod tests;
mod writer;

pub use error::ResponseError;
pub use parser::{parse, parse_cgi, parse_fields};
pub use writer::{HeadWriter, parse_written};

use std::borrow::Cow;

use crate::fields::{Field, FieldLine, FieldTable, HeaderId, Version};
use crate::{Span, StatusCode};

/// Result of a call of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseProgress {
    /// The head is complete. At `head_len` the body starts, or the next head after an interim response.
    Complete {
        /// Length of the head in bytes, including the empty line that ends it.
        head_len: u32,
    },
    /// The head is incomplete: append received bytes to the same buffer and call again.
    Incomplete,
    /// No status line: a response of HTTP/0.9, which consists of a body only. nginx passes such bytes on with status 200 and closes
    /// the connection; the caller decides whether to do that.
    Http09,
}

/// Limits of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the head in bytes: `proxy_buffer_size`.
    pub head_max: u32,
    /// Maximum number of field lines.
    pub fields_max: u16,
}

/// nginx's default of `proxy_buffer_size`, one page: more than the cookies and policies of an ordinary site need.
pub const HEAD_MAX_DEFAULT: u32 = 4 * 1024;
/// Maximum number of field lines, the same as for requests; in practice the size of the head is the limit.
pub const FIELDS_MAX_DEFAULT: u16 = 1000;

impl Default for Limits {
    /// Returns nginx's defaults.
    fn default() -> Self {
        Self { head_max: HEAD_MAX_DEFAULT, fields_max: FIELDS_MAX_DEFAULT }
    }
}

/// A response head; see the module. All spans refer to the buffer that was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedResponse {
    phase: ResponsePhase,
    /// Start of the current line.
    line_start: u32,
    /// Offset up to which the current line was searched for a line feed.
    scanned: u32,
    version: Version,
    status: StatusCode,
    status_text: Span,
    reason: Span,
    fields: FieldTable,
    content_length: Option<u64>,
    chunked: bool,
    /// Whether the head is a CGI response, which has no status line.
    is_cgi: bool,
}

/// State of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponsePhase {
    /// Before the end of the status line.
    StatusLine,
    /// In the field lines.
    Fields,
    /// The head is complete.
    Done,
}

impl Default for ParsedResponse {
    fn default() -> Self {
        Self::new()
    }
}

impl ParsedResponse {
    /// Creates an empty head with room for the fields of an ordinary response.
    #[must_use]
    pub fn new() -> Self {
        Self { fields: FieldTable::new(), ..EMPTY }
    }

    /// Resets the head for the next response. The field table retains its memory, unless a hostile response made it far larger than
    /// usual.
    pub fn clear(&mut self) {
        *self = Self { fields: self.fields.renewed(), ..EMPTY };
    }

    /// Returns the effective version. Like nginx, the parser accepts any version from 1.0 on, and treats versions from 1.1 on as
    /// 1.1.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the status, from 100 to 999.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether another head follows (RFC 9110 section 15.2). False for 101: after it the connection uses another protocol.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        matches!(self.status.code(), 100 | 102..=199)
    }

    /// Whether the response ends with its head, whatever its fields announce (RFC 9112 section 6.3): 1xx, 101 included.
    pub(crate) fn ends_with_head(&self) -> bool {
        matches!(self.status.code(), 100..=199)
    }

    /// Returns status and reason as received (also `403.1 Forbidden`); nginx sends this text to its client.
    #[must_use]
    pub fn status_text(&self) -> Span {
        self.status_text
    }

    /// Whether the head is parsed as a CGI response, which has no status line.
    #[must_use]
    pub fn is_cgi(&self) -> bool {
        self.is_cgi
    }

    /// Returns status and reason for storage and for the client: as received, or with this server's reason phrase if a script
    /// sent none.
    #[must_use]
    pub fn status_line<'a>(&self, buf: &'a [u8]) -> Cow<'a, [u8]> {
        match self.is_cgi && self.status_text.is_empty() {
            true => Cow::Owned(format!("{} {}", self.status.code(), self.status.reason()).into_bytes()),
            false => Cow::Borrowed(self.status_text.of(buf)),
        }
    }

    /// Returns the reason as received; `None` if a script sent none.
    #[must_use]
    pub fn received_reason<'a>(&self, buf: &'a [u8]) -> Option<&'a [u8]> {
        (!self.is_cgi || !self.reason.is_empty()).then(|| self.reason.of(buf))
    }

    /// Returns the reason phrase; often empty.
    #[must_use]
    pub fn reason(&self) -> Span {
        self.reason
    }

    /// Returns all fields in order, without ignored lines.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields.lines
    }

    /// Returns the fields as bytes, in order.
    pub fn lines<'a>(&'a self, buf: &'a [u8]) -> impl Iterator<Item = FieldLine<'a>> + Clone + 'a {
        self.fields.lines.iter().map(|field| FieldLine {
            id: field.id,
            name: field.name.of(buf),
            value: field.value.of(buf),
        })
    }

    /// Returns the first field `id`.
    #[must_use]
    pub fn field(&self, id: HeaderId) -> Option<&Field> {
        self.fields.field(id)
    }

    /// Returns the value of the first field `id`.
    #[must_use]
    pub fn get<'a>(&self, buf: &'a [u8], id: HeaderId) -> Option<&'a [u8]> {
        self.field(id).map(|field| field.value.of(buf))
    }

    /// Returns the values of all fields `id`, in order.
    pub fn all<'a>(&'a self, buf: &'a [u8], id: HeaderId) -> impl Iterator<Item = &'a [u8]> + Clone + 'a {
        self.fields.all(buf, id)
    }

    /// Returns the values of all fields with this name, ignoring case.
    pub fn named<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.named(buf, name)
    }

    /// Returns the values of all fields for nginx's variable `$upstream_http_<name>`: `name` is in lower case, with underscores for
    /// hyphens.
    pub fn variable<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields.variable(buf, name)
    }

    /// Returns the number of ignored lines: repeated fields that allow one value ([`HeaderId::is_first_only`]), and status lines
    /// that some servers repeat among the fields.
    #[must_use]
    pub fn ignored_count(&self) -> u16 {
        self.fields.ignored_count
    }

    /// Returns the first ignored line, for the error log.
    #[must_use]
    pub fn first_ignored(&self) -> Option<Span> {
        self.fields.first_ignored
    }

    /// Returns the value of `Content-Length`.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Whether `Transfer-Encoding` is `chunked`.
    #[must_use]
    pub fn is_chunked(&self) -> bool {
        self.chunked
    }

    /// Returns the memory that the head occupies, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.fields.lines.capacity() * size_of::<Field>()
    }

    /// Returns the index of the start of the current line; after an error, of the offending line, for the log.
    #[must_use]
    pub fn line_start(&self) -> u32 {
        self.line_start
    }
}

/// Initial state of a head, without a field table.
const EMPTY: ParsedResponse = ParsedResponse {
    phase: ResponsePhase::StatusLine,
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
