//! Properties of the formats on disk, for the fuzz targets in `fuzz/`. Only the cargo feature `fuzzing` compiles this
//! file: the formats themselves stay private.

use crate::format::{self, FIXED_BYTES, Header, Identity, Unread, crc32c, crc32c_append, decode};
use crate::index::s3fifo::KeyBytes;
use crate::purge::{Log, Purge, PurgeEffect, Purges, Scope, Subject, encode};

/// The header of an entry: decodes raw bytes, and the same bytes behind a valid start and with a valid checksum.
///
/// # Panics
/// When one of these properties is violated: a decoded header can be encoded and decoded again without a change;
/// decoding a truncated header requests more bytes than there are; texts lie inside the bytes.
pub fn entry_header(bytes: &[u8]) {
    check_header(bytes);
    let mut file = bytes.to_vec();
    file.resize(file.len().max(FIXED_BYTES), 0);
    let slot_bytes = u32::from_le_bytes([file[8], file[9], file[10], file[11]]) as usize;
    repair(&mut file, 0);
    check_header(&file);
    // A second slot, at the offset that the first slot specifies.
    if slot_bytes.is_multiple_of(512) && slot_bytes + FIXED_BYTES <= file.len() {
        repair(&mut file, slot_bytes);
        check_header(&file);
    }
}

/// Gives the slot at `start` the magic number and the checksum of its content, which random changes would never find.
fn repair(file: &mut [u8], start: usize) {
    let slot = &mut file[start..];
    slot[..8].copy_from_slice(b"rrcache\x02");
    let used = u32::from_le_bytes([slot[20], slot[21], slot[22], slot[23]]) as usize;
    if (FIXED_BYTES..=slot.len()).contains(&used) {
        let crc = crc32c_append(crc32c(&slot[..16]), &slot[20..used]);
        slot[16..20].copy_from_slice(&crc.to_le_bytes());
    }
}

fn check_header(bytes: &[u8]) {
    match decode(bytes) {
        Ok(header) => check_read(&header, bytes),
        Err(Unread::More(wanted)) => {
            assert!(wanted > bytes.len(), "{wanted} bytes are wanted, {} are there", bytes.len());
        }
        Err(Unread::Damaged(_)) => {}
    }
}

fn check_read(header: &Header, bytes: &[u8]) {
    let (text, head) = (&bytes[header.text.clone()], &bytes[header.head.clone()]);
    assert!(header.layout.file_bytes(header.length) >= header.length, "the body fits into its file");
    let Header { layout, generation, nonce, sequence, length, primary, .. } = header.clone();
    let identity = Identity { layout, generation, nonce, sequence, length, primary };
    let mut slot = Vec::new();
    format::encode(&identity, text, head, &header.meta, &mut slot);
    // A small entry has slot A only; a large entry needs room for both slots.
    slot.resize(slot.len().max(if layout.is_small { 0 } else { 2 * layout.slot_bytes as usize }), 0);
    let again = decode(&slot).expect("a header that was written can be read");
    assert_eq!((&slot[again.text.clone()], &slot[again.head.clone()]), (text, head));
    assert_eq!((again.layout, again.meta), (layout, header.meta.clone()));
    assert_eq!(
        (again.generation, again.nonce, again.sequence, again.length, again.primary),
        (generation, nonce, sequence, length, primary)
    );
}

/// The purge log: reads raw bytes, and records cut out of the bytes and encoded.
///
/// # Panics
/// When one of these properties is violated: a record is encoded to the same bytes; a truncated log contains the first
/// of the same purges; applied purges can be listed again.
pub fn purge_log(bytes: &[u8]) {
    check_log(bytes);
    let mut log = Vec::new();
    for record in bytes.split(|&byte| byte == 0xff) {
        // A valid checksum over bytes chosen by the fuzzer.
        log.extend_from_slice(&(record.len() as u32).to_le_bytes());
        log.extend_from_slice(&crc32c(record).to_le_bytes());
        log.extend_from_slice(record);
    }
    check_log(&log);
    check_log(&log[..log.len() / 2]);
}

/// Returns an object that the purge matches and that is older than it.
fn subject(purge: &Purge) -> Subject<'_> {
    const NONE: &KeyBytes = &[0; 16];
    let (primary, key, tags): (&KeyBytes, &[u8], &[u8]) = match &purge.scope {
        Scope::Key(key) => (key, b"k", b""),
        Scope::Pattern(text) => (NONE, text, b""),
        Scope::Tag(tag) => (NONE, b"k", tag),
        Scope::All => (NONE, b"k", b""),
    };
    Subject { primary, key, tags, sequence: purge.sequence.saturating_sub(1) }
}

fn check_log(bytes: &[u8]) {
    let mut log = Log::new(bytes, crc32c);
    let purges: Vec<Purge> = log.by_ref().collect();
    let good = &bytes[..log.valid_len];
    let mut written = Vec::new();
    let is_complete = purges.iter().all(|purge| encode(purge, crc32c, &mut written));
    assert!(is_complete && written == good, "the log is not written as it was read");
    let cut: Vec<Purge> = Log::new(&bytes[..bytes.len() * 3 / 4], crc32c).collect();
    assert!(purges.starts_with(&cut), "a log that was cut off holds other purges");
    let mut applied = Purges::default();
    purges.iter().for_each(|purge| applied.apply(purge));
    assert!(applied.len() <= purges.len());
    assert!(purges.iter().all(|purge| purge.sequence <= applied.sequence()));
    applied.add(Scope::All, PurgeEffect::Stale);
    // The content of a rewritten log must have the same purges.
    let mut again = Purges::default();
    (0..Purges::PARTS).flat_map(|part| applied.part(part)).for_each(|purge| again.apply(&purge));
    assert_eq!(again.sequence(), applied.sequence());
    for purge in &purges {
        let subject = subject(purge);
        assert_eq!(again.purge_effect(&subject), applied.purge_effect(&subject));
    }
}
