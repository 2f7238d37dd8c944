//! Takes a request from its header section to a response: server, URI, location, phases, error pages.

use std::rc::Rc;
use std::time::Instant;

use http::fields::{BodyLength, HeaderId, Method, Version};
use http::request::Target;
use io::segments::Source;
use rt::{Either, select};

use crate::files;
use crate::phases::{Phase, Step};
use crate::rehearsal::Event;
use crate::request::{REDIRECTS_MAX, Request};
use crate::response::{ContentType, is_digest};
use crate::{credentials, error_page, locate, marks, prepare, tls};
use site::phases::PhasePosition;
use site::settings::listen::Listen;
use telemetry::{ForLog, Level};

/// The next step after the phases of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterPhases {
    /// Send the response.
    Respond,
    /// Close the connection without a response.
    Drop,
}

/// The progress of a request through the phases. It is stored outside any future, so that a request that never waits
/// passes the phases in one call.
///
/// ```text
///    PostRead --> ServerRewrite --(location)--> Rewrite --> Preaccess --> Access --> Precontent --> Content
///                   ^                 ^                                                                |
///                   +-- Internal      +-- Named <------------- a handler's step or an error page ------+
/// ```
pub struct PhaseCursor {
    /// The next handler.
    next: PhasePosition<Phase>,
    /// The status with which a module refused access, if another module may still allow it.
    refusal: Option<u16>,
    /// Whether a 401 or 407 response is delayed (`auth_delay`).
    delay: Delay,
    /// The form in which the last handler needs the body; then the handler is called again.
    body_need: BodyNeed,
}

/// The form in which a handler needs the request's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyNeed {
    /// Nothing.
    #[default]
    Nothing,
    /// The complete body.
    Complete,
    /// The complete body, or pieces of it if no temporary file is available.
    Buffered,
    /// Pieces of the body as they arrive.
    Pieces,
    /// The same, to be written to a file.
    Stored,
}

/// The state of `auth_delay` for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delay {
    /// The request was not refused.
    None,
    /// The delay is due before the refusal.
    Due,
    /// The delay is over.
    Over,
}

/// The result of advancing through the phases.
pub enum Progress {
    /// The phases are finished.
    Decided(AfterPhases),
    /// The request waits; the resulting step is to be passed to [`PhaseCursor::take`].
    Waits(Waiting),
    /// A handler needs the request's body first.
    NeedsBody,
}

/// The reason why the phases of a request wait.
#[derive(Clone, Copy, Debug)]
pub enum Waiting {
    /// This handler.
    Handler(PhasePosition<Phase>),
    /// The delay of `auth_delay`.
    AuthDelay,
}

impl Waiting {
    /// Waits, and returns the step that follows.
    pub async fn step(self, request: &mut Request) -> Step {
        match self {
            Waiting::Handler(place) => {
                let thread_config = Rc::clone(&request.thread_config);
                // The rewrite directives assign variables before these phases.
                if matches!(place.phase(), Phase::Precontent | Phase::Content) {
                    request.keep_values();
                }
                let step = match place.handler(&thread_config.plans) {
                    Some(handler) => handler.later(request).await,
                    None => Step::Next,
                };
                request.share_values();
                marks::note_waited(request, place.phase());
                step
            }
            // Boxed: the delay is rare, and otherwise its state would enlarge every waiting request.
            Waiting::AuthDelay => Box::pin(hold_back(request)).await,
        }
    }
}

impl PhaseCursor {
    /// Returns a cursor at the start of a phase, without a pending step.
    fn at(request: &Request, phase: Phase) -> PhaseCursor {
        let next = PhasePosition::start(request.location, phase);
        PhaseCursor { next, refusal: None, delay: Delay::None, body_need: BodyNeed::Nothing }
    }

    /// Starts the phases of a request after its header section. `listen` is the address of its connection. If a reload
    /// removed it, the connection is closed without a response. Returns the outcome immediately if the header section
    /// alone decides it.
    pub fn begin(request: &mut Request, listen: Option<&Listen>) -> (PhaseCursor, Option<AfterPhases>) {
        let mut cursor = PhaseCursor::at(request, Phase::PostRead);
        let outcome = match begin(request, listen) {
            // The target is no resource, so no location is responsible (RFC 9110 section 9.3.7). The response only
            // shows that the server is alive.
            Ok(()) if request.head.target() == Target::Asterisk => {
                request.response.status = 204;
                cursor.take(request, Step::Done)
            }
            Ok(()) => None,
            Err(status) => cursor.take(request, Step::Status(status)),
        };
        (cursor, outcome)
    }

    /// Starts the phases of a subrequest, which has its server and its URI.
    pub fn of_subrequest(request: &mut Request) -> PhaseCursor {
        let mut cursor = PhaseCursor::at(request, Phase::ServerRewrite);
        cursor.restart_at_server(request);
        cursor
    }

    /// Returns how the body is needed before the phases continue, and resets it.
    pub fn take_body_need(&mut self) -> BodyNeed {
        std::mem::take(&mut self.body_need)
    }

    /// Continues until the request has to wait, or an outcome is known.
    pub fn advance(&mut self, request: &mut Request) -> Progress {
        // The cloned pointer keeps the handlers accessible while the request is borrowed mutably.
        let thread_config = Rc::clone(&request.thread_config);
        loop {
            if self.body_need != BodyNeed::Nothing {
                return Progress::NeedsBody;
            }
            if self.delay == Delay::Due {
                self.delay = Delay::Over;
                return Progress::Waits(Waiting::AuthDelay);
            }
            // The handler before this one may have changed the location.
            let place = self.next.in_location(&thread_config.plans, request.location);
            self.next = place.next();
            let step = match place.handler(&thread_config.plans) {
                None => self.end_phase(request),
                Some(handler) => match handler.now(request) {
                    Some(step) => step,
                    None => return Progress::Waits(Waiting::Handler(place)),
                },
            };
            // Most steps are `Next`, which needs no call.
            if !matches!(step, Step::Next)
                && let Some(outcome) = self.take(request, step)
            {
                return Progress::Decided(outcome);
            }
        }
    }

    /// Applies a step.
    pub fn take(&mut self, request: &mut Request, step: Step) -> Option<AfterPhases> {
        let mut step = step;
        loop {
            step = match step {
                Step::Next => return None,
                Step::Allow => {
                    if self.next.phase() == Phase::Access && request.scope().core.satisfy.any {
                        self.refusal = None;
                        // The module that refused may have sent a challenge.
                        request.response.challenges.clear();
                        self.enter(request, Phase::Precontent);
                    }
                    return None;
                }
                Step::Status(status @ (401 | 403 | 407)) if self.may_be_allowed(request) => {
                    // A 401 or 407 takes precedence over a 403.
                    self.refusal = self.refusal.filter(|refusal| *refusal != 403).or(Some(status));
                    return None;
                }
                Step::Status(401 | 407) if self.is_held_back(request) => {
                    request.log(Level::Info, format_args!("delaying unauthorized request"));
                    self.delay = Delay::Due;
                    return None;
                }
                Step::ReadBody => return self.request_body(BodyNeed::Complete),
                Step::BufferBody => return self.request_body(BodyNeed::Buffered),
                Step::StreamBody => return self.request_body(BodyNeed::Pieces),
                Step::StoreBody => return self.request_body(BodyNeed::Stored),
                Step::Done => return Some(AfterPhases::Respond),
                Step::Drop => return Some(close_without_response(request, 444)),
                Step::ClientClosed => return Some(close_without_response(request, 499)),
                // As in nginx: a client that timed out or has closed its connection gets no error page; 444 is no status for a client.
                Step::Status(status @ (408 | 444 | 499)) => {
                    return Some(close_without_response(request, status));
                }
                Step::Status(status) => match error_page::special(request, status) {
                    Some(step) => step,
                    None => return Some(AfterPhases::Respond),
                },
                Step::Internal if request.redirects >= REDIRECTS_MAX => {
                    let uri = String::from_utf8_lossy(&request.uri).into_owned();
                    refuse_cycle(request, "internally redirecting to", &uri)
                }
                Step::Named(location) if request.redirects >= REDIRECTS_MAX => {
                    let name = request.config().location(location).name.clone();
                    refuse_cycle(request, "redirect to named location", &name)
                }
                Step::Internal => {
                    if request.is_traced() {
                        request.trace(format_args!("internal redirect to \"{}\"", request.uri.for_log()));
                    }
                    request.redirects += 1;
                    request.internal = true;
                    // The new URI starts a location search; earlier changes are void.
                    request.left_location = false;
                    request.facts.clear();
                    request.uri_replaced = true;
                    self.restart_at_server(request);
                    return None;
                }
                Step::Named(location) => {
                    request.redirects += 1;
                    request.internal = true;
                    request.facts.leave_location();
                    request.location = location;
                    self.enter_location(request)
                }
            };
        }
    }

    /// Requests the body and has the handler called again when it is available.
    fn request_body(&mut self, body_need: BodyNeed) -> Option<AfterPhases> {
        self.next = self.next.previous();
        self.body_need = body_need;
        None
    }

    /// Whether another module of this phase may still allow a request that a module refused.
    fn may_be_allowed(&self, request: &Request) -> bool {
        // The end of the phase returns the stored refusal as a step. It is final: the index is beyond the last handler then.
        self.next.phase() == Phase::Access
            && request.scope().core.satisfy.any
            && !self.next.is_behind_end(&request.thread_config.plans)
    }

    /// Whether a refusal is delayed, to slow down password guessing.
    fn is_held_back(&self, request: &Request) -> bool {
        self.next.phase() == Phase::Access
            && self.delay == Delay::None
            && !request.scope().core.satisfy.auth_delay.is_zero()
    }

    fn enter(&mut self, request: &Request, phase: Phase) {
        (self.next, self.delay) = (PhasePosition::start(request.location, phase), Delay::None);
    }

    /// Restarts at the server's rewrites, for a new URI.
    fn restart_at_server(&mut self, request: &mut Request) {
        request.location = request.server().root;
        self.refusal = None;
        self.enter(request, Phase::ServerRewrite);
    }

    /// Ends a phase in which no handler refused the request.
    fn end_phase(&mut self, request: &mut Request) -> Step {
        match self.next.phase() {
            Phase::PostRead => self.restart_at_server(request),
            Phase::ServerRewrite => return self.find_location(request),
            Phase::Rewrite if request.uri_changed => return self.search_again(request),
            Phase::Rewrite => self.enter(request, Phase::Preaccess),
            // The request that a subrequest belongs to has passed the access checks.
            Phase::Preaccess if request.depth > 0 => self.enter(request, Phase::Precontent),
            Phase::Preaccess => self.enter(request, Phase::Access),
            Phase::Access => {
                if let Some(status) = self.refusal.take() {
                    if status == 403 {
                        request.log(Level::Error, format_args!("access forbidden by rule"));
                    }
                    return Step::Status(status);
                }
                self.enter(request, Phase::Precontent);
            }
            Phase::Precontent => self.enter(request, Phase::Content),
            Phase::Content => return end_without_handler(request),
        }
        Step::Next
    }

    /// Searches for the location again, because a rewrite in the location changed the URI.
    fn search_again(&mut self, request: &mut Request) -> Step {
        if request.redirects >= REDIRECTS_MAX {
            let uri = String::from_utf8_lossy(&request.uri).into_owned();
            return refuse_cycle(request, "processing", &uri);
        }
        request.redirects += 1;
        request.location = request.server().root;
        request.uri_changed = false;
        self.find_location(request)
    }

    /// Finds the location of the request's URI and starts its rewrite phase, or redirects the client to the URI with a
    /// trailing slash. As in nginx only a search compares the length of the body: a named location continues the request
    /// of another location, which has compared it.
    fn find_location(&mut self, request: &mut Request) -> Step {
        let redirect = redirect_to_slash(request);
        if redirect.is_none() && !locate::search(request) {
            return Step::Status(500);
        }
        let entered = match self.enter_location(request) {
            Step::Next => too_large(request).map_or(Step::Next, Step::Status),
            step => step,
        };
        match (entered, redirect) {
            (Step::Next, Some(location)) => {
                request.response.location = Some(location);
                Step::Status(301)
            }
            (entered, _) => entered,
        }
    }

    /// Starts the rewrite phase in a location that was found or named.
    fn enter_location(&mut self, request: &mut Request) -> Step {
        self.refusal = None;
        request.uri_changed = false;
        if request.is_traced() {
            let (name, uri) = (&request.config().location(request.location).name, &request.uri);
            request.trace(format_args!("using location \"{name}\" for the URI \"{}\"", uri.for_log()));
            request.note(|| Event::Entered { uri: request.uri.clone() });
        }
        self.enter(request, Phase::Rewrite);
        if request.scope().core.internal && !request.internal {
            request.note(|| Event::Said {
                label: "internal",
                text: "only internal redirects reach this location: 404".to_owned(),
            });
            return Step::Status(404);
        }
        apply_limit_except(request);
        Step::Next
    }
}

/// Closes the connection; the access log gets this status.
fn close_without_response(request: &mut Request, status: u16) -> AfterPhases {
    request.response.status = status;
    AfterPhases::Drop
}

/// Fails a request whose URI or location was changed too often. As in nginx no `error_page` applies, because that would
/// be another change.
fn refuse_cycle(request: &mut Request, doing: &str, what: &str) -> Step {
    let message = format_args!("rewrite or internal redirection cycle while {doing} \"{what}\"");
    request.log(Level::Error, message);
    request.keepalive = false;
    error_page::respond(request, 500);
    Step::Done
}

/// Waits for `auth_delay`.
async fn hold_back(request: &mut Request) -> Step {
    let until = rt::now() + request.scope().core.satisfy.auth_delay;
    match pause(request, until).await {
        Step::Next => Step::Status(credentials::status_without(request)),
        step => step,
    }
}

/// Waits until a deadline, or until the client has closed its connection.
pub async fn pause(request: &Request, until: Instant) -> Step {
    let client = request.conn.client.borrow().clone();
    if request.is_rehearsed() {
        return Step::Next;
    }
    let Some(client) = client else { return Step::ClientClosed };
    match select(rt::sleep_until(until), client.hung_up()).await {
        Either::Left(()) => Step::Next,
        Either::Right(()) => {
            request.log(Level::Info, format_args!("client prematurely closed connection"));
            Step::ClientClosed
        }
    }
}

/// Responds with an error that was detected outside the phases, or with its error page.
pub async fn refuse(request: &mut Request, status: u16) -> AfterPhases {
    let mut cursor = PhaseCursor::at(request, Phase::Content);
    match cursor.take(request, Step::Status(status)) {
        Some(outcome) => outcome,
        None => run_without_body(&mut cursor, request).await,
    }
}

/// Replaces a complete response by an error. Fields of an upstream that do not describe its content are retained, such
/// as cookies and CORS permissions.
pub async fn replace(request: &mut Request, status: u16) -> AfterPhases {
    // With 416, `Content-Range` contains the complete length. In other errors the range of an upstream's response does not apply.
    let content_range = request.response.content_range.take().filter(|_| status == 416);
    let vary_accept_encoding = request.response.vary_accept_encoding;
    let mut fields = std::mem::take(&mut request.response.fields);
    fields.retain(|name| !is_of_content(name));
    request.response.clear();
    // `Accept-Encoding` selected the file whose precondition failed, so `Vary` applies.
    request.response.vary_accept_encoding = vary_accept_encoding;
    let outcome = refuse(request, status).await;
    if request.error_status.unwrap_or(request.response.status) == status {
        request.response.content_range = content_range;
        fields.iter().for_each(|(name, value)| request.response.fields.push(name, value));
    }
    outcome
}

/// Whether a field describes the content, or concerns caching. With a field about caching, a cache could store the error
/// under the URI of the complete response (RFC 9111 section 3 requires no more than a known status).
fn is_of_content(name: &[u8]) -> bool {
    let is_content = name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"Content-"));
    is_content
        || is_digest(name)
        || matches!(
            HeaderId::of(name),
            HeaderId::Etag
                | HeaderId::LastModified
                | HeaderId::AcceptRanges
                | HeaderId::CacheControl
                | HeaderId::CdnCacheControl
                | HeaderId::Expires
                | HeaderId::Pragma
                | HeaderId::Age
        )
}

/// Produces the response to a subrequest.
pub async fn run_subrequest(request: &mut Request) {
    let mut cursor = PhaseCursor::of_subrequest(request);
    if run_without_body(&mut cursor, request).await == AfterPhases::Drop {
        let status = request.response.status;
        error_page::respond(request, status);
    }
    prepare::filter(request);
}

/// Runs the content phase of a request whose location is known.
pub async fn run_content(request: &mut Request) {
    let mut cursor = PhaseCursor::at(request, Phase::Content);
    if run_without_body(&mut cursor, request).await == AfterPhases::Drop {
        request.response.body = crate::response::Body::None;
    }
}

/// Runs a subrequest whose response is discarded.
pub async fn run_unfiltered(request: &mut Request) {
    let mut cursor = PhaseCursor::of_subrequest(request);
    // A subrequest has no connection to close.
    let _ = run_without_body(&mut cursor, request).await;
}

/// Replaces the response of a subrequest with this text.
pub fn respond_with(request: &mut Request, content_type: Option<String>, text: Vec<u8>) {
    request.error_status = None;
    request.response.clear();
    request.response.status = 200;
    request.response.content_type =
        content_type.map_or(ContentType::None, |text| ContentType::Text(text.into()));
    request.response.set_bytes(Source::Vec(text));
    prepare::filter(request);
}

/// Runs `post_action` after a response was sent. As in nginx the request continues as an internal redirect, and is
/// logged in the location where that ends. The response is discarded.
pub async fn post_action(request: &mut Request) {
    let Some(target) = request.scope().core.subrequests.post_action.clone() else { return };
    let status = request.response.status;
    request.error_status = None;
    let step = if target.starts_with('/') {
        request.uri = target.as_bytes().to_vec();
        request.args.clear();
        Step::Internal
    } else {
        match request.server().locations.named(&target) {
            Some(location) => Step::Named(location),
            None => {
                request.log(Level::Error, format_args!("could not find named location \"{target}\""));
                return;
            }
        }
    };
    let mut cursor = PhaseCursor::at(request, Phase::Content);
    // A client that closes its connection after the response must not end the action.
    let is_detached = std::mem::replace(&mut request.is_detached, true);
    if cursor.take(request, step).is_none() {
        // Boxed: few configurations use `post_action`, and the state of the phases is large.
        Box::pin(run_without_body(&mut cursor, request)).await;
    }
    request.is_detached = is_detached;
    // The log shows the status that the client received.
    request.response.status = status;
}

/// Runs all phases of a request whose body was read already, or that has none.
async fn run_without_body(cursor: &mut PhaseCursor, request: &mut Request) -> AfterPhases {
    request.ignores_body = true;
    loop {
        match run(cursor, request).await {
            Some(outcome) => return outcome,
            None => {
                cursor.take_body_need();
                request.body.get_or_insert_default();
            }
        }
    }
}

/// Runs the phases of a request; returns `None` if its body has to be read first.
pub async fn run(cursor: &mut PhaseCursor, request: &mut Request) -> Option<AfterPhases> {
    loop {
        let decided = match cursor.advance(request) {
            Progress::Decided(outcome) => Some(outcome),
            Progress::NeedsBody => return None,
            Progress::Waits(waiting) => {
                let step = waiting.step(request).await;
                cursor.take(request, step)
            }
        };
        if decided.is_some() {
            return decided;
        }
    }
}

/// Decodes and normalises the request URI. Returns false if it is invalid.
pub fn read_uri(request: &mut Request) -> bool {
    let (mut uri, mut args) = (std::mem::take(&mut request.uri), std::mem::take(&mut request.args));
    let input = request.head.request_uri(request.bytes());
    let parsed = http::uri::normalise(input, request.scope().core.reading.merge_slashes, &mut uri);
    args.clear();
    if let Ok(parsed) = &parsed {
        if parsed.is_clean() {
            uri.extend_from_slice(parsed.path(input, b""));
        }
        args.extend_from_slice(parsed.args.map_or(b"", |span| span.of(input)));
    }
    (request.uri, request.args) = (uri, args);
    parsed.is_ok()
}

/// Chooses the server and normalises the URI.
fn begin(request: &mut Request, listen: Option<&Listen>) -> Result<(), u16> {
    request.method = request.head.method();
    let mut host = std::mem::take(&mut request.host);
    host.clear();
    if let Some(found) = request.head.host() {
        let name = found.name.of(request.bytes());
        match found.has_upper {
            true => http::host::lowercase_into(name, &mut host),
            false => host.extend_from_slice(name),
        }
    }
    let Some(listen) = listen.filter(|listen| request.conn.is_served_at(listen)) else {
        // A reload has removed the address, or changed its protocols: no server may serve the request.
        request.host = host;
        return Err(444);
    };
    let (default, names) = listen.lookup(&request.conn.local);
    let named = names.find(&host).map_err(|gave_up| {
        gave_up.log(&host, request);
        500_u16
    })?;
    request.server = named.as_ref().map_or(default, |named| named.server);
    if let Some(matched) = named.and_then(|named| named.matched) {
        matched.store(&host, request);
    }
    request.host = host;
    request.location = request.server().root;
    if request.is_traced() {
        let (line, server) = (request.line(), &request.server().name);
        request.trace(format_args!("\"{}\" is processed by server \"{server}\"", line.for_log()));
    }
    tls::admit(request, listen)?;
    if let Target::Authority { .. } = request.head.target() {
        // As in nginx: the location of `/` is used.
        request.uri = b"/".to_vec();
        return admit_connect(request);
    }
    if request.head.target() == Target::Asterisk {
        request.uri = b"*".to_vec();
        return Ok(());
    }
    match read_uri(request) {
        true => Ok(()),
        false => {
            request.log(
                Level::Info,
                format_args!("client sent invalid request while reading client request line"),
            );
            request.keepalive = false;
            Err(400)
        }
    }
}

/// Checks that CONNECT may continue: only in HTTP/1.1, without a body, to a server with a `tunnel_pass`.
fn admit_connect(request: &mut Request) -> Result<(), u16> {
    // The bytes that follow are never a request.
    request.keepalive = false;
    let request = &*request;
    let refused = |what: &str, status| {
        request.log(Level::Info, format_args!("client sent CONNECT {what}"));
        Err(status)
    };
    if request.head.version() != Version::Http11 || !request.server().accepts_connect {
        return refused("method", 405);
    }
    match request.head.body() {
        BodyLength::None | BodyLength::Exactly(0) => Ok(()),
        _ => refused("request with body", 400),
    }
}

/// Ends a request without a content handler as nginx does: 403 for a directory without an index, 404 otherwise.
fn end_without_handler(request: &mut Request) -> Step {
    if request.uri.last() != Some(&b'/') {
        return Step::Status(404);
    }
    let mut path = Vec::new();
    files::path_of(request, &request.uri, &mut path);
    request.log(Level::Error, format_args!("directory index of \"{}\" is forbidden", files::display(&path)));
    Step::Status(403)
}

/// Selects the proxying location of a URI that lacks only its trailing slash, and returns the redirect to it. As in
/// nginx, relative links in upstream responses need the slash.
fn redirect_to_slash(request: &mut Request) -> Option<Vec<u8>> {
    let thread_config = Rc::clone(&request.thread_config);
    let config = &thread_config.config;
    let server = config.server(request.server);
    let location = server.locations.with_slash(&config.http.locations, &request.uri)?;
    request.location = location;
    let mut target = Vec::with_capacity(request.uri.len() + request.args.len() + 2);
    http::uri::escape_uri(&request.uri, &mut target);
    target.push(b'/');
    if !request.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&request.args);
    }
    Some(target)
}

/// Applies `limit_except` to methods that it does not name.
fn apply_limit_except(request: &mut Request) {
    // A subrequest and an error page are fetched with GET, whatever the original method was.
    let method = match request.method {
        method if method == request.head.method() => request.method_text(),
        Method::Head => b"HEAD",
        _ => b"GET",
    };
    let limited = request.scope().core.limit_except.as_ref().filter(|limit| !limit.spares(method));
    if let Some(location) = limited.map(|limit| limit.location) {
        request.location = location;
    }
}

/// Returns 413 if the announced length of the body exceeds `client_max_body_size`. The body is then never read.
pub(crate) fn too_large(request: &mut Request) -> Option<u16> {
    let most = request.scope().core.reading.client_max_body_size;
    let BodyLength::Exactly(length) = request.head.body() else { return None };
    // Only the request of the client reads the body, never a subrequest.
    if most == 0 || length <= most || request.depth > 0 || request.ignores_body {
        return None;
    }
    request.ignores_body = true;
    // A handler that requests the body gets an empty body.
    request.body.get_or_insert_default();
    request.log(Level::Error, format_args!("client intended to send too large body: {length} bytes"));
    Some(413)
}

/// Makes a request for an error page a GET, as nginx does; HEAD is retained.
pub fn become_get(request: &mut Request) {
    if request.method != Method::Head {
        (request.method, request.method_replaced) = (Method::Get, true);
    }
}
