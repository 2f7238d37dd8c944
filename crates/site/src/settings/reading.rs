//! Reading of requests: settings of `http_core`, with nginx's defaults.

use conf::Layered;
use std::time::Duration;

use crate::template::Template;

/// Settings for reading requests.
#[derive(Clone, Debug)]
pub struct Reading {
    /// `client_header_timeout`
    pub client_header_timeout: Duration,
    /// `client_header_buffer_size`, in bytes.
    pub client_header_buffer_size: u64,
    /// `large_client_header_buffers`: count, and size in bytes.
    pub large_client_header_buffers: (u64, u64),
    /// `connection_pool_size`, which here is only a lower bound of `large_client_header_buffers`.
    pub connection_pool_size: u64,
    /// `max_headers`: maximum number of header fields.
    pub max_headers: u64,
    /// `ignore_invalid_headers`
    pub ignore_invalid_headers: bool,
    /// `underscores_in_headers`
    pub underscores_in_headers: bool,
    /// `http_strict`
    pub http_strict: bool,
    /// `merge_slashes`
    pub merge_slashes: bool,
    /// `client_max_body_size`, in bytes; 0 means no limit.
    pub client_max_body_size: u64,
    /// `client_body_buffer_size`, in bytes.
    pub client_body_buffer_size: u64,
    /// `client_body_timeout`
    pub client_body_timeout: Duration,
    /// `client_body_early_read`
    pub client_body_early_read: Layered<Template>,
}

impl Default for Reading {
    fn default() -> Reading {
        Reading {
            client_header_timeout: Duration::from_secs(60),
            client_header_buffer_size: 1 << 10,
            large_client_header_buffers: (4, 8 << 10),
            connection_pool_size: 512,
            max_headers: 1000,
            ignore_invalid_headers: true,
            underscores_in_headers: false,
            http_strict: false,
            merge_slashes: true,
            client_max_body_size: 1 << 20,
            client_body_buffer_size: 16 << 10,
            client_body_timeout: Duration::from_secs(60),
            client_body_early_read: Layered::default(),
        }
    }
}
