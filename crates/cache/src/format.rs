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
//! A slot is a [`Header`] and the texts behind it:
//!
//! ```text
//!   0 magic and version   8 B     28 status              2 B      72 length               8 B
//!   8 room                4 B     30 initial age, ms     2 B      80 response time, ms    8 B
//!  12 layout              4 B     32 flags of the caller 4 B      88 fresh until          8 B
//!  16 checksum, crc32c    4 B     36 initial age, s      4 B      96 while revalidating   8 B
//!  20 used                4 B     40 nonce               8 B     104 if error             8 B
//!  24 generation          4 B     48 sequence            8 B     112 last modified        8 B
//!                                 56 body                8 B     120 primary key         16 B
//!                                 64 table               8 B     136 lengths of the texts 6*4 B
//! 160 key text, variant, Vary, head, tags, entity tag
//! ```
//!
//! Checksums are CRC-32C (RFC 9260 appendix A), computed with the widest instructions of the CPU.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crc_fast::{CrcAlgorithm, Digest};
use http::response::parse::{ParsedResponse, parse_written};

use crate::key::Key;
use crate::meta::{HEAD_BYTES_MAX, Meta, TAGS_BYTES_MAX, TEXT_BYTES_MAX};

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

/// The first bytes of an entry; the last byte is the version of the format.
const MAGIC: [u8; 8] = *b"rrcache\x02";

/// Version 1, which has times in seconds. Its entries are read, and rewritten slots have the current version.
const MAGIC_SECONDS: [u8; 8] = *b"rrcache\x01";

/// Whether a file or slot begins with the magic number of a version that is read.
fn is_known(bytes: &[u8]) -> bool {
    bytes[..8] == MAGIC || bytes[..8] == MAGIC_SECONDS
}

/// Bytes of the header before the texts.
pub(crate) const FIXED_BYTES: usize = 160;

/// Bytes that never change while the entry exists, so that they are valid even in a torn slot.
const STABLE_BYTES: usize = 16;

/// Value of an absent date.
const NO_DATE: i64 = i64::MIN;

/// Number of texts behind the header.
const TEXTS: usize = 6;

/// Maximum length in bytes of texts without another limit: variant, Vary, entity tag.
pub(crate) const SHORT_TEXT_MAX: usize = 16 << 10;

/// Positions of the sections of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes from the start of slot A to the start of slot B; in a small entry, which has no slot B, the size of the
    /// slot.
    pub(crate) slot_bytes: u32,
    pub(crate) is_small: bool,
    /// Whether the entry was partial when it was created; all missing parts may have been stored since.
    pub(crate) is_partial: bool,
    pub(crate) table: u64,
    pub(crate) body: u64,
}

const LAYOUT_SMALL: u32 = 1;
const LAYOUT_PARTIAL: u32 = 2;

/// Number of records that fit between the slots and a body of unknown length.
const RECORDS_UNKNOWN: u64 = ALIGN / RECORD_BYTES;

impl Layout {
    /// Returns the layout of a small entry with a slot of `used` bytes.
    pub(crate) fn small(used: usize, length: u64) -> Layout {
        let slot_bytes = (used as u64).next_multiple_of(8);
        let body = slot_bytes + chunks_of(length) * RECORD_BYTES;
        let layout = Layout {
            slot_bytes: slot_bytes as u32,
            is_small: true,
            is_partial: false,
            table: slot_bytes,
            body,
        };
        debug_assert!(layout.is_sound(used as u64, length), "{layout:?}");
        layout
    }

    /// Returns the layout of a large entry. Slots have a quarter of spare space for header fields that a 304 adds. They
    /// share no sector: writing one leaves the other intact, even if the write is torn. With usual header sections,
    /// both slots and the table fit into one block.
    pub(crate) fn large(used: usize, length: Option<u64>, is_partial: bool) -> Layout {
        let slot_bytes = (used as u64 + used as u64 / 4 + 256).next_multiple_of(SECTOR_BYTES);
        let records = length.map_or(RECORDS_UNKNOWN, chunks_of);
        let table = 2 * slot_bytes;
        let body = (table + records * RECORD_BYTES).next_multiple_of(ALIGN);
        debug_assert!(used as u64 <= slot_bytes && table + records * RECORD_BYTES <= body);
        Layout { slot_bytes: slot_bytes as u32, is_small: false, is_partial, table, body }
    }

    /// Returns the layout once the length is known: a table that does not fit before the body is put behind it.
    pub(crate) fn with_length(self, length: u64) -> Layout {
        if self.table + chunks_of(length) * RECORD_BYTES <= self.body {
            return self;
        }
        debug_assert!(!self.is_small && !self.is_partial, "the length was known at the start");
        Layout { table: (self.body + length).next_multiple_of(ALIGN), ..self }
    }

    /// Returns the size of the file with a complete body.
    pub(crate) fn file_bytes(&self, length: u64) -> u64 {
        let body = self.body + length;
        body.max(self.table + chunks_of(length) * RECORD_BYTES)
    }

    fn bits(&self) -> u32 {
        let small = if self.is_small { LAYOUT_SMALL } else { 0 };
        small | if self.is_partial { LAYOUT_PARTIAL } else { 0 }
    }

    /// Whether the positions are those that the functions above compute, so that no sections overlap.
    fn is_sound(&self, used: u64, length: u64) -> bool {
        let table_end = self.table.saturating_add(chunks_of(length) * RECORD_BYTES);
        let slot_bytes = u64::from(self.slot_bytes);
        if self.is_small {
            return length <= CHUNK_BYTES
                && !self.is_partial
                && slot_bytes == used.next_multiple_of(8)
                && self.table == slot_bytes
                && self.body == table_end;
        }
        let before = self.table == 2 * slot_bytes && table_end <= self.body;
        let behind = self.body.saturating_add(length).checked_next_multiple_of(ALIGN) == Some(self.table);
        used <= slot_bytes
            && slot_bytes.is_multiple_of(SECTOR_BYTES)
            && self.body.is_multiple_of(ALIGN)
            && self.body >= 2 * slot_bytes
            && self.body <= LENGTH_MAX
            && (before || behind)
    }
}

/// A decoded header, with the positions of its texts in the encoded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) layout: Layout,
    pub(crate) generation: u32,
    /// Whether it was decoded from slot B.
    pub(crate) is_second: bool,
    pub(crate) nonce: u64,
    pub(crate) sequence: u64,
    pub(crate) length: u64,
    pub(crate) primary: Key,
    pub(crate) meta: Arc<Meta>,
    pub(crate) text: Range<usize>,
    pub(crate) head: Range<usize>,
    /// See [`Header::parsed_head`].
    pub(crate) parsed_head: OnceLock<Option<Arc<ParsedResponse>>>,
}

impl Header {
    /// Returns the range of the body in the file.
    pub(crate) fn body_range(&self) -> Range<u64> {
        self.layout.body..self.layout.body + self.length
    }

    /// Returns the parsed header section of the response, whose spans refer to the bytes of `head`. It is parsed once:
    /// each call passes the bytes that the header was decoded from. `None` if another program wrote an invalid header
    /// section.
    pub(crate) fn parsed_head(&self, bytes: &[u8]) -> Option<&Arc<ParsedResponse>> {
        self.parsed_head.get_or_init(|| parse_written(&bytes[self.head.clone()]).map(Arc::new)).as_ref()
    }
}

/// Input of [`encode`] in addition to the metadata and the texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) layout: Layout,
    pub(crate) generation: u32,
    pub(crate) nonce: u64,
    pub(crate) sequence: u64,
    pub(crate) length: u64,
    pub(crate) primary: Key,
}

/// Returns the size of a slot with these texts.
pub(crate) fn used_bytes(text: &[u8], head: &[u8], meta: &Meta) -> usize {
    let lens =
        [text.len(), meta.variant.len(), meta.vary.len(), head.len(), meta.tags.len(), meta.etag.len()];
    FIXED_BYTES + lens.iter().sum::<usize>()
}

/// Whether the texts are short enough to be stored.
pub(crate) fn is_storable(text: &[u8], head: &[u8], meta: &Meta) -> bool {
    let short = [&meta.variant, &meta.vary, &meta.etag].iter().all(|text| text.len() <= SHORT_TEXT_MAX);
    short
        && text.len() <= TEXT_BYTES_MAX
        && head.len() <= HEAD_BYTES_MAX
        && meta.tags.len() <= TAGS_BYTES_MAX
        && meta.length.is_none_or(|length| length <= LENGTH_MAX)
}

/// Appends an encoded slot.
pub(crate) fn encode(identity: &Identity, text: &[u8], head: &[u8], meta: &Meta, out: &mut Vec<u8>) {
    let start = out.len();
    let used = used_bytes(text, head, meta) as u32;
    assert!(used <= identity.layout.slot_bytes, "{used} bytes of a slot of {}", identity.layout.slot_bytes);
    let texts: [&[u8]; TEXTS] = [text, &meta.variant, &meta.vary, head, &meta.tags, &meta.etag];
    out.reserve(used as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&identity.layout.slot_bytes.to_le_bytes());
    out.extend_from_slice(&identity.layout.bits().to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&used.to_le_bytes());
    out.extend_from_slice(&identity.generation.to_le_bytes());
    out.extend_from_slice(&meta.status.to_le_bytes());
    // Seconds and milliseconds are separate: 32 bits do not hold the milliseconds of long ages.
    let age_ms = meta.initial_age_ms.clamp(0, i64::from(u32::MAX) * 1000);
    out.extend_from_slice(&((age_ms % 1000) as u16).to_le_bytes());
    out.extend_from_slice(&meta.flags.to_le_bytes());
    out.extend_from_slice(&((age_ms / 1000) as u32).to_le_bytes());
    for number in
        [identity.nonce, identity.sequence, identity.layout.body, identity.layout.table, identity.length]
    {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let dates = [
        meta.response_time_ms,
        meta.fresh_until_ms,
        meta.stale_while_revalidate_until_ms,
        meta.stale_if_error_until_ms,
        meta.last_modified.unwrap_or(NO_DATE),
    ];
    dates.iter().for_each(|date| out.extend_from_slice(&date.to_le_bytes()));
    out.extend_from_slice(&identity.primary.0);
    texts.iter().for_each(|text| out.extend_from_slice(&(text.len() as u32).to_le_bytes()));
    debug_assert_eq!(out.len() - start, FIXED_BYTES);
    texts.iter().for_each(|text| out.extend_from_slice(text));
    assert!(out.len() - start == used as usize, "the texts fill the slot");
    let crc = slot_checksum(&out[start..]);
    out[start + 16..start + 20].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the checksum of a slot: of all its bytes except the checksum field.
fn slot_checksum(slot: &[u8]) -> u32 {
    crc32c_append(crc32c(&slot[..STABLE_BYTES]), &slot[STABLE_BYTES + 4..])
}

/// The reason why a header cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The input is too short: this many bytes from the start of the file are needed.
    More(usize),
    /// The header is damaged.
    Damaged(Damage),
}

/// Decodes the header from the first bytes of a file.
pub(crate) fn decode(bytes: &[u8]) -> Result<Header, Unread> {
    if bytes.len() < STABLE_BYTES {
        return Err(Unread::More(FIXED_BYTES));
    }
    if !is_known(bytes) {
        return Err(Unread::Damaged(Damage::Magic));
    }
    let (slot_bytes, bits) = (number_u32(bytes, 8), number_u32(bytes, 12));
    if bits & LAYOUT_SMALL != 0 {
        return slot(bytes, 0);
    }
    let slot_bytes = slot_bytes as usize;
    // Slot B may have the newer header; it is at most as long as slot A.
    if !(slot_bytes as u64).is_multiple_of(SECTOR_BYTES) || slot_bytes == 0 || slot_bytes > slot_bytes_max() {
        return Err(Unread::Damaged(Damage::Layout));
    }
    if bytes.len() < 2 * slot_bytes {
        return Err(Unread::More(2 * slot_bytes));
    }
    let (first, second) = (slot(bytes, 0), slot(bytes, slot_bytes));
    match (first, second) {
        (Ok(first), Ok(second)) if is_newer(second.generation, first.generation) => Ok(second),
        (Ok(first), _) => Ok(first),
        (Err(_), Ok(second)) => Ok(second),
        // Both slots are complete, so more bytes cannot help.
        (Err(Unread::More(_)), Err(_)) => Err(Unread::Damaged(Damage::Header)),
        (Err(first), Err(_)) => Err(first),
    }
}

/// Returns the maximum size of a slot: all texts at their limits.
fn slot_bytes_max() -> usize {
    let used = FIXED_BYTES + TEXT_BYTES_MAX + HEAD_BYTES_MAX + TAGS_BYTES_MAX + 3 * SHORT_TEXT_MAX;
    Layout::large(used, None, false).slot_bytes as usize
}

/// Whether generation `one` is newer than `other`; generations may wrap.
fn is_newer(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

/// Decodes the slot that starts at `start`.
fn slot(file: &[u8], start: usize) -> Result<Header, Unread> {
    let damaged = |damage| Err(Unread::Damaged(damage));
    let bytes = &file[start..];
    if bytes.len() < FIXED_BYTES {
        return Err(Unread::More(start + FIXED_BYTES));
    }
    if !is_known(bytes) {
        return damaged(Damage::Header);
    }
    let used = number_u32(bytes, 20) as usize;
    if !(FIXED_BYTES..=slot_bytes_max()).contains(&used) {
        return damaged(Damage::Header);
    }
    if bytes.len() < used {
        return Err(Unread::More(start + used));
    }
    if slot_checksum(&bytes[..used]) != number_u32(bytes, 16) {
        return damaged(Damage::Header);
    }
    let Some(texts) = texts(bytes, used) else { return damaged(Damage::Layout) };
    let bits = number_u32(bytes, 12);
    let layout = Layout {
        slot_bytes: number_u32(bytes, 8),
        is_small: bits & LAYOUT_SMALL != 0,
        is_partial: bits & LAYOUT_PARTIAL != 0,
        body: number_u64(bytes, 56),
        table: number_u64(bytes, 64),
    };
    let length = number_u64(bytes, 72);
    let is_placed = start == 0 || start == layout.slot_bytes as usize;
    if length > LENGTH_MAX || !is_placed || !layout.is_sound(used as u64, length) {
        return damaged(Damage::Layout);
    }
    let (text, head) = (texts[0].clone(), texts[3].clone());
    let shift = |range: Range<usize>| range.start + start..range.end + start;
    Ok(Header {
        layout,
        generation: number_u32(bytes, 24),
        is_second: start > 0,
        nonce: number_u64(bytes, 40),
        sequence: number_u64(bytes, 48),
        length,
        primary: Key(bytes[120..136].try_into().expect("a range of 16 bytes has 16")),
        meta: Arc::new(meta(bytes, length, texts)),
        text: shift(text),
        head: shift(head),
        parsed_head: OnceLock::new(),
    })
}

/// Decodes the metadata of a slot whose texts are at `texts`.
fn meta(bytes: &[u8], length: u64, texts: [Range<usize>; TEXTS]) -> Meta {
    let [_, variant, vary, _, tags, etag] = texts;
    let last_modified = date(bytes, 112);
    let unit = if bytes[..8] == MAGIC_SECONDS { 1000 } else { 1 };
    let date_ms = |at| date(bytes, at).saturating_mul(unit);
    let age_part_ms = i64::from(u16::from_le_bytes([bytes[30], bytes[31]]));
    Meta {
        status: u16::from_le_bytes([bytes[28], bytes[29]]),
        response_time_ms: date(bytes, 80),
        initial_age_ms: i64::from(number_u32(bytes, 36)) * 1000 + age_part_ms,
        fresh_until_ms: date_ms(88),
        stale_while_revalidate_until_ms: date_ms(96),
        stale_if_error_until_ms: date_ms(104),
        flags: number_u32(bytes, 32),
        length: Some(length),
        etag: bytes[etag].to_vec(),
        last_modified: (last_modified != NO_DATE).then_some(last_modified),
        vary: bytes[vary].to_vec(),
        variant: bytes[variant].to_vec(),
        tags: bytes[tags].to_vec(),
    }
}

/// Returns the positions of the texts in a slot of `used` bytes; `None` when they do not fill it exactly.
fn texts(bytes: &[u8], used: usize) -> Option<[Range<usize>; TEXTS]> {
    let mut texts = [const { 0..0 }; TEXTS];
    let mut start = FIXED_BYTES;
    for (index, text) in texts.iter_mut().enumerate() {
        let end = start.checked_add(number_u32(bytes, 136 + 4 * index) as usize)?;
        if end > used {
            return None;
        }
        *text = start..end;
        start = end;
    }
    (start == used).then_some(texts)
}

fn number_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a range of 4 bytes has 4"))
}

fn number_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a range of 8 bytes has 8"))
}

fn date(bytes: &[u8], at: usize) -> i64 {
    number_u64(bytes, at) as i64
}

/// Returns the checksum of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the checksum of the bytes with the checksum `crc`, followed by `more`.
pub(crate) fn crc32c_append(crc: u32, more: &[u8]) -> u32 {
    // A checksum is the inverted state of the CRC register (RFC 9260 appendix A).
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(more);
    digest.finalize() as u32
}

/// Size of a record in bytes.
pub(crate) const RECORD_BYTES: u64 = 8;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(ALIGN), "chunks start where direct I/O can");

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
    crc32c(&text).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meta() -> Meta {
        Meta {
            status: 200,
            response_time_ms: 1_700_000_000_123,
            initial_age_ms: 7_123,
            fresh_until_ms: 1_700_000_600_456,
            stale_while_revalidate_until_ms: 1_700_000_700_789,
            stale_if_error_until_ms: 0,
            flags: 0xa5,
            length: Some(200_000),
            etag: b"\"abc\"".to_vec(),
            last_modified: None,
            vary: b"accept-encoding".to_vec(),
            variant: b"gzip".to_vec(),
            tags: b"one two".to_vec(),
        }
    }

    fn identity(layout: Layout, generation: u32) -> Identity {
        let primary = Key::of(b"the key");
        Identity { layout, generation, nonce: 99, sequence: 5, length: 200_000, primary }
    }

    /// Returns both slots and the start of the table of a large entry.
    fn large(first: Option<u32>, second: Option<u32>) -> Vec<u8> {
        let used = used_bytes(b"the key", b"the head", &meta());
        let layout = Layout::large(used, Some(200_000), false);
        let mut file = vec![0; layout.body as usize];
        for (generation, start) in [(first, 0), (second, layout.slot_bytes as usize)] {
            let Some(generation) = generation else { continue };
            let mut slot = Vec::new();
            encode(&identity(layout, generation), b"the key", b"the head", &meta(), &mut slot);
            file[start..start + slot.len()].copy_from_slice(&slot);
        }
        file
    }

    #[test]
    fn a_header_is_decoded_as_it_was_encoded() {
        let file = large(Some(1), None);
        let header = decode(&file).unwrap();
        assert_eq!(*header.meta, meta());
        assert_eq!(
            (&file[header.text.clone()], &file[header.head.clone()]),
            (&b"the key"[..], &b"the head"[..])
        );
        assert_eq!((header.nonce, header.sequence, header.is_second), (99, 5, false));
        assert_eq!(header.primary, Key::of(b"the key"));
        let slot_bytes = header.layout.slot_bytes as usize;
        assert_eq!(decode(&file[..slot_bytes]), Err(Unread::More(2 * slot_bytes)), "slot B may be the one");
        assert_eq!(decode(&file[..3]), Err(Unread::More(FIXED_BYTES)));
    }

    #[test]
    fn the_newer_valid_slot_is_used() {
        let generation = |file: &[u8]| decode(file).map(|header| (header.generation, header.is_second));
        assert_eq!(generation(&large(Some(1), Some(2))), Ok((2, true)));
        assert_eq!(generation(&large(Some(3), Some(2))), Ok((3, false)));
        assert_eq!(generation(&large(Some(0), Some(u32::MAX))), Ok((0, false)), "they wrap");
        let used = used_bytes(b"the key", b"the head", &meta());
        let slot_bytes = Layout::large(used, Some(200_000), false).slot_bytes as usize;
        for torn_at in (STABLE_BYTES..400).step_by(7) {
            let mut file = large(Some(3), Some(2));
            file[torn_at..slot_bytes].fill(0xee);
            let expected = if torn_at < used { 2 } else { 3 };
            assert_eq!(generation(&file).map(|(number, _)| number), Ok(expected), "torn at {torn_at}");
        }
        assert_eq!(generation(&large(None, None)), Err(Unread::Damaged(Damage::Magic)));
    }

    #[test]
    fn tables_are_placed_where_they_fit() {
        let small = Layout::small(300, 10);
        assert_eq!((small.slot_bytes, small.table, small.body), (304, 304, 312));
        assert_eq!(Layout::small(304, 0).body, 304);
        let unknown = Layout::large(300, None, false);
        assert_eq!((unknown.slot_bytes, unknown.table, unknown.body), (1024, 2048, 8192));
        let most = (8192 - 2048) / RECORD_BYTES;
        assert_eq!(unknown.with_length(most * CHUNK_BYTES), unknown);
        let long = unknown.with_length(most * CHUNK_BYTES + 1);
        assert_eq!(long.table, long.body + most * CHUNK_BYTES + ALIGN);
        assert!(long.is_sound(300, most * CHUNK_BYTES + 1));
        let known = Layout::large(300, Some(1 << 30), true);
        assert_eq!(known.with_length(1 << 30), known);
        assert_eq!((known.slot_bytes, known.table, known.body), (1024, 2048, 4096 + (8 << 14)));
        assert_eq!(Layout::large(1000, Some(16 << 20), false).body, 8192, "one read of a usual prefix");
    }

    /// Caches of earlier versions stay usable.
    #[test]
    fn entries_with_times_in_seconds_are_read() {
        let seconds = Meta { initial_age_ms: 7_000, fresh_until_ms: 1_700_000_600, ..meta() };
        let layout = Layout::large(used_bytes(b"the key", b"the head", &seconds), Some(200_000), false);
        let mut file = Vec::new();
        encode(&identity(layout, 1), b"the key", b"the head", &seconds, &mut file);
        file[..8].copy_from_slice(&MAGIC_SECONDS);
        let crc = slot_checksum(&file[..number_u32(&file, 20) as usize]);
        file[16..20].copy_from_slice(&crc.to_le_bytes());
        file.resize(2 * layout.slot_bytes as usize, 0);
        let read = decode(&file).expect("the version is known").meta;
        assert_eq!((read.initial_age_ms, read.fresh_until_ms), (7_000, 1_700_000_600_000));
    }

    /// Found by the fuzz target `entry_header`: the sum overflowed.
    #[test]
    fn an_overflowing_body_offset_is_damage() {
        let used = used_bytes(b"the key", b"the head", &meta());
        let layout = Layout { body: u64::MAX - 5, ..Layout::large(used, Some(200_000), false) };
        let mut file = Vec::new();
        encode(&identity(layout, 1), b"the key", b"the head", &meta(), &mut file);
        file.resize(2 * layout.slot_bytes as usize, 0);
        assert_eq!(decode(&file), Err(Unread::Damaged(Damage::Layout)));
    }

    proptest! {
        #[test]
        fn modified_headers_are_refused(place in 0usize..600, value in any::<u8>(), len in 0usize..5000) {
            let mut file = large(Some(1), None);
            let used = used_bytes(b"the key", b"the head", &meta());
            let changed = file[place] != value && place < used;
            file[place] = value;
            match decode(&file[..len.min(file.len())]) {
                Ok(header) => prop_assert!(!changed && *header.meta == meta()),
                // A changed `slot_bytes` field may point behind the end of the file, which the reader of the file detects.
                Err(Unread::More(wanted)) => {
                    prop_assert!(wanted > len.min(file.len()) && (len < file.len() || changed));
                }
                Err(Unread::Damaged(_)) => prop_assert!(changed),
            }
        }

        #[test]
        fn arbitrary_bytes_are_decoded_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut file = MAGIC.to_vec();
            file.extend(bytes);
            let _ = decode(&file);
        }
    }

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
            assert_eq!(crc32c(bytes), crc);
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
            prop_assert_eq!(crc32c(bytes), plainly(bytes));
            prop_assert_eq!(crc32c_append(crc32c(front), back), plainly(bytes));
        }
    }
}
