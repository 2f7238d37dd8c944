//! The scrub (`scrub=TIME`): reads and verifies every entry, at a pace that spreads one pass over the configured time.
//! It finds damage in entries that are not requested, while the upstream may still have a good copy.
//!
//! Entries are read bypassing the page cache where the file system supports that: this verifies the disk itself, and
//! evicts no hot pages.

use io::Disk;
use std::sync::Arc;
use std::time::Duration;

use rt::File;

use crate::config::Access;
use crate::disk::directory::ReadError;
use crate::entries::chunks::Chunks;
use crate::format::{CHUNK_BYTES, Header};
use crate::index::IndexEntry;
use crate::index::space::blocks_of;
use crate::key::Key;
use crate::lookup::file::{Read, ReadPlan};
use crate::lookup::{Located, Lookup};

/// Maximum pause between two reads. An entry that is removed during a pause occupies its space until the pause ends.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The scrub of one cache.
pub(crate) struct Scrub<'a> {
    pub(crate) lookup: &'a Lookup,
    /// Duration of one pass.
    pub(crate) pass: Duration,
}

impl Scrub<'_> {
    /// Verifies one entry after the other. Ends with the task that it runs in.
    pub(crate) async fn run(&self) {
        let entries = &self.lookup.entries;
        // A random start: over time, all entries are verified even if every pass is interrupted by a restart.
        let mut first = entries.dir.nonce();
        loop {
            let began = rt::now();
            for batch in entries.index.batches(first) {
                for (key, _) in batch {
                    self.entry(&Key(key)).await;
                }
                rt::yield_now().await;
            }
            // Waits for the end of the pass, so that a small cache is not read more often than a large one.
            rt::sleep_until((began + self.pass).max(rt::now() + Duration::from_millis(1))).await;
            first = 0;
        }
    }

    async fn entry(&self, key: &Key) {
        let (entries, files) = (&self.lookup.entries, &self.lookup.files);
        // A key that was only counted has no file. The entry may also have been removed since the scan.
        let Some(known) = entries.index.peek(&key.0).filter(|known| known.blocks > 0) else { return };
        if entries.dir.health.can_read(entries.dir.clock_ms()) {
            let access = Access {
                direct_from: Some(0),
                calls_directly: false,
                // Only one chunk is held in memory at a time.
                client_has_space: false,
                ..self.lookup.access()
            };
            let plan = files.plan(key, access, Some(known));
            let Ok(file) = files.open(key, plan).await else { return };
            match files.read_entry(&file, key, None, plan).await {
                Ok(Read { chunks: Some(chunks), header, .. }) => {
                    return self.chunks(key, known, (file, plan), (&header, &chunks)).await;
                }
                Ok(_) | Err(ReadError::Disk(_) | ReadError::NoMemory) => {}
                Err(ReadError::Damaged(damage)) => entries.drop_damaged(key, Some(known.version), damage),
            }
        }
        self.pause(u64::from(known.blocks)).await;
    }

    /// Verifies the present chunks of a large entry. A damaged chunk removes the entry.
    async fn chunks(
        &self,
        key: &Key,
        known: IndexEntry,
        (file, plan): (File, ReadPlan),
        (header, chunks): (&Header, &Chunks),
    ) {
        let entries = &self.lookup.entries;
        let chunks = Arc::new(chunks.unverified(entries.epoch()));
        let located = Located {
            disk: Disk { device: entries.dir.device, via: plan.reads_of(&file) },
            file,
            offset: header.layout.body,
            length: header.length,
            key: *key,
            version: known.version,
            chunks: Some(Arc::clone(&chunks)),
            entries: Arc::clone(entries),
        };
        for index in (0..chunks.count()).filter(|&index| chunks.checksum(index).is_some()) {
            let start = index * CHUNK_BYTES;
            // The buffer is released before the pause.
            if located.read(start..start + CHUNK_BYTES, 1).next().await.is_err() {
                return;
            }
            self.pause(blocks_of(CHUNK_BYTES)).await;
            if entries.index.peek(&key.0).is_none_or(|now| now.version != known.version) {
                return;
            }
        }
    }

    /// Waits for the share of the pass that corresponds to this many blocks.
    async fn pause(&self, blocks: u64) {
        let used = self.lookup.entries.space.used.get().max(blocks).max(1);
        let share = self.pass.mul_f64(blocks as f64 / used as f64);
        rt::sleep_until(rt::now() + share.min(PAUSE_MAX)).await;
    }
}
