//! The format of an entry's file. Pure: bytes in, facts out. All numbers are little-endian.
//!
//! ```text
//!  small: a body of at most one chunk          large
//!  one read has all of it                      rewritten in place, one head after the other
//!  0      +-----------------------------+      0      +-----------------------------+
//!         | header 160 B                |             | header, texts: slot A       |
//!         | key text, variant, Vary,    |      room   +-----------------------------+
//!         | head, tags, entity tag      |             | header, texts: slot B       |
//!  table  +-----------------------------+      2*room +-----------------------------+
//!         | record 8 B (none if empty)  |             | table, 8 B for each chunk   |
//!  body   +-----------------------------+      body   +--------- 4096-aligned ------+
//!         | body                        |             | body, with holes if partial |
//!         +-----------------------------+             +-----------------------------+
//!                                                     | table, when the length was  |
//!                                                     | unknown and grew too much   |
//!                                                     +-----------------------------+
//! ```
//! * A **slot** counts when its CRC32C is right; of two the one with the higher generation. A new head is written to the
//!   slot that does not count, so a torn write leaves the old one. The first 16 bytes tell where slot B is, and are the
//!   same whenever a slot is written again, so a slot A that is torn does not hide slot B.
//! * A **record** is the CRC32C of a chunk and a mark, which is the CRC32C of the entry's nonce, the chunk's number and
//!   the first half. A chunk is present if, and only if, its record's mark is right: zeroes, a record of another place
//!   or of an earlier file are no record. A record is written after its chunk, and when a machine dies between, or the
//!   record reaches the disk first, the chunk does not agree with it, which the first read finds out.
//!
//! [`header`] reads and writes slots, [`crc32c`] records.

pub(crate) mod crc32c;
pub(crate) mod header;

use std::fmt;

/// Bytes of a body that share a checksum and are present together. The last chunk of a body may be shorter.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Bytes that a disk writes completely or not at all.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Alignment of offsets for direct I/O.
pub(crate) const ALIGN: u64 = 4096;

/// Longest body: far above the limit of file systems, and low enough for sums not to overflow.
pub(crate) const LENGTH_MAX: u64 = 1 << 56;

/// Chunks of a body.
pub(crate) fn chunks_of(length: u64) -> u64 {
    length.div_ceil(CHUNK_BYTES)
}

/// Bytes of a chunk of a body.
pub(crate) fn chunk_len(index: u64, length: u64) -> u64 {
    assert!(index * CHUNK_BYTES <= length, "chunk {index} of {length} bytes");
    (length - index * CHUNK_BYTES).min(CHUNK_BYTES)
}

/// A fault of an entry's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It ends before its header does.
    Short,
    /// It does not begin as an entry does, or has another version.
    Magic,
    /// No copy of the header agrees with its checksum.
    Header,
    /// Lengths or places in the header contradict each other or the file.
    Layout,
    /// It holds another key.
    Key,
    /// A chunk of the body does not agree with its checksum.
    Chunk {
        /// Which one, counted from 0.
        index: u64,
    },
    /// A chunk of the body has no valid record, and the entry is marked as complete; or the chunk ends early.
    Truncated {
        /// Which one, counted from 0.
        index: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Short => f.write_str("it ends before its header does"),
            Damage::Magic => f.write_str("it is no entry of this version"),
            Damage::Header => f.write_str("its header does not agree with its checksum"),
            Damage::Layout => f.write_str("its header contradicts itself"),
            Damage::Key => f.write_str("it holds another key"),
            Damage::Chunk { index } => write!(f, "chunk {index} does not agree with its checksum"),
            Damage::Truncated { index } => write!(f, "chunk {index} is not whole"),
        }
    }
}
