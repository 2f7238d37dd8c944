//! One HTTP/1 connection: reads a request, runs the phases, sends the response, and repeats.
//!
//! ```text
//! wait for a head --> phases --> filters --> send head and body --> log --> discard unread body ---+
//!        ^                                                                                         |
//!        +------------------------------------- keep-alive ----------------------------------------+
//! ```
//!
//! [`proxy`] reads the PROXY protocol header, [`input`] header sections, and [`body`] request bodies. `exchange::pump` runs a
//! request until its response; [`transport`] implements HTTP/1 for it. [`head`] and [`respond`] write responses, [`outlet`] sends
//! bodies that are not in memory. [`upgrade`] passes on connections that begin with HTTP/2. [`rest`] handles unread request bodies
//! and the end of the connection.

mod body;
mod client;
mod departure;
mod head;
mod input;
mod outlet;
mod proxy;
mod respond;
mod rest;
mod secure;
mod transport;
mod upgrade;

use std::cell::RefCell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use io::Errno;
use rt::Timer;
use rt::local::Counted;
use rt::panics::catch;

use crate::entrance::Entrance;
use crate::wire::Wire;
use client::Http1Client;
use exchange::config::ServerId;
use exchange::cut_off;
use exchange::error_log;
use exchange::pump;
use exchange::request::{Address, ConnInfo, Generation, Request};
use exchange::settings::core::Core;
use exchange::thread::Thread;
use exchange::transport::{After, Received};
use input::Input;
use telemetry::tally::{self, Stage};
use telemetry::{Level, Reason};

/// One connection. It is small while it waits: a request object is taken when the first bytes of a request arrive, and released at
/// the end of the request. So a few request objects serve many connections and stay in the CPU cache.
struct Connection {
    thread: Rc<Thread>,
    entrance: Rc<Entrance>,
    info: Rc<ConnInfo>,
    /// The configuration version for the next request, and the server used before the host is known.
    generation: Rc<Generation>,
    server: ServerId,
    input: Input,
    /// Whether the last request had a body that was not received with its header section.
    had_long_body: bool,
    /// Whether the client sends a body as fast as it is read.
    body_is_fast: bool,
    /// Whether a header section or a body has not arrived in time.
    has_timed_out: bool,
    timer: Timer,
    /// Its state in the statistics of the thread.
    stage: tally::Counted,
    wire: Wire,
    keepalive: KeepaliveTimeouts,
}

/// Keep-alive timeouts after the last response, from the location of that response.
#[derive(Clone, Copy, Debug, Default)]
struct KeepaliveTimeouts {
    /// `keepalive_timeout`
    timeout: Duration,
    /// `keepalive_min_timeout`
    min_timeout: Duration,
}

/// Serves a connection until its end.
pub async fn serve(thread: Rc<Thread>, entrance: Rc<Entrance>, fd: OwnedFd, _counted: (Counted, Counted)) {
    // Counted before anything that can fail: opening a connection needs the count.
    let stage = thread.tally.connection();
    let mut connection = match Connection::open(&thread, entrance, fd, stage) {
        Ok(connection) => connection,
        Err((call, errno)) => {
            let why = Reason(errno);
            return error_log::write(&thread, Level::Crit, format_args!("{call} failed ({why})"));
        }
    };
    if connection.is_traced() {
        connection.trace_accept();
    }
    if connection.info.is_proxied && !Box::pin(connection.read_proxy_header()).await {
        return connection.end();
    }
    if connection.info.is_tls {
        match Box::pin(connection.secured()).await {
            Some(secured) => connection = secured,
            None => return,
        }
    }
    // A reload during the accept or the handshake may have removed the address.
    if !connection.entrance.serves(&connection.generation, &connection.info) {
        return connection.end();
    }
    if connection.has_agreed_on_http2() || connection.run().await == Spoken::Http2 {
        return Box::pin(connection.continue_with_http2()).await;
    }
    connection.end();
}

/// Protocol detected on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    /// HTTP/1 until the end of the connection.
    Http1,
    /// HTTP/2; its first bytes are in the input.
    Http2,
}

impl Connection {
    /// Whether the configuration has debug messages.
    fn is_traced(&self) -> bool {
        self.generation.config.http.traces
    }

    /// Writes a debug message about the connection.
    #[cold]
    fn trace(&self, message: fmt::Arguments<'_>) {
        self.thread.log_about(&self.generation, &self.info, self.server, Level::Debug, message);
    }

    #[cold]
    fn trace_accept(&self) {
        let (peer, local) = (&self.info.peer, &self.info.local);
        self.trace(format_args!("accepted connection of client {peer} at {local}"));
    }

    /// Closes the connection.
    fn end(mut self) {
        self.wire.send_close_notify();
        // Pooled request memory still refers to its connection; the socket is closed with its last owner.
        self.info.client.take();
        if self.thread.calls_directly {
            self.wire.close_directly();
        }
    }
}

impl Connection {
    /// Creates the connection. A client that has already disconnected may have sent a request, which is processed and logged.
    ///
    /// # Errors
    /// The kernel does not return the addresses; the name of the call.
    fn open(
        thread: &Rc<Thread>,
        entrance: Rc<Entrance>,
        fd: OwnedFd,
        stage: tally::Counted,
    ) -> Result<Connection, (&'static str, Errno)> {
        let mut wire = Wire::plain(fd);
        let peer = Address::from(wire.peer().map_err(|errno| ("getpeername()", errno))?);
        let local = match &entrance.bound {
            // A socket bound to a wildcard does not show the local address.
            Address::Inet(bound) if !bound.ip().is_unspecified() => entrance.bound.clone(),
            Address::Inet(_) => Address::from(wire.local().map_err(|errno| ("getsockname()", errno))?),
            Address::Unix(_) => entrance.bound.clone(),
        };
        let generation = thread.generation();
        if !is_same_machine(&peer, &local) {
            wire.set_zero_copy(generation.config.events().zero_copy.map(|bytes| bytes as usize));
        }
        let listen = entrance.listen(&generation);
        let is_tls = listen.is_some_and(|listen| listen.is_tls(&local));
        let is_proxied = listen.is_some_and(|listen| listen.expects_proxy_protocol(&local));
        let info = Rc::new(ConnInfo {
            client: RefCell::new(Some(Rc::new(Http1Client(wire.handle())))),
            is_proxied,
            is_tls,
            ..ConnInfo::new(thread, peer, local)
        });
        let server = entrance.default_server(&generation, &info);
        let (input, timer) = (Input::default(), Timer::new());
        let (had_long_body, body_is_fast) = (false, false);
        let keepalive = KeepaliveTimeouts::default();
        Ok(Connection {
            thread: Rc::clone(thread),
            entrance,
            info,
            generation,
            server,
            input,
            had_long_body,
            body_is_fast,
            has_timed_out: false,
            timer,
            stage,
            wire,
            keepalive,
        })
    }

    /// Serves requests one after the other.
    async fn run(&mut self) -> Spoken {
        let mut after = After::KeepAlive;
        // A waiting connection must not hold a configuration that was replaced.
        while after == After::KeepAlive && self.remains_served() {
            let is_here = !self.input.bytes().is_empty();
            if !is_here {
                self.stage.set(Stage::Waiting);
            }
            if !is_here && self.wait_for_request().await != Some(true) {
                return Spoken::Http1;
            }
            if self.info.requests.get() == 0 && self.may_be_http2() {
                match Box::pin(self.is_http2()).await {
                    Some(false) => {}
                    Some(true) => return Spoken::Http2,
                    None => return Spoken::Http1,
                }
            }
            // Behind a proxy the first request may arrive together with the PROXY protocol header.
            let pipelined = is_here && self.info.requests.get() > 0;
            // The request uses the configuration that is active now.
            if !pipelined && !self.remains_served() {
                return Spoken::Http1;
            }
            let mut request = self.thread.take_request(&self.generation, &self.info, self.server);
            request.pipelined = pipelined;
            let received = match self.begin(&mut request) {
                Some(received) => received,
                // Boxed, because this is rare: most header sections arrive in one piece.
                None => Box::pin(self.read_remaining_head(&mut request)).await,
            };
            if received == Received::Head {
                self.stage.set(Stage::Writing);
                request.keepalive = self.may_keep_alive(&request);
            }
            let ran = cut_off::unless(catch(pin!(pump::run(self, &mut request, received)))).await;
            after = pump::end_of_run(self, &mut request, ran);
            let core = &request.scope().core;
            self.keepalive = KeepaliveTimeouts {
                timeout: core.keepalive.keepalive_timeout,
                min_timeout: core.keepalive.keepalive_min_timeout,
            };
            match after {
                // As in nginx, TCP_NODELAY is set only if the connection remains open: the end of a connection sends the last bytes
                // anyway.
                After::KeepAlive
                    if self.info.requests.get() == 1 && request.scope().core.sending.tcp_nodelay =>
                {
                    self.wire.set_nodelay();
                }
                After::KeepAlive => {}
                After::Drop => self.reset_if_timed_out(&request),
                After::Close => self.linger(&request).await,
            }
            // As in nginx, the connection waits for background subrequests, so that a client cannot start more of them than it makes
            // requests. They count as part of the connection, so that a worker that shuts down completes them.
            if let Some(background) = request.background.take() {
                background.wait_empty().await;
            }
            if let Some(body) = request.body.take() {
                body.clean().await;
            }
            self.thread.recycle_request(request);
        }
        Spoken::Http1
    }

    /// Parses the available bytes of a request; `None` while its header section is incomplete.
    fn begin(&mut self, request: &mut Request) -> Option<Received> {
        self.stage.set(Stage::Reading);
        // Input that turns out to be invalid counts as a request too, as in nginx.
        self.info.requests.set(self.info.requests.get() + 1);
        self.parse_head(request)
    }

    /// Returns the settings that apply before the server of a request is known.
    fn core(&self) -> &Core {
        let config = &self.generation.config;
        &config.location(config.server(self.server).root).scope.core
    }

    /// Switches to the active configuration version; returns whether it was another one.
    fn renew(&mut self) -> bool {
        let is_old = !self.thread.is_in_force(&self.generation);
        if is_old {
            self.generation = self.thread.generation();
            self.server = self.entrance.default_server(&self.generation, &self.info);
        }
        is_old
    }

    /// Switches to the active configuration version; returns whether this version still serves the connection.
    fn remains_served(&mut self) -> bool {
        !self.renew() || self.entrance.serves(&self.generation, &self.info)
    }
}

/// Whether both ends are on the same machine: on loopback the kernel copies the data of zero-copy sends, and reports it only
/// afterwards.
fn is_same_machine(peer: &Address, local: &Address) -> bool {
    match (peer, local) {
        (Address::Inet(peer), Address::Inet(local)) => peer.ip().is_loopback() || peer.ip() == local.ip(),
        _ => true,
    }
}
