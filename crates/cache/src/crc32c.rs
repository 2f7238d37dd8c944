//! CRC-32C (RFC 9260 appendix A), by the widest instructions that the processor has.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes`.
pub(crate) fn of(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The checksum of the bytes of `crc` followed by `more`.
pub(crate) fn append(crc: u32, more: &[u8]) -> u32 {
    // A checksum is the inverse of the register that it was made in (RFC 9260 appendix A).
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(more);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 3720 appendix B.4.
    #[test]
    fn vectors_of_the_standard_hold() {
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

    /// Bit by bit, as the polynomial is divided by.
    fn plainly(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| {
                (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
            })
        })
    }

    proptest! {
        /// Its ways differ with length and alignment.
        #[test]
        fn all_lengths_and_places_give_what_the_polynomial_says(
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
