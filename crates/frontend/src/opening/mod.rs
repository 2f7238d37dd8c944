//! Opens a connection: from an accepted socket to a known protocol.
//!
//! ```text
//!   accepted --> PROXY header --> TLS handshake --> first bytes --> choice --> Opened { wire, info, early, protocol }
//!                [`proxy`]        [`secure`]        [`choice`]
//! ```
//! Each step applies only if the configuration of the address requires it. `client_header_timeout` limits each of them, and meanwhile
//! the connection counts as one without a request: it is among the first that are closed to make room. A connection that ends in one
//! of these steps is closed here; a protocol gets only opened connections.

mod choice;
mod passed;
mod proxy;
mod secure;

use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use io::Errno;
use rt::Timer;

pub(crate) use self::passed::{PassFault, Passed};
pub(crate) use self::proxy::NoHeader;
use crate::input::Input;
use crate::listen_socket::{DefaultServer, ListenSocket};
use crate::wire::Wire;
use exchange::error_log;
use exchange::request::{Address, ConnInfo};
use exchange::thread::Thread;
use site::config::Section;
use telemetry::{Level, Reason, tally};

/// A connection whose protocol is known.
pub struct Opened {
    /// The transport of its bytes.
    pub wire: Wire,
    /// Its facts: addresses, the header of the PROXY protocol, the result of the handshake.
    pub info: Rc<ConnInfo>,
    /// Bytes that were already received.
    pub early: Input,
    /// The protocol of these bytes and of all further ones.
    pub protocol: Protocol,
    /// The thread that accepted it.
    pub(crate) thread: Rc<Thread>,
    /// The listening socket that it arrived at.
    pub(crate) listen_socket: Rc<ListenSocket>,
    /// The server that applies before that of a request is known.
    pub(crate) default: DefaultServer,
    /// A timer, for deadlines of the connection.
    pub(crate) timer: Timer,
    /// Its state in the statistics of the thread.
    pub(crate) stage: tally::Counted,
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1; at least one byte is in `early`.
    Http1,
    /// HTTP/2: negotiated in the handshake, or `early` begins with its preface.
    Http2,
}

/// Opens an accepted connection; `None` if it has ended. A client that has already disconnected may have sent a request, which is
/// processed and logged.
pub async fn open(thread: Rc<Thread>, listen_socket: Rc<ListenSocket>, fd: OwnedFd) -> Option<Opened> {
    // Counted before anything that can fail: the number of a connection needs the count.
    let stage = thread.tally.connection();
    match Opening::begin(Section::Http, thread, listen_socket, fd, stage) {
        Ok(opening) => opening.open().await,
        Err(unusable) => {
            unusable.log();
            None
        }
    }
}

/// A connection that is being opened.
pub(crate) struct Opening {
    pub(crate) thread: Rc<Thread>,
    pub(crate) listen_socket: Rc<ListenSocket>,
    pub(crate) info: Rc<ConnInfo>,
    pub(crate) default: DefaultServer,
    pub(crate) early: Input,
    pub(crate) timer: Timer,
    pub(crate) stage: tally::Counted,
    pub(crate) wire: Wire,
}

/// A socket whose addresses the kernel does not return.
pub(crate) struct Unusable {
    thread: Rc<Thread>,
    /// The name of the failed call.
    call: &'static str,
    errno: Errno,
}

impl Unusable {
    /// Logs the failed call.
    pub(crate) fn log(&self) {
        let (call, why) = (self.call, Reason(self.errno));
        error_log::write(&self.thread, Level::Crit, format_args!("{call} failed ({why})"));
    }
}

impl Opening {
    /// Opens a connection of `http`; `None` if it has ended. This is not an async function, which would hold the argument twice.
    pub(crate) fn open(self) -> impl Future<Output = Option<Opened>> {
        let mut opening = self;
        async move {
            if opening.is_traced() {
                opening.trace_accept();
            }
            // Boxed, because most connections need neither.
            if opening.info.is_proxied && Box::pin(opening.read_proxy_header()).await.is_err() {
                return opening.end();
            }
            if opening.info.is_tls {
                opening = Box::pin(opening.secured()).await?;
            }
            match opening.find_protocol().await {
                Some(protocol) => Some(opening.opened(protocol)),
                None => opening.end(),
            }
        }
    }

    /// Begins to open a connection for a block.
    pub(crate) fn begin(
        section: Section,
        thread: Rc<Thread>,
        listen_socket: Rc<ListenSocket>,
        fd: OwnedFd,
        stage: tally::Counted,
    ) -> Result<Opening, Unusable> {
        let mut wire = Wire::plain(fd);
        let (peer, local) = match addresses(&wire, &listen_socket) {
            Ok(addresses) => addresses,
            Err((call, errno)) => return Err(Unusable { thread, call, errno }),
        };
        let thread_config = thread.thread_config();
        if !is_same_machine(&peer, &local) {
            wire.set_zero_copy(thread_config.config.events().zero_copy.map(|bytes| bytes as usize));
        }
        let listen = listen_socket.listen_in(section, &thread_config);
        let is_tls = listen.is_some_and(|listen| listen.is_tls(&local));
        let is_proxied = listen.is_some_and(|listen| listen.expects_proxy_protocol(&local));
        let info = Rc::new(ConnInfo { is_proxied, is_tls, ..ConnInfo::new(&thread, peer, local) });
        let default = DefaultServer::of(section, thread_config, &listen_socket, &info);
        let (early, timer) = (Input::default(), Timer::new());
        Ok(Opening { thread, listen_socket, info, default, early, timer, stage, wire })
    }

    /// Finds the protocol by the handshake or the first bytes; `None` if the connection must end.
    async fn find_protocol(&mut self) -> Option<Protocol> {
        // A reload during the accept or the handshake may have removed the address.
        if !self.listen_socket.serves(&self.default.thread_config, &self.info) {
            return None;
        }
        if self.has_agreed_on_http2() {
            return Some(Protocol::Http2);
        }
        if !self.remains_served() || !self.wait_for_first_bytes().await {
            return None;
        }
        if self.may_be_http2() {
            return Box::pin(self.choose_by_preface()).await;
        }
        Some(Protocol::Http1)
    }

    /// Closes the connection.
    fn end(self) -> Option<Opened> {
        self.wire.end(&self.thread);
        None
    }

    fn opened(self, protocol: Protocol) -> Opened {
        let Opening { thread, listen_socket, info, default, early, timer, stage, wire } = self;
        Opened { wire, info, early, protocol, thread, listen_socket, default, timer, stage }
    }

    /// Switches to the active configuration version; returns whether it was another one.
    fn renew(&mut self) -> bool {
        self.default.renew(&self.thread, &self.listen_socket, &self.info)
    }

    /// Switches to the active configuration version; returns whether this version still serves the connection.
    fn remains_served(&mut self) -> bool {
        !self.renew() || self.listen_socket.serves(&self.default.thread_config, &self.info)
    }

    /// Whether the configuration has debug messages.
    fn is_traced(&self) -> bool {
        self.default.thread_config.config.http.traces
    }

    /// Writes a debug message about the connection.
    #[cold]
    fn trace(&self, message: fmt::Arguments<'_>) {
        self.log(Level::Debug, message);
    }

    #[cold]
    fn trace_accept(&self) {
        let (peer, local) = (&self.info.peer, &self.info.local);
        self.trace(format_args!("accepted connection of client {peer} at {local}"));
    }

    /// Logs a failed step, with the addresses of the socket instead of a request, as in nginx.
    pub(crate) fn log_failure(&self, level: Level, what: impl fmt::Display, step: &str) {
        let (client, server) = (&self.info.peer, &self.listen_socket.address);
        self.log(level, format_args!("{what} while {step}, client: {client}, server: {server}"));
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let (thread_config, log) = (&self.default.thread_config, &self.default.core().error_log);
        error_log::write_about(thread_config, &self.info, log, level, message);
    }
}

/// Returns the addresses of the client and of this server, or the call that failed.
fn addresses(wire: &Wire, listen_socket: &ListenSocket) -> Result<(Address, Address), (&'static str, Errno)> {
    let peer = Address::from(wire.peer().map_err(|errno| ("getpeername()", errno))?);
    let local = match &listen_socket.bound {
        // A socket bound to a wildcard does not show the local address.
        Address::Inet(bound) if bound.ip().is_unspecified() => {
            Address::from(wire.local().map_err(|errno| ("getsockname()", errno))?)
        }
        bound => bound.clone(),
    };
    Ok((peer, local))
}

/// Whether both ends are on the same machine: on loopback the kernel copies the data of zero-copy sends, and reports it only
/// afterwards.
fn is_same_machine(peer: &Address, local: &Address) -> bool {
    match (peer, local) {
        (Address::Inet(peer), Address::Inet(local)) => peer.ip().is_loopback() || peer.ip() == local.ip(),
        _ => true,
    }
}
