//! Sending an HTTP/1 response: keep-alive decisions, and responses that are completely in memory.
//!
//! | response | sent by |
//! |---|---|
//! | the last response of a connection | a direct call of this thread, in one segment with the FIN |
//! | others, if the engine would make the call itself (epoll) | the same call |
//! | others (io_uring) | the engine, which submits many sends with one system call |
//! | larger than [`SENT_DIRECTLY_MAX`], or to a client that pipelines requests | the engine |

use std::time::Duration;

use http::connection::{self, Browser, Expect};
use http::fields::{HeaderId, Method};
use io::Segments;

use crate::h1::Connection;
use exchange::reclaim::Stall;
use exchange::request::Request;
use site::settings::core::Core;
use transfer::body::{BodyError, SendError};

/// A response in memory that is being sent.
pub(super) struct Sending {
    data: Segments,
    /// Total number of bytes.
    len: usize,
    /// Whether the connection ends after this response.
    ends: bool,
    timeout: Duration,
}

impl Sending {
    /// Returns the number of bytes that were passed to the kernel. Bytes that the engine still owns do not count.
    pub(super) fn sent(&self) -> u64 {
        debug_assert!(self.data.len() <= self.len, "a send removes the sent bytes");
        if self.data.is_empty() { 0 } else { (self.len - self.data.len()) as u64 }
    }
}

impl Connection {
    /// Whether the client requests keep-alive, and this server is not leaving. [`permits_keepalive`] applies once the location of
    /// the request is known.
    pub(super) fn may_keep_alive(&self, request: &Request) -> bool {
        connection::requests_keep_alive(&request.head, request.bytes()) && !self.thread.is_leaving()
    }

    /// Decides on keep-alive; returns whether the client gets a 100 response.
    pub(super) fn decide_keep_alive(&self, request: &mut Request, core: &Core) -> bool {
        if self.is_to_end() || !permits_keepalive(core, request) {
            request.keepalive = false;
        }
        let go_on = self.client_waits_to_send(request);
        if go_on == Some(false) {
            // The client may or may not send its body, which could not be distinguished from the next request.
            request.keepalive = false;
        }
        go_on == Some(true)
    }

    /// Whether the connection ends after this response: its thread stops, or a reload has removed its address.
    fn is_to_end(&self) -> bool {
        let is_served = || self.listen_socket.serves(&self.thread.thread_config(), &self.info);
        self.thread.is_leaving() || !self.thread.is_in_force(&self.default.thread_config) && !is_served()
    }

    /// Sends a response that is completely in memory as far as possible without waiting; returns the unsent part, if any. If it
    /// `may_end` the connection, the last bytes and the FIN are sent in one segment.
    pub(super) fn begin_to_send(
        &mut self,
        request: &mut Request,
        mut data: Segments,
        may_end: bool,
    ) -> Result<Option<Sending>, BodyError> {
        let len = data.len();
        let (ends, timeout) = {
            let core = &request.scope().core;
            (
                may_end && !request.keepalive && self.closes_immediately(request, core),
                core.sending.send_timeout,
            )
        };
        if self.is_sent_directly(request, len, ends) {
            self.wire.send_now(&mut data, ends).map_err(SendError::Closed)?;
        }
        let is_sent = data.is_empty() && !self.wire.has_unsent();
        let mut sending = Sending { data, len, ends, timeout };
        if is_sent {
            self.end_sending(request, &mut sending);
            return Ok(None);
        }
        Ok(Some(sending))
    }

    pub(super) async fn continue_sending(
        &mut self,
        request: &mut Request,
        sending: &mut Sending,
    ) -> Result<(), BodyError> {
        let Sending { data, timeout, ends, .. } = sending;
        let sent = self.wire.send(&self.thread, &self.timer, *timeout, data, *ends).await;
        if sent.is_err() {
            request.sent = sending.sent();
        }
        sent?;
        self.end_sending(request, sending);
        Ok(())
    }

    fn end_sending(&mut self, request: &mut Request, sending: &mut Sending) {
        request.sent = sending.len as u64;
        if let Some(head) = sending.data.take_vec() {
            request.store_spare(head);
        }
        if sending.ends {
            // An explicit shutdown, because closing a socket with unread bytes sends a reset, which would discard the response.
            self.wire.shutdown_write();
        }
    }

    /// Whether a response is sent by a direct call of this thread: the last response of a connection, and every response if the
    /// engine would make the same call itself. io_uring submits many sends with one system call. For a client that pipelines
    /// requests, each response needs an event-loop turn, so that other connections are served too.
    fn is_sent_directly(&self, request: &Request, len: usize, is_last: bool) -> bool {
        let thread = &self.thread;
        let is_cheaper = is_last || !thread.has_ring;
        is_cheaper && thread.calls_directly && len <= SENT_DIRECTLY_MAX && !request.pipelined
    }

    /// Waits until the client has acknowledged all bytes, because a reset would lose bytes in flight. Gives up after `send_timeout`
    /// without progress. The kernel has no event for acknowledgements, so the number of unacknowledged bytes is polled.
    pub(super) async fn acknowledged(&self, timeout: Duration) {
        let mut left = self.wire.unacknowledged();
        let stall = Stall::begin(&self.thread, &self.timer, self.wire.fd(), self.wire.progress());
        let mut until = rt::now() + timeout;
        while left > 0 && rt::now() < until && !stall.is_chosen() {
            rt::sleep_until(rt::now() + ACKNOWLEDGED_EVERY).await;
            let now = self.wire.unacknowledged();
            if now < left {
                until = rt::now() + timeout;
            }
            left = now;
        }
    }

    /// Applies `reset_timedout_connection` to a connection that is closed without a response: after a timeout, and by `return 444`.
    pub(super) fn reset_if_timed_out(&self, request: &Request) {
        let is_meant = request.sent == 0 && (self.has_timed_out || request.response.status == 444);
        if is_meant && request.scope().core.keepalive.reset_timedout_connection {
            self.wire.set_reset_on_close();
        }
    }

    /// Whether a client that sent `Expect: 100-continue` gets a 100 response; `None` without that field.
    fn client_waits_to_send(&self, request: &Request) -> Option<bool> {
        let waits = connection::expect(&request.head, request.bytes()) == Expect::Continue
            && request.head.body().has_body()
            && !request.is_body_consumed
            && self.input.bytes().is_empty();
        waits.then_some(request.keepalive && request.response.status < 300)
    }
}

/// Whether a broken body must end in a reset: the client would treat an orderly end of the connection as the end of the body.
pub(super) fn ends_in_reset(error: &BodyError, request: &Request) -> bool {
    let response = &request.response;
    let is_clients = matches!(error, BodyError::Send(reason) if *reason != SendError::CutOff);
    !is_clients && !response.chunked && response.content_length.is_none()
}

/// Whether the location permits keep-alive after this request.
fn permits_keepalive(core: &Core, request: &Request) -> bool {
    let info = &request.conn;
    core.keepalive.permits(info.requests.get(), rt::now().duration_since(info.opened))
        && !is_disabled(core, request)
}

/// Whether keep-alive is disabled for the client's browser.
fn is_disabled(core: &Core, request: &Request) -> bool {
    let disable = core.keepalive.keepalive_disable;
    let Some(agent) = request.header(HeaderId::UserAgent) else { return false };
    // The method of the original request: an error page is fetched with GET.
    let is_post = request.head.method() == Method::Post;
    (disable.msie6 && is_post && Browser::is_msie6(agent))
        || (disable.safari && Browser::detect(agent).safari)
}

/// Maximum size in bytes of a response sent by a direct call; above it the engine may use zero-copy sends (`zero_copy`).
const SENT_DIRECTLY_MAX: usize = 16 << 10;

/// Interval of checking the acknowledged bytes: about a round trip.
const ACKNOWLEDGED_EVERY: Duration = Duration::from_millis(10);
