//! UDP in `stream`: the sessions of one socket of a thread, by the addresses of client and server.
//!
//! ```text
//!   socket --datagrams--> UdpEndpoint --by addresses--> DatagramClient --> session: phases, content, log
//!                               `--> a new session, unless the limit is reached
//! ```
//! The kernel distributes clients to the sockets of the threads (SO_REUSEPORT). The number of sessions is limited
//! ([`SESSIONS_DIVISOR`]). At the limit a new client takes the place of the oldest session with only one datagram: forged addresses
//! cannot end the sessions of clients that have sent more.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use io::Errno;
use io::sys::{Datagrams, DatagramsToSend};
use rt::local::{Event, WaitGroup};
use rt::net::DatagramListener;
use rt::{Either, select};

use crate::datagrams;
use crate::listen_socket::ListenSocket;
use exchange::cut_off;
use exchange::error_log;
use exchange::request::{Address, ConnInfo, ThreadConfig};
use exchange::session::{PhaseEnd, Session, SessionPhase};
use exchange::thread::Thread;
use site::address::WithPort;
use site::settings::listen::ListenAddr;
use telemetry::limited::Limited;
use telemetry::tally::Stage;
use telemetry::{Level, Reason};
use transfer::datagram_memory::DatagramMemory;
use transfer::datagrams::{DatagramClient, DatagramReturn, Joined};

/// Divisor of `worker_connections`: the share of sessions of all UDP sockets of a thread. Each session has a connection to its
/// upstream; the others are for connections of TCP.
const SESSIONS_DIVISOR: usize = 2;

/// Pause after an error of the socket that is not one of a client, such as a lack of memory.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Statuses of sessions, as in nginx.
const OK: u16 = 200;
const INTERNAL_ERROR: u16 = 500;

/// Addresses of a session: those of the client, and the local one if the kernel returns it.
type Key = (SocketAddr, Option<IpAddr>);

/// The sessions of one socket.
pub(crate) struct UdpEndpoint {
    thread: Rc<Thread>,
    listen_socket: Rc<ListenSocket>,
    socket: DatagramListener,
    sessions: RefCell<HashMap<Key, Rc<DatagramClient>>>,
    /// Counts the sessions.
    open: WaitGroup,
    /// Set when no further session begins.
    closed: Event,
    of_thread: Rc<UdpSessions>,
}

/// The sessions of all sockets of a thread.
#[derive(Default)]
pub(crate) struct UdpSessions {
    /// Number of sessions, without those that make room for others.
    count: Cell<usize>,
    /// Sessions that began with one datagram, the oldest first. Some have ended or got further datagrams.
    single: RefCell<VecDeque<Weak<DatagramClient>>>,
    refused: Limited,
    /// Memory of datagrams that wait for their session.
    memory: Rc<DatagramMemory>,
}

impl UdpSessions {
    /// Makes room for a session. Returns `false` if the limit is reached and all sessions have several datagrams.
    fn make_room(&self, connections: usize) -> bool {
        let most = (connections / SESSIONS_DIVISOR).max(1);
        let mut single = self.single.borrow_mut();
        if self.count.get() < most {
            // Entries of ended sessions are removed in time, also if the limit is never reached.
            while single.len() > 2 * most {
                single.pop_front();
            }
            return true;
        }
        while let Some(client) = single.pop_front() {
            if let Some(client) =
                client.upgrade().filter(|client| client.received() == 1 && !client.is_ended())
            {
                client.end();
                self.count.set(self.count.get() - 1);
                return true;
            }
        }
        false
    }
}

/// Stops an endpoint from beginning sessions.
#[derive(Clone)]
pub(crate) struct UdpStopper(Rc<UdpEndpoint>);

impl UdpStopper {
    /// Stops the endpoint. Existing sessions continue.
    pub(crate) fn stop(&self) {
        self.0.closed.set();
    }
}

impl UdpEndpoint {
    /// Creates the endpoint of a socket.
    pub(crate) fn new(
        thread: &Rc<Thread>,
        address: ListenAddr,
        socket: DatagramListener,
        of_thread: &Rc<UdpSessions>,
    ) -> Result<Rc<UdpEndpoint>, Errno> {
        let bound = Address::Inet(socket.local()?);
        Ok(Rc::new(UdpEndpoint {
            thread: Rc::clone(thread),
            listen_socket: Rc::new(ListenSocket::new(address, bound)),
            socket,
            sessions: RefCell::default(),
            open: WaitGroup::new(),
            closed: Event::new(),
            of_thread: Rc::clone(of_thread),
        }))
    }

    /// Returns the handle that stops it.
    pub(crate) fn stopper(self: &Rc<Self>) -> UdpStopper {
        UdpStopper(Rc::clone(self))
    }

    /// Receives datagrams until the endpoint is stopped. If a reload has removed its address, the existing sessions still get theirs.
    /// In a process that shuts down they do not: the socket belongs to the next process too.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut space = datagrams::space();
        let ended = async {
            self.closed.wait().await;
            if !self.thread.is_draining() {
                let _ = select(self.open.wait_empty(), self.thread.draining.wait()).await;
            }
        };
        let mut ended = pin!(ended);
        loop {
            match select(ended.as_mut(), self.socket.readable()).await {
                Either::Left(()) => return,
                Either::Right(Ok(())) => {}
                Either::Right(Err(_)) => rt::sleep_until(rt::now() + ERROR_PAUSE).await,
            }
            let received =
                datagrams::receive(&self.socket, &mut space, |facts, bytes| self.distribute(facts, bytes));
            if let Err(errno) = received {
                self.complain(Level::Error, format_args!("recvmmsg() failed ({})", Reason(errno)));
                rt::sleep_until(rt::now() + ERROR_PAUSE).await;
            }
        }
    }

    /// Passes received datagrams to their session.
    fn distribute(self: &Rc<Self>, facts: &Datagrams, bytes: &[u8]) {
        let joined = Joined { bytes: bytes.to_vec(), segment: facts.segment };
        self.add((facts.from, facts.to), joined);
    }

    fn add(self: &Rc<Self>, key: Key, joined: Joined) {
        let known = self.sessions.borrow().get(&key).cloned();
        match known.filter(|client| !client.is_ended()) {
            Some(client) => client.push(joined),
            None => self.begin(key, joined),
        }
    }

    /// Begins a session, unless the limit is reached.
    fn begin(self: &Rc<Self>, key: Key, joined: Joined) {
        let thread_config = self.thread.thread_config();
        let Some(index) = self.listen_socket.stream_index(&thread_config) else { return };
        if self.closed.is_set() || !self.make_room(&thread_config) {
            return;
        }
        let single = &self.of_thread.single;
        let back = ReturnPath { endpoint: Rc::clone(self), key };
        let network = Address::Inet(key.0).client_network().unwrap_or(key.0.ip());
        let client = Rc::new(DatagramClient::new(Box::new(back), &self.of_thread.memory, network));
        client.push(joined);
        self.sessions.borrow_mut().insert(key, Rc::clone(&client));
        single.borrow_mut().push_back(Rc::downgrade(&client));
        self.of_thread.count.set(self.of_thread.count.get() + 1);
        let counted = (self.thread.connections.enter(), self.open.enter());
        let endpoint = Rc::clone(self);
        rt::spawn(async move {
            endpoint.serve(thread_config, index, key, &client).await;
            endpoint.remove(key, &client);
            if !client.is_ended() {
                let count = &endpoint.of_thread.count;
                count.set(count.get() - 1);
            }
            drop(counted);
        });
    }

    /// Makes room for a session. Returns `false` if there is none.
    fn make_room(&self, thread_config: &ThreadConfig) -> bool {
        let connections = thread_config.config.events().worker_connections as usize;
        if self.of_thread.make_room(connections) {
            return true;
        }
        if let Some(more) = self.of_thread.refused.due(rt::now()) {
            let what = "worker_connections are not enough for a further session of UDP";
            self.complain(Level::Alert, format_args!("{what}{more}"));
        }
        false
    }

    /// Removes a session. A later one may have the same addresses.
    fn remove(&self, key: Key, client: &Rc<DatagramClient>) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.get(&key).is_some_and(|known| Rc::ptr_eq(known, client)) {
            sessions.remove(&key);
        }
    }

    /// Runs a session to its end.
    async fn serve(
        &self,
        thread_config: Rc<ThreadConfig>,
        index: usize,
        key: Key,
        client: &Rc<DatagramClient>,
    ) {
        let mut stage = self.thread.tally.connection();
        let info = ConnInfo::new(&self.thread, Address::Inet(canonical(key.0)), self.local(key.1));
        let mut session = Session::new(thread_config, Rc::new(info), index);
        session.datagrams = Some(Rc::clone(client));
        if let Some(address) = session.listen().spec.addr.inet() {
            let peer = WithPort(&session.conn.peer);
            session.log_plain(Level::Info, format_args!("udp client {peer} connected to {address}"));
        }
        stage.set(Stage::Writing);
        let phases = async { select(client.ended(), run_phases(&mut session, client)).await };
        let ended = cut_off::unless(pin!(phases)).await;
        let status = match ended {
            Some(Either::Right(status)) => status,
            Some(Either::Left(())) => {
                session
                    .log(Level::Info, format_args!("session of UDP ended to make room for another client"));
                OK
            }
            None => {
                session.log(Level::Info, format_args!("disconnected on shutdown"));
                OK
            }
        };
        session.end(status);
    }

    /// Returns the local address of a session.
    fn local(&self, to: Option<IpAddr>) -> Address {
        match (&self.listen_socket.bound, to) {
            (Address::Inet(bound), Some(ip)) => Address::Inet(canonical(SocketAddr::new(ip, bound.port()))),
            (bound, _) => bound.clone(),
        }
    }

    fn complain(&self, level: Level, message: std::fmt::Arguments<'_>) {
        error_log::write(&self.thread, level, message);
    }
}

/// The path from a session to its client.
struct ReturnPath {
    endpoint: Rc<UdpEndpoint>,
    key: Key,
}

impl DatagramReturn for ReturnPath {
    fn send(&self, bytes: &[u8], segment: Option<u16>) -> Result<(), Errno> {
        let (to, from) = self.key;
        self.endpoint.socket.send(&DatagramsToSend { to, from, ecn: 0, segment, bytes })
    }

    fn leave(&self, rest: Vec<Joined>) {
        self.endpoint.sessions.borrow_mut().remove(&self.key);
        rest.into_iter().for_each(|joined| self.endpoint.add(self.key, joined));
    }
}

/// Runs the phases of a session. Returns its status.
async fn run_phases(session: &mut Session, client: &DatagramClient) -> u16 {
    for phase in [SessionPhase::PostAccept, SessionPhase::Preaccess, SessionPhase::Access] {
        if let PhaseEnd::End(status) = session.run_phase(phase).await {
            return status;
        }
    }
    if session.has_phase(SessionPhase::Preread) {
        session.action.set("prereading client data");
        // A handler that needs more than the first datagram does without.
        session.early = client.look(<[u8]>::to_vec).unwrap_or_default();
        let end = session.run_phase(SessionPhase::Preread).await;
        session.early = Vec::new();
        if let PhaseEnd::End(status) = end {
            return status;
        }
    }
    if let PhaseEnd::End(status) = session.run_phase(SessionPhase::Pass).await {
        return status;
    }
    session.action.set("");
    match session.run_phase(SessionPhase::Content).await {
        PhaseEnd::End(status) => status,
        // No handler.
        PhaseEnd::Completed | PhaseEnd::NeedBytes | PhaseEnd::Pass(_) => INTERNAL_ERROR,
    }
}

/// Returns an address in the form that configurations contain: an IPv4 address of an IPv6 socket as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
