//! A request in flight: its header section, its progress, and its response.
//!
//! A thread reuses the memory of ended requests (`Thread::take_request`). The connection reads, sends and logs; the phases
//! decide.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::cache_control::RequestCacheControl;
use http::fields::{HeaderId, Method};
use http::request::Head;
use io::Buf;
use io::segments::Source;
use rt::Either;
use rt::local::WaitGroup;

use crate::client::Client;
use crate::facts::Facts;
use crate::module::{ModuleTable, Plan, SessionPlan};
use crate::phases::{Phase, Step};
use crate::rehearsal::{Event, Note, Rehearsal};
use crate::response::Response;
use crate::secured::Secured;
use crate::session::Session;
pub use crate::shared::Shared;
use crate::thread::Thread;
pub use site::address::Address;
use site::config::{Config, Http, Location, LocationId, Scope, Server, ServerId};
use site::extensions::Extensions;
use site::phases::Subject;
use site::registry::Registry;
use site::settings::listen::Listen;
use site::slots::{Captures, Slots};
use site::variables::{HasVariables, Variables};
use telemetry::Level;
use telemetry::named::NamedLogs;
use telemetry::sink::LogTarget;
use telemetry::traffic::Traffic;
use transfer::body::choose::Mover;
use transfer::files::Roots;
use transfer::files::cache::Caches;
use transfer::incoming::IncomingBody;
use transfer::received::ReceivedBody;

/// A configuration on one thread, with a thread-local reference count.
pub struct ThreadConfig {
    /// The configuration.
    pub config: Arc<Config>,
    /// All modules of the server.
    pub modules: &'static ModuleTable,
    /// The handlers of the phases, by [`LocationId`].
    pub plans: Arc<[Plan]>,
    /// The functions of the variables.
    pub variables: Variables<Request>,
    /// The handlers of the phases of sessions, by [`LocationId`] of `stream`.
    pub session_plans: Arc<[SessionPlan]>,
    /// The functions of the variables in `stream`.
    pub session_variables: Variables<Session>,
    /// Facts about the roots, by index of the location.
    pub roots: Rc<Roots>,
    /// `open_file_cache`
    pub open_files: Caches,
    /// Number of the configuration version.
    pub number: u64,
    /// Dropped when no thread and no request uses the configuration any more.
    pub _in_force: Arc<dyn Any + Send + Sync>,
    /// Log targets, in the order of the configuration's list.
    pub sinks: Vec<Rc<LogTarget>>,
    /// Open logs with variables in their names.
    pub named: Rc<NamedLogs>,
    /// Counts of requests by server and location, if enabled.
    pub traffic: OnceCell<Traffic>,
    /// Counts of sessions by server, if enabled.
    pub session_traffic: OnceCell<Traffic>,
}

impl fmt::Debug for ThreadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadConfig").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Facts about a connection that its requests expose.
#[derive(Clone)]
pub struct ConnInfo {
    /// The thread that serves the connection.
    pub thread: Rc<Thread>,
    /// `$connection_requests`
    pub requests: Cell<u64>,
    /// For `$connection_time` and `keepalive_time`.
    pub opened: Instant,
    /// `$connection`
    pub number: u64,
    /// Whether `debug_connection` names the client.
    pub is_traced: bool,
    /// The notes of a rehearsal; `None` for connections of clients.
    pub rehearsal: Option<Rc<Rehearsal>>,
    /// The interface to the client; removed when the connection ends, because the request is retained for reuse.
    pub client: RefCell<Option<Rc<dyn Client>>>,
    /// The client's address.
    pub peer: Address,
    /// The address that the client connected to.
    pub local: Address,
    /// Whether the listening address expects a header of the PROXY protocol (`listen … proxy_protocol`).
    pub is_proxied: bool,
    /// The PROXY protocol's header before the first request, if it names a client.
    pub proxy: OnceCell<Box<http::proxy_protocol::Header>>,
    /// Whether the listening address uses TLS (`listen … ssl`).
    pub is_tls: bool,
    /// Whether the connection uses QUIC (`listen … quic`).
    pub is_quic: bool,
    /// Number of times that `pass` of `stream` has passed the connection to another listening address.
    pub passes: u32,
    /// The result of the TLS handshake; empty before the end of the handshake, and for plain HTTP on a TLS address.
    pub secured: OnceCell<Rc<Secured>>,
}

impl ConnInfo {
    /// Returns the facts of a new connection without TLS and without a PROXY protocol.
    pub fn new(thread: &Rc<Thread>, peer: Address, local: Address) -> ConnInfo {
        ConnInfo {
            thread: Rc::clone(thread),
            requests: Cell::new(0),
            opened: rt::now(),
            number: thread.shared.next_connection(),
            is_traced: is_traced(thread, &peer),
            rehearsal: None,
            client: RefCell::default(),
            peer,
            local,
            is_proxied: false,
            proxy: OnceCell::new(),
            is_tls: false,
            is_quic: false,
            passes: 0,
            secured: OnceCell::new(),
        }
    }

    /// Returns `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.secured.get().is_some() { "https" } else { "http" }
    }

    /// Whether this address serves the connection: a reload may have changed its use of TLS or of the PROXY protocol.
    pub fn is_served_at(&self, listen: &Listen) -> bool {
        listen.is_tls(&self.local) == self.is_tls
            && listen.expects_proxy_protocol(&self.local) == self.is_proxied
    }
}

/// Whether `debug_connection` names this client.
fn is_traced(thread: &Thread, peer: &Address) -> bool {
    let thread_config = thread.thread_config();
    thread_config.config.http.traced_clients.iter().any(|includes| (includes.0)(peer))
}

/// One request.
pub struct Request {
    /// The configuration with which the request began.
    pub thread_config: Rc<ThreadConfig>,
    /// The connection that it arrived on.
    pub conn: Rc<ConnInfo>,
    /// The server that serves it.
    pub server: ServerId,
    /// The current location.
    pub location: LocationId,
    /// The address that `realip` found for the client behind a proxy.
    pub real_client: Option<Address>,
    /// The parsed header section; its spans point into `raw`.
    pub head: Head,
    /// The buffer that contains the header section, and the offset of its start.
    raw: Option<Source>,
    raw_start: usize,
    /// The effective method: an internal redirect makes it GET.
    pub method: Method,
    /// Whether the method was changed to GET, which variables show in subrequests too.
    pub method_replaced: bool,
    /// The requested host, lower case, without port; empty if there is none.
    pub host: Vec<u8>,
    /// The decoded and normalised path; internal redirects change it.
    pub uri: Vec<u8>,
    /// The query without the question mark.
    pub args: Vec<u8>,
    /// Whether the request is internal (`internal` locations accept it).
    pub internal: bool,
    /// Whether the request is independent of its client, because it works for a cache or for several requests.
    pub is_detached: bool,
    /// Whether a client waits for the response of a detached request, so that interim responses are sent.
    pub is_awaited: bool,
    /// Nesting depth of a subrequest; 0 for a client's request.
    pub depth: u8,
    /// Whether a rewrite in this location changed the URI, so that its location has to be searched again.
    pub uri_changed: bool,
    /// Whether a rewrite changed the URI without a new search, so that the location's name may not match it.
    pub left_location: bool,
    /// Whether path or query differ from the received ones, so that the request line no longer names the resource.
    pub uri_replaced: bool,
    /// Number of internal redirects so far.
    pub redirects: u32,
    /// The status of the error page in progress.
    pub error_status: Option<u16>,
    /// Whether no further `error_page` applies.
    pub has_last_error_page: bool,
    /// Whether the times of its waits are recorded, although no operator watches requests.
    pub is_timed: bool,
    /// State shared with its subrequests.
    pub shared: Rc<Shared>,
    /// The values of variables that a subrequest keeps while its content handler waits ([`Request::keep_values`]).
    kept_values: Option<Box<Slots>>,
    /// The subject and the groups of the last regular expression.
    pub captures: Captures,
    /// The response, as far as it is known.
    pub response: Response,
    /// Time at which its first byte arrived.
    pub started: Instant,
    /// The same time by the wall clock.
    pub started_wall: SystemTime,
    /// Time at which the response's header section was ready to be sent; before that, the same as `started`.
    pub header_ready: Instant,
    /// Bytes of the request received, header section and body.
    pub received: u64,
    /// Bytes of the response sent, header section and body.
    pub sent: u64,
    /// Bytes of the response's header section.
    pub sent_head: u64,
    /// Whether its header section had arrived before the response to the previous request was sent.
    pub pipelined: bool,
    /// Whether the connection may serve another request.
    pub keepalive: bool,
    /// Whether the complete response was sent.
    pub completed: bool,
    /// Cached results of modules about this request.
    pub facts: Facts,
    /// The method by which the response's body is sent, if the body is a file.
    pub mover: Option<Mover>,
    /// `$limit_rate`, if it was set.
    pub limit_rate: Option<u64>,
    /// Bytes sent before the limit applies, if the request has a separate value (`mp4_limit_rate_after`).
    pub limit_rate_after: Option<u64>,
    /// Values of modules that belong to this request.
    pub extensions: Extensions,
    /// The body, if a handler requested it; its subrequests share it.
    pub body: Option<Rc<ReceivedBody>>,
    /// The body while it arrives at a handler piece by piece.
    pub incoming: Option<Rc<IncomingBody>>,
    /// Whether the connection has read the body, or as much of it as possible, so that the next request can follow. A
    /// handler that requests the body after the response gets none, and this stays false.
    pub is_body_consumed: bool,
    /// Whether a handler consumed the body piece by piece, so that it cannot be read again.
    pub body_was_streamed: bool,
    /// Whether the body will not be read any more, so that its length no longer matters: after a 413, and after the response.
    pub ignores_body: bool,
    /// Whether its log lines were written.
    is_ended: Cell<bool>,
    /// Background subrequests of this request.
    pub background: Option<WaitGroup>,
    /// Memory for the header sections of responses.
    pub spare: Vec<u8>,
    /// Memory for paths.
    pub path: Vec<u8>,
}

/// nginx's limit on internal redirects; more of them mean a loop.
pub const REDIRECTS_MAX: u32 = 10;

/// Memory in bytes for fields that are added to a received header section, so that few of them need no second allocation.
const CHANGED_FIELDS_ROOM: usize = 128;

/// Size in bytes of the smallest buffer for bodies.
const BODY_BUFFER_MIN: usize = 64 << 10;

impl Subject for Request {
    type Phase = Phase;
    type Step = Step;
}

impl Request {
    /// Returns a request that has not been read yet.
    pub fn new(thread_config: Rc<ThreadConfig>, conn: Rc<ConnInfo>, server: ServerId) -> Request {
        Request::with_head(thread_config, conn, server, Head::new(), Rc::default())
    }

    fn with_head(
        thread_config: Rc<ThreadConfig>,
        conn: Rc<ConnInfo>,
        server: ServerId,
        head: Head,
        shared: Rc<Shared>,
    ) -> Request {
        let location = thread_config.config.server(server).root;
        Request {
            thread_config,
            conn,
            server,
            location,
            real_client: None,
            head,
            raw: None,
            raw_start: 0,
            method: Method::Get,
            method_replaced: false,
            host: Vec::new(),
            uri: Vec::new(),
            args: Vec::new(),
            internal: false,
            uri_changed: false,
            left_location: false,
            uri_replaced: false,
            is_detached: false,
            is_awaited: false,
            depth: 0,
            redirects: 0,
            error_status: None,
            has_last_error_page: false,
            is_timed: false,
            shared,
            kept_values: None,
            captures: Captures::default(),
            response: Response::default(),
            started: rt::now(),
            header_ready: rt::now(),
            started_wall: rt::wall(),
            received: 0,
            sent: 0,
            sent_head: 0,
            pipelined: false,
            keepalive: false,
            completed: false,
            facts: Facts::default(),
            mover: None,
            limit_rate: None,
            limit_rate_after: None,
            extensions: Extensions::default(),
            body: None,
            incoming: None,
            is_body_consumed: false,
            body_was_streamed: false,
            ignores_body: false,
            is_ended: Cell::new(false),
            background: None,
            spare: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Prepares a cleared request for a new request of `conn`, which starts under this configuration version.
    pub fn begin(&mut self, thread_config: &Rc<ThreadConfig>, conn: &Rc<ConnInfo>, server: ServerId) {
        if !Rc::ptr_eq(&self.thread_config, thread_config) {
            self.thread_config = Rc::clone(thread_config);
        }
        if !Rc::ptr_eq(&self.conn, conn) {
            self.conn = Rc::clone(conn);
        }
        self.server = server;
        self.location = thread_config.config.server(server).root;
        self.started = rt::now();
        self.header_ready = self.started;
        self.started_wall = rt::wall();
    }

    /// Resets everything but retains the memory. Each field is named, so that a new one cannot be forgotten.
    pub fn clear(&mut self) {
        self.captures.clear();
        #[rustfmt::skip]
        let Request {
            real_client, head, raw, raw_start, method, method_replaced, host, uri, args, internal, is_detached, is_awaited,
            depth, uri_changed, left_location, uri_replaced, redirects, error_status, has_last_error_page, is_timed, shared, kept_values, response,
            received, sent, sent_head, pipelined, keepalive, completed, facts, mover, limit_rate, limit_rate_after,
            extensions, body, incoming, is_body_consumed, body_was_streamed, ignores_body, is_ended, background,
            // Set by `begin`.
            thread_config: _, conn: _, server: _, location: _, started: _, started_wall: _, header_ready: _,
            // Cleared above, and memory that each user clears first.
            captures: _, spare: _, path: _,
        } = self;
        (*real_client, *raw, *raw_start) = (None, None, 0);
        head.clear();
        host.clear();
        uri.clear();
        args.clear();
        // A header section without a valid request line has no method. A remaining HEAD would suppress the body of the error response.
        (*method, *method_replaced) = (Method::Get, false);
        (*internal, *uri_changed, *left_location) = (false, false, false);
        (*is_detached, *is_awaited, *uri_replaced) = (false, false, false);
        (*depth, *redirects) = (0, 0);
        (*error_status, *has_last_error_page, *is_timed) = (None, false, false);
        match Rc::get_mut(shared) {
            Some(shared) => shared.clear(),
            // An abandoned subrequest still uses the shared state.
            None => *shared = Rc::default(),
        }
        *kept_values = None;
        response.clear();
        (*received, *sent, *sent_head) = (0, 0, 0);
        (*pipelined, *keepalive, *completed) = (false, false, false);
        facts.clear();
        (*mover, *limit_rate, *limit_rate_after) = (None, None, None);
        extensions.clear();
        (*body, *is_body_consumed, *background) = (None, false, None);
        (*incoming, *body_was_streamed, *ignores_body) = (None, false, false);
        is_ended.set(false);
    }

    /// Calls a function for a response that is not sent, and drops the values and the groups of matches that it has stored.
    pub fn look_ahead<T>(&mut self, look: impl FnOnce(&mut Request) -> T) -> T {
        let values = self.slots().snapshot();
        let captures = self.captures.clone();
        let seen = look(self);
        self.slots().restore(values);
        self.captures = captures;
        seen
    }

    /// Returns a subrequest with this request's header section and variables, for the same server.
    pub fn child(&self) -> Box<Request> {
        let (thread_config, conn) = (Rc::clone(&self.thread_config), Rc::clone(&self.conn));
        let shared = Rc::clone(&self.shared);
        let mut child =
            Box::new(Request::with_head(thread_config, conn, self.server, self.head.clone(), shared));
        // No buffer of the pool: a subrequest must not fail because all of them are in use.
        child.take_head(Source::Vec(self.bytes().to_vec()), 0);
        child.real_client.clone_from(&self.real_client);
        child.host.clone_from(&self.host);
        child.limit_rate = self.limit_rate;
        child.body.clone_from(&self.body);
        child.method_replaced = self.method_replaced;
        (child.received, child.pipelined, child.keepalive) = (self.received, self.pipelined, self.keepalive);
        child.facts = self.facts.for_subrequest();
        (child.internal, child.depth) = (true, self.depth + 1);
        child
    }

    /// Gives a subrequest its own copy of the values of variables, until [`Request::share_values`]: other subrequests of the same page may
    /// assign the same variables while this one waits, and its request to an upstream must not depend on them. In nginx such a request is
    /// composed before the wait.
    pub(crate) fn keep_values(&mut self) {
        if self.depth > 0 {
            self.kept_values = Some(Box::new(self.shared.slots.clone()));
        }
    }

    /// Ends the effect of [`Request::keep_values`].
    pub(crate) fn share_values(&mut self) {
        self.kept_values = None;
    }

    /// Returns the state for a request that continues independently, with the current values of variables.
    pub fn detached_values(&self) -> Shared {
        self.shared.detached_with(self.slots().clone())
    }

    /// Whether this is a rehearsal.
    pub fn is_rehearsed(&self) -> bool {
        self.conn.rehearsal.is_some()
    }

    /// Notes an event of a rehearsal. For a request of a client this is one load.
    pub fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(rehearsal) = &self.conn.rehearsal {
            let rehearsal = Rc::clone(rehearsal);
            rehearsal.push(Note { depth: self.depth, location: self.location, event: event() });
        }
    }

    /// Returns the configuration of this request, which never changes.
    pub fn config(&self) -> &Config {
        &self.thread_config.config
    }

    /// Returns the chosen server.
    pub fn server(&self) -> &Server {
        self.config().server(self.server)
    }

    /// Returns the requested host, lower case and without port, else the first name of the server (`$host`).
    pub fn host_or_name(&self) -> &[u8] {
        if self.host.is_empty() { self.server().name.as_bytes() } else { &self.host }
    }

    /// Returns the port that the client named in the request line or in `Host`, whichever was used (`$request_port`).
    pub fn named_port(&self) -> Option<u16> {
        self.head.host().and_then(|host| host.port).filter(|&port| port != 0)
    }

    /// Returns the current location.
    pub fn location(&self) -> &Location {
        self.config().location(self.location)
    }

    /// Returns the client's address: the peer of the connection, or the client behind a trusted proxy. Code that
    /// checks, counts or logs clients uses this.
    pub fn client(&self) -> &Address {
        self.real_client.as_ref().unwrap_or(&self.conn.peer)
    }

    /// Returns the interface to the client, if `matters` and the connection is open.
    pub fn client_if(&self, matters: bool) -> Option<Rc<dyn Client>> {
        self.conn.client.borrow().clone().filter(|_| matters)
    }

    /// Returns the settings of the current location.
    pub fn scope(&self) -> &Scope {
        &self.location().scope
    }

    /// Returns the modules that take part in requests of the current location.
    pub fn plan(&self) -> &Plan {
        debug_assert!(
            (self.location.0 as usize) < self.thread_config.plans.len(),
            "each location has a plan"
        );
        &self.thread_config.plans[self.location.0 as usize]
    }

    /// Notifies the modules of the location of the request's end.
    pub fn end(&self) {
        self.is_ended.set(true);
        self.plan().end(self);
    }

    /// Whether its log lines were written.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.get()
    }

    /// Stores the buffer in which the header section was parsed.
    pub fn take_head(&mut self, raw: Source, start: usize) {
        debug_assert!(start <= raw.bytes().len(), "the header section begins within the source");
        self.raw = Some(raw);
        self.raw_start = start;
    }

    /// Changes the received header fields, for all later readers.
    pub fn change_fields(&mut self, change: impl FnOnce(&mut Head, &mut Vec<u8>)) {
        let received = self.bytes();
        let mut bytes = Vec::with_capacity(received.len() + CHANGED_FIELDS_ROOM);
        bytes.extend_from_slice(received);
        change(&mut self.head, &mut bytes);
        self.take_head(Source::Vec(bytes), 0);
    }

    /// Copies the header section into memory of its size and releases the receive buffer, for a request that may take
    /// long.
    pub fn release_buffer(&mut self) {
        if let Some(Source::Buf(_)) = &self.raw {
            let bytes = self.bytes().to_vec();
            self.take_head(Source::Vec(bytes), 0);
        }
    }

    /// Returns a buffer for a module that reads a file before the response begins. If none is free, waits like a
    /// response for at most `send_timeout`. Releases the receive buffer before: a waiting task should hold no buffer.
    pub async fn wait_for_buffer(&mut self, bytes: usize) -> Option<Buf> {
        if let Some(buf) = rt::try_buffer(bytes) {
            return Some(buf);
        }
        self.release_buffer();
        let until = rt::now() + self.scope().core.sending.send_timeout;
        // The queue is served in order. A wait for a smaller buffer, which only header sections release, would hold up all
        // bodies.
        match rt::select(rt::buffer(bytes.max(BODY_BUFFER_MIN), 0), rt::sleep_until(until)).await {
            Either::Left(buf) => Some(buf),
            Either::Right(()) => None,
        }
    }

    /// Retains the memory of a header section that was sent.
    pub fn store_spare(&mut self, mut head: Vec<u8>) {
        head.clear();
        self.spare = head;
    }

    /// Returns the received header section.
    pub fn bytes(&self) -> &[u8] {
        self.raw.as_ref().map(|raw| &raw.bytes()[self.raw_start..]).unwrap_or_default()
    }

    /// Returns the request line for logs; if it is invalid, the received bytes up to the end of the line. For protocols
    /// without a request line it is generated.
    pub fn line(&self) -> Cow<'_, [u8]> {
        let bytes = self.bytes();
        match self.head.request_line().of(bytes) {
            b"" if self.head.is_started() => {
                let (method, target) = (self.head.method_span().of(bytes), self.head.target_span().of(bytes));
                let mut line = Vec::with_capacity(method.len() + target.len() + " HTTP/2.0 ".len());
                [method, b" ", target, b" "].into_iter().for_each(|part| line.extend_from_slice(part));
                self.head.push_protocol(&mut line);
                Cow::Owned(line)
            }
            b"" => Cow::Borrowed(&bytes[..memchr::memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len())]),
            line => Cow::Borrowed(line),
        }
    }

    /// Returns the value of the first header field of this name.
    pub fn header(&self, id: HeaderId) -> Option<&[u8]> {
        self.head.get(self.bytes(), id)
    }

    /// Whether `Cache-Control` of the request or of its response forbids to change the body (RFC 9111 section 5.2.1.6, RFC 9110
    /// section 7.7).
    pub fn forbids_transform(&self) -> bool {
        let control = self.head.all(self.bytes(), HeaderId::CacheControl);
        RequestCacheControl::parse(control, []).no_transform || self.response.forbids_transform()
    }

    /// Returns the method as written.
    pub fn method_text(&self) -> &[u8] {
        if self.method_replaced {
            return b"GET";
        }
        self.head.method_span().of(self.bytes())
    }

    /// Whether the received path had escapes, or pluses, which many programs read as blanks. Only then are captures
    /// escaped in a query, as in nginx. The path of a subrequest was never received.
    pub fn was_encoded(&self) -> bool {
        if self.depth > 0 {
            return false;
        }
        let input = self.head.request_uri(self.bytes());
        let path = &input[..memchr::memchr2(b'?', b'#', input).unwrap_or(input.len())];
        memchr::memchr2(b'%', b'+', path).is_some()
    }

    /// Returns the time since the first byte of the request.
    pub fn elapsed(&self) -> Duration {
        rt::now().saturating_duration_since(self.started)
    }
}

/// What happens on a connection of a client: a request, or a session of `stream`.
pub trait OnConnection: HasVariables {
    /// Returns the connection.
    fn conn(&self) -> &Rc<ConnInfo>;

    /// Returns the settings of its block: `http` or `stream`.
    fn block(&self) -> &Http;

    /// Returns the client's address: the peer of the connection, or the client behind a trusted proxy.
    fn client_address(&self) -> &Address;

    /// Returns the values of `X-Forwarded-For`, which only requests have.
    fn forwarded_for(&self) -> Vec<&[u8]> {
        Vec::new()
    }
}

impl OnConnection for Request {
    fn conn(&self) -> &Rc<ConnInfo> {
        &self.conn
    }

    fn block(&self) -> &Http {
        &self.config().http
    }

    fn client_address(&self) -> &Address {
        self.client()
    }

    fn forwarded_for(&self) -> Vec<&[u8]> {
        self.head.all(self.bytes(), HeaderId::XForwardedFor).collect()
    }
}

impl HasVariables for Request {
    fn variables(&self) -> &Variables<Request> {
        &self.thread_config.variables
    }

    fn registry(&self) -> &Registry {
        &self.config().http.registry
    }

    fn slots(&self) -> &Slots {
        self.kept_values.as_deref().unwrap_or(&self.shared.slots)
    }

    fn captures(&self) -> &Captures {
        &self.captures
    }

    fn shared_extensions(&self) -> &RefCell<Extensions> {
        &self.shared.extensions
    }

    fn warns_of_uninitialized(&self) -> bool {
        self.scope().core.uninitialized_variable_warn
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        Request::log(self, level, message);
    }
}
