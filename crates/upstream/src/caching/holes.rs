//! The body for one request of a response that is stored in parts: stored parts and holes in turn. A hole is requested
//! when it is reached, unless another fetch of it is in flight.
//!
//! A chunk that turns out damaged while it is read is a hole too, so large unverified bodies are served from here. Main
//! types: [`Holed`], the body; [`join`] decides which request fetches a hole.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cache::{CHUNK_BYTES, Hit, Key, Located};
use io::op::Source;

use crate::caching::LOOKS_MAX;
use crate::caching::fetch::Fetch;
use crate::caching::filling::{Filling, FillingReader};
use crate::caching::parts::{ask_for, begin, fitting, if_range_of, publish_failure};
use crate::caching::policy::Failed;
use crate::caching::shared_fetch::{self, FetchLeader, Outcome};
use crate::caching::stored::{Checked, Lost};
use crate::{Failure, Heading};
use exchange::request::Request;
use transfer::body::BodyError;
use transfer::body::ranged::Ranged;
use transfer::body::source::BodySource;

/// The role of a request for a hole.
pub enum Joined {
    /// This request, with the duty to inform waiting ones if there may be some.
    Lead(Option<FetchLeader>),
    /// Another request fetches it, with this result.
    Along(Arc<Filling>),
    /// Another request fetched it, without a response.
    Failed(Failure),
}

/// Joins the fetch of a hole in an entry, or begins it. Requests for holes of the same content share a key (the
/// validator is a part of it). One joins the fetch of another that will soon deliver everything it lacks: a hole
/// shrinks while it is filled, so later requests lack less of it.
pub async fn join(fetch: &Fetch, entry: Key, heading: &Heading, hole: &Range<u64>) -> Joined {
    let mut name = if_range_of(heading);
    if name.is_empty() {
        return Joined::Lead(None);
    }
    name.extend_from_slice(b" hole");
    let content = entry.variant(&name);
    let key = content.variant(&[hole.start.to_le_bytes(), hole.end.to_le_bytes()].concat());
    for _ in 0..LOOKS_MAX {
        let shared_fetch = match fetch.cache.shared_fetches().join_part(
            &content,
            key,
            Some(hole.clone()),
            (rt::now(), fetch.limit),
        ) {
            shared_fetch::Joined::Lead(lead) => return Joined::Lead(Some(lead)),
            shared_fetch::Joined::Marked => return Joined::Lead(None),
            shared_fetch::Joined::Follow(shared_fetch) => shared_fetch,
        };
        // One that brings nothing is left: another one starts.
        let Some(outcome) = shared_fetch.outcome_within(fetch.limit).await else { continue };
        match outcome {
            Outcome::Filling(filling) if filling.part().is_none_or(|part| part.has(hole)) => {
                return Joined::Along(filling);
            }
            // The response is shorter than requested.
            Outcome::Filling(_) => return Joined::Lead(None),
            Outcome::Failed(failed) => return Joined::Failed(failed.failure),
            // Another outcome: all waiting requests contact the upstream concurrently.
            Outcome::Alone => return Joined::Lead(None),
            // The leader has gone: another request takes over, maybe this one.
            Outcome::LookAgain => {}
        }
    }
    Joined::Lead(None)
}

/// A stored body with holes, for one request. Stored parts are read and verified; a hole is requested when it is
/// reached, passed on as it arrives, and stored. A body without stored parts is a single hole.
pub struct Holed {
    located: Option<Located>,
    shared: Rc<SharedHoles>,
    /// A hole that is being fetched already.
    first: RefCell<Option<(Range<u64>, FillingReader)>>,
}

/// State for the fetches of all parts of one response. They are fetched one after the other, as the client reaches
/// them: a client that stops reading causes no further request.
struct SharedHoles {
    /// The way to ask the upstream, and to store parts.
    fetch: Rc<Fetch>,
    /// A request without a client, lent to one fetch after the other.
    request: RefCell<Option<Box<Request>>>,
    /// The entry that is completed; none if the response is not stored.
    hit: Option<Rc<Hit>>,
    /// The stored header section, whose validator the parts must have.
    heading: Rc<Heading>,
}

impl Holed {
    /// The body of a hit with holes. `request` stays with it to fetch them.
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
    /// How holes are fetched.
    shared: Rc<SharedHoles>,
    /// The range still to be served.
    range: Range<u64>,
    /// A hole that was requested before the header section was sent.
    first: Option<(Range<u64>, FillingReader)>,
    state: HoleState,
    /// How often a fetch has stalled and another one has gone on.
    stalls: u32,
}

type Fetching = Pin<Box<dyn Future<Output = Option<FillingReader>>>>;

enum HoleState {
    /// To be found out.
    Next,
    /// From the file, with the rest of its range.
    Stored(Box<dyn BodySource>, Range<u64>),
    /// A hole is being fetched.
    Fetching(Range<u64>, Fetching),
    /// A hole comes in.
    Live(FillingReader),
}

impl HoledSource {
    /// The next part of the range.
    fn next(&mut self) -> HoleState {
        let wanted = self.range.clone();
        // The range need not be the client's: a filter may need the whole.
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
                // Not the part in flight already.
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

    /// Asks for a hole, of which a part is needed.
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
                HoleState::Next => self.state = self.next(),
                HoleState::Stored(stream, part) => match ready!(stream.poll_next(context)) {
                    Ok(Some(source)) => {
                        part.start += source.bytes().len() as u64;
                        return Poll::Ready(Ok(Some(source)));
                    }
                    Ok(None) => self.state = HoleState::Next,
                    Err(error @ BodyError::NoMemory) => return Poll::Ready(Err(error)),
                    // Chunks that cannot be read, or are damaged, are holes like any other.
                    Err(_) => {
                        let rest = part.clone();
                        self.state = self.fetch(rest.clone(), rest);
                    }
                },
                HoleState::Live(reader) => match reader.poll_next(context)? {
                    Poll::Ready(Some(source)) => return Poll::Ready(Ok(Some(source))),
                    Poll::Ready(None) => self.state = HoleState::Next,
                    Poll::Pending if self.stalls == LOOKS_MAX => return Poll::Pending,
                    Poll::Pending => {
                        ready!(reader.poll_stalled(context));
                        let rest = reader.wanted();
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
    /// Fetches a hole while the header section that promises it is sent: anything else is no answer.
    async fn fetch_hole(&self, hole: Range<u64>) -> Option<FillingReader> {
        // Without stored parts no other request fetches the same one.
        let joined = match &self.hit {
            Some(hit) => join(&self.fetch, hit.key(), &self.heading, &hole).await,
            None => Joined::Lead(None),
        };
        let lead = match joined {
            Joined::Lead(lead) => lead,
            Joined::Failed(_) => return None,
            Joined::Along(filling) => {
                // A complete new response does not match the header section already sent.
                let reader = filling.part().and_then(|_| filling.reader(hole.clone()));
                if let Some(reader) = reader {
                    return Some(reader.with_limit(self.fetch.limit));
                }
                None
            }
        };
        let mut request = self.request.borrow_mut().take()?;
        let reply = ask_for(&self.fetch, &mut request, &self.heading, &hole).await;
        let reader = match reply {
            Ok(reply) => match fitting(&reply, &self.heading, &hole) {
                true => begin(&self.fetch, &request, self.hit.as_deref(), (reply, lead), hole).await,
                false => {
                    // The stored response is outdated in any case.
                    let key = cache::Scope::Key(self.fetch.key.0);
                    if self.hit.is_some() {
                        let _ = self.fetch.store.purge(key, cache::Fate::Gone).await;
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
