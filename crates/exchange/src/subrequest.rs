//! Subrequests, which the server makes while it serves a request: for `auth_request`, `mirror`, `ssi`, `addition`.
//!
//! As in nginx a subrequest has the client's header section and its own URI, and shares the variables of the
//! configuration with its parent. It starts with the server's rewrites and skips the access phase. Its creator may use
//! or discard its response.

pub(crate) mod spec;

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use http::fields::{HeaderId, Method};
use http::request::{Composer, Head};
use rt::local::Event;
use rt::{Either, select};

use crate::request::Request;
use crate::{course, effect};
pub use spec::Subrequest;
use telemetry::{ForLog, Level};

/// A subrequest that runs concurrently up to its response. Dropping this value abandons it.
pub struct RunningSubrequest {
    child: Rc<RefCell<Option<Box<Request>>>>,
    done: Event,
    aborted: Event,
}

/// Sets an event when dropped, so that waiting tasks continue after a panic.
struct SetOnDrop(Event);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl RunningSubrequest {
    /// Whether the response is complete, or the subrequest has failed.
    pub fn is_done(&self) -> bool {
        self.done.is_set()
    }

    /// Waits until the response is complete, or the subrequest has failed.
    pub async fn wait(&self) {
        self.done.wait().await;
    }

    /// Returns the response, which must be passed to [`finish`].
    pub fn take(self) -> Option<Box<Request>> {
        self.child.take()
    }
}

impl Drop for RunningSubrequest {
    fn drop(&mut self) {
        self.aborted.set();
    }
}

/// Maximum nesting of subrequests (nginx's limit); more mean a loop.
const DEPTH_MAX: u8 = 51;

/// Maximum number of subrequests of one client request (the maximum of nginx's reference counter). Otherwise a page
/// that includes itself twice would cause 2^50 subrequests.
const COUNT_MAX: u32 = 64_535;

/// Runs a subrequest up to its response, which is returned and not sent. Returns `None` if the subrequest is not
/// allowed. The result must be passed to [`finish`].
pub async fn fetch(parent: &Request, spec: &Subrequest) -> Option<Box<Request>> {
    let mut child = start(parent, spec)?;
    carry_out(&mut child).await;
    Some(child)
}

/// As [`fetch`], concurrently with other work for `parent`.
pub fn begin(parent: &Request, spec: &Subrequest) -> Option<RunningSubrequest> {
    let mut child = start(parent, spec)?;
    let under_way = RunningSubrequest { child: Rc::default(), done: Event::new(), aborted: Event::new() };
    let (result, aborted) = (Rc::clone(&under_way.child), under_way.aborted.clone());
    let done = SetOnDrop(under_way.done.clone());
    rt::spawn(async move {
        let carried = select(carry_out(&mut child), aborted.wait()).await;
        if let Either::Left(()) = carried {
            result.replace(Some(child));
        }
        drop(done);
    });
    Some(under_way)
}

/// Runs a subrequest in the background with a copy of the variables, and discards its response. The connection waits
/// for it before its next request. Returns `false` if the subrequest is not allowed.
pub fn in_background(parent: &mut Request, spec: &Subrequest) -> bool {
    let Some(mut child) = start(parent, spec) else { return false };
    child.shared = Rc::new(parent.detached_values());
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

/// Calls the modules' hooks for a request that shares no state with its parent.
pub fn detach(parent: &Request, child: &mut Request) {
    for detach in parent.thread_config.modules.subrequest_hooks().iter().filter_map(|hooks| hooks.detach) {
        detach(parent, child);
    }
}

/// Writes the log of a subrequest whose response was used.
pub fn finish(child: Box<Request>) {
    write_log(&child);
}

/// Sends a request for `target`, a path with its query, through the phases as if the client had requested it, and
/// discards its response. Its handler recognises it by the extension `errand`. If `target` is invalid no subrequest is
/// made.
pub async fn visit<T: 'static>(parent: &Request, target: &[u8], errand: T) {
    let Some(mut child) = fetching(parent, target) else { return };
    detach(parent, &mut child);
    child.extensions.insert(errand);
    let child = &mut child;
    let run: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(course::run_unfiltered(child));
    run.await;
}

/// Returns a separate request with a composed header section: another target, and the parent's fields except the fields
/// about the body, ranges, or the client's cached copy.
fn fetching(parent: &Request, target: &[u8]) -> Option<Box<Request>> {
    let mut child = parent.child();
    child.shared = Rc::new(parent.shared.detached());
    child.head = Head::new();
    let (bytes, policy) = (parent.bytes(), effect::policy(&parent.scope().core));
    let mut composed = Vec::with_capacity(bytes.len() + target.len());
    let (version, line) = (parent.head.version(), (&b"GET"[..], target));
    let mut composer = Composer::begin(&mut child.head, &mut composed, &policy, version, line).ok()?;
    for field in parent.head.fields().iter().filter(|field| !is_of_one_request(field.id)) {
        composer.field(field.name.of(bytes), field.value.of(bytes)).ok()?;
    }
    composer.finish(false).ok()?;
    child.take_head(io::segments::Source::Vec(composed), 0);
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

/// Whether `parent` may make a subrequest to this URI; if not, the reason is logged.
pub fn is_allowed(parent: &Request, uri: &[u8]) -> bool {
    let what = match (parent.depth, parent.shared.subrequests.get()) {
        (DEPTH_MAX.., _) => "subrequests cycle",
        (_, COUNT_MAX..) => "request reference counter overflow",
        _ => return true,
    };
    parent.log(Level::Error, format_args!("{what} while processing \"{}\"", uri.for_log()));
    false
}

/// Splits a URI from a page into decoded path and query. Returns `None` and logs an error if the URI leads out of the
/// root.
pub fn parse_uri(request: &Request, text: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let question = memchr::memchr(b'?', text);
    let (coded, args) = match question {
        Some(result) => (&text[..result], &text[result + 1..]),
        None => (text, &b""[..]),
    };
    let mut path = Vec::with_capacity(coded.len());
    http::uri::unescape(coded, &mut path);
    let climbs = |path: &[u8]| path.split(|&byte| byte == b'/').any(|segment| segment == b"..");
    if coded.is_empty() || climbs(coded) || climbs(&path) || path.contains(&0) {
        request.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", text.for_log()));
        return None;
    }
    Some((path, args.to_vec()))
}

fn start(parent: &Request, spec: &Subrequest) -> Option<Box<Request>> {
    if !is_allowed(parent, &spec.uri) {
        return None;
    }
    let mut child = parent.child();
    child.uri.clone_from(&spec.uri);
    child.args.clone_from(&spec.args);
    // As in nginx a subrequest uses GET by default, whatever the parent's method is.
    child.method = if spec.uses_parent_method { parent.method } else { Method::Get };
    let made = &parent.shared.subrequests;
    made.set(made.get() + 1);
    for begin in parent.thread_config.modules.subrequest_hooks().iter().filter_map(|hooks| hooks.begin) {
        begin(parent, &mut child);
    }
    Some(child)
}

/// Runs a subrequest to its response. Boxed, because the phases of a request may run the phases of a subrequest.
fn carry_out(child: &mut Request) -> Pin<Box<dyn Future<Output = ()> + '_>> {
    Box::pin(course::run_subrequest(child))
}

fn write_log(child: &Request) {
    for end in child.thread_config.modules.subrequest_hooks().iter().filter_map(|hooks| hooks.end) {
        end(child);
    }
    if child.scope().core.subrequests.log {
        child.end();
    }
}
