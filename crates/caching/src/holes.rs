//! The body of a partially stored response for one request: stored ranges and holes alternate. A hole is requested when it is
//! reached, unless another fetch of it is in flight.
//!
//! A chunk that turns out to be damaged while it is read is treated as a hole, so large unverified bodies are served from here.
//! Main types: [`Holed`], the body; [`join`] decides which request fetches a hole.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cache::{CHUNK_BYTES, Hit, Key, Located};
use io::segments::Source;

use crate::LOOKUPS_MAX;
use crate::failures::Failed;
use crate::fetch::Fetch;
use crate::filling::{Filling, FillingReader};
use crate::parts::{begin, fitting, if_range_of, publish_failure, request_hole};
use crate::policy::OriginRequest;
use crate::shared_fetch::{self, FetchLeader, FetchOutcome};
use crate::stored::{Checked, Lost};
use exchange::request::Request;
use transfer::body::BodyError;
use transfer::body::ranged::Ranged;
use transfer::body::source::BodySource;
use upstream::{Failure, Heading};

/// Role of a request for a hole.
pub enum HoleFetch {
    /// This request fetches the hole. The leader, if any, informs waiting requests.
    Lead(Option<FetchLeader>),
    /// Another request fetches the hole; its bytes arrive in this filling.
    Along(Arc<Filling>),
    /// Another request has tried to fetch the hole and failed.
    Failed(Failure),
}

/// Joins the fetch of a hole in an entry, or starts it. Requests for holes of the same content share a key (the validator is a part
/// of it). A request joins another fetch that will soon deliver all the bytes it needs: a hole shrinks while it is filled, so later
/// requests need less of it.
pub async fn join(fetch: &Fetch, entry: Key, heading: &Heading, hole: &Range<u64>) -> HoleFetch {
    let mut name = if_range_of(heading);
    if name.is_empty() {
        return HoleFetch::Lead(None);
    }
    name.extend_from_slice(b" hole");
    let content = entry.variant(&name);
    let key = content.variant(&[hole.start.to_le_bytes(), hole.end.to_le_bytes()].concat());
    for round in 1..=LOOKUPS_MAX {
        // Not even a slow upstream gets a request of each waiting client.
        let limits = if round < LOOKUPS_MAX { fetch.limits } else { fetch.limits.with_patience() };
        let shared_fetch = match fetch.cache.shared_fetches().join_part(
            &content,
            key,
            Some(hole.clone()),
            (rt::now(), limits),
        ) {
            shared_fetch::Joined::Lead(lead) => return HoleFetch::Lead(Some(lead)),
            shared_fetch::Joined::Marked => return HoleFetch::Lead(None),
            shared_fetch::Joined::Follow(shared_fetch) => shared_fetch,
        };
        // A stalled fetch is abandoned: another one starts.
        let Some(outcome) = shared_fetch.outcome_within(limits).await else { continue };
        match outcome {
            FetchOutcome::Filling(filling) if filling.part().is_none_or(|part| part.has(hole)) => {
                return HoleFetch::Along(filling);
            }
            // The response has a shorter range than requested.
            FetchOutcome::Filling(_) => return HoleFetch::Lead(None),
            FetchOutcome::Failed(failed) => return HoleFetch::Failed(failed.failure),
            // The response is for one request only: all waiting requests contact the upstream concurrently.
            FetchOutcome::Alone => return HoleFetch::Lead(None),
            // The leader has ended without an outcome: another request fetches the hole, maybe this one.
            FetchOutcome::Retry | FetchOutcome::Refreshed(_) => {}
        }
    }
    HoleFetch::Lead(None)
}

/// A stored body with holes, for one request. Stored ranges are read and verified. A hole is requested when it is reached, passed
/// on as it arrives, and stored. A body without stored ranges is a single hole.
pub struct Holed {
    located: Option<Located>,
    shared: Rc<SharedHoles>,
    /// A hole whose fetch is already in flight.
    first: RefCell<Option<(Range<u64>, FillingReader)>>,
}

/// State for the fetches of all holes of one response. They run one after the other, as the client reaches them: a client that
/// stops reading causes no further request.
struct SharedHoles {
    /// The fetch: how to send requests to the upstream and to store parts.
    fetch: Rc<Fetch>,
    /// A request without a client, used by one fetch at a time.
    request: RefCell<Option<Box<Request>>>,
    /// The entry that is being completed; `None` if the response is not stored.
    hit: Option<Rc<Hit>>,
    /// The stored header section, whose validator the parts must match.
    heading: Rc<Heading>,
}

impl Holed {
    /// Creates the body of a hit with holes. `request` is used to fetch them.
    pub fn new(
        fetch: Rc<Fetch>,
        request: Box<Request>,
        hit: Option<Rc<Hit>>,
        heading: Rc<Heading>,
        first: Option<(Range<u64>, FillingReader)>,
    ) -> Holed {
        let located = hit.as_ref().and_then(|hit| hit.located().cloned());
        let shared = Rc::new(SharedHoles { fetch, request: RefCell::new(Some(request)), hit, heading });
        Holed { located, shared, first: RefCell::new(first) }
    }
}

impl Ranged for Holed {
    fn open(&self, range: Range<u64>) -> Box<dyn BodySource> {
        let first = self.first.take();
        let (state, stalls) = (HoleState::Next, 0);
        Box::new(HoledSource {
            located: self.located.clone(),
            shared: Rc::clone(&self.shared),
            range,
            first,
            state,
            stalls,
        })
    }

    fn is_read_at_will(&self) -> bool {
        true
    }
}

struct HoledSource {
    /// The entry's file.
    located: Option<Located>,
    /// Fetches the holes.
    shared: Rc<SharedHoles>,
    /// The range that remains to be served.
    range: Range<u64>,
    /// A hole that was requested before the header section was sent.
    first: Option<(Range<u64>, FillingReader)>,
    state: HoleState,
    /// Number of times that a fetch stalled and another one continued.
    stalls: u32,
}

type Fetching = Pin<Box<dyn Future<Output = Option<FillingReader>>>>;

enum HoleState {
    /// Not determined yet.
    Next,
    /// A stored range is read from the file, with the remaining range.
    Stored(Box<dyn BodySource>, Range<u64>),
    /// A hole is being requested.
    Fetching(Range<u64>, Fetching),
    /// A hole is arriving.
    Live(FillingReader),
}

impl HoledSource {
    /// Starts the next part of the range.
    fn next(&mut self) -> HoleState {
        let wanted = self.range.clone();
        // The range may be larger than the client's: a filter may need the complete body.
        if let Some((coming, mut reader)) = self.first.take_if(|(coming, _)| coming.contains(&wanted.start)) {
            let part = wanted.start..coming.end.min(wanted.end);
            self.range.start = part.end;
            reader.narrow(part);
            return HoleState::Live(reader);
        }
        let missing = match &self.located {
            Some(located) => located.missing(&wanted),
            None => Some(wanted.clone()),
        };
        let mut end = wanted.end;
        if let Some((coming, _)) = &self.first {
            match coming.start > wanted.start {
                true => end = end.min(coming.start),
                false => self.first = None,
            }
        }
        match (missing, &self.located) {
            (Some(hole), _) if hole.start <= wanted.start => {
                // Excludes the part that is already in flight.
                let hole = hole.start..hole.end.min(end.next_multiple_of(CHUNK_BYTES));
                let part = wanted.start..hole.end.min(end);
                self.range.start = part.end;
                self.fetch(hole, part)
            }
            (hole, Some(located)) => {
                let end = hole.map_or(end, |hole| hole.start.min(end));
                self.range.start = end;
                let part = wanted.start..end;
                HoleState::Stored(Checked(located.clone()).open(part.clone()), part)
            }
            (_, None) => HoleState::Stored(Box::new(Lost), wanted),
        }
    }

    /// Requests a hole, of which `part` is needed.
    fn fetch(&self, hole: Range<u64>, part: Range<u64>) -> HoleState {
        let shared = Rc::clone(&self.shared);
        HoleState::Fetching(part, Box::pin(async move { shared.fetch_hole(hole).await }))
    }
}

impl BodySource for HoledSource {
    fn is_reading(&self) -> bool {
        match &self.state {
            HoleState::Stored(stream, _) => stream.is_reading(),
            HoleState::Live(reader) => reader.is_reading(),
            HoleState::Next | HoleState::Fetching(..) => false,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            match &mut self.state {
                HoleState::Next if self.range.is_empty() => return Poll::Ready(Ok(None)),
                HoleState::Next => {
                    let start = self.range.start;
                    self.state = self.next();
                    debug_assert!(self.range.start > start || self.located.is_none(), "each part has bytes");
                }
                HoleState::Stored(stream, part) => match ready!(stream.poll_next(context)) {
                    Ok(Some(source)) => {
                        part.start += source.bytes().len() as u64;
                        debug_assert!(part.start <= part.end, "a source returns no more than its part");
                        return Poll::Ready(Ok(Some(source)));
                    }
                    Ok(None) => self.state = HoleState::Next,
                    Err(error @ BodyError::NoMemory) => return Poll::Ready(Err(error)),
                    // Chunks that cannot be read or are damaged are treated as holes.
                    Err(_) => {
                        let rest = part.clone();
                        self.state = self.fetch(rest.clone(), rest);
                    }
                },
                HoleState::Live(reader) => match reader.poll_next(context)? {
                    Poll::Ready(Some(source)) => return Poll::Ready(Ok(Some(source))),
                    Poll::Ready(None) => self.state = HoleState::Next,
                    Poll::Pending if self.stalls == LOOKUPS_MAX => return Poll::Pending,
                    Poll::Pending => {
                        ready!(reader.poll_stalled(context));
                        let rest = reader.requested();
                        self.stalls += 1;
                        self.state = self.fetch(rest.clone(), rest);
                    }
                },
                HoleState::Fetching(part, fetching) => {
                    let Some(mut reader) = ready!(fetching.as_mut().poll(context)) else {
                        return Poll::Ready(Err(BodyError::Broken));
                    };
                    reader.narrow(part.clone());
                    self.state = HoleState::Live(reader);
                }
            }
        }
    }
}

impl SharedHoles {
    /// Fetches a hole after the header section was sent, so only a matching part is usable.
    async fn fetch_hole(&self, hole: Range<u64>) -> Option<FillingReader> {
        // Without stored ranges no other request fetches the same hole.
        let joined = match &self.hit {
            Some(hit) => join(&self.fetch, hit.key(), &self.heading, &hole).await,
            None => HoleFetch::Lead(None),
        };
        let lead = match joined {
            HoleFetch::Lead(lead) => lead,
            HoleFetch::Failed(_) => return None,
            HoleFetch::Along(filling) => match filling.part().and_then(|_| filling.reader(hole.clone())) {
                Some(reader) => return Some(reader.with_limit(self.fetch.limits.body)),
                // A complete new response does not match the header section that was sent.
                None => None,
            },
        };
        let mut request = self.request.borrow_mut().take()?;
        let origin_request = OriginRequest::new(&self.fetch.store, &self.fetch.key);
        let reply = request_hole(&self.fetch, &mut request, &self.heading, &hole).await;
        let reader = match reply {
            Ok(reply) => match fitting(&reply, &self.heading, &hole) {
                true => {
                    let entry = self.hit.as_deref().map(|hit| (hit, origin_request));
                    begin(&self.fetch, &request, entry, (reply, lead), hole).await
                }
                false => {
                    // The stored response is outdated in any case.
                    if self.hit.is_some() {
                        self.fetch.remove().await;
                    }
                    None
                }
            },
            Err(failure) => {
                publish_failure(lead, Failed::of(&mut request, failure));
                None
            }
        };
        *self.request.borrow_mut() = Some(request);
        reader
    }
}
