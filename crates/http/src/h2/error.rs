//! Errors of a connection or of one of its streams, and the code for the other end (RFC 9113 sections 5.4 and 7).

/// The codes of RST_STREAM and GOAWAY (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// Nothing went wrong.
    NoError = 0x0,
    /// The protocol was broken.
    Protocol = 0x1,
    /// A fault of this end.
    Internal = 0x2,
    /// More bytes than a window allows.
    FlowControl = 0x3,
    /// The settings were not acknowledged.
    SettingsTimeout = 0x4,
    /// A frame for a stream that has ended.
    StreamClosed = 0x5,
    /// A frame of the wrong length.
    FrameSize = 0x6,
    /// The stream was not begun to be processed.
    RefusedStream = 0x7,
    /// The stream is not needed any more.
    Cancel = 0x8,
    /// A header block cannot be decoded.
    Compression = 0x9,
    /// The connection of a CONNECT request was reset.
    Connect = 0xa,
    /// The other end makes too much work.
    EnhanceYourCalm = 0xb,
    /// The transport is not secure enough.
    InadequateSecurity = 0xc,
    /// HTTP/1.1 is needed.
    Http11Required = 0xd,
}

/// Why a connection ends (RFC 9113 section 5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection does not begin with the preface.
    Preface,
    /// The first frame is no SETTINGS.
    NoSettings,
    /// A frame is longer than was allowed.
    FrameTooLong,
    /// A frame has not the length that its type has.
    FrameLength,
    /// A frame that belongs to a stream has none, or the other way round.
    WrongStream,
    /// Padding is as long as its frame, or longer.
    Padding,
    /// A header block is interrupted by another frame, or continues without a beginning.
    Continuation,
    /// The identifier of a new stream is even, or below another one.
    StreamNumber,
    /// A frame for a stream that was not opened.
    IdleStream,
    /// A frame for a stream that has ended.
    ClosedStream,
    /// A client sent PUSH_PROMISE.
    PushPromise,
    /// A setting has a value that it cannot have.
    Setting,
    /// The initial window of streams is larger than a window can be.
    InitialWindow,
    /// A window is opened by nothing.
    WindowOfNothing,
    /// A window became larger than a window can be.
    WindowTooLarge,
    /// More bytes than the window of the connection allows.
    WindowExceeded,
    /// A header block cannot be decoded.
    Hpack(super::hpack::HpackError),
    /// A header block takes more bytes or frames than a head may.
    HeadTooLarge,
    /// Frames that do nothing came in numbers.
    Flood,
    /// Streams were reset or refused in numbers.
    ResetFlood,
}

impl Fault {
    /// The code of the GOAWAY that ends the connection.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Fault::FrameTooLong | Fault::FrameLength => ErrorCode::FrameSize,
            Fault::ClosedStream => ErrorCode::StreamClosed,
            Fault::InitialWindow | Fault::WindowTooLarge | Fault::WindowExceeded => ErrorCode::FlowControl,
            Fault::Hpack(_) => ErrorCode::Compression,
            Fault::HeadTooLarge | Fault::Flood | Fault::ResetFlood => ErrorCode::EnhanceYourCalm,
            _ => ErrorCode::Protocol,
        }
    }

    /// A text for the log.
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
            Fault::PushPromise => "client sent PUSH_PROMISE frame",
            Fault::Setting => "client sent SETTINGS frame with incorrect value",
            Fault::InitialWindow => "client sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE value",
            Fault::WindowOfNothing => "client sent WINDOW_UPDATE frame with incorrect window increment 0",
            Fault::WindowTooLarge => "client violated connection flow control: window is too large",
            Fault::WindowExceeded => "client violated connection flow control: too much DATA",
            Fault::Hpack(_) => "client sent header block that cannot be decoded",
            Fault::HeadTooLarge => "client exceeded the size of a header block",
            Fault::Flood => "http2 flood detected",
            Fault::ResetFlood => "client sent too many streams that were reset or refused",
        }
    }
}

/// Why one stream ends (RFC 9113 section 5.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// More streams than may be open at once.
    TooMany,
    /// A frame behind the end of the request.
    HalfClosed,
    /// The body is longer or shorter than its request said (RFC 9113 section 8.1.1).
    Length,
    /// Trailers are none.
    Trailers,
    /// A window is opened by nothing.
    WindowOfNothing,
    /// A window became larger than a window can be.
    WindowTooLarge,
    /// More bytes than the window of the stream allows.
    WindowExceeded,
    /// A PRIORITY frame has not its length.
    FrameLength,
}

impl StreamFault {
    /// The code of its RST_STREAM.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            StreamFault::TooMany => ErrorCode::RefusedStream,
            StreamFault::HalfClosed => ErrorCode::StreamClosed,
            StreamFault::Length | StreamFault::Trailers | StreamFault::WindowOfNothing => ErrorCode::Protocol,
            StreamFault::WindowTooLarge | StreamFault::WindowExceeded => ErrorCode::FlowControl,
            StreamFault::FrameLength => ErrorCode::FrameSize,
        }
    }
}
