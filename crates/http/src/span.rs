//! [`Span`]: a range of a caller's buffer, by index.
//!
//! Indices instead of slices keep a parsed head free of lifetimes: the buffer may be moved or grown between two calls of the
//! parser. `u32` halves the size of the field table and is enough, because no head or body buffer reaches 4 GiB.

/// Half-open byte range `start..end` of a buffer; the owner of the span knows which buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Index of the first byte.
    pub start: u32,
    /// Index after the last byte.
    pub end: u32,
}

impl Span {
    /// The empty span at the start of a buffer.
    pub const EMPTY: Self = Self { start: 0, end: 0 };

    /// Creates the span `start..end`. Both must fit into `u32`, as in every buffer of a connection.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && u32::try_from(end).is_ok(), "a span lies inside one small buffer");
        Self { start: start as u32, end: end as u32 }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the span is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns the bytes of the span in `buf`, which must be the buffer (or a copy of it) that the span refers to.
    #[must_use]
    pub fn of(self, buf: &[u8]) -> &[u8] {
        &buf[self.start as usize..self.end as usize]
    }
}
