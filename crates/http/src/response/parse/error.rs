//! Errors in an upstream's response head, and nginx's log messages for them.

use crate::fields::HeaderId;

/// Reason to refuse a response head. The upstream is always at fault: the client gets 502, or the next upstream is tried. The
/// connection must be closed, since the start of the next response is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// The line starts with `HTTP/` but is not a status line. nginx continues as with HTTP/0.9 and treats the head as body; a
    /// server that sends `HTTP/` does not speak HTTP/0.9. A status below 100 and control bytes in the reason are also reported as
    /// this error.
    InvalidStatusLine,
    /// A carriage return without a line feed after it.
    BareCr,
    /// A field line that starts with white space (obs-fold).
    ObsoleteFolding,
    /// A space, tab or control byte in a field name, including white space before the colon.
    InvalidByteInName,
    /// A field line that starts with a colon.
    EmptyName,
    /// NUL in a field value.
    NulInValue,
    /// A repeated field whose value determines the end of the body.
    Duplicate(HeaderId),
    /// `Content-Length` is not a plain decimal number. This includes a list of equal numbers: nginx refuses it, and RFC 9112
    /// section 6.3 permits that.
    InvalidContentLength,
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndTransferEncoding,
    /// A transfer coding other than `chunked` alone.
    UnknownTransferEncoding,
    /// The head is longer than [`super::Limits::head_max`].
    HeadTooLong,
    /// More fields than [`super::Limits::fields_max`].
    TooManyFields,
    /// The CGI field `Status` does not begin with three digits.
    InvalidStatus,
    /// A FastCGI record whose version is not 1.
    RecordVersion,
    /// A record with an unknown request ID: a connection has one request at a time.
    RecordId,
    /// A record type that is invalid in a response.
    RecordType,
    /// Too many FastCGI messages and empty records in addition to the response.
    TooManyMessages,
    /// The FastCGI response has ended before its header section or its body was complete.
    StdoutClosed,
    /// A line that is not a memcached response to `get`.
    MemcachedResponse,
    /// The value of another key.
    MemcachedKey,
    /// Flags of a value that are not a number.
    MemcachedFlags,
    /// A length of a value that is not a number.
    MemcachedLength,
}

impl ResponseError {
    /// Returns nginx's message for the error log, without the text of the offending line.
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

    /// Whether nginx logs the offending line.
    #[must_use]
    pub fn shows_line(self) -> bool {
        matches!(
            self,
            Self::BareCr
                | Self::ObsoleteFolding
                | Self::InvalidByteInName
                | Self::EmptyName
                | Self::NulInValue
                | Self::Duplicate(_)
                | Self::InvalidContentLength
                | Self::UnknownTransferEncoding
                | Self::MemcachedResponse
                | Self::MemcachedKey
                | Self::MemcachedFlags
                | Self::MemcachedLength
        )
    }

    /// Whether nginx logs the requested key after the offending line.
    #[must_use]
    pub fn shows_key(self) -> bool {
        matches!(self, Self::MemcachedKey | Self::MemcachedFlags | Self::MemcachedLength)
    }
}
