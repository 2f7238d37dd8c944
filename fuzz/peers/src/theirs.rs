//! The peer's end of a session: the crate h2 as client or as server, polled manually, with the messages of the plan.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use fields::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use h2::client::{self, ResponseFuture, SendRequest};
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream, SendStream};

use crate::outcome::{Outcome, Received};
use crate::pipe::Io;
use crate::plan::{Ending, Fields, Message, PLANNED_CODE, PeerPlan, Plan, Way, bytes};
use crate::random::Random;

/// An exchange in flight.
struct Stream {
    received: Received,
    /// As a client: the future of the response.
    response: Option<ResponseFuture>,
    /// As a server: the handle for the response.
    respond: Option<SendResponse<Bytes>>,
    interim_sent: usize,
    sender: Option<SendStream<Bytes>>,
    sent: usize,
    sent_all: bool,
    body: Option<RecvStream>,
    unreleased: usize,
    /// Whether the last few bytes are held back and then released one by one. If a smaller initial window has closed
    /// the window of a stream, h2 0.4 opens that window only for bytes that are released after the acknowledgement of
    /// the settings.
    holds_back: bool,
    /// Number of consecutive reads without data.
    idle: usize,
    /// The code of the received reset.
    reset: Option<u32>,
}

/// Number of bytes that are held back; one of them is released after each [`IDLE_READS`] reads without data.
const HELD_MAX: usize = 10;
const IDLE_READS: usize = 25;

/// Default of SETTINGS_INITIAL_WINDOW_SIZE.
const WINDOW_DEFAULT: u32 = 65_535;

type ClientEnds = (SendRequest<Bytes>, client::Connection<Io, Bytes>);

/// State of the connection, which makes progress only when polled.
enum Connection {
    ClientStarts(Pin<Box<dyn Future<Output = Result<ClientEnds, h2::Error>>>>),
    Client(Option<SendRequest<Bytes>>, Box<client::Connection<Io, Bytes>>),
    ServerStarts(Box<server::Handshake<Io, Bytes>>),
    Server(Box<server::Connection<Io, Bytes>>),
    Ended,
}

/// h2's end.
pub struct Theirs {
    is_client: bool,
    plan: Rc<Plan>,
    connection: Connection,
    streams: Vec<Stream>,
    next: usize,
    /// Outcomes of the exchanges.
    pub outcomes: Vec<Option<Outcome>>,
    has_later_window: bool,
    has_gone_away: bool,
    /// Whether this call of [`Theirs::act`] changed anything.
    moved: Cell<bool>,
}

impl Theirs {
    /// Creates an end that has sent nothing yet.
    #[must_use]
    pub fn new(is_client: bool, plan: &Rc<Plan>, io: Io) -> Theirs {
        let PeerPlan { initial_window, connection_window, frame_max, table_bytes, .. } = plan.peer;
        let connection = if is_client {
            let mut builder = client::Builder::new();
            builder.initial_window_size(initial_window).initial_connection_window_size(connection_window);
            builder.max_frame_size(frame_max).header_table_size(table_bytes).enable_push(false);
            builder.initial_max_send_streams(plan.peer.untold_streams);
            Connection::ClientStarts(Box::pin(builder.handshake(io)))
        } else {
            let mut builder = server::Builder::new();
            builder.initial_window_size(initial_window).initial_connection_window_size(connection_window);
            builder.max_frame_size(frame_max).header_table_size(table_bytes);
            builder.max_concurrent_streams(plan.peer.streams_max);
            Connection::ServerStarts(Box::new(builder.handshake(io)))
        };
        Theirs {
            is_client,
            plan: Rc::clone(plan),
            connection,
            streams: Vec::new(),
            next: 0,
            outcomes: vec![None; plan.exchanges.len()],
            has_later_window: false,
            has_gone_away: false,
            moved: Cell::new(false),
        }
    }

    /// Makes a random step, or none; returns whether a change was detected.
    pub fn act(&mut self, random: &mut Random) -> bool {
        self.moved.set(false);
        let context = &mut Context::from_waker(Waker::noop());
        self.advance(context, random);
        for mut stream in std::mem::take(&mut self.streams) {
            match self.stream(&mut stream, context, random) {
                Some(outcome) => {
                    let before = self.outcomes[stream.received.exchange].replace(outcome);
                    assert!(before.is_none(), "an exchange ends once");
                    self.moved.set(true);
                }
                None => self.streams.push(stream),
            }
        }
        self.moved.get()
    }

    /// Whether all exchanges that were begun have ended, and no more will begin.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let begins_more =
            matches!(self.connection, Connection::ClientStarts(_) | Connection::Client(Some(_), _));
        self.streams.is_empty() && !begins_more
    }

    /// Describes the open streams, for a stalled session.
    #[must_use]
    pub fn shown(&self) -> String {
        let each = self.streams.iter().map(|stream| {
            let Stream { received, sent, sent_all, reset, unreleased, .. } = stream;
            format!("{received:?} sent {sent} {sent_all} reset {reset:?} unreleased {unreleased}")
        });
        format!("h2, has ended {}: {}", self.has_ended(), each.collect::<Vec<_>>().join("; "))
    }

    /// Whether the connection has ended successfully.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.connection, Connection::Ended)
    }

    /// Polls the connection.
    fn advance(&mut self, context: &mut Context<'_>, random: &mut Random) {
        let content = "h2 finds no error of Ringroad";
        match &mut self.connection {
            Connection::ClientStarts(starting) => {
                if let Poll::Ready(started) = starting.as_mut().poll(context) {
                    let (sender, connection) = started.expect(content);
                    self.connection = Connection::Client(Some(sender), Box::new(connection));
                }
            }
            Connection::ServerStarts(starting) => {
                if let Poll::Ready(started) = Pin::new(&mut **starting).poll(context) {
                    self.connection = Connection::Server(Box::new(started.expect(content)));
                }
            }
            Connection::Client(sender, connection) => {
                if !self.has_later_window
                    && let Some(window) = self.plan.peer.later_window.filter(|_| random.once_in(10))
                {
                    // Fails until the first settings have been acknowledged.
                    self.has_later_window = connection.set_initial_window_size(window).is_ok();
                }
                let polled = Pin::new(&mut **connection).poll(context);
                if let Poll::Ready(ended) = polled {
                    ended.expect(content);
                    self.connection = Connection::Ended;
                } else if sender.is_some() && !random.once_in(3) {
                    self.begin(context);
                }
            }
            Connection::Server(connection) => {
                if !self.has_later_window
                    && let Some(window) = self.plan.peer.later_window.filter(|_| random.once_in(10))
                {
                    self.has_later_window = connection.set_initial_window_size(window).is_ok();
                }
                if self.plan.goes_away && !self.has_gone_away && self.next > 0 && random.once_in(20) {
                    connection.graceful_shutdown();
                    self.has_gone_away = true;
                }
                match connection.poll_accept(context) {
                    Poll::Ready(Some(accepted)) => {
                        let (request, respond) = accepted.expect(content);
                        self.accept(request, respond);
                    }
                    Poll::Ready(None) => self.connection = Connection::Ended,
                    Poll::Pending => {}
                }
            }
            Connection::Ended => {}
        }
    }

    /// As a client, begins the next exchange.
    fn begin(&mut self, context: &mut Context<'_>) {
        let Connection::Client(sender, _) = &mut self.connection else { return };
        let Some(sending) = sender else { return };
        if self.next == self.plan.exchanges.len() {
            // The connection ends with its last stream.
            *sender = None;
            return;
        }
        match sending.poll_ready(context) {
            Poll::Pending => return,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return self.no_more(&error),
        }
        let exchange = self.next;
        let message = &self.plan.exchanges[exchange].request;
        let mut request = Request::post(format!("http://a.test/{exchange}")).body(()).expect("a request");
        *request.headers_mut() = header_map(&message.all_fields());
        match sending.send_request(request, message.is_head_only()) {
            Ok((response, sender)) => {
                let mut stream = Stream::new(exchange);
                (stream.response, stream.sender) = (Some(response), Some(sender));
                stream.sent_all = message.is_head_only();
                self.streams.push(stream);
                self.next += 1;
                self.moved.set(true);
            }
            Err(error) => self.no_more(&error),
        }
    }

    /// Handles the announcement that the server accepts no more streams.
    fn no_more(&mut self, error: &h2::Error) {
        assert!(self.plan.goes_away && error.is_go_away(), "{error:?}");
        if let Connection::Client(sender, _) = &mut self.connection {
            *sender = None;
        }
    }

    fn accept(&mut self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        let (head, body) = request.into_parts();
        let exchange: usize = head.uri.path()[1..].parse().expect("the number of an exchange");
        assert_eq!(head.uri.authority().map(|authority| authority.as_str()), Some("a.test"));
        let mut stream = Stream::new(exchange);
        stream.received.head(&self.plan.exchanges[exchange].request, fields_of(&head.headers));
        (stream.respond, stream.body) = (Some(respond), Some(body));
        self.streams.push(stream);
        self.next = self.next.max(exchange + 1);
        self.moved.set(true);
    }

    /// Advances one stream; returns its outcome, if it has ended.
    fn stream(&self, stream: &mut Stream, context: &mut Context<'_>, random: &mut Random) -> Option<Outcome> {
        let exchange = &self.plan.exchanges[stream.received.exchange];
        let is_client = self.is_client;
        let (incoming, outgoing) = match is_client {
            true => ((&exchange.response, Way::Response), (&exchange.request, Way::Request)),
            false => ((&exchange.request, Way::Request), (&exchange.response, Way::Response)),
        };
        let PeerPlan { initial_window, later_window, .. } = self.plan.peer;
        stream.holds_back =
            initial_window < WINDOW_DEFAULT || later_window.is_some_and(|later| later < initial_window);
        let resets = match exchange.ending {
            Ending::ResetByClient(after) => is_client && stream.sent >= after,
            Ending::ResetByServer(after) => !is_client && stream.sent >= after,
            Ending::Whole | Ending::Early => false,
        };
        if resets && !stream.sent_all && stream.reset.is_none() && random.once_in(2) {
            stream.send_reset();
            return Some(Outcome::ResetHere);
        }
        if !random.once_in(3) {
            self.moved.set(stream.read(incoming.0, incoming.1, context, random) | self.moved.get());
        }
        if !random.once_in(3) {
            self.moved.set(stream.write(outgoing.0, outgoing.1, context, random) | self.moved.get());
        }
        let is_early = exchange.ending == Ending::Early;
        match stream.reset {
            // RFC 9113 section 8.1: a complete response is valid even if the server did not read the complete request.
            Some(0) if is_client && stream.received.has_all => Some(Outcome::Whole),
            Some(0) if is_client => None,
            Some(u32::MAX) => Some(Outcome::NotProcessed),
            Some(code) => Some(Outcome::Reset(code)),
            None => {
                let is_over = stream.sent_all && (stream.received.has_all || is_early && !is_client);
                is_over.then_some(Outcome::Whole)
            }
        }
    }
}

impl Stream {
    fn new(exchange: usize) -> Stream {
        Stream {
            received: Received::new(exchange),
            response: None,
            respond: None,
            interim_sent: 0,
            sender: None,
            sent: 0,
            sent_all: false,
            body: None,
            unreleased: 0,
            holds_back: false,
            idle: 0,
            reset: None,
        }
    }

    fn send_reset(&mut self) {
        let code = Reason::from(PLANNED_CODE);
        if let Some(sender) = &mut self.sender {
            sender.send_reset(code);
        } else if let Some(respond) = &mut self.respond {
            respond.send_reset(code);
        }
    }

    /// Stores the code of a reset; panics on any other error.
    fn fail(&mut self, error: &h2::Error) {
        let is_client = self.respond.is_none();
        self.reset = match error.reason() {
            // The id of the stream is above the last one that the server processes.
            Some(Reason::NO_ERROR) if error.is_go_away() && is_client => Some(u32::MAX),
            Some(reason) if error.is_remote() => Some(reason.into()),
            _ => panic!("exchange {} fails: {error:?}", self.received.exchange),
        };
    }

    fn read(&mut self, message: &Message, way: Way, context: &mut Context<'_>, random: &mut Random) -> bool {
        if let Some(response) = &mut self.response {
            while let Poll::Ready(Some(Ok(_))) = response.poll_informational(context) {
                self.received.interim += 1;
            }
            match Pin::new(response).poll(context) {
                Poll::Pending => return false,
                Poll::Ready(Ok(response)) => {
                    let (head, body) = response.into_parts();
                    self.received.head(message, fields_of(&head.headers));
                    (self.response, self.body) = (None, Some(body));
                }
                Poll::Ready(Err(error)) => {
                    self.response = None;
                    self.fail(&error);
                }
            }
            return true;
        }
        let Some(body) = self.body.as_mut().filter(|_| !self.received.has_all) else { return false };
        match body.poll_data(context) {
            Poll::Ready(Some(Ok(bytes))) => {
                self.received.data(message, way, &bytes);
                self.unreleased += bytes.len();
                self.idle = 0;
            }
            Poll::Ready(Some(Err(error))) => self.fail(&error),
            Poll::Ready(None) => match body.poll_trailers(context) {
                Poll::Ready(Ok(trailers)) => {
                    self.received.end(message, trailers.as_ref().map(fields_of));
                }
                Poll::Ready(Err(error)) => self.fail(&error),
                Poll::Pending => return false,
            },
            Poll::Pending => return self.release(random),
        }
        true
    }

    /// Releases consumed bytes, which opens the window of the body.
    fn release(&mut self, random: &mut Random) -> bool {
        self.idle += 1;
        let held = if self.holds_back { HELD_MAX.saturating_sub(self.idle / IDLE_READS) } else { 0 };
        let most = self.unreleased.saturating_sub(held);
        let count = if random.once_in(2) { most } else { random.below(most + 1) };
        let Some(body) = self.body.as_mut().filter(|_| count > 0) else { return false };
        self.unreleased -= count;
        body.flow_control().release_capacity(count).expect("received bytes");
        true
    }

    fn write(&mut self, message: &Message, way: Way, context: &mut Context<'_>, random: &mut Random) -> bool {
        if self.sent_all || self.reset.is_some() {
            return false;
        }
        if let Some(respond) = self.respond.as_mut().filter(|_| self.sender.is_none()) {
            let status = if self.interim_sent < message.interim { 103 } else { 200 };
            let mut response = Response::builder().status(status).body(()).expect("a response");
            if status == 103 {
                self.interim_sent += 1;
                return respond.send_informational(response).is_ok();
            }
            *response.headers_mut() = header_map(&message.all_fields());
            match respond.send_response(response, message.is_head_only()) {
                Ok(sender) => self.sender = Some(sender),
                Err(_) => return self.find_reset(context),
            }
            self.sent_all = message.is_head_only();
            return true;
        }
        let Some(sender) = &mut self.sender else { return false };
        let left = message.body - self.sent;
        if left == 0 {
            let sent = match &message.trailers {
                Some(trailers) => sender.send_trailers(header_map(trailers)),
                None => sender.send_data(Bytes::new(), true),
            };
            self.sent_all = sent.is_ok();
            return self.sent_all || self.find_reset(context);
        }
        sender.reserve_capacity(left.min(message.piece_max));
        let count =
            sender.capacity().min(left).min(1 + message.piece_max / 2 + random.below(message.piece_max));
        if count == 0 {
            return self.find_reset(context);
        }
        let is_last = count == left && message.trailers.is_none() && random.once_in(2);
        let piece = bytes(self.received.exchange, way, self.sent, count);
        if sender.send_data(piece.into(), is_last).is_err() {
            return self.find_reset(context);
        }
        self.sent += count;
        self.sent_all = is_last;
        true
    }

    /// Checks whether a stream that cannot be written to was reset.
    fn find_reset(&mut self, context: &mut Context<'_>) -> bool {
        let polled = match (&mut self.sender, &mut self.respond) {
            (Some(sender), _) => sender.poll_reset(context),
            (None, Some(respond)) => respond.poll_reset(context),
            (None, None) => Poll::Pending,
        };
        match polled {
            Poll::Ready(Ok(reason)) => self.reset = Some(reason.into()),
            Poll::Ready(Err(error)) => self.fail(&error),
            Poll::Pending => return false,
        }
        true
    }
}

fn header_map(fields: &Fields) -> HeaderMap {
    let fields = fields.iter().map(|(name, value)| {
        let mut value = HeaderValue::from_bytes(value).expect("a value");
        value.set_sensitive(name == "x-trace-id");
        (HeaderName::from_bytes(name.as_bytes()).expect("a name"), value)
    });
    let mut map = HeaderMap::new();
    fields.for_each(|(name, value)| _ = map.append(name, value));
    map
}

fn fields_of(map: &HeaderMap) -> Fields {
    map.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}
