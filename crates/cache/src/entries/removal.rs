//! Removes entries: first from the index, so that no lookup finds them, then the file through the engine.
//!
//! Each removal is a separate task that holds the key's lock, and the manager limits the number in flight: deleting a
//! million files must not delay reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use io::Errno;

use crate::entries::Entries;
use crate::index::Victim;
use crate::key::Key;

/// Maximum number of removals in flight caused by eviction; above it, the manager waits. More would not be faster: a
/// file system removes one file at a time per directory.
pub(crate) const REMOVALS_MAX: usize = 16;

/// Counts a removal until it is done or its task is dropped.
struct Removal {
    entries: Arc<Entries>,
    victim: Victim,
    is_gone: bool,
}

impl Removal {
    fn begin(entries: &Arc<Entries>, victim: Victim) -> Removal {
        entries.removals.fetch_add(1, Ordering::AcqRel);
        entries.space.removing(&victim.blocks);
        entries.retention.begin_removal(&Key(victim.key));
        Removal { entries: Arc::clone(entries), victim, is_gone: false }
    }

    async fn done(mut self) {
        self.is_gone = self.entries.remove_now(&Key(self.victim.key)).await;
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        let (entries, key) = (&self.entries, Key(self.victim.key));
        entries.space.removed(&mut self.victim.blocks);
        let under_way = entries.removals.fetch_sub(1, Ordering::AcqRel);
        assert!(under_way > 0, "a removal ends once");
        if let Some(purge) = entries.retention.end_removal(&key, self.is_gone) {
            entries.forget_if_unmatched(&key, purge);
        }
    }
}

impl Entries {
    /// Removes the index entry of a missing file.
    pub(crate) fn forget(&self, key: &Key, version: u32) {
        self.memory.remove(&key.0);
        self.index.remove(&key.0, Some(version));
    }

    /// Removes an entry that a purge applies to.
    pub(crate) fn forget_purged(self: &Arc<Entries>, key: &Key, version: u32) {
        if self.remove_entry(key, version) {
            self.counters.purged.count();
        }
    }

    /// Removes the file of an entry that a purge applies to and that is not in the index.
    pub(crate) fn remove_purged_file(self: &Arc<Entries>, key: &Key) {
        if self.dir.is_owner() {
            self.counters.purged.count();
            self.remove_file(key);
        }
    }

    /// Removes an entry, unless it was replaced. Only the owner removes files.
    pub(crate) fn remove_entry(self: &Arc<Entries>, key: &Key, version: u32) -> bool {
        self.memory.remove(&key.0);
        if !self.dir.is_owner() {
            return false;
        }
        let victim = self.index.remove(&key.0, Some(version));
        let found = victim.is_some();
        self.remove_victims(victim);
        found
    }

    /// Removes the file of the entry that was evicted from a full index.
    pub(crate) fn remove_evicted(self: &Arc<Entries>, victim: Option<Victim>) {
        self.counters.evicted.add(u64::from(victim.is_some()));
        self.remove_victims(victim);
    }

    /// Removes the files of entries that have left the index.
    fn remove_victims(self: &Arc<Entries>, victims: impl IntoIterator<Item = Victim>) {
        for victim in victims {
            self.memory.remove(&victim.key);
            if self.dir.is_owner() {
                rt::spawn(Removal::begin(self, victim).done());
            }
        }
    }

    /// Removes a file that is not in the index.
    pub(crate) fn remove_file(self: &Arc<Entries>, key: &Key) {
        self.remove_victims([Victim { key: key.0, blocks: self.space.none() }]);
    }

    /// Removes the files of some entries and waits for that: for a fill that needs their space.
    pub(crate) async fn remove_and_wait(self: &Arc<Entries>, victims: Vec<Victim>) {
        let gauge = rt::local::WaitGroup::new();
        for victim in victims {
            self.memory.remove(&victim.key);
            let (removal, counted) = (Removal::begin(self, victim), gauge.enter());
            rt::spawn(async move {
                removal.done().await;
                drop(counted);
            });
        }
        gauge.wait_empty().await;
    }

    /// Removes a file, unless another entry was published since; returns whether the removal is last.
    async fn remove_now(self: &Arc<Entries>, key: &Key) -> bool {
        let _lock = self.dir.locks.lock(key).await;
        if self.index.peek(&key.0).is_some_and(|known| known.blocks > 0) {
            return true;
        }
        match self.dir.unlink(self.dir.path_of(key).0).await {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => true,
            Err(errno) => {
                self.dir.write_failed("removing an entry", errno);
                false
            }
        }
    }
}
