//! Types that encoders and decoders of all protocols share: events, and framing around pieces of a body.

use super::fastcgi;
use crate::framing::{CHUNK_END, CHUNK_HEADER_LEN_MAX, LAST_CHUNK, chunk_header};

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// Only its bytes are sent: its length was announced, or there is no body.
    Plain,
    /// Chunks of HTTP/1 (RFC 9112 section 7.1).
    Chunks,
    /// Records of FastCGI (`FCGI_STDIN`).
    Records,
    /// Frames of HTTP/2, which the connection makes: only it knows the windows. It must be notified of the end.
    Frames,
}

impl BodyFraming {
    /// Most bytes of one piece.
    #[must_use]
    pub fn piece_max(self) -> u64 {
        match self {
            Self::Plain | Self::Chunks | Self::Frames => u64::MAX,
            Self::Records => fastcgi::CONTENT_MAX as u64,
        }
    }

    /// The bytes before and after a piece of `len` bytes, which is not empty and no longer than
    /// [`BodyFraming::piece_max`].
    #[must_use]
    pub fn around(self, len: u64) -> (Vec<u8>, &'static [u8]) {
        match self {
            Self::Plain | Self::Frames => (Vec::new(), b""),
            Self::Chunks => (chunk_header(len, &mut [0; CHUNK_HEADER_LEN_MAX]).to_vec(), CHUNK_END),
            Self::Records => (fastcgi::body_record(len).to_vec(), b""),
        }
    }

    /// The bytes behind the last piece.
    #[must_use]
    pub fn end(self) -> &'static [u8] {
        match self {
            Self::Plain | Self::Frames => b"",
            Self::Chunks => LAST_CHUNK,
            Self::Records => fastcgi::BODY_END,
        }
    }
}

/// The result of [`Decoder::head`](super::Decoder::head).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadEvent {
    /// More bytes are needed: append them to the same bytes and call again.
    More,
    /// A head of this many bytes that another one follows (RFC 9110 section 15.2). Take them off the front and clear
    /// the [`ReplyHead`](crate::reply::ReplyHead).
    Interim(u32),
    /// The head has this many bytes; the body starts behind them.
    Head(u32),
    /// The protocol has other heads, of this many bytes here. The parsed one belongs to the bytes of
    /// [`Decoder::take_written`](super::Decoder::take_written).
    Written(u32),
    /// There is no head: the body starts with the first byte, and the status is 200.
    NoHead,
}

/// The result of [`Decoder::body`](super::Decoder::body).
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
    /// The body ended. [`trailers`](super::Decoder::trailers) and [`keeps`](super::Decoder::keeps) hold from here on.
    End,
}

/// The result of [`Decoder::body`](super::Decoder::body).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyStep {
    /// Bytes of the input that are done with; call again with the rest. Behind [`BodyEvent::End`] the rest is more than
    /// belongs to the response.
    pub consumed: usize,
    /// The event.
    pub event: BodyEvent,
}

/// The framing of a body breaks the rules of its protocol, so its end cannot be found. With words for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBody(pub &'static str);
