//! The settings of module `http_v3`. A connection uses those of the default server of its address, and ALPN those of the server that the
//! ClientHello selects.

use std::sync::Arc;

use site::config::Settings;

/// The settings of module `http_v3`.
#[derive(Clone, Debug)]
pub struct Http3 {
    /// `http3`
    pub enabled: bool,
    /// `http3_hq`
    pub hq: bool,
    /// `http3_max_concurrent_streams`
    pub streams_max: u32,
    /// `http3_stream_buffer_size`: bytes of a body that a client may send before its handler reads it.
    pub stream_buffer: u64,
    /// `quic_retry`
    pub retry: bool,
    /// `quic_gso`
    pub gso: bool,
    /// `quic_congestion_control`
    pub congestion: CongestionControl,
    /// `http3_alt_svc`: time in seconds for which clients may use HTTP/3; `None` sends no field.
    pub alt_svc: Option<u64>,
    /// `quic_host_key`: the content of the file.
    pub host_key: Option<Arc<Vec<u8>>>,
}

/// Values of `quic_congestion_control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    Cubic,
    /// BBR, which estimates bandwidth and round-trip time instead of reacting to lost packets.
    Bbr,
}

impl Settings for Http3 {}

impl Default for Http3 {
    fn default() -> Http3 {
        Http3 {
            enabled: true,
            hq: false,
            streams_max: 128,
            stream_buffer: 64 << 10,
            retry: false,
            gso: false,
            congestion: CongestionControl::Cubic,
            alt_svc: None,
            host_key: None,
        }
    }
}

impl Http3 {
    /// Returns the protocols for ALPN over QUIC, in order of preference.
    pub fn alpn(&self) -> Vec<Vec<u8>> {
        let offered = [(self.enabled, H3), (self.hq, HQ)];
        offered.into_iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name.to_vec()).collect()
    }
}

/// The name of HTTP/3 for ALPN (RFC 9114 section 3.1).
pub const H3: &[u8] = b"h3";

/// The name of HTTP/0.9 over QUIC for ALPN, which interoperability tests use.
pub const HQ: &[u8] = b"hq-interop";
