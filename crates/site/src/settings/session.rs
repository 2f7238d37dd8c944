//! Settings of the core of `stream`.

use std::time::Duration;

use crate::config::Settings;

/// Settings of a server of `stream`, with nginx's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCore {
    /// `preread_buffer_size`: maximum number of bytes that are examined before the session begins.
    pub preread_buffer_size: u64,
    /// `preread_timeout`
    pub preread_timeout: Duration,
    /// `proxy_protocol_timeout`: time limit of reading the header of the PROXY protocol.
    pub proxy_protocol_timeout: Duration,
    /// `ssl_handshake_timeout`
    pub handshake_timeout: Duration,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
}

impl Default for SessionCore {
    fn default() -> SessionCore {
        SessionCore {
            preread_buffer_size: 16 << 10,
            preread_timeout: Duration::from_secs(30),
            proxy_protocol_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(60),
            tcp_nodelay: true,
        }
    }
}

impl Settings for SessionCore {}
