//! Responses from the cache: a stored response, or one being stored, as a [`Reply`]. It is handled like an upstream's response: the
//! same directives hide, rewrite and add fields, and the same filters change the body.
//!
//! A small body is in the same memory as its head, and both are sent by one call. A large body is a range of a file that the
//! location's engine transfers ([`FileBody`]) once its checksums were verified; before that it is verified while it is read
//! ([`Checked`]).

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use cache::{Hit, Located, Reader, StoreError};
use http::fields::HeaderId;
use http::response::parse::parse_written;
use io::SharedBytes;
use io::segments::Source;

use crate::filling::{Filling, PendingRead, SharedHead, source_of};
use crate::requested_range::slice_start;
use crate::{policy, record};
use exchange::request::Request;
use exchange::response::Body;
use transfer::body::choose::Mover;
use transfer::body::ranged::{Ranged, RangedBody};
use transfer::body::source::BodySource;
use transfer::body::{BodyError, FileBody, choose};
use upstream::{Heading, Reply, ReplyBody, Stored};

/// Maximum number of reads of a stored body in flight.
const READS: usize = 2;

/// Returns a stored response of this age. `None` if its header section is invalid, because another program wrote it.
pub fn of_hit(request: &mut Request, hit: Hit, age: u32) -> Option<Reply> {
    let heading = heading(&hit)?;
    if policy::is_of_head(&hit.meta) {
        return Some(of_head(heading, age));
    }
    let (length, read_by) = (hit.length(), hit.read_by);
    let body = match hit.body {
        cache::Body::Image(range) => {
            request.mover = read_by.map(|(via, direct)| Mover::Read { via, direct });
            Body::Slice(hit.image, range)
        }
        cache::Body::File(located) => body_of(request, located),
    };
    Some(reply(heading, ReplyBody::Ready(Box::new(body)), Some(length), age))
}

/// Returns a response that is still being fetched; `None` if it can no longer be joined.
pub fn of_filling(filling: &Arc<Filling>, age: u32) -> Option<Reply> {
    let heading = filling.heading()?;
    if policy::is_of_head(&filling.meta) {
        return Some(of_head(heading, age));
    }
    let length = filling.length();
    let reader = filling.reader(0..u64::MAX)?;
    let body = match length {
        // Each range gets a separate reader; this one prevents the needed bytes from being dropped.
        Some(length) => {
            let source =
                JoinedBody { filling: Arc::clone(filling), held: std::cell::Cell::new(Some(reader)) };
            Body::Ranged(RangedBody::new(Box::new(source), length))
        }
        None => Body::Source(Box::new(reader)),
    };
    Some(reply(heading, ReplyBody::Ready(Box::new(body)), length, age))
}

/// Returns a response to HEAD that is stored without a body.
fn of_head(heading: Heading, age: u32) -> Reply {
    let length = heading.head().get(heading.raw(), HeaderId::ContentLength).and_then(http::parse_decimal);
    reply(heading, ReplyBody::None, length, age)
}

/// Returns a response that was received completely and is being stored.
pub fn of_complete(filling: &Filling, bytes: SharedBytes, age: u32) -> Option<Reply> {
    let (heading, length) = (filling.heading()?, bytes.len() as u64);
    let body = Body::Bytes(Source::SharedBytes(bytes));
    Some(reply(heading, ReplyBody::Ready(Box::new(body)), Some(length), age))
}

/// Converts a response that was fetched for this request: it gets no `Age`, unless the `received` header section has one (RFC 9111
/// section 5.1: a response with `Age` was not generated for this request).
pub fn as_new(mut reply: Reply, received: &Heading) -> Reply {
    let is_old = received.head().get(received.raw(), HeaderId::Age).is_some();
    if let Some(stored) = &mut reply.stored {
        stored.age_s = stored.age_s.filter(|age| is_old && *age > 0);
    }
    reply
}

/// Returns a response from the cache, with its age in seconds.
pub fn reply(heading: Heading, body: ReplyBody, length: Option<u64>, age: u32) -> Reply {
    let received_at = (rt::now(), rt::wall());
    Reply { head: Rc::new(heading), body, received_at, stored: Some(Stored { length, age_s: Some(age) }) }
}

/// Returns the header section of an entry. Of an entry in memory, neither the bytes nor their parsed form are copied.
pub fn heading(hit: &Hit) -> Option<Heading> {
    let parsed = Arc::clone(hit.parsed_head()?);
    Some(match &hit.image {
        Source::Shared(image) => Heading::within(Source::Shared(Arc::clone(image)), hit.head_range(), parsed),
        _ => Heading::new(Source::Vec(hit.head().to_vec()), parsed),
    })
}

/// Parses a header section that this cache has written.
pub fn parse(bytes: &[u8]) -> Option<Heading> {
    parse_written(bytes).map(|head| Heading::new(Source::Vec(bytes.to_vec()), head))
}

/// Returns the header section of an entry for readers on all threads.
pub fn shared(hit: &Hit) -> Option<SharedHead> {
    Some(SharedHead::new(hit.head().into(), Arc::clone(hit.parsed_head()?)))
}

/// Returns a body in a cache file: transferred like the location's files once its checksums were verified, otherwise verified while
/// it is read.
fn body_of(request: &mut Request, located: Located) -> Body {
    let whole = 0..located.length;
    // A slice becomes a part of another body.
    if !located.is_verified(&whole) || slice_start(request).is_some() {
        return Body::Ranged(RangedBody::new(Box::new(Checked(located)), whole.end));
    }
    let thread_config = Rc::clone(&request.thread_config);
    let core = &thread_config.config.location(request.location).scope.core;
    let mover = match choose::mover(&core.sending, &rt::caps(), located.length) {
        mover @ (Mover::Read { direct: true, .. } | Mover::Shared { direct: true, .. }) => mover,
        // The file was opened with O_DIRECT because of its length.
        _ if located.file.fd().is_direct() => Mover::Read { via: located.disk.via, direct: true },
        mover => mover,
    };
    request.mover = Some(mover);
    record::record_of(request).is_sent_from_file = true;
    let part = located.offset..located.offset + located.length;
    let events = thread_config.config.events();
    let calls_directly = located.calls_directly() && events.calls_directly();
    Body::File(FileBody::of_range(
        located.file,
        located.disk.device,
        part,
        mover,
        calls_directly,
        exchange::files::open_context(request),
    ))
}

/// A stored body that is verified while it is read.
pub struct Checked(pub Located);

impl Ranged for Checked {
    fn open(&self, range: Range<u64>) -> Box<dyn BodySource> {
        Box::new(CheckedSource { state: StoredRead::Ready(Box::new(self.0.read(range, READS))) })
    }

    fn is_read_at_will(&self) -> bool {
        true
    }
}

enum StoredRead {
    Ready(Box<Reader>),
    Pending(PendingRead),
    Over,
}

/// State of reading a [`Checked`] body.
struct CheckedSource {
    state: StoredRead,
}

impl BodySource for CheckedSource {
    fn is_reading(&self) -> bool {
        matches!(self.state, StoredRead::Pending(_))
    }

    fn set_client_space(&mut self, bytes: u64) {
        if let StoredRead::Ready(reader) = &mut self.state {
            reader.set_client_space(bytes);
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        let mut pending = match std::mem::replace(&mut self.state, StoredRead::Over) {
            StoredRead::Over => return Poll::Ready(Ok(None)),
            StoredRead::Pending(pending) => pending,
            StoredRead::Ready(mut reader) => Box::pin(async move {
                let piece = reader.next().await;
                (reader, piece)
            }) as PendingRead,
        };
        let Poll::Ready((reader, piece)) = pending.as_mut().poll(context) else {
            self.state = StoredRead::Pending(pending);
            return Poll::Pending;
        };
        match piece {
            Ok(Some(piece)) => {
                self.state = StoredRead::Ready(reader);
                Poll::Ready(Ok(Some(source_of(piece))))
            }
            Ok(None) => Poll::Ready(Ok(None)),
            Err(StoreError::NoMemory) => Poll::Ready(Err(BodyError::NoMemory)),
            Err(_) => Poll::Ready(Err(BodyError::Broken)),
        }
    }
}

/// A body that is being stored.
struct JoinedBody {
    filling: Arc<Filling>,
    held: std::cell::Cell<Option<crate::filling::FillingReader>>,
}

impl Ranged for JoinedBody {
    fn open(&self, range: Range<u64>) -> Box<dyn BodySource> {
        // The first range continues the reader that joined; later ranges read the bytes that are in the file by then.
        if let Some(mut reader) = self.held.take() {
            reader.narrow(range);
            return Box::new(reader);
        }
        match self.filling.reader(range) {
            Some(reader) => Box::new(reader),
            None => Box::new(Lost),
        }
    }
}

/// The body of a range that is no longer available.
pub struct Lost;

impl BodySource for Lost {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        Poll::Ready(Err(BodyError::Broken))
    }
}
