//! Decoding of header blocks (RFC 7541 sections 3 and 6).

use super::static_table::STATIC;
use super::{HpackError, NeverIndexed, TABLE_BYTES_DEFAULT};
use crate::multiplexed::coding::{Text, integer, text};
use crate::multiplexed::table::Table;

/// Maximum capacity in bytes of the memory for a name or a value that an idle connection retains: enough for most cookies.
const RETAINED_BYTES: usize = 1 << 10;

/// Decoder state of one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// Maximum size of the table in bytes, as announced to the peer.
    limit: usize,
    /// Memory for a Huffman-decoded name and value.
    name: Vec<u8>,
    value: Vec<u8>,
    /// Names of the never-indexed fields of the last block.
    never_indexed: Option<Box<NeverIndexed>>,
}

/// Representation of a literal field (RFC 7541 section 6.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// With incremental indexing: the field is added to the dynamic table.
    Indexed,
    /// Without indexing.
    Plain,
    /// Never indexed: no intermediary may add the field to a table either.
    Never,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(TABLE_BYTES_DEFAULT)
    }
}

/// Location of the name of a field.
enum Name {
    Static(usize),
    Dynamic(usize),
    /// In the block or, if Huffman-decoded, in the memory for names.
    Literal(Text),
}

impl Decoder {
    /// Creates a decoder with an empty table of at most `limit` bytes, which must be announced to the peer.
    #[must_use]
    pub fn new(limit: usize) -> Decoder {
        let table = Table::new(limit);
        Decoder { table, limit, name: Vec::new(), value: Vec::new(), never_indexed: None }
    }

    /// Passes name and value of each field of a complete block to `field`.
    ///
    /// # Errors
    /// The block is invalid; the content of the table is undefined afterwards.
    pub fn decode(&mut self, block: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), HpackError> {
        let (mut at, mut has_fields) = (0, false);
        self.never_indexed = None;
        while at < block.len() {
            let first = block[at];
            at += match first {
                0x80.. => self.indexed(&block[at..], &mut field)?,
                0x40..=0x7f => self.literal(block, at, 6, Form::Indexed, &mut field)?,
                0x20..=0x3f if has_fields => return Err(HpackError::TableSize),
                0x20..=0x3f => {
                    let (size, used) = integer(&block[at..], 5)?;
                    if size > self.limit {
                        return Err(HpackError::TableSize);
                    }
                    self.table.set_max(size);
                    at += used;
                    continue;
                }
                0x10..=0x1f => self.literal(block, at, 4, Form::Never, &mut field)?,
                0x00..=0x0f => self.literal(block, at, 4, Form::Plain, &mut field)?,
            };
            has_fields = true;
        }
        Ok(())
    }

    /// Takes the names of the never-indexed fields of the last block, if the block has any.
    pub fn take_never_indexed(&mut self) -> Option<Box<NeverIndexed>> {
        self.never_indexed.take()
    }

    /// Releases the memory of long names and values.
    pub fn trim(&mut self) {
        for memory in [&mut self.name, &mut self.value] {
            if memory.capacity() > RETAINED_BYTES {
                *memory = Vec::new();
            }
        }
    }

    /// Decodes an indexed field (RFC 7541 section 6.1).
    fn indexed(&self, input: &[u8], field: &mut impl FnMut(&[u8], &[u8])) -> Result<usize, HpackError> {
        let (index, used) = integer(input, 7)?;
        match index.checked_sub(1).map(|index| STATIC.get(index)) {
            None => return Err(HpackError::Index),
            Some(Some((name, value))) => field(name.as_bytes(), value.as_bytes()),
            Some(None) => {
                let (name, value) = self.table.get(index - 1 - STATIC.len()).ok_or(HpackError::Index)?;
                field(name, value);
            }
        }
        Ok(used)
    }

    /// Decodes a literal field, possibly with an indexed name (RFC 7541 section 6.2).
    fn literal(
        &mut self,
        block: &[u8],
        start: usize,
        prefix: u32,
        form: Form,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, HpackError> {
        let (index, used) = integer(&block[start..], prefix)?;
        let mut at = start + used;
        let name = match index {
            0 => {
                let (name, end) = text(block, at, 7, &mut self.name)?;
                at = end;
                Name::Literal(name)
            }
            1..=61 => Name::Static(index - 1),
            _ if index - 1 - STATIC.len() < self.table.len() => Name::Dynamic(index - 1 - STATIC.len()),
            _ => return Err(HpackError::Index),
        };
        let (value, end) = text(block, at, 7, &mut self.value)?;
        let value = value.of(block, &self.value);
        match name {
            Name::Static(index) => {
                let name = STATIC[index].0.as_bytes();
                field(name, value);
                match form {
                    Form::Indexed => self.table.add(name, value),
                    Form::Plain => {}
                    Form::Never => self.never_indexed.get_or_insert_default().add(name),
                }
            }
            Name::Dynamic(index) => {
                let name = self.table.get(index).map(|(name, _)| name).unwrap_or_default();
                field(name, value);
                match form {
                    Form::Indexed => self.table.add_named_as(index, value),
                    Form::Plain => {}
                    Form::Never => self.never_indexed.get_or_insert_default().add(name),
                }
            }
            Name::Literal(name) => {
                let name = name.of(block, &self.name);
                field(name, value);
                match form {
                    Form::Indexed => self.table.add(name, value),
                    Form::Plain => {}
                    Form::Never => self.never_indexed.get_or_insert_default().add(name),
                }
            }
        }
        Ok(end - start)
    }
}
