//! Header sections of cache entries that were converted for the responses of a location ([`reply`](super::reply)).
//!
//! The result of the conversion depends only on the stored header section and on the settings of the location, unless it has fields
//! that are rewritten for each request. So each thread stores the results for the entries that it uses often, and later hits share
//! them. Everything that depends on a request, its time or its conditions is added afterwards, by the same code and the same filters
//! as for other responses.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use http::conditional::Etag;
use http::date;
use http::fields::HeaderId;
use http::response::parse::ParsedResponse;

use exchange::field_list::FieldLines;
use exchange::request::Request;
use exchange::response::{ContentType, Reason, Response};
use site::config::LocationId;
use upstream::Heading;

/// Number of header sections that a thread stores at most.
const CONVERTED_MAX: usize = 512;

/// Maximum length in bytes of a header section whose conversion is stored.
const HEAD_BYTES_MAX: usize = 2048;

/// The converted header sections of a thread.
#[derive(Default)]
pub(super) struct ConvertedHeads(RefCell<Vec<Slot>>);

/// A header section that was used, and its conversion after the second use: entries that are used once are not worth the memory.
#[derive(Default)]
struct Slot {
    user: Option<User>,
    /// The header section is referred to, so that no other one gets its address.
    converted: Option<(Weak<ParsedResponse>, Rc<ConvertedHead>)>,
}

/// A header section in the memory of a cache, and the location that uses it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct User {
    address: usize,
    version: u64,
    location: LocationId,
}

impl User {
    fn of(request: &Request, head: &Arc<ParsedResponse>) -> User {
        User {
            address: Arc::as_ptr(head).addr(),
            version: request.thread_config.number,
            location: request.location,
        }
    }

    fn index(&self) -> usize {
        // The addresses of blocks differ in the bits above those for the alignment.
        ((self.address >> 4) ^ (self.address >> 13) ^ self.location.0 as usize) % CONVERTED_MAX
    }
}

/// Result of [`ConvertedHeads::find`].
pub(super) enum FoundHead {
    /// A converted header section.
    Converted(Rc<ConvertedHead>),
    /// The header section is used again; its conversion should be stored.
    Wanted,
    /// The first use, or a response that already has fields.
    No,
}

/// The members of a response that are taken from a header section.
pub(super) struct ConvertedHead {
    status: u16,
    reason: Option<Reason>,
    content_type: ContentType,
    last_modified: Option<i64>,
    etag: Option<Etag>,
    server: Option<Vec<u8>>,
    date: Option<[u8; date::HTTP_LEN]>,
    allow_ranges: bool,
    fields: Rc<FieldLines>,
}

impl ConvertedHeads {
    /// Looks for the conversion of a stored header section for the location of a request.
    pub(super) fn find(&self, request: &Request, heading: &Heading) -> FoundHead {
        if !has_no_fields(&request.response) {
            return FoundHead::No;
        }
        let mut slots = self.0.borrow_mut();
        if slots.is_empty() {
            slots.resize_with(CONVERTED_MAX, Slot::default);
        }
        let user = User::of(request, heading.shared_head());
        let slot = &mut slots[user.index()];
        match &slot.converted {
            _ if slot.user != Some(user) => {
                *slot = Slot { user: Some(user), converted: None };
                FoundHead::No
            }
            Some((_, converted)) => FoundHead::Converted(Rc::clone(converted)),
            None => FoundHead::Wanted,
        }
    }

    /// Stores the conversion of a header section that is [`FoundHead::Wanted`]. The response, which had no fields before, has those of
    /// the header section and no others.
    pub(super) fn store(&self, request: &mut Request, heading: &Heading) {
        if !depends_on_location_only(heading) {
            return;
        }
        let user = User::of(request, heading.shared_head());
        let response = &mut request.response;
        // If a field must not be sent, the response is changed when its header section is written.
        let Some(shared) = response.fields.to_shared() else { return };
        let converted = Rc::new(ConvertedHead {
            status: response.status,
            reason: response.reason.clone(),
            content_type: response.content_type.clone(),
            last_modified: response.last_modified,
            etag: response.etag.clone(),
            server: response.server.clone(),
            date: response.date,
            allow_ranges: response.allow_ranges,
            fields: shared,
        });
        if let Some(slot) = self.0.borrow_mut().get_mut(user.index()) {
            let referred = Arc::downgrade(heading.shared_head());
            *slot = Slot { user: Some(user), converted: Some((referred, converted)) };
        }
    }
}

impl ConvertedHead {
    /// Sets the members of a response without fields.
    pub(super) fn apply(&self, response: &mut Response) {
        response.status = self.status;
        response.reason.clone_from(&self.reason);
        response.content_type = self.content_type.clone();
        response.last_modified = self.last_modified;
        response.etag.clone_from(&self.etag);
        response.server.clone_from(&self.server);
        response.date = self.date;
        response.allow_ranges = self.allow_ranges;
        response.fields.share(Rc::clone(&self.fields));
    }
}

/// Whether no module has set a member of the response that a header section sets.
fn has_no_fields(response: &Response) -> bool {
    response.fields.is_empty()
        && matches!(response.content_type, ContentType::None)
        && response.last_modified.is_none()
        && response.etag.is_none()
        && response.server.is_none()
        && response.date.is_none()
        && response.location.is_none()
        && response.content_range.is_none()
        && response.challenges.values.is_empty()
}

/// Whether the conversion of a header section depends on nothing but the settings of the location. Other fields are rewritten with
/// values of the request, or are stored in members that [`ConvertedHead`] does not have.
fn depends_on_location_only(heading: &Heading) -> bool {
    let is_fixed = |id| {
        !matches!(
            id,
            HeaderId::Location
                | HeaderId::Refresh
                | HeaderId::SetCookie
                | HeaderId::ContentRange
                | HeaderId::WwwAuthenticate
                | HeaderId::ProxyAuthenticate
        )
    };
    heading.raw().len() <= HEAD_BYTES_MAX
        && heading.never_indexed().is_none()
        && heading.head().fields().iter().all(|field| is_fixed(field.id))
}
