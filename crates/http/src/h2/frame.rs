//! Frames (RFC 9113 sections 4 and 6): the frame header in both directions, and frames that are encoded completely.

use super::error::ErrorCode;

/// The preface of a client (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame header in bytes.
pub const FRAME_HEADER_LEN: usize = 9;

/// Maximum payload of a received frame in bytes: the minimum that every endpoint must accept (RFC 9113 section 4.2).
pub const PAYLOAD_MAX: usize = 1 << 14;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// DATA
    Data,
    /// HEADERS
    Headers,
    /// PRIORITY
    Priority,
    /// RST_STREAM
    ResetStream,
    /// SETTINGS
    Settings,
    /// PUSH_PROMISE
    PushPromise,
    /// PING
    Ping,
    /// GOAWAY
    GoAway,
    /// WINDOW_UPDATE
    WindowUpdate,
    /// CONTINUATION
    Continuation,
    /// PRIORITY_UPDATE (RFC 9218 section 7.1)
    PriorityUpdate,
    /// An unknown type, which is ignored (RFC 9113 section 5.5).
    Unknown,
}

impl FrameType {
    fn of(byte: u8) -> FrameType {
        match byte {
            0x0 => FrameType::Data,
            0x1 => FrameType::Headers,
            0x2 => FrameType::Priority,
            0x3 => FrameType::ResetStream,
            0x4 => FrameType::Settings,
            0x5 => FrameType::PushPromise,
            0x6 => FrameType::Ping,
            0x7 => FrameType::GoAway,
            0x8 => FrameType::WindowUpdate,
            0x9 => FrameType::Continuation,
            0x10 => FrameType::PriorityUpdate,
            _ => FrameType::Unknown,
        }
    }

    fn byte(self) -> u8 {
        match self {
            FrameType::Data => 0x0,
            FrameType::Headers => 0x1,
            FrameType::Priority => 0x2,
            FrameType::ResetStream => 0x3,
            FrameType::Settings => 0x4,
            FrameType::PushPromise => 0x5,
            FrameType::Ping => 0x6,
            FrameType::GoAway => 0x7,
            FrameType::WindowUpdate => 0x8,
            FrameType::Continuation => 0x9,
            FrameType::PriorityUpdate => 0x10,
            FrameType::Unknown => 0xff,
        }
    }
}

/// END_STREAM of DATA and HEADERS.
pub const END_STREAM: u8 = 0x1;
/// ACK of SETTINGS and PING.
pub const ACK: u8 = 0x1;
/// END_HEADERS of HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 0x4;
/// PADDED of DATA and HEADERS.
pub const PADDED: u8 = 0x8;
/// PRIORITY of HEADERS.
pub const PRIORITY: u8 = 0x20;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub len: usize,
    /// The type.
    pub kind: FrameType,
    /// Flags; their meaning depends on the type.
    pub flags: u8,
    /// Stream identifier; 0 if the frame applies to the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Parses a frame header, if nine bytes are available.
    #[must_use]
    pub fn read(input: &[u8]) -> Option<FrameHeader> {
        let &[a, b, c, kind, flags, s, t, u, v] = input.first_chunk::<FRAME_HEADER_LEN>()?;
        Some(FrameHeader {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind: FrameType::of(kind),
            flags,
            // The first bit is reserved and ignored (RFC 9113 section 4.1).
            stream: u32::from_be_bytes([s & 0x7f, t, u, v]),
        })
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Appends the encoded header.
    pub fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// Returns the encoded header.
    pub(super) fn bytes(&self) -> [u8; FRAME_HEADER_LEN] {
        let [_, a, b, c] = (self.len as u32).to_be_bytes();
        let [s, t, u, v] = self.stream.to_be_bytes();
        [a, b, c, self.kind.byte(), self.flags, s, t, u, v]
    }
}

/// Appends a frame with a short payload.
pub(super) fn push(out: &mut Vec<u8>, kind: FrameType, flags: u8, stream: u32, payload: &[u8]) {
    FrameHeader { len: payload.len(), kind, flags, stream }.push(out);
    out.extend_from_slice(payload);
}

/// Appends RST_STREAM.
pub fn push_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    push(out, FrameType::ResetStream, 0, stream, &(code as u32).to_be_bytes());
}

/// Appends WINDOW_UPDATE.
pub(super) fn push_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    push(out, FrameType::WindowUpdate, 0, stream, &bytes.to_be_bytes());
}

/// Appends GOAWAY.
pub fn push_go_away(out: &mut Vec<u8>, last: u32, code: ErrorCode) {
    let (last, code) = (last.to_be_bytes(), (code as u32).to_be_bytes());
    push(out, FrameType::GoAway, 0, 0, &[last, code].concat());
}

/// Parses a 32-bit number.
pub(super) fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
