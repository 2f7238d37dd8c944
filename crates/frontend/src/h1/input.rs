//! Reads header sections of requests, starting with the bytes received after the last request, into a buffer that grows as
//! `large_client_header_buffers` allows.
//!
//! ```text
//!   engine buffer:           [ used | header section of this request | body, or the next request ]
//!                              start ^                                 `--> separate buffer, once the header section is complete
//!                                    `--> moves with its buffer to the request, whose spans refer to it
//! ```
//! A header section that arrives in pieces moves to larger buffers, and no complete line is parsed twice.

use std::fmt;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::request::Progress;
use io::Errno;
use io::segments::Source;

use crate::h1::Connection;
use crate::input::receive_in_time;
use exchange::capacity::Waits;
use exchange::request::Request;
use exchange::transport::Received;
use exchange::{course, effect, marks};
use telemetry::{ForLog, Level, Reason};

/// Maximum time that a connection to be closed waits for bytes that the kernel already has.
const PENDING_INPUT_MAX: Duration = Duration::from_secs(1);

impl Connection {
    /// Moves a complete header section into the request; `None` while it is incomplete.
    pub(super) fn parse_head(&mut self, request: &mut Request) -> Option<Received> {
        let policy = effect::policy(&request.scope().core);
        let mut parsed = http::request::parse(&mut request.head, self.input.bytes(), &policy);
        // The server that `Host` selects may accept field names that the default server ignores.
        if let Ok(Progress::Complete { .. }) = parsed
            && request.head.first_ignored().is_some()
            && let Some(policy) = self.listen_socket.named_policy(
                &request.thread_config,
                &request.conn.local,
                request.head.host_text().of(self.input.bytes()),
                policy,
            )
        {
            request.head.clear();
            parsed = http::request::parse(&mut request.head, self.input.bytes(), &policy);
        }
        match parsed {
            Ok(Progress::Complete { head_len }) => Some(self.take_head(request, head_len as usize)),
            Ok(Progress::Incomplete) => None,
            Err(error) => {
                self.retain_for_log(request);
                let (what, part) = (error.message(), part_in_progress(request));
                request.log(Level::Info, format_args!("{what} while reading client request {part}"));
                Some(Received::Refused(error.status().code()))
            }
        }
    }

    /// Reads the remaining part of a header section.
    pub(super) async fn read_remaining_head(&mut self, request: &mut Request) -> Received {
        let most = effect::policy(&request.scope().core).head_max as usize;
        // From here on the timeout applies to the complete header section, however many pieces it arrives in.
        self.timer.set(rt::now() + request.scope().core.reading.client_header_timeout);
        let thread = Rc::clone(&self.thread);
        let waiting = thread.capacity.waits(Waits::Head, &self.timer, self.wire.fd());
        // A client with Nagle's algorithm sends the remaining part only now.
        self.wire.acknowledge();
        loop {
            match self.receive(most).await {
                Ok(true) => {}
                Ok(false) => {
                    return self.fail_head(
                        request,
                        400,
                        format_args!("client prematurely closed connection"),
                    );
                }
                Err(Errno::TIMEDOUT) if waiting.is_chosen() => {
                    let why = format_args!("connection was closed to make room for another");
                    return self.fail_head(request, 408, why);
                }
                Err(errno @ Errno::TIMEDOUT) => {
                    self.has_timed_out = true;
                    let reason = Reason(errno);
                    let why = format_args!("client timed out ({})", reason);
                    return self.fail_head(request, 408, why);
                }
                // This error is not from the kernel: this server has no memory for more bytes.
                Err(Errno::NOBUFS) => return Received::Closed,
                Err(errno) => {
                    let reason = Reason(errno);
                    let why = format_args!("recv() failed ({})", reason);
                    return self.fail_head(request, 400, why);
                }
            }
            if let Some(head) = self.parse_head(request) {
                marks::note_received(request);
                return head;
            }
        }
    }

    /// Waits for the first bytes of a further request. `None` if the connection must end, `Some(false)` if the client closed it.
    pub(super) async fn wait_for_request(&mut self) -> Option<bool> {
        let end = match self.begin_to_wait() {
            ControlFlow::Continue(end) => end,
            ControlFlow::Break(early) => {
                // Requests on other connections are received before this request is served, so that all of them share one probe of
                // the page cache. Also, the last response is logged before the next request is parsed.
                rt::yield_to_ready().await;
                return early;
            }
        };
        // Neither a limit nor a shutdown ends the wait before this time.
        let protected_until = end.min(rt::now() + self.keepalive.min_timeout);
        loop {
            let is_protected = rt::now() < protected_until;
            self.timer.set(if is_protected { protected_until } else { end });
            let kind = if is_protected { Waits::Protected } else { Waits::Idle };
            let waiting = self.thread.capacity.waits(kind, &self.timer, self.wire.fd());
            let received = receive_in_time(&mut self.wire, &self.timer).await;
            let may_stay = !waiting.is_chosen() && !self.thread.is_draining() && rt::now() < end;
            drop(waiting);
            match received {
                Ok(Ok(received)) => {
                    self.wire.set_multishot(true);
                    return Some(received.is_some_and(|buf| self.input.add(buf, usize::MAX)));
                }
                // Woken to release a configuration version, which otherwise would live as long as the client waits.
                Err(rt::Elapsed)
                    if may_stay
                        && (self.renew() || is_protected)
                        && self.listen_socket.serves(&self.default.thread_config, &self.info) => {}
                Ok(Err(_)) | Err(rt::Elapsed) => return None,
            }
        }
    }

    /// Returns the deadline for the next request; or a result if no wait is needed.
    fn begin_to_wait(&mut self) -> ControlFlow<Option<bool>, Instant> {
        // After a long body, a multishot receive would receive the next body in small pieces before its length is known.
        let had_body = std::mem::take(&mut self.had_long_body);
        self.wire.set_multishot(!had_body);
        // The client received the last response and sent the next request before this turn.
        if let Some(received) = self.wire.try_recv() {
            self.wire.set_multishot(true);
            let received = received.ok().map(|buf| buf.is_some_and(|buf| self.input.add(buf, usize::MAX)));
            return ControlFlow::Break(received);
        }
        let is_draining = self.thread.is_draining();
        // The client may already have sent its next request, so it gets a short time.
        let mut wait = if is_draining { self.keepalive.min_timeout } else { self.keepalive.timeout };
        if wait == Duration::ZERO && is_draining {
            if self.wire.is_quiet() {
                return ControlFlow::Break(None);
            }
            // The last response permitted another request, which may need one more event-loop turn to arrive.
            wait = PENDING_INPUT_MAX;
        }
        ControlFlow::Continue(rt::now() + wait)
    }

    /// Receives more bytes of the request; see [`Input::receive`](crate::input::Input::receive).
    pub(super) fn receive(&mut self, most: usize) -> impl Future<Output = Result<bool, Errno>> {
        self.input.receive(&mut self.wire, &self.timer, most)
    }

    /// Works like [`Connection::receive`]; returns `ECANCELED` if the connection is closed during the wait to free resources.
    pub(super) async fn receive_unless_reclaimed(&mut self, kind: Waits, most: usize) -> Result<bool, Errno> {
        let thread = Rc::clone(&self.thread);
        let waiting = thread.capacity.waits(kind, &self.timer, self.wire.fd());
        match self.receive(most).await {
            Err(Errno::TIMEDOUT) if waiting.is_chosen() => Err(Errno::CANCELED),
            received => received,
        }
    }

    /// Moves the bytes of the header section to the request; the bytes after them remain in the input.
    fn take_head(&mut self, request: &mut Request, head_len: usize) -> Received {
        let (mut held, start) = self.input.take().expect("a head was parsed in it");
        let rest = start + head_len;
        assert!(rest <= held.bytes().len(), "the header section is in the input");
        let left = &held.bytes()[rest..];
        if !left.is_empty() {
            // Bytes of a body, or of the next request, were received too: they move to a separate buffer.
            let Some(mut own) = rt::pool().get(left.len()) else { return Received::Closed };
            own.append(left);
            self.input = own.into();
        }
        match &mut held {
            Source::Buf(buf) => buf.set_len(rest),
            Source::Vec(bytes) => bytes.truncate(rest),
            _ => {}
        }
        // As in nginx, empty lines before the request do not count.
        request.received = (head_len as u64).saturating_sub(request.head.request_line().start.into());
        request.take_head(held, start);
        if let Some(line) = request.head.first_ignored() {
            let line = line.of(request.bytes()).for_log();
            request.log(Level::Info, format_args!("client sent invalid header line: \"{line}\""));
        }
        Received::Head
    }

    /// Logs why a header section remains incomplete.
    fn fail_head(&mut self, request: &mut Request, status: u16, why: fmt::Arguments<'_>) -> Received {
        self.retain_for_log(request);
        // Bytes of the last line are not counted.
        request.received = request.received.min(request.head.line_start().into());
        let part = part_in_progress(request);
        request.log(Level::Info, format_args!("{why} while reading client request {part}"));
        Received::Abandoned(status)
    }

    /// Makes the received part of an incomplete header section available to the log. As in nginx this is the request line as far as
    /// received, and its parts if it is valid.
    fn retain_for_log(&mut self, request: &mut Request) {
        if let Some((held, start)) = self.input.take() {
            debug_assert!(start <= held.bytes().len(), "the unused bytes begin within the input");
            let received = (held.bytes().len() - start) as u64;
            request.take_head(held, start);
            if !request.head.request_line().is_empty() {
                request.received = received;
                // The request is already refused; an invalid URI makes no difference.
                let _ = course::read_uri(request);
            }
        }
    }
}

/// Returns the part of the header section that is incomplete or invalid, as messages of nginx name it.
fn part_in_progress(request: &Request) -> &'static str {
    if request.head.in_request_line() { "line" } else { "headers" }
}
