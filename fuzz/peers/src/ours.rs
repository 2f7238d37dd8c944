//! Ringroad's end of a session: [`http::h2::Session`] as client or as server, with the messages of the plan.

use std::collections::BTreeMap;
use std::rc::Rc;

use http::h2::hpack::{push_field, push_request, push_status};
use http::h2::{Block, ErrorCode, Event, HeadReader, ResponseReader, Scratch, Session};
use http::request::{Head, Policy};
use http::response::parse;

use crate::outcome::{Outcome, Received};
use crate::pipe::Shared;
use crate::plan::{Ending, Fields, Message, Plan, Way, byte, bytes};
use crate::random::Random;

/// An exchange in flight.
struct Stream {
    received: Received,
    /// Bytes that were received and not consumed yet.
    untaken: usize,
    interim_sent: usize,
    sent_head: bool,
    sent: usize,
    sent_all: bool,
}

/// Ringroad's end.
pub struct Ours {
    is_client: bool,
    plan: Rc<Plan>,
    session: Session<usize>,
    incoming: Shared,
    outgoing: Shared,
    input: Vec<u8>,
    out: Vec<u8>,
    scratch: Scratch,
    streams: BTreeMap<u32, Stream>,
    /// Index of the next exchange to begin.
    next: usize,
    /// Outcomes of the exchanges.
    pub outcomes: Vec<Option<Outcome>>,
    /// Id of the last stream that the peer processes, if it has announced the id.
    last: Option<u32>,
    has_announced: bool,
    pings: usize,
    /// Number of PING acknowledgements received.
    pub pongs: usize,
}

const POLICY: Policy = Policy {
    ignore_invalid_headers: true,
    underscores_in_headers: true,
    strict: false,
    allow_connect: false,
    allow_trace: false,
    request_line_max: 8 << 10,
    field_line_max: 16 << 10,
    head_max: 33 << 10,
    fields_max: 1000,
};

impl Ours {
    /// Creates an end that has sent its first frames.
    #[must_use]
    pub fn new(is_client: bool, plan: &Rc<Plan>, incoming: Shared, outgoing: Shared) -> Ours {
        let mut out = Vec::new();
        let session = match is_client {
            true => Session::client(plan.limits, &mut out),
            false => Session::new(plan.limits, &mut out),
        };
        Ours {
            is_client,
            plan: Rc::clone(plan),
            session,
            incoming,
            outgoing,
            input: Vec::new(),
            out,
            scratch: Scratch::default(),
            streams: BTreeMap::new(),
            next: 0,
            outcomes: vec![None; plan.exchanges.len()],
            last: None,
            has_announced: false,
            pings: 0,
            pongs: 0,
        }
    }

    /// Makes a random step, or none; returns whether anything changed.
    pub fn act(&mut self, random: &mut Random) -> bool {
        let mut moved = self.push_out();
        moved |= self.receive(random);
        if self.is_client {
            moved |= self.begin(random);
        } else if self.plan.goes_away && !self.has_announced && self.next > 0 && random.once_in(20) {
            self.session.announce_end(&mut self.out);
            self.has_announced = true;
            moved = true;
        }
        if self.pings < 2 && !self.plan.goes_away && random.once_in(40) {
            self.session.ping(&mut self.out);
            self.pings += 1;
            moved = true;
        }
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            if !random.once_in(3) {
                moved |= self.take(id, random);
            }
            if !random.once_in(3) {
                moved |= self.send(id, random);
            }
            moved |= self.settle(id);
        }
        moved
    }

    /// Whether all exchanges that were begun have ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let begins_more = self.is_client && self.next < self.plan.exchanges.len() && self.last.is_none();
        self.streams.is_empty() && self.session.open_streams() == 0 && !begins_more && self.out.is_empty()
    }

    /// Describes the open streams, for a stalled session.
    #[must_use]
    pub fn shown(&self) -> String {
        let each = self.streams.iter().map(|(id, stream)| {
            let Stream { received, sent, sent_all, untaken, .. } = stream;
            let window = (self.session.window(*id), self.session.is_closed_for_all());
            format!("{id} {received:?} sent {sent} {sent_all} window {window:?} untaken {untaken}")
        });
        format!("ours, {} bytes to send: {}", self.out.len(), each.collect::<Vec<_>>().join("; "))
    }

    fn push_out(&mut self) -> bool {
        let count = self.outgoing.borrow_mut().put(&self.out);
        self.out.drain(..count);
        count > 0
    }

    fn receive(&mut self, random: &mut Random) -> bool {
        let bytes = self.incoming.borrow_mut().take(1 + random.below(self.plan.chunk_max));
        let is_new = !bytes.is_empty();
        let mut input = std::mem::take(&mut self.input);
        input.extend(bytes);
        let mut at = 0;
        while at < input.len() {
            let step = self.session.receive(&input[at..], &mut self.out);
            let step = step.unwrap_or_else(|fault| panic!("Ringroad reports an error of h2: {fault:?}"));
            if step.event == Event::More {
                break;
            }
            self.handle(step.event, &input[at..]);
            at += step.used;
        }
        input.drain(..at);
        self.input = input;
        is_new
    }

    fn handle(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, ends, block } if self.is_client => self.reply(stream, ends, block, input),
            Event::Head { stream, ends, block } => self.request(stream, ends, block, input),
            Event::Data { stream, start, end, ends } => self.data(stream, &input[start..end], ends),
            Event::Reset { stream, by_peer, code } => {
                assert!(by_peer, "Ringroad has reset stream {stream} with code {code}");
                self.reset_by_peer(stream, code);
            }
            // A client also sends GOAWAY, at its end; the stream id of that frame refers to streams opened by the
            // server.
            Event::GoAway { code, .. } if !self.is_client => {
                assert_eq!(code, 0, "h2 reports an error of Ringroad");
            }
            Event::GoAway { last, code } => {
                assert_eq!(code, 0, "h2 reports an error of Ringroad");
                self.last = Some(self.last.map_or(last, |before| before.min(last)));
                let lost: Vec<u32> = self.streams.keys().copied().filter(|&id| id > last).collect();
                for id in lost {
                    self.end(id, Outcome::NotProcessed);
                }
            }
            Event::Pong => {
                self.pongs += 1;
                if self.has_announced {
                    self.session.end(&mut self.out);
                }
            }
            Event::Round => {
                for (id, window) in self.session.limited() {
                    self.session.widen(id, 2 * window, &mut self.out);
                }
            }
            Event::More | Event::Nothing | Event::Window { .. } | Event::Priority { .. } => {}
        }
    }

    /// As a client, begins the next exchange.
    fn begin(&mut self, random: &mut Random) -> bool {
        let has_more = self.next < self.plan.exchanges.len() && self.last.is_none();
        if !has_more || !self.session.may_open() || random.once_in(3) {
            return false;
        }
        let exchange = self.next;
        self.next += 1;
        let id = self.session.open_next(exchange);
        let plan = Rc::clone(&self.plan);
        let request = &plan.exchanges[exchange].request;
        let mut block = Vec::new();
        push_request(&mut block, b"POST", b"http", format!("/{exchange}").as_bytes(), b"a.test");
        push_all(&mut block, &request.all_fields());
        self.session.push_head(id, &block, request.is_head_only(), &mut self.out);
        let mut stream = Stream::new(exchange);
        (stream.sent_head, stream.sent_all) = (true, request.is_head_only());
        self.streams.insert(id, stream);
        true
    }

    /// Handles the head of a request.
    fn request(&mut self, id: u32, ends: bool, block: Block, input: &[u8]) {
        let exchange = (id as usize - 1) / 2;
        self.next = self.next.max(exchange + 1);
        let request = &self.plan.exchanges[exchange].request;
        let (mut head, mut raw, mut fields) = (Head::new(), Vec::new(), Fields::new());
        let mut reader = HeadReader::new(&mut self.scratch, &mut head, &mut raw, &POLICY);
        let decoded = self.session.decode(block, input, |name, value| {
            reader.field(name, value);
            fields.push((String::from_utf8_lossy(name).into_owned(), value.to_vec()));
        });
        decoded.expect("a header block of h2");
        reader.finish(ends).unwrap_or_else(|fault| panic!("a head of h2 is refused: {fault:?}"));
        let (pseudo, fields): (Fields, Fields) =
            fields.into_iter().partition(|field| field.0.starts_with(':'));
        let path = pseudo.iter().find(|field| field.0 == ":path").map(|field| &field.1[..]);
        assert_eq!(path, Some(format!("/{exchange}").as_bytes()));
        let mut stream = Stream::new(exchange);
        stream.received.head(request, fields);
        if ends {
            stream.received.end(request, None);
        }
        let length = request.is_counted.then_some(request.body as u64);
        self.session.open(id, ends, length, exchange);
        self.streams.insert(id, stream);
    }

    /// Handles a header section of a response.
    fn reply(&mut self, id: u32, ends: bool, block: Block, input: &[u8]) {
        let mut reader = ResponseReader::new(parse::Limits { head_max: 64 << 10, fields_max: 100 });
        let mut fields = Fields::new();
        let decoded = self.session.decode(block, input, |name, value| {
            reader.field(name, value);
            fields.push((String::from_utf8_lossy(name).into_owned(), value.to_vec()));
        });
        decoded.expect("a header block of h2");
        let stream = self.streams.get_mut(&id).expect("a stream that was opened");
        let response = &self.plan.exchanges[stream.received.exchange].response;
        if stream.received.has_head {
            assert!(ends, "trailers end a message");
            return stream.received.end(response, Some(fields));
        }
        let (_, head) = reader.finish().unwrap_or_else(|fault| panic!("a head of h2 is refused: {fault:?}"));
        if head.is_interim() {
            return stream.received.interim += 1;
        }
        fields.retain(|field| field.0 != ":status");
        stream.received.head(response, fields);
        if ends {
            stream.received.end(response, None);
        } else if let Some(length) = head.content_length() {
            self.session.expect(id, length);
        }
    }

    fn data(&mut self, id: u32, bytes: &[u8], ends: bool) {
        let (is_client, plan) = (self.is_client, Rc::clone(&self.plan));
        // The remaining bytes of a frame may belong to a stream that has ended in between.
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let exchange = &plan.exchanges[stream.received.exchange];
        let (message, way) = match is_client {
            true => (&exchange.response, Way::Response),
            false => (&exchange.request, Way::Request),
        };
        stream.received.data(message, way, bytes);
        stream.untaken += bytes.len();
        if ends {
            // The session has checked the trailers of a request and dropped them.
            let trailers = message.trailers.clone().filter(|_| !is_client);
            stream.received.end(message, trailers);
        }
    }

    fn reset_by_peer(&mut self, id: u32, code: u32) {
        let stream = &self.streams[&id];
        let is_whole = self.is_client && stream.received.has_all && code == ErrorCode::NoError as u32;
        self.end(id, if is_whole { Outcome::Whole } else { Outcome::Reset(code) });
    }

    /// Consumes a part of a body, which opens its window again.
    fn take(&mut self, id: u32, random: &mut Random) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let count = if random.once_in(2) { stream.untaken } else { random.below(stream.untaken + 1) };
        stream.untaken -= count;
        if count > 0 {
            self.session.take(id, count as u32, &mut self.out);
        }
        count > 0
    }

    fn send(&mut self, id: u32, random: &mut Random) -> bool {
        let plan = Rc::clone(&self.plan);
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.sent_all) else { return false };
        let exchange = &plan.exchanges[stream.received.exchange];
        let (message, way) = match self.is_client {
            true => (&exchange.request, Way::Request),
            false => (&exchange.response, Way::Response),
        };
        let resets = match exchange.ending {
            Ending::ResetByClient(after) => self.is_client && stream.sent >= after,
            Ending::ResetByServer(after) => !self.is_client && stream.sent >= after,
            Ending::Whole | Ending::Early => false,
        };
        if resets {
            self.session.reset(id, ErrorCode::Connect, &mut self.out);
            self.end(id, Outcome::ResetHere);
            return true;
        }
        if !stream.sent_head {
            let mut block = Vec::new();
            let is_interim = stream.interim_sent < message.interim;
            push_status(&mut block, if is_interim { 103 } else { 200 });
            let ends = !is_interim && message.is_head_only();
            match is_interim {
                true => stream.interim_sent += 1,
                false => (stream.sent_head, stream.sent_all) = (true, ends),
            }
            if !is_interim {
                push_all(&mut block, &message.all_fields());
            }
            self.session.push_head(id, &block, ends, &mut self.out);
            return true;
        }
        self.send_body(id, message, way, random)
    }

    fn send_body(&mut self, id: u32, message: &Message, way: Way, random: &mut Random) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let left = message.body - stream.sent;
        if left == 0
            && let Some(trailers) = &message.trailers
        {
            let mut block = Vec::new();
            push_all(&mut block, trailers);
            self.session.push_head(id, &block, true, &mut self.out);
            stream.sent_all = true;
            return true;
        }
        let most = left.min(self.session.sendable(id)).min(self.session.payload_max());
        let count = most.min(message.piece_max / 2 + random.below(message.piece_max));
        // The end of the body may be sent in a separate frame.
        let is_last = count == left && message.trailers.is_none() && (count == 0 || random.once_in(2));
        if count == 0 && !is_last {
            return false;
        }
        self.session.push_data(id, count, is_last, &mut self.out);
        self.out.extend(bytes(stream.received.exchange, way, stream.sent, count));
        stream.sent += count;
        stream.sent_all = is_last;
        true
    }

    /// Ends a stream whose messages are complete.
    fn settle(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get(&id) else { return false };
        let is_early =
            !self.is_client && self.plan.exchanges[stream.received.exchange].ending == Ending::Early;
        let is_over = stream.sent_all && (stream.received.has_all || is_early);
        if is_over {
            self.end(id, Outcome::Whole);
        }
        is_over
    }

    fn end(&mut self, id: u32, outcome: Outcome) {
        let Some(stream) = self.streams.remove(&id) else { return };
        let exchange = stream.received.exchange;
        assert_eq!(self.session.release(id, &mut self.out), Some(exchange));
        assert!(self.outcomes[exchange].replace(outcome).is_none(), "an exchange ends once");
    }
}

impl Stream {
    fn new(exchange: usize) -> Stream {
        Stream {
            received: Received::new(exchange),
            untaken: 0,
            interim_sent: 0,
            sent_head: false,
            sent: 0,
            sent_all: false,
        }
    }
}

fn push_all(block: &mut Vec<u8>, fields: &Fields) {
    fields.iter().for_each(|(name, value)| push_field(block, name.as_bytes(), value));
}

/// Whether these are the bytes of a body from an offset on.
#[must_use]
pub fn is_part(exchange: usize, way: Way, at: usize, part: &[u8]) -> bool {
    part.iter().enumerate().all(|(offset, &found)| found == byte(exchange, way, at + offset))
}
