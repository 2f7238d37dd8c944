//! QUIC (RFC 9000) over the UDP sockets of a thread: an [`Endpoint`] for each address. `quinn-proto` implements the protocol, without I/O and clock.
//!
//! ```text
//!   socket --datagrams--> Endpoint --by connection ID--> QuicConnection --wakes--> its task, `h3`
//!      ^                     `--> a new connection, a Retry, a stateless reset        |
//!      '------------------------ packets, joined by UDP_SEGMENT ----------------------'
//! ```
//! The task of the endpoint receives and distributes datagrams. Everything else about a connection happens in the task of the connection:
//! its events, timeouts and packets.

mod choose;
mod congestion;
mod connection;
mod forward;
mod ids;
mod resets;
mod tokens;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use io::Errno;
use io::sys::{Datagrams, DatagramsToSend};
use quinn_proto::{
    ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointConfig, IdleTimeout, Incoming, ServerConfig,
    Transmit, TransportConfig, VarInt,
};
use rt::local::{Counted, Event, WaitGroup};
use rt::mailbox::Receiver;
use rt::net::DatagramListener;
use rt::{Either, select};

use crate::datagrams;
use crate::listen_socket::{DefaultServer, ListenSocket};
use choose::ServerChoice;
pub(crate) use connection::{QuicConnection, Sent};
use exchange::capacity::Resource;
use exchange::error_log;
use exchange::http3::Http3;
use exchange::request::{Address, ConnInfo, ThreadConfig};
use exchange::thread::Thread;
use forward::Forwarded;
pub use forward::Forwards;
use ids::Ids;
pub use ids::Steering;
use resets::UnknownIds;
use site::config::Section;
use site::settings::listen::ListenAddr;
use telemetry::tally::QuicEvent;
use telemetry::{Level, Reason};
use tls::quic::{HostKey, InitialKeys, VERSION};

/// Maximum number of closed connections of an endpoint whose requests have ended and which still respond to packets of their clients (RFC 9000
/// section 10.2). Further ones are removed immediately.
const CLOSING_MAX: usize = 1000;

/// Minimum time between two stateless resets of an endpoint (RFC 9000 section 10.3.3).
const RESET_INTERVAL: Duration = Duration::from_millis(20);

/// Time after the last accepted connection in which first packets are dropped instead of refused: they were sent to this process shortly
/// before its successor got the new connections, and the client repeats them (after a second, RFC 9002 section 6.2.2).
const HAND_OVER: Duration = Duration::from_millis(500);

/// Pause after an error of the socket that is not one of a peer, such as a lack of memory.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of unidirectional streams of a client: HTTP/3 needs three, and further ones may be of unknown types (RFC 9114 section 6.2.3).
const UNIDIRECTIONAL_MAX: u32 = 8;

/// Number of body bytes that a client may send on all streams of a connection, without a share of the thread's memory for bodies.
pub(crate) const CONNECTION_WINDOW: u64 = 128 << 10;

/// Minimum number of bytes that a connection stores until the client has acknowledged them.
pub(crate) const SEND_WINDOW_MIN: u64 = 128 << 10;

/// Time in addition to `keepalive_timeout` without packets of the client after which a connection has ended silently, so that the client gets the reason if
/// it is still there.
const IDLE_RESERVE: Duration = Duration::from_secs(5);

/// The QUIC connections of a thread at one address.
pub(crate) struct Endpoint {
    pub(crate) thread: Rc<Thread>,
    pub(crate) listen_socket: Rc<ListenSocket>,
    pub(crate) socket: DatagramListener,
    proto: RefCell<quinn_proto::Endpoint>,
    /// By the number of their handle.
    connections: RefCell<Vec<Option<Rc<QuicConnection>>>>,
    /// Counts the connections.
    open: WaitGroup,
    /// Counts closed connections whose requests have ended.
    closing: WaitGroup,
    /// Set when no further connection is accepted.
    closed: Event,
    /// When `closed` was set.
    closed_at: Cell<Option<Instant>>,
    /// Set when another process uses the socket.
    taken: Event,
    initial: InitialKeys,
    host_key: HostKey,
    serve: Serve,
    /// The sockets of the thread.
    steering: Steering,
    /// The mailboxes of the other threads, and that of this one until the endpoint runs.
    forwards: Arc<Forwards>,
    forwarded: Cell<Option<Receiver<Forwarded>>>,
    unknown_ids: RefCell<UnknownIds>,
}

/// Serves a connection from its first packet until its end.
pub(crate) type Serve = fn(Rc<QuicConnection>, ConnInfo, DefaultServer) -> Pin<Box<dyn Future<Output = ()>>>;

/// A socket that cannot be used, with the name of the failed call.
pub(crate) type Unusable = (&'static str, Errno);

/// Stops an endpoint from accepting connections.
#[derive(Clone)]
pub(crate) struct EndpointStopper(Rc<Endpoint>);

impl EndpointStopper {
    /// Stops accepting. Existing connections continue.
    pub(crate) fn stop(&self) {
        self.0.stop_accepting();
    }

    /// Ends all connections, because another process uses the socket from now on.
    pub(crate) fn end(&self) {
        self.0.stop_accepting();
        self.0.taken.set();
        self.0.connections.borrow().iter().flatten().for_each(|connection| connection.wake());
    }

    /// Whether the endpoint has connections, or accepts some.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.closed.is_set() || self.0.open.count() > 0
    }
}

impl Endpoint {
    /// Creates the endpoint of a socket. `serve` serves each connection from its first packet.
    pub(crate) fn new(
        thread: &Rc<Thread>,
        address: ListenAddr,
        socket: DatagramListener,
        (steering, forwards): (Steering, &Arc<Forwards>),
        serve: Serve,
    ) -> Result<Rc<Endpoint>, Unusable> {
        let bound = socket.local().map_err(|errno| ("getsockname()", errno))?;
        let forwarded = forwards.mailbox(&address, steering.thread);
        let listen_socket = Rc::new(ListenSocket::new(address, Address::Inet(bound)));
        let thread_config = thread.thread_config();
        let default = default_server(thread_config, &listen_socket);
        let secret = default.http3().host_key.as_deref().map(|secret| HostKey::new(secret));
        let host_key = secret.unwrap_or_else(HostKey::shared);
        let initial = InitialKeys::new().map_err(|_| ("TLS setup", Errno::NOSYS))?;
        let mut config = EndpointConfig::new(host_key.resets());
        config.supported_versions(vec![VERSION]);
        config.min_reset_interval(RESET_INTERVAL);
        config.cid_generator(move || Box::new(Ids(steering)));
        let own = server_config(&default, &listen_socket, Address::Inet(bound), &initial, &host_key);
        let proto = quinn_proto::Endpoint::new(Arc::new(config), Some(own), true, None);
        Ok(Rc::new(Endpoint {
            thread: Rc::clone(thread),
            listen_socket,
            socket,
            proto: RefCell::new(proto),
            connections: RefCell::default(),
            open: WaitGroup::new(),
            closing: WaitGroup::new(),
            closed: Event::new(),
            closed_at: Cell::new(None),
            taken: Event::new(),
            initial,
            host_key,
            serve,
            steering,
            forwards: Arc::clone(forwards),
            forwarded: Cell::new(Some(forwarded)),
            unknown_ids: RefCell::default(),
        }))
    }

    /// Returns the handle that stops it.
    pub(crate) fn stopper(self: &Rc<Self>) -> EndpointStopper {
        EndpointStopper(Rc::clone(self))
    }

    /// Receives datagrams until the endpoint is stopped and its last connection has ended.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut space = datagrams::space();
        let ended = async {
            self.closed.wait().await;
            select(self.open.wait_empty(), self.taken.wait()).await;
        };
        let mut ended = std::pin::pin!(ended);
        let mut mailbox = self.forwarded.take();
        loop {
            let forwarded = async {
                match &mut mailbox {
                    Some(mailbox) => mailbox.recv().await,
                    None => std::future::pending().await,
                }
            };
            let received = select(self.socket.readable(), forwarded);
            match select(received, ended.as_mut()).await {
                Either::Left(Either::Left(Ok(()))) => {}
                Either::Left(Either::Right(Some(Forwarded { facts, bytes }))) => {
                    self.process(&facts, &bytes);
                    continue;
                }
                // A later endpoint of the address has another mailbox.
                Either::Left(Either::Right(None)) => mailbox = None,
                Either::Left(Either::Left(Err(_))) => rt::sleep_until(rt::now() + ERROR_PAUSE).await,
                Either::Right(()) => return,
            }
            let received =
                datagrams::receive(&self.socket, &mut space, |facts, bytes| self.distribute(facts, bytes));
            if let Err(errno) = received {
                self.complain(Level::Error, format_args!("recvmmsg() failed ({})", Reason(errno)));
                rt::sleep_until(rt::now() + ERROR_PAUSE).await;
            }
            // The connections get their turn.
            rt::yield_now().await;
        }
    }

    /// Passes received datagrams to their connections.
    fn distribute(self: &Rc<Self>, facts: &Datagrams, bytes: &mut [u8]) {
        let is_joined = bytes.len() > facts.segment;
        for datagram in bytes.chunks(facts.segment.max(1)) {
            let thread = if is_joined { self.steering.thread_of(datagram) } else { None };
            match thread {
                Some(thread) if thread != self.steering.thread => {
                    let facts = Datagrams { len: datagram.len(), segment: datagram.len(), ..*facts };
                    let forwarded = Forwarded { facts, bytes: datagram.to_vec() };
                    self.forwards.send(&self.listen_socket.address, thread, forwarded);
                }
                _ => self.process(facts, datagram),
            }
        }
    }

    /// Passes a received datagram to its connection.
    fn process(self: &Rc<Self>, facts: &Datagrams, datagram: &[u8]) {
        let ecn = EcnCodepoint::from_bits(facts.ecn);
        let (now, data) = (rt::now(), BytesMut::from(datagram));
        let mut response = Vec::new();
        let event = self.proto.borrow_mut().handle(now, facts.from, facts.to, ecn, data, &mut response);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connection(handle) {
                    connection.proto.borrow_mut().handle_event(event);
                    connection.wake();
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.admit(incoming),
            Some(DatagramEvent::Response(transmit))
                if self.unknown_ids.borrow_mut().may_answer(datagram, now) =>
            {
                self.respond(&transmit, &response);
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// Stops to accept connections.
    fn stop_accepting(&self) {
        if self.closed_at.get().is_none() {
            self.closed_at.set(Some(rt::now()));
        }
        self.closed.set();
    }

    /// Accepts a connection, unless a limit is reached.
    fn admit(self: &Rc<Self>, incoming: Incoming) {
        let thread_config = self.thread.thread_config();
        let (peer, local) = (canonical(incoming.remote_address()), self.local_of(&incoming));
        let listen = self.listen_socket.listen(&thread_config).map(|_| ());
        let mut response = Vec::new();
        // A client that was asked to prove its address continues at the process that has asked.
        let is_late = self.closed.is_set() && !incoming.remote_address_validated();
        let is_handed_over =
            self.closed_at.get().is_some_and(|since| rt::now().saturating_duration_since(since) < HAND_OVER);
        if is_late && listen.is_some() && is_handed_over {
            return self.proto.borrow_mut().ignore(incoming);
        }
        if is_late || listen.is_none() {
            let transmit = self.proto.borrow_mut().refuse(incoming, &mut response);
            return self.respond(&transmit, &response);
        }
        let info = ConnInfo {
            is_tls: true,
            is_quic: true,
            ..ConnInfo::new(&self.thread, Address::Inet(peer), Address::Inet(local))
        };
        let default = DefaultServer::of(Section::Http, thread_config, &self.listen_socket, &info);
        let is_validated = incoming.remote_address_validated();
        // A Retry (RFC 9000 section 8.1.2) needs no slot. A client that proves its address gets one in the place of others.
        let is_crowded = !self.thread.capacity.admits_unvalidated();
        if !is_validated && (is_crowded || default.http3().retry) && incoming.may_retry() {
            let retried = self.proto.borrow_mut().retry(incoming, &mut response);
            return match retried {
                Ok(transmit) => {
                    self.thread.tally.count_quic(QuicEvent::Retry);
                    self.respond(&transmit, &response);
                }
                Err(refused) => self.proto.borrow_mut().ignore(refused.into_incoming()),
            };
        }
        if self.thread.capacity.exhausted() == Some(Resource::Connection) {
            // The client repeats its packet, and finds a slot if a connection could be closed.
            self.proto.borrow_mut().ignore(incoming);
            let thread = Rc::clone(&self.thread);
            rt::spawn(async move {
                if !thread.reclaim(Resource::Connection).await {
                    thread.report_exhausted(Resource::Connection);
                }
            });
            return;
        }
        let config =
            server_config(&default, &self.listen_socket, Address::Inet(local), &self.initial, &self.host_key);
        let accepted = self.proto.borrow_mut().accept(incoming, rt::now(), &mut response, Some(config));
        let (handle, proto) = match accepted {
            Ok(accepted) => accepted,
            Err(refused) => {
                refused.response.iter().for_each(|transmit| self.respond(transmit, &response));
                return;
            }
        };
        self.thread.capacity.count_accepted();
        self.thread.tally.count_quic(QuicEvent::Connection);
        let (alive, slot) = self.thread.enter();
        let unvalidated = (!is_validated).then(|| self.thread.capacity.unvalidated.enter());
        let connection = QuicConnection::new(self, handle, proto, (slot, unvalidated));
        self.insert(handle, &connection);
        let counted = (alive, self.open.enter());
        let served = (self.serve)(connection, info, default);
        rt::spawn(async move {
            served.await;
            drop(counted);
        });
    }

    /// Returns the local address of a new connection.
    fn local_of(&self, incoming: &Incoming) -> SocketAddr {
        let bound = match &self.listen_socket.bound {
            Address::Inet(bound) => *bound,
            Address::Unix(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        };
        canonical(incoming.local_ip().map_or(bound, |ip| SocketAddr::new(ip, bound.port())))
    }

    /// Sends a response of the endpoint itself. If the socket is full, the client repeats its packet.
    fn respond(&self, transmit: &Transmit, bytes: &[u8]) {
        let bytes = bytes.get(..transmit.size).unwrap_or(bytes);
        let _ = self.send(transmit, bytes);
    }

    /// Sends packets; `EAGAIN` if the socket is full.
    pub(crate) fn send(&self, transmit: &Transmit, bytes: &[u8]) -> Result<(), Errno> {
        self.socket.send(&DatagramsToSend {
            to: transmit.destination,
            from: transmit.src_ip,
            ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
            segment: transmit.segment_size.and_then(|size| u16::try_from(size).ok()),
            bytes,
        })
    }

    fn insert(&self, handle: ConnectionHandle, connection: &Rc<QuicConnection>) {
        let mut connections = self.connections.borrow_mut();
        if connections.len() <= handle.0 {
            connections.resize(handle.0 + 1, None);
        }
        connections[handle.0] = Some(Rc::clone(connection));
    }

    fn connection(&self, handle: ConnectionHandle) -> Option<Rc<QuicConnection>> {
        self.connections.borrow().get(handle.0).cloned().flatten()
    }

    /// Whether another process uses the socket.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.is_set()
    }

    /// Counts a closed connection, unless there are too many.
    pub(crate) fn enter_closing(&self) -> Option<Counted> {
        (self.closing.count() < CLOSING_MAX).then(|| self.closing.enter())
    }

    /// Removes a connection.
    fn remove(&self, connection: &QuicConnection) {
        let mut connections = self.connections.borrow_mut();
        // A handle is used again after its connection was drained, also while requests of that connection still run.
        if let Some(slot) = connections.get_mut(connection.handle.0)
            && slot.as_deref().is_some_and(|known| std::ptr::eq(known, connection))
        {
            *slot = None;
        }
        while let Some(None) = connections.last() {
            connections.pop();
        }
    }

    fn complain(&self, level: Level, message: std::fmt::Arguments<'_>) {
        error_log::write(&self.thread, level, message);
    }
}

/// Returns the default server of an address before there are connections.
fn default_server(thread_config: Rc<ThreadConfig>, listen_socket: &ListenSocket) -> DefaultServer {
    let listen = listen_socket.listen(&thread_config);
    let id = listen.map_or(site::config::ServerId(0), |listen| listen.lookup(&listen_socket.bound).0);
    DefaultServer { thread_config, id, section: Section::Http }
}

/// Returns an address in the form that configurations contain: an IPv4 address of an IPv6 socket as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the settings of a connection to a local address.
fn server_config(
    default: &DefaultServer,
    listen_socket: &ListenSocket,
    local: Address,
    initial: &InitialKeys,
    host_key: &HostKey,
) -> Arc<ServerConfig> {
    let config = Arc::clone(&default.thread_config.config);
    let listen = listen_socket.http_index(&default.thread_config);
    let choice = Arc::new(ServerChoice { config, listen, local });
    let mut own = ServerConfig::new(Arc::new(initial.handshakes(choice)), host_key.tokens());
    own.transport_config(Arc::new(transport_config(default)));
    own.validation_token_config(tokens::settings());
    Arc::new(own)
}

/// Returns the transport parameters and limits of a connection.
fn transport_config(default: &DefaultServer) -> TransportConfig {
    let Http3 { streams_max, stream_buffer, gso, congestion: algorithm, .. } = default.http3();
    let number = |value: u64| VarInt::from_u64(value).unwrap_or(VarInt::MAX);
    let mut transport = TransportConfig::default();
    transport.max_concurrent_bidi_streams(number((*streams_max).into()));
    transport.max_concurrent_uni_streams(UNIDIRECTIONAL_MAX.into());
    transport.stream_receive_window(number(*stream_buffer));
    transport.receive_window(number(CONNECTION_WINDOW));
    transport.send_window(SEND_WINDOW_MIN);
    let idle = default.core().keepalive.keepalive_timeout + IDLE_RESERVE;
    transport.max_idle_timeout(IdleTimeout::try_from(idle).ok());
    transport.datagram_receive_buffer_size(None);
    transport.enable_segmentation_offload(*gso);
    transport.congestion_controller_factory(congestion::factory(*algorithm));
    transport
}
