//! Room on the disk: the bytes reserved before they are written, within `max_size` and `min_free`.
//!
//! ```text
//!   reserved for a fill ──▶ the entry's ──▶ of a file that is being removed ──▶ free again
//! ```
//! All of them are one number ([`Used`]), which a change of state leaves alone, so that no reader sees a smaller sum in
//! between. A reservation fails rather than exceeding a limit: both limits hold at all times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::BLOCK_BYTES;

/// The manager keeps one part in this many of `max_size` free, so that a fill rarely waits for a removal.
const MARGIN_PART: u64 = 64;

/// The largest margin: some seconds of a fast fill.
const MARGIN_BLOCKS_MAX: u64 = (1 << 30) / BLOCK_BYTES;

/// Blocks in use, of entries, fills and files that are being removed.
#[derive(Clone, Debug, Default)]
pub struct Used(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: AtomicU64,
    /// Those that are [`SpaceReservation`] now, and no entry's.
    held: AtomicU64,
}

/// Blocks that are in use until this is dropped.
#[derive(Debug)]
#[must_use = "they count as free once this is dropped"]
pub struct SpaceReservation {
    used: Used,
    count: u64,
}

impl Used {
    /// How many.
    pub fn get(&self) -> u64 {
        self.0.all.load(Ordering::Acquire)
    }

    /// Blocks that were not counted yet, whatever the limit.
    pub fn adopt(&self, count: u64) -> SpaceReservation {
        self.0.all.fetch_add(count, Ordering::AcqRel);
        self.release_of(count)
    }

    /// Adds N, if the sum stays within `max`; otherwise how many are too many.
    fn reserve(&self, count: u64, max: u64) -> Result<SpaceReservation, u64> {
        let within = |all: u64| Some(all + count).filter(|sum| *sum <= max);
        match self.0.all.fetch_update(Ordering::AcqRel, Ordering::Acquire, within) {
            Ok(_) => Ok(self.release_of(count)),
            Err(all) => Err(all + count - max),
        }
    }

    /// Blocks of an entry, which are in this number already.
    pub(crate) fn release_of(&self, count: u64) -> SpaceReservation {
        self.0.held.fetch_add(count, Ordering::Relaxed);
        SpaceReservation { used: self.clone(), count }
    }
}

impl SpaceReservation {
    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds others to these.
    pub(crate) fn join(&mut self, mut others: SpaceReservation) {
        assert!(Arc::ptr_eq(&self.used.0, &others.used.0), "space of one cache");
        self.count += std::mem::take(&mut others.count);
    }

    /// All of these; none stay.
    pub(crate) fn take(&mut self) -> SpaceReservation {
        SpaceReservation { used: self.used.clone(), count: std::mem::take(&mut self.count) }
    }

    /// Leaves them in use: they are an entry's.
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
        debug_assert!(held >= self.count && all >= self.count, "blocks are given back once");
    }
}

/// Room on the disk of one cache, in blocks of [`BLOCK_BYTES`].
#[derive(Debug)]
pub(crate) struct Space {
    max: u64,
    min_free: u64,
    used: Used,
    removing: AtomicU64,
    /// Free blocks of the file system when it was last asked.
    free: AtomicU64,
    /// Whether entries may use more than is known, up to `max_size`.
    is_unmeasured: AtomicBool,
    /// Reserved since the last check of the file system: the part that may have been given away.
    spent: AtomicU64,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// `max_size`: this many blocks are missing.
    Size(u64),
    /// `min_free`: this many blocks are missing.
    Free(u64),
    /// `max_size`, while the size of the present entries is unknown: removing entries would not help.
    Unmeasured,
}

/// Blocks that this many bytes take.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

impl Space {
    /// Limits in bytes.
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

    /// Blocks that may be in use at most.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Whether `min_free` is kept.
    pub(crate) fn has_min_free(&self) -> bool {
        self.min_free > 0
    }

    /// The sizes of all entries are known: the unknown sizes could be anything up to the limit until then.
    pub(crate) fn loaded(&self) {
        self.is_unmeasured.store(false, Ordering::Release);
    }

    /// Blocks in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.get()
    }

    /// Blocks of a file that was there before.
    pub(crate) fn adopt(&self, count: u64) -> SpaceReservation {
        self.used.adopt(count)
    }

    /// An empty reservation, to which a fill adds the space that it needs.
    pub(crate) fn none(&self) -> SpaceReservation {
        self.used.release_of(0)
    }

    /// Reserves blocks.
    pub(crate) fn reserve(&self, count: u64) -> Result<SpaceReservation, NoRoom> {
        if count > 0 && self.is_unmeasured.load(Ordering::Acquire) {
            return Err(NoRoom::Unmeasured);
        }
        let blocks = self.used.reserve(count, self.max).map_err(NoRoom::Size)?;
        // Counted first and checked then: two concurrent ones may both fail, but never both succeed wrongly.
        let spent = self.spent.fetch_add(count, Ordering::AcqRel);
        if let Some(lacking) = self.short_of_free(spent + count) {
            self.spent.fetch_sub(count, Ordering::AcqRel);
            return Err(lacking);
        }
        debug_assert!(blocks.count == count);
        Ok(blocks)
    }

    /// Blocks that the file system lacks after giving away this many.
    fn short_of_free(&self, blocks: u64) -> Option<NoRoom> {
        if self.min_free == 0 {
            return None;
        }
        let short = (self.min_free + blocks).saturating_sub(self.free.load(Ordering::Relaxed));
        (short > 0).then_some(NoRoom::Free(short))
    }

    /// Blocks that have to go so that fills have the margin, and `more` with them.
    pub(crate) fn above_watermark(&self, more: u64) -> u64 {
        let margin = |limit: u64| (limit / MARGIN_PART).min(MARGIN_BLOCKS_MAX);
        // Entries that are being removed count as removed.
        let removing = self.removing.load(Ordering::Relaxed);
        let size = match self.max {
            u64::MAX => 0,
            max => (self.used() + more).saturating_sub(removing).saturating_sub(max - margin(max)),
        };
        let free = match self.short_of_free(self.spent.load(Ordering::Relaxed) + margin(self.min_free)) {
            Some(NoRoom::Free(short)) => short.saturating_sub(removing),
            _ => 0,
        };
        size.max(free)
    }

    /// Records the free space of the file system.
    pub(crate) fn set_free(&self, bytes: u64) {
        self.free.store(bytes / BLOCK_BYTES, Ordering::Relaxed);
        // Blocks of fills may not be written yet.
        let held = self.used.0.held.load(Ordering::Relaxed);
        self.spent.store(held.saturating_sub(self.removing.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Begins to remove the file of an entry that the index does not know any more.
    pub(crate) fn removing(&self, blocks: &SpaceReservation) {
        self.removing.fetch_add(blocks.count, Ordering::AcqRel);
    }

    /// It is removed.
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
    fn no_limit_is_ever_passed() {
        let used = Used::default();
        used.adopt(70).commit();
        let space = Space::new(Some(100 * BLOCK_BYTES), 10 * BLOCK_BYTES, used.clone());
        let lacking = |count: u64| space.reserve(count).map(drop).err();
        assert_eq!(lacking(20), Some(NoRoom::Unmeasured), "there may be more than is known");
        space.loaded();
        space.set_free(60 * BLOCK_BYTES);
        let fill = space.reserve(20).unwrap();
        assert_eq!(lacking(20), Some(NoRoom::Size(10)));
        assert_eq!(space.used(), 90, "a refused reservation leaves nothing");
        drop(used.release_of(60));
        assert_eq!(lacking(35), Some(NoRoom::Free(5)), "20 of the 60 may be gone");
        assert_eq!((lacking(30), space.used()), (None, 30));
        fill.commit();
        let mut entry = used.release_of(20);
        space.removing(&entry);
        assert_eq!(space.used(), 30, "until it is gone");
        space.removed(&mut entry);
        assert_eq!((space.used(), entry.count()), (10, 0));
    }

    #[test]
    fn the_watermark_lies_below_the_limit() {
        let used = Used::default();
        let space = Space::new(Some(6400 * BLOCK_BYTES), 0, used.clone());
        used.adopt(6300).commit();
        assert_eq!(space.above_watermark(0), 0);
        assert_eq!(space.above_watermark(10), 10);
        let entries = used.release_of(6300);
        space.removing(&entries);
        assert_eq!(space.above_watermark(10), 0, "that is as good as gone");
        assert_eq!(Space::new(None, 0, Used::default()).above_watermark(u64::MAX / 4), 0);
        let space = Space::new(None, 100 * BLOCK_BYTES, Used::default());
        space.set_free(80 * BLOCK_BYTES);
        assert_eq!(space.above_watermark(6310), 21);
    }

    #[test]
    fn threads_never_reserve_more_than_there_is() {
        let space = Space::new(Some(100 * BLOCK_BYTES), 0, Used::default());
        space.loaded();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let fills = [33, 34, 35].map(|count| space.reserve(count).ok());
                        assert!(space.used() <= 100);
                        drop(fills);
                    }
                });
            }
        });
        assert_eq!(space.used(), 0);
    }
}
