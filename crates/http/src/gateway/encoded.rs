//! A request as bytes of its protocol.

use super::{BodyFraming, memcached};
use crate::Span;

/// The protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 and 1.1 (RFC 9112).
    Http1,
    /// HTTP/2 (RFC 9113).
    Http2,
    /// FastCGI 1.0.
    FastCgi,
    /// SCGI and uwsgi: the response of a script, up to its length or the end of the connection.
    Script,
    /// memcached, and the bits of flags that mark a value as compressed.
    Memcached {
        /// `memcached_gzip_flag`
        gzip_flag: u64,
    },
    /// None: bytes pass in both directions from the beginning on (CONNECT).
    Bytes,
}

/// The result of an encoder for the parts of a request.
#[derive(Clone, Debug)]
pub struct Encoded {
    pub(in crate::gateway) protocol: Protocol,
    pub(in crate::gateway) head: Vec<u8>,
    pub(in crate::gateway) target: Span,
    pub(in crate::gateway) framing: BodyFraming,
}

impl Encoded {
    /// Nothing: a connection is the whole request.
    #[must_use]
    pub fn of_connection() -> Self {
        let framing = BodyFraming::Plain;
        Self { protocol: Protocol::Bytes, head: Vec::new(), target: Span::EMPTY, framing }
    }

    /// The protocol, which the response has too.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The bytes before the body.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The target, for logs.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.target.of(&self.head)
    }

    /// The requested key, if the protocol has one.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        matches!(self.protocol, Protocol::Memcached { .. }).then(|| memcached::key(&self.head))
    }

    /// How the body is framed on its way.
    #[must_use]
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }
}
