//! The settings of module `http_v2`, which a connection needs before its first request and requests need later.

use site::config::Settings;

/// The settings of module `http_v2`.
#[derive(Clone, Copy, Debug)]
pub struct Http2 {
    /// `http2`
    pub enabled: bool,
    /// `http2_max_concurrent_streams`
    pub streams_max: u32,
    /// `http2_body_preread_size`: bytes of a body that a client may send before the handler reads it.
    pub preread: u32,
    /// `http2_chunk_size`: maximum payload of a DATA frame in bytes.
    pub chunk_size: u64,
    /// `http2_recv_buffer_size`: maximum number of bytes received before other connections get their turn.
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
