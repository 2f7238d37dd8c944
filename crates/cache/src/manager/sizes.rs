//! Sizes of entries found by a walk: stat(2) in the order of their inodes, many in one operation.
//!
//! Entries get consecutive inodes as they are written, while a directory has those whose digests end alike. So in the
//! order of directories each stat(2) reads another part of the disk, and in the order of inodes the reads are
//! sequential.

use std::ffi::CString;
use std::sync::Arc;

use io::Errno;
use io::op::Stat;
use rt::File;
use rt::local::{Semaphore, WaitGroup};
use rustix::fs::FileType;

use crate::entries::Entries;
use crate::index::space::blocks_of;
use crate::key::Key;
use crate::manager::pace::NAP;

/// An entry found by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) inode: u64,
    pub(crate) key: Key,
}

/// Most entries that wait for this; with more, the walk waits. 24 bytes each, so 96 MiB.
pub(crate) const SIZES_LEFT_MAX: usize = 4 << 20;

/// Entries that one operation looks at: some milliseconds of a thread.
const LOOKS: usize = 512;

/// Such operations at once. The disk has them in order, and other readers need it too.
const OPERATIONS_MAX: usize = 8;

/// Looks at the sizes of entries that were named. A name that is no entry's file after all is forgotten.
pub(crate) async fn measure(entries: &Arc<Entries>, mut named: Vec<Named>) {
    if named.is_empty() {
        return;
    }
    named.sort_unstable_by_key(|named| named.inode);
    let Some(base) = open_base(entries).await else { return };
    let (operations, gauge) = (Semaphore::new(OPERATIONS_MAX), WaitGroup::new());
    for some in named.chunks(LOOKS) {
        let permit = operations.acquire().await;
        if entries.dir.is_stopping() {
            break;
        }
        let keys: Vec<Key> = some.iter().map(|named| named.key).collect();
        let (entries, base, counted) = (Arc::clone(entries), base.clone(), gauge.enter());
        rt::spawn(async move {
            measure_some(&entries, &base, &keys).await;
            drop(permit);
            drop(counted);
        });
    }
    gauge.none_left().await;
}

/// The cache's directory; `None` when the cache is to stop.
async fn open_base(entries: &Entries) -> Option<File> {
    let dir = &entries.dir;
    loop {
        match dir.open_dir(dir.path()).await {
            Ok(base) => return Some(base),
            // It existed just before: descriptors or memory are short.
            Err(_) if !dir.is_stopping() => rt::sleep_until(rt::now() + NAP).await,
            Err(_) => return None,
        }
    }
}

async fn measure_some(entries: &Entries, base: &File, keys: &[Key]) {
    let dir = &entries.dir;
    let names: Arc<[CString]> = keys.iter().map(|key| dir.name_of(key)).collect();
    let stats = loop {
        match base.stat_many(Arc::clone(&names), dir.device(), dir.via()).await {
            Ok(stats) => break stats,
            Err(_) if !dir.is_stopping() => rt::sleep_until(rt::now() + NAP).await,
            Err(_) => return,
        }
    };
    assert!(stats.len() == keys.len(), "{} sizes of {} files", stats.len(), keys.len());
    for (key, stat) in keys.iter().zip(stats) {
        match stat.map(blocks_on_disk) {
            Ok(Some(blocks)) => entries.index.measure(&key.0, blocks),
            Ok(None) | Err(Errno::NOENT | Errno::NOTDIR) => forget_named(entries, key),
            Err(_) => keep_guess(entries, key),
        }
    }
}

/// Uses the guess for the size of a file whose stat(2) fails: once known, it can be purged and evicted.
fn keep_guess(entries: &Entries, key: &Key) {
    if let Some(known) = entries.index.peek(&key.0) {
        entries.index.measure(&key.0, known.blocks);
    }
}

/// Forgets a name without a file, unless it was written since.
fn forget_named(entries: &Entries, key: &Key) {
    if let Some(known) = entries.index.peek(&key.0).filter(|known| !known.measured) {
        entries.forget(key, known.version);
    }
}

/// Blocks that a file takes; nothing for another kind of inode.
fn blocks_on_disk(stat: Stat) -> Option<u32> {
    if FileType::from_raw_mode(stat.mode) != FileType::RegularFile {
        return None;
    }
    // Fewer than its size if it has holes, and none before the system has written it.
    let bytes = if stat.allocated > 0 { stat.size.min(stat.allocated) } else { stat.size };
    Some(blocks_of(bytes).clamp(1, u64::from(u32::MAX)) as u32)
}
