//! HTTP/2 as a connection needs it before it has requests, and as they need it: the settings of module `http_v2`.

use crate::config::Settings;

/// The settings of module `http_v2`.
#[derive(Clone, Copy, Debug)]
pub struct Http2 {
    /// `http2`
    pub enabled: bool,
    /// `http2_max_concurrent_streams`
    pub streams_max: u32,
    /// `http2_body_preread_size`, bytes: the bytes that a client may send of a body before the handler takes it.
    pub preread: u32,
    /// `http2_chunk_size`, bytes: the longest payload of a frame with a part of a body.
    pub chunk_size: u64,
    /// `http2_recv_buffer_size`, bytes: the bytes received at most before other connections have their turn.
    pub recv_buffer_size: u64,
}

impl Settings for Http2 {}

impl Default for Http2 {
    fn default() -> Http2 {
        Http2 {
            enabled: false,
            streams_max: 128,
            preread: 64 << 10,
            chunk_size: 8 << 10,
            recv_buffer_size: 256 << 10,
        }
    }
}
