//! Decoding of header sections (RFC 9204 section 4.5) and of the instructions that fill the dynamic table (section 4.3).
//!
//! A header section does not change the table, so sections are decoded in any order. Main type: [`Decoder`].

use super::QpackError;
use super::static_table::STATIC;
use crate::multiplexed::NeverIndexed;
use crate::multiplexed::coding::{Text, integer, push_integer, text};
use crate::multiplexed::table::{ENTRY_OVERHEAD, Table};

/// Maximum capacity in bytes of the memory for a name or a value that an idle connection retains: enough for most cookies.
const RETAINED_BYTES: usize = 1 << 10;

/// Bytes copied from the table for an instruction beyond its own length, above which it counts as a frame without effect: one byte
/// could otherwise cause the copy of an entry as large as the table.
const COPY_FREE: usize = 64;

/// Decoder state of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// Maximum capacity of the table in bytes, as announced to the peer.
    limit: usize,
    /// Number of entries that were ever added.
    inserted: u64,
    /// The part of `inserted` that the peer has been informed about.
    acknowledged: u64,
    /// Memory for a Huffman-decoded name and value.
    name: Vec<u8>,
    value: Vec<u8>,
    /// Names of the never-indexed fields of the last block.
    never_indexed: Option<Box<NeverIndexed>>,
    /// An incomplete instruction.
    incomplete: Vec<u8>,
}

/// Result of decoding a header section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// All fields were passed on.
    Complete {
        /// Number of entries of the table that the section requires; 0 if it does not use the table.
        required: u64,
    },
    /// Nothing was passed on: entries of the table have not arrived.
    Blocked {
        /// Number of entries that must have arrived.
        required: u64,
    },
}

/// Location of the name of a field.
enum FieldName {
    Static(usize),
    /// An index of the table.
    Entry(usize),
    Literal(Text),
}

/// The base of dynamic indices in a block (RFC 9204 section 4.5.1).
#[derive(Clone, Copy)]
struct SectionPrefix {
    required: u64,
    base: u64,
}

impl Decoder {
    /// Creates a decoder with an empty table of at most `limit` bytes, which must be announced to the peer. The peer sets the capacity.
    #[must_use]
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            table: Table::new(0),
            limit,
            inserted: 0,
            acknowledged: 0,
            name: Vec::new(),
            value: Vec::new(),
            never_indexed: None,
            incomplete: Vec::new(),
        }
    }

    /// Passes name and value of each field of a complete block to `field`.
    ///
    /// # Errors
    /// The block is invalid, which is a connection error.
    pub fn decode(
        &mut self,
        block: &[u8],
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<Section, QpackError> {
        self.never_indexed = None;
        let (prefix, mut at) = self.prefix(block)?;
        if prefix.required > self.inserted {
            return Ok(Section::Blocked { required: prefix.required });
        }
        while at < block.len() {
            at += match block[at] {
                0x80.. => self.indexed(&block[at..], prefix, &mut field)?,
                0x10..=0x1f => {
                    let (index, used) = integer(&block[at..], 4)?;
                    let entry = self.entry_at(prefix.base + index as u64, prefix)?;
                    let (name, value) = self.table.get(entry).ok_or(QpackError::UnknownIndex)?;
                    field(name, value);
                    used
                }
                _ => self.literal(block, at, prefix, &mut field)?,
            };
        }
        Ok(Section::Complete { required: prefix.required })
    }

    /// Decodes the prefix of a block (RFC 9204 section 4.5.1). Returns its length.
    fn prefix(&self, block: &[u8]) -> Result<(SectionPrefix, usize), QpackError> {
        let (encoded, used) = integer(block, 8)?;
        let required = self.required(encoded as u64)?;
        let rest = block.get(used..).unwrap_or_default();
        let is_negative = rest.first().ok_or(QpackError::Incomplete)? & 0x80 != 0;
        let (delta, more) = integer(rest, 7)?;
        let delta = delta as u64;
        let base = match is_negative {
            false => required + delta,
            true => required.checked_sub(delta + 1).ok_or(QpackError::Prefix)?,
        };
        Ok((SectionPrefix { required, base }, used + more))
    }

    /// Decodes the Required Insert Count (RFC 9204 section 4.5.1.1).
    fn required(&self, encoded: u64) -> Result<u64, QpackError> {
        if encoded == 0 {
            return Ok(0);
        }
        let entries_max = (self.limit / ENTRY_OVERHEAD) as u64;
        let full_range = 2 * entries_max;
        if encoded > full_range {
            return Err(QpackError::Prefix);
        }
        let value_max = self.inserted + entries_max;
        let wrapped_max = value_max / full_range * full_range;
        let required = wrapped_max + encoded - 1;
        let required = match required > value_max {
            true => required.checked_sub(full_range).ok_or(QpackError::Prefix)?,
            false => required,
        };
        if required == 0 { Err(QpackError::Prefix) } else { Ok(required) }
    }

    /// Returns the index in the table of the entry with an absolute index (RFC 9204 section 3.2.4), which the prefix must declare
    /// (section 2.2.3).
    fn entry_at(&self, absolute: u64, prefix: SectionPrefix) -> Result<usize, QpackError> {
        if absolute >= prefix.required {
            return Err(QpackError::UnknownIndex);
        }
        self.entry(absolute).ok_or(QpackError::UnknownIndex)
    }

    /// Returns the index in the table of the entry with an absolute index, unless it was evicted.
    fn entry(&self, absolute: u64) -> Option<usize> {
        let index = self.inserted.checked_sub(absolute + 1)?;
        usize::try_from(index).ok().filter(|&index| index < self.table.len())
    }

    /// Decodes an indexed field (RFC 9204 section 4.5.2).
    fn indexed(
        &self,
        input: &[u8],
        prefix: SectionPrefix,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, QpackError> {
        let (index, used) = integer(input, 6)?;
        if input[0] & 0x40 != 0 {
            let (name, value) = STATIC.get(index).ok_or(QpackError::UnknownIndex)?;
            field(name.as_bytes(), value.as_bytes());
            return Ok(used);
        }
        let entry = self.entry_at(relative(prefix.base, index)?, prefix)?;
        let (name, value) = self.table.get(entry).ok_or(QpackError::UnknownIndex)?;
        field(name, value);
        Ok(used)
    }

    /// Decodes a literal field (RFC 9204 sections 4.5.4 to 4.5.6).
    fn literal(
        &mut self,
        block: &[u8],
        start: usize,
        prefix: SectionPrefix,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, QpackError> {
        let first = block[start];
        let (name, is_never_indexed, at) = match first {
            0x40.. => {
                let (index, used) = integer(&block[start..], 4)?;
                let name = if first & 0x10 != 0 {
                    STATIC.get(index).ok_or(QpackError::UnknownIndex)?;
                    FieldName::Static(index)
                } else {
                    FieldName::Entry(self.entry_at(relative(prefix.base, index)?, prefix)?)
                };
                (name, first & 0x20 != 0, start + used)
            }
            0x20..=0x3f => {
                let (name, end) = text(block, start, 3, &mut self.name)?;
                (FieldName::Literal(name), first & 0x10 != 0, end)
            }
            _ => {
                let (index, used) = integer(&block[start..], 3)?;
                let entry = self.entry_at(prefix.base + index as u64, prefix)?;
                (FieldName::Entry(entry), first & 0x08 != 0, start + used)
            }
        };
        let (value, end) = text(block, at, 7, &mut self.value)?;
        let name = match name {
            FieldName::Static(index) => STATIC[index].0.as_bytes(),
            FieldName::Entry(index) => self.table.get(index).map(|(name, _)| name).unwrap_or_default(),
            FieldName::Literal(name) => name.of(block, &self.name),
        };
        field(name, value.of(block, &self.value));
        if is_never_indexed {
            self.never_indexed.get_or_insert_default().add(name);
        }
        Ok(end - start)
    }

    /// Takes the names of the never-indexed fields of the last block, if the block has any.
    pub fn take_never_indexed(&mut self) -> Option<Box<NeverIndexed>> {
        self.never_indexed.take()
    }

    /// Releases the memory of long names and values.
    pub fn trim(&mut self) {
        for memory in [&mut self.name, &mut self.value, &mut self.incomplete] {
            if memory.capacity() > RETAINED_BYTES && memory.len() <= RETAINED_BYTES {
                memory.shrink_to(memory.len());
            }
        }
    }

    /// Whether the entries have arrived that a header section requires.
    #[must_use]
    pub fn has(&self, required: u64) -> bool {
        required <= self.inserted
    }
}

/// Returns the absolute index of an index relative to the base (RFC 9204 section 3.2.5).
fn relative(base: u64, index: usize) -> Result<u64, QpackError> {
    base.checked_sub(index as u64 + 1).ok_or(QpackError::UnknownIndex)
}

/// The encoder stream of the peer.
impl Decoder {
    /// Processes bytes of the encoder stream. Returns the number of instructions that copy much more than they contain: they count as
    /// frames without effect.
    ///
    /// # Errors
    /// An instruction is invalid, which is a connection error.
    pub fn receive(&mut self, input: &[u8]) -> Result<u32, QpackError> {
        if self.incomplete.is_empty() {
            let (used, copies) = self.instructions(input)?;
            self.incomplete.extend_from_slice(&input[used..]);
            return Ok(copies);
        }
        let mut bytes = std::mem::take(&mut self.incomplete);
        bytes.extend_from_slice(input);
        let (used, copies) = self.instructions(&bytes)?;
        bytes.drain(..used);
        self.incomplete = bytes;
        Ok(copies)
    }

    /// Processes the complete instructions of `input`. Returns their length.
    fn instructions(&mut self, input: &[u8]) -> Result<(usize, u32), QpackError> {
        let (mut at, mut copies) = (0, 0);
        while at < input.len() {
            let Some(len) = self.instruction_len(&input[at..])? else { break };
            let copied = self.instruction(&input[at..at + len])?;
            copies += u32::from(copied > len + COPY_FREE);
            at += len;
        }
        Ok((at, copies))
    }

    /// Returns the length of the first instruction; `None` if it is incomplete. Strings are not decoded here, because their remaining
    /// bytes may arrive one by one.
    fn instruction_len(&self, input: &[u8]) -> Result<Option<usize>, QpackError> {
        // A Huffman code has at most 30 bits, so a valid string is at most four times as long as its entry.
        let most = 4 * self.limit;
        let string = |at: usize, prefix: u32| -> Result<usize, QpackError> {
            let (len, used) = integer(input.get(at..).unwrap_or_default(), prefix)?;
            if len > most { Err(QpackError::Capacity) } else { Ok(at + used + len) }
        };
        let end = match input.first() {
            Some(0x80..) => integer(input, 6).map_err(QpackError::from).and_then(|(_, used)| string(used, 7)),
            Some(0x40..=0x7f) => string(0, 5).and_then(|end| string(end, 7)),
            Some(_) => integer(input, 5).map(|(_, used)| used).map_err(QpackError::from),
            None => return Ok(None),
        };
        match end {
            Ok(end) => Ok((end <= input.len()).then_some(end)),
            Err(QpackError::Incomplete) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Executes one complete instruction (RFC 9204 section 4.3). Returns the number of bytes copied from the table.
    fn instruction(&mut self, bytes: &[u8]) -> Result<usize, QpackError> {
        let first = bytes[0];
        match first {
            0x80.. => {
                let (index, used) = integer(bytes, 6)?;
                let (value, _) = text(bytes, used, 7, &mut self.value)?;
                let value = value.of(bytes, &self.value);
                if first & 0x40 != 0 {
                    let (name, _) = STATIC.get(index).ok_or(QpackError::UnknownIndex)?;
                    check_fits(&self.table, name.len() + value.len())?;
                    self.table.add(name.as_bytes(), value);
                    self.inserted += 1;
                    return Ok(0);
                }
                let name_len = self.table.get(index).ok_or(QpackError::UnknownIndex)?.0.len();
                check_fits(&self.table, name_len + value.len())?;
                self.table.add_named_as(index, value);
                self.inserted += 1;
                Ok(name_len)
            }
            0x40..=0x7f => {
                let (name, used) = text(bytes, 0, 5, &mut self.name)?;
                let (value, _) = text(bytes, used, 7, &mut self.value)?;
                let (name, value) = (name.of(bytes, &self.name), value.of(bytes, &self.value));
                check_fits(&self.table, name.len() + value.len())?;
                self.table.add(name, value);
                self.inserted += 1;
                Ok(0)
            }
            0x20..=0x3f => {
                let (capacity, _) = integer(bytes, 5)?;
                if capacity > self.limit {
                    return Err(QpackError::Capacity);
                }
                self.table.set_max(capacity);
                Ok(0)
            }
            _ => {
                let (index, _) = integer(bytes, 5)?;
                let (name, value) = self.table.get(index).ok_or(QpackError::UnknownIndex)?;
                let (name, value) = (name.to_vec(), value.to_vec());
                self.table.add(&name, &value);
                self.inserted += 1;
                Ok(name.len() + value.len())
            }
        }
    }
}

/// Checks that an entry fits into the table (RFC 9204 section 3.2.2).
fn check_fits(table: &Table, len: usize) -> Result<(), QpackError> {
    if len + ENTRY_OVERHEAD > table.max() { Err(QpackError::Capacity) } else { Ok(()) }
}

/// The decoder stream to the peer (RFC 9204 section 4.4).
impl Decoder {
    /// Acknowledges a header section that requires entries of the table.
    pub(in crate::h3) fn acknowledge_section(&mut self, stream: u64, required: u64, out: &mut Vec<u8>) {
        if required > 0 {
            push_integer(out, 0x80, 7, stream as usize);
            self.acknowledged = self.acknowledged.max(required);
        }
    }

    /// Informs the peer that the header sections of a stream are not decoded.
    pub(in crate::h3) fn cancel_stream(&self, stream: u64, out: &mut Vec<u8>) {
        if self.limit > 0 {
            push_integer(out, 0x40, 6, stream as usize);
        }
    }

    /// Informs the peer about the entries that have arrived.
    pub(in crate::h3) fn acknowledge_inserts(&mut self, out: &mut Vec<u8>) {
        let increment = self.inserted - self.acknowledged;
        if increment > 0 {
            push_integer(out, 0, 6, increment as usize);
            self.acknowledged = self.inserted;
        }
    }
}
