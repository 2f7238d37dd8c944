//! The format of an entry's file. Pure: bytes in, facts out.

use std::fmt;

/// Bytes of a body that share a checksum and are present together. The last chunk of a body may be shorter.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// What is wrong with an entry's file.
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
    /// A chunk of the body ends early.
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
            Damage::Truncated { index } => write!(f, "chunk {index} ends early"),
        }
    }
}
