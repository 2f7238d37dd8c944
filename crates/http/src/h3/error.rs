//! Errors of a connection or a stream, and the error codes for the peer (RFC 9114 section 8, RFC 9204 section 6).

use super::qpack::QpackError;
use crate::StatusCode;
use crate::multiplexed::calm::Flooded;
use crate::request::ParseError;

/// Application error codes of CONNECTION_CLOSE, RESET_STREAM and STOP_SENDING (RFC 9114 section 8.1, RFC 9204 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Http3ErrorCode {
    /// H3_NO_ERROR
    NoError = 0x100,
    /// H3_GENERAL_PROTOCOL_ERROR
    GeneralProtocol = 0x101,
    /// H3_INTERNAL_ERROR
    Internal = 0x102,
    /// H3_STREAM_CREATION_ERROR
    StreamCreation = 0x103,
    /// H3_CLOSED_CRITICAL_STREAM
    ClosedCriticalStream = 0x104,
    /// H3_FRAME_UNEXPECTED
    FrameUnexpected = 0x105,
    /// H3_FRAME_ERROR
    Frame = 0x106,
    /// H3_EXCESSIVE_LOAD
    ExcessiveLoad = 0x107,
    /// H3_ID_ERROR
    Id = 0x108,
    /// H3_SETTINGS_ERROR
    Settings = 0x109,
    /// H3_MISSING_SETTINGS
    MissingSettings = 0x10a,
    /// H3_REQUEST_REJECTED
    RequestRejected = 0x10b,
    /// H3_REQUEST_CANCELLED
    RequestCancelled = 0x10c,
    /// H3_REQUEST_INCOMPLETE
    RequestIncomplete = 0x10d,
    /// H3_MESSAGE_ERROR
    Message = 0x10e,
    /// H3_CONNECT_ERROR
    Connect = 0x10f,
    /// H3_VERSION_FALLBACK
    VersionFallback = 0x110,
    /// QPACK_DECOMPRESSION_FAILED
    QpackDecompressionFailed = 0x200,
    /// QPACK_ENCODER_STREAM_ERROR
    QpackEncoderStream = 0x201,
    /// QPACK_DECODER_STREAM_ERROR
    QpackDecoderStream = 0x202,
}

/// Reason why a connection ends (RFC 9114 section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http3Fault {
    /// The first frame of the control stream is not SETTINGS.
    MissingSettings,
    /// A second control stream, or a second QPACK stream of the same type.
    DuplicateStream,
    /// A client opened a push stream, or a server a bidirectional stream.
    WrongStreamType,
    /// The peer has closed, reset or stopped a control stream or QPACK stream.
    ClosedCriticalStream,
    /// A frame that is not allowed on its stream, or not in its state.
    FrameUnexpected,
    /// The stream ends inside a frame.
    Truncated,
    /// The payload of a frame is longer or shorter than its fields.
    FrameLength,
    /// A reserved, repeated or invalid setting.
    Setting,
    /// GOAWAY with a stream of the wrong type, or with a higher number than before.
    GoAway,
    /// A push number that was not permitted or not promised, or a lower limit than before.
    Push,
    /// PRIORITY_UPDATE for a stream that the client cannot open.
    PriorityUpdate,
    /// A control frame is longer than any valid one.
    FrameTooLong,
    /// A header section cannot be decoded.
    Decompression(QpackError),
    /// More streams wait for entries of the dynamic table than permitted.
    BlockedStreams,
    /// An invalid instruction on the encoder stream.
    EncoderStream(QpackError),
    /// An invalid instruction on the decoder stream.
    DecoderStream,
    /// Too many frames without effect.
    Flood,
}

impl Http3Fault {
    /// Returns the error code of the CONNECTION_CLOSE.
    #[must_use]
    pub fn code(self) -> Http3ErrorCode {
        match self {
            Http3Fault::MissingSettings => Http3ErrorCode::MissingSettings,
            Http3Fault::DuplicateStream | Http3Fault::WrongStreamType => Http3ErrorCode::StreamCreation,
            Http3Fault::ClosedCriticalStream => Http3ErrorCode::ClosedCriticalStream,
            Http3Fault::FrameUnexpected => Http3ErrorCode::FrameUnexpected,
            Http3Fault::Truncated | Http3Fault::FrameLength => Http3ErrorCode::Frame,
            Http3Fault::Setting => Http3ErrorCode::Settings,
            Http3Fault::GoAway | Http3Fault::Push | Http3Fault::PriorityUpdate => Http3ErrorCode::Id,
            Http3Fault::FrameTooLong | Http3Fault::Flood => Http3ErrorCode::ExcessiveLoad,
            Http3Fault::Decompression(_) | Http3Fault::BlockedStreams => {
                Http3ErrorCode::QpackDecompressionFailed
            }
            Http3Fault::EncoderStream(_) => Http3ErrorCode::QpackEncoderStream,
            Http3Fault::DecoderStream => Http3ErrorCode::QpackDecoderStream,
        }
    }

    /// Returns a text for the log, and for the reason phrase of the CONNECTION_CLOSE.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Http3Fault::MissingSettings => "client sent no SETTINGS frame first",
            Http3Fault::DuplicateStream => "client opened a second control or QPACK stream",
            Http3Fault::WrongStreamType => "client opened a stream of a type that only servers may open",
            Http3Fault::ClosedCriticalStream => "client closed a control or QPACK stream",
            Http3Fault::FrameUnexpected => "client sent unexpected frame",
            Http3Fault::Truncated => "client sent incomplete frame",
            Http3Fault::FrameLength => "client sent frame with incorrect length",
            Http3Fault::Setting => "client sent SETTINGS frame with incorrect setting",
            Http3Fault::GoAway => "client sent GOAWAY frame with incorrect identifier",
            Http3Fault::Push => "client sent frame with incorrect push identifier",
            Http3Fault::PriorityUpdate => "client sent PRIORITY_UPDATE frame with incorrect identifier",
            Http3Fault::FrameTooLong => "client sent too large frame",
            Http3Fault::Decompression(_) => "client sent header section that cannot be decoded",
            Http3Fault::BlockedStreams => "client exceeded the number of blocked streams",
            Http3Fault::EncoderStream(_) => "client sent invalid instruction on encoder stream",
            Http3Fault::DecoderStream => "client sent invalid instruction on decoder stream",
            Http3Fault::Flood => "http3 flood detected",
        }
    }
}

impl From<Flooded> for Http3Fault {
    fn from(Flooded: Flooded) -> Http3Fault {
        Http3Fault::Flood
    }
}

/// Reason why a stream ends (RFC 9114 sections 4.1 and 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// The stream ends without a complete header section.
    Incomplete,
    /// The body is longer or shorter than announced (RFC 9114 section 4.1.2).
    Length,
    /// Invalid trailers.
    Trailers,
    /// A header section or a trailer section is longer than any accepted one.
    HeadTooLarge,
}

impl RequestFault {
    /// Returns the error code of RESET_STREAM and STOP_SENDING.
    #[must_use]
    pub fn code(self) -> Http3ErrorCode {
        match self {
            RequestFault::Incomplete => Http3ErrorCode::RequestIncomplete,
            RequestFault::Length | RequestFault::Trailers => Http3ErrorCode::Message,
            RequestFault::HeadTooLarge => Http3ErrorCode::ExcessiveLoad,
        }
    }

    /// Returns the status of the response, if the error is found before the response begins.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            RequestFault::HeadTooLarge => ParseError::HeadTooLong.status(),
            RequestFault::Incomplete | RequestFault::Length | RequestFault::Trailers => {
                StatusCode::BAD_REQUEST
            }
        }
    }

    /// Returns the text for the log.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            RequestFault::Incomplete => "client closed stream without a request",
            RequestFault::Length => "client sent body of another length than announced",
            RequestFault::Trailers => "client sent invalid trailers",
            RequestFault::HeadTooLarge => ParseError::HeadTooLong.message(),
        }
    }
}

/// Error on a request stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFailure {
    /// The connection must end.
    Connection(Http3Fault),
    /// Only the stream must end.
    Stream(RequestFault),
}

impl From<Http3Fault> for StreamFailure {
    fn from(fault: Http3Fault) -> StreamFailure {
        StreamFailure::Connection(fault)
    }
}

impl From<RequestFault> for StreamFailure {
    fn from(fault: RequestFault) -> StreamFailure {
        StreamFailure::Stream(fault)
    }
}

impl From<Flooded> for StreamFailure {
    fn from(flooded: Flooded) -> StreamFailure {
        StreamFailure::Connection(flooded.into())
    }
}
