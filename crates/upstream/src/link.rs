//! A connection to an upstream: opened, used for one exchange at a time, stored as idle for the next exchange. Exchanges share an
//! HTTP/2 connection: the link of each exchange is one stream of it.
//!
//! Main types: [`Link`], and [`Pools`], which contains the idle connections of a thread. An idle link has an armed receive, so that
//! a close or unexpected data is noticed without a call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io::op::PeerAddr;
use io::{Buf, Errno};
use rt::local::Counted;
use rt::net::{ConnectError, ConnectOptions, ConnectStep, Filled};
use rt::{Socket, Timer};
use tls::handshake;

use crate::h2::{Connection, Idle};
use crate::secure::{Secure, SecureError};
use crate::settings::{Bind, BindAddr, Settings};
use crate::wire::Wire;
use exchange::capacity::Windows;
use exchange::request::Request;
use exchange::thread::Thread;
use peers::{Group, Keepalive};
use site::config::LocationId;
use site::variables::HasVariables;

/// A connection to an upstream.
pub(super) struct Link {
    pub(super) wire: Wire,
    pub(super) timer: Timer,
    /// Number of requests that were sent on the connection.
    pub(super) requests: u64,
    opened: Instant,
    route: Rc<Route>,
    pool: Option<Rc<IdlePool>>,
    /// The connection's slot of `worker_connections`; `None` for an HTTP/2 stream.
    slot: Option<Counted>,
}

/// How a connection reaches its server.
struct Route {
    address: PeerAddr,
    /// Local address and socket options.
    options: ConnectOptions,
    /// TLS settings, if it uses TLS.
    secure: Option<Secure>,
}

impl Route {
    /// Whether a new connection with these parameters would be equal: an upstream that authorises clients by their address
    /// (`proxy_bind`) must not get requests from another address.
    fn is(&self, address: &PeerAddr, options: &ConnectOptions, secure: Option<&Secure>) -> bool {
        self.address == *address && self.options == *options && self.secure.as_ref() == secure
    }
}

/// The pool that an idle connection returns to.
pub(super) struct IdlePool {
    thread: Rc<Thread>,
    /// Number of the configuration version of the request; connections of other versions are not reused.
    thread_config: u64,
    key: Key,
    keepalive: Keepalive,
}

/// Pool key: determines which requests may reuse an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Memory address of the group: pools are emptied together with the configuration that owns it.
    group: usize,
    /// The location, if other locations must not use the connection.
    location: Option<LocationId>,
}

struct IdleList {
    link: Box<Link>,
    key: Key,
    until: Instant,
}

/// An HTTP/2 connection, shared by exchanges.
struct SharedLink {
    connection: Rc<Connection>,
    key: Key,
    opened: Instant,
    route: Rc<Route>,
}

/// The reusable connections of a thread.
#[derive(Default)]
pub struct Pools {
    /// Idle connections by group, the most recently used at the end.
    pools: RefCell<BTreeMap<usize, Vec<IdleList>>>,
    /// HTTP/2 connections, idle or in use.
    shared: RefCell<Vec<SharedLink>>,
    /// Whether a task removes closed connections.
    is_watched: Cell<bool>,
}

/// Interval of removing connections that upstreams have closed; until then each costs only its file descriptor.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl IdlePool {
    /// Returns the pool for connections to a group; `None` if the group has no keep-alive connections.
    pub(super) fn of(group: &Arc<Group>, request: &Request) -> Option<Rc<IdlePool>> {
        let keepalive = group.keepalive?;
        let location = keepalive.local.then_some(request.location);
        Some(Rc::new(IdlePool {
            thread: Rc::clone(&request.conn.thread),
            thread_config: request.thread_config.number,
            key: Key { group: Arc::as_ptr(group).addr(), location },
            keepalive,
        }))
    }

    /// Takes an idle connection to this address that is not known to be closed.
    pub(super) fn take(
        &self,
        address: &PeerAddr,
        options: &ConnectOptions,
        secure: Option<&Secure>,
    ) -> Option<Box<Link>> {
        let mut pools = self.thread.local::<Pools>().pools.borrow_mut();
        let idle = pools.get_mut(&self.key.group)?;
        loop {
            let fits = |one: &IdleList| one.key == self.key && one.link.route.is(address, options, secure);
            let slot = idle.iter().rposition(fits)?;
            let IdleList { mut link, until, .. } = idle.remove(slot);
            if until > rt::now() && link.wire.is_quiet() {
                return Some(link);
            }
        }
    }

    /// Works like [`IdlePool::take`] for HTTP/2: begins a stream on a connection to this address.
    pub(super) fn join(
        &self,
        address: &PeerAddr,
        options: &ConnectOptions,
        secure: Option<&Secure>,
    ) -> Option<Box<Link>> {
        let mut shared = self.thread.local::<Pools>().shared.borrow_mut();
        shared.retain(|one| !one.connection.is_closing());
        let fits = |one: &SharedLink| {
            one.key == self.key && one.route.is(address, options, secure) && one.connection.is_available()
        };
        let slot = shared.iter().position(fits)?;
        let link = shared[slot].link();
        if !self.may_reuse(link.requests + 1, link.opened) {
            shared.remove(slot).connection.close();
        }
        Some(link)
    }

    /// Closes the idle HTTP/2 connections above the limit, the least recently used first.
    fn limit_shared(&self) {
        let mut shared = self.thread.local::<Pools>().shared.borrow_mut();
        let is_idle = |one: &SharedLink| one.key == self.key && one.connection.idle_since().is_some();
        let count = shared.iter().filter(|one| is_idle(one)).count();
        for _ in self.keepalive.idle_max..count {
            let idle = shared.iter().enumerate().filter(|(_, one)| is_idle(one));
            let oldest = idle.min_by_key(|(_, one)| one.connection.idle_since()).map(|(slot, _)| slot);
            oldest.into_iter().for_each(|slot| shared.remove(slot).connection.close());
        }
    }

    fn accepts(&self, link: &Link) -> bool {
        self.may_reuse(link.requests, link.opened)
    }

    /// Whether a connection may be reused, given its age and number of requests.
    fn may_reuse(&self, requests: u64, opened: Instant) -> bool {
        let IdlePool { thread, thread_config, keepalive, .. } = self;
        !thread.is_draining()
            && thread.thread_config().number == *thread_config
            && requests < keepalive.requests
            && rt::now().saturating_duration_since(opened) <= keepalive.time
    }
}

impl SharedLink {
    /// Creates a new stream.
    fn link(&self) -> Box<Link> {
        let requests = self.connection.requests();
        Box::new(Link {
            wire: Wire::Stream(self.connection.begin()),
            timer: Timer::new(),
            requests,
            opened: self.opened,
            route: Rc::clone(&self.route),
            pool: None,
            slot: None,
        })
    }
}

impl Link {
    /// Connects to an address. The link is boxed for its lifetime, because it is moved often.
    pub(super) async fn connect(
        thread: &Thread,
        address: &PeerAddr,
        pool: Option<Rc<IdlePool>>,
        options: ConnectOptions,
        slot: Counted,
    ) -> Result<Box<Link>, ConnectError> {
        let mut connected = Socket::connect_with(address.clone(), &options).await;
        if let Err(ConnectError { step: ConnectStep::Socket, errno: Errno::MFILE | Errno::NFILE }) = connected
            && thread.free_descriptors(&thread.thread_config()).await
        {
            connected = Socket::connect_with(address.clone(), &options).await;
        }
        let mut socket = connected?;
        // A single receive, not multishot: no send follows the bytes of a response, so each turn would have to check whether an
        // armed receive has missed the end (`io::uring::end_check`). A new receive checks the state of the socket first.
        let (reader, _) = socket.split();
        reader.set_multishot(false);
        reader.set_large(true);
        let route = Rc::new(Route { address: address.clone(), options, secure: None });
        let (wire, timer, opened) = (Wire::Plain(socket), Timer::new(), rt::now());
        Ok(Box::new(Link { wire, timer, requests: 0, opened, route, pool, slot: Some(slot) }))
    }

    /// Stores the connection as idle for another exchange, if the settings permit it. The last exchange must have ended properly.
    pub(super) fn store_idle(mut self: Box<Self>) {
        let Some(pool) = self.pool.clone().filter(|pool| pool.accepts(&self)) else { return };
        // The upstream has already ended its TLS session, so no request may follow.
        if self.wire.has_ended() {
            return;
        }
        // Arms a receive, which returns the response to the next request, or the end of the connection.
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(()) = pin!(self.wire.readable()).poll(&mut context) {
            return;
        }
        self.timer.clear();
        let until = rt::now() + pool.keepalive.timeout;
        let mut pools = pool.thread.local::<Pools>().pools.borrow_mut();
        let idle = pools.entry(pool.key.group).or_default();
        if idle.len() >= pool.keepalive.idle_max {
            idle.remove(0);
        }
        idle.push(IdleList { link: self, key: pool.key, until });
        drop(pools);
        if !pool.thread.local::<Pools>().is_watched.replace(true) {
            rt::spawn(sweep(Rc::clone(&pool.thread)));
        }
    }

    /// Receives bytes; `None` at the end of the stream.
    pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        self.wire.poll_recv(context)
    }

    /// Moves received bytes to a pipe; see [`rt::net::Reader::poll_splice`]. Only for plain sockets.
    pub(super) fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        len: usize,
    ) -> Poll<Result<Filled, Errno>> {
        match &mut self.wire {
            Wire::Plain(socket) => socket.reader.poll_splice(context, len),
            Wire::Tls(_) | Wire::Stream(_) => Poll::Ready(Err(Errno::OPNOTSUPP)),
        }
    }

    /// Switches to HTTP/2: this exchange uses the first stream, other exchanges may use further streams.
    pub(super) fn multiplex(self, windows: &Windows) -> Box<Link> {
        let Link { wire, opened, route, pool, slot, .. } = self;
        let idle = pool
            .clone()
            .map(|pool| Idle { time: pool.keepalive.timeout, begins: Box::new(move || pool.limit_shared()) });
        let connection = Connection::start(Box::new(wire), slot, idle, windows);
        let key = pool.as_ref().map_or(Key { group: 0, location: None }, |pool| pool.key);
        let shared = SharedLink { connection, key, opened, route };
        let link = shared.link();
        match pool.filter(|pool| pool.may_reuse(1, opened)) {
            Some(pool) => {
                pool.thread.local::<Pools>().shared.borrow_mut().push(shared);
            }
            None => shared.connection.close(),
        }
        link
    }

    /// Performs the TLS handshake and verifies the upstream's certificate.
    pub(super) async fn secure(mut self: Box<Self>, secure: Secure) -> Result<Box<Link>, SecureError> {
        let Wire::Plain(socket) = &mut self.wire else { return Ok(self) };
        let client = secure.client().await?;
        let handshaken = handshake::connect(socket, &client, &secure.name).await;
        let handshaken = handshaken.map_err(SecureError::Handshake)?;
        handshaken.with_session(|session| secure.judge(session))?;
        self.wire = self.wire.secured(handshaken);
        let Route { address, options, .. } = &*self.route;
        self.route =
            Rc::new(Route { address: address.clone(), options: options.clone(), secure: Some(secure) });
        Ok(self)
    }
}

impl Pools {
    /// Closes all connections: the configuration was replaced, or the thread ends.
    pub fn clear(&self) {
        self.pools.borrow_mut().clear();
        self.shared.take().iter().for_each(|one| one.connection.close());
    }

    /// Closes the idle connection that expires first, or else any idle HTTP/2 connection, to free a connection slot. Returns
    /// whether a connection was closed.
    pub fn close_oldest(&self) -> bool {
        let mut pools = self.pools.borrow_mut();
        let used = pools.values_mut().filter(|idle| !idle.is_empty());
        let oldest = used.min_by_key(|idle| idle[0].until).map(|idle| idle.remove(0));
        drop(pools);
        if oldest.is_some() {
            return true;
        }
        let mut shared = self.shared.borrow_mut();
        let idle = shared.iter().position(|one| one.connection.idle_since().is_some());
        idle.map(|slot| shared.remove(slot).connection.close()).is_some()
    }

    /// Returns the number of idle connections, without those of HTTP/2.
    pub fn count(&self) -> usize {
        self.pools.borrow().values().map(Vec::len).sum()
    }
}

/// Closes connections that have ended or exceeded their idle time, as long as any exist.
async fn sweep(thread: Rc<Thread>) {
    loop {
        rt::sleep_until(rt::now() + SWEEP_EVERY).await;
        let now = rt::now();
        thread.local::<Pools>().pools.borrow_mut().retain(|_, idle| {
            idle.retain_mut(|one| one.until > now && one.link.wire.is_quiet());
            !idle.is_empty()
        });
        if thread.local::<Pools>().count() == 0 {
            thread.local::<Pools>().is_watched.set(false);
            return;
        }
    }
}

/// Returns the options of a socket to this address.
pub(super) fn options<R: HasVariables>(
    settings: &Settings,
    address: &PeerAddr,
    request: &R,
) -> ConnectOptions {
    let bytes = |size: Option<u64>| size.map(|size| size.min(u64::from(u32::MAX)) as u32);
    let bind = settings.bind.as_ref().and_then(|bind| bind_address(bind, request));
    ConnectOptions {
        // Binding to the wrong address family would always fail; nginx ignores the address then.
        bind: bind.filter(|bind| matches!(address, PeerAddr::Inet(peer) if peer.is_ipv4() == bind.is_ipv4())),
        transparent: settings.bind.as_ref().is_some_and(|bind| bind.transparent),
        bind_address_no_port: true,
        keepalive: settings.socket_keepalive,
        // Data is already sent in pieces as large as possible.
        nodelay: true,
        receive_buffer: bytes(settings.socket_rcvbuf),
        send_buffer: bytes(settings.socket_sndbuf),
    }
}

/// Returns the local address of `proxy_bind` for this request; `None` if its text is empty or invalid.
fn bind_address<R: HasVariables>(bind: &Bind, request: &R) -> Option<SocketAddr> {
    let text = match &bind.address {
        BindAddr::Fixed(address) => return Some(*address),
        BindAddr::Text(text) => String::from_utf8(text.rendered(request)).ok()?,
    };
    let bare = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 0));
    text.parse().ok().or_else(bare)
}

/// Returns the system call of a step, for the log.
pub(super) fn call(step: ConnectStep, options: &ConnectOptions) -> String {
    match (step, options.bind) {
        (ConnectStep::Socket, _) => "socket()".to_owned(),
        (ConnectStep::Option(name), _) => format!("setsockopt({name})"),
        // nginx logs the configured address of the bind, without a port if none is configured.
        (ConnectStep::Bind, Some(address)) if address.port() == 0 => format!("bind({})", address.ip()),
        (ConnectStep::Bind, Some(address)) => format!("bind({address})"),
        (ConnectStep::Bind, None) => "bind()".to_owned(),
        (ConnectStep::Connect, _) => "connect()".to_owned(),
    }
}
