//! Files of the document root.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use http::conditional::Etag;
use http::request::Method;
use smallvec::smallvec;

use crate::Module;
use exchange::files::{self, Failure, Found, Opened};
use exchange::phases::{Later, Phase, Step};
use exchange::request::Request;
use exchange::response::{Body, ContentType};
use telemetry::Level;
use transfer::body::{FileBody, Piece, choose};

/// The module; it has no directives.
pub(crate) static MODULE: Module = Module {
    take_part: |_, _, plan| {
        plan.now_or_later(
            Phase::Content,
            Arc::new(()),
            |(), request| now(request),
            |(), request| later(request),
        );
    },
    ..Module::named("http_static")
};

/// Everything but waiting for the disk: a file that is cached, or whose path the kernel has in memory, is answered
/// without the state of a waiting task.
fn now(request: &mut Request) -> Option<Step> {
    // POST continues up to the file, so that a directory or a missing file is answered as for the others, like nginx.
    if !matches!(request.method, Method::Get | Method::Head | Method::Post) {
        return Some(Step::Status(405));
    }
    if files::alias_is_lost(request) {
        return Some(Step::Status(500));
    }
    // A directory: its index was searched before; other methods are left to the modules behind this one.
    if request.uri.last() == Some(&b'/') {
        return Some(Step::Next);
    }
    // The path comes back unchanged, for messages and for its memory.
    let mut path = path(request);
    let step = files::open_at_once(request, &mut path).map(|found| serve(request, found, &path));
    request.path = path;
    step
}

/// The same with waiting. The path is the one that [`now`] has made.
fn later(request: &mut Request) -> Later<'_> {
    Box::pin(async {
        let path = std::mem::take(&mut request.path);
        let found = files::open_by_engine(request, &path).await;
        let step = serve(request, found, &path);
        request.path = path;
        step
    })
}

/// Opens the file of the URI for a handler that answers for a whole location: the file and its path, or the step to take.
/// Everything but regular files is left to the handlers behind it.
pub(crate) async fn open(request: &mut Request) -> Result<(Opened, Vec<u8>), Step> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Err(Step::Status(405));
    }
    if request.uri.ends_with(b"/") {
        return Err(Step::Next);
    }
    if files::alias_is_lost(request) {
        return Err(Step::Status(500));
    }
    let mut path = Vec::new();
    files::path_of(request, &request.uri, &mut path);
    match files::open(request, path.clone()).await {
        Ok(Found::File(opened)) => Ok((opened, path)),
        Ok(Found::Folder | Found::Special) => Err(Step::Next),
        Err(failure) => Err(refused(request, failure, &path)),
    }
}

/// The path of the URI, in memory that the request keeps for it.
fn path(request: &mut Request) -> Vec<u8> {
    let mut path = std::mem::take(&mut request.path);
    path.clear();
    files::path_of(request, &request.uri, &mut path);
    path
}

/// Answers with the file at the path of the URI.
fn serve(request: &mut Request, found: Result<Found, Failure>, path: &[u8]) -> Step {
    match found {
        Ok(Found::File(_)) if request.method == Method::Post => Step::Status(405),
        Ok(Found::File(opened)) => {
            answer(request, opened);
            Step::Done
        }
        Ok(Found::Folder) => add_slash(request),
        // The open did not wait for the other end of a pipe, so a special file is noticed here and not by a hang.
        Ok(Found::Special) => {
            let path = files::display(path);
            request.log(Level::Crit, format_args!("\"{path}\" is not a regular file"));
            Step::Status(404)
        }
        Err(failure) => refused(request, failure, path),
    }
}

/// The status that nginx gives this failure, and its line: crit for errors that need an operator.
pub(crate) fn refused(request: &Request, failure: Failure, path: &[u8]) -> Step {
    let status = files::status_of(failure.errno);
    let level = if status == 500 { Level::Crit } else { Level::Error };
    // Usual on a site with broken links, so the line can be turned off.
    if status != 404 || request.scope().core.answering.log_not_found {
        request.log(level, format_args!("{}", failure.at(path)));
    }
    Step::Status(status)
}

/// A request for a directory without the slash that relative links in it need.
fn add_slash(request: &mut Request) -> Step {
    let mut location = Vec::with_capacity(request.uri.len() + request.args.len() + 2);
    // The decoded path must not bring bytes into the header that the client had escaped.
    http::uri::escape_uri(&request.uri, &mut location);
    location.push(b'/');
    if !request.args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&request.args);
    }
    request.response.location = Some(location);
    Step::Status(301)
}

/// Has the response of a file be made of these pieces, of which there is a text first. As in nginx its entity tag follows
/// its length: other parts of the file are other representations.
pub(crate) fn compose(request: &mut Request, text: Vec<u8>, range: Range<u64>) {
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

/// Describes the file; not a byte of it is read before the filters have run.
pub(crate) fn answer(request: &mut Request, opened: Opened) {
    // A count of this thread, held so that the settings can be read while the request is changed.
    let generation = Rc::clone(&request.generation);
    let core = &generation.config.location(request.location).scope.core;
    let stat = opened.stat;
    // Chosen when the size is known, because `directio` depends on it.
    let mover = choose::mover(&core.sending, &rt::caps(), stat.size);
    request.mover = Some(mover);
    let body = Body::File(FileBody::new(opened, mover, files::place_of(request)));
    let response = &mut request.response;
    response.status = 200;
    response.content_length = Some(stat.size);
    response.last_modified = Some(stat.modified);
    response.etag = core.answering.etag.then(|| Etag::of_file(stat.modified, stat.size));
    // Another server may have set the type of the target (`X-Accel-Redirect`).
    if matches!(response.content_type, ContentType::None) {
        response.content_type = ContentType::OfUri;
    }
    response.allow_ranges = true;
    response.body = body;
}
