//! The common state of the task of a connection and those of its streams: the session, frames that are ready to leave, and
//! bodies on their way in both directions.
//!
//! ```text
//!   receives:  driver --bytes of DATA--> Inbox --pieces--> transport of the stream --taken--> WINDOW_UPDATE
//!   sends:     transport, outlet --head--> frames <--DATA, by priority-- Outbox <--pieces-- outlet
//!                                            `--> driver: one send for all of them
//! ```
//! Main types: [`Shared`], [`Stream`]. Every change to the ready frames wakes the driver.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::h2::{ErrorCode, Limits, Priority, Scheduler, Session};
use io::op::Source;
use io::{Buf, Errno, Segments};
use rt::local::Event;

use crate::wire::WireHandle;
use exchange::room::Window;
use exchange::thread::Thread;
use transfer::incoming::BodyAborted;

/// One connection.
pub(super) struct Shared {
    /// The thread that all of it runs on.
    pub(super) thread: Rc<Thread>,
    /// The interface to the socket.
    pub(super) handle: WireHandle,
    /// Borrowed for single steps: never while a request runs.
    state: RefCell<State>,
    /// The task of the connection, while it waits.
    driver: Cell<Option<Waker>>,
    /// How long the connection is kept without a request, as the location of the last one has it.
    pub(super) keepalive_timeout: Cell<Duration>,
    /// Whether the connection is to end when its requests have.
    pub(super) is_ending: Cell<bool>,
}

/// The changing state.
pub(super) struct State {
    /// The protocol.
    pub(super) session: Session<Rc<Stream>>,
    /// Frames that are ready to leave.
    pub(super) out: Vec<u8>,
    /// Streams that have bytes of a body, and a window for them.
    ready: Scheduler,
    /// Priorities of streams that are not opened yet.
    updates: VecDeque<(u32, Priority)>,
    /// Why nothing is sent any more.
    gone: Option<Errno>,
}

/// Bytes of frames that are gathered for one send: four records of TLS.
const BATCH_BYTES: usize = 64 << 10;

/// Bytes that are read ahead for all streams of a connection together, as far as each has its least.
const READ_AHEAD_ALL: usize = 512 << 10;

/// The least and the most that is read ahead for one stream: two such pieces are in memory, one that waits for the client and the
/// next one.
const READ_AHEAD: std::ops::RangeInclusive<usize> = 16 << 10..=128 << 10;

/// Priorities that are remembered for streams that do not exist yet (RFC 9218 section 7.1 leaves the number open).
const UPDATES_MAX: usize = 64;

/// Bytes in frames up to which a client is read further: acknowledgements gather where it does not read.
pub(super) const OUT_BYTES_MAX: usize = 512 << 10;

/// One request and its response.
pub(super) struct Stream {
    /// Its number.
    pub(super) id: u32,
    /// The body of its request.
    pub(super) inbox: RefCell<Inbox>,
    /// The body of its response.
    outbox: RefCell<Outbox>,
    /// How urgent its response is.
    priority: Cell<Priority>,
    /// The longest payload of its frames (`http2_chunk_size`).
    pub(super) chunk_bytes: Cell<usize>,
    /// Whether its client is gone, or has cancelled it.
    is_gone: Cell<bool>,
    /// The same for waiting tasks; made for the first one.
    gone: OnceCell<Event>,
}

/// A body on its way from the client.
#[derive(Default)]
pub(super) struct Inbox {
    /// Copies, so that the buffers of the engine are free at once.
    pieces: VecDeque<Source>,
    /// Bytes in it.
    pub(super) held: usize,
    /// How it ended, once it has.
    end: Option<Result<(), BodyAborted>>,
    /// The fields behind it, which come with its end.
    pub(super) trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// The task that waits for the next piece.
    taker: Option<Waker>,
    /// The part of the thread's limit that it takes, until it has come and was taken.
    pub(super) window: Option<Window>,
}

/// A body on its way to the client.
#[derive(Default)]
struct Outbox {
    /// Added pieces that are no frames yet.
    queue: VecDeque<Segments>,
    /// Bytes in it.
    queued: usize,
    /// Bytes that have become frames.
    moved: u64,
    /// That nothing follows, but for this block of trailers, which may be empty.
    end: Option<Vec<u8>>,
    /// Whether the scheduler has its stream.
    is_ready: bool,
    /// Whether its end became a frame.
    is_done: bool,
    /// The task that waits for room, or for the queue to become empty.
    giver: Option<Waker>,
}

impl Stream {
    /// A stream that was just opened.
    pub(super) fn new(id: u32, priority: Priority) -> Rc<Stream> {
        Rc::new(Stream {
            id,
            inbox: RefCell::default(),
            outbox: RefCell::default(),
            priority: Cell::new(priority),
            chunk_bytes: Cell::new(8 << 10),
            is_gone: Cell::new(false),
            gone: OnceCell::new(),
        })
    }

    /// Gives it a priority before it has anything to send.
    pub(super) fn set_priority(&self, priority: Priority) {
        self.priority.set(priority);
    }

    /// Waits until the client is gone, or has cancelled it.
    pub(super) async fn hung_up(self: Rc<Stream>) {
        if !self.is_gone.get() {
            self.gone.get_or_init(Event::new).wait().await;
        }
    }

    /// Its client is gone: waiting tasks continue with an error.
    fn abort(&self) {
        self.is_gone.set(true);
        self.inbox.borrow_mut().finish(Err(BodyAborted::Closed));
        let mut outbox = self.outbox.borrow_mut();
        outbox.giver.take().into_iter().for_each(Waker::wake);
        self.gone.get().into_iter().for_each(Event::set);
    }
}

/// The least room of a buffer that bytes of a body are gathered in.
const PIECE_MIN: usize = 4 << 10;

impl Inbox {
    /// Adds a copy of bytes.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        self.held += bytes.len();
        // Frames may be short: what fits goes behind the bytes before.
        if let Some(Source::Buf(last)) = self.pieces.back_mut() {
            bytes = &bytes[last.append(bytes)..];
        }
        while !bytes.is_empty() {
            let piece = match rt::pool().get(bytes.len().max(PIECE_MIN)) {
                Some(mut buf) => {
                    bytes = &bytes[buf.append(bytes)..];
                    Source::Buf(buf)
                }
                None => Source::Vec(std::mem::take(&mut bytes).to_vec()),
            };
            self.pieces.push_back(piece);
        }
        self.taker.take().into_iter().for_each(Waker::wake);
    }

    /// Nothing follows.
    pub(super) fn finish(&mut self, result: Result<(), BodyAborted>) {
        self.end.get_or_insert(result);
        self.close_window();
        self.taker.take().into_iter().for_each(Waker::wake);
    }

    /// A body that has ended and was taken needs no memory any more.
    fn close_window(&mut self) {
        if self.end.is_some() && self.pieces.is_empty() {
            self.window = None;
        }
    }

    /// Whether all of the body is here.
    pub(super) fn is_whole(&self) -> bool {
        self.end == Some(Ok(()))
    }

    /// Drops its content.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.held = 0;
    }

    /// The next piece; none at the end.
    pub(super) fn poll_piece(&mut self, context: &Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>> {
        if let Some(piece) = self.pieces.pop_front() {
            self.held -= piece.bytes().len();
            self.close_window();
            return Poll::Ready(Ok(Some(piece)));
        }
        match self.end {
            Some(end) => Poll::Ready(end.map(|()| None)),
            None => {
                self.taker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Outbox {
    /// Moves the first `len` bytes behind a frame's header.
    fn take(&mut self, mut len: usize, out: &mut Vec<u8>) {
        self.queued -= len;
        self.moved += len as u64;
        while len > 0
            && let Some(first) = self.queue.front_mut()
        {
            let mut taken = 0;
            for part in first.parts() {
                let bytes = part.bytes();
                let count = bytes.len().min(len - taken);
                out.extend_from_slice(&bytes[..count]);
                taken += count;
                if taken == len {
                    break;
                }
            }
            first.advance(taken);
            len -= taken;
            if first.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

impl Shared {
    /// A connection; its first frames are ready to leave.
    pub(super) fn new(
        thread: Rc<Thread>,
        handle: WireHandle,
        limits: Limits,
        keepalive_timeout: Duration,
    ) -> Rc<Shared> {
        let mut out = Vec::new();
        let session = Session::new(limits, &mut out);
        let (ready, updates) = (Scheduler::default(), VecDeque::new());
        Rc::new(Shared {
            thread,
            handle,
            state: RefCell::new(State { session, out, ready, updates, gone: None }),
            driver: Cell::new(None),
            keepalive_timeout: Cell::new(keepalive_timeout),
            is_ending: Cell::new(false),
        })
    }

    /// What changes, for the driver.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.state.borrow_mut())
    }

    /// The driver waits for something to do.
    pub(super) fn wait(&self, context: &Context<'_>) {
        self.driver.set(Some(context.waker().clone()));
    }

    /// There is something to send, or a stream has ended.
    pub(super) fn wake_driver(&self) {
        self.driver.take().into_iter().for_each(Waker::wake);
    }
}

/// What streams do.
impl Shared {
    /// Sends a head. Where it `ends`, nothing follows.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) fn send(&self, stream: &Stream, head: &[u8], ends: bool) -> Result<(), Errno> {
        let state = &mut *self.state.borrow_mut();
        state.check(stream)?;
        state.push_head(stream, head, ends);
        self.wake_driver();
        Ok(())
    }

    /// Sends a whole response, whose first `head_len` bytes are its head. How many bytes that takes, and whether nothing of the
    /// body is left.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) fn send_whole(
        &self,
        stream: &Stream,
        head_len: usize,
        mut data: Segments,
    ) -> Result<(usize, bool), Errno> {
        let state = &mut *self.state.borrow_mut();
        state.check(stream)?;
        let has_body = data.len() > head_len;
        let first = data.parts().next().and_then(|part| part.bytes().get(..head_len));
        let head_bytes = match first {
            Some(head) => state.push_head(stream, head, !has_body),
            None => {
                let head: Vec<u8> =
                    data.parts().flat_map(|part| part.bytes()).copied().take(head_len).collect();
                state.push_head(stream, &head, !has_body)
            }
        };
        if has_body {
            data.advance(head_len);
            state.add(stream, data, Some(Vec::new()));
            state.gather();
        }
        self.wake_driver();
        Ok((head_bytes, stream.outbox.borrow().is_done))
    }

    /// Adds to a body; with `end` nothing follows but a block of trailers.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) fn add(&self, stream: &Stream, data: Segments, end: Option<Vec<u8>>) -> Result<(), Errno> {
        let state = &mut *self.state.borrow_mut();
        state.check(stream)?;
        state.add(stream, data, end);
        state.gather();
        self.wake_driver();
        Ok(())
    }

    /// Ready when all that was added has become frames, and the end of it too.
    pub(super) fn poll_taken(&self, stream: &Stream, context: &Context<'_>) -> Poll<Result<(), Errno>> {
        let state = &*self.state.borrow();
        let mut outbox = stream.outbox.borrow_mut();
        if outbox.is_done || outbox.queued == 0 && outbox.end.is_none() && !stream.is_gone.get() {
            return Poll::Ready(Ok(()));
        }
        if let Err(errno) = state.check(stream) {
            return Poll::Ready(Err(errno));
        }
        outbox.giver = Some(context.waker().clone());
        Poll::Pending
    }

    /// Bytes of a body that may be read for a stream, as its window has them. The window of the connection is not asked: which
    /// stream gets how much of it is settled when frames are made, by priority.
    pub(super) fn poll_room(&self, stream: &Stream, context: &Context<'_>) -> Poll<Result<u64, Errno>> {
        let state = &*self.state.borrow();
        if let Err(errno) = state.check(stream) {
            return Poll::Ready(Err(errno));
        }
        let mut outbox = stream.outbox.borrow_mut();
        let most = state.read_ahead();
        match state.session.window(stream.id).min(most).saturating_sub(outbox.queued) {
            0 => {
                outbox.giver = Some(context.waker().clone());
                Poll::Pending
            }
            room => Poll::Ready(Ok(room as u64)),
        }
    }

    /// Bytes that one read should bring for a stream.
    pub(super) fn read_ahead(&self) -> u64 {
        self.state.borrow().read_ahead() as u64
    }

    /// A number that grows as the client takes bytes of this stream.
    pub(super) fn progress(stream: &Stream) -> u64 {
        stream.outbox.borrow().moved
    }

    /// The bytes that may be sent at once.
    pub(super) fn room(&self, stream: &Stream) -> u64 {
        let window = self.state.borrow().session.sendable(stream.id) as u64;
        window.min(self.handle.room())
    }

    /// Sends a head ahead of the response (RFC 9113 section 8.1).
    pub(super) fn send_interim(&self, stream: &Stream, block: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        if state.check(stream).is_ok() {
            state.session.push_head(stream.id, block, false, &mut state.out);
            self.wake_driver();
        }
    }

    /// Bytes of a body were taken.
    pub(super) fn take(&self, stream: &Stream, bytes: usize) {
        let state = &mut *self.state.borrow_mut();
        let before = state.out.len();
        state.session.take(stream.id, u32::try_from(bytes).unwrap_or(u32::MAX), &mut state.out);
        if state.out.len() > before {
            self.wake_driver();
        }
    }

    /// A body is taken as fast as it comes: its window may be so large, if the thread's limit allows it.
    pub(super) fn widen(&self, stream: &Stream, window: u32) {
        let inbox = stream.inbox.borrow();
        // Without a window all of the body has come.
        if !inbox.window.as_ref().is_some_and(|held| held.widen(u64::from(window))) {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        let before = state.out.len();
        state.session.widen(stream.id, window, &mut state.out);
        if state.out.len() > before {
            self.wake_driver();
        }
    }

    /// Removes the pieces that are no frames yet.
    pub(super) fn give_up(&self, stream: &Stream) {
        self.state.borrow_mut().give_up(stream);
    }

    /// The work of a stream has ended; with `reset` it is one that broke the rules.
    pub(super) fn release(&self, stream: &Stream, reset: Option<ErrorCode>) {
        let state = &mut *self.state.borrow_mut();
        state.give_up(stream);
        if let Some(code) = reset {
            state.session.reset(stream.id, code, &mut state.out);
        }
        let before = state.out.len();
        state.session.release(stream.id, &mut state.out);
        // It has no reader.
        if state.gone.is_some() {
            state.out.truncate(before);
        }
        self.wake_driver();
    }
}

/// How the reset of an upstream's stream reaches the client.
impl Shared {
    /// Resets a stream as its upstream has: clients of gRPC make a status of the code. Other codes are about the connection to the upstream,
    /// and REFUSED_STREAM would have the client repeat a request whose response has begun.
    pub(super) fn pass_reset(&self, stream: &Stream, code: u32) {
        let passed = [ErrorCode::Cancel, ErrorCode::EnhanceYourCalm, ErrorCode::InadequateSecurity];
        if let Some(code) = passed.into_iter().find(|passed| *passed as u32 == code) {
            self.with(|state| state.session.reset(stream.id, code, &mut state.out));
            self.wake_driver();
        }
    }
}

impl State {
    /// Whether something can be sent on a stream.
    fn check(&self, stream: &Stream) -> Result<(), Errno> {
        match self.gone {
            Some(errno) => Err(errno),
            None if stream.is_gone.get() || !self.session.sends(stream.id) => Err(Errno::CONNRESET),
            None => Ok(()),
        }
    }

    /// See [`Shared::read_ahead`].
    fn read_ahead(&self) -> usize {
        let share = READ_AHEAD_ALL / self.session.open_streams().max(1);
        share.clamp(*READ_AHEAD.start(), *READ_AHEAD.end())
    }

    /// Appends a head. The table of the connection changes with each: they are compressed in the order of sending.
    fn push_head(&mut self, stream: &Stream, head: &[u8], ends: bool) -> usize {
        let head_bytes = self.session.push_head(stream.id, head, ends, &mut self.out);
        stream.outbox.borrow_mut().is_done |= ends;
        head_bytes
    }

    /// Puts bytes into an outbox.
    fn add(&mut self, stream: &Stream, data: Segments, end: Option<Vec<u8>>) {
        let mut outbox = stream.outbox.borrow_mut();
        outbox.queued += data.len();
        if !data.is_empty() {
            outbox.queue.push_back(data);
        }
        if outbox.queued > 0 || end.is_none() {
            outbox.end = end;
            drop(outbox);
            return self.make_ready(stream);
        }
        // The end alone takes no window.
        let trailers = end.unwrap_or_default();
        if trailers.is_empty() {
            self.session.push_data(stream.id, 0, true, &mut self.out);
        } else {
            self.session.push_head(stream.id, &trailers, true, &mut self.out);
        }
        outbox.is_done = true;
    }

    /// Lets a stream take part, if it has sendable bytes.
    fn make_ready(&mut self, stream: &Stream) {
        let mut outbox = stream.outbox.borrow_mut();
        if outbox.queued > 0 && self.session.window(stream.id) > 0 && !outbox.is_ready {
            outbox.is_ready = true;
            self.ready.add(stream.id, stream.priority.get());
        }
    }

    /// Removes the pieces that are no frames yet.
    fn give_up(&mut self, stream: &Stream) {
        self.unready(stream);
        let mut outbox = stream.outbox.borrow_mut();
        outbox.queue.clear();
        outbox.queued = 0;
    }

    /// Takes a stream out of the order of sending.
    fn unready(&mut self, stream: &Stream) {
        if std::mem::replace(&mut stream.outbox.borrow_mut().is_ready, false) {
            self.ready.remove(stream.id, stream.priority.get());
        }
    }

    /// Makes frames of ready pieces, the most urgent first, as many as leave by one send.
    pub(super) fn gather(&mut self) {
        // Frames without a window are not among them: a stream that is ready has bytes.
        while self.out.len() < BATCH_BYTES
            && !self.session.is_closed_for_all()
            && let Some(id) = self.ready.pick()
        {
            let Some(stream) = self.session.get(id).map(Rc::clone) else { return };
            let mut outbox = stream.outbox.borrow_mut();
            // The client may allow longer frames, but others wait for the end of each.
            let longest = stream.chunk_bytes.get().min(self.session.payload_max());
            let len = outbox.queued.min(self.session.sendable(id)).min(longest);
            let is_last = len == outbox.queued;
            let is_stalled = len == self.session.window(id);
            let end = if is_last { outbox.end.take() } else { None };
            let ends_here = end.as_ref().is_some_and(|trailers| trailers.is_empty());
            self.session.push_data(id, len, ends_here, &mut self.out);
            outbox.take(len, &mut self.out);
            if let Some(trailers) = end {
                if !ends_here {
                    self.session.push_head(id, &trailers, true, &mut self.out);
                }
                outbox.is_done = true;
            }
            // It is back when more is added, or when its window opens.
            if is_last || is_stalled {
                outbox.is_ready = false;
                self.ready.remove(id, stream.priority.get());
            }
            if is_last {
                outbox.giver.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// More may be sent on a stream, or on all of them.
    pub(super) fn open_window(&mut self, id: u32) {
        let streams: Vec<Rc<Stream>> = match id {
            0 => self.session.each().map(|(_, stream)| Rc::clone(stream)).collect(),
            id => self.session.get(id).map(Rc::clone).into_iter().collect(),
        };
        for stream in streams {
            self.make_ready(&stream);
            if self.session.window(stream.id) > 0 {
                stream.outbox.borrow_mut().giver.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// A stream has ended early.
    pub(super) fn abort(&mut self, id: u32) {
        if let Some(stream) = self.session.get(id).map(Rc::clone) {
            self.give_up(&stream);
            stream.abort();
        }
    }

    /// The connection is gone, for this reason.
    pub(super) fn abort_all(&mut self, errno: Errno) {
        self.gone.get_or_insert(errno);
        let streams: Vec<u32> = self.session.each().map(|(id, _)| id).collect();
        streams.into_iter().for_each(|id| self.abort(id));
        self.out = Vec::new();
    }

    /// Changes the priority of a stream, or keeps it for when that is opened.
    pub(super) fn set_priority(&mut self, id: u32, priority: Priority) {
        let Some(stream) = self.session.get(id).map(Rc::clone) else {
            self.updates.retain(|(other, _)| *other != id);
            if self.updates.len() == UPDATES_MAX {
                self.updates.pop_front();
            }
            return self.updates.push_back((id, priority));
        };
        self.unready(&stream);
        stream.priority.set(priority);
        self.make_ready(&stream);
    }

    /// The priority that a stream was given before it was opened.
    pub(super) fn take_update(&mut self, id: u32) -> Option<Priority> {
        let place = self.updates.iter().position(|(other, _)| *other == id)?;
        self.updates.remove(place).map(|(_, priority)| priority)
    }
}

/// Bytes that were received and not yet used.
#[derive(Default)]
pub(super) struct Input {
    /// A buffer of the engine, or separate memory for a frame that came in pieces.
    held: Option<Source>,
    /// Where the unused ones start.
    start: usize,
}

impl Input {
    /// The unused bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.held.as_ref().map(|held| &held.bytes()[self.start..]).unwrap_or_default()
    }

    /// Takes bytes off the front.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.bytes().is_empty() {
            *self = Input::default();
        }
    }

    /// Puts bytes behind the unused ones.
    pub(super) fn add(&mut self, received: Buf) {
        if self.bytes().is_empty() {
            *self = Input { held: Some(Source::Buf(received)), start: 0 };
            return;
        }
        self.keep();
        if let Some(Source::Vec(held)) = &mut self.held {
            held.extend_from_slice(&received);
        }
    }

    /// Copies the unused bytes to memory of their size, so that others have the buffer.
    pub(super) fn keep(&mut self) {
        let is_own = matches!(self.held, Some(Source::Vec(_))) && self.start == 0;
        if !is_own && self.held.is_some() {
            *self = Input::of(self.bytes().to_vec());
        }
    }

    /// Bytes that were received before.
    pub(super) fn of(bytes: Vec<u8>) -> Input {
        Input { held: (!bytes.is_empty()).then_some(Source::Vec(bytes)), start: 0 }
    }
}
