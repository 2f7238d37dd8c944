//! One HTTP/1 connection: reads a request, runs the phases, sends the response, and repeats.
//!
//! ```text
//! wait for a head --> phases --> filters --> send head and body --> log --> discard unread body ---+
//!        ^                                                                                         |
//!        +------------------------------------- keep-alive ----------------------------------------+
//! ```
//!
//! [`input`] reads header sections, and [`body`] request bodies. `exchange::pump` runs a request until its response; [`transport`]
//! implements HTTP/1 for it. [`head`] and [`respond`] write responses, [`outlet`] sends bodies that are not in memory. [`rest`]
//! handles unread request bodies and the end of the connection.

mod body;
mod client;
mod departure;
mod head;
mod input;
mod outlet;
mod respond;
mod rest;
mod transport;

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use rt::Timer;
use rt::panics::catch;

use crate::input::Input;
use crate::listen_socket::{DefaultServer, ListenSocket};
use crate::opening::Opened;
use crate::wire::Wire;
use client::Http1Client;
use exchange::cut_off;
use exchange::pump;
use exchange::request::{ConnInfo, Request};
use exchange::thread::Thread;
use exchange::transport::{After, Received};
use telemetry::tally::{self, Stage};

/// One connection. It is small while it waits: a request object is taken when the first bytes of a request arrive, and released at
/// the end of the request. So a few request objects serve many connections and stay in the CPU cache.
struct Connection {
    thread: Rc<Thread>,
    listen_socket: Rc<ListenSocket>,
    info: Rc<ConnInfo>,
    /// The configuration version for the next request, and the server used before the host is known.
    default: DefaultServer,
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

/// Serves a connection until its end. This is not an async function, which would hold the arguments too.
pub(crate) fn serve(opened: Opened) -> impl Future<Output = ()> {
    let mut connection = Connection::new(opened);
    async move {
        connection.run().await;
        connection.end();
    }
}

impl Connection {
    fn new(opened: Opened) -> Connection {
        let Opened { wire, info, early: input, thread, listen_socket, default, timer, stage, .. } = opened;
        *info.client.borrow_mut() = Some(Rc::new(Http1Client(wire.handle())));
        Connection {
            thread,
            listen_socket,
            info,
            default,
            input,
            had_long_body: false,
            body_is_fast: false,
            has_timed_out: false,
            timer,
            stage,
            wire,
            keepalive: KeepaliveTimeouts::default(),
        }
    }

    /// Closes the connection.
    fn end(self) {
        // Pooled request memory still refers to its connection; the socket is closed with its last owner.
        self.info.client.take();
        self.wire.end(&self.thread);
    }

    /// Serves requests one after the other.
    async fn run(&mut self) {
        let mut after = After::KeepAlive;
        // A waiting connection must not hold a configuration that was replaced.
        while after == After::KeepAlive && self.remains_served() {
            let is_here = !self.input.bytes().is_empty();
            if !is_here {
                self.stage.set(Stage::Waiting);
            }
            if !is_here && self.wait_for_request().await != Some(true) {
                return;
            }
            // The bytes of the first request were received before.
            let pipelined = is_here && self.info.requests.get() > 0;
            // The request uses the configuration that is active now.
            if !pipelined && !self.remains_served() {
                return;
            }
            let DefaultServer { thread_config, id, .. } = &self.default;
            let mut request = self.thread.take_request(thread_config, &self.info, *id);
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
    }

    /// Parses the available bytes of a request; `None` while its header section is incomplete.
    fn begin(&mut self, request: &mut Request) -> Option<Received> {
        self.stage.set(Stage::Reading);
        // Input that turns out to be invalid counts as a request too, as in nginx.
        self.info.requests.set(self.info.requests.get() + 1);
        self.parse_head(request)
    }

    /// Switches to the active configuration version; returns whether it was another one.
    fn renew(&mut self) -> bool {
        self.default.renew(&self.thread, &self.listen_socket, &self.info)
    }

    /// Switches to the active configuration version; returns whether this version still serves the connection.
    fn remains_served(&mut self) -> bool {
        !self.renew() || self.listen_socket.serves(&self.default.thread_config, &self.info)
    }
}
