//! Disk space: bytes are reserved before they are written, within `max_size` and `min_free`.
//!
//! ```text
//!   reserved for a fill ──▶ used by the entry ──▶ its file is being removed ──▶ free again
//! ```
//! All states are counted in one number ([`Used`]). A change of state does not change it, so no reader sees a smaller
//! sum in between. A reservation that would exceed a limit fails, so neither limit is ever exceeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::BLOCK_BYTES;

/// Divisor of `max_size` for the space that the manager keeps free, so that a fill rarely waits for a removal.
const MARGIN_DIVISOR: u64 = 64;

/// Maximum number of blocks kept free: some seconds of a fast fill.
const MARGIN_BLOCKS_MAX: u64 = (1 << 30) / BLOCK_BYTES;

/// Number of blocks in use, by entries, fills and files that are being removed.
#[derive(Clone, Debug, Default)]
pub struct Used(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: AtomicU64,
    /// Blocks that belong to a [`SpaceReservation`] now, not to an entry.
    held: AtomicU64,
}

/// Blocks that are counted as in use until this is dropped.
#[derive(Debug)]
#[must_use = "they count as free once this is dropped"]
pub struct SpaceReservation {
    used: Used,
    count: u64,
}

impl Used {
    /// Returns the number of blocks in use.
    pub fn get(&self) -> u64 {
        self.0.all.load(Ordering::Acquire)
    }

    /// Counts blocks that were not counted yet, ignoring the limit.
    pub fn adopt(&self, count: u64) -> SpaceReservation {
        self.0.all.fetch_add(count, Ordering::AcqRel);
        self.release_of(count)
    }

    /// Reserves `count` blocks if the sum stays within `max`; otherwise returns the number of blocks above `max`.
    fn reserve(&self, count: u64, max: u64) -> Result<SpaceReservation, u64> {
        let within = |all: u64| Some(all + count).filter(|sum| *sum <= max);
        match self.0.all.fetch_update(Ordering::AcqRel, Ordering::Acquire, within) {
            Ok(_) => Ok(self.release_of(count)),
            Err(all) => Err(all + count - max),
        }
    }

    /// Returns a reservation for blocks of an entry, which are already counted.
    pub(crate) fn release_of(&self, count: u64) -> SpaceReservation {
        self.0.held.fetch_add(count, Ordering::Relaxed);
        SpaceReservation { used: self.clone(), count }
    }
}

impl SpaceReservation {
    /// Returns the number of blocks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the blocks of another reservation.
    pub(crate) fn join(&mut self, mut others: SpaceReservation) {
        assert!(Arc::ptr_eq(&self.used.0, &others.used.0), "space of one cache");
        self.count += std::mem::take(&mut others.count);
    }

    /// Moves all blocks to a new reservation.
    pub(crate) fn take(&mut self) -> SpaceReservation {
        SpaceReservation { used: self.used.clone(), count: std::mem::take(&mut self.count) }
    }

    /// Transfers the blocks to an entry: they stay in use.
    pub(crate) fn commit(mut self) {
        let count = std::mem::take(&mut self.count);
        let held = self.used.0.held.fetch_sub(count, Ordering::Relaxed);
        debug_assert!(held >= count, "{count} of {held} reserved blocks become an entry's");
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        let held = self.used.0.held.fetch_sub(self.count, Ordering::Relaxed);
        let all = self.used.0.all.fetch_sub(self.count, Ordering::AcqRel);
        debug_assert!(held >= self.count && all >= self.count, "blocks are released once");
    }
}

/// Disk space of one cache, in blocks of [`BLOCK_BYTES`].
#[derive(Debug)]
pub(crate) struct Space {
    /// Maximum number of blocks in use.
    pub(crate) max: u64,
    min_free: u64,
    pub(crate) used: Used,
    removing: AtomicU64,
    /// Free blocks of the file system at the last query.
    free: AtomicU64,
    /// Whether the sizes of the existing entries are still unknown. They may use all of `max_size`, so no space can be
    /// reserved.
    is_unmeasured: AtomicBool,
    /// Blocks reserved since the last query of the file system, which may have been written since.
    spent: AtomicU64,
}

/// The reason why there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSpace {
    /// `max_size` is exceeded by this many blocks.
    Size(u64),
    /// `min_free` is violated by this many blocks.
    Free(u64),
    /// `max_size` applies, but the sizes of the present entries are unknown: evicting entries would not help.
    Unmeasured,
}

/// Returns the number of blocks that this many bytes occupy.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

impl Space {
    /// Creates the space accounting; limits are in bytes.
    pub(crate) fn new(max_size: Option<u64>, min_free: u64, used: Used) -> Space {
        Space {
            max: max_size.map_or(u64::MAX, |bytes| bytes / BLOCK_BYTES),
            min_free: blocks_of(min_free),
            used,
            removing: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX / 2),
            is_unmeasured: AtomicBool::new(max_size.is_some()),
            spent: AtomicU64::new(0),
        }
    }

    /// Whether `min_free` is set.
    pub(crate) fn has_min_free(&self) -> bool {
        self.min_free > 0
    }

    /// Records that the sizes of all entries in readable directories are known: from now on, space can be reserved.
    pub(crate) fn loaded(&self) {
        self.is_unmeasured.store(false, Ordering::Release);
    }

    /// Returns an empty reservation, to which a fill adds the space that it needs.
    pub(crate) fn none(&self) -> SpaceReservation {
        self.used.release_of(0)
    }

    /// Reserves blocks.
    pub(crate) fn reserve(&self, count: u64) -> Result<SpaceReservation, NoSpace> {
        if count > 0 && self.is_unmeasured.load(Ordering::Acquire) {
            return Err(NoSpace::Unmeasured);
        }
        let blocks = self.used.reserve(count, self.max).map_err(NoSpace::Size)?;
        // Counted first and checked afterwards: two concurrent reservations may both fail, but never both exceed the
        // limit.
        let spent = self.spent.fetch_add(count, Ordering::AcqRel);
        if let Some(lacking) = self.short_of_free(spent + count) {
            self.spent.fetch_sub(count, Ordering::AcqRel);
            return Err(lacking);
        }
        debug_assert!(blocks.count == count);
        Ok(blocks)
    }

    /// Returns the number of blocks that would be missing for `min_free` after `blocks` more were written.
    fn short_of_free(&self, blocks: u64) -> Option<NoSpace> {
        if self.min_free == 0 {
            return None;
        }
        let missing = (self.min_free + blocks).saturating_sub(self.free.load(Ordering::Relaxed));
        (missing > 0).then_some(NoSpace::Free(missing))
    }

    /// Returns the number of blocks to evict so that `more` blocks can be written and the margin for fills remains
    /// free.
    pub(crate) fn above_watermark(&self, more: u64) -> u64 {
        let margin = |limit: u64| (limit / MARGIN_DIVISOR).min(MARGIN_BLOCKS_MAX);
        // Entries that are being removed count as removed.
        let removing = self.removing.load(Ordering::Relaxed);
        let size = match self.max {
            u64::MAX => 0,
            max => (self.used.get() + more).saturating_sub(removing).saturating_sub(max - margin(max)),
        };
        let free = match self.short_of_free(self.spent.load(Ordering::Relaxed) + margin(self.min_free)) {
            Some(NoSpace::Free(short)) => short.saturating_sub(removing),
            _ => 0,
        };
        size.max(free)
    }

    /// Records the free space of the file system.
    pub(crate) fn set_free(&self, bytes: u64) {
        self.free.store(bytes / BLOCK_BYTES, Ordering::Relaxed);
        // The blocks of fills are possibly not written yet, so they still count.
        let held = self.used.0.held.load(Ordering::Relaxed);
        self.spent.store(held.saturating_sub(self.removing.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Records that the file of an entry, which is no longer in the index, is being removed.
    pub(crate) fn removing(&self, blocks: &SpaceReservation) {
        self.removing.fetch_add(blocks.count, Ordering::AcqRel);
    }

    /// Records that the file is removed.
    pub(crate) fn removed(&self, blocks: &mut SpaceReservation) {
        let gone = blocks.take();
        let removing = self.removing.fetch_sub(gone.count, Ordering::AcqRel);
        debug_assert!(removing >= gone.count, "a file is removed once");
        self.free.fetch_add(gone.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_ever_exceeded() {
        let used = Used::default();
        used.adopt(70).commit();
        let space = Space::new(Some(100 * BLOCK_BYTES), 10 * BLOCK_BYTES, used.clone());
        let lacking = |count: u64| space.reserve(count).map(drop).err();
        assert_eq!(lacking(20), Some(NoSpace::Unmeasured), "there may be more than is known");
        space.loaded();
        space.set_free(60 * BLOCK_BYTES);
        let fill = space.reserve(20).unwrap();
        assert_eq!(lacking(20), Some(NoSpace::Size(10)));
        assert_eq!(space.used.get(), 90, "a refused reservation leaves nothing");
        drop(used.release_of(60));
        assert_eq!(lacking(35), Some(NoSpace::Free(5)), "20 of the 60 may be gone");
        assert_eq!((lacking(30), space.used.get()), (None, 30));
        fill.commit();
        let mut entry = used.release_of(20);
        space.removing(&entry);
        assert_eq!(space.used.get(), 30, "until the file is removed");
        space.removed(&mut entry);
        assert_eq!((space.used.get(), entry.count()), (10, 0));
    }

    #[test]
    fn the_watermark_is_below_the_limit() {
        let used = Used::default();
        let space = Space::new(Some(6400 * BLOCK_BYTES), 0, used.clone());
        used.adopt(6300).commit();
        assert_eq!(space.above_watermark(0), 0);
        assert_eq!(space.above_watermark(10), 10);
        let entries = used.release_of(6300);
        space.removing(&entries);
        assert_eq!(space.above_watermark(10), 0, "a file that is being removed counts as removed");
        assert_eq!(Space::new(None, 0, Used::default()).above_watermark(u64::MAX / 4), 0);
        let space = Space::new(None, 100 * BLOCK_BYTES, Used::default());
        space.set_free(80 * BLOCK_BYTES);
        assert_eq!(space.above_watermark(6310), 21);
    }

    #[test]
    fn threads_never_reserve_more_than_the_limit() {
        let space = Space::new(Some(100 * BLOCK_BYTES), 0, Used::default());
        space.loaded();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let fills = [33, 34, 35].map(|count| space.reserve(count).ok());
                        assert!(space.used.get() <= 100);
                        drop(fills);
                    }
                });
            }
        });
        assert_eq!(space.used.get(), 0);
    }
}
