//! Answers that are stored in parts: a range of something that is not stored fetches what is needed of it, stored parts
//! serve any range within them, and holes are fetched when somebody wants what is missing.
//!
//! ```text
//!   wanted   |-----------------------------------------|
//!   stored   |#######|          |############|
//!   fetched          |~~~~~~~~~~|            |~~~~~~~~~|     one request for each hole, as it is come to
//! ```
//! What turns out damaged while it is read is a hole too, which is why large bodies that were not compared with their
//! checksums yet are served from here.
//!
//! Parts are joined only where both have the same strong validator (RFC 9110 section 15.3.7.3). An upstream that answers
//! with another one, or with the whole, has something new: what is stored goes.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cache::{CHUNK_BYTES, Fill, Hit, Located, Meta, New};
use http::cache_status::Forwarded;
use http::freshness::store::NotStored;
use http::push_decimal;
use http::range::ContentRange;
use http::request::{HeaderId, Method};
use http::validator::Validator;
use io::op::Source;

use crate::body::BodyError;
use crate::body::ranged::{Ranged, RangedBody};
use crate::body::stream::Stream;
use crate::caching::fetch::{Answered, Fetch, detached};
use crate::caching::filling::{End, Filling, FillingReader};
use crate::caching::flight::{Lead, Outcome};
use crate::caching::policy::{self, Failed, Question};
use crate::caching::record::{self, Status, Unstored};
use crate::caching::stored::{self, Checked, Lost};
use crate::caching::{Wanted, now_s};
use crate::request::Request;
use crate::response::Body;
use crate::upstream::{Failure, Heading, Reply, ReplyBody};

/// The one range that a client asks for (RFC 9110 section 14.1.2), before the length of what it is a part of is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// From a byte to the byte before another one, or to the end.
    From(u64, Option<u64>),
    /// So many bytes at the end.
    Last(u64),
}

/// The range of a request, if it asks for one that parts are fetched for. Several ranges are cut out of the whole.
pub(crate) fn asked(request: &Request) -> Option<Asked> {
    // What a filter puts into the body, or takes a request apart for, is of the whole.
    if request.method != Method::Get || request.depth > 0 {
        return None;
    }
    let value = request.header(HeaderId::Range)?;
    let (unit, spec) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") || spec.contains(&b',') {
        return None;
    }
    let dash = memchr::memchr(b'-', spec)?;
    let number = |text: &[u8]| http::parse_decimal(text.trim_ascii());
    match (spec[..dash].trim_ascii(), spec[dash + 1..].trim_ascii()) {
        (b"", last) => number(last).filter(|last| *last > 0).map(Asked::Last),
        (first, b"") => Some(Asked::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| Asked::From(first, last.checked_add(1)))
        }
    }
}

/// Where the range of a request starts, whatever is done with ranges.
pub(crate) fn start(request: &Request) -> Option<u64> {
    request.header(HeaderId::Range)?;
    asked(request)?.start()
}

impl Asked {
    /// Bytes, when they are known.
    pub(crate) fn len(self) -> Option<u64> {
        match self {
            Asked::From(first, end) => end.map(|end| end - first),
            Asked::Last(count) => Some(count),
        }
    }

    /// What is asked of the upstream: whole chunks, as those can be stored.
    pub(crate) fn aligned(self) -> Vec<u8> {
        let mut text = b"bytes=".to_vec();
        match self {
            Asked::Last(count) => {
                text.push(b'-');
                push_decimal(&mut text, count);
            }
            Asked::From(first, end) => {
                push_decimal(&mut text, first / CHUNK_BYTES * CHUNK_BYTES);
                text.push(b'-');
                if let Some(end) = end.and_then(|end| end.checked_next_multiple_of(CHUNK_BYTES)) {
                    push_decimal(&mut text, end - 1);
                }
            }
        }
        text
    }

    /// Where it starts, when that is known.
    pub(crate) fn start(self) -> Option<u64> {
        match self {
            Asked::From(first, _) => Some(first),
            Asked::Last(_) => None,
        }
    }

    /// What it is of a body of so many bytes; nothing where there is nothing there.
    pub(crate) fn within(self, length: u64) -> Range<u64> {
        match self {
            Asked::From(first, end) => {
                first.min(length)..end.unwrap_or(length).clamp(first.min(length), length)
            }
            Asked::Last(count) => length.saturating_sub(count)..length,
        }
    }
}

/// Whether a stored answer has all of its body.
pub(crate) fn is_whole(hit: &Hit) -> bool {
    hit.located().is_none_or(|body| body.is_present(&(0..body.length)))
}

/// Whether a stored answer can be served as it is: nothing is missing of the range that is asked for, or of the whole.
pub(crate) fn is_servable(request: &Request, hit: &Hit) -> bool {
    hit.located().is_none_or(|body| {
        let asked = asked(request).filter(|_| request.header(HeaderId::IfRange).is_none());
        body.is_present(&asked.map_or(0..body.length, |asked| asked.within(body.length)))
    })
}

/// A part that an upstream has sent.
pub(crate) struct Part {
    /// Which.
    pub(crate) range: Range<u64>,
    /// Bytes of the whole.
    pub(crate) length: u64,
}

/// The part that a 206 has, when it can be stored: where it is, of how much, and of what exactly.
pub(crate) fn part_of(heading: &Heading) -> Option<Part> {
    let (range, total) = ContentRange::of_part(heading.head(), heading.raw()).ok()?;
    validator(heading).is_strong().then_some(())?;
    Some(Part { range: range.start..range.end, length: total? })
}

/// What tells one content from another: the entity tag, or a date that is old enough to be one (RFC 9110 section 8.8.2.2).
fn validator(heading: &Heading) -> Validator<'_> {
    let get = |id| heading.head().get(heading.raw(), id);
    let date = get(HeaderId::Date).and_then(http::date::parse_http);
    Validator::of(get(HeaderId::Etag), get(HeaderId::LastModified), date)
}

/// The validator of a stored head, as `If-Range` has it; empty where it has none that parts could be joined by.
pub(crate) fn if_range_of(head: &Heading) -> Vec<u8> {
    let mut text = Vec::new();
    let _ = validator(head).push_if_range(&mut text);
    text
}

/// A stored body with holes, for one request. What is there is read and compared with its checksums; a hole is asked for
/// when it is come to, passed on while it comes, and stored. One of which nothing is stored is a single hole.
pub(crate) struct Holed {
    located: Option<Located>,
    shared: Rc<Shared>,
    /// A hole that is being fetched already.
    first: RefCell<Option<(Range<u64>, FillingReader)>>,
}

/// What all parts of one answer are fetched with. They are fetched one after the other, as the client comes to them: a
/// client that stops reading causes no further request.
struct Shared {
    /// How the upstream is asked, and where parts are stored.
    fetch: Rc<Fetch>,
    /// A request without a client, lent to one fetch after the other.
    request: RefCell<Option<Box<Request>>>,
    /// The entry that is completed; none where what comes is not stored.
    hit: Option<Rc<Hit>>,
    /// The stored head, whose validator the parts must have.
    heading: Rc<Heading>,
}

impl Holed {
    /// The body of a hit with holes. `request` stays with it to fetch them.
    pub(crate) fn new(
        fetch: Rc<Fetch>,
        request: Box<Request>,
        hit: Option<Rc<Hit>>,
        heading: Rc<Heading>,
        first: Option<(Range<u64>, FillingReader)>,
    ) -> Holed {
        let located = hit.as_ref().and_then(|hit| hit.located().cloned());
        let shared = Rc::new(Shared { fetch, request: RefCell::new(Some(request)), hit, heading });
        Holed { located, shared, first: RefCell::new(first) }
    }
}

impl Ranged for Holed {
    fn open(&self, range: Range<u64>) -> Box<dyn Stream> {
        let first = self.first.take();
        let state = State::Next;
        Box::new(HoledStream {
            located: self.located.clone(),
            shared: Rc::clone(&self.shared),
            range,
            first,
            state,
        })
    }
}

struct HoledStream {
    /// The entry's file.
    located: Option<Located>,
    /// How holes are fetched.
    shared: Rc<Shared>,
    /// What is still to be served.
    range: Range<u64>,
    /// A hole that was asked for before the head went out.
    first: Option<(Range<u64>, FillingReader)>,
    state: State,
}

type Fetching = Pin<Box<dyn Future<Output = Option<FillingReader>>>>;

enum State {
    /// To be found out.
    Next,
    /// From the file, and what of it is still to come.
    Stored(Box<dyn Stream>, Range<u64>),
    /// A hole is being asked for.
    Fetching(Range<u64>, Fetching),
    /// A hole comes in.
    Live(FillingReader),
}

impl HoledStream {
    /// What comes next of the range.
    fn next(&mut self) -> State {
        let wanted = self.range.clone();
        // What is wanted now need not be what the client asked for: a filter may want the whole.
        if let Some((coming, mut reader)) = self.first.take_if(|(coming, _)| coming.contains(&wanted.start)) {
            let part = wanted.start..coming.end.min(wanted.end);
            self.range.start = part.end;
            reader.narrow(part);
            return State::Live(reader);
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
                // Not what is on its way already.
                let hole = hole.start..hole.end.min(end.next_multiple_of(CHUNK_BYTES));
                let part = wanted.start..hole.end.min(end);
                self.range.start = part.end;
                self.fetch(hole, part)
            }
            (hole, Some(located)) => {
                let end = hole.map_or(end, |hole| hole.start.min(end));
                self.range.start = end;
                let part = wanted.start..end;
                State::Stored(Checked(located.clone()).open(part.clone()), part)
            }
            (_, None) => State::Stored(Box::new(Lost), wanted),
        }
    }

    /// Asks for a hole, of which a part is wanted.
    fn fetch(&self, hole: Range<u64>, part: Range<u64>) -> State {
        let shared = Rc::clone(&self.shared);
        State::Fetching(part, Box::pin(async move { shared.fetch_hole(hole).await }))
    }
}

impl Stream for HoledStream {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            match &mut self.state {
                State::Next if self.range.is_empty() => return Poll::Ready(Ok(None)),
                State::Next => self.state = self.next(),
                State::Stored(stream, part) => match ready!(stream.poll_next(context)) {
                    Ok(Some(source)) => {
                        part.start += source.bytes().len() as u64;
                        return Poll::Ready(Ok(Some(source)));
                    }
                    Ok(None) => self.state = State::Next,
                    // What the disk cannot give, or gives wrongly, is a hole like any other.
                    Err(_) => {
                        let rest = part.clone();
                        self.state = self.fetch(rest.clone(), rest);
                    }
                },
                State::Live(reader) => match ready!(reader.poll_next(context))? {
                    Some(source) => return Poll::Ready(Ok(Some(source))),
                    None => self.state = State::Next,
                },
                State::Fetching(part, fetching) => {
                    let Some(mut reader) = ready!(fetching.as_mut().poll(context)) else {
                        return Poll::Ready(Err(BodyError::Broken));
                    };
                    reader.narrow(part.clone());
                    self.state = State::Live(reader);
                }
            }
        }
    }
}

impl Shared {
    /// Fetches a hole while a head is out that says what is to be in it: anything else is no answer.
    async fn fetch_hole(&self, hole: Range<u64>) -> Option<FillingReader> {
        let mut request = self.request.borrow_mut().take()?;
        let reply = ask_for(&self.fetch, &mut request, &self.heading, &hole).await;
        let reader = match reply {
            Ok(reply) => match fitting(&reply, &self.heading, &hole) {
                true => begin(&self.fetch, &request, self.hit.as_deref(), reply, hole).await,
                false => {
                    // Whatever it is now, what is stored is not it.
                    let key = cache::Scope::Key(self.fetch.key.0);
                    if self.hit.is_some() {
                        let _ = self.fetch.store.purge(key, cache::Fate::Gone).await;
                    }
                    None
                }
            },
            Err(_) => None,
        };
        *self.request.borrow_mut() = Some(request);
        reader
    }
}

/// Asks an upstream for a hole.
pub(crate) async fn ask_for(
    fetch: &Fetch,
    request: &mut Request,
    heading: &Heading,
    hole: &Range<u64>,
) -> Result<Reply, Failure> {
    let mut range = b"bytes=".to_vec();
    push_decimal(&mut range, hole.start);
    range.push(b'-');
    push_decimal(&mut range, hole.end - 1);
    let wanted = Wanted {
        is_shared: true,
        range: Some(range),
        if_range: Some(if_range_of(heading)).filter(|value| !value.is_empty()),
        ..Wanted::default()
    };
    (fetch.origin.ask)(request, &wanted).await
}

/// Whether an answer is the hole that was asked for, of the same bytes as what is stored.
pub(crate) fn fitting(reply: &Reply, stored: &Heading, hole: &Range<u64>) -> bool {
    let is_same = validator(stored).joins(validator(&reply.head));
    let part = part_of(&reply.head).filter(|_| reply.head.head().status().code() == 206);
    is_same && part.is_some_and(|part| part.range.start <= hole.start && part.range.end >= hole.end)
}

/// Begins to pass on a part, and to store it where that may be.
pub(crate) async fn begin(
    fetch: &Fetch,
    request: &Request,
    hit: Option<&Hit>,
    reply: Reply,
    hole: Range<u64>,
) -> Option<FillingReader> {
    let start = part_of(&reply.head)?.range.start;
    let mut writing = Writing { start, fill: None, lead: None };
    let meta = match hit {
        Some(hit) => {
            // Somebody else may be at it: then it is passed on only.
            writing.fill = fetch.store.extend(hit).await.ok();
            Arc::clone(&hit.meta)
        }
        None => Arc::default(),
    };
    start_part(fetch, request, meta, reply, writing, hole)
}

/// Where a part goes beside the one who wants it.
pub(crate) struct Writing {
    /// Where it starts.
    start: u64,
    /// The entry, where it is stored.
    fill: Option<Fill>,
    /// Those who wait for it to be stored.
    lead: Option<Lead>,
}

/// Passes a part of a body on while it comes, to one reader and to the store.
fn start_part(
    fetch: &Fetch,
    request: &Request,
    meta: Arc<Meta>,
    reply: Reply,
    writing: Writing,
    wanted: Range<u64>,
) -> Option<FillingReader> {
    let filling = Filling::of_part(meta, writing.start);
    let reader = filling.reader(wanted.start.max(writing.start)..wanted.end)?;
    let settings = (fetch.origin.upstream)(request.scope());
    let body = reply.body.into_body(request, settings, false);
    let counted = request.conn.thread.enter();
    rt::spawn(async move {
        pump(filling, body, writing).await;
        drop(counted);
    });
    Some(reader)
}

/// Takes a part from the upstream to the one who wants it, and to the store.
async fn pump(filling: Arc<Filling>, body: Body, writing: Writing) {
    let Writing { start, mut fill, lead } = writing;
    let mut at = start;
    // Where it may stop when nobody reads any more.
    let mut worth = None;
    let mut stream = match body {
        Body::Stream(stream) => stream,
        Body::Bytes(source) => {
            let whole = 0..source.bytes().len();
            RangedBody::of_bytes(source, whole).into_stream()
        }
        _ => return filling.finish(End::Broken),
    };
    let end = loop {
        match poll_fn(|context| stream.poll_next(context)).await {
            Ok(Some(source)) => {
                let bytes = source.bytes();
                if let Some(writing) = &mut fill
                    && writing.write(at, bytes).await.is_err()
                {
                    fill = None;
                }
                at += bytes.len() as u64;
                filling.push(bytes, None);
                if !filling.room().await {
                    // Whoever wanted it has it, or is gone. A chunk that has begun is worth its rest, and what others wait
                    // for is worth all of it; but players leave behind no more than the start of what they ask for.
                    let end = match &lead {
                        Some(_) => u64::MAX,
                        None => at.next_multiple_of(CHUNK_BYTES),
                    };
                    if fill.is_none() || at >= *worth.get_or_insert(end) {
                        break End::Broken;
                    }
                }
            }
            Ok(None) => break End::Whole,
            Err(_) => break End::Broken,
        }
    };
    filling.finish(end);
    // Whole chunks are as good as they would have been had the rest come too.
    if let Some(fill) = fill {
        let _ = fill.commit().await;
    }
    drop(lead);
}

impl Fetch {
    /// Fetches a range of what is not stored, and stores what came of it. `lead` is told when that is done.
    pub(crate) async fn part(
        self,
        request: &mut Request,
        asked: Asked,
        lead: Option<Lead>,
    ) -> Result<Reply, Failure> {
        let wanted = Wanted { is_shared: true, range: Some(asked.aligned()), ..Wanted::default() };
        let question = Question::new(&self.store);
        let reply = match (self.origin.ask)(request, &wanted).await {
            Ok(reply) => reply,
            Err(failure) => {
                let failed = Failed::of(request, failure);
                return self.conclude(request, Answered::Failed(failed)).await;
            }
        };
        let status = reply.head.head().status().code();
        record::of(request).forwarded_status = Some(status);
        if let Some(failed) = self.worse_than_stale(request, self.conf(request), status) {
            return self.conclude(request, Answered::Failed(failed)).await;
        }
        if status != 206 {
            // The whole, or an error: as if it had been asked for.
            return self.take_whole(request, question, reply, lead).await;
        }
        record::of(request).status = Some(Status::Miss);
        let found = ContentRange::of_part(reply.head.head(), reply.head.raw());
        let Ok((range, Some(length))) = found else {
            // Nobody can tell what of it the client wants; it asks for that itself.
            return (self.origin.ask)(request, &Wanted::default()).await;
        };
        let part = Part { range: range.start..range.end, length };
        let Some((fill, meta, heading)) = self.begin_part(request, &reply, &part, question).await else {
            return (self.origin.ask)(request, &Wanted::default()).await;
        };
        if let Some(lead) = lead.as_ref().filter(|_| fill.is_none()) {
            // Nobody has anything of waiting for it, and of waiting for one another.
            lead.publish(Outcome::Alone);
        }
        let (age, start) = (policy::age(&meta, now_s()), part.range.start);
        let writing = Writing { start, fill, lead };
        let reader = start_part(&self, request, meta, reply, writing, part.range.clone());
        let reader = reader.ok_or(Failure::Status(502))?;
        // The part will do, unless a filter wants more of the body than the client asked for.
        let child = detached(request).ok_or(Failure::Status(500))?;
        let same = stored::parse(heading.raw()).ok_or(Failure::Status(502))?;
        let source = Holed::new(Rc::new(self), child, None, Rc::new(same), Some((part.range, reader)));
        let body = Body::Ranged(RangedBody::new(Box::new(source), length));
        Ok(stored::as_new(stored::reply(heading, ReplyBody::Ready(body), Some(length), age)))
    }

    /// Begins to store a part of something new; what it is served with even where it is not stored. `None` when the
    /// head cannot be made to be that of the whole.
    async fn begin_part(
        &self,
        request: &mut Request,
        reply: &Reply,
        part: &Part,
        question: Question,
    ) -> Option<(Option<Fill>, Arc<Meta>, Heading)> {
        let conf = self.conf(request);
        let (head, raw) = (reply.head.head(), reply.head.raw());
        let answer = question.answer(reply, &reply.head, (self.origin.ignored)(request.scope()));
        let judged = match self.has_too_few_uses(conf) {
            true => Err(Unstored::TooFewUses),
            false => policy::judge(request, conf, &answer),
        };
        let mut stored_head = Vec::with_capacity(raw.len());
        policy::push_stored_head(b"200 OK", head.lines(raw), &mut stored_head);
        let heading = stored::parse(&stored_head)?;
        let mut fill = None;
        let mut meta = Meta { status: 200, length: Some(part.length), ..Meta::default() };
        match judged {
            Ok(facts) if validator(&reply.head).is_strong() => {
                meta = Meta { status: 200, length: Some(part.length), ..facts };
                let is_being_filled = self.cache.flights().under_way(&self.key).is_some();
                if !is_being_filled {
                    let new = New {
                        key: self.key,
                        text: self.text.clone(),
                        meta: meta.clone(),
                        head: stored_head,
                        is_partial: true,
                        sequence: answer.sequence,
                    };
                    fill = self.store.begin(new).await.ok();
                }
            }
            Ok(_) => record::of(request).unstored = Some(Unstored::Rules(NotStored::Partial)),
            Err(reason) => record::of(request).unstored = Some(reason),
        }
        record::of(request).stored = fill.is_some();
        Some((fill, Arc::new(meta), heading))
    }

    /// Serves a stored answer that has holes in what is wanted of it.
    pub(crate) async fn complete(
        self,
        request: &mut Request,
        hit: Hit,
        asked: Option<Asked>,
    ) -> Result<Reply, Failure> {
        let Some(located) = hit.located().cloned() else { return Err(Failure::Status(500)) };
        let wanted = asked.map_or(0..located.length, |asked| asked.within(located.length));
        let heading = Rc::new(stored::parse(hit.head()).ok_or(Failure::Status(502))?);
        let (fetch, hit) = (Rc::new(self), Rc::new(hit));
        let mut child = detached(request).ok_or(Failure::Status(500))?;
        let mut first = None;
        if let Some(hole) = located.missing(&wanted) {
            let question = Question::new(&fetch.store);
            let record = record::of(request);
            record.forwarded = Some(Forwarded::Partial);
            record.status = Some(Status::Miss);
            // On behalf of the request, so that its variables show what was asked.
            let reply = ask_for(&fetch, request, &heading, &hole).await?;
            let status = reply.head.head().status().code();
            record::of(request).forwarded_status = Some(status);
            if !fitting(&reply, &heading, &hole) {
                if status == 206 {
                    // Of something else than what is stored: the whole of it is asked for.
                    drop(reply);
                    return fetch.whole(request).await;
                }
                return fetch.take_alone(request, question, reply).await;
            }
            let reader = begin(&fetch, request, Some(&hit), reply, hole.clone()).await;
            first = Some((hole, reader.ok_or(Failure::Status(502))?));
        }
        child.is_detached = true;
        let (length, age) = (located.length, policy::age(&hit.meta, now_s()));
        let own = stored::parse(hit.head()).ok_or(Failure::Status(502))?;
        let source = Holed::new(fetch, child, Some(hit), heading, first);
        let body = Body::Ranged(RangedBody::new(Box::new(source), length));
        Ok(stored::reply(own, ReplyBody::Ready(body), Some(length), age))
    }

    /// Fetches the whole in the place of what is stored.
    async fn whole(&self, request: &mut Request) -> Result<Reply, Failure> {
        let question = Question::new(&self.store);
        let wanted = Wanted { is_shared: true, ..Wanted::default() };
        let reply = (self.origin.ask)(request, &wanted).await?;
        self.take_alone(request, question, reply).await
    }
}
