//! `slice`: a large response is requested in slices of one size, each stored as a separate entry.
//!
//! The configuration triggers it: `proxy_set_header Range $slice_range`, with the variable in the cache key. A request that
//! evaluates the variable fetches one slice. If the response is that slice (206), it is converted to the complete response. The
//! other slices are fetched as the client reaches them, by requests in the same location. Ranges of the client are cut out of the
//! complete response, so that only the slices that they overlap are fetched.
//!
//! Main type: [`Slices`], the body that consists of slices.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use conf::{Args, Spec};
use http::fields::HeaderId;
use http::range::ContentRange;
use io::segments::Source;

use crate::{Declaration, Directive, Module};
use caching::fetch::detached;
use caching::requested_range::{RenewsSlice, RequestedSlice, requested_slice, slice_start};
use exchange::course;
use exchange::module::Variable;
use exchange::request::Request;
use exchange::response::Body;
use site::config::{Settings, SettingsType};
use site::declaration::LEVELS;
use telemetry::Level;
use transfer::body::BodyError;
use transfer::body::ranged::{Ranged, RangedBody, Subrange};
use transfer::body::source::BodySource;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "slice_range",
        get: show_range,
        set: None,
        help: "The range of the requested slice, in the form of `Range`.",
    }],
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().size > 0 {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[&[Directive::scope(
            Spec::new(
                "http_slice",
                "slice",
                LEVELS,
                Args::Exactly(1),
                "Size of the slices, for `$slice_range`; 0 disables slices.",
            )
            .default("0"),
            |scope, cx| cx.size(&mut scope.make_mut::<Conf>().size),
        )]],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_slice")
    })
};

/// The settings of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// `slice`
    pub(crate) size: u64,
}

impl Settings for Conf {}

/// Appends the range to `out`, and marks the request as a request for a slice. Appends nothing in subrequests, or if a response
/// already exists.
fn show_range(request: &Request, out: &mut Vec<u8>) -> bool {
    let size = request.scope().of::<Conf>().size;
    if size == 0 {
        return false;
    }
    let known = requested_slice(request);
    let start = match known {
        Some(slice) => slice.start,
        None if request.depth > 0 || request.response.status != 0 => return false,
        None => {
            let start = first_byte(request) / size * size;
            // A slice that ends beyond the maximum offset is replaced by the first slice: the response to it has the complete
            // length.
            if start.checked_add(size).is_some_and(|end| end <= i64::MAX as u64) { start } else { 0 }
        }
    };
    let slice = RequestedSlice { start, size };
    if known != Some(slice) {
        request.facts.insert(slice);
    }
    out.extend_from_slice(format!("bytes={start}-{}", slice.last()).as_bytes());
    true
}

/// Returns the start of the client's range; 0 with `If-Range` or several ranges, since the bytes to send are not known yet.
fn first_byte(request: &Request) -> u64 {
    if request.header(HeaderId::IfRange).is_some() {
        return 0;
    }
    let Some(value) = request.header(HeaderId::Range) else { return 0 };
    let Some((unit, spec)) = value.split_at_checked(6) else { return 0 };
    if !unit.eq_ignore_ascii_case(b"bytes=") || spec.contains(&b',') {
        return 0;
    }
    let spec = spec.trim_ascii_start();
    let digits = spec.iter().take_while(|byte| byte.is_ascii_digit()).count();
    http::parse_decimal(&spec[..digits]).unwrap_or(0)
}

/// Reason why a response is not the requested slice, with nginx's message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wrong {
    Status(u16),
    /// nginx compares entity tags only.
    Validator,
    NoRange,
    NoLength,
    Range {
        found: Range<u64>,
        expected: Range<u64>,
    },
    /// nginx does not check it.
    Length {
        found: u64,
        expected: u64,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Status(status) => write!(f, "unexpected status code {status} in slice response"),
            Wrong::Validator => f.write_str("etag mismatch in slice response"),
            Wrong::NoRange => f.write_str("invalid range in slice response"),
            Wrong::NoLength => f.write_str("no complete length in slice response"),
            Wrong::Range { found, expected } => write!(
                f,
                "unexpected range in slice response: {}-{}, expected: {}-{}",
                found.start, found.end, expected.start, expected.end
            ),
            Wrong::Length { found, expected } => {
                write!(f, "unexpected complete length in slice response: {found}, expected: {expected}")
            }
        }
    }
}

/// Returns the slice in a response, and the length of the complete response.
fn slice_of(request: &Request, start: u64, size: u64) -> Result<(Range<u64>, u64), Wrong> {
    let value = request.response.content_range.as_deref();
    let Some(ContentRange::Part { range, size: complete }) = value.and_then(ContentRange::parse) else {
        return Err(Wrong::NoRange);
    };
    let length = complete.ok_or(Wrong::NoLength)?;
    let (found, expected) = (range.start..range.end, RequestedSlice { start, size }.within(length));
    if found != expected {
        return Err(Wrong::Range { found, expected });
    }
    Ok((found, length))
}

/// The validator of a slice, by which slices of different versions are told apart.
#[derive(PartialEq, Eq)]
enum Validator {
    Etag(Vec<u8>),
    /// Without an entity tag.
    Modified(i64),
}

fn validator_of(request: &Request) -> Option<Validator> {
    let response = &request.response;
    let etag = response.etag.as_ref().map(|etag| Validator::Etag(etag.as_bytes().to_vec()));
    etag.or_else(|| response.last_modified.map(Validator::Modified))
}

/// Converts the response for a slice to the complete response. Other responses are unchanged.
fn filter(conf: &Conf, request: &mut Request) {
    let Some(start) = slice_start(request) else { return };
    if request.depth > 0 || request.response.status != 206 {
        return;
    }
    let size = conf.size;
    let (slice, length) = match slice_of(request, start, size) {
        Ok(found) => found,
        Err(wrong) => {
            request.log(Level::Error, format_args!("{wrong}"));
            request.response.refusal = Some(500);
            return;
        }
    };
    let (seed, validator) = (RefCell::new(detached(request)), validator_of(request));
    let response = &mut request.response;
    (response.status, response.reason, response.content_range) = (200, None, None);
    (response.content_length, response.allow_ranges) = (Some(length), true);
    response.remove_field(b"Accept-Ranges");
    let body = std::mem::take(&mut response.body);
    let shared = Rc::new(Shared { seed, validator, size, length, first: slice.start });
    let slices = Slices { shared, first: RefCell::new(Some((slice.start, body))) };
    response.body = Body::Ranged(RangedBody::new(Box::new(slices), length));
}

/// State shared by the slices of one response.
struct Shared {
    /// The request from which requests for further slices are created.
    seed: RefCell<Box<Request>>,
    /// The validator of the first slice, which further slices must have too: cached slices may be of different versions.
    validator: Option<Validator>,
    size: u64,
    /// Length of the complete response in bytes.
    length: u64,
    /// Offset of the slice that determined the version.
    first: u64,
}

/// A body that is fetched slice by slice. A slice is fetched when the client reaches it; none are fetched for a client that has
/// stopped reading.
struct Slices {
    shared: Rc<Shared>,
    /// The slice that was already fetched, with its offset.
    first: RefCell<Option<(u64, Body)>>,
}

impl Ranged for Slices {
    fn open(&self, range: Range<u64>) -> Box<dyn BodySource> {
        let first = self.first.take();
        Box::new(SliceSource { shared: Rc::clone(&self.shared), range, first, state: State::Next })
    }

    fn is_read_at_will(&self) -> bool {
        true
    }
}

struct SliceSource {
    shared: Rc<Shared>,
    /// The remaining range to serve.
    range: Range<u64>,
    first: Option<(u64, Body)>,
    state: State,
}

type Fetching = Pin<Box<dyn Future<Output = Option<Body>>>>;

enum State {
    /// Not determined yet.
    Next,
    /// A slice was requested, of which this range is needed.
    Fetching(Range<u64>, Fetching),
    /// A slice is arriving.
    Live(Box<dyn BodySource>),
}

impl SliceSource {
    /// Starts the next part of the range.
    fn next(&mut self) -> Result<State, BodyError> {
        let size = self.shared.size;
        let start = self.range.start / size * size;
        let end = self.range.end.min(start + size);
        debug_assert!(start <= self.range.start && self.range.start < end, "the slice has the next byte");
        let part = self.range.start - start..end - start;
        self.range.start = end;
        match self.first.take() {
            Some((at, body)) if at == start => Ok(State::Live(part_of(body, part)?)),
            _ => {
                let shared = Rc::clone(&self.shared);
                Ok(State::Fetching(part, Box::pin(async move { shared.fetch(start).await })))
            }
        }
    }
}

impl BodySource for SliceSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            match &mut self.state {
                State::Next if self.range.is_empty() => return Poll::Ready(Ok(None)),
                State::Next => self.state = self.next()?,
                State::Fetching(part, fetching) => {
                    let part = part.clone();
                    let body = ready!(fetching.as_mut().poll(context)).ok_or(BodyError::Broken)?;
                    self.state = State::Live(part_of(body, part)?);
                }
                State::Live(stream) => match ready!(stream.poll_next(context))? {
                    Some(source) => return Poll::Ready(Ok(Some(source))),
                    None => self.state = State::Next,
                },
            }
        }
    }

    fn is_reading(&self) -> bool {
        matches!(&self.state, State::Live(stream) if stream.is_reading())
    }
}

impl Shared {
    /// Fetches the slice at this offset in the location of the first slice; failures are logged. A stored slice of another version
    /// is replaced. If the upstream has another version than the first slice, the first slice is replaced for later requests: this
    /// response cannot be completed, because its head was sent.
    async fn fetch(&self, start: u64) -> Option<Body> {
        let (mut request, mut checked) = self.request(start, false).await;
        if matches!(checked, Err(Wrong::Validator | Wrong::Length { .. })) {
            (request, checked) = self.request(start, true).await;
            if matches!(checked, Err(Wrong::Validator | Wrong::Length { .. })) {
                // The fill continues without this reader.
                drop(self.request(self.first, true).await);
            }
        }
        match checked {
            Ok(()) => Some(std::mem::take(&mut request.response.body)),
            Err(wrong) => {
                request.log(Level::Error, format_args!("{wrong}"));
                None
            }
        }
    }

    /// Requests the slice at this offset, and compares it with the first slice. `renews` is whether the upstream is contacted even
    /// if the slice is stored.
    async fn request(&self, start: u64, renews: bool) -> (Box<Request>, Result<(), Wrong>) {
        let mut request = detached(&self.seed.borrow());
        request.facts.insert(RequestedSlice { start, size: self.size });
        if renews {
            request.facts.insert(RenewsSlice);
        }
        {
            let run: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(course::run_content(&mut request));
            run.await;
        }
        let checked = match request.response.status {
            206 if self.validator.is_some() && validator_of(&request) != self.validator => {
                Err(Wrong::Validator)
            }
            206 => slice_of(&request, start, self.size).and_then(|(_, length)| match length {
                length if length == self.length => Ok(()),
                found => Err(Wrong::Length { found, expected: self.length }),
            }),
            status => Err(Wrong::Status(status)),
        };
        (request, checked)
    }
}

/// Returns a range of the body of a slice. For slice requests, cache files are returned as [`Body::Ranged`].
fn part_of(body: Body, part: Range<u64>) -> Result<Box<dyn BodySource>, BodyError> {
    let of_bytes = |source: Source, all: Range<usize>| {
        let (start, end) = (all.start + part.start as usize, all.start + part.end as usize);
        // The head announced the length; the body itself may be shorter.
        if end > all.end { Err(BodyError::Broken) } else { Ok(RangedBody::of_bytes(source, start..end)) }
    };
    match body {
        Body::Bytes(source) => {
            let all = 0..source.bytes().len();
            Ok(of_bytes(source, all)?.into_source())
        }
        Body::Slice(source, all) => Ok(of_bytes(source, all)?.into_source()),
        Body::Ranged(body) => Ok(Box::new(Subrange::new(body.into_source(), part))),
        Body::Source(stream) => Ok(Box::new(Subrange::new(stream, part))),
        Body::None | Body::File(_) | Body::Tunnel(_) => Err(BodyError::Broken),
    }
}
