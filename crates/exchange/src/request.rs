//! One request in flight: the request, its progress, and the response.
//!
//! A connection has one `Request` and uses it again for each request it reads. Reading, sending and logging
//! are the connection's; deciding is the phases'.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::request::{Head, HeaderId, Method};
use io::op::Source;
use rt::local::WaitGroup;

pub use crate::address::Address;
use crate::client::Client;
use crate::config::{Config, Location, LocationId, Scope, Server, ServerId};
use crate::extensions::Extensions;
use crate::facts::Facts;
use crate::response::Response;
use crate::secured::Secured;
use crate::slots::{Captures, Slots};
use crate::thread::Thread;
use crate::variables::ModuleVariables;
use telemetry::named::NamedLogs;
use telemetry::sink::LogTarget;
use telemetry::traffic::Traffic;
use transfer::body::choose::Mover;
use transfer::files::Roots;
use transfer::files::cache::Caches;
use transfer::incoming::IncomingBody;
use transfer::received::ReceivedBody;

/// A configuration as one thread holds it: requests count on this thread only.
pub struct Generation {
    /// The configuration.
    pub config: Arc<Config>,
    /// Facts about the roots, by location.
    pub roots: Rc<Roots>,
    /// `open_file_cache`
    pub open_files: Caches,
    /// Counts the reloads.
    pub number: u64,
    /// Dropped when the last thread and the last request are done with it.
    pub _in_force: Arc<dyn Any + Send + Sync>,
    /// Log targets, in the order of the configuration's list.
    pub sinks: Vec<Rc<LogTarget>>,
    /// Logs with variables in their names.
    pub named: Rc<NamedLogs>,
    /// Counts of requests by server and location, if enabled.
    pub traffic: OnceCell<Traffic>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Facts about a connection that its requests show.
pub struct ConnInfo {
    /// Its connection.
    pub thread: Rc<Thread>,
    /// `$connection_requests`
    pub requests: Cell<u64>,
    /// For `$connection_time` and `keepalive_time`.
    pub opened: Instant,
    /// `$connection`
    pub number: u64,
    /// Further calls on it; removed when the connection ends, because a request outlives it as memory for the next one.
    pub client: RefCell<Option<Rc<dyn Client>>>,
    /// The client's address.
    pub peer: Address,
    /// The address that the client connected to.
    pub local: Address,
    /// The PROXY protocol's header before the first request (`listen … proxy_protocol`).
    pub proxy: OnceCell<Box<http::proxy_protocol::Header>>,
    /// Whether the address speaks TLS (`listen … ssl`).
    pub is_tls: bool,
    /// The result of its handshake; nothing before that, and for plain HTTP on such an address.
    pub secured: OnceCell<Rc<Secured>>,
}

impl ConnInfo {
    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.secured.get().is_some() { "https" } else { "http" }
    }
}

/// One request.
pub struct Request {
    /// The configuration that it began under.
    pub generation: Rc<Generation>,
    /// The connection that it came by.
    pub conn: Rc<ConnInfo>,
    /// The server that answers it.
    pub server: ServerId,
    /// The location that it is in.
    pub location: LocationId,
    /// The address that `realip` found for the client behind a proxy.
    pub real_client: Option<Address>,
    /// The parsed head; its spans point into `raw`.
    pub head: Head,
    /// The buffer of the head, and its start there.
    raw: Option<Source>,
    raw_start: usize,
    /// The method that counts now: an internal redirect makes it GET.
    pub method: Method,
    /// Whether it was made GET, which variables show in subrequests too.
    pub method_replaced: bool,
    /// The requested host, lower case, without port; empty without one.
    pub host: Vec<u8>,
    /// Decoded and normalised path; changed by internal redirects.
    pub uri: Vec<u8>,
    /// Query without the question mark.
    pub args: Vec<u8>,
    /// Whether the URI came from the server itself.
    pub internal: bool,
    /// Whether it continues without the client, because its fetch is for others too.
    pub is_detached: bool,
    /// Whether a client waits for the header section of its response nevertheless: interim responses go there.
    pub is_awaited: bool,
    /// How many requests this one was made inside of; 0 for a client's.
    pub depth: u8,
    /// Whether a rewrite in this location gave the URI that another location is to be searched for.
    pub uri_changed: bool,
    /// Whether a rewrite changed the URI without such a search, so that the location's name does not match it.
    pub left_location: bool,
    /// Whether path or query differ from the received ones, so that the received text no longer names the resource.
    pub uri_replaced: bool,
    /// Internal redirects so far.
    pub redirects: u32,
    /// The status of the error page in progress.
    pub error_status: Option<u16>,
    /// State that it shares with its subrequests.
    pub shared: Rc<Shared>,
    /// The subject of the last regular expression, and its groups.
    pub captures: Captures,
    /// The response, as far as it is known.
    pub response: Response,
    /// When its first byte came.
    pub started: Instant,
    /// The same by the wall clock.
    pub started_wall: SystemTime,
    /// When the head of its response was ready to be sent; before that, as `started`.
    pub answered: Instant,
    /// Bytes of the request, head and body.
    pub received: u64,
    /// Bytes of the response, head and body.
    pub sent: u64,
    /// Bytes of the response's head.
    pub sent_head: u64,
    /// Whether the head was here before the response to the last request was sent.
    pub pipelined: bool,
    /// Whether the connection may serve another request.
    pub keepalive: bool,
    /// Whether the whole response went out.
    pub completed: bool,
    /// Cached results of modules about this request.
    pub facts: Facts,
    /// How the body of the response moves, when it is a file.
    pub mover: Option<Mover>,
    /// `$limit_rate`, when it was set.
    pub limit_rate: Option<u64>,
    /// Bytes before that limit applies, where the request has its own (`mp4_limit_rate_after`).
    pub limit_rate_after: Option<u64>,
    /// Values of modules that belong to this request.
    pub extensions: Extensions,
    /// The body, if a handler requested it; subrequests have the same one.
    pub body: Option<Rc<ReceivedBody>>,
    /// The body, while it comes to a handler piece by piece.
    pub incoming: Option<Rc<IncomingBody>>,
    /// Whether the connection has read the body, or as much of it as could be read: then it is not in the way of the
    /// next request. A handler that asks when the response has gone out gets none, and it still is.
    pub body_is_taken: bool,
    /// Whether a handler took it piece by piece, so that it cannot be read again.
    pub body_was_streamed: bool,
    /// Subrequests that run beside this request.
    pub background: Option<WaitGroup>,
    /// Memory of response heads.
    pub spare: Vec<u8>,
    /// Memory of paths.
    pub path: Vec<u8>,
}

/// State that a request of a client and its subrequests share, as in nginx. Several of them may be in flight at once.
#[derive(Default)]
pub struct Shared {
    /// Values of the configuration's variables.
    pub slots: Slots,
    /// Values of modules for all of them. It is not borrowed across an await.
    pub extensions: RefCell<Extensions>,
    /// Subrequests that were made so far, in whatever depth.
    pub subrequests: Cell<u32>,
    /// `$request_id`, made at its first use.
    pub id: Cell<Option<[u8; 16]>>,
}

impl Shared {
    /// For a request that goes its own way from here on: the same identifier, and nothing else.
    pub fn apart(&self) -> Shared {
        Shared { id: self.id.clone(), ..Shared::default() }
    }

    /// As [`Shared::apart`], with the values that the configuration's variables have by now.
    pub fn apart_with_values(&self) -> Shared {
        Shared { slots: self.slots.clone(), ..self.apart() }
    }
}

/// nginx's limit on internal redirects; more are a loop.
pub const REDIRECTS_MAX: u32 = 10;

impl Request {
    /// A request that has not been read yet.
    pub fn new(generation: Rc<Generation>, conn: Rc<ConnInfo>, server: ServerId) -> Request {
        Request::with_head(generation, conn, server, Head::new(), Rc::default())
    }

    fn with_head(
        generation: Rc<Generation>,
        conn: Rc<ConnInfo>,
        server: ServerId,
        head: Head,
        shared: Rc<Shared>,
    ) -> Request {
        let location = generation.config.server(server).root;
        Request {
            generation,
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
            shared,
            captures: Captures::default(),
            response: Response::default(),
            started: rt::now(),
            answered: rt::now(),
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
            body_is_taken: false,
            body_was_streamed: false,
            background: None,
            spare: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Makes one that was cleared ready for a request of `conn`, which starts under `generation`.
    pub fn begin(&mut self, generation: &Rc<Generation>, conn: &Rc<ConnInfo>, server: ServerId) {
        if !Rc::ptr_eq(&self.generation, generation) {
            self.generation = Rc::clone(generation);
        }
        if !Rc::ptr_eq(&self.conn, conn) {
            self.conn = Rc::clone(conn);
        }
        self.server = server;
        self.location = generation.config.server(server).root;
        self.started = rt::now();
        self.answered = self.started;
        self.started_wall = rt::wall();
    }

    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        self.real_client = None;
        self.head.clear();
        self.raw = None;
        self.raw_start = 0;
        self.host.clear();
        self.uri.clear();
        self.args.clear();
        // A refused header section has no method; HEAD from before would take the body from its response.
        (self.method, self.method_replaced) = (Method::Get, false);
        (self.internal, self.uri_changed, self.left_location) = (false, false, false);
        (self.is_detached, self.is_awaited) = (false, false);
        self.uri_replaced = false;
        self.redirects = 0;
        self.error_status = None;
        match Rc::get_mut(&mut self.shared) {
            Some(Shared { slots, extensions, subrequests, id }) => {
                slots.clear();
                extensions.get_mut().clear();
                subrequests.set(0);
                id.set(None);
            }
            // A subrequest that was given up has not ended yet.
            None => self.shared = Rc::default(),
        }
        self.clear_captures();
        self.response.clear();
        (self.received, self.sent, self.sent_head) = (0, 0, 0);
        (self.pipelined, self.keepalive, self.completed) = (false, false, false);
        self.facts.clear();
        (self.mover, self.limit_rate, self.limit_rate_after) = (None, None, None);
        self.extensions.clear();
        (self.body, self.body_is_taken, self.background) = (None, false, None);
        (self.incoming, self.body_was_streamed) = (None, false);
    }

    /// A subrequest with this one's head and variables, for the same server; `None` without memory for the head.
    pub fn child(&self) -> Option<Box<Request>> {
        let (generation, conn) = (Rc::clone(&self.generation), Rc::clone(&self.conn));
        let shared = Rc::clone(&self.shared);
        let mut child =
            Box::new(Request::with_head(generation, conn, self.server, self.head.clone(), shared));
        let bytes = self.bytes();
        let mut raw = rt::pool().get(bytes.len())?;
        raw.append(bytes);
        child.take_head(Source::Buf(raw), 0);
        child.leave_buffer_if_scarce();
        child.real_client.clone_from(&self.real_client);
        child.host.clone_from(&self.host);
        child.limit_rate = self.limit_rate;
        child.body.clone_from(&self.body);
        child.method_replaced = self.method_replaced;
        (child.received, child.pipelined, child.keepalive) = (self.received, self.pipelined, self.keepalive);
        child.facts = self.facts.for_subrequest();
        (child.internal, child.depth) = (true, self.depth + 1);
        Some(child)
    }

    /// The configuration of this request, the same from its first byte to its last.
    pub fn config(&self) -> &Config {
        &self.generation.config
    }

    /// The server that was chosen.
    pub fn server(&self) -> &Server {
        self.config().server(self.server)
    }

    /// The location that was found.
    pub fn location(&self) -> &Location {
        self.config().location(self.location)
    }

    /// The client: the peer of the connection, or the one behind a trusted proxy. Code that judges, counts or logs
    /// clients uses this.
    pub fn client(&self) -> &Address {
        self.real_client.as_ref().unwrap_or(&self.conn.peer)
    }

    /// The client's side of its connection, where it matters and is still there.
    pub fn client_if(&self, matters: bool) -> Option<Rc<dyn Client>> {
        self.conn.client.borrow().clone().filter(|_| matters)
    }

    /// The settings that hold.
    pub fn scope(&self) -> &Scope {
        &self.location().scope
    }

    /// The variables of all modules.
    pub(crate) fn variables(&self) -> &'static ModuleVariables {
        self.generation.config.modules.variables()
    }

    /// Notifies the modules of its location of the end.
    pub fn end(&self) {
        self.location().plan.end(self);
    }

    /// Takes the buffer in which the head was parsed.
    pub fn take_head(&mut self, raw: Source, start: usize) {
        self.raw = Some(raw);
        self.raw_start = start;
    }

    /// Changes the received fields, for all that look at them from here on.
    pub fn change_fields(&mut self, change: impl FnOnce(&mut Head, &mut Vec<u8>)) {
        let mut bytes = self.bytes().to_vec();
        change(&mut self.head, &mut bytes);
        self.take_head(Source::Vec(bytes), 0);
    }

    /// Copies the head into memory of its size, which frees the receive buffer for others: for a request that may take
    /// long.
    pub fn leave_buffer(&mut self) {
        if let Some(Source::Buf(_)) = &self.raw {
            let bytes = self.bytes().to_vec();
            self.take_head(Source::Vec(bytes), 0);
        }
    }

    /// The same where buffers are scarce: for each wait, of which most are short.
    pub fn leave_buffer_if_scarce(&mut self) {
        if rt::buffers_are_scarce() {
            self.leave_buffer();
        }
    }

    /// Keeps the memory of a head that was sent.
    pub fn keep_spare(&mut self, mut head: Vec<u8>) {
        head.clear();
        self.spare = head;
    }

    /// The received head.
    pub fn bytes(&self) -> &[u8] {
        self.raw.as_ref().map(|raw| &raw.bytes()[self.raw_start..]).unwrap_or_default()
    }

    /// The request line for logs; for an unreadable one the received part, up to its end. Where the protocol has no such
    /// line it is made.
    pub fn line(&self) -> Cow<'_, [u8]> {
        let bytes = self.bytes();
        match self.head.request_line().of(bytes) {
            b"" if self.head.is_begun() => {
                let (method, target) = (self.head.method_span().of(bytes), self.head.target_span().of(bytes));
                let mut line = [method, b" ", target, b" "].concat();
                self.head.push_protocol(&mut line);
                Cow::Owned(line)
            }
            b"" => Cow::Borrowed(&bytes[..memchr::memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len())]),
            line => Cow::Borrowed(line),
        }
    }

    /// The first field of this name.
    pub fn header(&self, id: HeaderId) -> Option<&[u8]> {
        self.head.get(self.bytes(), id)
    }

    /// The method as it was written.
    pub fn method_text(&self) -> &[u8] {
        if self.method_replaced {
            return b"GET";
        }
        self.head.method_span().of(self.bytes())
    }

    /// Whether the received path had escapes, or pluses, which many programs read as blanks: only then are parts of it
    /// escaped in a query. nginx's rule; the path of a subrequest was never received.
    pub fn was_encoded(&self) -> bool {
        if self.depth > 0 {
            return false;
        }
        let input = self.head.request_uri(self.bytes());
        let path = &input[..memchr::memchr2(b'?', b'#', input).unwrap_or(input.len())];
        memchr::memchr2(b'%', b'+', path).is_some()
    }

    /// Since the first byte of the request.
    pub fn elapsed(&self) -> Duration {
        rt::now().saturating_duration_since(self.started)
    }
}
