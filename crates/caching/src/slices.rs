//! Slices (`slice`): the keys of the slices of one response, and whether stored slices are of one version of the object.
//!
//! ```text
//!   stored first slice --> all slices that the client gets are stored, fresh, of the same version --> served, without the upstream
//!                  \-----> one is missing, stale, or of another version --> the first slice is revalidated before the head is sent
//! ```
//! Later slices are requested without `If-Range`: an upstream with another version sends the requested slice of it, which is stored,
//! instead of the complete object. The response shows its version.

use ::cache::{Key, Meta};
use http::StatusCode;
use http::cache_status::Forwarded;
use http::fields::{HeaderId, Method};
use http::range::ContentRange;

use crate::clock::now_ms;
use crate::fetch::{Fetch, variant_key};
use crate::policy::{self, Grade};
use crate::record::{self, Status};
use crate::requested_range::{RequestedSlice, requested, slice_start};
use crate::shared_fetch::{FetchOutcome, Joined};
use crate::{CacheLookup, Followed, access, stored};
use exchange::request::Request;
use upstream::{Failure, Heading, Reply};

/// Maximum number of slices after the first one that are looked up before the head is sent. The client waits for these lookups.
const CHECKED_MAX: usize = 128;

/// The key of a slice, divided at the offsets of the slice.
struct SliceKey<'t> {
    before: &'t [u8],
    after: &'t [u8],
    /// The offset of the last byte of the slice; `None` if the key does not contain it.
    last: Option<u64>,
}

impl<'t> SliceKey<'t> {
    /// Divides the key `text` of the slice at `start`; `None` if it does not contain the range of the slice.
    fn of(text: &'t [u8], start: u64) -> Option<SliceKey<'t>> {
        let range = format!("bytes={start}-");
        let at = text.windows(range.len()).rposition(|window| window == range.as_bytes())?;
        let (before, rest) = (&text[..at], &text[at + range.len()..]);
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        Some(SliceKey { before, after: &rest[digits..], last: http::parse_decimal(&rest[..digits]) })
    }

    /// Returns the key of the slice of `size` bytes at `start`.
    fn at(&self, start: u64, size: u64) -> Vec<u8> {
        debug_assert!(size > 0, "a slice has bytes");
        let range = format!("bytes={start}-{}", start + (size - 1));
        [self.before, range.as_bytes(), self.after].concat()
    }
}

/// Returns the tag of all slices of a response, if the key `text` contains the range of the slice at `start`. The tag depends on the
/// remaining text.
pub fn slices_tag(text: &[u8], start: u64) -> Option<Vec<u8>> {
    let key = SliceKey::of(text, start)?;
    let digest = Key::of(&[key.before, b"bytes=*", key.after].concat());
    let mut tag = b"slices:".to_vec();
    digest.0.iter().for_each(|byte| tag.extend_from_slice(format!("{byte:02x}").as_bytes()));
    Some(tag)
}

/// Whether a 206 or 416 to a request for a slice may be stored with the key `text`. The key must contain the range of the slice:
/// otherwise requests for other slices would find the response. A 206 must be the slice, because no client can be served from
/// another part.
pub fn is_storable(text: &[u8], slice: RequestedSlice, heading: &Heading) -> bool {
    // Further digits may follow, those of another variable.
    let range = format!("bytes={}-{}", slice.start, slice.last());
    let is_named = text.windows(range.len()).any(|window| window == range.as_bytes());
    let is_slice = || match ContentRange::of_part(heading.head(), heading.raw()) {
        Ok((range, Some(length))) => slice.within(length) == (range.start..range.end),
        Ok((_, None)) | Err(_) => false,
    };
    is_named && (heading.head().status() != StatusCode::PARTIAL_CONTENT || is_slice())
}

/// The version of the object that a stored slice belongs to.
#[derive(PartialEq, Eq)]
struct Version {
    etag: Vec<u8>,
    /// `Last-Modified`, if there is no entity tag.
    modified: Option<i64>,
    /// The length of the complete object in bytes.
    length: Option<u64>,
}

impl Version {
    fn of(meta: &Meta, heading: &Heading) -> Version {
        let length = ContentRange::of_part(heading.head(), heading.raw()).ok().and_then(|(_, length)| length);
        let modified = meta.last_modified.filter(|_| meta.etag.is_empty());
        Version { etag: meta.etag.clone(), modified, length }
    }
}

impl CacheLookup<'_> {
    /// Returns the response to a request for the first slice of a response. The upstream is asked about a stored slice if the client
    /// gets other slices from the upstream: the object may have changed, and the head of an old version cannot be completed.
    pub(super) async fn confirmed_slice(
        &self,
        request: &mut Request,
        reply: Reply,
    ) -> Result<Reply, Failure> {
        if self.can_complete(request, &reply).await {
            return Ok(reply);
        }
        drop(reply);
        let record = record::record_of(request);
        (record.status, record.forwarded) = (None, Some(Forwarded::Stale));
        let fetch = |stale| Fetch { is_confirming: true, ..self.fetch(stale) };
        let key = variant_key(self.cache, &self.key, request);
        match self.cache.shared_fetches().join(&self.key, key, rt::now(), self.join_limits()) {
            Joined::Lead(lead) => {
                let stale = fetch(None).find(request).await;
                return fetch(stale).lead(request, lead).await;
            }
            Joined::Follow(shared_fetch) => {
                if let Followed::Reply(reply) = self.follow(request, &shared_fetch, (None, key)).await? {
                    return Ok(reply);
                }
            }
            Joined::Marked => {}
        }
        let stale = fetch(None).find(request).await;
        fetch(stale).alone(request, true).await
    }

    /// Whether a response that starts with this stored slice can be completed without the upstream, as far as [`CHECKED_MAX`] allows
    /// to tell. `true` for all other responses.
    async fn can_complete(&self, request: &mut Request, reply: &Reply) -> bool {
        if request.is_detached || request.depth > 0 || request.method != Method::Get {
            return true;
        }
        let record = record::record_of(request);
        let is_stored = matches!(record.status, Some(Status::Hit | Status::Stale | Status::Updating));
        let is_new = record.collapsed || record.has_failed;
        let Some(meta) = record.found.clone().filter(|_| is_stored && !is_new) else { return true };
        let first = Version::of(&meta, &reply.head);
        let (Some(start), Some(length)) = (slice_start(request), first.length) else { return true };
        // A response that is still being fetched or written is current.
        if self.version_arriving(request, &self.key).is_some_and(|found| found == first) {
            return true;
        }
        let Some(key) = SliceKey::of(&self.text, start) else { return true };
        let Some(size) = key.last.and_then(|last| (last + 1).checked_sub(start)) else { return true };
        // With `If-Range` the client may get the complete object.
        let range = requested(request).filter(|_| request.header(HeaderId::IfRange).is_none());
        let end = range.map_or(length, |range| range.within(length).end);
        for next in (1..=CHECKED_MAX as u64).map(|count| start + count * size) {
            if next >= end {
                break;
            }
            if self.version_stored(request, key.at(next, size)).await.is_none_or(|found| found != first) {
                return false;
            }
        }
        true
    }

    /// Returns the version of the fresh stored response with the key `text`, or of the one that is arriving.
    async fn version_stored(&self, request: &Request, text: Vec<u8>) -> Option<Version> {
        let key = Key::of(&text);
        if let Some(version) = self.version_arriving(request, &key) {
            return Some(version);
        }
        let selector = |vary: &[u8]| policy::variant_of(request, vary);
        let hit = self.store.find_by(&key, &text, &selector, access(request, self.store)).await.ok()??;
        let is_usable = policy::grade(&hit, now_ms()) != Grade::Stale;
        is_usable.then(|| stored::heading(&hit).map(|heading| Version::of(&hit.meta, &heading)))?
    }

    /// Returns the version of the response that is being fetched for a key, or written to its entry.
    fn version_arriving(&self, request: &Request, key: &Key) -> Option<Version> {
        let fetches = self.cache.shared_fetches();
        let pending =
            fetches.pending.find(key, |meta| policy::variant_of(request, &meta.vary) == meta.variant);
        let filling = match pending {
            Some((filling, _)) => filling,
            None => match fetches.in_flight(key)?.known_outcome()? {
                FetchOutcome::Filling(filling) => filling,
                _ => return None,
            },
        };
        Some(Version::of(&filling.meta, &filling.heading()?))
    }
}
