//! Errors of a connection or a stream, and the error codes for the peer (RFC 9113 sections 5.4 and 7).

/// Error codes of RST_STREAM and GOAWAY (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error.
    NoError = 0x0,
    /// The protocol was violated.
    Protocol = 0x1,
    /// An internal error of this end.
    Internal = 0x2,
    /// More bytes than a window permits.
    FlowControl = 0x3,
    /// The settings were not acknowledged.
    SettingsTimeout = 0x4,
    /// A frame for a stream that has ended.
    StreamClosed = 0x5,
    /// A frame of the wrong length.
    FrameSize = 0x6,
    /// The stream was not processed.
    RefusedStream = 0x7,
    /// The stream is no longer needed.
    Cancel = 0x8,
    /// A header block cannot be decoded.
    Compression = 0x9,
    /// The connection of a CONNECT request was reset.
    Connect = 0xa,
    /// The peer causes too much work.
    EnhanceYourCalm = 0xb,
    /// The transport is not secure enough.
    InadequateSecurity = 0xc,
    /// HTTP/1.1 is needed.
    Http11Required = 0xd,
}

/// Reason why a connection ends (RFC 9113 section 5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection does not begin with the preface.
    Preface,
    /// The first frame is not SETTINGS.
    NoSettings,
    /// A frame is longer than permitted.
    FrameTooLong,
    /// The length of a frame does not match its type.
    FrameLength,
    /// A frame of a stream without a stream number, or a frame of the connection with one.
    WrongStream,
    /// The padding is as long as its frame, or longer.
    Padding,
    /// Another frame interrupts a header block, or CONTINUATION does not follow an incomplete header block.
    Continuation,
    /// The number of a new stream is even, or lower than an earlier one; or a server opens a stream.
    StreamNumber,
    /// A frame for a stream that was not opened.
    IdleStream,
    /// A frame for a stream that has ended.
    ClosedStream,
    /// A stream that depends on itself.
    Dependency,
    /// The peer sent PUSH_PROMISE: clients must not send it, and server push is disabled.
    PushPromise,
    /// PRIORITY_UPDATE from a server, for a stream with an even number, or for more streams than may be open.
    PriorityUpdate,
    /// An invalid value of a setting.
    Setting,
    /// The initial window of streams exceeds the maximum window.
    InitialWindow,
    /// A WINDOW_UPDATE of 0.
    ZeroIncrement,
    /// A window exceeds the maximum.
    WindowTooLarge,
    /// More bytes than the window of the connection permits.
    WindowExceeded,
    /// A header block cannot be decoded.
    Hpack(super::hpack::HpackError),
    /// A header block has more bytes or frames than a head may have.
    HeadTooLarge,
    /// Too many frames without effect.
    Flood,
}

impl Fault {
    /// Returns the error code of the GOAWAY that ends the connection.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Fault::FrameTooLong | Fault::FrameLength => ErrorCode::FrameSize,
            Fault::ClosedStream => ErrorCode::StreamClosed,
            Fault::InitialWindow | Fault::WindowTooLarge | Fault::WindowExceeded => ErrorCode::FlowControl,
            Fault::Hpack(_) => ErrorCode::Compression,
            Fault::HeadTooLarge | Fault::Flood => ErrorCode::EnhanceYourCalm,
            _ => ErrorCode::Protocol,
        }
    }

    /// Returns a text for the log.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Fault::Preface => "client sent invalid connection preface",
            Fault::NoSettings => "client sent no SETTINGS frame first",
            Fault::FrameTooLong => "client sent too large frame",
            Fault::FrameLength => "client sent frame with incorrect length",
            Fault::WrongStream => "client sent frame with incorrect stream identifier",
            Fault::Padding => "client sent padded frame with incorrect length",
            Fault::Continuation => "client sent inappropriate frame while CONTINUATION was expected",
            Fault::StreamNumber => "client sent HEADERS frame with incorrect identifier",
            Fault::IdleStream => "client sent frame for idle stream",
            Fault::ClosedStream => "client sent frame for closed stream",
            Fault::Dependency => "client sent frame with incorrect dependency",
            Fault::PushPromise => "client sent PUSH_PROMISE frame",
            Fault::PriorityUpdate => "client sent inappropriate PRIORITY_UPDATE frame",
            Fault::Setting => "client sent SETTINGS frame with incorrect value",
            Fault::InitialWindow => "client sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE value",
            Fault::ZeroIncrement => "client sent WINDOW_UPDATE frame with incorrect window increment 0",
            Fault::WindowTooLarge => "client violated connection flow control: window is too large",
            Fault::WindowExceeded => "client violated connection flow control: too much DATA",
            Fault::Hpack(_) => "client sent header block that cannot be decoded",
            Fault::HeadTooLarge => "client exceeded the size of a header block",
            Fault::Flood => "http2 flood detected",
        }
    }
}

/// Reason why a stream ends (RFC 9113 section 5.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// Too many open streams.
    TooMany,
    /// A frame after the end of the request.
    HalfClosed,
    /// The body is longer or shorter than announced (RFC 9113 section 8.1.1).
    Length,
    /// Invalid trailers, or a header section on a tunnel.
    Trailers,
    /// A WINDOW_UPDATE of 0.
    ZeroIncrement,
    /// A window exceeds the maximum.
    WindowTooLarge,
    /// More bytes than the window of the stream permits.
    WindowExceeded,
    /// A PRIORITY frame has the wrong length.
    FrameLength,
}

impl StreamFault {
    /// Returns the error code of the RST_STREAM.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            StreamFault::TooMany => ErrorCode::RefusedStream,
            StreamFault::HalfClosed => ErrorCode::StreamClosed,
            StreamFault::Length | StreamFault::Trailers | StreamFault::ZeroIncrement => ErrorCode::Protocol,
            StreamFault::WindowTooLarge | StreamFault::WindowExceeded => ErrorCode::FlowControl,
            StreamFault::FrameLength => ErrorCode::FrameSize,
        }
    }
}
