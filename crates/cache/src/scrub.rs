//! The scrub (`scrub=TIME`): reads every entry and compares it with its checksums, at a pace that spreads one pass over the
//! whole time. It finds damage in entries that no request reads, before the last good copy upstream is gone.
//!
//! Entries are read past the page cache where the file system can do that: the disk is looked at, and hot pages stay.

use std::sync::Arc;
use std::time::Duration;

use rt::File;

use crate::chunks::Chunks;
use crate::config::Access;
use crate::find::Read;
use crate::format::CHUNK_BYTES;
use crate::format::header::Header;
use crate::hit::Located;
use crate::index::{Cursor, Known};
use crate::key::Key;
use crate::opening::Way;
use crate::reading::ReadError;
use crate::space::blocks_of;
use crate::store::{Store, now_ms};

/// Entries that are noted under the lock of a shard.
const SCAN_MAX: usize = 512;

/// Longest pause between two reads. An entry that is removed meanwhile keeps its space until the pause is over.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Store {
    /// Compares one entry after the other with its checksums. Ends with the task that it runs in.
    pub(crate) async fn scrub(self: &Arc<Store>) {
        let Some(pass) = self.config.scrub else { return std::future::pending().await };
        // Servers that start more often than a pass takes come to all entries too.
        let mut cursor = Some(Cursor::anywhere(self.nonce()));
        loop {
            let began = rt::now();
            while let Some(here) = cursor {
                let mut keys = Vec::new();
                cursor = self.index.scan(here, SCAN_MAX, |key, _| keys.push(Key(*key)));
                for key in keys {
                    self.scrub_entry(&key, pass).await;
                }
                rt::yield_now().await;
            }
            // A small cache is not read more often than a large one.
            rt::sleep_until((began + pass).max(rt::now() + Duration::from_millis(1))).await;
            cursor = Some(Cursor::default());
        }
    }

    async fn scrub_entry(self: &Arc<Store>, key: &Key, pass: Duration) {
        // A key that was only asked for has no file. The rest was noted a while ago.
        let Some(known) = self.index.peek(&key.0).filter(|known| known.blocks > 0) else { return };
        if self.health.can_read(now_ms()) {
            let access = Access {
                direct_from: Some(0),
                calls_directly: false,
                // One chunk is held at a time.
                has_room: false,
                ..self.access()
            };
            let way = self.way(key, access, Some(known));
            let Ok(file) = self.open_entry(key, way).await else { return };
            match self.read(&file, key, None, way).await {
                Ok(Read { chunks: Some(chunks), header, .. }) => {
                    return self.scrub_chunks(key, known, (file, way), (&header, &chunks), pass).await;
                }
                Ok(_) | Err(ReadError::Disk(_) | ReadError::NoMemory) => {}
                Err(ReadError::Damaged(damage)) => self.drop_damaged(key, Some(known.version), damage),
            }
        }
        self.pause(u64::from(known.blocks), pass).await;
    }

    /// Compares the chunks of a large entry that are there. A damaged one drops the entry.
    async fn scrub_chunks(
        self: &Arc<Store>,
        key: &Key,
        known: Known,
        (file, way): (File, Way),
        (header, chunks): (&Header, &Chunks),
        pass: Duration,
    ) {
        let chunks = Arc::new(chunks.unverified(self.epoch()));
        let located = Located {
            device: self.device,
            via: way.reads_of(&file),
            file,
            offset: header.layout.body,
            length: header.length,
            key: *key,
            version: known.version,
            chunks: Some(Arc::clone(&chunks)),
            store: Arc::clone(self),
        };
        for index in (0..chunks.count()).filter(|&index| chunks.checksum(index).is_some()) {
            let start = index * CHUNK_BYTES;
            // The buffer goes back before the pause.
            if located.read(start..start + CHUNK_BYTES, 1).next().await.is_err() {
                return;
            }
            self.pause(blocks_of(CHUNK_BYTES), pass).await;
            if self.index.peek(&key.0).is_none_or(|now| now.version != known.version) {
                return;
            }
        }
    }

    /// Waits for the part of a pass that so many blocks are of the cache.
    async fn pause(&self, blocks: u64, pass: Duration) {
        let used = self.space.used().max(blocks).max(1);
        let share = pass.mul_f64(blocks as f64 / used as f64);
        rt::sleep_until(rt::now() + share.min(PAUSE_MAX)).await;
    }
}
