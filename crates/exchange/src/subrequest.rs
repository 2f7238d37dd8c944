//! Requests that the server makes of itself while it answers one: for `auth_request`, `mirror`, `ssi`,
//! `addition`.
//!
//! As in nginx a subrequest has the client's header section and its own URI, and shares the variables of the
//! configuration with its parent. It passes the phases from the server's rewrites on, without the access phase, and
//! ends with a response that its creator may use or discard.

mod wanted;

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use http::request::{Composer, Head, HeaderId, Method};
use rt::local::Event;
use rt::{Either, select};

use crate::request::Request;
use crate::{course, effect};
use telemetry::Level;
pub use wanted::Subrequest;

/// A subrequest that is carried out up to its response, beside whatever else is done. To drop it is to give it up.
pub struct UnderWay {
    child: Rc<RefCell<Option<Box<Request>>>>,
    done: Event,
    given_up: Event,
}

/// Sets an event when it is dropped, so that a task that panics leaves no one waiting.
struct SetOnDrop(Event);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl UnderWay {
    /// Whether the response is here, or there will be none.
    pub fn is_done(&self) -> bool {
        self.done.is_set()
    }

    /// Waits until the response is here, or there will be none.
    pub async fn wait(&self) {
        self.done.wait().await;
    }

    /// The response. [`finish`] is to be called with it.
    pub fn take(self) -> Option<Box<Request>> {
        self.child.take()
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.given_up.set();
    }
}

/// Subrequests inside of each other; more are a loop (nginx's limit).
const DEPTH_MAX: u8 = 51;

/// Subrequests of one request of a client, counted together (what nginx's counter of references allows). Without
/// it a page that includes itself twice would be 2 to the power of 50.
const COUNT_MAX: u32 = 64_535;

/// Carries out a subrequest up to its response, which is in the result and not sent. `None` when it must not be.
/// [`finish`] is to be called with the result.
pub async fn answer(parent: &Request, wanted: &Subrequest) -> Option<Box<Request>> {
    let mut child = start(parent, wanted)?;
    carry_out(&mut child).await;
    Some(child)
}

/// As [`answer`], beside whatever else is done for `parent`.
pub fn begin(parent: &Request, wanted: &Subrequest) -> Option<UnderWay> {
    let mut child = start(parent, wanted)?;
    let under_way = UnderWay { child: Rc::default(), done: Event::new(), given_up: Event::new() };
    let (place, given_up) = (Rc::clone(&under_way.child), under_way.given_up.clone());
    let done = SetOnDrop(under_way.done.clone());
    rt::spawn(async move {
        let carried = select(carry_out(&mut child), given_up.wait()).await;
        if let Either::Left(()) = carried {
            place.replace(Some(child));
        }
        drop(done);
    });
    Some(under_way)
}

/// Carries out a subrequest beside the request, with a copy of the variables, and throws its response away. The
/// connection waits for it before its next request. `false` when it must not be.
pub fn in_background(parent: &mut Request, wanted: &Subrequest) -> bool {
    let Some(mut child) = start(parent, wanted) else { return false };
    child.shared = Rc::new(parent.shared.apart_with_values());
    child.shared.subrequests.set(parent.shared.subrequests.get());
    detach(parent, &mut child);
    let counted = parent.background.get_or_insert_default().enter();
    rt::spawn(async move {
        carry_out(&mut child).await;
        write_log(&child);
        drop(counted);
    });
    true
}

/// Has the modules prepare a request that shares nothing with its parent.
fn detach(parent: &Request, child: &mut Request) {
    for detach in parent.config().http.subrequest_hooks.iter().filter_map(|hooks| hooks.detach) {
        detach(parent, child);
    }
}

/// The response of a subrequest was used: writes the log.
pub fn finish(child: Box<Request>) {
    write_log(&child);
}

/// Sends a request through the phases that looks as if the client had fetched `target`, a path with its query, and
/// throws its response away. The handler that it is meant for knows it by `errand`, which is among its extensions; no
/// subrequest is made if `target` is invalid.
pub async fn visit<T: 'static>(parent: &Request, target: &[u8], errand: T) {
    let Some(mut child) = fetching(parent, target) else { return };
    detach(parent, &mut child);
    child.extensions.insert(errand);
    let child = &mut child;
    let run: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(course::run_unfiltered(child));
    run.await;
}

/// A separate request with a composed header section: the parent's fields behind another target, without those about a
/// body, about ranges, or about the client's cached copy.
fn fetching(parent: &Request, target: &[u8]) -> Option<Box<Request>> {
    let mut child = parent.child()?;
    child.shared = Rc::new(parent.shared.apart());
    child.head = Head::new();
    let (bytes, policy) = (parent.bytes(), effect::policy(&parent.scope().core));
    let mut composed = Vec::with_capacity(bytes.len() + target.len());
    let (version, line) = (parent.head.version(), (&b"GET"[..], target));
    let mut composer = Composer::begin(&mut child.head, &mut composed, &policy, version, line).ok()?;
    for field in parent.head.fields().iter().filter(|field| !is_of_one_request(field.id)) {
        composer.field(field.name.of(bytes), field.value.of(bytes)).ok()?;
    }
    composer.finish(false).ok()?;
    let mut raw = rt::pool().get(composed.len())?;
    raw.append(&composed);
    child.take_head(io::op::Source::Buf(raw), 0);
    (child.method, child.internal, child.is_detached, child.body) = (Method::Get, false, true, None);
    course::read_uri(&mut child).then_some(child)
}

fn is_of_one_request(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::ContentLength
            | HeaderId::TransferEncoding
            | HeaderId::Expect
            | HeaderId::Range
            | HeaderId::IfRange
            | HeaderId::IfMatch
            | HeaderId::IfNoneMatch
            | HeaderId::IfModifiedSince
            | HeaderId::IfUnmodifiedSince
    )
}

/// Whether `parent` may make a subrequest to this URI; the log has the reason.
pub fn is_allowed(parent: &Request, uri: &[u8]) -> bool {
    let what = match (parent.depth, parent.shared.subrequests.get()) {
        (DEPTH_MAX.., _) => "subrequests cycle",
        (_, COUNT_MAX..) => "request reference counter overflow",
        _ => return true,
    };
    parent.log(Level::Error, format_args!("{what} while processing \"{}\"", uri.escape_ascii()));
    false
}

/// Takes a URI from a page apart into path, decoded, and query; `None`, with a line in the log, where it leads out
/// of the root.
pub fn parse_uri(request: &Request, text: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let question = memchr::memchr(b'?', text);
    let (coded, args) = match question {
        Some(place) => (&text[..place], &text[place + 1..]),
        None => (text, &b""[..]),
    };
    let mut path = Vec::with_capacity(coded.len());
    http::uri::unescape(coded, &mut path);
    let climbs = |path: &[u8]| path.split(|&byte| byte == b'/').any(|segment| segment == b"..");
    if coded.is_empty() || climbs(coded) || climbs(&path) || path.contains(&0) {
        request.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", text.escape_ascii()));
        return None;
    }
    Some((path, args.to_vec()))
}

fn start(parent: &Request, wanted: &Subrequest) -> Option<Box<Request>> {
    if !is_allowed(parent, &wanted.uri) {
        return None;
    }
    let mut child = parent.child()?;
    child.uri.clone_from(&wanted.uri);
    child.args.clone_from(&wanted.args);
    // As in nginx: it is fetched, whatever the method was that led to it.
    child.method = if wanted.keeps_method { parent.method } else { Method::Get };
    let made = &parent.shared.subrequests;
    made.set(made.get() + 1);
    for begin in parent.config().http.subrequest_hooks.iter().filter_map(|hooks| hooks.begin) {
        begin(parent, &mut child);
    }
    Some(child)
}

/// Runs a subrequest to its response. Boxed, because the phases of a request may run those of another.
fn carry_out(child: &mut Request) -> Pin<Box<dyn Future<Output = ()> + '_>> {
    Box::pin(course::run_subrequest(child))
}

fn write_log(child: &Request) {
    if child.scope().core.subrequests.log {
        child.end();
    }
}
