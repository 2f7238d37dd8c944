//! From a head to an answer: server, URI, location, phases, error pages.

use std::rc::Rc;

use http::framing::BodyFraming;
use http::request::{Method, Target};

use crate::config::LocationId;
use crate::connection::{Entrance, error_page, respond};
use crate::files;
use crate::log::Level;
use crate::modules::static_file;
use crate::phases::{Phase, Run, Step};
use crate::request::{REDIRECTS_MAX, Request};

/// What is to happen with a request that the phases are done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its response is to be sent.
    Answer,
    /// The connection ends without one.
    Drop,
}

/// Where the request goes on.
enum Next {
    /// With the server's rewrites, for a URI that is new.
    Uri,
    /// In this location.
    Location(LocationId),
}

/// Decides on the answer to a request whose head was read.
pub(super) async fn run(request: &mut Request, entrance: &Entrance) -> Verdict {
    let mut step = begin(request, entrance).map_or_else(Step::Status, |()| Step::Next);
    if matches!(step, Step::Next) {
        step = handlers(request, Phase::PostRead).await;
    }
    go_on(request, step).await
}

/// Decides on the answer to a subrequest, which has its server and its URI.
pub(crate) async fn run_subrequest(request: &mut Request) {
    if go_on(request, Step::Next).await == Verdict::Drop {
        error_page::respond(request, 444);
    }
    respond::filter(request);
}

/// Follows the steps to an answer.
async fn go_on(request: &mut Request, mut step: Step) -> Verdict {
    let mut next = Next::Uri;
    loop {
        if matches!(step, Step::Next) {
            step = phases(request, &next).await;
        }
        step = match step {
            Step::Done => return Verdict::Answer,
            Step::Drop => {
                request.response.status = 444;
                return Verdict::Drop;
            }
            Step::Next | Step::Allow => Step::Status(404),
            Step::Status(status) => match error_page::special(request, status) {
                Some(step) => step,
                None => return Verdict::Answer,
            },
            Step::Internal | Step::Named(_) if request.redirects >= REDIRECTS_MAX => {
                request.log(
                    Level::Error,
                    format_args!(
                        "rewrite or internal redirection cycle while processing \"{}\"",
                        request.uri.escape_ascii()
                    ),
                );
                error_page::respond(request, 500);
                return Verdict::Answer;
            }
            Step::Internal => {
                request.redirects += 1;
                request.internal = true;
                next = Next::Uri;
                Step::Next
            }
            Step::Named(location) => {
                request.redirects += 1;
                request.internal = true;
                next = Next::Location(location);
                Step::Next
            }
        };
    }
}

/// Chooses the server and normalises the URI.
fn begin(request: &mut Request, entrance: &Entrance) -> Result<(), u16> {
    request.method = request.head.method();
    let generation = Rc::clone(&request.generation);
    let mut host = std::mem::take(&mut request.host);
    host.clear();
    if let Some(found) = request.head.host() {
        http::host::lowercase_into(found.name.of(request.bytes()), &mut host);
    }
    if let Some(listen) = entrance.listen(&generation) {
        let (default, names) = listen.lookup(&request.conn.local);
        let named = names.find(&host);
        request.server = named.as_ref().map_or(default, |named| named.server);
        if let Some(matched) = named.and_then(|named| named.matched) {
            matched.store(&host, request);
        }
    }
    request.host = host;
    request.location = request.server().root;
    let (mut uri, mut args) = (std::mem::take(&mut request.uri), std::mem::take(&mut request.args));
    let input = request.head.request_uri(request.bytes());
    let parsed = http::uri::normalise(input, request.scope().core.merge_slashes, &mut uri);
    args.clear();
    if let Ok(parsed) = &parsed {
        if parsed.is_clean() {
            uri.extend_from_slice(parsed.path(input, b""));
        }
        args.extend_from_slice(parsed.args.map_or(b"", |span| span.of(input)));
    }
    (request.uri, request.args) = (uri, args);
    match parsed {
        Ok(_) if request.head.target() != Target::Asterisk => Ok(()),
        _ => {
            request.log(
                Level::Info,
                format_args!("client sent invalid request while reading client request line"),
            );
            request.keepalive = false;
            Err(400)
        }
    }
}

/// One way through the phases.
async fn phases(request: &mut Request, next: &Next) -> Step {
    match *next {
        Next::Uri => {
            request.location = request.server().root;
            let step = handlers(request, Phase::ServerRewrite).await;
            if !matches!(step, Step::Next) {
                return step;
            }
            find_location(request);
        }
        Next::Location(location) => request.location = location,
    }
    if request.scope().core.internal && !request.internal {
        return Step::Status(404);
    }
    apply_limit_except(request);
    if let Some(status) = too_large(request) {
        return Step::Status(status);
    }
    for phase in [Phase::Rewrite, Phase::Preaccess] {
        let step = handlers(request, phase).await;
        if !matches!(step, Step::Next) {
            return step;
        }
    }
    // The request that it is part of was asked.
    if request.depth == 0 {
        let step = access(request).await;
        if !matches!(step, Step::Next) {
            return step;
        }
    }
    for phase in [Phase::Precontent, Phase::Content] {
        let step = handlers(request, phase).await;
        if !matches!(step, Step::Next) {
            return step;
        }
    }
    // nginx: a folder without an index is forbidden, anything else that nobody answers is not there.
    if request.uri.last() != Some(&b'/') {
        return Step::Status(404);
    }
    let mut path = Vec::new();
    files::path_of(request, &request.uri, &mut path);
    request.log(Level::Error, format_args!("directory index of \"{}\" is forbidden", files::display(&path)));
    Step::Status(403)
}

fn find_location(request: &mut Request) {
    let generation = Rc::clone(&request.generation);
    let config = &generation.config;
    let uri = std::mem::take(&mut request.uri);
    let server = config.server(request.server);
    let found = server.locations.find(&config.http.locations, &uri);
    if let Some(location) = found.location {
        request.location = location;
    }
    if let Some(matched) = found.matched {
        matched.store(&uri, request);
    }
    request.uri = uri;
}

/// Methods that `limit_except` does not name are served under its own settings.
fn apply_limit_except(request: &mut Request) {
    let method = request.method_text();
    let limited = request.scope().core.limit_except.as_ref().filter(|limit| !limit.spares(method));
    if let Some(location) = limited.map(|limit| limit.location) {
        request.location = location;
    }
}

/// A body that is announced to be above `client_max_body_size`.
fn too_large(request: &mut Request) -> Option<u16> {
    let most = request.scope().core.client_max_body_size;
    let BodyFraming::Length(length) = BodyFraming::of(&request.head) else { return None };
    if most == 0 || length <= most || request.internal {
        return None;
    }
    request.log(Level::Error, format_args!("client intended to send too large body: {length} bytes"));
    Some(413)
}

/// The access phase: with `satisfy all` everybody must agree, with `satisfy any` one is enough.
async fn access(request: &mut Request) -> Step {
    let generation = Rc::clone(&request.generation);
    let location = generation.config.location(request.location);
    let any = location.scope.core.satisfy_any;
    let mut refusal = None;
    for run in location.handlers.of_phase(Phase::Access) {
        match call(request, *run).await {
            Step::Next => {}
            Step::Allow if any => return Step::Next,
            Step::Allow => {}
            Step::Status(status @ (401 | 403)) if any => {
                // A question for a password is worth more than a plain no.
                refusal = Some(if refusal == Some(401) { 401 } else { status });
            }
            step => return step,
        }
    }
    refusal.map_or(Step::Next, Step::Status)
}

/// Runs the handlers of a phase in the request's location until one decides.
async fn handlers(request: &mut Request, phase: Phase) -> Step {
    let generation = Rc::clone(&request.generation);
    for run in generation.config.location(request.location).handlers.of_phase(phase) {
        match call(request, *run).await {
            Step::Next | Step::Allow => {}
            step => return step,
        }
    }
    Step::Next
}

async fn call(request: &mut Request, run: Run) -> Step {
    match run {
        Run::Now(handler) => handler(request),
        Run::Later(handler) => handler(request).await,
        Run::LaterIf(wanted, handler) if wanted(request) => handler(request).await,
        Run::LaterIf(..) => Step::Next,
        Run::Static => static_file::serve(request).await,
    }
}

/// Makes a request for an error page a GET, as nginx does; HEAD stays.
pub(super) fn become_get(request: &mut Request) {
    if request.method != Method::Head {
        request.method = Method::Get;
    }
}
