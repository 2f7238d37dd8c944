//! Checksums: CRC-32C (RFC 9260 appendix A) with the widest instructions of the CPU. Also the record of a chunk, which
//! consists of the chunk's checksum and a mark that the record is valid.

use crc_fast::{CrcAlgorithm, Digest};

use super::CHUNK_BYTES;

/// Returns the checksum of `bytes`.
pub(crate) fn of(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the checksum of the bytes with the checksum `crc`, followed by `more`.
pub(crate) fn append(crc: u32, more: &[u8]) -> u32 {
    // A checksum is the inverted state of the CRC register (RFC 9260 appendix A).
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(more);
    digest.finalize() as u32
}

/// Size of a record in bytes.
pub(crate) const RECORD_BYTES: u64 = 8;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(super::ALIGN), "chunks start where direct I/O can");

/// Returns the record of chunk `index` with the checksum `crc`, in the entry with this nonce.
pub(crate) fn record(nonce: u64, index: u64, crc: u32) -> [u8; RECORD_BYTES as usize] {
    let mut bytes = [0; RECORD_BYTES as usize];
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes[4..].copy_from_slice(&mark(nonce, index, crc).to_le_bytes());
    bytes
}

/// Returns the checksum in the record of chunk `index`; `None` when it is not a valid record of that chunk of that
/// entry.
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
    // A zeroed record is never valid: a file system returns zeroes for a hole, or for bytes lost in a crash.
    of(&text).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_is_valid_only_for_its_chunk_and_entry() {
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

    /// RFC 3720 appendix B.4.
    #[test]
    fn test_vectors_of_the_rfc_match() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let vectors: [(&[u8], u32); 6] = [
            (b"", 0),
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
        ];
        for (bytes, crc) in vectors {
            assert_eq!(of(bytes), crc);
        }
    }

    /// Computes the checksum bit by bit, as a polynomial division.
    fn plainly(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| {
                (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
            })
        })
    }

    proptest! {
        /// The implementation depends on length and alignment.
        #[test]
        fn checksums_of_all_lengths_and_alignments_match_the_polynomial(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            start in 0usize..64,
            cut in 0usize..3000,
        ) {
            let bytes = bytes.get(start..).unwrap_or(&[]);
            let (front, back) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(of(bytes), plainly(bytes));
            prop_assert_eq!(append(of(front), back), plainly(bytes));
        }
    }
}
