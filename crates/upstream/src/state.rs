//! Records of the tries at upstreams, for `$upstream_*` and for log lines.
//!
//! [`Tries`] are stored in the request. A [`Try`] is shared with the body after the header section, because lengths and times are
//! known only at its end.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::op::PeerAddr;
use smallvec::SmallVec;

use crate::h2::Cut;
use crate::heading::Heading;
use crate::hidden::Hidden;
use exchange::request::Request;
use peers::counts::Tried;
use telemetry::{ForLog, Level};
use transfer::body::BodyError;

/// The tries of one request, in order.
#[derive(Default)]
pub struct Tries {
    list: SmallVec<[Rc<Try>; 1]>,
    /// Scheme and URI of the request to the upstream, for log lines.
    url: (&'static str, Vec<u8>),
    /// Facts about the response from the cache.
    pub cached: Option<Cached>,
    /// The header section of a stored response that the client receives.
    pub stored: Option<Rc<Heading>>,
    /// Whether the client's deadline passed before the response began.
    pub(super) is_past_deadline: bool,
}

/// The values of `$upstream_cache_status` and `$upstream_cache_age`; the cache sets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// `HIT`, `MISS` and others.
    pub status: &'static str,
    /// Seconds since the response was stored or last revalidated.
    pub age_s: Option<u64>,
}

/// Record of one try.
pub struct Try {
    /// Name as shown in `$upstream_addr`.
    name: Arc<str>,
    /// The server as configured.
    server: Arc<str>,
    is_unix: bool,
    /// Whether it is the first try of another location, after an internal redirect.
    begins: Cell<bool>,
    started: Instant,
    /// Status of the response, or of the error response for a failed try (502, 504); 0 while neither is known.
    pub(super) status: Cell<u16>,
    pub(super) connect_time: Cell<Option<Duration>>,
    pub(super) header_time: Cell<Option<Duration>>,
    response_time: Cell<Option<Duration>>,
    pub(super) bytes_sent: Cell<u64>,
    pub(super) bytes_received: Cell<u64>,
    pub(super) response_length: Cell<u64>,
    /// Whether another response is sent in place of this one; its length is then 0, as in nginx.
    pub(super) is_replaced: Cell<bool>,
    pub(super) heading: RefCell<Option<Rc<Heading>>>,
    pub(super) trailers: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Messages that the server sent in addition to the body (FastCGI stderr), for the log.
    pub(super) messages: RefCell<Vec<u8>>,
    /// Error after a complete body, for the log.
    pub(super) note: Cell<Option<&'static str>>,
    /// Whether more bytes arrived than announced.
    pub(super) excess: Cell<bool>,
    /// The temporary file of the body, for the log.
    pub(super) temp_file: OnceCell<PathBuf>,
    /// Reason why the body broke off, reported by the component that sends it to the client.
    pub(super) fault: Cell<Option<Fault>>,
    /// Error code with which the upstream reset its HTTP/2 stream before a header section.
    pub(super) reset: Cell<Option<u32>>,
    /// Whether the received bytes were not a valid header section.
    pub(super) is_invalid: Cell<bool>,
    /// Whether no server was tried because the names of the group are not resolved yet.
    pub(super) is_unresolved: Cell<bool>,
    /// Whether the connection was reused.
    pub(super) is_reused: Cell<bool>,
}

/// Log message about the client's deadline.
pub(super) const DEADLINE_PASSED: &str = "deadline of client (\"grpc-timeout\") has passed";

/// Reason why the body of a response is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ended before the end of the body.
    Closed,
    /// The connection broke.
    Receive(io::Errno),
    /// No bytes arrived for `proxy_read_timeout`.
    TimedOut,
    /// The framing of the body is invalid; with a text for the log.
    Framing(&'static str),
    /// The remaining request body did not arrive, while the response depended on it.
    Request,
    /// The HTTP/2 stream ended early.
    Stream(Cut),
    /// The client's deadline has passed (`grpc-timeout`).
    DeadlinePassed,
    /// Memory was exhausted, or the temporary file could not be written or read.
    Local(io::Errno),
}

impl Fault {
    /// Converts to the error of the response body.
    pub(super) fn of_body(self) -> BodyError {
        match self {
            Fault::Stream(Cut::Reset(code)) => BodyError::Reset(code),
            _ => BodyError::Broken,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use telemetry::Reason;
        match self {
            Fault::Closed => f.write_str("upstream prematurely closed connection"),
            Fault::Receive(errno) => write!(f, "recv() failed ({})", Reason(*errno)),
            Fault::TimedOut => write!(f, "upstream timed out ({})", Reason(io::Errno::TIMEDOUT)),
            Fault::Framing(words) => f.write_str(words),
            Fault::Request => f.write_str("client stopped sending its request"),
            Fault::Stream(cut) => cut.fmt(f),
            Fault::DeadlinePassed => f.write_str(DEADLINE_PASSED),
            Fault::Local(errno) => write!(f, "a buffer or a temporary file failed ({})", Reason(*errno)),
        }
    }
}

impl Try {
    /// Returns the time since the start of the try.
    pub(super) fn elapsed(&self) -> Duration {
        rt::now().saturating_duration_since(self.started)
    }

    /// Records the end of the response.
    pub(super) fn end(&self) {
        if self.response_time.get().is_none() {
            self.response_time.set(Some(self.elapsed()));
        }
    }

    /// Returns facts for the statistics of the server. For a try in progress, the time ends now.
    pub(super) fn facts(&self) -> Tried {
        Tried {
            status: self.status.get(),
            sent: self.bytes_sent.get(),
            received: self.bytes_received.get(),
            connect: if self.is_reused.get() { None } else { self.connect_time.get() },
            header: self.header_time.get(),
            response: self.response_time.get().unwrap_or_else(|| self.elapsed()),
        }
    }

    /// Returns the trailer fields of the response that are passed on.
    pub fn passed_trailers(&self, hidden: &Hidden) -> Vec<(Vec<u8>, Vec<u8>)> {
        hidden.passed(&self.trailers.borrow())
    }

    /// Whether a failure of this try concerns its own request only: a header section had arrived, or the name of the upstream was not
    /// resolved yet.
    pub fn fails_alone(&self) -> bool {
        self.header_time.get().is_some() || self.is_unresolved.get()
    }

    /// Adds received bytes to `$upstream_bytes_received`.
    pub(super) fn count_received(&self, bytes: usize) {
        self.bytes_received.set(self.bytes_received.get() + bytes as u64);
    }
}

impl Tries {
    /// Returns the tries of this request; creates the list if needed.
    pub fn of(request: &mut Request) -> &mut Tries {
        request.extensions.get_or_default()
    }

    /// Begins another try. `first` is whether it is the first of this location.
    pub(super) fn begin(
        &mut self,
        name: &Arc<str>,
        server: &Arc<str>,
        address: Option<&PeerAddr>,
        first: bool,
    ) -> Rc<Try> {
        if first {
            // An earlier location may have had a cache.
            (self.cached, self.stored) = (None, None);
        }
        let new = Rc::new(Try {
            name: Arc::clone(name),
            server: Arc::clone(server),
            is_unix: matches!(address, Some(PeerAddr::Unix(_))),
            begins: Cell::new(first && !self.list.is_empty()),
            started: rt::now(),
            status: Cell::new(0),
            connect_time: Cell::new(None),
            header_time: Cell::new(None),
            response_time: Cell::new(None),
            bytes_sent: Cell::new(0),
            bytes_received: Cell::new(0),
            response_length: Cell::new(0),
            is_replaced: Cell::new(false),
            heading: RefCell::new(None),
            trailers: RefCell::default(),
            messages: RefCell::default(),
            note: Cell::new(None),
            excess: Cell::new(false),
            temp_file: OnceCell::new(),
            fault: Cell::new(None),
            reset: Cell::new(None),
            is_invalid: Cell::new(false),
            is_unresolved: Cell::new(false),
            is_reused: Cell::new(false),
        });
        self.list.push(Rc::clone(&new));
        new
    }

    /// Takes over the tries that another task made for this location, after those of earlier locations.
    pub fn take_over(&mut self, made: Tries) {
        let mut earlier = std::mem::replace(self, made).list;
        if earlier.is_empty() {
            return;
        }
        if let Some(first) = self.list.first() {
            first.begins.set(true);
        }
        earlier.append(&mut self.list);
        self.list = earlier;
    }

    /// Sets the requested URI, for log lines.
    pub(super) fn set_url(&mut self, scheme: &'static str, target: &[u8]) {
        self.url.0 = scheme;
        self.url.1.clear();
        self.url.1.extend_from_slice(target);
    }

    /// Whether the last try failed because the received bytes were not a valid header section.
    pub fn had_invalid_header(&self) -> bool {
        self.last().is_some_and(|last| last.is_invalid.get())
    }

    /// Records that another response is sent in place of the last one (`error_page`, `X-Accel-Redirect`).
    pub fn replace_last(&self) {
        if let Some(last) = self.last() {
            last.is_replaced.set(true);
        }
    }

    /// Returns the last try.
    pub fn last(&self) -> Option<&Rc<Try>> {
        self.list.last()
    }
}

/// A try as displayed to operators.
#[derive(Clone, Copy, Debug)]
pub struct ShownTry<'t> {
    /// Name as shown in `$upstream_addr`.
    pub name: &'t str,
    /// The server as configured.
    pub server: &'t str,
    /// Start of the try.
    pub started: Instant,
    /// Status of the response; 0 without a response.
    pub status: u16,
    /// Times from the start of the try to the connection, the header section, and the end of the response.
    pub times: [Option<Duration>; 3],
    /// Whether the connection was reused.
    pub is_reused: bool,
}

/// Returns the tries of a request, in order.
pub fn shown_tries(request: &Request) -> impl Iterator<Item = ShownTry<'_>> {
    let tries = request.extensions.get::<Tries>().into_iter();
    tries.flat_map(|tries| &tries.list).map(|one| ShownTry {
        name: &one.name,
        server: &one.server,
        started: one.started,
        status: one.status.get(),
        times: [one.connect_time.get(), one.header_time.get(), one.response_time.get()],
        is_reused: one.is_reused.get(),
    })
}

/// Returns the value of `$upstream_cache_status`; empty without a cache.
pub fn cache_status_text(request: &Request) -> &'static str {
    cached(request).map_or("", |cached| cached.status)
}

/// Returns the upstream for a log line: `http://127.0.0.1:80/path`.
pub fn url(request: &Request) -> Option<Vec<u8>> {
    let tries = request.extensions.get::<Tries>()?;
    let last = tries.last()?;
    let mut url = Vec::new();
    url.extend_from_slice(tries.url.0.as_bytes());
    url.extend_from_slice(last.name.as_bytes());
    if last.is_unix {
        url.push(b':');
    }
    url.extend_from_slice(&tries.url.1);
    Some(url)
}

/// Logs a temporary file that the body of an upstream's response needed, and an error in the body.
pub fn log_body(request: &Request) {
    let Some(last) = request.extensions.get::<Tries>().and_then(Tries::last) else { return };
    let messages = last.messages.take();
    if !messages.is_empty() {
        log_messages(request, &messages, "while reading upstream");
    }
    if let Some(path) = last.temp_file.get() {
        let (path, what) = (path.display(), "an upstream response is buffered to a temporary file");
        request.log(Level::Warn, format_args!("{what} {path} while reading upstream"));
    }
    if let Some(words) = last.note.get() {
        request.log(Level::Error, format_args!("{words} while reading upstream"));
    }
    if last.excess.get() {
        let what = "upstream sent more data than specified in \"Content-Length\" header";
        request.log(Level::Warn, format_args!("{what} while reading upstream"));
    }
    if let Some(fault) = last.fault.get().filter(|_| !request.completed) {
        request.log(Level::Error, format_args!("{fault} while reading upstream"));
    }
}

/// Logs the messages of a server, with nginx's text.
pub(super) fn log_messages(request: &Request, text: &[u8], doing: &str) {
    let text = text.trim_ascii_end().for_log();
    request.log(Level::Error, format_args!("FastCGI sent in stderr: \"{text}\" {doing}"));
}

/// Appends a value for each try; `false` if there was none.
fn each(request: &Request, out: &mut Vec<u8>, show: impl Fn(&Try, &mut Vec<u8>)) -> bool {
    let Some(tries) = request.extensions.get::<Tries>().filter(|tries| !tries.list.is_empty()) else {
        return false;
    };
    for (index, one) in tries.list.iter().enumerate() {
        match (index, one.begins.get()) {
            (0, _) => {}
            (_, true) => out.extend_from_slice(b" : "),
            (_, false) => out.extend_from_slice(b", "),
        }
        show(one, out);
    }
    true
}

/// Appends seconds with three decimals, or a hyphen for an event that did not occur.
fn push_time(time: Option<Duration>, out: &mut Vec<u8>) {
    // Writing to a `Vec` cannot fail.
    let _ = match time {
        Some(time) => write!(out, "{}.{:03}", time.as_secs(), time.subsec_millis()),
        None => write!(out, "-"),
    };
}

/// `$upstream_addr`
pub fn addr(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| out.extend_from_slice(one.name.as_bytes()))
}

/// `$upstream_status`
pub fn status(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| match one.status.get() {
        0 => out.push(b'-'),
        status => http::push_decimal(out, status.into()),
    })
}

/// `$upstream_connect_time`
pub fn connect_time(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| push_time(one.connect_time.get(), out))
}

/// `$upstream_header_time`
pub fn header_time(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| push_time(one.header_time.get(), out))
}

/// `$upstream_response_time`
pub fn response_time(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| push_time(one.response_time.get(), out))
}

/// `$upstream_response_length`
pub fn response_length(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| {
        let is_passed_on = !one.is_replaced.get();
        http::push_decimal(out, if is_passed_on { one.response_length.get() } else { 0 });
    })
}

/// `$upstream_bytes_received`
pub fn bytes_received(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| http::push_decimal(out, one.bytes_received.get()))
}

/// `$upstream_bytes_sent`
pub fn bytes_sent(request: &Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |one, out| http::push_decimal(out, one.bytes_sent.get()))
}

/// `$upstream_last_server_name`
pub fn last_server_name(request: &Request, out: &mut Vec<u8>) -> bool {
    let last = request.extensions.get::<Tries>().and_then(Tries::last);
    last.map(|last| out.extend_from_slice(last.server.as_bytes())).is_some()
}

/// Returns the header section of the last response, for `$upstream_http_*` and `$upstream_cookie_*`. If a stored response is sent,
/// it is the header section of that response, even if an upstream responded to a revalidation. This is the behaviour of nginx.
pub fn last_heading(request: &Request) -> Option<Rc<Heading>> {
    let tries = request.extensions.get::<Tries>()?;
    let is_old = |cached: &Cached| matches!(cached.status, "HIT" | "STALE" | "UPDATING" | "REVALIDATED");
    match &tries.stored {
        Some(stored) if tries.cached.as_ref().is_some_and(is_old) => Some(Rc::clone(stored)),
        _ => tries.last()?.heading.borrow().clone(),
    }
}

/// Returns the error code with which the last upstream reset its HTTP/2 stream instead of a response.
pub fn last_reset(request: &Request) -> Option<u32> {
    request.extensions.get::<Tries>()?.last()?.reset.get()
}

/// Whether the client's deadline passed before the response began.
pub fn is_past_deadline(request: &Request) -> bool {
    request.extensions.get::<Tries>().is_some_and(|tries| tries.is_past_deadline)
}

/// Appends `$upstream_http_NAME`: the values of all fields with this name, in order.
pub fn field(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let Some(heading) = last_heading(request) else { return false };
    let mut found = false;
    for value in heading.head().variable(heading.raw(), name.as_bytes()) {
        if std::mem::replace(&mut found, true) {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(value);
    }
    found
}

/// `$upstream_cookie_NAME`: the value of the first cookie with this name that the response sets, as in nginx.
pub fn cookie(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let Some(heading) = last_heading(request) else { return false };
    let cookies = heading.head().named(heading.raw(), b"set-cookie");
    let mut values = cookies.filter_map(|cookie| {
        let pair = cookie.split(|&byte| byte == b';').next().unwrap_or_default();
        let equals = memchr::memchr(b'=', pair)?;
        pair[..equals]
            .trim_ascii()
            .eq_ignore_ascii_case(name.as_bytes())
            .then(|| pair[equals + 1..].trim_ascii())
    });
    values.next().map(|value| out.extend_from_slice(value)).is_some()
}

/// `$upstream_trailer_NAME`
pub fn trailer(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let Some(last) = request.extensions.get::<Tries>().and_then(Tries::last) else { return false };
    let same = |known: &[u8]| {
        let lower = known.iter().map(|&byte| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() });
        lower.eq(name.bytes())
    };
    let mut found = false;
    for (_, value) in last.trailers.borrow().iter().filter(|(known, _)| same(known)) {
        if std::mem::replace(&mut found, true) {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(value);
    }
    found
}

/// Returns the facts about the cache, if the location of the request has one.
fn cached(request: &Request) -> Option<&Cached> {
    request.extensions.get::<Tries>()?.cached.as_ref()
}

/// `$upstream_cache_status`
pub fn cache_status(request: &Request, out: &mut Vec<u8>) -> bool {
    let status = cached(request).map(|cached| cached.status).filter(|status| !status.is_empty());
    status.map(|status| out.extend_from_slice(status.as_bytes())).is_some()
}

/// `$upstream_cache_age`
pub fn cache_age(request: &Request, out: &mut Vec<u8>) -> bool {
    cached(request).and_then(|cached| cached.age_s).map(|age| http::push_decimal(out, age)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_or_a_dash() {
        let shown = |time: Option<u64>| {
            let mut out = Vec::new();
            push_time(time.map(Duration::from_micros), &mut out);
            String::from_utf8(out).expect("it is text")
        };
        assert_eq!(shown(None), "-");
        assert_eq!(shown(Some(0)), "0.000");
        assert_eq!(shown(Some(1_042_999)), "1.042");
        assert_eq!(shown(Some(61_000_000)), "61.000");
    }

    #[test]
    fn faults_have_the_messages_of_nginx() {
        assert_eq!(Fault::Closed.to_string(), "upstream prematurely closed connection");
        assert_eq!(Fault::TimedOut.to_string(), "upstream timed out (110: Connection timed out)");
        let reset = Fault::Receive(io::Errno::CONNRESET).to_string();
        assert_eq!(reset, "recv() failed (104: Connection reset by peer)");
    }
}
