//! Why a request head is refused, and the status for the client.

use super::HeaderId;
use crate::StatusCode;
use crate::host::HostError;

/// Why a request head is refused. The peer is at fault in every case, and the bytes after the header section cannot be
/// trusted to be a request, so the connection ends after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The method has another byte than an upper-case letter, `_` or `-`, or is empty.
    InvalidMethod,
    /// The target has no form that RFC 9112 section 3.2 knows, or a control byte.
    InvalidTarget,
    /// The request line ends after the target: HTTP/0.9, which is not spoken here.
    Http09,
    /// The version is not `HTTP/digit.digit`, or more than it stands on the line.
    InvalidVersion,
    /// The major version is above 1.
    UnsupportedVersion,
    /// White space that nginx tolerates in a request line, under the strict policy.
    LooseRequestLine,
    /// A carriage return without a line feed after it.
    BareCr,
    /// A field line that starts with white space after another field (obs-fold).
    ObsoleteFolding,
    /// A space, tab or control byte in a field name, among them white space before the colon.
    InvalidByteInName,
    /// A field line that starts with its colon.
    EmptyName,
    /// NUL or another control byte in a field value.
    InvalidByteInValue,
    /// A name with bytes that nginx calls invalid but harmless, under the strict policy.
    InvalidName,
    /// A second field of a name that may stand once.
    Duplicate(HeaderId),
    /// HTTP/1.1 without `Host`.
    MissingHost,
    /// `Host` or the authority of the target is no host.
    InvalidHost(HostError),
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
    /// The whole head is longer than the policy allows.
    HeadTooLong,
    /// More fields than the policy allows.
    TooManyFields,
    /// `TRACE`, which would send credentials back to a script.
    TraceRefused,
    /// `CONNECT` where no tunnel is offered.
    ConnectRefused,
}

impl ParseError {
    /// The status nginx answers with; 494 is internal (see [`StatusCode::on_wire`]).
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

    /// Whether the connection must be closed after the response. Always true today; a method, so that callers need not
    /// know the statuses.
    #[must_use]
    pub fn closes(self) -> bool {
        true
    }

    /// nginx's words for the error log, without the text of the offending line.
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
            Self::InvalidHost(_) => "client sent invalid host",
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
