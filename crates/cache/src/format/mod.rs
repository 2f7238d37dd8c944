//! The format of an entry's file: encoding and decoding without I/O. All numbers are little-endian.
//!
//! ```text
//!  small: a body of at most one chunk          large
//!  read in one operation                       header rewritten in place, alternating between slots
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
//!                                                     | unknown and grew too large  |
//!                                                     +-----------------------------+
//! ```
//! * A **slot** is valid when its CRC32C is correct; of two valid slots, the one with the higher generation is used. A
//!   new header is written to the unused slot, so a torn write leaves the old one intact. The first 16 bytes contain
//!   the position of slot B. They never change when a slot is rewritten, so a torn slot A does not hide slot B.
//! * A **record** is the CRC32C of a chunk and a mark. The mark is the CRC32C of the entry's nonce, the chunk's index
//!   and the first half. A chunk is present if, and only if, its record's mark is correct: zeroes, a record of another
//!   position or of an earlier file are not valid. A record is written after its chunk. If the machine crashes in
//!   between, or the record reaches the disk first, the chunk does not match its checksum; the first read detects that.
//!
//! [`header`] reads and writes slots, [`crc32c`] records.

pub(crate) mod crc32c;
pub(crate) mod header;

use std::fmt;

/// Size in bytes of a chunk: the unit of a body that has one checksum and is present or missing as a unit. The last
/// chunk of a body may be shorter.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Bytes that a disk writes atomically.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Alignment of offsets for direct I/O.
pub(crate) const ALIGN: u64 = 4096;

/// Maximum length of a body in bytes: 256 GiB. The length that an upstream announces determines the size of the state
/// of the chunks ([`crate::entries::chunks`]), which is allocated before the body arrives: some 4 bytes per chunk, so
/// at most 17 MiB.
pub const LENGTH_MAX: u64 = 1 << 38;

/// Returns the number of chunks of a body.
pub(crate) fn chunks_of(length: u64) -> u64 {
    length.div_ceil(CHUNK_BYTES)
}

/// Returns the length of a chunk of a body in bytes.
pub(crate) fn chunk_len(index: u64, length: u64) -> u64 {
    assert!(index * CHUNK_BYTES <= length, "chunk {index} of {length} bytes");
    (length - index * CHUNK_BYTES).min(CHUNK_BYTES)
}

/// A fault of an entry's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The file ends inside its header.
    Short,
    /// The file does not begin with the magic number of this version.
    Magic,
    /// No slot of the header matches its checksum.
    Header,
    /// Lengths or positions in the header contradict each other or the file.
    Layout,
    /// The file belongs to another key.
    Key,
    /// A chunk of the body does not match its checksum.
    Chunk {
        /// Index of the chunk, 0-based.
        index: u64,
    },
    /// A chunk of the body has no valid record although the entry is marked as complete, or the chunk ends early.
    Truncated {
        /// Index of the chunk, 0-based.
        index: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Short => f.write_str("the file ends inside its header"),
            Damage::Magic => f.write_str("the file is not an entry in the format of this version"),
            Damage::Header => f.write_str("the header does not match its checksum"),
            Damage::Layout => f.write_str("lengths or positions in the header are invalid"),
            Damage::Key => f.write_str("the file belongs to another key"),
            Damage::Chunk { index } => write!(f, "chunk {index} does not match its checksum"),
            Damage::Truncated { index } => write!(f, "chunk {index} is missing or incomplete"),
        }
    }
}
