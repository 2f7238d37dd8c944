//! The record of a chunk: its checksum, and a mark that the record is valid.

use super::CHUNK_BYTES;
use crate::crc32c;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: u64 = 8;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(super::ALIGN), "chunks start where direct I/O can");

/// The record of chunk `index` with the checksum `crc`, in the entry with this nonce.
pub(crate) fn record(nonce: u64, index: u64, crc: u32) -> [u8; RECORD_BYTES as usize] {
    let mut bytes = [0; RECORD_BYTES as usize];
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes[4..].copy_from_slice(&mark(nonce, index, crc).to_le_bytes());
    bytes
}

/// The checksum in the record of chunk `index`; `None` when it is not the record of that chunk of that entry.
pub(crate) fn checksum(nonce: u64, index: u64, record: &[u8]) -> Option<u32> {
    let crc = u32::from_le_bytes(record.get(..4)?.try_into().ok()?);
    let found = u32::from_le_bytes(record.get(4..8)?.try_into().ok()?);
    (found == mark(nonce, index, crc)).then_some(crc)
}

fn mark(nonce: u64, index: u64, crc: u32) -> u32 {
    let mut text = [0; 20];
    text[..8].copy_from_slice(&nonce.to_le_bytes());
    text[8..16].copy_from_slice(&index.to_le_bytes());
    text[16..].copy_from_slice(&crc.to_le_bytes());
    // Zeroes are never a record: a file system returns them for a hole, or for bytes lost in a crash.
    crc32c::of(&text).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_record_of_the_place_counts() {
        let written = record(7, 3, 0xdead_beef);
        assert_eq!(checksum(7, 3, &written), Some(0xdead_beef));
        assert_eq!(checksum(7, 4, &written), None, "another chunk");
        assert_eq!(checksum(8, 3, &written), None, "another entry");
        for bit in 0..64 {
            let mut torn = written;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(checksum(7, 3, &torn), None, "bit {bit}");
        }
        assert!((0..1000).all(|nonce| checksum(nonce, 0, &[0; 8]).is_none()), "zeroes are no record");
        assert_eq!(checksum(7, 3, &written[..7]), None);
    }
}
