//! How requests are read: what the directives of `http_core` say, with nginx's defaults.

use std::time::Duration;

use crate::config::Layered;
use crate::template::Template;

/// How requests are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// `client_header_timeout`
    pub(crate) client_header_timeout: Duration,
    /// `client_header_buffer_size`, bytes.
    pub(crate) client_header_buffer_size: u64,
    /// `large_client_header_buffers`: count and bytes.
    pub(crate) large_client_header_buffers: (u64, u64),
    /// `connection_pool_size`, which bounds `large_client_header_buffers` and nothing else here.
    pub(crate) connection_pool_size: u64,
    /// `max_headers`: header lines.
    pub(crate) max_headers: u64,
    /// `ignore_invalid_headers`
    pub(crate) ignore_invalid_headers: bool,
    /// `underscores_in_headers`
    pub(crate) underscores_in_headers: bool,
    /// `http_strict`
    pub(crate) http_strict: bool,
    /// `merge_slashes`
    pub(crate) merge_slashes: bool,
    /// `client_max_body_size`, bytes; 0 is no limit.
    pub(crate) client_max_body_size: u64,
    /// `client_body_buffer_size`, bytes.
    pub(crate) client_body_buffer_size: u64,
    /// `client_body_timeout`
    pub(crate) client_body_timeout: Duration,
    /// `client_body_early_read`
    pub(crate) client_body_early_read: Layered<Template>,
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
