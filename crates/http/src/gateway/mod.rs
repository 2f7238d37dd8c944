//! The protocols that servers behind this one speak: a request becomes bytes, and bytes become events of a response.
//!
//! Main types: [`Encoder`] and [`Decoder`], one of each for an exchange. The encoder takes the parts of a request and
//! frames its body; the decoder takes received bytes and returns ranges of them. No byte of a body is copied here. Both
//! are closed enums, and a protocol is a variant with a directory of its own: no box and no dynamic call for a request.
//! The caller handles connections, timeouts and the choice of a server.

mod event;
mod http1;

pub use event::{BodyEvent, BodyFraming, BodyStep, HeadEvent, InvalidBody};

use crate::reply::{Limits, ReplyError, ReplyHead};
use crate::request::{BodyLength, Method, Version};

/// The encoder of one request, by the protocol that the server speaks. Call [`begin`](Self::begin), then
/// [`field`](Self::field) and [`body`](Self::body) in the order of the fields, then [`end`](Self::end).
///
/// The caller has made sure that no part can end a line: methods and names are tokens, targets and values have no control
/// bytes but tabs.
#[derive(Clone, Debug)]
pub enum Encoder {
    /// HTTP/1.0 or 1.1 (RFC 9112).
    Http1(http1::Encoder),
}

impl Encoder {
    /// One for HTTP/1 of this version; later ones are spoken to as 1.1.
    #[must_use]
    pub fn http1(version: Version) -> Self {
        Self::Http1(http1::Encoder::new(version))
    }

    /// Begins with the method and the target, which `target` appends to the bytes that it is given. Returns whether there
    /// is a target; without one the request must not be sent.
    pub fn begin(&mut self, method: &[u8], target: impl FnOnce(&mut Vec<u8>)) -> bool {
        match self {
            Self::Http1(encoder) => encoder.begin(method, target),
        }
    }

    /// Adds a field.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            Self::Http1(encoder) => encoder.field(name, value),
        }
    }

    /// Sets the length of the body and adds the fields about it. Without this call there is no body.
    pub fn body(&mut self, length: BodyLength) {
        match self {
            Self::Http1(encoder) => encoder.body(length),
        }
    }

    /// Ends the head.
    pub fn end(&mut self) {
        match self {
            Self::Http1(encoder) => encoder.end(),
        }
    }

    /// The bytes before the body.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        match self {
            Self::Http1(encoder) => encoder.head(),
        }
    }

    /// The target, for logs.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        match self {
            Self::Http1(encoder) => encoder.target(),
        }
    }

    /// How the body is framed on its way.
    #[must_use]
    pub fn framing(&self) -> BodyFraming {
        match self {
            Self::Http1(encoder) => encoder.framing(),
        }
    }
}

/// The decoder of one response, by the protocol that the server speaks.
#[derive(Debug)]
pub enum Decoder {
    /// HTTP/1.0 and 1.1 (RFC 9112).
    Http1(http1::Decoder),
}

impl Decoder {
    /// One for the response of HTTP/1 to a request with `method`, as it was sent.
    #[must_use]
    pub fn http1(method: Method, limits: Limits) -> Self {
        Self::Http1(http1::Decoder::new(method, limits))
    }

    /// Reads the head from the start of `input`; `head` is new or was cleared.
    ///
    /// # Errors
    /// [`ReplyError`]; the connection must be closed.
    pub fn head(&mut self, head: &mut ReplyHead, input: &[u8]) -> Result<HeadEvent, ReplyError> {
        match self {
            Self::Http1(decoder) => decoder.head(head, input),
        }
    }

    /// Takes the next bytes behind the head. Call until [`BodyEvent::More`] (then with new bytes) or [`BodyEvent::End`].
    ///
    /// # Errors
    /// [`InvalidBody`]; the connection must be closed.
    #[inline]
    pub fn body(&mut self, input: &[u8]) -> Result<BodyStep, InvalidBody> {
        match self {
            Self::Http1(decoder) => decoder.body(input),
        }
    }

    /// Whether the body ends within these bytes, which are the next ones: it can be taken as a whole then. False where
    /// that would cost as much to find out as to decode them.
    #[must_use]
    pub fn ends_within(&self, input: &[u8]) -> bool {
        match self {
            Self::Http1(decoder) => decoder.ends_within(input),
        }
    }

    /// Bytes of the body that are still to come, where that is known.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Http1(decoder) => decoder.left(),
        }
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.is_over(),
        }
    }

    /// The connection has ended. True where that is the end of the body, false where bytes are missing.
    #[must_use]
    pub fn close(&mut self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.close(),
        }
    }

    /// Whether the server lets the connection be used for another request.
    #[must_use]
    pub fn keeps(&self) -> bool {
        match self {
            Self::Http1(decoder) => decoder.keeps(),
        }
    }

    /// The fields behind the body that may stand there ([`crate::framing::may_be_trailer`]): name and value.
    #[must_use]
    pub fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        match self {
            Self::Http1(decoder) => decoder.trailers(),
        }
    }
}
