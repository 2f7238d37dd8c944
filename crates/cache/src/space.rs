//! Room on the disk: what is reserved before it is written, within `max_size` and `min_free`.
//!
//! ```text
//!   in use = blocks of all entries (the index counts them) + reserved for fills + entries that are being removed
//! ```
//! A reservation fails rather than going over a limit, so both hold at all times and not after the fact.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::BLOCK_BYTES;

/// One part in so many of `max_size` is kept free by the manager, so that a fill rarely waits for a removal.
const MARGIN_PART: u64 = 64;

/// The largest margin: some seconds of a fast fill.
const MARGIN_BLOCKS_MAX: u64 = (1 << 30) / BLOCK_BYTES;

/// Room on the disk of one cache, in blocks of [`BLOCK_BYTES`].
#[derive(Debug)]
pub(crate) struct Space {
    max: u64,
    min_free: u64,
    reserved: AtomicU64,
    removing: AtomicU64,
    /// Free blocks of the file system when it was last asked.
    free: AtomicU64,
    /// What entries are taken to use until all are known; there may be that many.
    assumed: AtomicU64,
    /// Reserved since then: what the file system may or may not have given away yet.
    spent: AtomicU64,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// `max_size`: so many blocks are missing.
    Size(u64),
    /// `min_free`: so many blocks are missing.
    Free(u64),
    /// `max_size`, as long as what there is may be anything up to it: removing entries would not help.
    Unmeasured,
}

/// Blocks that so many bytes take.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

impl Space {
    /// Limits in bytes.
    pub(crate) fn new(max_size: Option<u64>, min_free: u64) -> Space {
        let max = max_size.map_or(u64::MAX, |bytes| bytes / BLOCK_BYTES);
        Space {
            max,
            assumed: AtomicU64::new(if max_size.is_some() { max } else { 0 }),
            min_free: blocks_of(min_free),
            reserved: AtomicU64::new(0),
            removing: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX / 2),
            spent: AtomicU64::new(0),
        }
    }

    /// Blocks that may be in use at most.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Whether `min_free` is kept.
    pub(crate) fn has_min_free(&self) -> bool {
        self.min_free > 0
    }

    /// The sizes of all entries are known: what is not known until then could be anything up to the limit.
    pub(crate) fn loaded(&self) {
        self.assumed.store(0, Ordering::Relaxed);
    }

    /// Blocks in use when the entries take `entries`.
    pub(crate) fn used(&self, entries: u64) -> u64 {
        entries + self.reserved.load(Ordering::Relaxed) + self.removing.load(Ordering::Relaxed)
    }

    /// Reserves blocks beside entries that take `entries`.
    pub(crate) fn reserve(&self, blocks: u64, entries: u64) -> Result<(), NoRoom> {
        // Reserved first and looked at then: two that come at once may both fail, and never both succeed wrongly.
        self.reserved.fetch_add(blocks, Ordering::AcqRel);
        let short = self.short(entries);
        let lacking = match short {
            0 => self.short_of_free(blocks),
            _ if self.assumed.load(Ordering::Relaxed) > 0 => Some(NoRoom::Unmeasured),
            short => Some(NoRoom::Size(short)),
        };
        if let Some(lacking) = lacking {
            self.release(blocks);
            return Err(lacking);
        }
        self.spent.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }

    /// Gives a reservation back, or turns it into the blocks of an entry that the index counts now.
    pub(crate) fn release(&self, blocks: u64) {
        self.reserved.fetch_sub(blocks, Ordering::AcqRel);
    }

    /// Blocks above `max_size`.
    fn short(&self, entries: u64) -> u64 {
        self.used(entries.max(self.assumed.load(Ordering::Relaxed))).saturating_sub(self.max)
    }

    /// Blocks that the file system lacks for so many more.
    fn short_of_free(&self, blocks: u64) -> Option<NoRoom> {
        if self.min_free == 0 {
            return None;
        }
        let wanted = self.min_free + blocks + self.spent.load(Ordering::Relaxed);
        let short = wanted.saturating_sub(self.free.load(Ordering::Relaxed));
        (short > 0).then_some(NoRoom::Free(short))
    }

    /// Blocks that have to go so that fills have the margin.
    pub(crate) fn above_watermark(&self, entries: u64) -> u64 {
        let margin = (self.max / MARGIN_PART).min(MARGIN_BLOCKS_MAX);
        let size = if self.max == u64::MAX {
            0
        } else {
            // What is being removed is as good as gone.
            let used = entries + self.reserved.load(Ordering::Relaxed);
            used.saturating_sub(self.max - margin)
        };
        let free = match self.short_of_free((self.min_free / MARGIN_PART).min(MARGIN_BLOCKS_MAX)) {
            Some(NoRoom::Free(short)) => short.saturating_sub(self.removing.load(Ordering::Relaxed)),
            _ => 0,
        };
        size.max(free)
    }

    /// Notes what the file system has said.
    pub(crate) fn set_free(&self, bytes: u64) {
        self.free.store(bytes / BLOCK_BYTES, Ordering::Relaxed);
        self.spent.store(self.reserved.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Begins to remove an entry that the index no longer counts.
    pub(crate) fn removing(&self, blocks: u64) {
        self.removing.fetch_add(blocks, Ordering::AcqRel);
    }

    /// It is removed.
    pub(crate) fn removed(&self, blocks: u64) {
        self.removing.fetch_sub(blocks, Ordering::AcqRel);
        self.free.fetch_add(blocks, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_ever_passed() {
        let space = Space::new(Some(100 * BLOCK_BYTES), 10 * BLOCK_BYTES);
        assert_eq!(space.reserve(20, 70), Err(NoRoom::Unmeasured), "there may be more than is known");
        space.loaded();
        space.set_free(60 * BLOCK_BYTES);
        assert_eq!(space.reserve(20, 70), Ok(()));
        assert_eq!(space.reserve(20, 70), Err(NoRoom::Size(10)));
        assert_eq!(space.used(70), 90, "a refused reservation leaves nothing");
        assert_eq!(space.reserve(35, 10), Err(NoRoom::Free(5)), "20 of the 60 may be gone");
        assert_eq!(space.reserve(30, 10), Ok(()));
        space.release(30);
        space.removing(15);
        assert_eq!(space.used(10), 45);
        space.removed(15);
        assert_eq!(space.used(10), 30);
    }

    #[test]
    fn the_watermark_lies_below_the_limit() {
        let space = Space::new(Some(6400 * BLOCK_BYTES), 0);
        assert_eq!(space.above_watermark(6300), 0);
        assert_eq!(space.above_watermark(6310), 10);
        assert_eq!(Space::new(None, 0).above_watermark(u64::MAX / 4), 0);
        let space = Space::new(None, 100 * BLOCK_BYTES);
        space.set_free(80 * BLOCK_BYTES);
        assert_eq!(space.above_watermark(6310), 21);
    }
}
