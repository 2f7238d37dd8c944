//! Reasons to refuse a request head, and the status for the client.

use crate::StatusCode;
use crate::fields::HeaderId;
use crate::host::HostError;

/// Reason to refuse a request head. The client is always at fault. The bytes after the head may not be a request, so the connection
/// is closed after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The method is empty, or has another byte than an upper-case letter, `_` or `-`.
    InvalidMethod,
    /// The target has none of the forms of RFC 9112 section 3.2, or contains a control byte.
    InvalidTarget,
    /// The request line ends after the target: HTTP/0.9, which is not supported.
    Http09,
    /// The version is not `HTTP/digit.digit`, or other text follows it on the line.
    InvalidVersion,
    /// The major version is above 1.
    UnsupportedVersion,
    /// White space in the request line that nginx tolerates, under the strict policy.
    LooseRequestLine,
    /// A carriage return without a line feed after it.
    BareCr,
    /// A field line that starts with white space after another field (obs-fold).
    ObsoleteFolding,
    /// A space, tab or control byte in a field name, including white space before the colon.
    InvalidByteInName,
    /// A field line that starts with a colon.
    EmptyName,
    /// NUL or another control byte in a field value.
    InvalidByteInValue,
    /// A name with bytes that nginx calls invalid, under the strict policy.
    InvalidName,
    /// A repeated field whose name must be unique.
    Duplicate(HeaderId),
    /// HTTP/1.1 without `Host`.
    MissingHost,
    /// `Host` is not a valid host.
    InvalidHost(HostError),
    /// The authority of the target is not a valid host.
    InvalidAuthority(HostError),
    /// `Content-Length` is not a plain decimal number.
    InvalidContentLength,
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndTransferEncoding,
    /// `Transfer-Encoding` in HTTP/1.0.
    TransferEncodingIn10,
    /// A transfer coding other than `chunked` alone.
    UnknownTransferEncoding,
    /// The request line is longer than the policy allows.
    RequestLineTooLong,
    /// A field line is longer than the policy allows.
    FieldLineTooLong,
    /// The head is longer than the policy allows.
    HeadTooLong,
    /// More fields than the policy allows.
    TooManyFields,
    /// `TRACE`, whose response would show credentials to a script.
    TraceRefused,
    /// `CONNECT` where tunnels are not enabled.
    ConnectRefused,
}

impl ParseError {
    /// Returns the status that nginx returns; 494 is internal (see [`StatusCode::on_wire`]).
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::RequestLineTooLong => StatusCode::URI_TOO_LONG,
            Self::FieldLineTooLong | Self::HeadTooLong | Self::TooManyFields => {
                StatusCode::REQUEST_HEADER_TOO_LARGE
            }
            Self::UnsupportedVersion => StatusCode::VERSION_NOT_SUPPORTED,
            Self::UnknownTransferEncoding => StatusCode::NOT_IMPLEMENTED,
            Self::TraceRefused | Self::ConnectRefused => StatusCode::NOT_ALLOWED,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Whether the connection must be closed after the response. Always true at present; callers use
    /// this method instead of comparing status codes.
    #[must_use]
    pub fn closes(self) -> bool {
        true
    }

    /// Returns nginx's message for the error log, without the text of the offending line.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::InvalidMethod => "client sent invalid method",
            Self::InvalidTarget | Self::Http09 | Self::InvalidVersion | Self::LooseRequestLine => {
                "client sent invalid request"
            }
            Self::UnsupportedVersion => "client sent invalid version",
            Self::BareCr
            | Self::ObsoleteFolding
            | Self::InvalidByteInName
            | Self::EmptyName
            | Self::InvalidByteInValue
            | Self::InvalidName => "client sent invalid header line",
            Self::Duplicate(HeaderId::Host) => "client sent duplicate host header",
            Self::Duplicate(_) => "client sent duplicate header line",
            Self::MissingHost => "client sent HTTP/1.1 request without \"Host\" header",
            Self::InvalidHost(_) => "client sent invalid host header",
            Self::InvalidAuthority(_) => "client sent invalid host in request line",
            Self::InvalidContentLength => "client sent invalid \"Content-Length\" header",
            Self::LengthAndTransferEncoding => {
                "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"
            }
            Self::TransferEncodingIn10 => "client sent HTTP/1.0 request with \"Transfer-Encoding\" header",
            Self::UnknownTransferEncoding => "client sent unknown \"Transfer-Encoding\"",
            Self::RequestLineTooLong => "client sent too long URI",
            Self::FieldLineTooLong => "client sent too long header line",
            Self::HeadTooLong => "client sent too large request",
            Self::TooManyFields => "client sent too many header lines",
            Self::TraceRefused => "client sent TRACE method",
            Self::ConnectRefused => "client sent CONNECT method",
        }
    }
}
