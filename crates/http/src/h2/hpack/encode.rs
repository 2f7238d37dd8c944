//! Encoding of header blocks (RFC 7541 section 6).
//!
//! A head is encoded in two steps. [`push_status`] and [`push_field`] append fields to a self-contained block that needs no
//! table; this block can be discarded or queued. [`Encoder::compress`] converts it to the block to send. It must be called in the
//! order of sending, because it changes the table of the connection.

use super::TABLE_BYTES_DEFAULT;
use super::static_table::STATIC;
use crate::bytes::with_decimal;
use crate::multiplexed::coding::{integer, push_integer, push_text};
use crate::multiplexed::table::Table;
use crate::multiplexed::{BlockWriter, KnownField};

/// Appends `:status`, which must be first.
pub fn push_status(out: &mut Vec<u8>, code: u16) {
    let known = match code {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => 0,
    };
    if known > 0 {
        out.push(0x80 | known);
        return;
    }
    let digit = |weight: u16| b'0' + (code / weight % 10) as u8;
    out.extend_from_slice(&[8, 3, digit(100), digit(10), digit(1)]);
}

/// Appends the pseudo-header fields of a request (RFC 9113 section 8.3.1), which must be first. Returns the position of the target
/// in `out`.
pub fn push_request(
    out: &mut Vec<u8>,
    method: &[u8],
    scheme: &[u8],
    target: &[u8],
    authority: &[u8],
) -> usize {
    match method {
        b"GET" => out.push(0x82),
        b"POST" => out.push(0x83),
        _ => push_indexed(out, 2, method),
    }
    match scheme {
        b"http" => out.push(0x86),
        b"https" => out.push(0x87),
        _ => push_indexed(out, 6, scheme),
    }
    push_indexed(out, 4, target);
    let start = out.len() - target.len();
    if !authority.is_empty() {
        push_indexed(out, 1, authority);
    }
    start
}

/// Indices in the static table of the names that a server writes itself.
pub mod known {
    /// `accept-ranges`
    pub const ACCEPT_RANGES: usize = 18;
    /// `content-length`
    pub const CONTENT_LENGTH: usize = 28;
    /// `content-type`
    pub const CONTENT_TYPE: usize = 31;
    /// `date`
    pub const DATE: usize = 33;
    /// `etag`
    pub const ETAG: usize = 34;
    /// `last-modified`
    pub const LAST_MODIFIED: usize = 44;
    /// `location`
    pub const LOCATION: usize = 46;
    /// `server`
    pub const SERVER: usize = 54;
    /// `vary`
    pub const VARY: usize = 59;
}

/// Returns the name with this index in the static table; empty if the index is invalid.
#[must_use]
pub fn indexed_name(index: usize) -> &'static [u8] {
    index.checked_sub(1).and_then(|index| STATIC.get(index)).map_or(b"", |(name, _)| name.as_bytes())
}

/// Appends a field whose name has this index in the static table.
pub fn push_indexed(out: &mut Vec<u8>, index: usize, value: &[u8]) {
    push_integer(out, 0, 4, index);
    push_integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// Works like [`push_indexed`], for a number.
pub fn push_indexed_decimal(out: &mut Vec<u8>, index: usize, value: u64) {
    with_decimal(value, |digits| push_indexed(out, index, digits));
}

/// Appends a field; its name is converted to lower case (RFC 9113 section 8.2).
pub fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    push_literal(out, 0, name, value);
}

/// Appends a field as never indexed (RFC 7541 section 7.1.3).
pub fn push_never_indexed(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    push_literal(out, NEVER, name, value);
}

/// First byte, with index 0, of a field that is never indexed (RFC 7541 section 6.2.3).
const NEVER: u8 = 0x10;

#[inline]
fn push_literal(out: &mut Vec<u8>, first: u8, name: &[u8], value: &[u8]) {
    match static_name(name) {
        Some(index) => push_integer(out, first, 4, index),
        None => {
            out.push(first);
            push_integer(out, 0, 7, name.len());
            let start = out.len();
            out.extend_from_slice(name);
            out[start..].make_ascii_lowercase();
        }
    }
    push_integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// Returns the index of a name in the static table; `None` for names that are seldom sent.
fn static_name(name: &[u8]) -> Option<usize> {
    let candidates: &[usize] = match (name.len(), name.first()? | 0x20) {
        (3, b'a') => &[21],
        (3, b'v') => &[60],
        (4, b'd') => &[33],
        (4, b'e') => &[34],
        (4, b'l') => &[45],
        (4, b'v') => &[59],
        (5, b'a') => &[22],
        (5, b'r') => &[50],
        (6, b'a') => &[19],
        (6, b'c') => &[32],
        (6, b's') => &[54],
        (7, b'e') => &[36],
        (7, b'r') => &[51, 52],
        (8, b'l') => &[46],
        (10, b's') => &[55],
        (10, b'u') => &[58],
        (11, b'r') => &[53],
        (12, b'c') => &[31],
        (13, b'a') => &[18, 23],
        (13, b'c') => &[24, 30],
        (13, b'i') => &[41],
        (13, b'l') => &[44],
        (14, b'c') => &[28],
        (15, b'a') => &[16, 17],
        (16, b'c') => &[26, 27, 29],
        (16, b'w') => &[61],
        (17, b'i') => &[40],
        (18, b'p') => &[48],
        (19, b'c') => &[25],
        (19, b'p') => &[49],
        (25, b's') => &[56],
        (27, b'a') => &[20],
        _ => &[],
    };
    let is_it = |index: &&usize| STATIC[**index - 1].0.as_bytes().eq_ignore_ascii_case(name);
    candidates.iter().find(is_it).copied()
}

/// Writer of blocks for HTTP/2.
#[derive(Clone, Copy, Debug)]
pub struct Hpack;

impl Hpack {
    /// Returns the index of a known name in the static table.
    fn index(name: KnownField) -> usize {
        match name {
            KnownField::AcceptRanges => known::ACCEPT_RANGES,
            KnownField::ContentLength => known::CONTENT_LENGTH,
            KnownField::ContentType => known::CONTENT_TYPE,
            KnownField::Date => known::DATE,
            KnownField::ETag => known::ETAG,
            KnownField::LastModified => known::LAST_MODIFIED,
            KnownField::Location => known::LOCATION,
            KnownField::Server => known::SERVER,
            KnownField::Vary => known::VARY,
        }
    }
}

impl BlockWriter for Hpack {
    fn push_status(out: &mut Vec<u8>, code: u16) {
        push_status(out, code);
    }

    fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        push_field(out, name, value);
    }

    fn push_never_indexed(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        push_never_indexed(out, name, value);
    }

    #[inline]
    fn push_known(out: &mut Vec<u8>, name: KnownField, value: &[u8]) {
        push_indexed(out, Hpack::index(name), value);
    }

    #[inline]
    fn push_known_decimal(out: &mut Vec<u8>, name: KnownField, value: u64) {
        push_indexed_decimal(out, Hpack::index(name), value);
    }
}

/// Whether values of the name with this index are excluded from the table. Lengths, entity tags, dates and locations are seldom
/// repeated. Cookies and credentials are secrets: one user could guess those of another user on the same connection from the
/// length of sent blocks (RFC 7541 section 7.1).
fn is_forgotten(index: usize) -> bool {
    // :path, authorization, content-length, content-location, content-range, cookie, etag, if-modified-since, if-none-match,
    // last-modified, location, proxy-authorization, set-cookie
    matches!(index, 4 | 23 | 28 | 29 | 30 | 32 | 34 | 40 | 41 | 44 | 46 | 49 | 55)
}

/// Maximum number of table entries that are searched: a server repeats only a few fields.
const ENTRIES_MAX: usize = 32;

/// Maximum size in bytes of a field in the table: longer fields would evict the others.
const ENTRY_BYTES_MAX: usize = 512;

/// Minimum length in bytes of values that are Huffman-coded although they are not added to the table.
const HUFFMAN_MIN: usize = 32;

/// Encoder state of one direction of a connection.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// Hashes of the searched entries, the newest last: one comparison excludes most entries.
    marks: Vec<u32>,
    /// The smallest size of the table since the last block; announced to the peer if it changed.
    smallest: Option<usize>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { table: Table::new(TABLE_BYTES_DEFAULT), marks: Vec::new(), smallest: None }
    }
}

impl Encoder {
    /// Sets the table size that the peer permits; sizes above the default are not used.
    pub fn set_limit(&mut self, bytes: usize) {
        let bytes = bytes.min(TABLE_BYTES_DEFAULT);
        if bytes != self.table.max() {
            self.smallest = Some(self.smallest.unwrap_or(usize::MAX).min(bytes));
            self.table.set_max(bytes);
            self.forget_marks();
        }
    }

    /// Retains the hashes of entries that exist and are searched. Older entries stay in the table.
    fn forget_marks(&mut self) {
        let kept = self.table.len().min(ENTRIES_MAX);
        self.marks.drain(..self.marks.len().saturating_sub(kept));
    }

    /// Appends the compressed form of a block that [`push_status`] and [`push_field`] created.
    pub fn compress(&mut self, block: &[u8], out: &mut Vec<u8>) {
        // RFC 7541 section 4.2: the smallest size, then the final one.
        if let Some(smallest) = self.smallest.take() {
            push_integer(out, 0x20, 5, smallest);
            if smallest != self.table.max() {
                push_integer(out, 0x20, 5, self.table.max());
            }
        }
        let mut at = 0;
        while let Some(&first) = block.get(at) {
            if first >= 0x80 {
                out.push(first);
                at += 1;
                continue;
            }
            let Some((field, end)) = Literal::read(block, at) else { return };
            if first & NEVER == 0 && self.may_keep(&field) {
                self.push(&field, out);
            } else if field.value.len() < HUFFMAN_MIN {
                // The block has the field in its final form.
                out.extend_from_slice(&block[at..end]);
            } else {
                push_name(out, first & NEVER, 4, &field, false);
                push_text(out, 0, 7, field.value, true);
            }
            at = end;
        }
    }

    /// Whether a field may be added to the table.
    fn may_keep(&self, field: &Literal<'_>) -> bool {
        !is_forgotten(field.index) && field.len() <= ENTRY_BYTES_MAX && self.table.max() > 0
    }

    /// Appends the index of a field in the table, or the field itself, which is then added to the table.
    fn push(&mut self, field: &Literal<'_>, out: &mut Vec<u8>) {
        let mark = field.mark();
        let mut newest_first = self.marks.iter().rev().enumerate();
        let is_it = |&(index, &other): &(usize, &u32)| other == mark && field.is(self.table.get(index));
        if let Some((index, _)) = newest_first.find(is_it) {
            return push_integer(out, 0x80, 7, index + 1 + STATIC.len());
        }
        push_name(out, 0x40, 6, field, true);
        push_text(out, 0, 7, field.value, true);
        self.table.add(field.name, field.value);
        self.marks.push(mark);
        self.forget_marks();
    }
}

/// A field of a self-contained block.
struct Literal<'a> {
    /// The index of its name in the static table; 0 without one.
    index: usize,
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Literal<'a> {
    fn read(block: &'a [u8], start: usize) -> Option<(Literal<'a>, usize)> {
        let (index, used) = integer(block.get(start..)?, 4).ok()?;
        let at = start + used;
        let (name, at) = match index {
            0 => plain(block, at)?,
            index => (STATIC.get(index - 1)?.0.as_bytes(), at),
        };
        let (value, at) = plain(block, at)?;
        Some((Literal { index, name, value }, at))
    }

    fn len(&self) -> usize {
        self.name.len() + self.value.len()
    }

    /// Returns a hash that differs for nearly all different fields: few values have equal ends.
    fn mark(&self) -> u32 {
        let name = if self.index == 0 { ends(self.name) } else { self.index as u64 };
        let lengths = (self.name.len() << 16 ^ self.value.len()) as u64;
        let mark = (name ^ ends(self.value).rotate_left(5) ^ lengths).wrapping_mul(0x517c_c1b7_2722_0a95);
        (mark >> 32) as u32
    }

    fn is(&self, entry: Option<(&[u8], &[u8])>) -> bool {
        entry.is_some_and(|(name, value)| name == self.name && value == self.value)
    }
}

/// Returns the first and last bytes of a string as a number.
fn ends(text: &[u8]) -> u64 {
    match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(first), Some(last)) => u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29),
        _ => text.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)),
    }
}

/// Returns a string without Huffman coding, and its end.
fn plain(block: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let (len, used) = integer(block.get(start..)?, 7).ok()?;
    let end = start + used + len;
    Some((block.get(start + used..end)?, end))
}

fn push_name(out: &mut Vec<u8>, first: u8, prefix: u32, field: &Literal<'_>, huffman: bool) {
    push_integer(out, first, prefix, field.index);
    if field.index == 0 {
        push_text(out, 0, 7, field.name, huffman);
    }
}
