//! One HTTP/1 connection: reads a request, lets the phases decide, sends the answer, and again.
//!
//! ```text
//! wait for a head --> phases --> filters --> send head and body --> log --> discard what is left --+
//!        ^                                                                                         |
//!        +------------------------------------- keep-alive ----------------------------------------+
//! ```
//!
//! [`proxy`] reads what a proxy says first, [`input`] reads requests, [`decide`] runs the phases, [`respond`] writes, [`rest`] deals with request bodies that
//! nobody wanted and with the end of the connection.

pub(crate) mod decide;
pub(crate) mod effect;
pub(crate) mod error_page;
mod input;
mod proxy;
pub(crate) mod respond;
mod rest;

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rt::local::Counted;
use rt::{Socket, Timer};

use crate::config::ServerId;
use crate::modules::http_core::listen::{Listen, ListenAddr};
use crate::process::tally::{self, Stage};
use crate::request::{Address, ConnInfo, Generation, Request};
use crate::thread::Thread;
use decide::{Course, Verdict};
use input::{Head, Input};

/// What a connection came in through: one per listening socket and thread.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// The address as it was configured, by which it is found in each configuration.
    pub(crate) address: ListenAddr,
    /// The address that was bound.
    pub(crate) bound: Address,
    /// Where it stands in the configuration of this number.
    place: Cell<(u64, usize)>,
}

impl Entrance {
    pub(crate) fn new(address: ListenAddr, bound: Address) -> Entrance {
        Entrance { address, bound, place: Cell::new((0, 0)) }
    }

    /// The servers behind this address; `None` when a reload took it away.
    fn listen<'g>(&self, generation: &'g Generation) -> Option<&'g Listen> {
        let listens = &generation.config.http.listens;
        if self.place.get().0 != generation.number() {
            let place = listens.iter().position(|listen| listen.spec.addr == self.address);
            self.place.set((generation.number(), place.unwrap_or(usize::MAX)));
        }
        listens.get(self.place.get().1)
    }
}

/// One connection. Nothing that outlives it, such as a request that is kept for the next one, may hold the
/// socket: it closes with its last owner.
struct Connection {
    thread: Rc<Thread>,
    request: Request,
    entrance: Rc<Entrance>,
    input: Input,
    timer: Timer,
    /// Memory of response heads.
    spare: Vec<u8>,
    /// Where it stands in the numbers of its thread.
    stage: tally::Counted,
    socket: Socket,
}

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Another request may come.
    KeepAlive,
    /// The connection ends, after the client had time to read.
    Close,
    /// The connection ends at once.
    Drop,
}

/// Serves a connection to its end.
pub(crate) async fn serve(thread: Rc<Thread>, entrance: Rc<Entrance>, fd: OwnedFd, _counted: Counted) {
    let Some(mut connection) = Connection::open(&thread, entrance, fd) else { return };
    let after = connection.run().await;
    let background = connection.request.background.take();
    connection.end(after).await;
    // They count as a part of the connection, so that a worker that ends lets them end.
    if let Some(background) = background {
        background.none_left().await;
    }
}

impl Connection {
    /// `None` when the client is gone already.
    fn open(thread: &Rc<Thread>, entrance: Rc<Entrance>, fd: OwnedFd) -> Option<Connection> {
        let mut socket = Socket::new(fd);
        let peer = Address::from(socket.peer().ok()?);
        let local = match &entrance.bound {
            // A wildcard says nothing of the address that was reached.
            Address::Inet(bound) if !bound.ip().is_unspecified() => entrance.bound.clone(),
            Address::Inet(_) => Address::from(socket.local().ok()?),
            Address::Unix(_) => entrance.bound.clone(),
        };
        let generation = thread.generation();
        if !is_same_machine(&peer, &local) {
            socket.set_zero_copy(generation.config.events().zero_copy.map(|bytes| bytes as usize));
        }
        let info = ConnInfo {
            thread: Rc::clone(thread),
            number: thread.shared.next_connection(),
            peer,
            local,
            requests: Cell::new(0),
            opened: rt::now(),
            socket: RefCell::new(Some(socket.fd().clone())),
            proxy: OnceCell::new(),
        };
        let server = default_server(&generation, &entrance, &info.local);
        let request = match thread.take_request() {
            Some(mut request) => {
                request.conn = Rc::new(info);
                request.reset(&generation, server);
                request
            }
            None => Request::new(generation, Rc::new(info), server),
        };
        let (timer, input, spare) = (Timer::new(), Input::default(), Vec::new());
        let (stage, thread) = (thread.tally.connection(), Rc::clone(thread));
        Some(Connection { thread, request, entrance, input, timer, spare, stage, socket })
    }

    /// Requests one after the other.
    async fn run(&mut self) -> After {
        if self.is_behind_proxy() && !Box::pin(self.read_proxy_header()).await {
            return After::Drop;
        }
        let mut first = true;
        loop {
            match self.read_head(first).await {
                Head::Complete => {}
                Head::Refused(status) => {
                    self.request.keepalive = false;
                    error_page::respond(&mut self.request, status);
                    return self.answer(false).await;
                }
                Head::TimedOut => {
                    self.request.response.status = 408;
                    self.log_request();
                    return After::Drop;
                }
                Head::Closed => return After::Drop,
            }
            first = false;
            self.stage.set(Stage::Writing);
            self.request.conn.requests.set(self.request.conn.requests.get() + 1);
            self.request.keepalive = self.may_keep_alive();
            let (mut course, verdict) = Course::begin(&mut self.request, &self.entrance);
            let verdict = match verdict {
                Some(verdict) => verdict,
                None => decide::run(&mut course, &mut self.request).await,
            };
            if verdict == Verdict::Drop {
                self.log_request();
                return After::Drop;
            }
            if self.body_is_broken() {
                self.request.keepalive = false;
                error_page::respond(&mut self.request, 400);
            }
            let after = self.answer(true).await;
            if after != After::KeepAlive {
                return after;
            }
            if !self.discard_body().await {
                return After::Close;
            }
            // As in nginx, which keeps a client from starting more of them than it makes requests.
            if let Some(background) = self.request.background.take() {
                background.none_left().await;
            }
            self.next_request();
        }
    }

    /// Sends what the phases decided and writes it to the logs.
    async fn answer(&mut self, head_complete: bool) -> After {
        respond::filter(&mut self.request);
        let after = self.respond().await;
        if head_complete && self.request.scope().core.subrequests.post_action.is_some() {
            decide::post_action(&mut self.request).await;
        }
        self.log_request();
        after
    }

    /// Keeps what was received behind this request and forgets the rest of it.
    fn next_request(&mut self) {
        if self.request.conn.requests.get() == 1 && self.request.scope().core.tcp_nodelay {
            // As in nginx not before the connection is kept: the first answer of most goes out at their end.
            // A unix socket has no such option.
            let _ = self.socket.set_nodelay(true);
        }
        let generation = self.thread.generation();
        let server = default_server(&generation, &self.entrance, &self.request.conn.local);
        self.request.reset(&generation, server);
    }

    /// Goes over to the configuration in force; whether it was another one.
    fn renew(&mut self) -> bool {
        let is_old = self.request.generation.number() != self.thread.generation().number();
        if is_old {
            self.next_request();
        }
        is_old
    }

    fn log_request(&mut self) {
        crate::log::access::write(&self.request);
    }
}

/// Loopback copies what is sent without a copy, and tells only then.
fn is_same_machine(peer: &Address, local: &Address) -> bool {
    match (peer, local) {
        (Address::Inet(peer), Address::Inet(local)) => peer.ip().is_loopback() || peer.ip() == local.ip(),
        _ => true,
    }
}

/// The server that answers before a host is known.
fn default_server(generation: &Generation, entrance: &Entrance, local: &Address) -> ServerId {
    entrance.listen(generation).map_or(ServerId(0), |listen| listen.lookup(local).0)
}
