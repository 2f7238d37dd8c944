//! One HTTP/1 connection: reads a request, lets the phases decide, sends the answer, and again.
//!
//! ```text
//! wait for a head --> phases --> filters --> send head and body --> log --> discard what is left --+
//!        ^                                                                                         |
//!        +------------------------------------- keep-alive ----------------------------------------+
//! ```
//!
//! [`proxy`] reads what a proxy says first, [`input`] reads requests, [`decide`] runs the phases, [`respond`]
//! writes, [`rest`] deals with request bodies that nobody wanted and with the end of the connection.

mod body;
pub(crate) mod decide;
pub(crate) mod effect;
pub(crate) mod error_page;
pub(crate) mod input;
mod proxy;
pub(crate) mod respond;
mod rest;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use http::framing::BodyFraming;
use rt::local::Counted;
use rt::{Either, Socket, Timer, select};

use crate::config::ServerId;
use crate::incoming::IncomingBody;
use crate::modules::http_core::conf::Conf;
use crate::modules::http_core::listen::{Listen, ListenAddr};
use crate::phases::Step;
use crate::process::tally::{self, Stage};
use crate::request::{Address, ConnInfo, Generation, Request};
use crate::thread::Thread;
use body::BodyFailure;
use decide::{Course, Verdict, Wants};
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

/// One connection. While it waits it is small: a request with its memory is taken when the first bytes of one
/// are here, and given back with its end, so that a few of them serve many connections and stay in the cache.
struct Connection {
    thread: Rc<Thread>,
    entrance: Rc<Entrance>,
    info: Rc<ConnInfo>,
    /// The configuration that the next request starts under, and the server that answers before a host is known.
    generation: Rc<Generation>,
    server: ServerId,
    input: Input,
    timer: Timer,
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
    let Some(mut connection) = Connection::open(thread, entrance, fd) else { return };
    if !connection.is_behind_proxy() || Box::pin(connection.read_proxy_header()).await {
        connection.run().await;
    }
    // Requests that are kept for later ones still know whose they were; the socket closes with its last owner.
    connection.info.socket.take();
    if connection.thread.calls_directly {
        connection.socket.close_directly();
    }
}

impl Connection {
    /// `None` when the client is gone already.
    fn open(thread: Rc<Thread>, entrance: Rc<Entrance>, fd: OwnedFd) -> Option<Connection> {
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
        let info = Rc::new(ConnInfo {
            thread: Rc::clone(&thread),
            number: thread.shared.next_connection(),
            peer,
            local,
            requests: Cell::new(0),
            opened: rt::now(),
            socket: RefCell::new(Some(socket.fd().clone())),
            proxy: OnceCell::new(),
        });
        let server = default_server(&generation, &entrance, &info.local);
        let (input, timer, stage) = (Input::default(), Timer::new(), thread.tally.connection());
        Some(Connection { thread, entrance, info, generation, server, input, timer, stage, socket })
    }

    /// Requests one after the other.
    async fn run(&mut self) {
        let mut after = After::KeepAlive;
        while after == After::KeepAlive {
            // While it waits it must not hold a configuration that was replaced.
            self.renew();
            let is_here = !self.input.bytes().is_empty();
            if !is_here {
                self.stage.set(Stage::Waiting);
            }
            if !is_here && self.wait_for_request().await != Some(true) {
                return;
            }
            // Behind a proxy the first request may come along with what the proxy says.
            let pipelined = is_here && self.info.requests.get() > 0;
            if !pipelined {
                // What came into force since the last request holds for this one.
                self.renew();
            }
            let mut request = self.thread.take_request(&self.generation, &self.info, self.server);
            request.pipelined = pipelined;
            after = self.exchange(&mut request).await;
            match after {
                // As in nginx not before the connection is kept: the first answer of most goes out at their end.
                // A unix socket has no such option.
                After::KeepAlive if self.info.requests.get() == 1 && request.scope().core.tcp_nodelay => {
                    let _ = self.socket.set_nodelay(true);
                }
                After::KeepAlive | After::Drop => {}
                After::Close => self.linger(&request).await,
            }
            // As in nginx, which keeps a client from starting more of them than it makes requests. They count as a
            // part of the connection, so that a worker that ends lets them end.
            if let Some(background) = request.background.take() {
                background.none_left().await;
            }
            if let Some(body) = request.body.take() {
                body.clean().await;
            }
            self.thread.keep_request(request);
        }
    }

    /// Reads a request and answers it.
    async fn exchange(&mut self, request: &mut Request) -> After {
        self.stage.set(Stage::Reading);
        // Also one that turns out to be none counts, as in nginx.
        self.info.requests.set(self.info.requests.get() + 1);
        let head = match self.parse_head(request) {
            Some(head) => head,
            // Boxed as all that most requests do without.
            None => Box::pin(self.read_rest_of_head(request)).await,
        };
        match head {
            Head::Complete => {}
            Head::Refused(status) => {
                request.keepalive = false;
                return self.answer_error(request, status).await;
            }
            Head::Abandoned(status) => {
                request.response.status = status;
                crate::log::access::write(request);
                return After::Drop;
            }
            Head::Closed => return After::Drop,
        }
        self.stage.set(Stage::Writing);
        request.keepalive = self.may_keep_alive(request);
        let (mut course, verdict) = Course::begin(request, &self.entrance);
        let verdict = match verdict {
            Some(verdict) => verdict,
            None if wants_early_body(request) => Box::pin(self.decide_with_body(&mut course, request)).await,
            None => match decide::run(&mut course, request).await {
                Some(verdict) => verdict,
                // Boxed as all that most requests do without.
                None => Box::pin(self.decide_with_body(&mut course, request)).await,
            },
        };
        if verdict == Verdict::Drop {
            crate::log::access::write(request);
            return After::Drop;
        }
        if !request.body_is_taken && self.body_is_broken(request) {
            request.keepalive = false;
            return self.answer_error(request, 400).await;
        }
        match self.answer(request).await {
            After::KeepAlive if request.body_is_taken => After::KeepAlive,
            After::KeepAlive if !BodyFraming::of(&request.head).has_body() => After::KeepAlive,
            // Boxed as all that most requests do without.
            After::KeepAlive if Box::pin(self.discard_body(request)).await => After::KeepAlive,
            After::KeepAlive => After::Close,
            after => after,
        }
    }

    /// Sends an error in the place of what was decided.
    async fn answer_error(&mut self, request: &mut Request, status: u16) -> After {
        // Boxed as all that most requests do without.
        match Box::pin(decide::replace(request, status)).await {
            Verdict::Answer => self.answer(request).await,
            Verdict::Drop => {
                crate::log::access::write(request);
                After::Drop
            }
        }
    }

    /// Reads the body that is wanted, and goes on with it.
    async fn decide_with_body(&mut self, course: &mut Course, request: &mut Request) -> Verdict {
        loop {
            if course.take_wants() == Wants::Pieces && request.body.is_none() {
                if let Some(verdict) = self.decide_with_pieces(course, request).await {
                    return verdict;
                }
                continue;
            }
            let verdict = match self.read_body(request).await {
                Ok(()) => None,
                Err(BodyFailure::Refused(status)) => course.take(request, Step::Status(status)),
                Err(BodyFailure::Abandoned(status)) => {
                    request.response.status = status;
                    Some(Verdict::Drop)
                }
            };
            let decided = match verdict {
                None => decide::run(course, request).await,
                verdict => verdict,
            };
            if let Some(verdict) = decided {
                return verdict;
            }
        }
    }

    /// Goes on while the body is read for the handler that takes it.
    async fn decide_with_pieces(&mut self, course: &mut Course, request: &mut Request) -> Option<Verdict> {
        let incoming = Rc::new(IncomingBody::default());
        let feed = match self.begin_feed(request, &incoming).await {
            Ok(feed) => feed,
            Err(failure) => {
                (request.body_is_taken, request.keepalive) = (true, false);
                request.body.get_or_insert_default();
                return match failure {
                    BodyFailure::Abandoned(status) => {
                        request.response.status = status;
                        Some(Verdict::Drop)
                    }
                    BodyFailure::Refused(status) => match course.take(request, Step::Status(status)) {
                        None => decide::run(course, request).await,
                        verdict => verdict,
                    },
                };
            }
        };
        request.incoming = Some(Rc::clone(&incoming));
        let verdict = match select(decide::run(course, request), self.feed(feed)).await {
            Either::Left(verdict) => verdict,
            Either::Right(never) => match never {},
        };
        request.incoming = None;
        request.received += incoming.received();
        // What is left of it is not to be told from a request that would follow.
        request.body_is_taken = true;
        if !incoming.is_whole() {
            request.keepalive = false;
        }
        // A handler that asks later finds nothing, and can tell that from a body that was empty.
        request.body_was_streamed = true;
        request.body.get_or_insert_default();
        verdict
    }

    /// Sends what was decided and writes it to the logs.
    async fn answer(&mut self, request: &mut Request) -> After {
        if let Some(status) = respond::filter(request) {
            return Box::pin(self.answer_error(request, status)).await;
        }
        let after = self.respond(request).await;
        if request.scope().core.subrequests.post_action.is_some() {
            Box::pin(decide::post_action(request)).await;
        }
        crate::log::access::write(request);
        after
    }

    /// The settings that hold before a request says which server it wants.
    fn core(&self) -> &Conf {
        let config = &self.generation.config;
        &config.location(config.server(self.server).root).scope.core
    }

    /// Goes over to the configuration in force; whether it was another one.
    fn renew(&mut self) -> bool {
        let is_old = !self.thread.is_in_force(&self.generation);
        if is_old {
            self.generation = self.thread.generation();
            self.server = default_server(&self.generation, &self.entrance, &self.info.local);
        }
        is_old
    }
}

/// Whether the body is to be read before a location is chosen (`client_body_early_read`).
fn wants_early_body(request: &Request) -> bool {
    let texts = request.scope().core.client_body_early_read.items();
    !texts.is_empty()
        && BodyFraming::of(&request.head).has_body()
        && texts.iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"))
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
