//! Taking entries out: the index first, so that nobody finds what is about to go, then the file by the engine.
//!
//! Each removal is a task of its own thread and holds the key's lease, and the manager keeps so many under way at
//! most: deleting a million files must not stand before anybody's read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use io::Errno;
use rt::file;

use crate::index::Victim;
use crate::key::Key;
use crate::space::blocks_of;
use crate::store::Store;

/// Removals under way that eviction adds to; above, the manager waits. A file system does one at a time in a folder.
pub(crate) const REMOVALS_MAX: usize = 16;

/// Entries that are removed at once for files that are no entries.
const GIVEN_MAX: usize = 32;

/// Counts a removal until it is done, or its task dropped.
struct Removal {
    store: Arc<Store>,
    victim: Victim,
    is_gone: bool,
}

impl Removal {
    fn begin(store: &Arc<Store>, victim: Victim) -> Removal {
        store.removals.fetch_add(1, Ordering::AcqRel);
        store.space.removing(&victim.blocks);
        store.settling.begin_removal(&Key(victim.key));
        Removal { store: Arc::clone(store), victim, is_gone: false }
    }

    async fn done(mut self) {
        self.is_gone = self.store.remove_now(&Key(self.victim.key)).await;
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.store.space.removed(&mut self.victim.blocks);
        self.store.removals.fetch_sub(1, Ordering::AcqRel);
        let key = Key(self.victim.key);
        if let Some(purge) = self.store.settling.end_removal(&key, self.is_gone) {
            self.store.settle(&key, purge);
        }
    }
}

impl Store {
    /// Forgets an entry whose file is not there.
    pub(crate) fn forget(&self, key: &Key, version: u32) {
        self.memory.remove(&key.0);
        self.index.remove(&key.0, Some(version));
    }

    /// Removes an entry that a purge has hit.
    pub(crate) fn forget_purged(self: &Arc<Store>, key: &Key, version: u32) {
        if self.remove_entry(key, version) {
            self.counters.purged.count();
        }
    }

    /// Removes the file of an entry that a purge has hit and the index does not know.
    pub(crate) fn remove_purged_file(self: &Arc<Store>, key: &Key) {
        if self.is_owner() {
            self.counters.purged.count();
            self.remove_file(key);
        }
    }

    /// Removes an entry, unless it is another one by now. Only the owner removes files.
    pub(crate) fn remove_entry(self: &Arc<Store>, key: &Key, version: u32) -> bool {
        self.memory.remove(&key.0);
        if !self.is_owner() {
            return false;
        }
        let victim = self.index.remove(&key.0, Some(version));
        let found = victim.is_some();
        self.remove_victims(victim);
        found
    }

    /// Removes the files of entries that have left the index.
    pub(crate) fn remove_victims(self: &Arc<Store>, victims: impl IntoIterator<Item = Victim>) {
        for victim in victims {
            self.memory.remove(&victim.key);
            if self.is_owner() {
                rt::spawn(Removal::begin(self, victim).done());
            }
        }
    }

    /// Removes a file that the index does not know.
    pub(crate) fn remove_file(self: &Arc<Store>, key: &Key) {
        self.remove_victims([Victim { key: key.0, blocks: self.space.none() }]);
    }

    /// Removes the files of some entries and waits for that: for a fill that needs their room.
    pub(crate) async fn remove_and_wait(self: &Arc<Store>, victims: Vec<Victim>) {
        let gauge = rt::local::Gauge::new();
        for victim in victims {
            self.memory.remove(&victim.key);
            let (removal, counted) = (Removal::begin(self, victim), gauge.enter());
            rt::spawn(async move {
                removal.done().await;
                drop(counted);
            });
        }
        gauge.none_left().await;
    }

    /// Removes a file, unless an entry has come to its place meanwhile; answers whether it is gone.
    async fn remove_now(self: &Arc<Store>, key: &Key) -> bool {
        let _lease = self.leases.take(key).await;
        if self.index.peek(&key.0).is_some_and(|known| known.blocks > 0) {
            return true;
        }
        match file::unlink(self.path_of(key).0, self.device, self.via()).await {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => true,
            Err(errno) => {
                self.write_failed("removing an entry", errno);
                false
            }
        }
    }

    /// Gives up about so many bytes of the file system to others that write there: removes what is worth least, a bounded
    /// number of entries, and waits for that. Whether any went.
    pub async fn give_room(self: &Arc<Store>, bytes: u64) -> bool {
        if !self.is_owner() || self.is_stopping() {
            return false;
        }
        let victims = self.evict(blocks_of(bytes), GIVEN_MAX);
        let is_any = !victims.is_empty();
        self.remove_and_wait(victims).await;
        is_any
    }

    /// Takes out entries for so many blocks, at most `count_max`, and counts them.
    pub(crate) fn evict(&self, blocks: u64, count_max: usize) -> Vec<Victim> {
        let mut victims = Vec::new();
        self.index.evict(blocks, count_max, &mut victims);
        self.counters.evicted.add(victims.len() as u64);
        victims
    }
}
