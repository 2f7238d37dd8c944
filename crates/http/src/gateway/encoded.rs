//! A request, encoded in the protocol of the upstream.

use super::{BodyFraming, memcached};
use crate::Span;

/// Protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.0 and 1.1 (RFC 9112).
    Http1,
    /// HTTP/2 (RFC 9113).
    Http2,
    /// FastCGI 1.0.
    FastCgi,
    /// SCGI and uwsgi. The response is a CGI response; its length or the end of the connection delimits it.
    Script,
    /// memcached, with the flag bits that mark a compressed value.
    Memcached {
        /// `memcached_gzip_flag`
        gzip_flag: u64,
    },
    /// No protocol: bytes are relayed in both directions from the beginning (CONNECT).
    Bytes,
}

/// Encoded header section of a request, with the framing of its body.
#[derive(Clone, Debug)]
pub struct Encoded {
    pub(in crate::gateway) protocol: UpstreamProtocol,
    pub(in crate::gateway) head: Vec<u8>,
    pub(in crate::gateway) target: Span,
    pub(in crate::gateway) framing: BodyFraming,
}

impl Encoded {
    /// Creates an empty request: the connection itself is the request.
    #[must_use]
    pub fn of_connection() -> Self {
        let framing = BodyFraming::Plain;
        Self { protocol: UpstreamProtocol::Bytes, head: Vec::new(), target: Span::EMPTY, framing }
    }

    /// Returns the protocol of the request and of its response.
    #[must_use]
    pub fn protocol(&self) -> UpstreamProtocol {
        self.protocol
    }

    /// Returns the bytes before the body.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the request target, for logs.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.target.of(&self.head)
    }

    /// Returns the requested key, for memcached.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        matches!(self.protocol, UpstreamProtocol::Memcached { .. }).then(|| memcached::key(&self.head))
    }

    /// Returns the framing of the request body.
    #[must_use]
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }
}
