//! Serves files of the document root.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use http::conditional::Etag;
use http::fields::Method;
use smallvec::smallvec;

use crate::{Declaration, Module};
use exchange::files::{self, Failure, Opened, OpenedPath};
use exchange::phases::{Later, Phase, Step};
use exchange::request::Request;
use exchange::response::{Body, ContentType};
use telemetry::Level;
use transfer::body::{FileBody, Piece, choose};

/// The module; it has no directives.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, _, plan| {
        plan.now_or_later(
            Phase::Content,
            Arc::new(()),
            |(), request| now(request),
            |(), request| later(request),
        );
    },
    ..Module::of(Declaration::named("http_static"))
};

/// Serves a file without waiting for the disk, if `open_file_cache` has the file or the kernel has cached its path. So no
/// future is created for it.
fn now(request: &mut Request) -> Option<Step> {
    // As in nginx POST continues up to the file, so that directories and missing files have the same response as for
    // GET.
    if !matches!(request.method, Method::Get | Method::Head | Method::Post) {
        return Some(Step::Status(405));
    }
    if files::is_alias_undefined(request) {
        return Some(Step::Status(500));
    }
    // A directory: its index was searched before, so the request is left to the following modules.
    if request.uri.last() == Some(&b'/') {
        return Some(Step::Next);
    }
    // The path is returned unchanged, for messages and for reuse of its memory.
    let mut path = path(request);
    let step = files::try_open(request, &mut path).map(|found| serve(request, found, &path));
    request.path = path;
    step
}

/// Serves a file, and waits for the disk. [`now`] has stored the path in the request.
fn later(request: &mut Request) -> Later<'_> {
    Box::pin(async {
        let path = std::mem::take(&mut request.path);
        let found = files::open_by_engine(request, &path).await;
        let step = serve(request, found, &path);
        request.path = path;
        step
    })
}

/// Opens the file of the URI for a handler that serves a complete location. Returns the file and its path, or the step
/// to take. Everything except regular files is left to the following handlers.
pub(crate) async fn open(request: &mut Request) -> Result<(Opened, Vec<u8>), Step> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Err(Step::Status(405));
    }
    if request.uri.ends_with(b"/") {
        return Err(Step::Next);
    }
    if files::is_alias_undefined(request) {
        return Err(Step::Status(500));
    }
    let mut path = Vec::new();
    files::path_of(request, &request.uri, &mut path);
    match files::open(request, path.clone()).await {
        Ok(OpenedPath::File(opened)) => Ok((opened, path)),
        Ok(OpenedPath::Directory | OpenedPath::Special) => Err(Step::Next),
        Err(failure) => Err(refused(request, failure, &path)),
    }
}

/// Returns the path of the URI, in memory that the request retains for it.
fn path(request: &mut Request) -> Vec<u8> {
    let mut path = std::mem::take(&mut request.path);
    path.clear();
    files::path_of(request, &request.uri, &mut path);
    path
}

/// Responds with the file at the path of the URI.
fn serve(request: &mut Request, found: Result<OpenedPath, Failure>, path: &[u8]) -> Step {
    match found {
        Ok(OpenedPath::File(_)) if request.method == Method::Post => Step::Status(405),
        Ok(OpenedPath::File(opened)) => {
            respond(request, opened);
            Step::Done
        }
        Ok(OpenedPath::Directory) => add_slash(request),
        // The open did not block on a FIFO (O_NONBLOCK), so a special file is detected here.
        Ok(OpenedPath::Special) => {
            let path = files::display(path);
            request.log(Level::Crit, format_args!("\"{path}\" is not a regular file"));
            Step::Status(404)
        }
        Err(failure) => refused(request, failure, path),
    }
}

/// Returns nginx's status for this failure, and logs the failure: at level crit if the status is 500.
pub(crate) fn refused(request: &Request, failure: Failure, path: &[u8]) -> Step {
    let status = files::status_of(failure.errno);
    let level = if status == 500 { Level::Crit } else { Level::Error };
    // Common on a site with broken links, so the line can be turned off.
    if status != 404 || request.scope().core.responding.log_not_found {
        request.log(level, format_args!("{}", failure.at(path)));
    }
    Step::Status(status)
}

/// Redirects a request for a directory to the URI with a trailing slash, which relative links in it need.
fn add_slash(request: &mut Request) -> Step {
    let mut location = Vec::with_capacity(request.uri.len() + request.args.len() + 2);
    // The path is escaped, so that decoded bytes cannot inject header fields.
    http::uri::escape_uri(&request.uri, &mut location);
    location.push(b'/');
    if !request.args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&request.args);
    }
    request.response.location = Some(location);
    Step::Status(301)
}

/// Replaces the response of a file by a text and a range of the file. As in nginx its entity tag depends on its length,
/// because different ranges are different representations.
pub(crate) fn compose(request: &mut Request, text: Vec<u8>, range: Range<u64>) {
    assert!(range.start <= range.end, "a part of a file ends behind its start");
    let len = text.len() as u64 + range.end - range.start;
    let response = &mut request.response;
    response.content_length = Some(len);
    if let (Some(modified), true) = (response.last_modified, response.etag.is_some()) {
        response.etag = Some(Etag::of_file(modified, len));
    }
    if let Body::File(file) = &mut response.body {
        file.pieces = smallvec![Piece::Text(text), Piece::Range { start: range.start, end: range.end }];
    }
}

/// Sets the response of a file; no byte of it is read before the filters have run.
pub(crate) fn respond(request: &mut Request, opened: Opened) {
    // A thread-local reference, so that the settings stay accessible while the request is changed.
    let thread_config = Rc::clone(&request.thread_config);
    let core = &thread_config.config.location(request.location).scope.core;
    let stat = opened.stat;
    // Chosen after the size is known, because `directio` depends on it.
    let mover = choose::mover(&core.sending, &rt::caps(), stat.size);
    request.mover = Some(mover);
    let body = Body::File(FileBody::new(opened, mover, files::open_context(request)));
    let response = &mut request.response;
    response.status = 200;
    response.content_length = Some(stat.size);
    response.last_modified = Some(stat.modified);
    response.etag = core.responding.etag.then(|| Etag::of_file(stat.modified, stat.size));
    // An upstream may have set the content type (`X-Accel-Redirect`).
    if matches!(response.content_type, ContentType::None) {
        response.content_type = ContentType::OfUri;
    }
    response.allow_ranges = true;
    response.body = body;
}
