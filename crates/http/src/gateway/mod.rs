//! The protocols of upstreams: requests are encoded to bytes, and the bytes of responses are decoded to events.
//!
//! Main types: an encoder per protocol, and the decoder. An encoder ([`Encoder`] for HTTP, [`fastcgi::Encoder`], [`scgi::Encoder`],
//! [`uwsgi::Encoder`], [`memcached::get`]) makes an [`Encoded`] from the parts of a request. [`Decoder`] receives bytes and returns
//! ranges of them; it copies no byte of a body. The decoder is a closed enum with one variant per protocol: HTTP/1 needs no box,
//! and no call is dynamic. The caller handles connections, timeouts and the choice of a server.

mod encoded;
mod event;
pub mod fastcgi;
pub mod http1;
pub mod http2;
pub mod memcached;
pub mod scgi;
pub mod uwsgi;

pub use encoded::{Encoded, UpstreamProtocol};
pub use event::{BodyEvent, BodyFraming, BodyStep, HeadEvent, InvalidBody, join};

use std::ops::Range;

use crate::fields::{BodyLength, Method};
use crate::response::parse::{Limits, ParsedResponse, ResponseError};

/// Encoder of an HTTP request, by version. Call [`begin`](Self::begin), then [`field`](Self::field) and [`body`](Self::body) in the
/// order of the fields, then [`end`](Self::end).
///
/// The caller ensures that no part contains a line end: methods and names are tokens, targets and values have no control bytes
/// except tabs.
#[derive(Clone, Debug)]
pub enum Encoder {
    /// HTTP/1.0 and 1.1.
    Http1(http1::Encoder),
    /// HTTP/2; boxed, because it is larger than the HTTP/1 encoder, which is moved more often.
    Http2(Box<http2::Encoder>),
}

impl Encoder {
    /// Begins with the method and the target; `target` appends the target to its argument. Returns whether the target is not empty;
    /// a request without a target must not be sent.
    pub fn begin(&mut self, method: &[u8], target: impl FnOnce(&mut Vec<u8>)) -> bool {
        match self {
            Self::Http1(encoder) => encoder.begin(method, target),
            Self::Http2(encoder) => encoder.begin(method, target),
        }
    }

    /// Adds a field. HTTP/2 omits fields about connections.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            Self::Http1(encoder) => encoder.field(name, value),
            Self::Http2(encoder) => encoder.field(name, value),
        }
    }

    /// Sets the length of the body and adds the fields for it. Without this call the request has no body.
    pub fn body(&mut self, length: BodyLength) {
        match self {
            Self::Http1(encoder) => encoder.body(length),
            Self::Http2(encoder) => encoder.body(length),
        }
    }

    /// Ends the head.
    #[must_use]
    pub fn end(self) -> Encoded {
        match self {
            Self::Http1(encoder) => encoder.end(),
            Self::Http2(encoder) => encoder.end(),
        }
    }
}

/// Decoder of one response, by the protocol of the upstream.
#[derive(Clone, Debug)]
pub enum Decoder {
    /// HTTP/1.0 and 1.1 (RFC 9112), CGI responses, and the text of converted HTTP/2 frames.
    Http1(http1::Decoder),
    /// FastCGI.
    FastCgi(Box<fastcgi::Decoder>),
    /// memcached.
    Memcached(Box<memcached::Decoder>),
}

impl Decoder {
    /// Creates a decoder for the response to `request`; `method` is the method that was sent to the upstream.
    #[must_use]
    pub fn new(request: &Encoded, method: Method, limits: Limits) -> Self {
        match request.protocol {
            UpstreamProtocol::Memcached { gzip_flag } => {
                let key = memcached::key(&request.head);
                Self::Memcached(Box::new(memcached::Decoder::new(key, gzip_flag, method, limits)))
            }
            UpstreamProtocol::Http1 | UpstreamProtocol::Bytes => {
                Self::Http1(http1::Decoder::new(method, limits))
            }
            UpstreamProtocol::Http2 => Self::Http1(http1::Decoder::of_stream(method, limits)),
            UpstreamProtocol::Script => Self::Http1(http1::Decoder::of_script(method, limits)),
            UpstreamProtocol::FastCgi => Self::FastCgi(Box::new(fastcgi::Decoder::new(method, limits))),
        }
    }

    /// Creates a decoder for the response to an HTTP/1 request that another component encoded.
    #[must_use]
    pub fn http1(method: Method, limits: Limits) -> Self {
        Self::Http1(http1::Decoder::new(method, limits))
    }

    /// Removes the framing of a protocol that also frames the header section (FastCGI) in place, and returns the range of the
    /// remaining bytes. Each received byte passes through this function once until [`Decoder::head`] has returned a header
    /// section.
    ///
    /// # Errors
    /// [`ResponseError`]; the connection must be closed.
    pub fn unframe(&mut self, received: &mut [u8]) -> Result<Range<usize>, ResponseError> {
        match self {
            Self::Http1(_) | Self::Memcached(_) => Ok(0..received.len()),
            Self::FastCgi(decoder) => decoder.unframe(received),
        }
    }

    /// Parses the head at the start of `input`, which [`Decoder::unframe`] returned; `head` is new or cleared.
    ///
    /// # Errors
    /// [`ResponseError`]; the connection must be closed.
    pub fn head(&mut self, head: &mut ParsedResponse, input: &[u8]) -> Result<HeadEvent, ResponseError> {
        match self {
            Self::Http1(decoder) => decoder.head(head, input),
            Self::FastCgi(decoder) => decoder.head(head, input),
            Self::Memcached(decoder) => decoder.head(head, input),
        }
    }

    /// Processes the next bytes after the head: first those received with it, then newly received bytes. Call until
    /// [`BodyEvent::More`] (then with new bytes) or [`BodyEvent::End`].
    ///
    /// # Errors
    /// [`InvalidBody`]; the connection must be closed.
    #[inline]
    pub fn body(&mut self, input: &[u8]) -> Result<BodyStep, InvalidBody> {
        match self {
            Self::Http1(decoder) => decoder.body(input),
            Self::FastCgi(decoder) => decoder.body(input),
            Self::Memcached(decoder) => decoder.body(input),
        }
    }

    /// Whether the body ends within the next bytes, `input`, so that the caller can process it in one step. Returns false if this
    /// check would cost as much as decoding.
    #[must_use]
    pub fn ends_within(&self, input: &[u8]) -> bool {
        match self {
            Self::Http1(decoder) => decoder.ends_within(input),
            Self::FastCgi(decoder) => decoder.ends_within(input),
            Self::Memcached(decoder) => decoder.ends_within(input),
        }
    }

    /// Returns the remaining bytes of the body, if known.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        match self {
            Self::Http1(decoder) => decoder.remaining(),
            Self::FastCgi(decoder) => decoder.remaining(),
            Self::Memcached(decoder) => decoder.remaining(),
        }
    }

    /// Returns the remaining bytes of the body if they are the next bytes of the connection, without framing between them.
    #[must_use]
    pub fn contiguous(&self) -> Option<u64> {
        match self {
            Self::Http1(decoder) => decoder.remaining(),
            Self::FastCgi(_) | Self::Memcached(_) => None,
        }
    }

    /// Skips bytes of the body that another component has received, at most those of [`Decoder::contiguous`].
    pub fn skip(&mut self, count: u64) {
        match self {
            Self::Http1(decoder) => decoder.skip(count),
            Self::FastCgi(_) | Self::Memcached(_) => debug_assert!(false, "frames must be decoded"),
        }
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.is_over(),
            Self::FastCgi(decoder) => decoder.is_over(),
            Self::Memcached(decoder) => decoder.is_over(),
        }
    }

    /// Handles the end of the connection. Returns whether it is a valid end of the body; false if bytes are missing.
    #[must_use]
    pub fn close(&mut self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.close(),
            Self::FastCgi(decoder) => decoder.close(),
            Self::Memcached(_) => false,
        }
    }

    /// Whether the connection can be reused for another request.
    #[must_use]
    pub fn keeps_alive(&self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.keeps_alive(),
            Self::FastCgi(decoder) => decoder.keeps_alive(),
            Self::Memcached(decoder) => decoder.keeps_alive(),
        }
    }

    /// Returns the names and values of the trailer fields that are allowed as trailers ([`crate::framing::may_be_trailer`]).
    #[must_use]
    pub fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        match self {
            Self::Http1(decoder) => decoder.trailers(),
            Self::FastCgi(_) | Self::Memcached(_) => Vec::new(),
        }
    }

    /// Takes the server's messages for the log received since the last call.
    pub fn take_messages(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Http1(_) | Self::Memcached(_) => None,
            Self::FastCgi(decoder) => decoder.take_messages(),
        }
    }

    /// Returns the header section of [`HeadEvent::Written`].
    pub fn take_written(&mut self) -> Vec<u8> {
        match self {
            Self::Http1(_) | Self::FastCgi(_) => Vec::new(),
            Self::Memcached(decoder) => decoder.take_written(),
        }
    }

    /// Returns the key that the server does not have, if the head reported this.
    #[must_use]
    pub fn missing_key(&self) -> Option<&[u8]> {
        match self {
            Self::Http1(_) | Self::FastCgi(_) => None,
            Self::Memcached(decoder) => decoder.missing_key(),
        }
    }

    /// Takes a text for the log about an invalid end after a complete body.
    pub fn take_note(&mut self) -> Option<&'static str> {
        match self {
            Self::Http1(_) | Self::FastCgi(_) => None,
            Self::Memcached(decoder) => decoder.take_note(),
        }
    }
}
