//! Bodies other than files that can be read from any offset: stored bodies whose chunks are verified while they are
//! read, bodies that are still being fetched, bodies with holes.
//!
//! Main types: [`Ranged`], the source, and [`RangedBody`], the pieces to send.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::segments::Source;
use smallvec::{SmallVec, smallvec};

use crate::body::source::BodySource;
use crate::body::{BodyError, Piece};

/// A body of which ranges can be read.
pub trait Ranged {
    /// Returns a source of the bytes in a range, which must lie within the body.
    fn open(&self, range: Range<u64>) -> Box<dyn BodySource>;

    /// See [`BodySource::is_read_at_will`].
    fn is_read_at_will(&self) -> bool {
        false
    }
}

/// A body whose pieces are read from a [`Ranged`].
pub struct RangedBody {
    source: Box<dyn Ranged>,
    /// The pieces to send, in order.
    pub pieces: SmallVec<[Piece; 1]>,
}

impl RangedBody {
    /// Returns the complete body of this many bytes.
    pub fn new(source: Box<dyn Ranged>, length: u64) -> RangedBody {
        RangedBody { source, pieces: smallvec![Piece::Range { start: 0, end: length }] }
    }

    /// Returns a body of bytes in memory, which other responses may share.
    pub fn of_bytes(source: Source, range: Range<usize>) -> RangedBody {
        let length = range.len() as u64;
        RangedBody::new(Box::new(Bytes { source: Rc::new(source), start: range.start }), length)
    }

    /// Returns a source of the pieces, one after the other.
    pub fn into_source(self) -> Box<dyn BodySource> {
        let pieces = self.pieces.into_iter();
        Box::new(Pieces { source: self.source, pieces, open: None, client_space: u64::MAX })
    }
}

struct Pieces {
    source: Box<dyn Ranged>,
    pieces: smallvec::IntoIter<[Piece; 1]>,
    open: Option<Box<dyn BodySource>>,
    /// See [`BodySource::set_client_space`].
    client_space: u64,
}

impl BodySource for Pieces {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            if let Some(open) = &mut self.open {
                match ready!(open.poll_next(context))? {
                    Some(source) => return Poll::Ready(Ok(Some(source))),
                    None => self.open = None,
                }
            }
            match self.pieces.next() {
                Some(Piece::Text(text)) => return Poll::Ready(Ok(Some(Source::Vec(text)))),
                Some(Piece::Range { start, end }) if start < end => {
                    let mut open = self.source.open(start..end);
                    open.set_client_space(self.client_space);
                    self.open = Some(open);
                }
                Some(Piece::Range { .. }) => {}
                None => return Poll::Ready(Ok(None)),
            }
        }
    }

    fn is_read_at_will(&self) -> bool {
        self.source.is_read_at_will()
    }

    fn is_reading(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_reading())
    }

    fn set_client_space(&mut self, bytes: u64) {
        self.client_space = bytes;
        if let Some(open) = &mut self.open {
            open.set_client_space(bytes);
        }
    }
}

/// Bytes per copied piece of a body in memory; a range of a source cannot be shared.
const COPY_BYTES: usize = 64 << 10;

struct Bytes {
    source: Rc<Source>,
    start: usize,
}

impl Ranged for Bytes {
    fn open(&self, range: Range<u64>) -> Box<dyn BodySource> {
        let (start, end) = (self.start + range.start as usize, self.start + range.end as usize);
        Box::new(Copies { source: Rc::clone(&self.source), range: start..end })
    }
}

struct Copies {
    source: Rc<Source>,
    range: Range<usize>,
}

impl BodySource for Copies {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        let end = self.range.end.min(self.range.start + COPY_BYTES);
        let part = std::mem::replace(&mut self.range.start, end)..end;
        Poll::Ready(Ok((!part.is_empty()).then(|| Source::Vec(self.source.bytes()[part].to_vec()))))
    }
}

/// A range of a stream. A stream can only be read from its start, so the bytes before the range are dropped.
pub struct Subrange {
    source: Box<dyn BodySource>,
    skip: u64,
    left: u64,
    parts: VecDeque<Source>,
}

impl Subrange {
    /// Returns the bytes of `range`, relative to the current position of the stream.
    pub fn new(source: Box<dyn BodySource>, range: Range<u64>) -> Subrange {
        assert!(range.start <= range.end, "a range ends behind its start");
        Subrange { source, skip: range.start, left: range.end - range.start, parts: VecDeque::new() }
    }
}

impl BodySource for Subrange {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Poll::Ready(Ok(Some(part)));
            }
            if self.left == 0 {
                // The bytes after the range are not needed.
                return Poll::Ready(Ok(None));
            }
            let Some(source) = ready!(self.source.poll_next(context))? else {
                return Poll::Ready(Err(BodyError::Broken));
            };
            let len = source.bytes().len() as u64;
            let start = self.skip.min(len);
            let end = len.min(start + self.left);
            self.skip -= start;
            debug_assert!(start <= end && end - start <= self.left, "no more bytes than the range has");
            self.left -= end - start;
            if start == 0 && end == len {
                self.parts.push_back(source);
            } else if start < end {
                self.parts.push_back(Source::Vec(source.bytes()[start as usize..end as usize].to_vec()));
            }
        }
    }

    fn is_unbuffered(&self) -> bool {
        self.source.is_unbuffered()
    }

    fn is_reading(&self) -> bool {
        self.source.is_reading()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn all(mut stream: Box<dyn BodySource>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match stream.poll_next(&mut context) {
                Poll::Ready(Ok(Some(source))) => out.extend_from_slice(source.bytes()),
                Poll::Ready(Ok(None)) => return out,
                Poll::Ready(Err(error)) => panic!("{error:?}"),
                Poll::Pending => panic!("everything is in memory"),
            }
        }
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|place| (place % 251) as u8).collect()
    }

    #[test]
    fn pieces_are_returned_in_order() {
        let content = bytes(200_000);
        let mut body = RangedBody::of_bytes(Source::Vec(content.clone()), 10..200_000);
        body.pieces = smallvec![
            Piece::Text(b"<".to_vec()),
            Piece::Range { start: 100, end: 150_000 },
            Piece::Range { start: 7, end: 7 },
            Piece::Text(b"|".to_vec()),
            Piece::Range { start: 0, end: 3 },
        ];
        let expected = [b"<", &content[110..150_010], b"|", &content[10..13]].concat();
        assert_eq!(all(body.into_source()), expected);
    }

    #[test]
    fn a_stream_is_cut_independently_of_its_pieces() {
        let content = bytes(1000);
        for (start, end) in [(0, 1000), (0, 1), (99, 101), (100, 200), (999, 1000), (250, 730), (5, 5)] {
            let source = RangedBody::of_bytes(Source::Vec(content.clone()), 0..1000).into_source();
            let cut = Subrange::new(source, start as u64..end as u64);
            assert_eq!(all(Box::new(cut)), &content[start..end], "{start}..{end}");
        }
    }
}
