//! The header of an entry and the texts behind it: [`Header`], encoded as a slot.
//!
//! ```text
//!   0 magic and version   8 B     28 status              2 B      72 length               8 B
//!   8 room                4 B     30 zero                2 B      80 response time, ms    8 B
//!  12 layout              4 B     32 flags of the caller 4 B      88 fresh until          8 B
//!  16 checksum, crc32c    4 B     36 initial age         4 B      96 while revalidating   8 B
//!  20 used                4 B     40 nonce               8 B     104 if error             8 B
//!  24 generation          4 B     48 sequence            8 B     112 last modified        8 B
//!                                 56 body                8 B     120 primary key         16 B
//!                                 64 table               8 B     136 lengths of the texts 6*4 B
//! 160 key text, variant, Vary, head, tags, entity tag
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::crc32c::RECORD_BYTES;
use super::{ALIGN, CHUNK_BYTES, Damage, LENGTH_MAX, SECTOR_BYTES, chunks_of};
use crate::format::crc32c;
use crate::key::Key;
use crate::meta::{HEAD_BYTES_MAX, Meta, TAGS_BYTES_MAX, TEXT_BYTES_MAX};

/// The first bytes of an entry; the last byte is the version of the format.
const MAGIC: [u8; 8] = *b"rrcache\x01";

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
    pub(crate) fn settle(self, length: u64) -> Layout {
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
}

impl Header {
    /// Returns the range of the body in the file.
    pub(crate) fn body_range(&self) -> Range<u64> {
        self.layout.body..self.layout.body + self.length
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
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&meta.flags.to_le_bytes());
    out.extend_from_slice(&meta.initial_age.to_le_bytes());
    for number in
        [identity.nonce, identity.sequence, identity.layout.body, identity.layout.table, identity.length]
    {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let dates = [
        meta.response_time_ms,
        meta.fresh_until,
        meta.stale_while_revalidate_until,
        meta.stale_if_error_until,
        meta.last_modified.unwrap_or(NO_DATE),
    ];
    dates.iter().for_each(|date| out.extend_from_slice(&date.to_le_bytes()));
    out.extend_from_slice(&identity.primary.0);
    texts.iter().for_each(|text| out.extend_from_slice(&(text.len() as u32).to_le_bytes()));
    debug_assert_eq!(out.len() - start, FIXED_BYTES);
    texts.iter().for_each(|text| out.extend_from_slice(text));
    assert!(out.len() - start == used as usize, "the texts fill the slot");
    let crc = checksum(&out[start..]);
    out[start + 16..start + 20].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the checksum of a slot: of all its bytes except the checksum field.
fn checksum(slot: &[u8]) -> u32 {
    crc32c::append(crc32c::of(&slot[..STABLE_BYTES]), &slot[STABLE_BYTES + 4..])
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
    if bytes[..8] != MAGIC {
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
    if bytes[..8] != MAGIC {
        return damaged(Damage::Header);
    }
    let used = number_u32(bytes, 20) as usize;
    if !(FIXED_BYTES..=slot_bytes_max()).contains(&used) {
        return damaged(Damage::Header);
    }
    if bytes.len() < used {
        return Err(Unread::More(start + used));
    }
    if checksum(&bytes[..used]) != number_u32(bytes, 16) {
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
    })
}

/// Decodes the metadata of a slot whose texts are at `texts`.
fn meta(bytes: &[u8], length: u64, texts: [Range<usize>; TEXTS]) -> Meta {
    let [_, variant, vary, _, tags, etag] = texts;
    let last_modified = date(bytes, 112);
    Meta {
        status: u16::from_le_bytes([bytes[28], bytes[29]]),
        response_time_ms: date(bytes, 80),
        initial_age: number_u32(bytes, 36),
        fresh_until: date(bytes, 88),
        stale_while_revalidate_until: date(bytes, 96),
        stale_if_error_until: date(bytes, 104),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meta() -> Meta {
        Meta {
            status: 200,
            response_time_ms: 1_700_000_000_123,
            initial_age: 7,
            fresh_until: 1_700_000_600,
            stale_while_revalidate_until: 1_700_000_700,
            stale_if_error_until: 0,
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
        assert_eq!(unknown.settle(most * CHUNK_BYTES), unknown);
        let long = unknown.settle(most * CHUNK_BYTES + 1);
        assert_eq!(long.table, long.body + most * CHUNK_BYTES + ALIGN);
        assert!(long.is_sound(300, most * CHUNK_BYTES + 1));
        let known = Layout::large(300, Some(1 << 30), true);
        assert_eq!(known.settle(1 << 30), known);
        assert_eq!((known.slot_bytes, known.table, known.body), (1024, 2048, 4096 + (8 << 14)));
        assert_eq!(Layout::large(1000, Some(16 << 20), false).body, 8192, "one read of a usual prefix");
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
}
