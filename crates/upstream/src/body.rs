//! The body of an upstream's response as it arrives, with its framing removed.
//!
//! Main type: [`Live`], a connection from which the remaining bytes of a response are read. [`Direct`] passes them on at the
//! client's speed, [`super::spool`] reads ahead, and [`BulkBody`] is for callers that store the complete body.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::gateway::{BodyEvent, Decoder, InvalidBody, join};
use io::op::RECV_LARGE_BYTES;
use io::segments::Source;
use io::{Buf, Errno, SharedBytes};
use rt::net::{Filled, Pipe, SPLICE_BYTES};

use crate::choice::Chosen;
use crate::hidden::Hidden;
use crate::link::Link;
use crate::sending::{SendFailure, Sending, shared};
use crate::settings::Settings;
use crate::state::{Fault, Try};
use crate::wire::Wire;
use transfer::body::BodyError;
use transfer::body::source::{BodySource, SEND_BYTES, Spliced};

/// The connection that delivers the remaining bytes of a response. Dropping it closes the connection.
pub struct Live {
    link: Option<Box<Link>>,
    /// The unsent remainder of the request, if the response arrived before the request was sent completely.
    sending: Option<Sending>,
    decoder: Decoder,
    /// The body bytes received with the header section.
    rest: Option<Buf>,
    /// The pipe with the bytes before the next ones of the connection.
    pipe: Option<Pipe>,
    record: Rc<Try>,
    /// Counts a request in flight at the upstream server until this is dropped.
    chosen: Chosen,
    keep_alive: bool,
    /// Whether the last receive returned at least [`FAST_BYTES`]: more bytes are available or will arrive soon.
    is_fast: bool,
    /// Whether the last receive filled its buffer: more bytes are available now.
    is_full: bool,
    calls_directly: bool,
    /// Minimum number of bytes that are passed on by splice(2); `None` if none are.
    splice_from: Option<u64>,
    /// Number of bytes received by direct calls since the last receive through the engine.
    direct_bytes: usize,
    read_timeout: Duration,
    /// Deadline of the client, after which no more of the body is read.
    deadline: Option<Instant>,
    rate: Option<Rate>,
}

/// `proxy_limit_rate`
#[derive(Clone, Copy)]
struct Rate {
    bytes_per_second: u64,
    since: Instant,
}

/// Minimum number of remaining bytes for which a fast body is read into buffers of the pool; if the length is unknown, of received
/// bytes. Fewer bytes fit into a large buffer of the engine. A slow body occupies no buffer while it waits for the upstream.
const BULK_FROM: u64 = RECV_LARGE_BYTES as u64;

/// Maximum number of bytes received by consecutive direct calls of this thread: the size of one send, so that the bytes in the
/// socket buffer are passed on by a single send. The limit gives other tasks a turn even if the upstream is fast.
const DIRECT_BYTES_MAX: usize = SEND_BYTES;

/// Body bytes received with the header section.
pub(super) struct BodyStart {
    /// The bytes.
    pub(super) rest: Option<Buf>,
    /// Whether the receive that returned the bytes filled its buffer.
    pub(super) is_full: bool,
    /// Whether this thread may call recv(2) directly, bypassing its engine.
    pub(super) calls_directly: bool,
    /// Minimum number of bytes that are passed on by splice(2); `None` if none are.
    pub(super) splice_from: Option<u64>,
}

/// Minimum number of bytes in one receive that indicates a fast upstream: the buffers of the engine are seldom larger.
const FAST_BYTES: usize = 4 << 10;

impl Live {
    pub(super) fn new(
        link: Box<Link>,
        decoder: Decoder,
        body_start: BodyStart,
        record: Rc<Try>,
        keep_alive: bool,
        read_timeout: Duration,
    ) -> Live {
        let BodyStart { rest, is_full, calls_directly, splice_from } = body_start;
        let (link, chosen) = (Some(link), Chosen::default());
        // An upstream that sent body bytes together with the head counts as fast.
        let is_fast = rest.is_some();
        Live {
            link,
            sending: None,
            decoder,
            rest,
            pipe: None,
            record,
            chosen,
            keep_alive,
            is_fast,
            is_full,
            calls_directly,
            splice_from,
            direct_bytes: 0,
            read_timeout,
            deadline: None,
            rate: None,
        }
    }

    /// Continues sending the remainder of the request while the body is read.
    pub(super) fn continue_sending(&mut self, sending: Option<Sending>) {
        self.sending = sending;
    }

    /// Sends more of the request. If sending fails, the response may still arrive completely, but the connection cannot be reused.
    /// On an HTTP/2 stream, a request body that ends early is an error: the upstream waits for the remaining bytes.
    fn poll_sending(&mut self, context: &mut Context<'_>) -> Result<(), Fault> {
        if let Some(sending) = &mut self.sending
            && let Poll::Ready(result) = sending.poll(context)
        {
            self.keep_alive &= result.is_ok();
            self.sending = None;
            self.restart_timer();
            let is_stream = matches!(self.link.as_deref(), Some(Link { wire: Wire::Stream(_), .. }));
            if is_stream && matches!(result, Err(SendFailure::Client(_))) {
                return Err(Fault::Request);
            }
        }
        Ok(())
    }

    /// Restarts `proxy_read_timeout`, unless the timer is in use for the remainder of the request.
    pub(super) fn restart_timer(&mut self) {
        if let (None, Some(link)) = (&self.sending, &self.link) {
            link.timer.set(rt::now() + self.read_timeout);
        }
    }

    /// Counts a request in flight at the upstream server from here on.
    pub(super) fn hold(&mut self, chosen: Chosen) {
        self.chosen = chosen;
    }

    /// Limits the rate of reading.
    pub(super) fn limit_rate(&mut self, bytes_per_second: u64) {
        self.rate = (bytes_per_second > 0).then(|| Rate { bytes_per_second, since: rt::now() });
    }

    /// Sets the deadline after which the body ends with an error.
    pub(super) fn limit_until(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Whether the client's deadline has passed.
    fn is_past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| rt::now() >= deadline)
    }

    /// Returns the time from which the next bytes may be read, if reading is limited by a rate.
    pub(super) fn not_before(&self) -> Option<Instant> {
        let rate = self.rate?;
        let passed = self.record.response_length.get();
        let due = rate.since + Duration::from_secs_f64(passed as f64 / rate.bytes_per_second as f64);
        (due > rt::now()).then_some(due)
    }

    /// Returns the number of remaining bytes of the body, if known.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.decoder.remaining()
    }

    /// Whether the complete body was returned to the caller.
    pub(super) fn is_over(&self) -> bool {
        let is_piped = self.pipe.as_ref().is_some_and(|pipe| pipe.held() > 0);
        self.decoder.is_over() && self.rest.is_none() && !is_piped
    }

    /// Returns the record of the try that got this response.
    pub(super) fn record(&self) -> &Rc<Try> {
        &self.record
    }

    /// Moves the bytes received with the header section to a buffer of about their size, because a slow client may not read them
    /// soon.
    pub(super) fn shrink(&mut self) {
        self.rest = self.rest.take().map(fitting);
    }

    /// Returns the received bytes if they are the complete remainder of the body; `Some(None)` if the body has no further bytes.
    pub(super) fn take_complete(&mut self) -> Option<Option<Buf>> {
        if !self.decoder.ends_within(self.rest.as_deref().unwrap_or_default()) {
            return None;
        }
        match self.rest.take() {
            Some(rest) => self.decode(rest).ok(),
            None => {
                self.decoder.body(&[]).ok()?;
                self.end(0);
                Some(None)
            }
        }
    }

    /// Returns the next bytes of the body; `None` at the end. Receives of a fast body use buffers of `size` bytes.
    pub(super) async fn next(&mut self, size: usize) -> Result<Option<Buf>, Fault> {
        loop {
            if let Some(piece) = self.received_before(size)? {
                return Ok(Some(piece));
            }
            if self.is_over() {
                return Ok(None);
            }
            if self.sending.is_some() {
                // Sends the remainder of the request while it waits.
                return poll_fn(|context| self.poll_next(context)).await;
            }
            if self.receive_directly(size)? {
                continue;
            }
            let is_bulk = self.is_bulk();
            let Some(link) = &mut self.link else { return Err(Fault::Closed) };
            link.timer.set(rt::now() + self.read_timeout);
            let timer = link.timer.clone();
            // Without a pool buffer the receive uses a buffer of the engine.
            let buf = if is_bulk { rt::pool().get(size) } else { None };
            let received = match buf {
                Some(buf) => timer.limit(link.wire.recv_into(buf)).await,
                None => timer.limit(link.wire.recv()).await,
            };
            self.received(received.map_err(|_| Fault::TimedOut)?)?;
        }
    }

    /// Returns bytes that were received before: with the header section, or to the pipe.
    fn received_before(&mut self, size: usize) -> Result<Option<Buf>, Fault> {
        if let Some(mut pipe) = self.pipe.take().filter(|pipe| pipe.held() > 0) {
            let size = pipe.held().min(size);
            let buf = rt::pool().get(size).or_else(|| Buf::outside_pools(size as u32));
            let mut buf = buf.ok_or(Fault::Local(Errno::NOMEM))?;
            pipe.read(&mut buf).map_err(Fault::Local)?;
            self.pipe = Some(pipe);
            return Ok(Some(buf));
        }
        match self.rest.take() {
            Some(rest) => self.decode(rest),
            None => Ok(None),
        }
    }

    /// Whether the bytes after those in memory are to be passed on by splice(2).
    pub(super) fn is_spliced(&self) -> bool {
        let Some(splice_from) = self.splice_from else { return false };
        let in_memory = self.rest.as_ref().map_or(0, |rest| rest.len() as u64);
        let is_clear = matches!(self.link.as_deref(), Some(Link { wire: Wire::Plain(socket), .. }) if socket.reader.can_splice());
        is_clear
            && (self.rate.is_none() && self.deadline.is_none() && self.sending.is_none())
            && self.decoder.contiguous().is_some_and(|left| left >= in_memory.saturating_add(splice_from))
    }

    /// Moves the next bytes to an empty pipe, and waits until any have arrived. Returns their number; 0 at the end of the body, or
    /// without a free pipe.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Fault>> {
        self.pipe.take_if(|pipe| pipe.held() == 0);
        debug_assert!(self.pipe.is_none() && self.rest.is_none(), "callers take the earlier bytes first");
        let left = self.decoder.contiguous().unwrap_or(0).min(SPLICE_BYTES as u64) as usize;
        let Some(link) = self.link.as_mut().filter(|_| left > 0) else { return Poll::Ready(Ok(0)) };
        match link.poll_splice(context, left) {
            Poll::Ready(Ok(Filled::End)) => Poll::Ready(Err(Fault::Closed)),
            Poll::Ready(Ok(Filled::NoPipe)) => Poll::Ready(Ok(0)),
            Poll::Ready(Ok(Filled::Pipe(pipe))) => {
                // The client's time to accept these bytes is not that of the upstream.
                link.timer.clear();
                let count = pipe.held();
                self.pipe = Some(pipe);
                self.record.count_received(count);
                self.count(count);
                self.decoder.skip(count as u64);
                if count == left {
                    self.end_spliced()?;
                }
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(errno)) => Poll::Ready(Err(Fault::Receive(errno))),
            Poll::Pending => {
                if link.timer.deadline().is_none() {
                    link.timer.set(rt::now() + self.read_timeout);
                }
                let _ = ready!(link.timer.poll_elapsed(context));
                Poll::Ready(Err(Fault::TimedOut))
            }
        }
    }

    /// Ends the body, if the connection has no further bytes of it. Excess bytes are received, since they must not be taken for the next
    /// response.
    fn end_spliced(&mut self) -> Result<(), Fault> {
        if self.decoder.contiguous() != Some(0) {
            return Ok(());
        }
        let excess = self.link.as_mut().map_or(Some(0), |link| {
            if link.wire.is_quiet() {
                return Some(0);
            }
            match link.wire.recv_now(1) {
                Some(Ok(Some(buf))) => Some(buf.len()),
                Some(Ok(None) | Err(_)) | None => None,
            }
        });
        self.decoder.body(&[]).map_err(|InvalidBody(words)| Fault::Framing(words))?;
        self.keep_alive &= excess.is_some();
        self.end(excess.unwrap_or(0));
        Ok(())
    }

    /// Receives by a direct call if more bytes are in the socket; returns whether any were received. Bytes that the upstream sent
    /// together can then be sent to the client together.
    fn receive_directly(&mut self, size: usize) -> Result<bool, Fault> {
        if !self.is_full || !self.calls_directly || self.direct_bytes >= DIRECT_BYTES_MAX {
            self.direct_bytes = 0;
            return Ok(false);
        }
        let Some(link) = &mut self.link else { return Err(Fault::Closed) };
        let received = link.wire.recv_now(size);
        let Some(received) = received else {
            (self.is_full, self.direct_bytes) = (false, 0);
            return Ok(false);
        };
        self.direct_bytes += received.as_ref().map_or(0, |buf| buf.as_ref().map_or(0, |buf| buf.len()));
        self.received(received)?;
        Ok(true)
    }

    /// Whether the body is fast, and large enough to justify separate buffers.
    fn is_bulk(&self) -> bool {
        self.is_fast && self.remaining().unwrap_or(self.record.response_length.get()) >= BULK_FROM
    }

    /// Works like [`Live::next`], for callers that poll, with buffers that the engine chooses.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Fault>> {
        loop {
            if let Some(piece) = self.received_before(SPLICE_BYTES)? {
                return Poll::Ready(Ok(Some(piece)));
            }
            if self.is_over() {
                return Poll::Ready(Ok(None));
            }
            self.poll_sending(context)?;
            let (deadline, is_past_deadline) = (self.deadline, self.is_past_deadline());
            let Some(link) = &mut self.link else { return Poll::Ready(Err(Fault::Closed)) };
            match link.poll_recv(context) {
                _ if is_past_deadline => return Poll::Ready(Err(Fault::DeadlinePassed)),
                Poll::Ready(received) => {
                    link.timer.set(rt::now() + self.read_timeout);
                    self.received(received)?;
                }
                Poll::Pending => {
                    let set = link.timer.deadline().unwrap_or_else(|| rt::now() + self.read_timeout);
                    let until = deadline.map_or(set, |deadline| deadline.min(set));
                    if link.timer.deadline() != Some(until) {
                        link.timer.set(until);
                    }
                    let _ = ready!(link.timer.poll_elapsed(context));
                    return Poll::Ready(Err(if self.is_past_deadline() {
                        Fault::DeadlinePassed
                    } else {
                        Fault::TimedOut
                    }));
                }
            }
        }
    }

    /// Processes the result of a receive.
    fn received(&mut self, received: Result<Option<Buf>, Errno>) -> Result<(), Fault> {
        match received {
            Ok(Some(buf)) => {
                self.record.count_received(buf.len());
                (self.is_fast, self.is_full) = (buf.len() >= FAST_BYTES, buf.len() == buf.capacity());
                self.rest = Some(buf);
                Ok(())
            }
            Ok(None) if self.decoder.close() => {
                self.keep_alive = false;
                self.end(0);
                Ok(())
            }
            Ok(None) => Err(Fault::Closed),
            Err(errno) => {
                let cut = self.link.as_ref().and_then(|link| link.wire.cut());
                Err(cut.map_or(Fault::Receive(errno), Fault::Stream))
            }
        }
    }

    /// Removes the framing, in place; `None` if the buffer contains no bytes of the body.
    fn decode(&mut self, mut buf: Buf) -> Result<Option<Buf>, Fault> {
        let (mut kept, mut at) = (0..0, 0);
        let ended = loop {
            let step = self.decoder.body(&buf[at..]).map_err(|InvalidBody(words)| Fault::Framing(words))?;
            match step.event {
                BodyEvent::Data { start, end } => join(&mut buf, &mut kept, at + start..at + end),
                BodyEvent::More => break false,
                BodyEvent::End => {
                    at += step.consumed;
                    break true;
                }
            }
            at += step.consumed;
        };
        if let Some(text) = self.decoder.take_messages() {
            self.record.messages.borrow_mut().extend_from_slice(&text);
        }
        if let Some(note) = self.decoder.take_note() {
            self.record.note.set(Some(note));
        }
        debug_assert!(
            at <= buf.len() && kept.start <= kept.end && kept.end <= at,
            "the body precedes the excess"
        );
        let excess = buf.len() - at;
        buf.set_len(kept.end);
        buf.advance(kept.start);
        self.count(buf.len());
        if ended {
            *self.record.trailers.borrow_mut() = self.decoder.trailers();
            self.end(excess);
        }
        Ok((!buf.is_empty()).then_some(buf))
    }

    /// Counts received bytes of the body in the record of the try.
    fn count(&self, bytes: usize) {
        let length = &self.record.response_length;
        length.set(length.get() + bytes as u64);
    }

    /// Ends the body, and stores the connection as idle if it can be reused: not if excess bytes arrived.
    fn end(&mut self, excess: usize) {
        self.record.excess.set(excess > 0);
        self.record.end();
        self.chosen.response_ended();
        let link = self.link.take().filter(|_| self.keep_alive && self.decoder.keeps_alive() && excess == 0);
        match (link, self.sending.take()) {
            (Some(link), None) => link.store_idle(),
            (Some(link), Some(sending)) if sending.is_nearly_over(UNSENT_MAX) => {
                rt::spawn(finish(link, sending));
            }
            // Dropping the link closes the connection.
            _ => {}
        }
    }

    /// Records the reason of the failure and closes the connection.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.record.fault.set(Some(fault));
        self.record.end();
        self.link = None;
    }

    /// As [`Live::fail`]; returns the error for the client.
    fn broken(&mut self, fault: Fault) -> BodyError {
        self.fail(fault);
        fault.of_body()
    }

    /// Returns the parts for a switch to another protocol: the connection, the bytes already received, and the records of the try.
    pub(super) fn into_parts(mut self) -> (Option<Box<Link>>, Option<Buf>, Rc<Try>, Chosen) {
        (self.link.take(), self.rest.take(), Rc::clone(&self.record), std::mem::take(&mut self.chosen))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.record.end();
    }
}

impl Spliced for Live {
    fn take_received(&mut self) -> Result<Option<Source>, BodyError> {
        let received = self.received_before(SPLICE_BYTES).map_err(|fault| self.broken(fault))?;
        Ok(received.map(Source::Buf))
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, BodyError>> {
        let filled = ready!(Live::poll_fill(self, context));
        Poll::Ready(filled.map_err(|fault| self.broken(fault)))
    }

    fn pipe(&mut self) -> Option<&mut Pipe> {
        self.pipe.as_mut()
    }
}

/// Maximum number of request bytes that are still sent after the response has ended, so that the connection can be reused. A new
/// connection costs about as much as sending some hundred KiB.
const UNSENT_MAX: u64 = 1 << 20;

/// Copies the content to a smaller buffer if its buffer is much too large: a slow client would occupy the large one for long.
fn fitting(buf: Buf) -> Buf {
    if buf.len() > SMALL || buf.capacity() <= SMALL {
        return buf;
    }
    let Some(mut small) = rt::pool().get(buf.len()) else { return buf };
    small.append(&buf);
    small
}

/// Size of the smallest buffers in bytes.
const SMALL: usize = io::buf::CLASS_BYTES[0] as usize;

/// Sends the remainder of a request whose response has ended, then stores the connection as idle.
async fn finish(link: Box<Link>, mut sending: Sending) {
    let timer = link.timer.clone();
    if let Ok(Ok(())) = timer.limit(poll_fn(|context| sending.poll(context))).await {
        link.store_idle();
    }
}

/// A body that is read at the speed of the client.
pub(super) struct Direct {
    live: Box<Live>,
    delay: Option<rt::Sleep>,
    /// The filter of trailer fields; `None` if none are passed on.
    trailers: Option<Hidden>,
    needs_client: bool,
}

impl Direct {
    /// Creates the body for a client. The filter of trailer fields is that of the location.
    pub(super) fn new(live: Box<Live>, settings: &Settings) -> Direct {
        let (trailers, needs_client) = (settings.trailers(), !settings.ignore_client_abort);
        Direct { live, delay: None, trailers, needs_client }
    }
}

impl BodySource for Direct {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        if let Some(delay) = &mut self.delay {
            ready!(std::pin::Pin::new(delay).poll(context));
            self.delay = None;
            self.live.restart_timer();
        }
        match ready!(self.live.poll_next(context)) {
            Ok(Some(buf)) => {
                self.delay = self.live.not_before().map(rt::sleep_until);
                Poll::Ready(Ok(Some(Source::Buf(buf))))
            }
            Ok(None) => Poll::Ready(Ok(None)),
            // A gRPC client receives the status in the trailer section, after the messages sent so far.
            Err(Fault::DeadlinePassed) if self.trailers.is_some() && self.live.remaining().is_none() => {
                let trailers = [("grpc-status", "4"), ("grpc-message", "Deadline Exceeded")];
                let trailers = trailers.map(|(name, value)| (name.into(), value.into()));
                *self.live.record().trailers.borrow_mut() = trailers.into();
                self.live.fail(Fault::DeadlinePassed);
                Poll::Ready(Ok(None))
            }
            Err(fault) => Poll::Ready(Err(self.live.broken(fault))),
        }
    }

    fn spliced(&mut self) -> Option<&mut dyn Spliced> {
        self.live.is_spliced().then_some(&mut *self.live as &mut dyn Spliced)
    }

    fn trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let record = self.live.record();
        let passed = self.trailers.as_ref().map(|hidden| record.passed_trailers(hidden));
        passed.unwrap_or_default()
    }

    fn is_unbuffered(&self) -> bool {
        true
    }

    fn needs_client(&self) -> bool {
        self.needs_client
    }
}

/// A body for callers that store all of it: read as fast as it arrives, in large pieces.
pub enum BulkBody {
    /// The complete body was received; `None` after it was returned to the caller.
    Complete(Option<SharedBytes>),
    /// The body must still be read.
    Live(Box<Live>),
    /// The body is lost.
    Broken,
}

/// Buffer size in bytes of a receive of [`BulkBody`].
const BULK_BYTES: u64 = 64 << 10;

impl BulkBody {
    /// Creates a complete body.
    pub(super) fn of_bytes(source: Source) -> BulkBody {
        BulkBody::Complete(Some(shared(source)))
    }

    /// Returns the complete body, if it has arrived.
    pub fn complete(&self) -> Option<&SharedBytes> {
        match self {
            BulkBody::Complete(bytes) => bytes.as_ref(),
            BulkBody::Live(_) | BulkBody::Broken => None,
        }
    }

    /// Whether the complete body was returned to the caller.
    pub fn is_over(&self) -> bool {
        match self {
            BulkBody::Complete(bytes) => bytes.is_none(),
            BulkBody::Live(live) => live.is_over(),
            BulkBody::Broken => false,
        }
    }

    /// Returns the next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<SharedBytes>, BodyError> {
        let live = match self {
            BulkBody::Complete(bytes) => return Ok(bytes.take()),
            BulkBody::Live(live) => live,
            BulkBody::Broken => return Err(BodyError::Broken),
        };
        if let Some(due) = live.not_before() {
            rt::sleep_until(due).await;
        }
        let size = live.remaining().map_or(BULK_BYTES, |left| left.clamp(1, BULK_BYTES));
        match live.next(size as usize).await {
            Ok(piece) => Ok(piece.map(Buf::freeze)),
            Err(fault) => {
                live.fail(fault);
                Err(BodyError::Broken)
            }
        }
    }
}
