//! Test content in which every byte can be computed without a copy.
//!
//! [`Content`] is a seed and a size; the bytes derive from them, and any range can be generated independently. So a
//! test can compare 100 MiB, completely or by range, with little memory. A mismatch is reported with its
//! offset and the surrounding bytes.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;

use crate::tempdir::{make_parent, permit_others};

/// Number of bytes that are generated or compared in one step.
const CHUNK_BYTES: usize = 64 * 1024;

/// Number of bytes of each side that a [`Mismatch`] shows.
const SHOWN_BYTES: usize = 16;

/// Deterministic pseudo-random bytes, which depend only on the seed and the offset.
///
/// Unlike a repeating pattern, they detect bytes from a wrong offset, repeated bytes, and bytes of another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    seed: u64,
    size: u64,
}

impl Content {
    /// Creates content of `size` bytes from this seed.
    pub const fn new(seed: u64, size: u64) -> Content {
        Content { seed, size }
    }

    /// Creates the content of an origin's object, which depends on its name and version and can be checked with both.
    pub fn named(name: &str, version: u64, size: u64) -> Content {
        // The hash function FNV-1a. `word` makes contents with similar hashes different.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Content::new(hash ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15), size)
    }

    /// Returns the size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Fills `out` with the bytes from `offset` on.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let mut position = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let word = word(self.seed, position / 8).to_le_bytes();
            let skip = (position % 8) as usize;
            let count = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&word[skip..skip + count]);
            position += count as u64;
            rest = later;
        }
    }

    /// Returns the bytes of a range as a vector; for small ranges.
    pub fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        assert!(range.end <= self.size, "range {range:?} of a content of {} bytes", self.size);
        let mut out = vec![0; (range.end - range.start) as usize];
        self.fill(range.start, &mut out);
        out
    }

    /// Writes the file, and creates its parent directories.
    pub fn write_to(&self, path: &Path) {
        make_parent(path);
        let write = || -> io::Result<()> {
            let mut file = BufWriter::with_capacity(CHUNK_BYTES, File::create(path)?);
            let mut chunk = vec![0; CHUNK_BYTES];
            let mut offset = 0;
            while offset < self.size {
                let count = (self.size - offset).min(CHUNK_BYTES as u64) as usize;
                self.fill(offset, &mut chunk[..count]);
                file.write_all(&chunk[..count])?;
                offset += count as u64;
            }
            file.flush()?;
            permit_others(path)
        };
        write().unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }

    /// Compares the bytes of `body`, up to its end, with the bytes of `range`.
    pub fn compare(&self, range: Range<u64>, body: &mut dyn Read) -> Result<(), Mismatch> {
        assert!(range.end <= self.size, "range {range:?} of a content of {} bytes", self.size);
        let mut expected = vec![0; CHUNK_BYTES];
        let mut found = vec![0; CHUNK_BYTES];
        let mut offset = range.start;
        loop {
            let count = body.read(&mut found).map_err(|error| Mismatch::Read { offset, error })?;
            if count == 0 {
                break;
            }
            if offset + count as u64 > range.end {
                return Err(Mismatch::Long { expected: range.end - range.start });
            }
            self.fill(offset, &mut expected[..count]);
            if let Some(at) = (0..count).find(|&at| expected[at] != found[at]) {
                let end = count.min(at + SHOWN_BYTES);
                return Err(Mismatch::Differs {
                    offset: offset + at as u64,
                    expected: expected[at..end].to_vec(),
                    found: found[at..end].to_vec(),
                });
            }
            offset += count as u64;
        }
        if offset < range.end {
            return Err(Mismatch::Short { expected: range.end - range.start, found: offset - range.start });
        }
        Ok(())
    }

    /// Computes the [`Checksum`] of a range.
    pub fn checksum(&self, range: Range<u64>) -> u64 {
        let mut sum = Checksum::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        for start in (range.start..range.end).step_by(CHUNK_BYTES) {
            let count = (range.end - start).min(CHUNK_BYTES as u64) as usize;
            self.fill(start, &mut chunk[..count]);
            sum.add(&chunk[..count]);
        }
        sum.value()
    }

    /// Panics unless `body` is the complete content.
    #[track_caller]
    pub fn assert_body(&self, body: &[u8]) {
        self.assert_range(0..self.size, body);
    }

    /// Panics unless `body` is exactly this range of the content.
    #[track_caller]
    pub fn assert_range(&self, range: Range<u64>, mut body: &[u8]) {
        if let Err(mismatch) = self.compare(range.clone(), &mut body) {
            panic!("body is not bytes {range:?} of {self:?}: {mismatch}");
        }
    }
}

/// Compares a body with a range of the object that has this name and version ([`Content::named`]). The error has the
/// first wrong offset, relative to the object.
pub fn check_body(name: &str, version: u64, range: Range<u64>, mut body: &[u8]) -> Result<(), Mismatch> {
    Content::named(name, version, range.end).compare(range, &mut body)
}

/// A checksum over a byte sequence, independent of its division into pieces. It processes eight bytes at a time: even a
/// debug build can check a thousand clients with 1 MiB each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum {
    state: u64,
    /// Bytes of an incomplete word, from the low end.
    partial: u64,
    length: u64,
}

impl Checksum {
    /// Returns the checksum of these bytes.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.value()
    }

    /// Adds the next bytes of the sequence.
    pub fn add(&mut self, bytes: &[u8]) {
        let missing = ((8 - self.length % 8) % 8) as usize;
        let (first, rest) = bytes.split_at(missing.min(bytes.len()));
        first.iter().for_each(|&byte| self.add_byte(byte));
        let (words, last) = rest.as_chunks::<8>();
        for word in words {
            self.state = mix(self.state, u64::from_le_bytes(*word));
        }
        self.length += 8 * words.len() as u64;
        last.iter().for_each(|&byte| self.add_byte(byte));
    }

    fn add_byte(&mut self, byte: u8) {
        self.partial |= u64::from(byte) << (8 * (self.length % 8));
        self.length += 1;
        if self.length.is_multiple_of(8) {
            self.state = mix(self.state, std::mem::take(&mut self.partial));
        }
    }

    /// Returns the checksum so far.
    pub fn value(&self) -> u64 {
        mix(mix(self.state, self.partial), self.length)
    }
}

/// Mixes a word into the state: the rotation makes the order significant, the odd factor every bit.
fn mix(state: u64, word: u64) -> u64 {
    (state.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The difference between a body and the expected content.
#[derive(Debug)]
pub enum Mismatch {
    /// The body ended early.
    Short {
        /// Expected number of bytes.
        expected: u64,
        /// Received number of bytes.
        found: u64,
    },
    /// The body continued after the last byte.
    Long {
        /// Expected number of bytes.
        expected: u64,
    },
    /// A byte differs.
    Differs {
        /// Offset in the object, not in the range.
        offset: u64,
        /// The expected bytes from there on.
        expected: Vec<u8>,
        /// The received bytes from there on.
        found: Vec<u8>,
    },
    /// Reading the body failed.
    Read {
        /// Offset in the object up to which everything was correct.
        offset: u64,
        /// The reader's error.
        error: io::Error,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Short { expected, found } => write!(f, "{found} bytes instead of {expected}"),
            Mismatch::Long { expected } => write!(f, "more than {expected} bytes"),
            Mismatch::Differs { offset, expected, found } => {
                write!(f, "wrong from offset {offset}: {found:02x?} instead of {expected:02x?}")
            }
            Mismatch::Read { offset, error } => write!(f, "read failed at offset {offset}: {error}"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Returns eight bytes of the sequence. An xorshift* generator cannot jump to an index, so the index is mixed into its
/// state instead, and two rounds spread it over all bits.
fn word(seed: u64, index: u64) -> u64 {
    let mut state = (seed ^ 0x6a09_e667_f3bc_c909)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(index.wrapping_mul(0xd134_2543_de82_ef95))
        | 1;
    for _ in 0..2 {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempDir;
    use std::collections::HashSet;

    #[test]
    fn a_range_is_a_slice_of_the_content() {
        let content = Content::new(7, 1000);
        let whole = content.bytes(0..1000);
        for (start, end) in [(0, 0), (0, 1), (3, 17), (8, 16), (511, 513), (999, 1000)] {
            assert_eq!(content.bytes(start..end), whole[start as usize..end as usize]);
        }
    }

    #[test]
    fn content_differs_between_offsets_and_seeds() {
        let words: HashSet<u64> =
            (0..8).flat_map(|seed| (0..10_000).map(move |index| word(seed, index))).collect();
        // The low bit of the state is forced to 1, so pairs of indices may collide; more collisions would indicate a
        // pattern.
        assert!(words.len() > 79_900, "{} different words of 80000", words.len());
    }

    #[test]
    fn a_named_object_is_checked_by_its_name() {
        let content = Content::named("/a", 3, 5000);
        assert_ne!(content, Content::named("/a", 4, 5000));
        assert_ne!(content, Content::named("/b", 3, 5000));
        let mut part = content.bytes(100..300);
        check_body("/a", 3, 100..300, &part).expect("it is that part");
        part[7] ^= 0x80;
        let wrong = check_body("/a", 3, 100..300, &part);
        assert!(matches!(wrong, Err(Mismatch::Differs { offset: 107, .. })), "{wrong:?}");
        assert!(check_body("/a", 4, 0..5000, &content.bytes(0..5000)).is_err());
    }

    #[test]
    fn a_checksum_depends_on_bytes_and_order_not_on_pieces() {
        let content = Content::new(9, 1000);
        let bytes = content.bytes(0..1000);
        for piece in [1, 3, 8, 13, 1000] {
            let mut sum = Checksum::default();
            bytes.chunks(piece).for_each(|piece| sum.add(piece));
            assert_eq!(sum.value(), content.checksum(0..1000), "{piece}");
        }
        let mut other = bytes.clone();
        other.swap(8, 16);
        assert_ne!(Checksum::of(&other), Checksum::of(&bytes));
        assert_ne!(Checksum::of(&bytes[..999]), Checksum::of(&[&bytes[..999], b"\0"].concat()));
    }

    #[test]
    fn a_written_file_compares_equal() {
        let dir = TempDir::new("files");
        let path = dir.path().join("deep/file.bin");
        let content = Content::new(3, CHUNK_BYTES as u64 + 13);
        content.write_to(&path);
        let mut file = File::open(&path).expect("it was just written");
        content.compare(0..content.size(), &mut file).expect("the same bytes come back");
    }

    #[test]
    fn each_kind_of_difference_is_reported() {
        let content = Content::new(5, 100);
        let mut bytes = content.bytes(0..100);
        let compare = |bytes: &[u8]| content.compare(0..100, &mut &bytes[..]);
        assert!(matches!(compare(&bytes[..40]), Err(Mismatch::Short { expected: 100, found: 40 })));
        bytes.push(0);
        assert!(matches!(compare(&bytes), Err(Mismatch::Long { expected: 100 })));
        bytes.pop();
        bytes[57] ^= 1;
        assert!(matches!(compare(&bytes), Err(Mismatch::Differs { offset: 57, .. })));
    }
}
