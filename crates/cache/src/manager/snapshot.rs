//! The index on disk, so that a start needs one read instead of a walk through all directories: written at a stop, and now
//! and then.
//!
//! ```text
//!   magic 8 B | whole u32 | zero u32 | entries u64 | crc32c of what is before u32 | zero u32
//!   then blocks:  records in it u32 | crc32c of them u32 | records: key 16 B, blocks u32, accessed u32
//! ```
//! It is never more than a hint: the file of an entry decides. A **whole** snapshot was written when nothing could
//! change any more; it is renamed before anything does, so a start finds it only after a stop. Any other is older than
//! the entries on disk: its entries are used provisionally until a walk confirms them.

use std::sync::Arc;

use io::Errno;
use rt::File;
use rt::file::Create;
use rustix::fs::{AtFlags, CWD, OFlags};

use crate::disk::directory::Directory;
use crate::disk::read::read_some;
use crate::entries::Entries;
use crate::format::crc32c;
use crate::index::{Cursor, Index, Origin};
use crate::key::Key;
use crate::manager::pace::SCAN_MAX;

/// The snapshot of a cache that is not in use, or of some time ago.
pub(crate) const NAME: &str = "ringroad.index";

/// The one that this start reads.
pub(crate) const OLD_NAME: &str = "ringroad.index.old";

const MAGIC: [u8; 8] = *b"rrindex\x01";

const HEADER_BYTES: usize = 32;

const RECORD_BYTES: usize = 24;

/// Records of a block: one write of some 48 KiB, and the loss when one is damaged.
const BLOCK_RECORDS: usize = 2048;

/// The result of reading a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// All entries are known.
    All,
    /// Some entries may be known; a walk is needed.
    Some,
}

/// Puts the snapshot out of the way of the next start, before anything changes. These calls may wait for the disk.
pub(crate) fn set_aside(dir: &Directory) {
    let (from, to) = (dir.path_in(NAME.as_bytes()), dir.path_in(OLD_NAME.as_bytes()));
    if rustix::fs::renameat(CWD, &from, CWD, &to).is_err() {
        // One that an earlier start did not come to the end of: entries have come and gone since.
        let _ = rustix::fs::unlinkat(CWD, &to, AtFlags::empty());
    }
}

fn header(entries: u64, is_whole: bool) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&u32::from(is_whole).to_le_bytes());
    bytes[16..24].copy_from_slice(&entries.to_le_bytes());
    let crc = crc32c::of(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Entries and whether the snapshot is whole.
fn parse_header(bytes: &[u8]) -> Option<(u64, bool)> {
    let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
    let crc = u32::from_le_bytes(bytes[24..28].try_into().ok()?);
    if bytes[..8] != MAGIC || crc32c::of(&bytes[..24]) != crc {
        return None;
    }
    let entries = u64::from_le_bytes(bytes[16..24].try_into().ok()?);
    Some((entries, bytes[8] != 0))
}

/// The records of one block, or `None` if it is damaged or cut off.
fn parse_block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let count = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
    if count > BLOCK_RECORDS {
        return None;
    }
    let end = 8 + count * RECORD_BYTES;
    let records = bytes.get(8..end)?;
    (crc32c::of(records) == crc).then_some((records, &bytes[end..]))
}

/// One block of a snapshot from the gathered records.
fn push_block(records: &mut Vec<u8>, out: &mut Vec<u8>) -> u64 {
    let count = records.len() / RECORD_BYTES;
    assert!(count <= BLOCK_RECORDS, "a block of {count} records");
    out.extend_from_slice(&(count as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::of(records).to_le_bytes());
    out.append(records);
    count as u64
}

/// Reads the snapshot that was set aside and enters its records into the index.
pub(crate) async fn load_snapshot(entries: &Arc<Entries>) -> Loaded {
    let dir = &entries.dir;
    let path = dir.path_in(OLD_NAME.as_bytes());
    let opened = dir.open_file(path.clone(), OFlags::RDONLY | OFlags::NOFOLLOW).await;
    let Ok(file) = opened else { return Loaded::Some };
    let loaded = enter_snapshot(entries, &file).await.unwrap_or(Loaded::Some);
    drop(file);
    // Used up: the next start finds a newer one or walks.
    let _ = dir.unlink(path).await;
    loaded
}

/// `None` if it is damaged.
async fn enter_snapshot(entries: &Arc<Entries>, file: &File) -> Option<Loaded> {
    let (device, via) = (entries.dir.device(), entries.dir.via());
    let start = read_some(file, 0, HEADER_BYTES as u64, device, via).await.ok()?;
    let (count, is_whole) = parse_header(&start)?;
    let (mut at, mut entered, mut text) = (HEADER_BYTES as u64, 0, Vec::new());
    while entered < count {
        let part = read_some(file, at, 1 << 18, device, via).await.ok()?;
        if part.is_empty() {
            return None;
        }
        at += part.len() as u64;
        text.extend_from_slice(&part);
        let mut rest = &text[..];
        while let Some((records, behind)) = parse_block(rest) {
            entered += (records.len() / RECORD_BYTES) as u64;
            enter_records(entries, records);
            rest = behind;
        }
        // A block that is damaged stays whole in here, and more of the file cannot mend it.
        if rest.len() > 8 + BLOCK_RECORDS * RECORD_BYTES {
            return None;
        }
        text = rest.to_vec();
        rt::yield_now().await;
    }
    Some(if is_whole { Loaded::All } else { Loaded::Some })
}

fn enter_records(entries: &Arc<Entries>, records: &[u8]) {
    for record in records.chunks_exact(RECORD_BYTES) {
        let number = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
        let key = Key(record[..16].try_into().expect("sixteen bytes"));
        let (blocks, accessed_s) = (number(16), number(20));
        if blocks > 0 {
            let (_, victim) = entries.index.insert_found(&key.0, blocks, accessed_s);
            entries.remove_evicted(victim);
        }
    }
}

/// Writes a snapshot and gives it its name; `is_whole` where nothing can change any more.
pub(crate) async fn save_snapshot(entries: &Entries, is_whole: bool) -> Result<(), Errno> {
    let dir = &entries.dir;
    let temp = dir.temp_path();
    let file = dir.create(temp.clone(), Create::New).await?;
    let written = write_snapshot(entries, &file, is_whole).await;
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

async fn write_snapshot(entries: &Entries, file: &File, is_whole: bool) -> Result<(), Errno> {
    let dir = &entries.dir;
    let (mut at, mut count, mut records) = (HEADER_BYTES as u64, 0, Vec::new());
    let mut cursor = Some(Cursor::default());
    while let Some(here) = cursor {
        cursor = gather(&entries.index, here, &mut records);
        let is_last = cursor.is_none();
        if records.len() < (BLOCK_RECORDS - SCAN_MAX) * RECORD_BYTES && !is_last {
            continue;
        }
        let mut block = Vec::new();
        count += push_block(&mut records, &mut block);
        let len = block.len() as u64;
        dir.write(file, at, block.into()).await?;
        at += len;
    }
    debug_assert!(records.is_empty() && at >= HEADER_BYTES as u64 + count * RECORD_BYTES as u64);
    // The header comes last: without it there is no snapshot.
    dir.write(file, 0, header(count, is_whole).to_vec().into()).await?;
    // It is trusted after a stop, and a machine may stop too.
    dir.sync(file).await
}

/// Appends the records of some entries behind a cursor.
fn gather(index: &Index, cursor: Cursor, records: &mut Vec<u8>) -> Option<Cursor> {
    index.scan(cursor, SCAN_MAX, |key, known| {
        if known.blocks > 0 {
            records.extend_from_slice(key);
            records.extend_from_slice(&known.blocks.to_le_bytes());
            records.extend_from_slice(&known.accessed_s.to_le_bytes());
        }
    })
}

/// Inserts an entry found by a walk; returns whether its size must be measured. An entry known only from a snapshot
/// gets a new version, so that entries that no walk found are recognised by their old one.
pub(crate) fn confirm(entries: &Arc<Entries>, key: &Key, unconfirmed_up_to: u32, now_s: u32) -> bool {
    let known = entries.index.peek(&key.0).filter(|known| known.blocks > 0);
    if known.is_some_and(|known| known.version > unconfirmed_up_to) {
        return false;
    }
    let (blocks, accessed_s) = known.map_or((1, now_s), |known| (known.blocks, known.accessed_s));
    let blocks = entries.space.adopt(u64::from(blocks));
    let (_, victim) = entries.index.insert(&key.0, blocks, Origin::Named, accessed_s);
    entries.remove_evicted(victim);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_or_not_at_all() {
        assert_eq!(parse_header(&header(7, true)), Some((7, true)));
        assert_eq!(parse_header(&header(7, false)), Some((7, false)));
        for bit in 0..28 * 8 {
            let mut bytes = header(7, true);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_header(&bytes), None, "bit {bit}");
        }
        assert_eq!(parse_header(&header(7, true)[..31]), None);
    }

    #[test]
    fn a_block_is_read_back_or_not_at_all() {
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
