//! Writing an answer: its head in nginx's order, then the body by the cheapest way there is.

use std::rc::Rc;
use std::time::Duration;

use http::connection::{Browser, Expect};
use http::request::{HeaderId, Method, Version};
use http::response::{ConnectionField, HeadWriter, ResponseHead};
use http::{StatusCode, connection};
use io::Segments;
use io::op::Source;

use crate::h1::outlet::Http1Outlet;
use crate::h1::pump::Pending;
use crate::h1::{After, Connection};
use exchange::request::Request;
use exchange::response::Body;
use exchange::settings::core::Core;
use exchange::takeover::{Ended, TakeoverEnd};
use exchange::{effect, error_page, prepare, sending};
use telemetry::{Level, Reason};
use transfer::body::{BodyError, Outlet, Rate, SendError};

/// What is known of an answer that cannot leave at once.
pub(super) struct Held {
    head: Vec<u8>,
    rate: Option<Box<Rate>>,
    /// Whether the client is told to send its body first.
    go_on: bool,
}

/// An answer in memory that is on its way.
pub(super) struct Sending {
    data: Segments,
    /// Bytes of all of it.
    len: usize,
    /// Whether the connection ends with it.
    ends: bool,
    timeout: Duration,
}

impl Connection {
    /// Whether client and server want to go on after this request; [`keeps`] is for when its location is known.
    pub(super) fn may_keep_alive(&self, request: &Request) -> bool {
        connection::wants_keep_alive(&request.head, request.bytes()) && !self.thread.is_draining()
    }

    /// What follows an answer that was sent, or could not be.
    pub(super) fn after(&mut self, request: &mut Request, sent: Result<(), BodyError>) -> After {
        request.completed = sent.is_ok();
        match sent {
            Ok(()) if request.keepalive => After::KeepAlive,
            Ok(()) => After::Close,
            Err(error) => self.failed(request, &error),
        }
    }

    /// Writes the head: all of the answer, where that is in memory, or what its body needs.
    pub(super) fn prepare(&mut self, request: &mut Request) -> Result<Segments, Pending> {
        let generation = Rc::clone(&request.generation);
        let core = &generation.config.location(request.location).scope.core;
        if self.thread.is_draining() || !keeps(core, request) {
            request.keepalive = false;
        }
        let go_on = self.client_waits_to_send(request);
        if go_on == Some(false) {
            // It may send its body or not; nobody could tell that from the next request.
            request.keepalive = false;
        }
        let mut head = std::mem::take(&mut request.spare);
        prepare::frame(request, core);
        if !write_head(request, core, &mut head) {
            request.log(Level::Error, format_args!("a response header field has a control character"));
            request.keepalive = false;
            // Whichever field it was, none of them comes again.
            request.response.clear();
            error_page::respond(request, 500);
            write_head(request, core, &mut head);
        }
        request.sent_head = head.len() as u64;
        if let Body::Tunnel(_) = request.response.body {
            return Err(Pending::Tunnel(head));
        }
        let rate = effect::rate(core, request);
        let go_on = go_on == Some(true);
        if rate.is_some() || go_on {
            return Err(Pending::Pieces(Held { head, rate: rate.map(Box::new), go_on }));
        }
        prepare::at_hand(request, core, head).map_err(|head| match prepare::in_one_read(request, core) {
            Some((file, read)) => Pending::Read(Box::pin(file.read_behind(head, read))),
            None => Pending::Pieces(Held { head, rate: None, go_on: false }),
        })
    }

    /// Sends an answer that is in memory as a whole, as far as that goes without a wait; then there is nothing left of it.
    /// Where it `may_end` the connection, the last bytes of the answer and that end leave in one segment.
    pub(super) fn begin_to_send(
        &mut self,
        request: &mut Request,
        mut data: Segments,
        may_end: bool,
    ) -> Result<Option<Sending>, BodyError> {
        let len = data.len();
        let (ends, timeout) = {
            let core = &request.scope().core;
            (may_end && !request.keepalive && self.closes_at_once(request, core), core.sending.send_timeout)
        };
        if self.is_sent_directly(request, len, ends) {
            self.wire.send_now(&mut data, ends).map_err(SendError::Gone)?;
        }
        let is_sent = data.is_empty();
        let mut sending = Sending { data, len, ends, timeout };
        if is_sent {
            self.end_sending(request, &mut sending);
            return Ok(None);
        }
        Ok(Some(sending))
    }

    pub(super) async fn go_on_sending(
        &mut self,
        request: &mut Request,
        sending: &mut Sending,
    ) -> Result<(), BodyError> {
        self.wire.send(&self.timer, sending.timeout, &mut sending.data, sending.ends).await?;
        self.end_sending(request, sending);
        Ok(())
    }

    fn end_sending(&mut self, request: &mut Request, sending: &mut Sending) {
        request.sent = sending.len as u64;
        if let Some(head) = sending.data.take_vec() {
            request.keep_spare(head);
        }
        if sending.ends {
            // Not left to the close: with bytes in the socket that nobody has read, that is a reset, which would
            // take the answer along.
            self.wire.shutdown_write();
        }
    }

    /// Whether an answer goes out by a call of this thread: the last one of a connection, and each where the engine would
    /// make that call itself. A ring sends many with one entry into the kernel. Of a client that does not wait for its
    /// answers each takes a turn of the engine, so that others have theirs.
    fn is_sent_directly(&self, request: &Request, len: usize, is_last: bool) -> bool {
        let thread = &self.thread;
        let is_cheaper = is_last || !thread.has_ring;
        is_cheaper && thread.calls_directly && len <= SENT_DIRECTLY_MAX && !request.pipelined
    }

    /// Sends an answer piece after piece.
    pub(super) async fn send_bit_by_bit(
        &mut self,
        request: &mut Request,
        held: Held,
    ) -> Result<(), BodyError> {
        let generation = Rc::clone(&request.generation);
        let core = &generation.config.location(request.location).scope.core;
        let (rate, chunked) = (held.rate.map(|rate| *rate), request.response.chunked);
        let mut outlet = Http1Outlet::new(&mut self.wire, &self.timer, &core.sending, rate, chunked);
        outlet.call_directly(self.thread.calls_directly);
        if held.go_on {
            outlet.tell_to_go_on();
        }
        let result = sending::send(&mut outlet, held.head, request).await;
        request.sent = outlet.sent();
        request.keep_spare(outlet.take_spare());
        drop(outlet);
        if result.as_ref().is_err_and(|error| ends_in_reset(error, request)) {
            self.acknowledged(core.sending.send_timeout).await;
        }
        result
    }

    /// Waits until the client has acknowledged everything, but not longer than it may take nothing: what is on its way would
    /// be lost in a reset. The kernel does not tell when that is, so it is asked again and again.
    async fn acknowledged(&self, timeout: Duration) {
        let mut left = self.wire.unacknowledged();
        let mut until = rt::now() + timeout;
        while left > 0 && rt::now() < until {
            rt::sleep_until(rt::now() + ACKNOWLEDGED_EVERY).await;
            let now = self.wire.unacknowledged();
            if now < left {
                until = rt::now() + timeout;
            }
            left = now;
        }
    }

    /// Says that the connection goes over to another protocol, and passes that on.
    pub(super) async fn tunnel(&mut self, request: &mut Request, head: Vec<u8>) -> After {
        let Body::Tunnel(tunnel) = std::mem::take(&mut request.response.body) else { return After::Drop };
        request.keepalive = false;
        if request.scope().core.sending.tcp_nodelay {
            // What passes through is short and waits for no more; the upstream's connection was made so.
            self.wire.set_nodelay();
        }
        let mut data = Segments::new();
        data.push(Source::Vec(head));
        let sent = match self.begin_to_send(request, data, false) {
            Ok(Some(mut sending)) => self.go_on_sending(request, &mut sending).await,
            sent => sent.map(drop),
        };
        if let Err(error) = sent {
            return self.failed(request, &error);
        }
        let early = std::mem::take(&mut self.input);
        let TakeoverEnd { reason, sent } = tunnel.run(&mut self.wire, &self.timer, early.bytes()).await;
        request.sent += sent;
        request.completed = reason == Ended::Closed;
        let doing = "while proxying upgraded connection";
        match reason {
            Ended::Closed => {}
            Ended::Idle => {
                let why = Reason(io::Errno::TIMEDOUT);
                request.log(Level::Error, format_args!("upstream timed out ({why}) {doing}"));
            }
            Ended::Upstream(errno) => {
                request.log(
                    Level::Error,
                    format_args!("upstream connection failed ({}) {doing}", Reason(errno)),
                );
            }
            Ended::Client(errno) => {
                request
                    .log(Level::Info, format_args!("client connection failed ({}) {doing}", Reason(errno)));
            }
        }
        After::Drop
    }

    /// Whether a client that sent `Expect: 100-continue` is told to send its body; `None` without one.
    fn client_waits_to_send(&self, request: &Request) -> Option<bool> {
        let waits = connection::expect(&request.head, request.bytes()) == Expect::Continue
            && request.head.body().has_body()
            && !request.body_is_taken
            && self.input.bytes().is_empty();
        waits.then_some(request.keepalive && request.response.status < 300)
    }

    /// The client has a part of the answer at most: the connection cannot go on.
    fn failed(&mut self, request: &Request, error: &BodyError) -> After {
        let mut path = Vec::new();
        exchange::files::path_of(request, &request.uri, &mut path);
        let path = exchange::files::display(&path);
        match error {
            BodyError::Send(SendError::TimedOut) => {
                request.log(
                    Level::Info,
                    format_args!("client timed out (110: Connection timed out) while sending response to client"),
                );
                if request.scope().core.keeping.reset_timedout_connection {
                    self.wire.set_reset_on_close();
                }
            }
            BodyError::Send(SendError::Gone(errno)) => {
                request.log(
                    Level::Info,
                    format_args!("send() failed ({}) while sending response to client", Reason(*errno)),
                );
            }
            BodyError::Read(errno) => {
                request.log(
                    Level::Crit,
                    format_args!("read of \"{path}\" failed ({}) while sending response to client", Reason(*errno)),
                );
            }
            BodyError::Shrunk { at } => request.log(
                Level::Alert,
                format_args!(
                    "\"{path}\" ends at byte {at}, it was longer when it was opened, while sending response to client"
                ),
            ),
            // Said where it happened, with the reason, or by the module that passed the request on.
            BodyError::Filter | BodyError::Broken => {}
            BodyError::NoMemory => {
                request.log(
                    Level::Alert,
                    format_args!("no buffer for \"{path}\": the pool of this thread is at its limit"),
                );
            }
        }
        if ends_in_reset(error, request) {
            self.wire.set_reset_on_close();
        }
        After::Drop
    }
}

/// Whether the body broke off for a client that takes the orderly end of the connection for the end of the body.
fn ends_in_reset(error: &BodyError, request: &Request) -> bool {
    let response = &request.response;
    !matches!(error, BodyError::Send(_)) && !response.chunked && response.content_length.is_none()
}

/// Whether the location keeps the connection for another request.
fn keeps(core: &Core, request: &Request) -> bool {
    let info = &request.conn;
    !core.keeping.keepalive_timeout.is_zero()
        && info.requests.get() < core.keeping.keepalive_requests
        && rt::now().duration_since(info.opened) < core.keeping.keepalive_time
        && !is_disabled(core, request)
}

/// Whether the client is a browser that fails on kept connections.
fn is_disabled(core: &Core, request: &Request) -> bool {
    let disable = core.keeping.keepalive_disable;
    if !disable.msie6 && !disable.safari {
        return false;
    }
    let browser = request.header(HeaderId::UserAgent).map(Browser::detect).unwrap_or_default();
    // Of the request as it came: an error page is fetched with GET.
    (disable.msie6 && browser.msie6 && request.head.method() == Method::Post)
        || (disable.safari && browser.safari)
}

/// Bytes that are sent by a call of this thread: from here on the engine may send without a copy (`zero_copy`).
const SENT_DIRECTLY_MAX: usize = 16 << 10;

/// Time between two looks at what a client has acknowledged: about a round trip.
const ACKNOWLEDGED_EVERY: Duration = Duration::from_millis(10);

/// Appends the head; `false`, with nothing appended, when one of its values must not be sent.
fn write_head(request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool {
    let response = &request.response;
    let status = StatusCode::new(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let location = response.location.as_deref().map(|location| effect::location(core, request, location));
    let signature = effect::signature(&core.answering.server_tokens, request);
    let mut date = *request.conn.thread.dates().http();
    if let Some(theirs) = response.date.as_deref().and_then(http::date::parse_http) {
        date = http::date::http(theirs);
    }
    let timeout_s = core.keeping.keepalive_header.map(|seconds| seconds.min(u64::from(u32::MAX)) as u32);
    // What HTTP/1.0 clients know is in the field; 1.1 keeps connections unless told otherwise, but nginx says so.
    let connection = match request.keepalive {
        _ if matches!(response.body, Body::Tunnel(_)) => ConnectionField::Upgrade,
        true => ConnectionField::KeepAlive { timeout_s },
        false => ConnectionField::Close,
    };
    debug_assert!(matches!(request.head.version(), Version::Http10 | Version::Http11));
    // 204 has no content, so neither has it a length (RFC 9110 section 8.6). A type is of no use then, but what another
    // server says is passed on, as in nginx.
    let has_content = response.status != 204;
    let has_type = has_content || response.reason.is_some();
    let head = ResponseHead {
        reason: response
            .reason
            .as_ref()
            .filter(|reason| reason.status == response.status)
            .and_then(|reason| reason.text.as_deref()),
        server: response.server.as_deref().or(signature.as_deref()).filter(|server| !server.is_empty()),
        content_type: response.content_type.of(request).map(str::as_bytes).filter(|_| has_type),
        charset: response.charset.as_deref(),
        content_length: response.content_length.filter(|_| has_content),
        last_modified: response.last_modified,
        location: location.as_deref(),
        chunked: response.chunked,
        connection,
        vary_accept_encoding: response.vary_accept_encoding
            && request.scope().core.answering.gzip_clients.vary,
        ..ResponseHead::new(status, &date)
    };
    let mut opening = request.conn.thread.opening.borrow_mut();
    let Ok(mut writer) = HeadWriter::begin(out, &head, &mut opening) else { return false };
    let mut ok = true;
    let mut field = |name: &[u8], value: &[u8]| ok &= writer.field(name, value).is_ok();
    // Where nginx has it: the access phase is behind it when other fields are made.
    for value in &response.www_authenticate {
        field(b"WWW-Authenticate", value);
    }
    if let Some(etag) = &response.etag {
        field(b"ETag", etag.as_bytes());
    }
    for (name, value) in &response.fields {
        field(name, value);
    }
    if response.allow_ranges {
        field(b"Accept-Ranges", b"bytes");
    }
    if let Some(range) = &response.content_range {
        field(b"Content-Range", range);
    }
    writer.finish();
    if !ok {
        out.clear();
    }
    ok
}
