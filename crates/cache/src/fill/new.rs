//! [`New`]: the parts that a new entry is made of.

use std::sync::Arc;

use crate::fill::order::Ticket;
use crate::key::Key;
use crate::meta::Meta;
use crate::purge::settling::Asked;

/// A new entry.
#[derive(Clone, Debug)]
pub struct New {
    /// The primary key.
    pub key: Key,
    /// Its text.
    pub text: Vec<u8>,
    /// The facts; `length` when it is known.
    pub meta: Arc<Meta>,
    /// The response head as it is to be stored; the store does not look into it.
    pub head: Arc<[u8]>,
    /// Whether only parts of the body will arrive (status 206): needs `meta.length`, and bytes that are missing at the
    /// commit stay missing. Without it a commit with less than `meta.length` is refused.
    pub is_partial: bool,
    /// The question to the upstream ([`crate::Store::ask`]): a purge since then hits the entry too.
    pub asked: Arc<Asked>,
    /// The order of the response among others to the same key: an older one is refused. Without it the last one stays.
    pub ticket: Option<Arc<Ticket>>,
}
