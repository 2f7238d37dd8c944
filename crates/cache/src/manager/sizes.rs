//! Sizes of entries that were found by name: stat(2) in the order of inodes, many per operation.
//!
//! Entries get consecutive inodes in the order in which they are written, while a directory contains entries whose
//! digests have the same end. In the order of directories, each stat(2) would read another part of the disk; in the
//! order of inodes, the reads are sequential.

use std::ffi::CString;
use std::sync::Arc;

use io::Errno;
use io::facts::Stat;
use rt::File;
use rt::local::{Semaphore, WaitGroup};
use rustix::fs::FileType;

use crate::entries::Entries;
use crate::index::space::blocks_of;
use crate::key::Key;
use crate::manager::pace::POLL_INTERVAL;

/// An entry found by the name of its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) inode: u64,
    pub(crate) key: Key,
}

/// Maximum number of entries that wait for stat(2); above it, the walk waits. 24 bytes each, so 96 MiB.
pub(crate) const SIZES_PENDING_MAX: usize = 4 << 20;

/// Number of entries per operation: some milliseconds of a thread.
const BATCH: usize = 512;

/// Maximum number of concurrent operations. It is small, so that the reads stay nearly in the order of inodes, and
/// other readers are not delayed.
const OPERATIONS_MAX: usize = 8;

/// Determines the sizes of entries that were found by name. Forgets names that are not files of entries.
pub(crate) async fn measure(entries: &Arc<Entries>, mut named: Vec<Named>) {
    if named.is_empty() {
        return;
    }
    named.sort_unstable_by_key(|named| named.inode);
    let Some(base) = open_base(entries).await else { return };
    let (operations, gauge) = (Semaphore::new(OPERATIONS_MAX), WaitGroup::new());
    for some in named.chunks(BATCH) {
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
    gauge.wait_empty().await;
}

/// Opens the cache's directory; returns `None` when the cache is being stopped.
async fn open_base(entries: &Entries) -> Option<File> {
    let dir = &entries.dir;
    loop {
        match dir.open_dir(dir.path()).await {
            Ok(base) => return Some(base),
            // The directory existed just before, so the cause is a lack of descriptors or memory.
            Err(_) if !dir.is_stopping() => rt::sleep_until(rt::now() + POLL_INTERVAL).await,
            Err(_) => return None,
        }
    }
}

async fn measure_some(entries: &Entries, base: &File, keys: &[Key]) {
    let dir = &entries.dir;
    let names: Arc<[CString]> = keys.iter().map(|key| dir.name_of(key)).collect();
    let stats = loop {
        match base.stat_many(Arc::clone(&names), dir.disk()).await {
            Ok(stats) => break stats,
            Err(_) if !dir.is_stopping() => rt::sleep_until(rt::now() + POLL_INTERVAL).await,
            Err(_) => return,
        }
    };
    assert!(stats.len() == keys.len(), "{} sizes of {} files", stats.len(), keys.len());
    for (key, stat) in keys.iter().zip(stats) {
        match stat.map(blocks_on_disk) {
            Ok(Some(blocks)) => entries.index.measure(&key.0, blocks),
            Ok(None) | Err(Errno::NOENT | Errno::NOTDIR) => forget_named(entries, key),
            Err(_) => keep_estimate(entries, key),
        }
    }
}

/// Keeps the estimated size of a file whose stat(2) fails, marked as measured: then the entry can be purged and
/// evicted.
fn keep_estimate(entries: &Entries, key: &Key) {
    if let Some(known) = entries.index.peek(&key.0) {
        entries.index.measure(&key.0, known.blocks);
    }
}

/// Forgets a name without a file, unless the entry was written since.
fn forget_named(entries: &Entries, key: &Key) {
    if let Some(known) = entries.index.peek(&key.0).filter(|known| !known.measured) {
        entries.forget(key, known.version);
    }
}

/// Returns the blocks that a file occupies; `None` for other types of inodes.
fn blocks_on_disk(stat: Stat) -> Option<u32> {
    if FileType::from_raw_mode(stat.mode) != FileType::RegularFile {
        return None;
    }
    // A file with holes has fewer allocated blocks than its size, and a file that is not written back yet has none.
    let bytes = if stat.allocated > 0 { stat.size.min(stat.allocated) } else { stat.size };
    Some(blocks_of(bytes).clamp(1, u64::from(u32::MAX)) as u32)
}
