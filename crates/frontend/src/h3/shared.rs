//! Http3State common to the task of a connection and the tasks of its streams: the session, and bodies in both directions.
//!
//! ```text
//!   receive:   quinn-proto --read--> session --bytes of DATA--> Inbox --pieces--> handler
//!   send:      outlet --pieces--> SendQueue --written as far as the windows permit--> quinn-proto, by priority
//! ```
//! Bytes of a body that its handler has not read stay in `quinn-proto`, which does not extend the windows of their stream and of the
//! connection meanwhile: so a client sends no faster than its bodies are consumed. Main types: [`Http3Shared`], [`Http3Stream`].

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::h3::hq::RequestLine;
use http::h3::{Http3ErrorCode, Http3Fault, Http3Limits, Http3Output, Http3Session, Priority, RequestStream};
use io::{Errno, Segments};
use quinn_proto::{Dir, ReadError, StreamId, VarInt, WriteError};
use rt::local::Event;

use crate::quic::{CONNECTION_WINDOW, QuicConnection, SEND_WINDOW_MIN};
use crate::streams::inbox::Inbox;
use crate::streams::{SlotWaits, WINDOW_MIN};
use exchange::capacity::{Share, Waits};
use exchange::thread::Thread;
use telemetry::tally::Http2Limit;
use transfer::incoming::BodyAborted;

/// Maximum number of bytes that a connection stores until the client has acknowledged them. It is twice the congestion window, so that a client gets it only by acknowledgements.
const SEND_WINDOW_MAX: u64 = 8 << 20;

/// Number of bytes that are read from a stream before its handler needs them: a small body is complete before its request is processed.
const READ_MAX: usize = 32 << 10;

/// The same while the thread's memory for bodies is scarce.
const READ_SCARCE: usize = 4 << 10;

/// Maximum number of bytes read ahead for a response.
const READ_AHEAD: u64 = 64 << 10;

/// One connection.
pub(super) struct Http3Shared {
    /// The thread on which the connection runs.
    pub(super) thread: Rc<Thread>,
    /// The connection of QUIC.
    pub(super) connection: Rc<QuicConnection>,
    /// Borrowed for single steps, never while a request runs.
    state: RefCell<Http3State>,
    /// Whether the connection must end after its requests.
    pub(super) is_ending: Cell<bool>,
    /// The memory for request bodies that are not consumed yet.
    pub(super) share: Rc<Share>,
    /// `http3_stream_buffer_size`
    stream_buffer: u64,
    /// Whether the protocol is HTTP/0.9 over QUIC (`http3_hq`).
    pub(super) is_hq: bool,
}

/// The mutable state.
pub(super) struct Http3State {
    /// The protocol.
    pub(super) session: Http3Session,
    /// Bytes for the streams of this server.
    pub(super) out: Http3Output,
    /// The control stream.
    control: Option<StreamId>,
    /// Streams with a request.
    streams: HashMap<StreamId, Rc<Http3Stream>>,
    /// Number of body bytes that `quinn-proto` has accepted.
    moved: u64,
    /// Number of bytes that were read from streams.
    received: u64,
    /// The error after which nothing is sent.
    closed: Option<Errno>,
    /// A fault that the task of a stream has found.
    fault: Option<Http3Fault>,
    /// The window of the connection: the number of bytes that the client may send after those that were read.
    window: u64,
    /// Number of bytes that the client may send in addition, because the window was larger before: `quinn-proto` gets them back from reads. An
    /// upper bound, since it also gets back the unread bytes of streams that have ended.
    debt: u64,
    /// Whether the thread's memory for bodies permits less than the open bodies could use.
    is_scarce: bool,
    /// Streams that `quinn-proto` accepts bytes for again.
    writable: Vec<Rc<Http3Stream>>,
    /// The limit of stored bytes.
    send_window: u64,
}

/// One request and its response.
pub(super) struct Http3Stream {
    /// The stream of QUIC.
    pub(super) id: StreamId,
    /// Its request line, without HTTP/3 (`http3_hq`).
    pub(super) line: RefCell<RequestLine>,
    /// Its frames.
    pub(super) codec: RefCell<RequestStream>,
    /// The body of its request.
    pub(super) inbox: RefCell<Inbox>,
    /// The body of its response.
    outbox: RefCell<SendQueue>,
    /// Its priority; higher numbers are sent first.
    rank: Cell<i32>,
    /// The code of a fault of the request, with which the stream ends.
    pub(super) fault: Cell<Option<Http3ErrorCode>>,
    /// Whether its header section was decoded.
    pub(super) has_head: Cell<bool>,
    /// Whether all bytes of the client were received, or it has reset the stream.
    pub(super) is_received: Cell<bool>,
    /// Whether `quinn-proto` may have bytes that were not read.
    pub(super) has_more: Cell<bool>,
    /// Whether its request waits for a slot for its upstream.
    pub(super) slot_waits: SlotWaits,
    /// Whether the client has disconnected or cancelled the stream.
    is_closed: Cell<bool>,
    /// Notifies waiting tasks of `is_closed`; created when the first task waits.
    closed: OnceCell<Event>,
}

/// A response, as far as `quinn-proto` has not accepted it.
#[derive(Default)]
struct SendQueue {
    queue: VecDeque<Piece>,
    /// Number of bytes in the queue.
    queued: usize,
    /// Number of body bytes that `quinn-proto` has accepted.
    moved: u64,
    /// Whether the response has begun.
    has_begun: bool,
    /// Whether the queue contains the end of the response.
    has_end: bool,
    /// Whether the end, or a reset, was passed to `quinn-proto`.
    is_done: bool,
    /// Whether the response was reset.
    is_reset: bool,
    /// Whether `quinn-proto` accepts no bytes at present.
    is_blocked: bool,
    /// Waker of the task that waits for room, or for the queue to become empty.
    writer_waker: Option<Waker>,
}

/// Bytes to be sent.
struct Piece {
    data: Segments,
    /// Whether these are bytes of a body, not of a frame's header or of a header section.
    is_body: bool,
}

/// Bytes that were read from a stream.
pub(super) struct Pulled {
    /// The bytes, in order.
    pub(super) chunks: Vec<Bytes>,
    /// Whether the stream ends after them.
    pub(super) end: Option<StreamEnd>,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// All bytes were received.
    Complete,
    /// The client has reset the stream.
    Reset,
}

impl Http3Stream {
    /// Creates a stream that was just opened.
    pub(super) fn new(id: StreamId, codec: RequestStream, share: &Rc<Share>) -> Rc<Http3Stream> {
        Rc::new(Http3Stream {
            id,
            line: RefCell::default(),
            codec: RefCell::new(codec),
            inbox: RefCell::new(Inbox::new(Some(share))),
            outbox: RefCell::default(),
            rank: Cell::new(0),
            fault: Cell::new(None),
            has_head: Cell::new(false),
            is_received: Cell::new(false),
            has_more: Cell::new(false),
            slot_waits: SlotWaits::default(),
            is_closed: Cell::new(false),
            closed: OnceCell::new(),
        })
    }

    /// Whether the client has disconnected or cancelled the stream.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Waits until the client has disconnected or cancelled the stream.
    pub(super) async fn hung_up(self: Rc<Http3Stream>) {
        if !self.is_closed.get() {
            self.closed.get_or_init(Event::new).wait().await;
        }
    }

    /// Notes that the client has disconnected or cancelled the stream: waiting tasks continue with an error.
    pub(super) fn abort(&self, reason: BodyAborted) {
        self.is_closed.set(true);
        self.inbox.borrow_mut().finish(Err(reason));
        let mut outbox = self.outbox.borrow_mut();
        outbox.writer_waker.take().into_iter().for_each(Waker::wake);
        self.closed.get().into_iter().for_each(Event::set);
    }

    /// Returns the number of body bytes that were passed to `quinn-proto`.
    pub(super) fn moved(&self) -> u64 {
        self.outbox.borrow().moved
    }

    /// Whether the response is complete.
    pub(super) fn is_done(&self) -> bool {
        self.outbox.borrow().is_done
    }
}

impl SendQueue {
    fn push(&mut self, data: Segments, is_body: bool) {
        if !data.is_empty() {
            self.queued += data.len();
            self.queue.push_back(Piece { data, is_body });
        }
    }
}

/// Returns the priority of a stream in `quinn-proto`, where higher numbers are sent first and equal ones take turns (RFC 9218 section 10): urgent
/// responses first; those of the same urgency one after the other in the order of their requests; incremental ones share the rest.
fn rank(priority: Priority, index: u64) -> i32 {
    const SPAN: i32 = 1 << 27;
    let level = 7 - i32::from(priority.urgency.min(7));
    let order = if priority.is_incremental { 0 } else { SPAN - 1 - (index % (SPAN as u64 - 1)) as i32 };
    level * SPAN + order
}

impl Http3Shared {
    /// Creates the state of a connection; its settings are ready to be sent.
    pub(super) fn new(
        thread: &Rc<Thread>,
        connection: &Rc<QuicConnection>,
        (limits, is_hq): (Http3Limits, bool),
        stream_buffer: u64,
        driver: Waker,
    ) -> Rc<Http3Shared> {
        let mut out = Http3Output::default();
        let session = Http3Session::server(limits, &mut out);
        Rc::new(Http3Shared {
            share: thread.capacity.windows.of_client(CONNECTION_WINDOW, driver),
            thread: Rc::clone(thread),
            connection: Rc::clone(connection),
            state: RefCell::new(Http3State {
                session,
                out,
                control: None,
                streams: HashMap::new(),
                moved: 0,
                received: 0,
                closed: None,
                fault: None,
                window: CONNECTION_WINDOW,
                debt: 0,
                is_scarce: false,
                writable: Vec::new(),
                send_window: SEND_WINDOW_MIN,
            }),
            is_ending: Cell::new(false),
            stream_buffer,
            is_hq,
        })
    }

    /// Changes the state.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Http3State) -> R) -> R {
        change(&mut self.state.borrow_mut())
    }

    /// Wakes the task of the connection: packets are ready, or a stream has ended.
    pub(super) fn wake_driver(&self) {
        self.connection.wake();
    }

    /// Returns a number that increases with body bytes in both directions.
    pub(super) fn progress(&self) -> u64 {
        let state = self.state.borrow();
        state.moved + state.received
    }

    /// Returns the number of open streams.
    pub(super) fn open_streams(&self) -> usize {
        self.state.borrow().streams.len()
    }

    /// Returns the number of request streams whose last bytes the client has not acknowledged.
    pub(super) fn undelivered_streams(&self) -> usize {
        let own = usize::from(self.state.borrow().control.is_some());
        self.connection.proto.borrow_mut().streams().send_streams().saturating_sub(own)
    }

    /// Returns a stream.
    pub(super) fn stream(&self, id: StreamId) -> Option<Rc<Http3Stream>> {
        self.state.borrow().streams.get(&id).cloned()
    }

    /// Adds a stream.
    pub(super) fn insert(&self, stream: &Rc<Http3Stream>) {
        self.state.borrow_mut().streams.insert(stream.id, Rc::clone(stream));
    }

    /// Whether a stream has no complete header section yet.
    pub(super) fn is_in_head(&self) -> bool {
        self.state.borrow().streams.values().any(|stream| !stream.has_head.get())
    }

    /// Takes a fault that the task of a stream has found.
    pub(super) fn take_fault(&self) -> Option<Http3Fault> {
        self.state.borrow_mut().fault.take()
    }

    /// Passes a fault to the task of the connection.
    pub(super) fn report(&self, fault: Http3Fault) {
        self.state.borrow_mut().fault.get_or_insert(fault);
        self.wake_driver();
    }

    /// Writes the bytes of the control stream, which is opened first.
    pub(super) fn write_control(&self) {
        let state = &mut *self.state.borrow_mut();
        if state.out.control.is_empty() || state.closed.is_some() || self.is_hq {
            return;
        }
        let mut proto = self.connection.proto.borrow_mut();
        if state.control.is_none() {
            state.control = proto.streams().open(Dir::Uni);
        }
        let Some(id) = state.control else { return };
        let mut sender = proto.send_stream(id);
        let _ = sender.set_priority(i32::MAX);
        if let Ok(written) = sender.write(&state.out.control) {
            state.out.control.drain(..written);
        }
    }

    /// Reads received bytes of a stream, at most about `most`.
    pub(super) fn pull(&self, stream: &Http3Stream, most: usize) -> Pulled {
        let mut pulled = Pulled { chunks: Vec::new(), end: None };
        let mut proto = self.connection.proto.borrow_mut();
        let mut receiver = proto.recv_stream(stream.id);
        stream.has_more.set(false);
        let Ok(mut chunks) = receiver.read(true) else { return pulled };
        let mut taken = 0;
        loop {
            if taken >= most {
                stream.has_more.set(true);
                break;
            }
            match chunks.next(most - taken) {
                Ok(Some(chunk)) => {
                    taken += chunk.bytes.len();
                    pulled.chunks.push(chunk.bytes);
                }
                Ok(None) => {
                    pulled.end = Some(StreamEnd::Complete);
                    break;
                }
                Err(ReadError::Blocked) => break,
                Err(ReadError::Reset(_)) => {
                    pulled.end = Some(StreamEnd::Reset);
                    break;
                }
            }
        }
        // The window of the stream was extended.
        let is_extended = chunks.finalize().should_transmit();
        drop(proto);
        {
            let state = &mut *self.state.borrow_mut();
            state.received += taken as u64;
            state.debt = state.debt.saturating_sub(taken as u64);
        }
        if is_extended {
            self.wake_driver();
        }
        pulled
    }

    /// Returns the number of bytes that may be read for a stream now.
    pub(super) fn readable(&self, stream: &Http3Stream) -> usize {
        let most = if self.state.borrow().is_scarce { READ_SCARCE } else { READ_MAX };
        most.saturating_sub(stream.inbox.borrow().held())
    }

    /// Checks whether a client has reset a stream whose bytes are not read at present.
    pub(super) fn is_reset(&self, stream: &Http3Stream) -> bool {
        let mut proto = self.connection.proto.borrow_mut();
        matches!(proto.recv_stream(stream.id).received_reset(), Ok(Some(_)))
    }

    /// Adapts the window of the connection to its open bodies, as far as its share of the thread's memory permits.
    pub(super) fn adapt_window(&self) {
        let state = &mut *self.state.borrow_mut();
        let bodies = state.streams.values().filter(|stream| !stream.is_received.get()).count() as u64;
        let wanted = (bodies * self.stream_buffer).max(CONNECTION_WINDOW);
        let promised = state.window + state.debt;
        let is_small = self.share.reserved() == 0 && self.share.held() == 0;
        if wanted == promised && wanted == state.window && is_small {
            state.is_scarce = false;
            return;
        }
        let was_stopped = self.share.is_stopped();
        let more = self.share.permit(wanted, promised) - promised;
        if self.share.is_stopped() && !was_stopped {
            self.thread.tally.count_http2_limit(Http2Limit::Bodies);
        }
        let set = |window: u64| {
            let window = VarInt::from_u64(window).unwrap_or(VarInt::MAX);
            self.connection.proto.borrow_mut().set_receive_window(window);
        };
        if more > 0 {
            state.window += more;
            set(state.window);
        }
        // Bytes that were read and not consumed occupy the same memory.
        let memory = (CONNECTION_WINDOW + self.share.reserved()).saturating_sub(self.share.held());
        let window = wanted.min(memory).max(WINDOW_MIN.into());
        if window < state.window {
            state.debt += state.window - window;
            state.window = window;
            set(window);
        }
        state.is_scarce = window < wanted;
        debug_assert!(state.window >= u64::from(WINDOW_MIN), "each connection continues to receive");
    }

    /// Adapts the number of stored bytes to the congestion window.
    pub(super) fn adapt_send_window(&self) {
        let state = &mut *self.state.borrow_mut();
        let mut proto = self.connection.proto.borrow_mut();
        let wanted = (2 * proto.congestion_state().window()).clamp(SEND_WINDOW_MIN, SEND_WINDOW_MAX);
        if wanted > state.send_window {
            state.send_window = wanted;
            proto.set_send_window(wanted);
        }
    }
}

/// Sending.
impl Http3Shared {
    /// Checks whether a stream can send.
    fn check(&self, state: &Http3State, stream: &Http3Stream) -> Result<(), Errno> {
        match state.closed {
            Some(errno) => Err(errno),
            None if stream.is_closed.get() => Err(Errno::CONNRESET),
            None => Ok(()),
        }
    }

    /// Adds a header section. `ends` means that no body follows. Returns the length of its frame.
    ///
    /// # Errors
    /// The client has disconnected.
    pub(super) fn push_head(&self, stream: &Http3Stream, block: &[u8], ends: bool) -> Result<usize, Errno> {
        let state = &mut *self.state.borrow_mut();
        self.check(state, stream)?;
        let mut frame = Vec::with_capacity(block.len() + 16);
        let len = state.session.push_head(&mut stream.codec.borrow_mut(), block, &mut frame);
        if self.is_hq {
            frame.clear();
        }
        let mut outbox = stream.outbox.borrow_mut();
        outbox.has_begun = true;
        outbox.push(Segments::from(frame), false);
        outbox.has_end |= ends;
        Ok(len)
    }

    /// Adds the header section of an interim response.
    pub(super) fn push_interim(&self, stream: &Http3Stream, block: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        if self.check(state, stream).is_ok() && !self.is_hq {
            let mut frame = Vec::new();
            state.session.push_interim(block, &mut frame);
            stream.outbox.borrow_mut().push(Segments::from(frame), false);
        }
    }

    /// Adds bytes of a body; `end` ends it with a block of trailers, possibly empty.
    ///
    /// # Errors
    /// The client has disconnected.
    pub(super) fn push_body(
        &self,
        stream: &Http3Stream,
        data: Segments,
        end: Option<&[u8]>,
    ) -> Result<(), Errno> {
        let state = &mut *self.state.borrow_mut();
        self.check(state, stream)?;
        let mut outbox = stream.outbox.borrow_mut();
        if !data.is_empty() {
            let mut frame = Vec::with_capacity(16);
            state.session.push_data(data.len() as u64, &mut frame);
            if !self.is_hq {
                outbox.push(Segments::from(frame), false);
            }
            outbox.push(data, true);
        }
        if let Some(trailers) = end {
            if !trailers.is_empty() && !self.is_hq {
                let mut frame = Vec::with_capacity(trailers.len() + 16);
                state.session.push_trailers(trailers, &mut frame);
                outbox.push(Segments::from(frame), false);
            }
            outbox.has_end = true;
        }
        Ok(())
    }

    /// Notes that `quinn-proto` accepts bytes of a stream again.
    pub(super) fn note_writable(&self, id: StreamId) {
        let state = &mut *self.state.borrow_mut();
        state.writable.extend(state.streams.get(&id).cloned());
    }

    /// Continues the streams for which `quinn-proto` accepts bytes again, in the order of their priorities: the stored bytes of all streams have
    /// one limit.
    pub(super) fn flush_writable(&self) {
        let mut streams = std::mem::take(&mut self.state.borrow_mut().writable);
        streams.sort_by_key(|stream| std::cmp::Reverse(stream.rank.get()));
        streams.iter().for_each(|stream| self.flush(stream));
    }

    /// Passes queued bytes to `quinn-proto`, as far as it accepts them.
    pub(super) fn flush(&self, stream: &Http3Stream) {
        let state = &mut *self.state.borrow_mut();
        if self.check(state, stream).is_err() {
            return;
        }
        let mut proto = self.connection.proto.borrow_mut();
        let mut outbox = stream.outbox.borrow_mut();
        let mut sender = proto.send_stream(stream.id);
        outbox.is_blocked = false;
        while let Some(piece) = outbox.queue.front_mut() {
            let Some(part) = piece.data.parts().next() else {
                outbox.queue.pop_front();
                continue;
            };
            match sender.write(part.bytes()) {
                Ok(written) => {
                    piece.data.advance(written);
                    let (is_body, is_empty) = (piece.is_body, piece.data.is_empty());
                    outbox.queued -= written;
                    if is_body {
                        outbox.moved += written as u64;
                        state.moved += written as u64;
                    }
                    if is_empty {
                        outbox.queue.pop_front();
                    }
                }
                Err(WriteError::Blocked) => {
                    outbox.is_blocked = true;
                    break;
                }
                // The event of the stream, or of the connection, follows.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break,
            }
        }
        if outbox.queue.is_empty() {
            if outbox.has_end && !outbox.is_done && sender.finish().is_ok() {
                outbox.is_done = true;
                state.session.finish(&mut stream.codec.borrow_mut());
            }
            outbox.writer_waker.take().into_iter().for_each(Waker::wake);
        }
        drop((outbox, proto));
        self.wake_driver();
    }

    /// Becomes ready when `quinn-proto` has accepted all added bytes, and the end too if it was added.
    pub(super) fn poll_framed(&self, stream: &Http3Stream, context: &Context<'_>) -> Poll<Result<(), Errno>> {
        let state = self.state.borrow();
        let mut outbox = stream.outbox.borrow_mut();
        if outbox.is_reset {
            return Poll::Ready(Err(Errno::CONNRESET));
        }
        if outbox.is_done || outbox.queued == 0 && !outbox.has_end && !stream.is_closed.get() {
            return Poll::Ready(Ok(()));
        }
        if let Err(errno) = self.check(&state, stream) {
            return Poll::Ready(Err(errno));
        }
        outbox.writer_waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns the number of body bytes that may be read for a stream.
    pub(super) fn poll_space(&self, stream: &Http3Stream, context: &Context<'_>) -> Poll<Result<u64, Errno>> {
        if let Err(errno) = self.check(&self.state.borrow(), stream) {
            return Poll::Ready(Err(errno));
        }
        let mut outbox = stream.outbox.borrow_mut();
        if outbox.queued == 0 {
            return Poll::Ready(Ok(READ_AHEAD));
        }
        outbox.writer_waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Becomes ready when the stream can no longer send.
    pub(super) fn poll_closed(&self, stream: &Http3Stream, context: &Context<'_>) -> Poll<Errno> {
        match self.check(&self.state.borrow(), stream) {
            Err(errno) => Poll::Ready(errno),
            Ok(()) => {
                stream.outbox.borrow_mut().writer_waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Returns the number of bytes that one read should return.
    pub(super) fn read_ahead(&self) -> u64 {
        READ_AHEAD
    }

    /// Whether the stream waits for its client to accept bytes.
    pub(super) fn is_blocked(&self, stream: &Http3Stream) -> bool {
        stream.outbox.borrow().is_blocked
    }

    /// Sets the priority of a stream.
    pub(super) fn set_priority(&self, stream: &Http3Stream, priority: Priority) {
        let rank = rank(priority, stream.id.index());
        stream.rank.set(rank);
        let _ = self.connection.proto.borrow_mut().send_stream(stream.id).set_priority(rank);
    }

    /// Removes the bytes that `quinn-proto` has not accepted.
    pub(super) fn discard(&self, stream: &Http3Stream) {
        let mut outbox = stream.outbox.borrow_mut();
        outbox.queue.clear();
        outbox.queued = 0;
        outbox.has_end = false;
    }

    /// Resets the response of a stream.
    pub(super) fn reset(&self, stream: &Http3Stream, code: Http3ErrorCode) {
        self.discard(stream);
        let mut outbox = stream.outbox.borrow_mut();
        if !std::mem::replace(&mut outbox.is_done, true) {
            outbox.is_reset = true;
            let code = VarInt::from_u64(code as u64).unwrap_or(VarInt::MAX);
            let _ = self.connection.proto.borrow_mut().send_stream(stream.id).reset(code);
            drop(outbox);
            self.wake_driver();
        }
    }

    /// Asks the client to send no more on a stream.
    pub(super) fn stop(&self, id: StreamId, code: Http3ErrorCode) {
        let code = VarInt::from_u64(code as u64).unwrap_or(VarInt::MAX);
        let _ = self.connection.proto.borrow_mut().recv_stream(id).stop(code);
        self.wake_driver();
    }

    /// Ends a stream whose work is done; `reset` is the error code if the request violated the protocol.
    pub(super) fn release(&self, stream: &Http3Stream, reset: Option<Http3ErrorCode>) {
        let is_open = self.state.borrow().closed.is_none();
        let reset = stream.fault.get().or(reset);
        if is_open && !stream.is_done() {
            self.reset(stream, reset.unwrap_or(Http3ErrorCode::Internal));
        }
        if is_open {
            // Also after STOP_SENDING of the client, which does not end the direction of the request. Without effect on a complete one.
            self.stop(stream.id, reset.unwrap_or(Http3ErrorCode::NoError));
        }
        if is_open && !stream.is_received.replace(true) {
            let state = &mut *self.state.borrow_mut();
            state.session.abandon(&mut stream.codec.borrow_mut(), &mut state.out);
        }
        stream.inbox.borrow_mut().clear();
        self.state.borrow_mut().streams.remove(&stream.id);
        self.adapt_window();
        self.wake_driver();
    }

    /// Handles a client that has cancelled a request.
    pub(super) fn cancelled(&self, stream: &Http3Stream) -> Result<(), Http3Fault> {
        let cancelled = {
            let state = &mut *self.state.borrow_mut();
            state.session.cancelled(&mut stream.codec.borrow_mut(), &mut state.out)
        };
        self.discard(stream);
        stream.abort(BodyAborted::StreamClosed);
        cancelled
    }

    /// Handles the end of the connection, for this reason.
    pub(super) fn abort_all(&self, errno: Errno) {
        let streams: Vec<Rc<Http3Stream>> = {
            let state = &mut *self.state.borrow_mut();
            state.closed.get_or_insert(errno);
            state.streams.values().cloned().collect()
        };
        for stream in streams {
            self.discard(&stream);
            stream.abort(BodyAborted::StreamClosed);
            // No task will end a stream without a request.
            if !stream.has_head.get() {
                self.state.borrow_mut().streams.remove(&stream.id);
            }
        }
    }

    /// Returns what the client keeps all open requests waiting for; `None` if a request does not wait for the client.
    pub(super) fn awaited(&self) -> Option<Waits> {
        let mut awaited = None;
        for stream in self.state.borrow().streams.values() {
            let outbox = stream.outbox.borrow();
            awaited = match outbox.has_begun {
                false if stream.slot_waits.any() => awaited,
                false if stream.inbox.borrow().is_awaited() => awaited.or(Some(Waits::Body)),
                true if outbox.writer_waker.is_some() && outbox.is_blocked => Some(Waits::Reads),
                _ => return None,
            };
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_ranked_by_urgency_then_order() {
        let of = |urgency, is_incremental, index| rank(Priority { urgency, is_incremental }, index);
        assert!(of(0, true, 9) > of(1, false, 0), "urgency");
        assert!(of(3, false, 1) > of(3, false, 2), "one after the other");
        assert!(of(3, false, 500) > of(3, true, 0), "incremental ones share the rest");
        assert_eq!(of(3, true, 1), of(3, true, 2));
        assert!(of(7, true, u64::MAX) >= 0 && of(0, false, 0) > of(0, false, 1 << 26));
    }
}
