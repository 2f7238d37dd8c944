//! The protocols that servers behind this one speak: bytes that were received become events of a response.
//!
//! Main type: [`Decoder`], one for each response. It is handed what was received and returns ranges of it, so a body is
//! never copied here. It is a closed enum, and a protocol is a variant with a file of its own: no box and no dynamic call
//! for a response. Connections, timeouts and the choice of a server are the caller's.

mod http1;

use crate::reply::{Limits, ReplyError, ReplyHead};
use crate::request::Method;

/// What [`Decoder::head`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadEvent {
    /// More bytes are needed: append them to the same bytes and call again.
    More,
    /// A head of so many bytes that another one follows (RFC 9110 section 15.2). Take them off the front and clear the
    /// [`ReplyHead`].
    Interim(u32),
    /// The head has so many bytes; the body starts behind them.
    Head(u32),
    /// There is no head: the body starts with the first byte, and the status is 200.
    NoHead,
}

/// What [`Decoder::body`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEvent {
    /// Bytes of the body: this range of the input.
    Data {
        /// Index of the first byte.
        start: usize,
        /// Index after the last byte.
        end: usize,
    },
    /// All input is used up; more is needed.
    More,
    /// The body ended. [`Decoder::trailers`] and [`Decoder::keeps`] hold from here on.
    End,
}

/// The result of [`Decoder::body`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyStep {
    /// Bytes of the input that are done with; call again with the rest. Behind [`BodyEvent::End`] the rest is more than
    /// belongs to the response.
    pub consumed: usize,
    /// What was found.
    pub event: BodyEvent,
}

/// The framing of a body breaks the rules of its protocol, so its end cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBody;

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
