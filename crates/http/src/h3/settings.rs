//! SETTINGS (RFC 9114 section 7.2.4): settings received from the peer, and those sent to it.

use super::error::Http3Fault;
use super::frame::{self, VARINT_MAX, kind, push_varint, read_varint};

/// Identifiers of settings (RFC 9114 section 7.2.4.1, RFC 9204 section 5, RFC 9220 section 3).
mod id {
    pub(super) const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
    pub(super) const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
    pub(super) const QPACK_BLOCKED_STREAMS: u64 = 0x7;
    pub(super) const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
}

/// Limits of a connection, from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Limits {
    /// Maximum number of open request streams (`http3_max_concurrent_streams`), as announced by QUIC.
    pub streams_max: u32,
    /// Maximum size of a header section in bytes (`large_client_header_buffers`).
    pub head_max: u32,
    /// Maximum number of fields of a header section (`max_headers`).
    pub fields_max: u16,
    /// Maximum size of the QPACK table in bytes that the peer may fill.
    pub table_capacity: u32,
    /// Maximum number of streams that wait for entries of that table.
    pub blocked_max: u16,
    /// Any number. It selects the reserved setting that is sent, so that peers cannot rely on known settings alone (RFC 9114 section
    /// 7.2.4.1).
    pub grease: u32,
}

impl Default for Http3Limits {
    fn default() -> Http3Limits {
        Http3Limits {
            streams_max: 128,
            head_max: 33 << 10,
            fields_max: 1000,
            table_capacity: 0,
            blocked_max: 0,
            grease: 0,
        }
    }
}

/// Settings of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Settings {
    /// SETTINGS_QPACK_MAX_TABLE_CAPACITY in bytes.
    pub table_capacity: u64,
    /// SETTINGS_QPACK_BLOCKED_STREAMS
    pub blocked_streams: u64,
    /// SETTINGS_MAX_FIELD_SECTION_SIZE in bytes, with 32 for each field.
    pub field_section_max: u64,
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL
    pub has_extended_connect: bool,
}

impl Default for Http3Settings {
    fn default() -> Http3Settings {
        Http3Settings {
            table_capacity: 0,
            blocked_streams: 0,
            field_section_max: u64::MAX,
            has_extended_connect: false,
        }
    }
}

/// Maximum number of settings in a frame: more than any implementation sends. Repetitions must be found among them.
const SETTINGS_MAX: usize = 64;

impl Http3Settings {
    /// Parses a payload.
    pub(super) fn read(mut payload: &[u8]) -> Result<Http3Settings, Http3Fault> {
        let (mut settings, mut seen) = (Http3Settings::default(), Vec::new());
        while !payload.is_empty() {
            let (id, used) = read_varint(payload).ok_or(Http3Fault::FrameLength)?;
            let (value, more) = read_varint(&payload[used..]).ok_or(Http3Fault::FrameLength)?;
            payload = &payload[used + more..];
            if seen.contains(&id) {
                return Err(Http3Fault::Setting);
            }
            if seen.len() == SETTINGS_MAX {
                return Err(Http3Fault::FrameTooLong);
            }
            seen.push(id);
            match id {
                // Settings of HTTP/2 (RFC 9114 sections 7.2.4.1 and 11.2.2).
                0x0 | 0x2..=0x5 => return Err(Http3Fault::Setting),
                id::QPACK_MAX_TABLE_CAPACITY => settings.table_capacity = value,
                id::MAX_FIELD_SECTION_SIZE => settings.field_section_max = value,
                id::QPACK_BLOCKED_STREAMS => settings.blocked_streams = value,
                // RFC 9220 section 3, RFC 8441 section 3.
                id::ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(Http3Fault::Setting),
                id::ENABLE_CONNECT_PROTOCOL => settings.has_extended_connect = value == 1,
                // Unknown settings are ignored.
                _ => {}
            }
        }
        Ok(settings)
    }
}

/// Size in bytes that counts for each field besides its name and value (RFC 9114 section 4.2.2).
const FIELD_OVERHEAD: u64 = 32;

/// Appends the SETTINGS frame of an end.
pub(super) fn push_own(out: &mut Vec<u8>, limits: &Http3Limits, is_server: bool) {
    let mut payload = Vec::with_capacity(32);
    let mut push = |id: u64, value: u64| {
        push_varint(&mut payload, id);
        push_varint(&mut payload, value);
    };
    let section = u64::from(limits.head_max) + FIELD_OVERHEAD * u64::from(limits.fields_max);
    push(id::MAX_FIELD_SECTION_SIZE, section);
    if limits.table_capacity > 0 {
        push(id::QPACK_MAX_TABLE_CAPACITY, limits.table_capacity.into());
        push(id::QPACK_BLOCKED_STREAMS, limits.blocked_max.into());
    }
    if is_server {
        push(id::ENABLE_CONNECT_PROTOCOL, 1);
    }
    let reserved = 0x1f * u64::from(limits.grease) + 0x21;
    debug_assert!(reserved <= VARINT_MAX);
    push(reserved, u64::from(limits.grease));
    frame::push_frame(out, kind::SETTINGS, &payload);
}
