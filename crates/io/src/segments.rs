//! The bytes of one send or write: a few owned pieces, in order, which are not copied into one buffer.
//!
//! [`Segments`] is a list of [`Segment`]s; each is a range of the bytes of a [`Source`]. Nothing here submits I/O.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::buf::Buf;
use crate::shared_bytes::SharedBytes;

/// The bytes of one send or write: a few owned pieces, in order. The list is boxed, so that operations and completions
/// are small: each of them is moved about a dozen times.
#[derive(Debug, Default)]
pub struct Segments {
    /// `None` while the list is empty.
    list: Option<Box<List>>,
}

type List = SmallVec<[Segment; 2]>;

/// A piece, and the range of it that remains to be sent.
#[derive(Debug)]
pub struct Segment {
    source: Source,
    start: u32,
    end: u32,
}

/// The owner of the bytes of a segment.
#[derive(Debug)]
pub enum Source {
    /// A vector, which is returned with the segments for reuse.
    Vec(Vec<u8>),
    /// A pool buffer.
    Buf(Buf),
    /// Constant text.
    Static(&'static [u8]),
    /// Bytes that several owners share, also on other threads.
    Shared(Arc<[u8]>),
    /// Shared bytes of a pool buffer.
    SharedBytes(SharedBytes),
}

impl Source {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Source::Vec(bytes) => bytes,
            Source::Buf(bytes) => bytes,
            Source::Static(bytes) => bytes,
            Source::Shared(bytes) => bytes,
            Source::SharedBytes(bytes) => bytes,
        }
    }
}

impl Segment {
    /// Returns the remaining bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.source.bytes()[self.start as usize..self.end as usize]
    }

    /// Returns the pool buffer of the segment, if it has one.
    pub fn buf(&self) -> Option<&Buf> {
        match &self.source {
            Source::Buf(buf) => Some(buf),
            _ => None,
        }
    }
}

/// The ends of the segments before [`Segments::cut`].
pub(crate) type Ends = SmallVec<[u32; 2]>;

/// Maximum number of pieces per send or write; exceeding it is a defect of the caller.
pub const SEGMENTS_MAX: usize = 16;

impl Segments {
    /// Returns an empty list.
    pub fn new() -> Segments {
        Segments::default()
    }

    /// Adds all of `source`.
    pub fn push(&mut self, source: Source) {
        let len = source.bytes().len();
        self.push_range(source, 0, len);
    }

    /// Adds the bytes from `start` to `end` of `source`, unless the range is empty.
    ///
    /// # Panics
    /// When the range is not inside `source`, when it ends above 4 GiB, or when the list has [`SEGMENTS_MAX`] pieces.
    pub fn push_range(&mut self, source: Source, start: usize, end: usize) {
        assert!(start <= end && end <= source.bytes().len(), "segment outside of its source");
        assert!(self.all().len() < SEGMENTS_MAX, "a send has at most {SEGMENTS_MAX} segments");
        if start < end {
            let end = u32::try_from(end).expect("a segment is shorter than 4 GiB");
            let list = self.list.get_or_insert_default();
            list.push(Segment { source, start: start as u32, end });
        }
    }

    /// Appends the pieces of `others`.
    ///
    /// # Panics
    /// When the list then exceeds [`SEGMENTS_MAX`].
    pub fn append(&mut self, mut others: Segments) {
        let Some(list) = &mut others.list else { return };
        for Segment { source, start, end } in list.drain(..) {
            self.push_range(source, start as usize, end as usize);
        }
    }

    fn all(&self) -> &[Segment] {
        self.list.as_deref().map_or(&[], |list| list)
    }

    fn all_mut(&mut self) -> &mut [Segment] {
        self.list.as_deref_mut().map_or(&mut [], |list| list)
    }

    /// Returns the pieces that have remaining bytes.
    pub fn parts(&self) -> impl Iterator<Item = &Segment> {
        self.all().iter().filter(|part| part.start < part.end)
    }

    /// Returns the bytes if there is exactly one piece.
    pub(crate) fn only(&self) -> Option<&[u8]> {
        match self.all() {
            [part] => Some(part.bytes()),
            _ => None,
        }
    }

    /// Returns the number of remaining bytes.
    pub fn len(&self) -> usize {
        self.all().iter().map(|part| (part.end - part.start) as usize).sum()
    }

    /// Whether no bytes remain.
    pub fn is_empty(&self) -> bool {
        self.all().iter().all(|part| part.start == part.end)
    }

    /// Removes `count` bytes from the front after they were sent or written.
    pub fn advance(&mut self, mut count: usize) {
        for part in self.all_mut() {
            let taken = count.min((part.end - part.start) as usize);
            part.start += taken as u32;
            count -= taken;
        }
        assert_eq!(count, 0, "more bytes sent than there were");
    }

    /// Truncates to the first `len` bytes, and returns the previous ends for [`Segments::restore`].
    pub(crate) fn cut(&mut self, mut len: usize) -> Ends {
        let ends = self.all().iter().map(|part| part.end).collect();
        for part in self.all_mut() {
            let kept = len.min((part.end - part.start) as usize);
            part.end = part.start + kept as u32;
            len -= kept;
        }
        assert_eq!(len, 0, "a cut is within the bytes");
        ends
    }

    /// Reverts [`Segments::cut`].
    pub(crate) fn restore(&mut self, ends: &Ends) {
        assert_eq!(self.all().len(), ends.len(), "the same pieces come back");
        for (part, &end) in self.all_mut().iter_mut().zip(ends) {
            part.end = end;
        }
    }

    /// Removes and returns a vector of the segments, for reuse.
    pub fn take_vec(&mut self) -> Option<Vec<u8>> {
        self.all_mut().iter_mut().find_map(|part| match &mut part.source {
            Source::Vec(bytes) => {
                (part.start, part.end) = (0, 0);
                Some(std::mem::take(bytes))
            }
            _ => None,
        })
    }
}

impl From<Source> for Segments {
    fn from(source: Source) -> Segments {
        let mut all = Segments::new();
        all.push(source);
        all
    }
}

impl From<Vec<u8>> for Segments {
    fn from(bytes: Vec<u8>) -> Segments {
        Segments::from(Source::Vec(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_advance_across_their_boundaries() {
        let mut segments = Segments::new();
        segments.push(Source::Static(b"abc"));
        segments.push(Source::Static(b""));
        segments.push_range(Source::Vec(b"xdefx".to_vec()), 1, 4);
        assert_eq!(segments.len(), 6);
        segments.advance(4);
        let rest: Vec<&[u8]> = segments.parts().map(Segment::bytes).collect();
        assert_eq!(rest, [b"ef"]);
        segments.advance(2);
        assert!(segments.is_empty());
        assert_eq!(segments.take_vec().as_deref(), Some(&b"xdefx"[..]));
    }

    #[test]
    #[should_panic(expected = "more bytes sent")]
    fn advancing_past_the_end_panics() {
        let mut segments = Segments::new();
        segments.push(Source::Static(b"abc"));
        segments.advance(4);
    }
}
