//! A session of `stream`: one connection of a client, or the datagrams of one client, from the accept to the log line.
//!
//! ```text
//!   accepted --> PostAccept --> Preaccess --> Access --> TLS handshake --> Preread --> Pass --> Content --> log
//! ```
//! `frontend` has the socket, receives the first bytes and performs the handshake; modules have the handlers of the phases, as for a
//! request. The handler of the content phase gets the client as a [`Duplex`].

mod phases;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub use self::phases::{PhaseEnd, SessionPhase, SessionStep};
use crate::module::SessionPlan;
use crate::request::{ConnInfo, OnConnection, ThreadConfig};
use crate::thread::Thread;
use site::address::Address;
use site::config::{Config, Http, LocationId, Scope, Section, ServerId};
use site::extensions::Extensions;
use site::phases::Subject;
use site::registry::Registry;
use site::settings::listen::Listen;
use site::slots::{Captures, Slots};
use site::variables::{HasVariables, Variables};
use telemetry::Level;
use transfer::datagrams::DatagramClient;
use transfer::duplex::Duplex;

/// One session.
pub struct Session {
    /// The configuration with which the session began.
    pub thread_config: Rc<ThreadConfig>,
    /// The connection of the client.
    pub conn: Rc<ConnInfo>,
    /// Index of the listening address in `stream`.
    listen: usize,
    /// The server.
    server: ServerId,
    /// The address that `realip` found for the client behind a proxy.
    pub real_client: Option<Address>,
    /// `$status`; 0 until the session ends.
    pub status: u16,
    /// Time of the accept.
    pub started: Instant,
    /// The same time by the wall clock.
    pub started_wall: SystemTime,
    /// Bytes in all directions, so far.
    pub counts: Rc<SessionCounts>,
    /// What the session is doing, for the error log: `connecting to upstream`.
    pub action: Cell<&'static str>,
    /// The upstream of the last try, for the error log. `Some` as soon as the session is passed on.
    pub upstream: RefCell<Option<Arc<str>>>,
    /// The bytes that the client has sent first, while they are examined; the content handler passes them on.
    pub early: Vec<u8>,
    /// The client, for the handler of the content phase.
    pub client: Option<Box<dyn Duplex>>,
    /// The client of a session of UDP.
    pub datagrams: Option<Rc<DatagramClient>>,
    slots: Slots,
    captures: Captures,
    /// Values of modules.
    pub extensions: RefCell<Extensions>,
}

/// Bytes of a session, without those of the PROXY protocol and of TLS.
#[derive(Debug, Default)]
pub struct SessionCounts {
    /// Bytes from the client.
    pub received: Cell<u64>,
    /// Bytes to the client.
    pub sent: Cell<u64>,
    /// Bytes from the upstream.
    pub upstream_received: Cell<u64>,
    /// Bytes to the upstream.
    pub upstream_sent: Cell<u64>,
}

impl Subject for Session {
    type Phase = SessionPhase;
    type Step = SessionStep;
}

impl Session {
    /// Begins the session of a connection at the address of `stream` with this index.
    pub fn new(thread_config: Rc<ThreadConfig>, conn: Rc<ConnInfo>, listen: usize) -> Session {
        let server = thread_config.config.stream.listens[listen].lookup(&conn.local).0;
        let started = conn.opened;
        Session {
            thread_config,
            conn,
            listen,
            server,
            real_client: None,
            status: 0,
            started,
            started_wall: rt::wall(),
            counts: Rc::default(),
            action: Cell::new("initializing session"),
            upstream: RefCell::default(),
            early: Vec::new(),
            client: None,
            datagrams: None,
            slots: Slots::default(),
            captures: Captures::default(),
            extensions: RefCell::default(),
        }
    }

    /// Returns the thread that serves the session.
    pub fn thread(&self) -> &Rc<Thread> {
        &self.conn.thread
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.thread_config.config
    }

    /// Returns the listening address with its servers.
    pub fn listen(&self) -> &Listen {
        &self.config().stream.listens[self.listen]
    }

    /// Returns the server.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Continues with another server of the address.
    pub fn set_server(&mut self, server: ServerId) {
        debug_assert!(self.listen().has_server(server), "the server is one of the address");
        self.server = server;
    }

    /// Returns the location that has the settings of the server.
    pub(crate) fn location(&self) -> LocationId {
        self.config().stream.servers[self.server.0 as usize].root
    }

    /// Returns the settings of the server.
    pub fn scope(&self) -> &Scope {
        self.config().stream.server_scope(self.server)
    }

    /// Returns the modules that take part in the session.
    pub fn plan(&self) -> &SessionPlan {
        &self.thread_config.session_plans[self.location().0 as usize]
    }

    /// Returns the client's address: the peer of the connection, or the client behind a trusted proxy.
    pub fn client(&self) -> &Address {
        self.real_client.as_ref().unwrap_or(&self.conn.peer)
    }

    /// Ends the session: notifies the modules, which write the log line.
    pub fn end(&mut self, status: u16) {
        self.status = status;
        self.plan().end(self);
    }

    /// Returns the time since the accept.
    pub fn elapsed(&self) -> Duration {
        rt::now().saturating_duration_since(self.started)
    }

    /// Writes a line to the error log of the server, with the action and nginx's fields.
    pub fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        match self.action.get() {
            "" => self.write_line(level, message, true),
            action => self.write_line(level, format_args!("{message} while {action}"), true),
        }
    }

    /// Writes a line without fields.
    pub fn log_plain(&self, level: Level, message: fmt::Arguments<'_>) {
        self.write_line(level, message, false);
    }
}

impl OnConnection for Session {
    fn conn(&self) -> &Rc<ConnInfo> {
        &self.conn
    }

    fn block(&self) -> &Http {
        self.thread_config.config.section(Section::Stream)
    }

    fn client_address(&self) -> &Address {
        self.client()
    }
}

impl HasVariables for Session {
    fn variables(&self) -> &Variables<Session> {
        &self.thread_config.session_variables
    }

    fn registry(&self) -> &Registry {
        &self.config().stream.registry
    }

    fn slots(&self) -> &Slots {
        &self.slots
    }

    fn captures(&self) -> &Captures {
        &self.captures
    }

    fn shared_extensions(&self) -> &RefCell<Extensions> {
        &self.extensions
    }

    fn warns_of_uninitialized(&self) -> bool {
        true
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        Session::log(self, level, message);
    }
}
