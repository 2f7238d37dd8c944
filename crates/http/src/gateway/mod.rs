//! The protocols that servers behind this one speak: a request becomes bytes, and bytes become events of a response.
//!
//! Main types: the encoder of each protocol and the decoder. An encoder ([`Encoder`] for HTTP, [`fastcgi::Encoder`],
//! [`scgi::Encoder`], [`uwsgi::Encoder`], [`memcached::get`]) makes an [`Encoded`] of the parts of a request. [`Decoder`]
//! takes received bytes and returns ranges of them. No byte of a body is copied here. The decoder is a closed enum, and a
//! protocol is a variant with a separate directory: no box and no dynamic call for a request. The caller handles
//! connections, timeouts and the choice of a server.

mod encoded;
mod event;
pub mod fastcgi;
pub mod http1;
pub mod http2;
pub mod memcached;
pub mod scgi;
pub mod uwsgi;

pub use encoded::{Encoded, Protocol};
pub use event::{BodyEvent, BodyFraming, BodyStep, HeadEvent, InvalidBody};

use std::ops::Range;

use crate::reply::{Limits, ReplyError, ReplyHead};
use crate::request::{BodyLength, Method};

/// The encoder of a request of HTTP, by version. Call [`begin`](Self::begin), then [`field`](Self::field) and
/// [`body`](Self::body) in the order of the fields, then [`end`](Self::end).
///
/// The caller has made sure that no part can end a line: methods and names are tokens, targets and values have no control
/// bytes but tabs.
#[derive(Clone, Debug)]
pub enum Encoder {
    /// HTTP/1.0 and 1.1.
    Http1(http1::Encoder),
    /// HTTP/2; it is larger than the other, which is moved more often.
    Http2(Box<http2::Encoder>),
}

impl Encoder {
    /// Begins with the method and the target, which `target` appends to the bytes that it is given. Returns whether there
    /// is a target; without one the request must not be sent.
    pub fn begin(&mut self, method: &[u8], target: impl FnOnce(&mut Vec<u8>)) -> bool {
        match self {
            Self::Http1(encoder) => encoder.begin(method, target),
            Self::Http2(encoder) => encoder.begin(method, target),
        }
    }

    /// Adds a field. HTTP/2 has none about connections: they are left out there.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            Self::Http1(encoder) => encoder.field(name, value),
            Self::Http2(encoder) => encoder.field(name, value),
        }
    }

    /// Sets the length of the body and adds the fields about it. Without this call there is no body.
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

/// The decoder of one response, by the protocol that the server speaks.
#[derive(Debug)]
pub enum Decoder {
    /// HTTP/1.0 and 1.1 (RFC 9112), scripts, and what became of the frames of HTTP/2.
    Http1(http1::Decoder),
    /// FastCGI.
    FastCgi(Box<fastcgi::Decoder>),
    /// memcached.
    Memcached(Box<memcached::Decoder>),
}

impl Decoder {
    /// One for the response to a request with `method`, as it was sent.
    #[must_use]
    pub fn new(request: &Encoded, method: Method, limits: Limits) -> Self {
        match request.protocol {
            Protocol::Memcached { gzip_flag } => {
                let key = memcached::key(&request.head);
                Self::Memcached(Box::new(memcached::Decoder::new(key, gzip_flag, method, limits)))
            }
            Protocol::Http1 | Protocol::Bytes => Self::Http1(http1::Decoder::new(method, limits)),
            Protocol::Http2 => Self::Http1(http1::Decoder::of_stream(method, limits)),
            Protocol::Script => Self::Http1(http1::Decoder::of_script(method, limits)),
            Protocol::FastCgi => Self::FastCgi(Box::new(fastcgi::Decoder::new(method, limits))),
        }
    }

    /// One for the response to a request of HTTP/1 that was written elsewhere.
    #[must_use]
    pub fn http1(method: Method, limits: Limits) -> Self {
        Self::Http1(http1::Decoder::new(method, limits))
    }

    /// Takes received bytes out of a framing that the header section has too, in place, and returns where they are then.
    /// Each received byte passes through here once until [`Decoder::head`] has returned a header section.
    ///
    /// # Errors
    /// [`ReplyError`]; the connection must be closed.
    pub fn unframe(&mut self, received: &mut [u8]) -> Result<Range<usize>, ReplyError> {
        match self {
            Self::Http1(_) | Self::Memcached(_) => Ok(0..received.len()),
            Self::FastCgi(decoder) => decoder.unframe(received),
        }
    }

    /// Reads the head from the start of `input`, which is out of [`Decoder::unframe`]; `head` is new or was cleared.
    ///
    /// # Errors
    /// [`ReplyError`]; the connection must be closed.
    pub fn head(&mut self, head: &mut ReplyHead, input: &[u8]) -> Result<HeadEvent, ReplyError> {
        match self {
            Self::Http1(decoder) => decoder.head(head, input),
            Self::FastCgi(decoder) => decoder.head(head, input),
            Self::Memcached(decoder) => decoder.head(head, input),
        }
    }

    /// Takes the next bytes behind the head: those that came with it, then new ones as received. Call until
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

    /// Whether the body ends within these bytes, which are the next ones: it can be taken as a whole then. False where
    /// that would cost as much to find out as to decode them.
    #[must_use]
    pub fn ends_within(&self, input: &[u8]) -> bool {
        match self {
            Self::Http1(decoder) => decoder.ends_within(input),
            Self::FastCgi(decoder) => decoder.ends_within(input),
            Self::Memcached(decoder) => decoder.ends_within(input),
        }
    }

    /// Bytes of the body that are still to come, where that is known.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Http1(decoder) => decoder.left(),
            Self::FastCgi(decoder) => decoder.left(),
            Self::Memcached(decoder) => decoder.left(),
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

    /// The connection has ended. True where that is the end of the body, false where bytes are missing.
    #[must_use]
    pub fn close(&mut self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.close(),
            Self::FastCgi(decoder) => decoder.close(),
            Self::Memcached(_) => false,
        }
    }

    /// Whether the server lets the connection be used for another request.
    #[must_use]
    pub fn keeps(&self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.keeps(),
            Self::FastCgi(decoder) => decoder.keeps(),
            Self::Memcached(decoder) => decoder.keeps(),
        }
    }

    /// The fields behind the body that may stand there ([`crate::framing::may_be_trailer`]): name and value.
    #[must_use]
    pub fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        match self {
            Self::Http1(decoder) => decoder.trailers(),
            Self::FastCgi(_) | Self::Memcached(_) => Vec::new(),
        }
    }

    /// The server's messages beside the response since the last call, for the log.
    pub fn take_messages(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Http1(_) | Self::Memcached(_) => None,
            Self::FastCgi(decoder) => decoder.take_messages(),
        }
    }

    /// The header section of [`HeadEvent::Written`].
    pub fn take_written(&mut self) -> Vec<u8> {
        match self {
            Self::Http1(_) | Self::FastCgi(_) => Vec::new(),
            Self::Memcached(decoder) => decoder.take_written(),
        }
    }

    /// The key that the server does not know, when the head has said so.
    #[must_use]
    pub fn missing_key(&self) -> Option<&[u8]> {
        match self {
            Self::Http1(_) | Self::FastCgi(_) => None,
            Self::Memcached(decoder) => decoder.missing_key(),
        }
    }

    /// Words for the log about the end of a body that is complete nevertheless.
    pub fn take_note(&mut self) -> Option<&'static str> {
        match self {
            Self::Http1(_) | Self::FastCgi(_) => None,
            Self::Memcached(decoder) => decoder.take_note(),
        }
    }
}

/// Puts the next part of a body behind those before it, in place. Whichever is shorter is moved, over the framing between
/// them; the first part stays where it is.
pub fn join(bytes: &mut [u8], body: &mut Range<usize>, part: Range<usize>) {
    debug_assert!(body.end <= part.start, "parts come in order");
    let (len, part_len) = (body.len(), part.len());
    if len < part_len {
        let start = part.start - len;
        if start != body.start {
            bytes.copy_within(body.clone(), start);
        }
        *body = start..part.end;
    } else if part_len > 0 {
        if part.start != body.end {
            bytes.copy_within(part, body.end);
        }
        body.end += part_len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_body_are_joined_whichever_of_them_is_longer() {
        for parts in [&["a", "bcdef", "", "gh"][..], &["abcdefgh", "i", "", "jk"], &["", "ab"], &["", ""]] {
            let (mut bytes, mut body, mut at) = (Vec::new(), 0..0, 0);
            for part in parts {
                bytes.extend_from_slice(b"--");
                bytes.extend_from_slice(part.as_bytes());
            }
            for part in parts {
                at += 2;
                join(&mut bytes, &mut body, at..at + part.len());
                at += part.len();
            }
            assert_eq!(&bytes[body], parts.concat().as_bytes());
        }
    }
}
