//! Reads the body of a request for a handler.
//!
//! ```text
//!   received with the header section --+                             +--> ReceivedBody --above client_body_buffer_size--> temporary file
//!                                      +--> BodyRemainder (framing) -+                                   | on failure
//!   received later --------------------+                             +--> IncomingBody <----- Feed ------+
//!                                                                            `--> a handler that reads the body piece by piece
//! ```
//! A body of known length is received into its final memory; chunks are decoded as they arrive.

use std::rc::Rc;

use http::connection::{CONTINUE_RESPONSE, Expect};
use io::segments::Source;
use io::{Buf, Errno, Segments};
use rt::net::Appended;

use crate::h1::Connection;
use crate::h1::rest::BodyRemainder;
use exchange::capacity::Waits;
use exchange::course::BodyNeed;
use exchange::request::Request;
use exchange::request_body::{BodyFailure, Feed, WITHOUT_FILE_BYTES_MAX, WithoutFile, spill};
use site::settings::core::Core;
use telemetry::Level;
use transfer::incoming::{BodyAborted, IncomingBody, PIECE_BYTES_MAX};
use transfer::received::ReceivedBody;

impl Connection {
    /// Reads the complete body: into memory up to `client_body_buffer_size`, a larger body into a file. If writing the file fails
    /// and the handler accepts pieces, the received and the remaining bytes are fed to it.
    pub(super) async fn receive_complete_body(
        &mut self,
        request: &mut Request,
        body_need: BodyNeed,
    ) -> Result<Option<Box<Feed<BodyRemainder>>>, BodyFailure> {
        let thread_config = Rc::clone(&request.thread_config);
        let core = &thread_config.config.location(request.location).scope.core;
        // Another handler has already read the body, for example before an error page.
        if request.body.is_some() {
            return Ok(None);
        }
        let mut body = ReceivedBody::default();
        let done = match BodyRemainder::of(request) {
            None => Ok(()),
            Some(mut rest) => match self.receive_body(request, core, &mut rest, &mut body, body_need).await {
                Ok(Received::Whole) => Ok(()),
                Ok(Received::Part { has_rest }) => {
                    let rest = has_rest.then_some(rest);
                    return Ok(Some(Box::new(Feed { held: Some(body), rest, ..Feed::of(core) })));
                }
                Err(failure) => Err(failure),
            },
        };
        if done.is_err() {
            body.clean().await;
            // A partial body is useless, and the remaining bytes cannot be read again.
            body = ReceivedBody::default();
            request.keepalive = false;
        }
        (request.body, request.is_body_consumed) = (Some(body.into()), true);
        done.map(|()| None)
    }

    /// Whether the complete body has been received and fits into memory.
    pub(super) fn holds_complete_body(&self, request: &Request) -> bool {
        let (here, held_max) = (self.input.bytes(), request.scope().core.reading.client_body_buffer_size);
        let is_complete = |mut rest: BodyRemainder| matches!(rest.take(here, |_| {}), Ok((_, true)));
        here.len() as u64 <= held_max && BodyRemainder::of(request).is_none_or(is_complete)
    }

    async fn receive_body(
        &mut self,
        request: &mut Request,
        core: &Core,
        rest: &mut BodyRemainder,
        body: &mut ReceivedBody,
        body_need: BodyNeed,
    ) -> Result<Received, BodyFailure> {
        let mut held_max = usize::try_from(core.reading.client_body_buffer_size).unwrap_or(usize::MAX);
        let without = WithoutFile::of(core, body_need);
        let in_file = without == WithoutFile::Fails;
        self.send_continue(request, core).await?;
        self.body_is_fast = self.input.bytes().len() >= FAST_BYTES;
        loop {
            // The bytes received with the header section are the start of the body, or the complete body.
            let taken = self.take_input(rest, body);
            let (used, done) = taken.map_err(|()| invalid(request))?;
            request.received += used;
            check(rest, request, core.reading.client_max_body_size)?;
            // A body with a file is stored completely in it, so that readers need not combine two sources.
            if body.held() > held_max || done && (in_file || body.path().is_some()) {
                let left = rest.remaining().unwrap_or_default();
                match spill(request, core, body, (without, left)).await? {
                    WithoutFile::Fails => {}
                    WithoutFile::Pieces => return Ok(Received::Part { has_rest: !done }),
                    WithoutFile::Memory => held_max = WITHOUT_FILE_BYTES_MAX,
                }
            }
            if done {
                body.seal();
                return Ok(Received::Whole);
            }
            // The timeout applies to each piece and not to the complete body: a large body over a slow connection may take long.
            self.timer.set(rt::now() + core.reading.client_body_timeout);
            let most = match rest.remaining() {
                // A body that needs a file is written in pieces of this size.
                Some(left) if body.path().is_some() || body.byte_count() + left > held_max as u64 => {
                    PIECE_BYTES_MAX
                }
                _ => BUFFER_MAX,
            };
            match self.receive_body_bytes(rest, body, most).await {
                Ok(Some(count)) => request.received += count,
                other => return Err(not_received(request, other.err())),
            }
        }
    }

    /// Moves the received part of a body from the input into `body`. Returns the number of input bytes used, and whether the body
    /// ended.
    fn take_input(&mut self, rest: &mut BodyRemainder, body: &mut impl Collect) -> Result<(u64, bool), ()> {
        if let BodyRemainder::Bytes(left) = rest
            && let Some(buf) = self.input.take_buf(*left)
        {
            let count = buf.len() as u64;
            debug_assert!(count <= *left, "bytes after the body are no part of it");
            *left -= count;
            body.take(buf);
            return Ok((count, *left == 0));
        }
        let (used, done) = rest.take(self.input.bytes(), |bytes| body.add(bytes))?;
        self.input.consume(used);
        Ok((used as u64, done))
    }

    /// Notes that the next body of this client is probably long too. A multishot receive would receive the start of that body in
    /// small buffers, before its length is known.
    fn expect_body(&mut self) {
        self.had_long_body = true;
        self.wire.set_multishot(false);
    }

    /// Receives more bytes of a body. If its length is known and the client sends as fast as the bytes are read, they are received
    /// into their final memory, at most `most`; returns their number. Otherwise they are added to the input, and 0 is returned.
    /// Returns `None` at the end of the connection, `ECANCELED` if the connection is closed to free resources, and `ENOBUFS` if the
    /// pool has no buffer.
    async fn receive_body_bytes(
        &mut self,
        rest: &mut BodyRemainder,
        body: &mut impl Collect,
        most: usize,
    ) -> Result<Option<u64>, Errno> {
        let thread = Rc::clone(&self.thread);
        let waiting = thread.capacity.waits(Waits::Body, &self.timer, self.wire.fd());
        match self.receive_bytes(rest, body, most).await {
            Err(Errno::TIMEDOUT) if waiting.is_chosen() => Err(Errno::CANCELED),
            received => {
                self.has_timed_out = received == Err(Errno::TIMEDOUT);
                received
            }
        }
    }

    async fn receive_bytes(
        &mut self,
        rest: &mut BodyRemainder,
        body: &mut impl Collect,
        most: usize,
    ) -> Result<Option<u64>, Errno> {
        self.expect_body();
        let BodyRemainder::Bytes(left) = rest else {
            return self.receive(0).await.map(|came| came.then_some(0));
        };
        let wanted = (*left).min(most as u64) as usize;
        let is_fast = std::mem::replace(&mut self.body_is_fast, false);
        let may_wait = is_fast && !rt::buffers_are_scarce();
        let Some(mut buf) = may_wait.then(|| body.take_buffer(wanted)).flatten() else {
            let came = self.receive(0).await?;
            self.body_is_fast = self.input.bytes().len() >= FAST_BYTES;
            return Ok(came.then_some(0));
        };
        let held = buf.len();
        // At most one piece by direct calls: a client that sends as fast as it is read must not occupy the thread.
        let is_short = *left <= PIECE_BYTES_MAX as u64;
        let received = match is_short.then(|| self.receive_now(&mut buf)).flatten() {
            Some(came) => came.map(|came| if came { Appended::Grown(buf) } else { Appended::End }),
            None => {
                let received = self.timer.limit(self.wire.recv_append(buf)).await;
                received.map_err(|rt::Elapsed| Errno::TIMEDOUT)?
            }
        };
        match received? {
            Appended::Grown(mut buf) => {
                let count = (buf.len() - held).min((*left).min(usize::MAX as u64) as usize);
                debug_assert!(held <= buf.len(), "received bytes follow the held bytes");
                let end = held + count;
                if buf.len() > end {
                    // The start of a request that follows the body.
                    let mut next = rt::pool().get(buf.len() - end).ok_or(Errno::NOBUFS)?;
                    next.append(&buf[end..]);
                    self.input.add(next, 0);
                    buf.set_len(end);
                }
                debug_assert!(count as u64 <= *left, "bytes after the body are no part of it");
                *left -= count as u64;
                self.body_is_fast = count >= FAST_BYTES;
                body.put(buf);
                Ok(Some(count as u64))
            }
            Appended::Separate(buf, received) => {
                self.body_is_fast = received.len() >= FAST_BYTES;
                body.put(buf);
                match self.input.add(received, 0) {
                    true => Ok(Some(0)),
                    false => Err(Errno::NOBUFS),
                }
            }
            Appended::End => Ok(None),
        }
    }

    /// Receives available bytes by a direct non-blocking call and appends them to `buf`; `false` at the end of the stream. A fast
    /// client has usually sent a complete short body by now.
    fn receive_now(&mut self, buf: &mut Buf) -> Option<Result<bool, Errno>> {
        if !self.thread.calls_directly || buf.len() == buf.capacity() {
            return None;
        }
        Some(self.wire.recv_append_now(buf)?.map(|count| count > 0))
    }

    /// Collects available bytes for the next piece of a body that is passed on in pieces, so that it is sent by one call. Returns
    /// whether any were received.
    fn gather(&mut self, rest: &BodyRemainder) -> Result<bool, BodyAborted> {
        let here = match self.wire.try_recv() {
            Some(here) => here,
            None => match self.receive_rest_now(rest) {
                Some(here) => here,
                None => return Ok(false),
            },
        };
        match here {
            Ok(Some(buf)) => self.input.add(buf, 0).then_some(true).ok_or(BodyAborted::NoBuffer),
            Ok(None) | Err(_) => Err(BodyAborted::Closed),
        }
    }

    /// Receives the available bytes of a body of known length.
    fn receive_rest_now(&mut self, rest: &BodyRemainder) -> Option<Result<Option<Buf>, Errno>> {
        let BodyRemainder::Bytes(left @ 1..) = rest else { return None };
        if !self.body_is_fast || rt::buffers_are_scarce() {
            return None;
        }
        self.expect_body();
        let mut buf = rt::pool().get((*left).min(PIECE_BYTES_MAX as u64) as usize)?;
        Some(self.receive_now(&mut buf)?.map(|came| came.then_some(buf)))
    }

    /// Sends a 100 response to a client that expects it. Otherwise a client with Nagle's algorithm may send the body only after an
    /// acknowledgement of the header section, which the kernel would delay by 40 ms.
    async fn send_continue(&mut self, request: &Request, core: &Core) -> Result<(), BodyFailure> {
        if !request.head.body().has_body() || !self.input.bytes().is_empty() {
            return Ok(());
        }
        if http::connection::expect(&request.head, request.bytes()) != Expect::Continue {
            self.wire.acknowledge();
            return Ok(());
        }
        // The client has nothing else to read, so the send waits only if the client has disconnected.
        let mut data = Segments::new();
        data.push(Source::Static(CONTINUE_RESPONSE));
        let sent =
            self.wire.send(&self.thread, &self.timer, core.sending.send_timeout, &mut data, false).await;
        sent.map_err(|_| BodyFailure::Abandoned(400))
    }
}

/// How much of a body was received.
enum Received {
    /// The complete body.
    Whole,
    /// The bytes stored in memory and file before writing the file failed.
    Part { has_rest: bool },
}

/// Minimum number of bytes in one receive that indicate a fast client: half an engine buffer, since the header section may be the
/// other half. For a slow client no buffer is reserved.
const FAST_BYTES: usize = 2 << 10;

/// Maximum size in bytes of a receive buffer for a body.
const BUFFER_MAX: usize = 1 << 20;

/// Consumer of a body as it arrives.
trait Collect {
    /// Adds a copy of bytes.
    fn add(&mut self, bytes: &[u8]);

    /// Adds a buffer.
    fn take(&mut self, buf: Buf);

    /// Returns a buffer to receive about this many bytes after its content; `None` if memory is scarce.
    fn take_buffer(&mut self, bytes: usize) -> Option<Buf>;

    /// Returns the buffer of [`Collect::take_buffer`].
    fn put(&mut self, buf: Buf);
}

impl Collect for ReceivedBody {
    fn add(&mut self, bytes: &[u8]) {
        ReceivedBody::add(self, bytes);
    }

    fn take(&mut self, buf: Buf) {
        ReceivedBody::take(self, buf);
    }

    fn take_buffer(&mut self, bytes: usize) -> Option<Buf> {
        ReceivedBody::take_buffer(self, bytes)
    }

    fn put(&mut self, buf: Buf) {
        ReceivedBody::put(self, buf);
    }
}

impl Collect for Rc<IncomingBody> {
    fn add(&mut self, bytes: &[u8]) {
        IncomingBody::add(self, bytes);
    }

    fn take(&mut self, buf: Buf) {
        IncomingBody::take(self, buf);
    }

    fn take_buffer(&mut self, bytes: usize) -> Option<Buf> {
        rt::pool().get(bytes)
    }

    fn put(&mut self, buf: Buf) {
        IncomingBody::take(self, buf);
    }
}

impl Connection {
    /// Prepares feeding the body to a handler.
    pub(super) async fn prepare_feed(
        &mut self,
        request: &mut Request,
    ) -> Result<Feed<BodyRemainder>, BodyFailure> {
        let thread_config = Rc::clone(&request.thread_config);
        let core = &thread_config.config.location(request.location).scope.core;
        let rest = BodyRemainder::of(request);
        if rest.is_some() {
            self.send_continue(request, core).await?;
        }
        Ok(Feed { rest, ..Feed::of(core) })
    }

    /// Reads the body at the speed of the handler.
    pub(super) async fn feed_to_end(&mut self, feed: &mut Feed<BodyRemainder>) -> Result<(), BodyAborted> {
        feed.feed_held().await?;
        let Feed { incoming, rest: Some(rest), most, timeout, .. } = feed else { return Ok(()) };
        self.body_is_fast = self.input.bytes().len() >= FAST_BYTES;
        loop {
            let (used, done) = self.take_input(rest, incoming).map_err(|()| BodyAborted::Invalid)?;
            incoming.count(used);
            if let Some((total, more)) = exceeds(rest, *most) {
                return Err(BodyAborted::TooLarge(total, more));
            }
            if done {
                return Ok(());
            }
            if incoming.has_space() && self.gather(rest)? {
                continue;
            }
            incoming.consumed().await;
            self.timer.set(rt::now() + *timeout);
            match self.receive_body_bytes(rest, incoming, PIECE_BYTES_MAX).await {
                Ok(Some(count)) => incoming.count(count),
                Err(Errno::TIMEDOUT) => return Err(BodyAborted::TimedOut),
                Err(Errno::NOBUFS) => return Err(BodyAborted::NoBuffer),
                Ok(None) | Err(_) => return Err(BodyAborted::Closed),
            }
        }
    }
}

/// Returns the received and announced bytes of a chunked body, if they exceed the limit. The announced size of a chunk counts, so
/// that a chunk that is too large is refused immediately.
fn exceeds(rest: &BodyRemainder, most: u64) -> Option<(u64, u64)> {
    let BodyRemainder::Chunks(decoder) = rest else { return None };
    let (total, announced) = (decoder.total(), decoder.announced());
    debug_assert!(total <= announced, "a chunk is announced before its bytes arrive");
    (most > 0 && announced > most).then(|| (total, announced - total))
}

/// Checks the size of a chunked body, which is known only as it arrives. An announced length was compared before.
fn check(rest: &BodyRemainder, request: &Request, most: u64) -> Result<(), BodyFailure> {
    let Some((total, more)) = exceeds(rest, most) else { return Ok(()) };
    let what = format_args!("client intended to send too large chunked body: {total}+{more} bytes");
    request.log(Level::Error, what);
    Err(BodyFailure::Refused(413))
}

/// Logs why no more bytes of a body are received: the error, or `None` at the end of the connection.
fn not_received(request: &Request, errno: Option<Errno>) -> BodyFailure {
    let (level, what, failure) = match errno {
        Some(Errno::CANCELED) => {
            (Level::Info, "connection was closed to make room for another", BodyFailure::Abandoned(408))
        }
        Some(Errno::TIMEDOUT) => {
            (Level::Info, "client timed out (110: Connection timed out)", BodyFailure::Abandoned(408))
        }
        // This error is not from the kernel.
        Some(Errno::NOBUFS) => {
            (Level::Alert, "no buffer: the pool of this thread is at its limit", BodyFailure::Refused(500))
        }
        _ => {
            request.log(Level::Info, format_args!("client prematurely closed connection"));
            return BodyFailure::Abandoned(400);
        }
    };
    request.log(level, format_args!("{what} while reading client request body"));
    failure
}

fn invalid(request: &Request) -> BodyFailure {
    request.log(Level::Error, format_args!("client sent invalid chunked body"));
    BodyFailure::Refused(400)
}
