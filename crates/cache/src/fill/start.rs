//! The start of a new entry's file: slot, records, and the padding between them. Its input is [`New`]. No I/O.

use std::sync::Arc;

use crate::fill::order::Ticket;
use crate::format::{Identity, Layout, RECORD_BYTES, encode, record};
use crate::key::Key;
use crate::meta::Meta;
use crate::purge::retention::PendingRequest;

/// A new entry.
#[derive(Clone, Debug)]
pub struct New {
    /// The primary key.
    pub key: Key,
    /// The key text.
    pub text: Vec<u8>,
    /// The metadata; `length` if it is known.
    pub meta: Arc<Meta>,
    /// The header section of the response as it is to be stored; the store does not interpret it.
    pub head: Arc<[u8]>,
    /// Whether only parts of the body will be received (status 206): requires `meta.length`, and bytes missing at the
    /// commit stay missing. Otherwise a commit with fewer bytes than `meta.length` is refused.
    pub is_partial: bool,
    /// The request to the upstream ([`crate::Store::register_request`]): purges since the request apply to the entry
    /// too.
    pub request: Arc<PendingRequest>,
    /// The position of the response among all responses for the key. The entry is refused if a response to a later
    /// request is complete. Without a ticket, the response that is stored last replaces the others.
    pub ticket: Option<Arc<Ticket>>,
}

/// Returns the identity of a new entry.
pub(crate) fn identity(new: &New, layout: Layout, nonce: u64, length: u64) -> Identity {
    let (sequence, primary) = (new.request.number(), new.key);
    Identity { layout, generation: 1, nonce, sequence, length, primary }
}

/// Returns an encoded slot.
pub(crate) fn slot(identity: &Identity, new: &New) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(identity, &new.text, &new.head, &new.meta, &mut bytes);
    assert!(bytes.len() <= identity.layout.slot_bytes as usize, "an encoded slot fits into its space");
    bytes
}

/// Returns the encoded records of chunks.
pub(crate) fn table(nonce: u64, records: &[(u64, u32)]) -> Vec<u8> {
    records.iter().flat_map(|(index, crc)| record(nonce, *index, *crc)).collect()
}

/// Returns the start of a file: slot A, padding, and the table with the `records` of its chunks.
pub(crate) fn file_start(identity: &Identity, new: &New, records: &[(u64, u32)]) -> Vec<u8> {
    let layout = identity.layout;
    let mut bytes = Vec::with_capacity(layout.table as usize + records.len() * RECORD_BYTES as usize);
    encode(identity, &new.text, &new.head, &new.meta, &mut bytes);
    bytes.resize(layout.table as usize, 0);
    for (index, crc) in records {
        bytes.extend_from_slice(&record(identity.nonce, *index, *crc));
    }
    assert!(bytes.len() as u64 <= layout.body, "the table ends at or before the start of the body");
    bytes
}
