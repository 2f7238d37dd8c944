//! The index on disk, so that a start needs one read instead of a walk through all directories. It is written at a
//! stop, and periodically.
//!
//! ```text
//!   magic 8 B | complete u32 | saved u32 | entries u64 | crc32c of the fields before u32 | zero u32
//!   then blocks:  number of records u32 | crc32c of the records u32 | records: key 16 B, blocks u32, accessed u32
//! ```
//! Times are in seconds since 1970. The time from the save to the load does not count as a time without requests.
//!
//! The snapshot is only a hint: the file of an entry is authoritative. A **complete** snapshot was written at a stop,
//! when nothing could change any more. The next start renames it before anything changes, so it is used only once. Any
//! other snapshot may be older than the entries on disk: its entries are used provisionally until a walk of the
//! directories confirms them.

use std::sync::Arc;

use io::Errno;
use rt::File;
use rt::file::Create;
use rustix::fs::{AtFlags, CWD, OFlags};

use crate::disk::directory::{Directory, now_s};
use crate::entries::Entries;
use crate::format::crc32c;
use crate::index::{BATCH_MAX, ObjectSource};
use crate::key::Key;

/// File name of the snapshot.
pub(crate) const NAME: &str = "ringroad.index";

/// File name of the snapshot during a start.
pub(crate) const OLD_NAME: &str = "ringroad.index.old";

const MAGIC: [u8; 8] = *b"rrindex\x01";

const HEADER_BYTES: usize = 32;

const RECORD_BYTES: usize = 24;

/// Maximum number of records per block. A block is one write of some 48 KiB, and is lost as a unit when it is damaged.
const BLOCK_RECORDS: usize = 2048;

/// Renames the snapshot before anything changes, so that the next start does not use it. These calls may block on the
/// disk.
pub(crate) fn set_aside(dir: &Directory) {
    let (from, to) = (dir.path_in(NAME.as_bytes()), dir.path_in(OLD_NAME.as_bytes()));
    if rustix::fs::renameat(CWD, &from, CWD, &to).is_err() {
        // There is no snapshot. A renamed one may remain from an interrupted start; entries have changed since.
        let _ = rustix::fs::unlinkat(CWD, &to, AtFlags::empty());
    }
}

fn header(entries: u64, is_complete: bool, saved_s: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&u32::from(is_complete).to_le_bytes());
    bytes[12..16].copy_from_slice(&saved_s.to_le_bytes());
    bytes[16..24].copy_from_slice(&entries.to_le_bytes());
    let crc = crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns the number of entries, whether the snapshot is complete, and the time of the save (0 in a snapshot that an
/// earlier version has written).
fn parse_header(bytes: &[u8]) -> Option<(u64, bool, u32)> {
    let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
    let crc = u32::from_le_bytes(bytes[24..28].try_into().ok()?);
    if bytes[..8] != MAGIC || crc32c(&bytes[..24]) != crc {
        return None;
    }
    let entries = u64::from_le_bytes(bytes[16..24].try_into().ok()?);
    let saved_s = u32::from_le_bytes(bytes[12..16].try_into().ok()?);
    Some((entries, bytes[8] != 0, saved_s))
}

/// Returns the records of one block and the bytes behind it, or `None` if the block is damaged or truncated.
fn parse_block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let count = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
    if count > BLOCK_RECORDS {
        return None;
    }
    let end = 8 + count * RECORD_BYTES;
    let records = bytes.get(8..end)?;
    (crc32c(records) == crc).then_some((records, &bytes[end..]))
}

/// Appends a block with the gathered records.
fn push_block(records: &mut Vec<u8>, out: &mut Vec<u8>) -> u64 {
    let count = records.len() / RECORD_BYTES;
    assert!(count <= BLOCK_RECORDS, "a block of {count} records");
    out.extend_from_slice(&(count as u32).to_le_bytes());
    out.extend_from_slice(&crc32c(records).to_le_bytes());
    out.append(records);
    count as u64
}

/// Reads the renamed snapshot and adds its records to the index. Returns whether these are all entries; otherwise a
/// walk is needed.
pub(crate) async fn load_snapshot(entries: &Arc<Entries>) -> bool {
    let dir = &entries.dir;
    let path = dir.path_in(OLD_NAME.as_bytes());
    let opened = dir.open_file(path.clone(), OFlags::RDONLY | OFlags::NOFOLLOW).await;
    let Ok(file) = opened else { return false };
    let is_complete = enter_snapshot(entries, &file).await == Some(true);
    drop(file);
    // Removed after use: the next start finds a newer one, or walks the directories.
    let _ = dir.unlink(path).await;
    is_complete
}

/// Adds the records of a snapshot to the index. Returns whether it is complete; `None` if it is damaged.
async fn enter_snapshot(entries: &Arc<Entries>, file: &File) -> Option<bool> {
    let file = entries.dir.to_read(file);
    let start = file.read_some(0, HEADER_BYTES as u64).await.ok()?;
    let (count, is_complete, saved_s) = parse_header(&start)?;
    let stopped_s = if saved_s > 0 { now_s().saturating_sub(saved_s) } else { 0 };
    let (mut at, mut entered, mut text) = (HEADER_BYTES as u64, 0, Vec::new());
    while entered < count {
        let part = file.read_some(at, 1 << 18).await.ok()?;
        if part.is_empty() {
            return None;
        }
        at += part.len() as u64;
        text.extend_from_slice(&part);
        let mut rest = &text[..];
        while let Some((records, behind)) = parse_block(rest) {
            entered += (records.len() / RECORD_BYTES) as u64;
            enter_records(entries, records, stopped_s);
            rest = behind;
        }
        // A complete block that cannot be parsed is damaged, and more bytes of the file cannot change that.
        if rest.len() > 8 + BLOCK_RECORDS * RECORD_BYTES {
            return None;
        }
        text = rest.to_vec();
        rt::yield_now().await;
    }
    Some(is_complete)
}

/// Adds records to the index; `stopped_s` is the time since the save.
fn enter_records(entries: &Arc<Entries>, records: &[u8], stopped_s: u32) {
    for record in records.chunks_exact(RECORD_BYTES) {
        let number = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
        let key = Key(record[..16].try_into().expect("sixteen bytes"));
        let (blocks, accessed_s) = (number(16), number(20).saturating_add(stopped_s));
        if blocks > 0 {
            entries.remove_evicted(entries.index.insert_found(&key.0, blocks, accessed_s));
        }
    }
}

/// Writes a snapshot to a temporary file and renames that. `is_complete`: nothing can change any more, so the snapshot is
/// complete.
pub(crate) async fn save_snapshot(entries: &Entries, is_complete: bool) -> Result<(), Errno> {
    let dir = &entries.dir;
    let temp = dir.temp_path();
    let file = dir.create(temp.clone(), Create::New).await?;
    let written = write_snapshot(entries, &file, is_complete).await;
    drop(file);
    let result = match written {
        Ok(()) => dir.rename(temp.clone(), dir.path_in(NAME.as_bytes())).await,
        Err(errno) => Err(errno),
    };
    if result.is_err() {
        let _ = dir.unlink(temp).await;
    }
    result
}

async fn write_snapshot(entries: &Entries, file: &File, is_complete: bool) -> Result<(), Errno> {
    let dir = &entries.dir;
    let (mut at, mut count, mut records) = (HEADER_BYTES as u64, 0, Vec::new());
    let mut batches = entries.index.batches(0).peekable();
    while let Some(batch) = batches.next() {
        for (key, known) in batch.iter().filter(|(_, known)| known.blocks > 0) {
            records.extend_from_slice(key);
            records.extend_from_slice(&known.blocks.to_le_bytes());
            records.extend_from_slice(&known.accessed_s.to_le_bytes());
        }
        let is_last = batches.peek().is_none();
        if records.len() < (BLOCK_RECORDS - BATCH_MAX) * RECORD_BYTES && !is_last {
            continue;
        }
        let mut block = Vec::new();
        count += push_block(&mut records, &mut block);
        let len = block.len() as u64;
        dir.write(file, at, block.into()).await?;
        at += len;
    }
    debug_assert!(records.is_empty() && at >= HEADER_BYTES as u64 + count * RECORD_BYTES as u64);
    // The header is written last: without it, the snapshot is invalid.
    dir.write(file, 0, header(count, is_complete, now_s()).to_vec().into()).await?;
    // The next start trusts a complete snapshot, so it must be durable before the rename.
    dir.sync(file).await
}

/// Inserts an entry found by a walk; returns whether its size must be measured. An entry known only from a snapshot
/// gets a new version, so that entries not found by any walk are recognised by their old version.
pub(crate) fn confirm(entries: &Arc<Entries>, key: &Key, unconfirmed_up_to: u32, now_s: u32) -> bool {
    let known = entries.index.peek(&key.0).filter(|known| known.blocks > 0);
    if known.is_some_and(|known| known.version > unconfirmed_up_to) {
        return false;
    }
    let (blocks, accessed_s) = known.map_or((1, now_s), |known| (known.blocks, known.accessed_s));
    let blocks = entries.space.used.adopt(u64::from(blocks));
    let (_, victim) = entries.index.insert(&key.0, blocks, ObjectSource::Named, accessed_s);
    entries.remove_evicted(victim);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_decoded_unchanged_or_refused() {
        assert_eq!(parse_header(&header(7, true, 9)), Some((7, true, 9)));
        assert_eq!(parse_header(&header(7, false, 9)), Some((7, false, 9)));
        for bit in 0..28 * 8 {
            let mut bytes = header(7, true, 9);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_header(&bytes), None, "bit {bit}");
        }
        assert_eq!(parse_header(&header(7, true, 9)[..31]), None);
    }

    #[test]
    fn a_block_is_decoded_unchanged_or_refused() {
        let mut block = Vec::new();
        let mut records = vec![7; 3 * RECORD_BYTES];
        assert_eq!(push_block(&mut records, &mut block), 3);
        assert_eq!(parse_block(&block), Some((&[7; 3 * RECORD_BYTES][..], &[][..])));
        for place in 0..block.len() {
            assert_eq!(parse_block(&block[..place]), None, "cut at {place}");
            let mut damaged = block.clone();
            damaged[place] ^= 0x10;
            assert_eq!(parse_block(&damaged), None, "damaged at {place}");
        }
    }
}
