//! Why an upstream's response head is refused, and nginx's words for it.

use crate::request::HeaderId;

/// Why a response head is refused. The upstream is at fault in every case: the client gets 502 or the next upstream is
/// tried. The connection must be closed, since the start of the next response is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The line starts with `HTTP/` and is not a status line. nginx continues as with HTTP/0.9 and makes the head a
    /// part of the body; a server that writes this much of a status line does not speak HTTP/0.9. A status below 100
    /// and control bytes in the reason belong here too.
    InvalidStatusLine,
    /// A carriage return that no line feed follows.
    BareCr,
    /// A field line that starts with white space (obs-fold).
    ObsoleteFolding,
    /// A space, tab or control byte in a field name, among them white space before the colon.
    InvalidByteInName,
    /// A field line that starts with its colon.
    EmptyName,
    /// NUL in a field value.
    NulInValue,
    /// A second field of a name that decides where the body ends.
    Duplicate(HeaderId),
    /// `Content-Length` is not a plain decimal number. A list of equal numbers is one too: nginx refuses it, and
    /// RFC 9112 section 6.3 allows that.
    InvalidContentLength,
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndTransferEncoding,
    /// A transfer coding other than `chunked` alone.
    UnknownTransferEncoding,
    /// The head is longer than [`super::Limits::head_max`].
    HeadTooLong,
    /// More fields than [`super::Limits::fields_max`].
    TooManyFields,
    /// The field `Status` of CGI does not begin with three digits.
    InvalidStatus,
    /// A record of FastCGI of another version than 1.
    RecordVersion,
    /// A record of a request that was not made: connections are not shared by requests.
    RecordId,
    /// A record of a type that no response has.
    RecordType,
    /// Messages without end beside the response.
    TooManyMessages,
    /// The response has ended without a header section.
    StdoutClosed,
    /// A line that is no response of memcached to `get`.
    MemcachedResponse,
    /// The value of another key.
    MemcachedKey,
    /// Flags of a value that are no number.
    MemcachedFlags,
    /// A length of a value that is no number.
    MemcachedLength,
}

impl ReplyError {
    /// nginx's words for the error log, without the text of the offending line.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::InvalidStatusLine => "upstream sent no valid HTTP/1.0 header",
            Self::BareCr
            | Self::ObsoleteFolding
            | Self::InvalidByteInName
            | Self::EmptyName
            | Self::NulInValue => "upstream sent invalid header",
            Self::Duplicate(_) => "upstream sent duplicate header line",
            Self::InvalidContentLength => "upstream sent invalid \"Content-Length\" header",
            Self::LengthAndTransferEncoding => {
                "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"
            }
            Self::UnknownTransferEncoding => "upstream sent unknown \"Transfer-Encoding\"",
            Self::HeadTooLong => "upstream sent too big header",
            Self::TooManyFields => "upstream sent too many header lines",
            Self::InvalidStatus => "upstream sent invalid status",
            Self::RecordVersion => "upstream sent unsupported FastCGI protocol version",
            Self::RecordId => "upstream sent unexpected FastCGI request id",
            Self::TooManyMessages => "upstream sent too many FastCGI messages",
            Self::RecordType => "upstream sent unexpected FastCGI record",
            Self::StdoutClosed => "upstream prematurely closed FastCGI stdout",
            Self::MemcachedResponse => "memcached sent invalid response",
            Self::MemcachedKey => "memcached sent invalid key in response",
            Self::MemcachedFlags => "memcached sent invalid flags in response",
            Self::MemcachedLength => "memcached sent invalid length in response",
        }
    }

    /// Whether nginx shows the requested key behind the offending line.
    #[must_use]
    pub fn shows_key(self) -> bool {
        matches!(self, Self::MemcachedKey | Self::MemcachedFlags | Self::MemcachedLength)
    }
}
