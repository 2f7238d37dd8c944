//! The result of a lookup: [`Hit`], with a body in memory or [`Located`] in a file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use io::DiskVia;
use io::op::{DeviceId, Source};

use crate::entries::Entries;
use crate::entries::chunks::Chunks;
use crate::error::StoreError;
use crate::format::Damage;
use crate::format::header::Header;
use crate::key::Key;
use crate::lookup::reader::Reader;
use crate::meta::Meta;

/// An entry. Belongs to the thread that looked it up.
pub struct Hit {
    /// The facts.
    pub meta: Arc<Meta>,
    /// Whether a soft purge has made it stale: it is revalidated before use, and kept for the case that no upstream
    /// responds.
    pub is_purged_soft: bool,
    /// Whether it came from the memory tier.
    pub is_from_memory: bool,
    /// The engine that has read it, and whether bypassing the page cache; `None` from the memory tier.
    pub read_by: Option<(DiskVia, bool)>,
    pub(crate) key: Key,
    pub(crate) version: u32,
    /// The number of the last purge when it was looked up.
    pub(crate) sequence: u64,
    pub(crate) header: Arc<Header>,
    pub(crate) image: Source,
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
        &self.image.bytes()[self.header.head.clone()]
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
    /// `None` of a fill in flight: the file has the bytes that came.
    pub(crate) chunks: Option<Arc<Chunks>>,
    pub(crate) entries: Arc<Entries>,
}

impl Located {
    /// Whether all chunks of a range are there.
    pub fn is_present(&self, range: &Range<u64>) -> bool {
        self.missing(range).is_none()
    }

    /// The first hole in a range, in whole chunks (it may begin before the range and end behind it): the range to fetch
    /// so that it can be stored.
    pub fn missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.chunks.as_ref()?.missing(range)
    }

    /// Whether all chunks of a range were compared with their checksums lately ([`crate::Config::verify`]), so that any
    /// mover may send them. Others have to go through [`Located::read`].
    pub fn is_verified(&self, range: &Range<u64>) -> bool {
        self.chunks.as_ref().is_none_or(|chunks| chunks.all_verified(range))
    }

    /// See [`crate::Config::calls_directly`].
    pub fn calls_directly(&self) -> bool {
        self.entries.dir.calls_directly()
    }

    /// Reads a range with this many reads in flight, and verifies each chunk that was not verified before.
    pub fn read(&self, range: Range<u64>, window: usize) -> Reader {
        Reader::new(self.clone(), range, window)
    }

    /// A mover that was given this file has failed to read it, or found it shorter than it has to be.
    pub fn failed(&self, errno: Option<io::Errno>, at: u64) -> StoreError {
        match errno {
            Some(errno) => self.entries.dir.read_failed("reading an entry", errno),
            None => self.damaged(Damage::Truncated { index: at / crate::format::CHUNK_BYTES }),
        }
    }

    /// Drops the entry.
    pub(crate) fn damaged(&self, damage: Damage) -> StoreError {
        if self.chunks.is_some() {
            self.entries.drop_damaged(&self.key, Some(self.version), damage);
        }
        StoreError::Damaged(damage)
    }
}

impl fmt::Debug for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Located")
            .field("key", &self.key)
            .field("offset", &self.offset)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hit").field("key", &self.key).field("meta", &self.meta).finish_non_exhaustive()
    }
}
