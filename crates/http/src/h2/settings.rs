//! SETTINGS (RFC 9113 section 6.5): settings received from the peer, and those sent to it.

use super::error::Fault;
use super::frame::{self, FrameType, PAYLOAD_MAX};
use super::hpack::TABLE_BYTES_DEFAULT;

/// Maximum window (RFC 9113 section 6.9.1).
pub const WINDOW_MAX: u32 = (1 << 31) - 1;

/// Default window (RFC 9113 section 6.9.2).
pub const WINDOW_DEFAULT: u32 = (1 << 16) - 1;

/// Maximum value of SETTINGS_MAX_FRAME_SIZE.
const PAYLOAD_LIMIT: u32 = (1 << 24) - 1;

/// Settings of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// SETTINGS_HEADER_TABLE_SIZE
    pub table_bytes: usize,
    /// SETTINGS_MAX_CONCURRENT_STREAMS
    pub streams_max: u32,
    /// SETTINGS_INITIAL_WINDOW_SIZE
    pub initial_window: u32,
    /// SETTINGS_MAX_FRAME_SIZE
    pub payload_max: usize,
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings {
            table_bytes: TABLE_BYTES_DEFAULT,
            streams_max: u32::MAX,
            initial_window: WINDOW_DEFAULT,
            payload_max: PAYLOAD_MAX,
        }
    }
}

impl PeerSettings {
    /// Parses a payload; `is_of_server` is whether the peer is a server. Values are applied in order. Returns the smallest table size:
    /// the encoder must announce it (RFC 7541 section 4.2).
    pub(super) fn read(&mut self, payload: &[u8], is_of_server: bool) -> Result<usize, Fault> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(Fault::FrameLength);
        }
        let mut smallest = self.table_bytes;
        for &[i, j, a, b, c, d] in settings {
            let value = u32::from_be_bytes([a, b, c, d]);
            match u16::from_be_bytes([i, j]) {
                0x1 => {
                    self.table_bytes = value as usize;
                    smallest = smallest.min(self.table_bytes);
                }
                // SETTINGS_ENABLE_PUSH, which has no effect because push is not used, and SETTINGS_NO_RFC7540_PRIORITIES (RFC
                // 9218).
                0x2 | 0x9 if value > 1 => return Err(Fault::Setting),
                // Only clients may enable server push.
                0x2 if value == 1 && is_of_server => return Err(Fault::Setting),
                0x3 => self.streams_max = value,
                0x4 if value > WINDOW_MAX => return Err(Fault::InitialWindow),
                0x4 => self.initial_window = value,
                0x5 if !(PAYLOAD_MAX as u32..=PAYLOAD_LIMIT).contains(&value) => return Err(Fault::Setting),
                0x5 => self.payload_max = value as usize,
                // Unknown settings are ignored (RFC 9113 section 6.5.2).
                _ => {}
            }
        }
        Ok(smallest)
    }
}

/// Appends the settings of a server at the start of a connection.
pub(super) fn push_own(out: &mut Vec<u8>, streams_max: u32, initial_window: u32) {
    let mut payload = Vec::with_capacity(24);
    // SETTINGS_MAX_CONCURRENT_STREAMS, SETTINGS_INITIAL_WINDOW_SIZE, SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441),
    // SETTINGS_NO_RFC7540_PRIORITIES.
    for (id, value) in [(0x3u16, streams_max), (0x4, initial_window), (0x8, 1), (0x9, 1)] {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame::push(out, FrameType::Settings, 0, 0, &payload);
}

/// Appends the settings of a client at the start of a connection.
pub(super) fn push_own_of_client(out: &mut Vec<u8>, initial_window: u32, head_max: u32) {
    let mut payload = Vec::with_capacity(18);
    // SETTINGS_ENABLE_PUSH, SETTINGS_INITIAL_WINDOW_SIZE, SETTINGS_MAX_HEADER_LIST_SIZE.
    for (id, value) in [(0x2u16, 0), (0x4, initial_window), (0x6, head_max)] {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame::push(out, FrameType::Settings, 0, 0, &payload);
}
