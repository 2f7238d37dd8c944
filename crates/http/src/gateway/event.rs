//! What the encoders and decoders of all protocols share: events, framing of request bodies, joined ranges of a body.

use std::ops::Range;

use super::fastcgi::record;
use crate::framing::{CHUNK_END, CHUNK_HEADER_LEN_MAX, LAST_CHUNK, chunk_header};

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No framing: the body has an announced length, or there is no body.
    Plain,
    /// Chunks of HTTP/1 (RFC 9112 section 7.1).
    Chunks,
    /// Records of FastCGI (`FCGI_STDIN`).
    Records,
    /// HTTP/2 frames. The HTTP/2 connection creates them, because they depend on its flow-control windows. The caller must notify
    /// the connection of the end of the body.
    Frames,
}

impl BodyFraming {
    /// Returns the maximum number of bytes in one piece.
    #[must_use]
    pub fn piece_max(self) -> u64 {
        match self {
            Self::Plain | Self::Chunks | Self::Frames => u64::MAX,
            Self::Records => record::CONTENT_MAX as u64,
        }
    }

    /// Returns the bytes before and after a piece of `len` bytes. `len` is not 0 and at most [`BodyFraming::piece_max`].
    #[must_use]
    pub fn around(self, len: u64) -> (Vec<u8>, &'static [u8]) {
        match self {
            Self::Plain | Self::Frames => (Vec::new(), b""),
            Self::Chunks => (chunk_header(len, &mut [0; CHUNK_HEADER_LEN_MAX]).to_vec(), CHUNK_END),
            Self::Records => (record::body_record(len).to_vec(), b""),
        }
    }

    /// Returns the bytes after the last piece.
    #[must_use]
    pub fn end(self) -> &'static [u8] {
        match self {
            Self::Plain | Self::Frames => b"",
            Self::Chunks => LAST_CHUNK,
            Self::Records => record::BODY_END,
        }
    }
}

/// The result of [`Decoder::head`](super::Decoder::head).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadEvent {
    /// The head is incomplete: append received bytes to the input and call again.
    More,
    /// An interim response of this many bytes; another head follows (RFC 9110 section 15.2). Remove these bytes from the front and
    /// clear the [`ParsedResponse`](crate::response::parse::ParsedResponse).
    Interim(u32),
    /// The head has this many bytes; the body starts after them.
    Head(u32),
    /// The head is in another format and has this many bytes. The parsed head refers to the bytes of
    /// [`Decoder::take_written`](super::Decoder::take_written).
    Written(u32),
    /// No head: the body starts with the first byte, and the status is 200.
    NoHead,
}

/// Event of a [`BodyStep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEvent {
    /// A range of the input belongs to the body.
    Data {
        /// Index of the first byte.
        start: usize,
        /// Index after the last byte.
        end: usize,
    },
    /// The input is used up; more bytes are needed.
    More,
    /// The body has ended: [`trailers`](super::Decoder::trailers) and [`keeps_alive`](super::Decoder::keeps_alive) return final
    /// values.
    End,
}

/// The result of [`Decoder::body`](super::Decoder::body).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyStep {
    /// Number of input bytes processed; call again with the remaining bytes. After [`BodyEvent::End`] the remaining bytes are not
    /// part of the response.
    pub consumed: usize,
    /// The event.
    pub event: BodyEvent,
}

/// The framing of a body is invalid, so its end cannot be found. Contains the text for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBody(pub &'static str);

/// Joins the next range of a body to the range before it, in place. The shorter range is moved over the framing between them.
pub fn join(bytes: &mut [u8], body: &mut Range<usize>, part: Range<usize>) {
    debug_assert!(body.end <= part.start, "the ranges are in order");
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
    fn body_ranges_are_merged_whichever_is_longer() {
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
