//! Space for new entries: it is reserved before bytes are written, and entries are evicted for it.

use std::sync::Arc;

use crate::entries::Entries;
use crate::error::Refused;
use crate::index::space::{NoSpace, blocks_of};
use crate::index::{SpaceReservation, Victim};
use crate::key::Key;

/// Maximum number of entries that one fill evicts. A fill that needs more is passed through without being stored, and
/// the manager evicts more.
const EVICTED_MAX: usize = 32;

/// Number of attempts of a fill to evict entries: others may take the freed space.
const ATTEMPTS_MAX: usize = 3;

/// Maximum number of entries that are evicted in one call for other files on the file system.
const RECLAIMED_MAX: usize = 32;

impl Entries {
    /// Reserves blocks for an entry of this key. When the cache is nearly full, the first request for a key is refused
    /// instead of evicting other entries.
    pub(crate) async fn reserve(
        self: &Arc<Entries>,
        key: &Key,
        blocks: u64,
    ) -> Result<SpaceReservation, Refused> {
        if blocks > self.space.max {
            return Err(Refused::TooLarge);
        }
        let is_short = self.space.above_watermark(blocks) > 0;
        let is_known = || self.index.peek(&key.0).is_some_and(|known| known.blocks > 0);
        if is_short && !is_known() && !self.index.admits(&key.0) {
            self.dir.manager.wake();
            return Err(Refused::NotAdmitted);
        }
        let mut reserved = self.space.none();
        self.grow(&mut reserved, blocks).await?;
        assert!(reserved.count() == blocks, "{} of {blocks} blocks are reserved", reserved.count());
        Ok(reserved)
    }

    /// Adds `more` blocks to a reservation, and evicts entries if there is no space.
    pub(crate) async fn grow(
        self: &Arc<Entries>,
        reserved: &mut SpaceReservation,
        more: u64,
    ) -> Result<(), Refused> {
        if reserved.count() + more > self.space.max {
            return Err(Refused::TooLarge);
        }
        for _ in 0..ATTEMPTS_MAX {
            let (short, refused) = match self.space.reserve(more) {
                Ok(more) => {
                    reserved.join(more);
                    return Ok(());
                }
                Err(NoSpace::Unmeasured) => return Err(Refused::NoSpace),
                Err(NoSpace::Size(short)) => (short, Refused::NoSpace),
                Err(NoSpace::Free(short)) => (short, Refused::DiskFull),
            };
            // The manager frees space for the next fills.
            self.dir.manager.wake();
            let victims = self.evict(short, EVICTED_MAX);
            if victims.is_empty() {
                return Err(refused);
            }
            self.remove_and_wait(victims).await;
        }
        Err(Refused::NoSpace)
    }

    /// Evicts entries for this many blocks, at most `count_max`, and counts them.
    pub(crate) fn evict(&self, blocks: u64, count_max: usize) -> Vec<Victim> {
        let victims = self.index.evict(blocks, count_max);
        debug_assert!(victims.len() <= count_max);
        self.counters.evicted.add(victims.len() as u64);
        victims
    }

    /// Evicts a bounded number of the least valuable entries, to free about this many bytes of the file system for
    /// other writers. Returns whether an entry was evicted.
    pub(crate) async fn reclaim(self: &Arc<Entries>, bytes: u64) -> bool {
        if !self.dir.is_owner() || self.dir.is_stopping() {
            return false;
        }
        let victims = self.evict(blocks_of(bytes), RECLAIMED_MAX);
        let is_any = !victims.is_empty();
        self.remove_and_wait(victims).await;
        is_any
    }
}
