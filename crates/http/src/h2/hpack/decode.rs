//! Header blocks to fields (RFC 7541 sections 3 and 6).

use super::table::{STATIC, Table};
use super::{HpackError, TABLE_BYTES_DEFAULT, huffman, integer};

/// The state of one direction of a connection for reading header blocks.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The largest table that the other end may use.
    limit: usize,
    /// Memory of a name and of a value that are Huffman codes.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(TABLE_BYTES_DEFAULT)
    }
}

/// Where the name of a field is.
enum Name {
    Static(usize),
    Dynamic(usize),
    /// In the block or, decoded, in the memory of names.
    Literal(Text),
}

/// A text of a block.
#[derive(Clone, Copy)]
enum Text {
    /// As in the block.
    Plain { start: usize, end: usize },
    /// In separate memory.
    Decoded,
}

impl Text {
    fn of<'a>(self, block: &'a [u8], decoded: &'a [u8]) -> &'a [u8] {
        match self {
            Text::Plain { start, end } => &block[start..end],
            Text::Decoded => decoded,
        }
    }
}

impl Decoder {
    /// A decoder with an empty table of at most `limit` bytes, which was announced to the other end.
    #[must_use]
    pub fn new(limit: usize) -> Decoder {
        Decoder { table: Table::new(limit), limit, name: Vec::new(), value: Vec::new() }
    }

    /// Hands name and value of each field of a whole block to `field`.
    ///
    /// # Errors
    /// The block is none; the content of the table is unknown from here on.
    pub fn decode(&mut self, block: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), HpackError> {
        let (mut at, mut has_fields) = (0, false);
        while at < block.len() {
            let first = block[at];
            at += match first {
                0x80.. => self.indexed(&block[at..], &mut field)?,
                0x40..=0x7f => self.literal(block, at, 6, true, &mut field)?,
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
                // Without a place in the table, and never to have one: equal for readers.
                0x00..=0x1f => self.literal(block, at, 4, false, &mut field)?,
            };
            has_fields = true;
        }
        Ok(())
    }

    /// Gives back the memory of long texts.
    pub fn trim(&mut self) {
        self.name.shrink_to(0);
        self.value.shrink_to(0);
    }

    /// RFC 7541 section 6.1.
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

    /// RFC 7541 section 6.2: a literal field, possibly with an indexed name.
    fn literal(
        &mut self,
        block: &[u8],
        start: usize,
        prefix: u32,
        is_kept: bool,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, HpackError> {
        let (index, used) = integer(&block[start..], prefix)?;
        let mut at = start + used;
        let name = match index {
            0 => {
                let (name, end) = text(block, at, &mut self.name)?;
                at = end;
                Name::Literal(name)
            }
            1..=61 => Name::Static(index - 1),
            _ if index - 1 - STATIC.len() < self.table.len() => Name::Dynamic(index - 1 - STATIC.len()),
            _ => return Err(HpackError::Index),
        };
        let (value, end) = text(block, at, &mut self.value)?;
        let value = value.of(block, &self.value);
        match name {
            Name::Static(index) => {
                let name = STATIC[index].0.as_bytes();
                field(name, value);
                if is_kept {
                    self.table.add(name, value);
                }
            }
            Name::Dynamic(index) => {
                let name = self.table.get(index).map(|(name, _)| name).unwrap_or_default();
                field(name, value);
                if is_kept {
                    self.table.add_named_as(index, value);
                }
            }
            Name::Literal(name) => {
                let name = name.of(block, &self.name);
                field(name, value);
                if is_kept {
                    self.table.add(name, value);
                }
            }
        }
        Ok(end - start)
    }
}

/// Reads a text (RFC 7541 section 5.2), which is decoded to `memory` if it is a Huffman code; it, and where it ends.
fn text(block: &[u8], start: usize, memory: &mut Vec<u8>) -> Result<(Text, usize), HpackError> {
    let input = block.get(start..).unwrap_or_default();
    let (len, used) = integer(input, 7)?;
    let (start, end) = (start + used, start + used + len);
    let coded = block.get(start..end).ok_or(HpackError::Truncated)?;
    if input[0] & 0x80 == 0 {
        return Ok((Text::Plain { start, end }, end));
    }
    memory.clear();
    huffman::decode(coded, memory)?;
    Ok((Text::Decoded, end))
}
