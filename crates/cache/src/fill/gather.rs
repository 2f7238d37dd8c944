//! [`Gather`]: the received bytes of one chunk, with their checksum.

use io::segments::Source;
use io::{Segments, SharedBytes};

use crate::format::{CHUNK_BYTES, crc32c_append};

/// Bytes of one chunk from its start, as the pieces in which they were received.
pub(crate) struct Gather {
    pub(crate) index: u64,
    pub(crate) data: Segments,
    pub(crate) len: u64,
    pub(crate) crc: u32,
}

/// Maximum number of pieces of a chunk that are written without being joined.
const PIECES_MAX: usize = io::segments::SEGMENTS_MAX - 1;

impl Gather {
    pub(crate) fn new(index: u64) -> Gather {
        Gather { index, data: Segments::new(), len: 0, crc: 0 }
    }

    /// Adds a piece; returns `false` if the pieces have to be joined and no buffer is available.
    pub(crate) fn push(&mut self, piece: SharedBytes) -> bool {
        if self.data.parts().count() == PIECES_MAX && !self.join() {
            return false;
        }
        self.len += piece.len() as u64;
        assert!(self.len <= CHUNK_BYTES, "chunk {} has {} bytes", self.index, self.len);
        self.crc = crc32c_append(self.crc, &piece);
        self.data.push(Source::SharedBytes(piece));
        true
    }

    /// Copies the pieces into one buffer: an upstream may send very small pieces.
    fn join(&mut self) -> bool {
        let Some(mut buf) = rt::pool().get(CHUNK_BYTES as usize) else { return false };
        self.data.parts().for_each(|part| _ = buf.append(part.bytes()));
        debug_assert_eq!(buf.len() as u64, self.len);
        self.data = Segments::new();
        self.data.push(Source::Buf(buf));
        true
    }
}

/// Divisor of the size of a thread's pool for the part that waiting chunks must not use. When the disk is slower than
/// the upstreams, chunks would use all buffers, but passing responses through without storing them needs buffers too.
const SPARED_DIVISOR: u64 = 16;

/// Whether the remaining buffers are reserved, so that waiting chunks must not use them.
pub(crate) fn is_scarce() -> bool {
    let pool = rt::pool();
    pool.spare_bytes() < pool.bytes_max() / SPARED_DIVISOR
}
