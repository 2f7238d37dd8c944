//! State common to the task of a connection and the tasks of its streams: the session, frames ready to be sent, and bodies in both
//! directions.
//!
//! ```text
//!   receive:   driver --bytes of DATA--> Inbox --pieces--> transport of the stream --taken--> WINDOW_UPDATE
//!   send:      transport, outlet --head--> frames <--DATA, by priority-- Outbox <--pieces-- outlet
//!                                            `--> driver: one send for all of them
//! ```
//! Main types: [`Shared`], [`Stream`]. The driver is the task of the connection. Every change of the ready frames wakes it.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::h2::{ErrorCode, Limits, Priority, STREAM_WINDOW_MAX, Scheduler, Session};
use io::segments::Source;
use io::{Buf, Errno, Segments};
use rt::local::Event;

use crate::streams::inbox::Inbox;
use crate::streams::{SlotWaits, WINDOW_MIN};
use crate::wire::WireHandle;
use exchange::capacity::{Share, Waits};
use exchange::thread::Thread;
use telemetry::tally::Http2Limit;
use tls::session::RECORD_OVERHEAD;
use tls::stream::SEND_BYTES;
use transfer::incoming::BodyAborted;

/// One connection.
pub(super) struct Shared {
    /// The thread on which the connection runs.
    pub(super) thread: Rc<Thread>,
    /// The interface to the socket.
    pub(super) handle: WireHandle,
    /// Borrowed for single steps, never while a request runs.
    state: RefCell<ConnectionState>,
    /// Waker of the connection's task, while it waits.
    driver: Cell<Option<Waker>>,
    /// Whether the connection must end after its requests.
    pub(super) is_ending: Cell<bool>,
    /// The memory for request bodies that are not consumed yet.
    pub(super) share: Rc<Share>,
}

/// The mutable state.
pub(super) struct ConnectionState {
    /// The protocol.
    pub(super) session: Session<Rc<Stream>>,
    /// Frames ready to be sent.
    pub(super) out: Vec<u8>,
    /// Streams that have body bytes to send and an open window.
    ready: Scheduler,
    /// Number of body bytes of all streams that were put into frames.
    framed: u64,
    /// The error after which nothing is sent.
    closed: Option<Errno>,
}

/// Maximum number of bytes of frames in one send, which header sections may exceed. The frames, a few header sections and the
/// overhead of four TLS records fit into the 64 KiB that are encrypted at once. A second send for the last bytes would cost nearly
/// as much as a full one.
const BATCH_BYTES: usize = 63 << 10;

// A KeyUpdate message has about the size of the overhead of a record.
const _: () = assert!(BATCH_BYTES + 6 * RECORD_OVERHEAD < SEND_BYTES);

/// Maximum capacity in bytes of the memory for frames that a thread retains.
const FRAME_MEMORY_MAX: usize = 256 << 10;

/// Minimum space in bytes for a DATA frame in a send: bodies are not divided into tiny frames to fill a send.
const SPACE_MIN: usize = 1 << 10;

/// Maximum number of bytes read ahead for all streams of a connection together, unless the minimum per stream exceeds it.
const READ_AHEAD_ALL: usize = 512 << 10;

/// Minimum and maximum number of bytes read ahead for one stream. The frames of the maximum fill two sends: a short third send would
/// cost nearly as much, and most of its space would go to less urgent streams.
const READ_AHEAD: std::ops::RangeInclusive<usize> = 16 << 10..=124 << 10;

/// Number of body bytes that a client may send on all streams of a connection, without a share of the thread's memory for bodies:
/// the windows of two streams, so that one whose bytes are not consumed does not stop the other.
pub(super) const CONNECTION_WINDOW: u32 = 2 * WINDOW_MIN;

/// Number of bytes of unsent frames from which on no more input of the client is read: otherwise acknowledgements would accumulate
/// for a client that does not read them.
pub(super) const OUT_BYTES_MAX: usize = 512 << 10;

/// One request and its response.
pub(super) struct Stream {
    /// Number of the stream.
    pub(super) id: u32,
    /// The body of its request.
    pub(super) inbox: RefCell<Inbox>,
    /// The body of its response.
    outbox: RefCell<Outbox>,
    /// Priority of the response.
    priority: Cell<Priority>,
    /// Maximum payload of its frames in bytes (`http2_chunk_size`).
    pub(super) chunk_bytes: Cell<usize>,
    /// Whether its request waits for a slot for its upstream.
    pub(super) slot_waits: SlotWaits,
    /// Whether the client has disconnected or cancelled the stream.
    is_closed: Cell<bool>,
    /// Notifies waiting tasks of `is_closed`; created when the first task waits.
    closed: OnceCell<Event>,
}

/// A body to be sent to the client.
#[derive(Default)]
struct Outbox {
    /// Added pieces that are not in frames yet.
    queue: VecDeque<Segments>,
    /// Number of bytes in the queue.
    queued: usize,
    /// Number of bytes moved to frames.
    moved: u64,
    /// Whether the response has begun.
    has_begun: bool,
    /// Set once the body has ended: the block of trailers, possibly empty.
    end: Option<Vec<u8>>,
    /// Whether the scheduler contains the stream.
    is_ready: bool,
    /// Whether the end was put into a frame.
    is_done: bool,
    /// Waker of the task that waits for room, or for the queue to become empty.
    writer_waker: Option<Waker>,
}

impl Stream {
    /// Creates a stream that was just opened.
    pub(super) fn new(id: u32, priority: Priority, share: Option<&Rc<Share>>) -> Rc<Stream> {
        Rc::new(Stream {
            id,
            inbox: RefCell::new(Inbox::new(share)),
            outbox: RefCell::default(),
            priority: Cell::new(priority),
            chunk_bytes: Cell::new(8 << 10),
            slot_waits: SlotWaits::default(),
            is_closed: Cell::new(false),
            closed: OnceCell::new(),
        })
    }

    /// Sets the priority before the stream has anything to send.
    pub(super) fn set_priority(&self, priority: Priority) {
        self.priority.set(priority);
    }

    /// Whether the client has disconnected or cancelled the stream.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Waits until the client has disconnected or cancelled the stream.
    pub(super) async fn hung_up(self: Rc<Stream>) {
        if !self.is_closed.get() {
            self.closed.get_or_init(Event::new).wait().await;
        }
    }

    /// Notes that the client has disconnected: waiting tasks continue with an error.
    fn abort(&self, reason: BodyAborted) {
        self.is_closed.set(true);
        self.inbox.borrow_mut().finish(Err(reason));
        let mut outbox = self.outbox.borrow_mut();
        outbox.writer_waker.take().into_iter().for_each(Waker::wake);
        self.closed.get().into_iter().for_each(Event::set);
    }
}

impl Outbox {
    /// Moves the first `len` bytes to `out`, after the header of their frame.
    fn take(&mut self, mut len: usize, out: &mut Vec<u8>) {
        debug_assert!(len <= self.queued, "a frame has only queued bytes");
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
            debug_assert!(taken <= len, "a piece gives at most the bytes of the frame");
            first.advance(taken);
            len -= taken;
            if first.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

impl Shared {
    /// Creates a connection; its first frames are ready to be sent.
    pub(super) fn new(thread: Rc<Thread>, handle: WireHandle, limits: Limits, driver: Waker) -> Rc<Shared> {
        let mut out = Vec::new();
        let mut session = Session::new(limits, &mut out);
        session.open_by_caller();
        let share = thread.capacity.windows.of_client(limits.connection_window.into(), driver);
        Rc::new(Shared {
            share,
            thread,
            handle,
            state: RefCell::new(ConnectionState {
                session,
                out,
                ready: Scheduler::default(),
                framed: 0,
                closed: None,
            }),
            driver: Cell::new(None),
            is_ending: Cell::new(false),
        })
    }

    /// Changes the state, for the driver.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut ConnectionState) -> R) -> R {
        change(&mut self.state.borrow_mut())
    }

    /// Borrows the state, with memory for frames.
    fn framing(&self) -> RefMut<'_, ConnectionState> {
        let mut state = self.state.borrow_mut();
        if state.closed.is_none() && state.out.capacity() == 0 {
            state.out = self.thread.frames.take();
        }
        state
    }

    /// Takes the ready frames of one send; `None` if there are none.
    pub(super) fn take_frames(&self) -> Option<Vec<u8>> {
        let mut state = self.framing();
        state.gather();
        let frames = std::mem::take(&mut state.out);
        if frames.is_empty() {
            self.recycle_frames(frames);
            return None;
        }
        Some(frames)
    }

    /// Retains the memory of frames for the next send of any connection.
    pub(super) fn recycle_frames(&self, mut frames: Vec<u8>) {
        frames.clear();
        let held = self.thread.frames.take();
        let is_better = (held.capacity()..=FRAME_MEMORY_MAX).contains(&frames.capacity());
        self.thread.frames.set(if is_better { frames } else { held });
    }

    /// Registers the driver, which waits for events.
    pub(super) fn wait(&self, context: &Context<'_>) {
        self.driver.set(Some(context.waker().clone()));
    }

    /// Wakes the driver: frames are ready, or a stream has ended.
    pub(super) fn wake_driver(&self) {
        self.driver.take().into_iter().for_each(Waker::wake);
    }
}

/// Operations of streams.
impl Shared {
    /// Sends the header section of a response. `ends` means that no body follows.
    ///
    /// # Errors
    /// The client has disconnected.
    pub(super) fn send(&self, stream: &Stream, head: &[u8], ends: bool) -> Result<(), Errno> {
        let state = &mut *self.framing();
        state.check(stream)?;
        state.push_head(stream, head, ends);
        self.wake_driver();
        Ok(())
    }

    /// Sends a complete response, whose first `head_len` bytes are its header section. Returns the length of the frames of the
    /// header section, and whether the complete body was put into frames.
    ///
    /// # Errors
    /// The client has disconnected.
    pub(super) fn send_complete(
        &self,
        stream: &Stream,
        head_len: usize,
        mut data: Segments,
    ) -> Result<(usize, bool), Errno> {
        let state = &mut *self.framing();
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
            debug_assert!(head_len <= data.len(), "the header section is part of the response");
            data.advance(head_len);
            if !state.push_short_body(stream, &data) {
                state.add(stream, data, Some(Vec::new()));
                state.gather();
            }
        }
        self.wake_driver();
        Ok((head_bytes, stream.outbox.borrow().is_done))
    }

    /// Adds bytes to a body; `end` ends it with a block of trailers.
    ///
    /// # Errors
    /// The client has disconnected.
    pub(super) fn add(&self, stream: &Stream, data: Segments, end: Option<Vec<u8>>) -> Result<(), Errno> {
        let state = &mut *self.framing();
        state.check(stream)?;
        state.add(stream, data, end);
        state.gather();
        self.wake_driver();
        Ok(())
    }

    /// Becomes ready when all added bytes were put into frames, and the end too if it was added.
    pub(super) fn poll_framed(&self, stream: &Stream, context: &Context<'_>) -> Poll<Result<(), Errno>> {
        let state = &*self.state.borrow();
        let mut outbox = stream.outbox.borrow_mut();
        if outbox.is_done || outbox.queued == 0 && outbox.end.is_none() && !stream.is_closed.get() {
            return Poll::Ready(Ok(()));
        }
        if let Err(errno) = state.check(stream) {
            return Poll::Ready(Err(errno));
        }
        outbox.writer_waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns the number of body bytes that may be read for a stream, by its window. The window of the connection does not matter
    /// here: it is distributed by priority when frames are created.
    pub(super) fn poll_space(&self, stream: &Stream, context: &Context<'_>) -> Poll<Result<u64, Errno>> {
        let state = &*self.state.borrow();
        if let Err(errno) = state.check(stream) {
            return Poll::Ready(Err(errno));
        }
        let mut outbox = stream.outbox.borrow_mut();
        let most = state.read_ahead();
        match state.session.window(stream.id).min(most).saturating_sub(outbox.queued) {
            0 => {
                outbox.writer_waker = Some(context.waker().clone());
                Poll::Pending
            }
            room => Poll::Ready(Ok(room as u64)),
        }
    }

    /// Becomes ready when the stream can no longer send.
    pub(super) fn poll_closed(&self, stream: &Stream, context: &Context<'_>) -> Poll<Errno> {
        match self.state.borrow().check(stream) {
            Err(errno) => Poll::Ready(errno),
            Ok(()) => {
                stream.outbox.borrow_mut().writer_waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Returns the number of bytes that one read should return for a stream.
    pub(super) fn read_ahead(&self) -> u64 {
        self.state.borrow().read_ahead() as u64
    }

    /// Returns a number that increases as the client accepts bytes. The bytes of all streams count, because other responses may be sent
    /// first. While the window of this stream is closed, only its own bytes count.
    pub(super) fn progress(&self, stream: &Stream) -> u64 {
        let state = self.state.borrow();
        let others = if state.session.window(stream.id) > 0 { state.framed } else { 0 };
        others + stream.outbox.borrow().moved
    }

    /// Returns the progress at the start of a wait for the client's window of the stream. Otherwise the wait may be for the socket,
    /// whose progress is noticed late.
    pub(super) fn first_progress(&self, stream: &Stream) -> Option<u64> {
        let is_closed = self.state.borrow().session.window(stream.id) == 0;
        is_closed.then(|| self.progress(stream))
    }

    /// Returns the number of body bytes of a stream that were put into frames.
    pub(super) fn moved(&self, stream: &Stream) -> u64 {
        stream.outbox.borrow().moved
    }

    /// Returns the number of bytes that can be sent immediately.
    pub(super) fn send_space(&self, stream: &Stream) -> u64 {
        let window = self.state.borrow().session.sendable(stream.id) as u64;
        window.min(self.handle.send_space())
    }

    /// Sends the header section of an interim response (RFC 9113 section 8.1).
    pub(super) fn send_interim(&self, stream: &Stream, block: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        if state.check(stream).is_ok() {
            state.session.push_interim(stream.id, block, &mut state.out);
            self.wake_driver();
        }
    }

    /// Notes that bytes of a body were consumed, so that the client may send more.
    pub(super) fn take(&self, stream: &Stream, bytes: usize) {
        let state = &mut *self.state.borrow_mut();
        let before = state.out.len();
        state.session.take(stream.id, u32::try_from(bytes).unwrap_or(u32::MAX), &mut state.out);
        self.open_connection(state);
        if state.out.len() > before {
            self.wake_driver();
        }
    }

    /// Enlarges the window of a body that is being read.
    pub(super) fn widen(&self, stream: &Stream, window: u32) {
        if !stream.inbox.borrow().is_open() {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        let before = state.out.len();
        state.session.widen(stream.id, window, &mut state.out);
        self.open_connection(state);
        if state.out.len() > before {
            self.wake_driver();
        }
    }

    /// Doubles the windows of the bodies that they have limited during a round trip.
    pub(super) fn grow(&self) {
        let state = &mut *self.state.borrow_mut();
        for (id, window) in state.session.limited() {
            state.session.widen(id, (2 * window).min(STREAM_WINDOW_MAX), &mut state.out);
        }
        self.open_connection(state);
    }

    /// Opens the window of the connection as far as its share of the thread's memory permits. The windows of its streams do not
    /// count: only bytes that the window of the connection admits can arrive.
    pub(super) fn open_connection(&self, state: &mut ConnectionState) {
        let (share, open) = (&self.share, state.session.connection_window());
        let wanted = state.session.wanted_window().max(CONNECTION_WINDOW.into());
        if open > wanted / 2 && share.reserved() == 0 {
            return;
        }
        let was_stopped = share.is_stopped();
        let permitted = share.permit(wanted, open);
        if share.is_stopped() && !was_stopped {
            self.thread.tally.count_http2_limit(Http2Limit::Bodies);
        }
        state.session.open_connection(u32::try_from(permitted).unwrap_or(u32::MAX), &mut state.out);
    }

    /// Removes the pieces that are not in frames yet.
    pub(super) fn discard(&self, stream: &Stream) {
        self.state.borrow_mut().discard(stream);
    }

    /// Ends a stream whose work is done; `reset` is the error code if the request violated the protocol.
    pub(super) fn release(&self, stream: &Stream, reset: Option<ErrorCode>) {
        let state = &mut *self.state.borrow_mut();
        state.discard(stream);
        if let Some(code) = reset {
            state.session.reset(stream.id, code, &mut state.out);
        }
        let before = state.out.len();
        state.session.release(stream.id, &mut state.out);
        stream.inbox.borrow_mut().clear();
        self.open_connection(state);
        // The connection is broken, so no client would receive these frames.
        if state.closed.is_some() {
            state.out.truncate(before);
        }
        self.wake_driver();
    }
}

/// Passing the reset of an upstream's stream to the client.
impl Shared {
    /// Resets a stream with the code of its upstream: gRPC clients convert the code to a status. Other codes refer to the connection to the
    /// upstream, and REFUSED_STREAM would make the client repeat a request whose response has begun.
    pub(super) fn pass_reset(&self, stream: &Stream, code: u32) {
        let passed = [ErrorCode::Cancel, ErrorCode::EnhanceYourCalm, ErrorCode::InadequateSecurity];
        if let Some(code) = passed.into_iter().find(|passed| *passed as u32 == code) {
            self.reset(stream, code);
        }
    }

    /// Resets a stream, unless it has ended.
    pub(super) fn reset(&self, stream: &Stream, code: ErrorCode) {
        self.with(|state| state.session.reset(stream.id, code, &mut state.out));
        self.wake_driver();
    }
}

impl ConnectionState {
    /// Checks whether the stream can send.
    fn check(&self, stream: &Stream) -> Result<(), Errno> {
        match self.closed {
            Some(errno) => Err(errno),
            None if stream.is_closed.get() || !self.session.sends(stream.id) => Err(Errno::CONNRESET),
            None => Ok(()),
        }
    }

    /// See [`Shared::read_ahead`].
    fn read_ahead(&self) -> usize {
        let share = READ_AHEAD_ALL / self.session.open_streams().max(1);
        share.clamp(*READ_AHEAD.start(), *READ_AHEAD.end())
    }

    /// Appends a header section. They are compressed in the order of sending, because each changes the connection's dynamic table.
    fn push_head(&mut self, stream: &Stream, head: &[u8], ends: bool) -> usize {
        let head_bytes = self.session.push_head(stream.id, head, ends, &mut self.out);
        let mut outbox = stream.outbox.borrow_mut();
        outbox.has_begun = true;
        outbox.is_done |= ends;
        head_bytes
    }

    /// Creates the only frame of a short body, without the outbox and the scheduler. Returns `false` if other streams have bytes to
    /// send, or the frame does not fit into a window or into this send.
    fn push_short_body(&mut self, stream: &Stream, data: &Segments) -> bool {
        let len = data.len();
        let is_possible =
            self.ready.is_empty() && len <= self.longest_frame(stream).min(self.session.sendable(stream.id));
        if is_possible {
            self.session.push_data(stream.id, len, true, &mut self.out);
            data.parts().for_each(|part| self.out.extend_from_slice(part.bytes()));
            self.framed += len as u64;
            stream.outbox.borrow_mut().is_done = true;
        }
        is_possible
    }

    /// Adds bytes to an outbox.
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
        // An end without data needs no window.
        let trailers = end.unwrap_or_default();
        if trailers.is_empty() {
            self.session.push_data(stream.id, 0, true, &mut self.out);
        } else {
            self.session.push_head(stream.id, &trailers, true, &mut self.out);
        }
        outbox.is_done = true;
    }

    /// Adds a stream to the scheduler, if it has bytes that can be sent.
    fn make_ready(&mut self, stream: &Stream) {
        let mut outbox = stream.outbox.borrow_mut();
        if outbox.queued > 0 && self.session.window(stream.id) > 0 && !outbox.is_ready {
            outbox.is_ready = true;
            self.ready.add(stream.id, stream.priority.get());
        }
    }

    /// Removes the pieces that are not in frames yet.
    fn discard(&mut self, stream: &Stream) {
        self.unready(stream);
        let mut outbox = stream.outbox.borrow_mut();
        outbox.queue.clear();
        outbox.queued = 0;
    }

    /// Removes a stream from the scheduler.
    fn unready(&mut self, stream: &Stream) {
        if std::mem::replace(&mut stream.outbox.borrow_mut().is_ready, false) {
            self.ready.remove(stream.id, stream.priority.get());
        }
    }

    /// Returns the number of bytes that still fit into the ready frames of one send.
    fn space(&self) -> usize {
        BATCH_BYTES.saturating_sub(self.out.len())
    }

    /// Whether the ready frames fill a send.
    pub(super) fn is_full(&self) -> bool {
        self.space() < SPACE_MIN
    }

    /// Returns the maximum payload in bytes of the next DATA frame of a stream. The client may permit longer frames, but other streams
    /// wait for the end of each.
    fn longest_frame(&self, stream: &Stream) -> usize {
        stream.chunk_bytes.get().min(self.session.payload_max()).min(self.space())
    }

    /// Creates frames from ready pieces, the most urgent first, up to the size of one send.
    pub(super) fn gather(&mut self) {
        // Only streams with data are in the scheduler; frames that need no window are queued directly.
        while !self.is_full()
            && !self.session.is_closed_for_all()
            && let Some(id) = self.ready.pick()
        {
            let Some(stream) = self.session.get(id).map(Rc::clone) else { return };
            let mut outbox = stream.outbox.borrow_mut();
            let longest = self.longest_frame(&stream);
            let len = outbox.queued.min(self.session.sendable(id)).min(longest);
            let is_last = len == outbox.queued;
            let is_stalled = len == self.session.window(id);
            let end = if is_last { outbox.end.take() } else { None };
            let ends_here = end.as_ref().is_some_and(|trailers| trailers.is_empty());
            self.session.push_data(id, len, ends_here, &mut self.out);
            outbox.take(len, &mut self.out);
            self.framed += len as u64;
            if let Some(trailers) = end {
                if !ends_here {
                    self.session.push_head(id, &trailers, true, &mut self.out);
                }
                outbox.is_done = true;
            }
            // The stream returns to the scheduler when more bytes are added or its window opens.
            if is_last || is_stalled {
                outbox.is_ready = false;
                self.ready.remove(id, stream.priority.get());
            }
            if is_last {
                outbox.writer_waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Handles an opened window of a stream, or of the connection (`id` 0).
    pub(super) fn open_window(&mut self, id: u32) {
        let streams: Vec<Rc<Stream>> = match id {
            0 => self.session.each().map(|(_, stream)| Rc::clone(stream)).collect(),
            id => self.session.get(id).map(Rc::clone).into_iter().collect(),
        };
        for stream in streams {
            self.make_ready(&stream);
            if self.session.window(stream.id) > 0 {
                stream.outbox.borrow_mut().writer_waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Handles the early end of a stream; `by_client` means that the client has ended it.
    pub(super) fn abort(&mut self, id: u32, by_client: bool) {
        if let Some(stream) = self.session.get(id).map(Rc::clone) {
            self.discard(&stream);
            stream.abort(if by_client { BodyAborted::StreamClosed } else { BodyAborted::Closed });
        }
    }

    /// Returns what the client keeps all open requests waiting for; `None` if a request does not wait for the client, or bytes are to
    /// be sent. Requests that wait for a slot for their upstream do not count: the connection may have to be closed for this slot.
    pub(super) fn awaited(&self) -> Option<Waits> {
        if !self.out.is_empty() {
            return None;
        }
        let mut awaited = None;
        for (_, stream) in self.session.each() {
            let outbox = stream.outbox.borrow();
            awaited = match outbox.has_begun {
                false if stream.slot_waits.any() => awaited,
                false if stream.inbox.borrow().is_awaited() => awaited.or(Some(Waits::Body)),
                true if outbox.writer_waker.is_some() && self.session.sendable(stream.id) == 0 => {
                    Some(Waits::Reads)
                }
                _ => return None,
            };
        }
        awaited
    }

    /// Returns the number of body bytes that were put into frames.
    pub(super) fn framed(&self) -> u64 {
        self.framed
    }

    /// Handles the end of the connection, for this reason.
    pub(super) fn abort_all(&mut self, errno: Errno) {
        self.closed.get_or_insert(errno);
        let streams: Vec<u32> = self.session.each().map(|(id, _)| id).collect();
        streams.into_iter().for_each(|id| self.abort(id, true));
        self.out = Vec::new();
    }

    /// Changes the priority of a stream.
    pub(super) fn set_priority(&mut self, id: u32, priority: Priority) {
        let Some(stream) = self.session.get(id).map(Rc::clone) else { return };
        self.unready(&stream);
        stream.priority.set(priority);
        self.make_ready(&stream);
    }
}

/// Bytes that were received and not yet used.
#[derive(Default)]
pub(super) struct Input {
    /// A buffer of the engine, or separate memory for a frame that arrived in pieces.
    held: Option<Source>,
    /// Offset of the first unused byte.
    start: usize,
}

impl Input {
    /// Returns the unused bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.held.as_ref().map(|held| &held.bytes()[self.start..]).unwrap_or_default()
    }

    /// Removes bytes from the front.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.bytes().is_empty() {
            *self = Input::default();
        }
    }

    /// Appends bytes to the unused bytes.
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

    /// Copies the unused bytes to memory of their exact size, to release the buffer.
    pub(super) fn keep(&mut self) {
        let is_own = matches!(self.held, Some(Source::Vec(_))) && self.start == 0;
        if !is_own && self.held.is_some() {
            *self = Input::of(self.bytes().to_vec());
        }
    }

    /// Creates the input from bytes that were received before.
    pub(super) fn of(bytes: Vec<u8>) -> Input {
        Input { held: (!bytes.is_empty()).then_some(Source::Vec(bytes)), start: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bodies that wait fill a send, and leave room for the overhead of encryption.
    #[test]
    fn the_frames_of_one_send_are_encrypted_at_once() {
        let mut out = Vec::new();
        let session = Session::new(Limits::default(), &mut out);
        let mut state =
            ConnectionState { session, out, ready: Scheduler::default(), framed: 0, closed: None };
        for id in [1, 3, 5] {
            let stream = Stream::new(id, Priority::default(), None);
            state.session.open(id, true, None, Rc::clone(&stream));
            state.add(&stream, Segments::from(vec![b'x'; 30_000]), Some(Vec::new()));
        }
        state.gather();
        assert!(state.is_full() && state.out.len() + 5 * RECORD_OVERHEAD <= SEND_BYTES);
        state.out.clear();
        state.gather();
        assert_eq!(state.framed, 65_535, "the window of the connection");
    }

    /// A short body waits for its turn behind bytes of other streams, and for its windows.
    #[test]
    fn only_a_short_body_without_others_ahead_of_it_is_framed_immediately() {
        let mut out = Vec::new();
        let session = Session::new(Limits::default(), &mut out);
        let mut state =
            ConnectionState { session, out, ready: Scheduler::default(), framed: 0, closed: None };
        let streams = [1, 3].map(|id| Stream::new(id, Priority::default(), None));
        for stream in &streams {
            state.session.open(stream.id, true, None, Rc::clone(stream));
        }
        let body = |len| Segments::from(vec![b'x'; len]);
        assert!(!state.push_short_body(&streams[1], &body(70_000)), "above the window");
        state.add(&streams[0], body(10), Some(Vec::new()));
        assert!(!state.push_short_body(&streams[1], &body(10)));
        state.gather();
        assert!(state.push_short_body(&streams[1], &body(10)));
    }
}
