//! Listening sockets of one thread, and accepting connections from them.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io::Errno;
use rt::Listener;
use rt::local::WaitGroup;
use rt::net::{DatagramListener, Stopper};

use crate::h3;
use crate::listen_socket::{DefaultServer, ListenSocket};
use crate::quic::{Endpoint, EndpointStopper, Forwards, QuicConnection, Steering};
use crate::serve::serve;
use crate::udp::{UdpEndpoint, UdpSessions, UdpStopper};
use exchange::error_log;
use exchange::request::{Address, ConnInfo};
use exchange::thread::Thread;
use site::settings::listen::ListenAddr;
use telemetry::{Level, Reason};

/// Pause of accepting after file descriptors or memory have run out (nginx: `accept_mutex_delay`).
const PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of connections accepted by direct calls after an accept through the engine: as many as a multishot accept may
/// return before other tasks run.
const AT_ONCE_MAX: usize = 64;

/// The listening sockets of one thread.
pub struct ThreadListeners {
    thread: Rc<Thread>,
    alone: bool,
    open: Vec<(ListenAddr, Stopper)>,
    /// The endpoints of QUIC that do not accept, and may still have connections.
    closed_endpoints: Vec<EndpointStopper>,
    /// The endpoints of QUIC.
    endpoints: Vec<(ListenAddr, EndpointStopper)>,
    /// The endpoints of UDP in `stream`.
    udp: Vec<(ListenAddr, UdpStopper)>,
    udp_sessions: Rc<UdpSessions>,
    /// The sockets of addresses of QUIC that belong to this thread.
    steering: Steering,
    /// The mailboxes of all endpoints of the process.
    forwards: Arc<Forwards>,
    /// Tasks that accept. A stopped task may still deliver a connection.
    accepting: WaitGroup,
}

impl ThreadListeners {
    /// Creates the state without listeners; `alone` states whether the process has only this worker thread.
    pub fn new(
        thread: &Rc<Thread>,
        alone: bool,
        steering: Steering,
        forwards: Arc<Forwards>,
    ) -> ThreadListeners {
        ThreadListeners {
            thread: Rc::clone(thread),
            alone,
            open: Vec::new(),
            closed_endpoints: Vec::new(),
            endpoints: Vec::new(),
            udp: Vec::new(),
            udp_sessions: Rc::default(),
            steering,
            forwards,
            accepting: WaitGroup::new(),
        }
    }

    /// Starts to accept from these sockets, unless their address is already served.
    pub fn open(&mut self, listeners: Vec<(ListenAddr, Vec<OwnedFd>)>) {
        for (address, fds) in listeners {
            if address.is_quic() {
                self.open_endpoint(address, fds);
                continue;
            }
            if let ListenAddr::Udp(_) = address {
                self.open_udp(address, fds);
                continue;
            }
            if self.open.iter().any(|(open, _)| *open == address) {
                continue;
            }
            let thread_config = self.thread.thread_config();
            let spec = thread_config.config.listens().find(|spec| spec.addr == address);
            let own = self.alone || spec.is_some_and(|spec| spec.reuseport);
            for fd in fds {
                let listener = Listener::new(fd, false);
                self.open.push((address.clone(), listener.stopper()));
                let accepting = accept(Rc::clone(&self.thread), listener, address.clone(), own);
                let counted = self.accepting.enter();
                rt::spawn(async move {
                    accepting.await;
                    drop(counted);
                });
            }
        }
        self.register_listeners();
    }

    /// Starts an endpoint of QUIC over the socket of this thread, unless its address is already served.
    fn open_endpoint(&mut self, address: ListenAddr, fds: Vec<OwnedFd>) {
        if self.endpoints.iter().any(|(open, _)| *open == address) {
            return;
        }
        for fd in fds {
            let (socket, steering) = (DatagramListener::new(fd), (self.steering, &self.forwards));
            match Endpoint::new(&self.thread, address.clone(), socket, steering, serve_http3) {
                Ok(endpoint) => {
                    self.endpoints.push((address.clone(), endpoint.stopper()));
                    rt::spawn(endpoint.run());
                }
                Err((call, errno)) => complain(&self.thread, Level::Emerg, call, errno),
            }
        }
    }

    /// Starts an endpoint of UDP over the socket of this thread, unless its address is already served.
    fn open_udp(&mut self, address: ListenAddr, fds: Vec<OwnedFd>) {
        if self.udp.iter().any(|(open, _)| *open == address) {
            return;
        }
        for fd in fds {
            let socket = DatagramListener::new(fd);
            match UdpEndpoint::new(&self.thread, address.clone(), socket, &self.udp_sessions) {
                Ok(endpoint) => {
                    self.udp.push((address.clone(), endpoint.stopper()));
                    rt::spawn(endpoint.run());
                }
                Err(errno) => complain(&self.thread, Level::Emerg, "getsockname()", errno),
            }
        }
    }

    /// Passes the listeners to the code that limits connections.
    fn register_listeners(&self) {
        let listeners = self.open.iter().map(|(_, stopper)| stopper.clone()).collect();
        self.thread.capacity.set_listeners(listeners);
    }

    /// Stops listening at addresses that the configuration no longer has.
    pub fn close_unconfigured(&mut self) {
        let thread_config = self.thread.thread_config();
        let is_configured =
            |address: &ListenAddr| thread_config.config.listens().any(|spec| spec.addr == *address);
        self.open.retain(|(address, stopper)| {
            let keep = is_configured(address);
            if !keep {
                stopper.stop();
            }
            keep
        });
        self.udp.retain(|(address, stopper)| {
            let keep = is_configured(address);
            if !keep {
                stopper.stop();
            }
            keep
        });
        let (kept, removed): (Vec<_>, Vec<_>) =
            self.endpoints.drain(..).partition(|(address, _)| is_configured(address));
        self.endpoints = kept;
        self.close_endpoints(removed);
        self.register_listeners();
    }

    /// Waits until no more connections are delivered after a stop: a connection that the kernel had handed over before is served,
    /// not reset.
    pub fn closed(&self) -> impl Future<Output = ()> + use<> {
        let accepting = self.accepting.clone();
        async move { accepting.wait_empty().await }
    }

    /// Stops listening at all addresses.
    pub fn close_all(&mut self) {
        for (_, stopper) in self.open.drain(..) {
            stopper.stop();
        }
        let all = self.endpoints.drain(..).collect();
        self.close_endpoints(all);
        for (_, stopper) in self.udp.drain(..) {
            stopper.stop();
        }
    }

    /// Stops accepting connections of QUIC at these addresses.
    fn close_endpoints(&mut self, endpoints: Vec<(ListenAddr, EndpointStopper)>) {
        self.closed_endpoints.retain(EndpointStopper::is_open);
        for (_, stopper) in endpoints {
            stopper.stop();
            self.closed_endpoints.push(stopper);
        }
    }

    /// Ends all connections of QUIC, because another process uses the sockets from now on.
    pub fn end_quic(&mut self) {
        self.endpoints.drain(..).for_each(|(_, stopper)| stopper.end());
        self.closed_endpoints.drain(..).for_each(|stopper| stopper.end());
    }
}

/// Accepts connections from one socket until it is stopped. `own` means that no other thread accepts from it: on a shared socket a
/// multishot accept would deliver every connection to one thread.
async fn accept(thread: Rc<Thread>, mut listener: Listener, address: ListenAddr, own: bool) {
    let bound = match listener.local() {
        Ok(bound) => Address::from(bound),
        Err(errno) => return complain(&thread, Level::Emerg, "getsockname()", errno),
    };
    let listen_socket = Rc::new(ListenSocket::new(address, bound));
    loop {
        if thread.capacity.exhausted().is_some() {
            // Idle connections are not closed before a client waits.
            listener.ready().await;
            thread.wait_for_capacity().await;
            if thread.is_draining() {
                return;
            }
        }
        listener.set_multishot(own && thread.capacity.is_wide());
        match listener.accept().await {
            Ok(fd) => {
                begin(&thread, &listen_socket, fd);
                // A multishot accept is not used if the connections of the accept queue could exceed the limits. Direct calls
                // then accept as many of them as the limits allow; a direct call costs less than an operation of the engine.
                if own && !thread.capacity.is_wide() && thread.calls_directly {
                    take_more(&thread, &listen_socket, &listener);
                }
            }
            Err(Errno::CANCELED) => return,
            Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => {
                complain(&thread, Level::Crit, "accept4()", errno);
                let is_full = matches!(errno, Errno::MFILE | Errno::NFILE);
                if !is_full || !thread.free_descriptors(&thread.thread_config()).await {
                    rt::sleep_until(rt::now() + PAUSE).await;
                }
            }
        }
    }
}

/// Serves a connection of QUIC.
fn serve_http3(
    connection: Rc<QuicConnection>,
    info: ConnInfo,
    default: DefaultServer,
) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(h3::serve(connection, info, default))
}

/// Serves a connection.
fn begin(thread: &Rc<Thread>, listen_socket: &Rc<ListenSocket>, fd: OwnedFd) {
    thread.capacity.count_accepted();
    // Counted before its task first runs, so that a thread that shuts down does not overlook it.
    let counted = thread.enter();
    rt::spawn(serve(Rc::clone(thread), Rc::clone(listen_socket), fd, counted));
}

/// Accepts queued connections up to the limits. The next accept reports an error.
fn take_more(thread: &Rc<Thread>, listen_socket: &Rc<ListenSocket>, listener: &Listener) {
    for _ in 0..AT_ONCE_MAX {
        if thread.capacity.exhausted().is_some() {
            return;
        }
        let Ok(Some(fd)) = listener.accept_now() else { return };
        begin(thread, listen_socket, fd);
    }
}

fn complain(thread: &Thread, level: Level, call: &str, errno: Errno) {
    error_log::write(thread, level, format_args!("{call} failed ({})", Reason(errno)));
}
