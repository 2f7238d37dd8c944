//! [`New`]: the input for a new entry.

use std::sync::Arc;

use crate::fill::order::Ticket;
use crate::key::Key;
use crate::meta::Meta;
use crate::purge::settling::PendingRequest;

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
