//! One try: sends a request on a connection and receives the header section of the response.
//!
//! Sending and receiving run concurrently: an upstream may respond before it has received the complete request, and may close the
//! connection without reading a body that it refuses.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use http::StatusCode;
use http::fields::HeaderId;
use http::gateway::{Decoder, HeadEvent, UpstreamProtocol};
use http::response::parse::{FIELDS_MAX_DEFAULT, HeadWriter, Limits, ParsedResponse, ResponseError};
use io::segments::Source;
use io::{Buf, Errno};

use crate::h2::Cut;
use crate::heading::Heading;
use crate::link::Link;
use crate::outgoing::Outgoing;
use crate::sending::{SendFailure, Sending};
use crate::settings::Settings;
use crate::state::{Try, log_messages};
use crate::wire::Wire;
use exchange::request::Request;
use telemetry::{ForLog, Level, Reason};
use transfer::incoming::BodyAborted;

/// Result of a try that received a response.
pub(super) struct TryResponse {
    pub(super) heading: Rc<Heading>,
    /// The bytes received after the header section.
    pub(super) rest: Option<Buf>,
    /// Whether the receive that returned these bytes filled its buffer, so that more bytes are available.
    pub(super) is_full: bool,
    /// Decodes the framing of the body.
    pub(super) decoder: Decoder,
    /// Whether the request permits reuse of the connection after the body.
    pub(super) keep_alive: bool,
    /// The unsent remainder of the request, if the response arrived before the request was sent completely.
    pub(super) sending: Option<Sending>,
}

/// Reason why a try failed, already logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TryError {
    /// The connection could not be established, or broke.
    Failed,
    /// A timeout expired.
    TimedOut,
    /// The response is invalid in the protocol of the upstream.
    InvalidHeader,
    /// This server failed: no buffer was available, or the request body could not be read from its file.
    Local,
    /// The client's body could not be read; the client gets this status.
    Client(u16),
}

/// Maximum number of interim responses before the final response; it stops an upstream that sends them endlessly.
const INTERIM_MAX: u32 = 64;

/// Sends the request and reads the header section of the response. `sent` is set before the first byte of the request is sent.
pub(super) async fn run(
    request: &Request,
    settings: &Settings,
    outgoing: &Outgoing,
    link: &mut Link,
    record: &Rc<Try>,
    sent: &Cell<bool>,
) -> Result<TryResponse, TryError> {
    if outgoing.encoded.protocol() == UpstreamProtocol::Bytes {
        return connected(outgoing)
            .map_err(|error| log_failure(request, HeadError::Invalid(error, None), None, false));
    }
    let is_reused = link.requests > 0;
    link.requests += 1;
    let timer = link.timer.clone();
    link.wire.set_request(outgoing.method, limits(settings));
    sent.set(true);
    // A failed send does not end the try: the upstream may have sent an early response.
    let (mut sending, send_result) = match Sending::begin(link, settings, outgoing, request, record) {
        Ok(None) => (None, Cell::new(Some(Ok(())))),
        Ok(sending) => (sending, Cell::default()),
        Err(failure) => (None, Cell::new(Some(Err(failure)))),
    };
    let restart_timer = || {
        // Until the request is sent, the timer has the deadline of the send; while the client's body is awaited, it is off.
        if send_result.get().is_some() {
            timer.set(rt::now() + settings.read_timeout);
        }
    };
    restart_timer();
    let mut reading = pin!(read_head(&mut link.wire, restart_timer, settings, outgoing, request, record));
    let read = poll_fn(|context| {
        if let Some(unsent) = &mut sending
            && let Poll::Ready(result) = unsent.poll(context)
        {
            sending = None;
            send_result.set(Some(result));
            restart_timer();
        }
        match send_result.get() {
            Some(Err(SendFailure::Client(cut))) => return Poll::Ready(Some(Err(HeadError::Client(cut)))),
            Some(Err(SendFailure::Local(errno))) => {
                return Poll::Ready(Some(Err(HeadError::Local(errno))));
            }
            _ => {}
        }
        if let Poll::Ready(result) = reading.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        timer.poll_elapsed(context).map(|_| None)
    })
    .await;
    match read {
        Some(Ok(mut response)) => {
            // After a partial request the upstream waits for the remainder: the send must continue, or the connection is closed.
            response.keep_alive = outgoing.keepalive && !matches!(send_result.get(), Some(Err(_)));
            response.sending = sending;
            Ok(response)
        }
        None => Err(log_timeout(request, send_result.get().is_some())),
        Some(Err(try_error)) => {
            let send_errno = match send_result.get() {
                Some(Err(SendFailure::Send(errno))) => Some(errno),
                _ => None,
            };
            Err(log_failure(request, try_error, send_errno, is_reused))
        }
    }
}

/// Logs that the upstream has not accepted the request or has not responded in time.
fn log_timeout(request: &Request, is_sent: bool) -> TryError {
    let doing = if is_sent { READING } else { SENDING };
    request.log(Level::Error, format_args!("upstream timed out ({}) {doing}", Reason(Errno::TIMEDOUT)));
    TryError::TimedOut
}

/// Phrases of nginx's error log.
const SENDING: &str = "while sending request to upstream";
/// What a try does while it waits for the header section, for the error log.
const READING: &str = "while reading response header from upstream";

/// Reason why no head was received.
enum HeadError {
    Closed,
    Receive(Errno),
    Cut(Cut),
    /// With the text that nginx appends to the message, such as the offending line.
    Invalid(ResponseError, Option<String>),
    /// A 101 without an upgrade request, too many interim responses, or a message that `fastcgi_catch_stderr` names.
    Unexpected(&'static str),
    Local(Errno),
    Client(BodyAborted),
}

/// Logs a failed try.
fn log_failure(
    request: &Request,
    try_error: HeadError,
    send_errno: Option<Errno>,
    is_reused: bool,
) -> TryError {
    if let (Some(errno), HeadError::Closed | HeadError::Receive(_)) = (send_errno, &try_error) {
        request.log(Level::Error, format_args!("send() failed ({}) {SENDING}", Reason(errno)));
        return TryError::Failed;
    }
    match try_error {
        HeadError::Closed => {
            // An upstream may close an idle connection at any time.
            let level = if is_reused { Level::Info } else { Level::Error };
            request.log(level, format_args!("upstream prematurely closed connection {READING}"));
            TryError::Failed
        }
        HeadError::Receive(errno) => {
            request.log(Level::Error, format_args!("recv() failed ({}) {READING}", Reason(errno)));
            TryError::Failed
        }
        HeadError::Cut(cut) => {
            let level = if is_reused && cut == Cut::Closed { Level::Info } else { Level::Error };
            request.log(level, format_args!("{cut} {READING}"));
            if cut.is_invalid_response() { TryError::InvalidHeader } else { TryError::Failed }
        }
        HeadError::Invalid(error, line) => {
            let line = line.unwrap_or_default();
            request.log(Level::Error, format_args!("{}{line} {READING}", error.message()));
            TryError::InvalidHeader
        }
        HeadError::Unexpected(what) => {
            request.log(Level::Error, format_args!("upstream sent {what} {READING}"));
            TryError::InvalidHeader
        }
        HeadError::Local(errno) => {
            request.log(
                Level::Alert,
                format_args!("no buffer, or no body to send ({}) {SENDING}", Reason(errno)),
            );
            TryError::Local
        }
        HeadError::Client(aborted) => {
            log_aborted(aborted, request);
            TryError::Client(aborted.status())
        }
    }
}

/// Logs that the client's body is incomplete.
fn log_aborted(aborted: BodyAborted, request: &Request) {
    match aborted {
        BodyAborted::TimedOut => {
            let what = "client timed out (110: Connection timed out)";
            request.log(Level::Info, format_args!("{what} {SENDING}"));
        }
        BodyAborted::Closed => {
            request.log(Level::Info, format_args!("client prematurely closed connection {SENDING}"));
        }
        BodyAborted::StreamClosed => {
            request.log(Level::Info, format_args!("client prematurely closed stream {SENDING}"));
        }
        BodyAborted::Invalid => {
            request.log(Level::Error, format_args!("client sent invalid chunked body {SENDING}"));
        }
        BodyAborted::TooLarge(total, more) => {
            let what = "client intended to send too large chunked body";
            request.log(Level::Error, format_args!("{what}: {total}+{more} bytes {SENDING}"));
        }
        BodyAborted::Lost(errno) => {
            let reason = Reason(errno);
            request.log(Level::Crit, format_args!("reading a temporary file failed ({reason}) {SENDING}"));
        }
        BodyAborted::NoBuffer => {
            let what = "no buffer for the request body: the pool of this thread is at its limit";
            request.log(Level::Alert, format_args!("{what} {SENDING}"));
        }
    }
}

/// Returns the limits for the head of the response.
fn limits(settings: &Settings) -> Limits {
    let head_max = settings.head_max.min(u64::from(u32::MAX / 2)) as u32;
    Limits { head_max, fields_max: FIELDS_MAX_DEFAULT }
}

/// Reads heads until a final response. Calls `restart_timer` after an interim response.
async fn read_head(
    wire: &mut Wire,
    restart_timer: impl Fn(),
    settings: &Settings,
    outgoing: &Outgoing,
    request: &Request,
    record: &Try,
) -> Result<TryResponse, HeadError> {
    let limits = limits(settings);
    let head_max = limits.head_max;
    let mut decoder = Decoder::new(&outgoing.encoded, outgoing.method, limits);
    // Created where it remains, because it is large.
    let mut shared_head = Arc::new(ParsedResponse::new());
    let mut input: Option<Buf> = None;
    let mut interim = 0;
    loop {
        let received = wire.recv().await;
        let received =
            received.map_err(|errno| wire.cut().map_or(HeadError::Receive(errno), HeadError::Cut))?;
        let Some(mut received) = received else { return Err(HeadError::Closed) };
        record.count_received(received.len());
        let is_full = received.len() == received.capacity();
        let range = decoder.unframe(&mut received).map_err(|error| HeadError::Invalid(error, None))?;
        debug_assert!(range.end <= received.len(), "the bytes are part of the input");
        received.set_len(range.end);
        received.advance(range.start);
        if let Some(text) = decoder.take_messages() {
            log_messages(request, &text, READING);
            if outgoing.caught.iter().any(|words| memchr::memmem::find(&text, words.as_bytes()).is_some()) {
                return Err(HeadError::Unexpected("a message that \"fastcgi_catch_stderr\" names"));
            }
        }
        let mut buf =
            join(input.take(), received, head_max as usize).ok_or(HeadError::Local(Errno::NOMEM))?;
        loop {
            let head = Arc::get_mut(&mut shared_head).expect("it is shared when it is complete");
            match decoder.head(head, &buf) {
                Ok(HeadEvent::More) => break,
                Ok(HeadEvent::NoHead) => return Ok(bare(request, decoder, buf)),
                Ok(HeadEvent::Interim(head_len)) => {
                    interim += 1;
                    if interim > INTERIM_MAX {
                        return Err(HeadError::Unexpected("too many interim responses"));
                    }
                    hand_on(request, outgoing, head, &buf[..head_len as usize]).await;
                    head.clear();
                    buf.advance(head_len as usize);
                    restart_timer();
                    if buf.is_empty() {
                        break;
                    }
                }
                Ok(HeadEvent::Head(head_len)) => {
                    let heading = complete(request, outgoing, wire, shared_head, &buf[..head_len as usize])?;
                    return Ok(with_body(heading, buf, head_len as usize, is_full, decoder));
                }
                Ok(HeadEvent::Written(len)) => {
                    let heading = written(request, &mut decoder, shared_head);
                    return Ok(with_body(heading, buf, len as usize, is_full, decoder));
                }
                Err(error) => {
                    let line = offending(error, head, &buf);
                    let shown = line.map(|line| shown(error, head, &buf, &line, outgoing));
                    return Err(HeadError::Invalid(error, shown));
                }
            }
        }
        input = (!buf.is_empty()).then_some(buf);
    }
}

/// Returns the response with the body bytes that follow the header section in `buf`. The header section has `head_len` bytes.
fn with_body(
    heading: Rc<Heading>,
    mut buf: Buf,
    head_len: usize,
    is_full: bool,
    decoder: Decoder,
) -> TryResponse {
    debug_assert!(head_len <= buf.len(), "the complete header section is in the buffer");
    buf.advance(head_len);
    let rest = (!buf.is_empty()).then_some(buf);
    TryResponse { heading, rest, is_full, decoder, keep_alive: true, sending: None }
}

/// Returns the offending line of a head; `None` for errors whose message in nginx has no line.
fn offending(error: ResponseError, head: &ParsedResponse, buf: &[u8]) -> Option<Vec<u8>> {
    if !error.shows_line() {
        return None;
    }
    let line = &buf[(head.line_start() as usize).min(buf.len())..];
    let end = memchr::memchr(b'\n', line).unwrap_or(line.len());
    Some(line[..end].trim_ascii_end().to_vec())
}

/// Formats an offending line as in nginx's log.
fn shown(
    error: ResponseError,
    head: &ParsedResponse,
    buf: &[u8],
    line: &[u8],
    outgoing: &Outgoing,
) -> String {
    let previous = match error {
        ResponseError::Duplicate(_) => previous(head, buf, line).unwrap_or_default(),
        _ => String::new(),
    };
    let line = line.for_log();
    match outgoing.encoded.key().filter(|_| error.shows_key()) {
        Some(key) => format!(" \"{line}\" for key \"{}\"", key.for_log()),
        None => format!(": \"{line}\"{previous}"),
    }
}

/// Formats the field that a duplicate line repeats, as in nginx's log.
fn previous(head: &ParsedResponse, buf: &[u8], line: &[u8]) -> Option<String> {
    let name = line.split(|&byte| byte == b':').next()?;
    let field = head.field(HeaderId::of(name))?;
    let (name, value) = (field.name.of(buf).for_log(), field.value.of(buf).for_log());
    Some(format!(", previous value: \"{name}: {value}\""))
}

/// Appends received bytes to the bytes `held` from previous receives. `None` if no buffer is available.
fn join(held: Option<Buf>, received: Buf, most: usize) -> Option<Buf> {
    let Some(mut held) = held else { return Some(received) };
    if held.capacity() - held.len() < received.len() {
        let mut larger = rt::pool().get((held.len() + received.len()).max(most))?;
        larger.append(&held);
        held = larger;
    }
    (held.append(&received) == received.len()).then_some(held)
}

/// Removes `count` bytes from the front.
pub(super) fn cut(buf: &mut Buf, count: usize) {
    assert!(count <= buf.len(), "only bytes of the buffer are removed");
    let len = buf.len() - count;
    buf.copy_within(count.., 0);
    buf.set_len(len);
}

/// Creates the heading from a complete head, which was parsed from `bytes`.
fn complete(
    request: &Request,
    outgoing: &Outgoing,
    wire: &Wire,
    head: Arc<ParsedResponse>,
    bytes: &[u8],
) -> Result<Rc<Heading>, HeadError> {
    if head.status().code() == 101 && !outgoing.upgrade {
        return Err(HeadError::Unexpected("unexpected 101 response"));
    }
    if let Some(line) = head.first_ignored() {
        let line = line.of(bytes);
        let (previous, line) = (previous(&head, bytes, line).unwrap_or_default(), line.for_log());
        let what =
            format_args!("upstream sent duplicate header line: \"{line}\"{previous}, ignored {READING}");
        request.log(Level::Warn, what);
    }
    // Copies only the header section. The body bytes received with it may be longer.
    let raw = Source::Vec(bytes.to_vec());
    Ok(Rc::new(Heading::new(raw, head).with_never_indexed(wire.take_never_indexed())))
}

/// Creates the heading of a protocol without header sections (memcached): the decoder has generated the text.
fn written(request: &Request, decoder: &mut Decoder, head: Arc<ParsedResponse>) -> Rc<Heading> {
    if let Some(key) = decoder.missing_key() {
        let key = key.for_log();
        request.log(Level::Info, format_args!("key: \"{key}\" was not found by memcached {READING}"));
    }
    Rc::new(Heading::new(Source::Vec(decoder.take_written()), head))
}

/// Returns a response without a head: all bytes are body, which nginx passes on too.
fn bare(request: &Request, decoder: Decoder, buf: Buf) -> TryResponse {
    request.log(Level::Error, format_args!("upstream sent no valid HTTP/1.0 header {READING}"));
    let heading = Rc::new(Heading::new(Source::Static(b""), ParsedResponse::new()));
    TryResponse { heading, rest: Some(buf), is_full: false, decoder, keep_alive: true, sending: None }
}

/// Returns the response to CONNECT: the connection is established.
fn connected(outgoing: &Outgoing) -> Result<TryResponse, ResponseError> {
    let decoder = Decoder::new(&outgoing.encoded, outgoing.method, Limits::default());
    let (raw, head) = HeadWriter::new(StatusCode::OK, b"200 OK", 0)?.finish()?;
    let heading = Rc::new(Heading::new(Source::Vec(raw), head));
    Ok(TryResponse { heading, rest: None, is_full: false, decoder, keep_alive: false, sending: None })
}

/// Passes an interim response to the client if it should receive it.
async fn hand_on(request: &Request, outgoing: &Outgoing, head: &ParsedResponse, raw: &[u8]) {
    let Some(interim) = outgoing.interim.and_then(|interim| interim(request, head, raw)) else { return };
    let Some(client) = request.conn.client.borrow().clone() else { return };
    client.send_interim(&interim).await;
}
