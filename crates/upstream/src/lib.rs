//! Passing a request to another server and returning its response, independent of the directives of a protocol.
//!
//! ```text
//! handler -- Outgoing --> fetch --> peers (server) --> link (connection) --> header section --> Reply -- handler
//!                           ^                                |
//!                           +---- another try ---------------+          body: direct, or through a spool
//! ```
//!
//! A module such as `proxy` creates the [`Settings`] from its directives, the [`Outgoing`] request and the [`Target`]. [`fetch`]
//! returns a [`Reply`], or the [`Failure`] for the response to the client. [`responder`] sends requests to OCSP responders. This crate
//! contains neither names of directives nor rules for response fields.

#![forbid(unsafe_code)]

mod attempt;
mod body;
mod choice;
mod fetch;
mod h2;
mod hidden;
mod link;
pub mod responder;
mod secure;
mod sending;
mod spool;
pub mod state;
mod tunnel;
mod wire;

pub use secure::{Secure, SecureSettings};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::gateway::Encoded;
use http::h2::hpack::NeverIndexed;
use http::reply::ReplyHead;
use http::request::{HeaderId, Method};
use io::SharedBytes;
use io::op::{PeerAddr, Source};
use smallvec::SmallVec;

use body::Direct;
pub use body::{BulkBody, Live};
use exchange::client::Interim;
use exchange::request::Request;
use exchange::response::Body;
use exchange::template::Template;
pub use fetch::fetch;
pub use h2::Cut;
pub use hidden::Hidden;
pub use link::Pools;
use transfer::received::ReceivedBody;
pub use tunnel::Tunnel;

/// Upstream settings of a location, with nginx's names and defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `proxy_connect_timeout`
    pub connect_timeout: Duration,
    /// `proxy_send_timeout`
    pub send_timeout: Duration,
    /// `proxy_read_timeout`
    pub read_timeout: Duration,
    /// `proxy_half_close_timeout`: time that a tunnel stays open without data after one side has ended it.
    pub half_close_timeout: Duration,
    /// `proxy_buffer_size`: maximum size of a short body that is sent together with its header section.
    pub buffer_size: u64,
    /// The same as the maximum size of a response's header section, whose default is larger than nginx's.
    pub head_max: u64,
    /// `proxy_buffers`: number and size.
    pub buffers: (u32, u64),
    /// `proxy_busy_buffers_size`, if set
    pub busy_buffers_size: Option<u64>,
    /// `proxy_buffering`
    pub buffering: bool,
    /// `proxy_request_buffering`
    pub request_buffering: bool,
    /// `proxy_max_temp_file_size`; 0 disables temporary files.
    pub max_temp_file_size: u64,
    /// `proxy_temp_file_write_size`, if set
    pub temp_file_write_size: Option<u64>,
    /// `proxy_temp_path`: directory, and number of digits of each level.
    pub temp_path: (PathBuf, SmallVec<[u8; 3]>),
    /// `proxy_next_upstream`
    pub next_upstream: NextUpstream,
    /// `proxy_next_upstream_tries`; 0 means no limit.
    pub next_upstream_tries: u32,
    /// `proxy_next_upstream_timeout`; zero means no limit.
    pub next_upstream_timeout: Duration,
    /// `proxy_bind`
    pub bind: Option<Bind>,
    /// `proxy_socket_keepalive`
    pub socket_keepalive: bool,
    /// `proxy_socket_rcvbuf`
    pub socket_rcvbuf: Option<u64>,
    /// `proxy_socket_sndbuf`
    pub socket_sndbuf: Option<u64>,
    /// `proxy_ignore_client_abort`
    pub ignore_client_abort: bool,
    /// `proxy_limit_rate`: maximum rate of reading from an upstream, in bytes per second.
    pub limit_rate: Option<Template>,
    /// Fields of responses that are not passed on.
    pub hidden: Hidden,
    /// `proxy_pass_trailers`
    pub pass_trailers: bool,
    /// Whether responses are stored as files (`proxy_store`): a begun response is then received without its client too. Determined
    /// at the end of a block.
    pub stores: bool,
    /// `proxy_ssl_*`, if upstreams may be reached over TLS.
    pub secure: Option<Arc<SecureSettings>>,
}

impl Settings {
    /// Returns the filter of trailer fields; `None` if none are passed on.
    pub fn trailers(&self) -> Option<Hidden> {
        self.pass_trailers.then(|| self.hidden.clone())
    }
}

impl Default for Settings {
    /// Returns nginx's defaults on machines with pages of 4 KiB.
    fn default() -> Settings {
        let minute = Duration::from_secs(60);
        Settings {
            connect_timeout: minute,
            send_timeout: minute,
            read_timeout: minute,
            half_close_timeout: Duration::from_secs(5),
            buffer_size: 4 << 10,
            head_max: 8 << 10,
            buffers: (8, 4 << 10),
            busy_buffers_size: None,
            buffering: true,
            request_buffering: true,
            max_temp_file_size: 1 << 30,
            temp_file_write_size: None,
            temp_path: (PathBuf::from("proxy_temp"), SmallVec::new()),
            next_upstream: NextUpstream::ERROR | NextUpstream::TIMEOUT,
            next_upstream_tries: 0,
            next_upstream_timeout: Duration::ZERO,
            bind: None,
            socket_keepalive: false,
            socket_rcvbuf: None,
            socket_sndbuf: None,
            ignore_client_abort: false,
            limit_rate: None,
            hidden: Hidden::default(),
            pass_trailers: false,
            stores: false,
            secure: None,
        }
    }
}

/// `proxy_bind`: the local address of connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    /// The address.
    pub address: BindAddr,
    /// Whether the address need not belong to this machine (`transparent`).
    pub transparent: bool,
}

/// Source of the address of a [`Bind`].
#[derive(Clone, Debug, PartialEq)]
pub enum BindAddr {
    /// A literal address; with port 0 the kernel chooses the port.
    Fixed(SocketAddr),
    /// A text with variables; an empty text or an invalid address means no bind, as in nginx.
    Text(Template),
}

/// Reasons to try another upstream (`proxy_next_upstream`): a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextUpstream(u16);

impl NextUpstream {
    /// `error`
    pub const ERROR: NextUpstream = NextUpstream(1);
    /// `timeout`
    pub const TIMEOUT: NextUpstream = NextUpstream(1 << 1);
    /// `invalid_header`
    pub const INVALID_HEADER: NextUpstream = NextUpstream(1 << 2);
    /// `http_500`
    pub const HTTP_500: NextUpstream = NextUpstream(1 << 3);
    /// `http_502`
    pub const HTTP_502: NextUpstream = NextUpstream(1 << 4);
    /// `http_503`
    pub const HTTP_503: NextUpstream = NextUpstream(1 << 5);
    /// `http_504`
    pub const HTTP_504: NextUpstream = NextUpstream(1 << 6);
    /// `http_403`
    pub const HTTP_403: NextUpstream = NextUpstream(1 << 7);
    /// `http_404`
    pub const HTTP_404: NextUpstream = NextUpstream(1 << 8);
    /// `http_429`
    pub const HTTP_429: NextUpstream = NextUpstream(1 << 9);
    /// Requests with side effects may be sent again too.
    pub const NON_IDEMPOTENT: NextUpstream = NextUpstream(1 << 10);
    /// The empty set (`off`).
    pub const OFF: NextUpstream = NextUpstream(0);

    /// Whether the set contains all of `reasons`.
    pub fn contains(self, reasons: NextUpstream) -> bool {
        self.0 & reasons.0 == reasons.0
    }

    /// Returns the reason for a response with this status, if any.
    pub fn of_status(status: u16) -> Option<NextUpstream> {
        Some(match status {
            500 => NextUpstream::HTTP_500,
            502 => NextUpstream::HTTP_502,
            503 => NextUpstream::HTTP_503,
            504 => NextUpstream::HTTP_504,
            403 => NextUpstream::HTTP_403,
            404 => NextUpstream::HTTP_404,
            429 => NextUpstream::HTTP_429,
            _ => return None,
        })
    }
}

impl std::ops::BitOr for NextUpstream {
    type Output = NextUpstream;

    fn bitor(self, other: NextUpstream) -> NextUpstream {
        NextUpstream(self.0 | other.0)
    }
}

/// Destination of a request.
#[derive(Clone, Debug)]
pub enum Target {
    /// An `upstream` block, or the implicit group of a literal address.
    Group(Arc<peers::Group>),
    /// A name from variables that is not a group: it is resolved for this request.
    Dynamic {
        /// The name, or an address as text.
        host: Vec<u8>,
        /// The port.
        port: u16,
    },
    /// An address.
    Address(PeerAddr),
}

/// The encoded request, which is created once and sent in each try.
pub struct Outgoing {
    /// The head in the upstream's protocol, and the framing of the body.
    pub encoded: Encoded,
    /// The text that precedes the address in the error log.
    pub scheme: &'static str,
    /// The TLS settings, if the upstream uses TLS.
    pub secure: Option<Secure>,
    /// The body of the request.
    pub body: OutgoingBody,
    /// The method, which determines whether the response has a body.
    pub method: Method,
    /// Whether the request is idempotent (RFC 9110 section 9.2.2) and may be sent again.
    pub is_idempotent: bool,
    /// Whether the head permits reuse of the connection.
    pub keepalive: bool,
    /// Whether the request has `Upgrade`; a 101 without it is an error.
    pub upgrade: bool,
    /// Texts in messages that make a response a failure (`fastcgi_catch_stderr`).
    pub caught: Vec<Box<str>>,
    /// Creates the interim response (103) for the client, or returns `None`.
    pub interim: Option<MakeInterim>,
    /// Deadline of the client for the response (`grpc-timeout`).
    pub deadline: Option<Instant>,
}

impl Outgoing {
    /// Creates a request on a new connection, without TLS, which is sent once.
    pub fn new(encoded: Encoded, scheme: &'static str, body: OutgoingBody, method: Method) -> Outgoing {
        Outgoing {
            encoded,
            scheme,
            secure: None,
            body,
            method,
            is_idempotent: false,
            keepalive: false,
            upgrade: false,
            caught: Vec::new(),
            interim: None,
            deadline: None,
        }
    }

    /// Whether the client's deadline has passed.
    pub(crate) fn is_past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| rt::now() >= deadline)
    }
}

/// See [`Outgoing::interim`].
pub type MakeInterim = fn(&Request, &ReplyHead, &[u8]) -> Option<Interim>;

/// The body of an [`Outgoing`].
pub enum OutgoingBody {
    /// No body.
    None,
    /// These bytes.
    Bytes(SharedBytes),
    /// The complete body, received in memory or in a file.
    Received(Rc<ReceivedBody>),
    /// The body while it arrives: with its length if the client announced one, otherwise in chunks.
    Streamed,
}

/// A response to pass on: from an upstream, or from a cache.
pub struct Reply {
    /// Shared with the variables of its fields.
    pub head: Rc<Heading>,
    /// The body.
    pub body: ReplyBody,
    /// Time of arrival of the head.
    pub received_at: (Instant, SystemTime),
    /// Set if the response is cached or being cached.
    pub stored: Option<Stored>,
}

/// The facts of a cached response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Length of the body in bytes, if known.
    pub length: Option<u64>,
    /// Age of the response in seconds, for `Age`.
    pub age_s: Option<u32>,
}

/// The header section of a response: its bytes and its parsed form.
#[derive(Debug)]
pub struct Heading {
    raw: Source,
    head: ReplyHead,
    never_indexed: Option<Box<NeverIndexed>>,
}

impl Heading {
    /// Creates the heading from a head that was parsed from the start of `raw`.
    pub fn new(raw: Source, head: ReplyHead) -> Heading {
        Heading { raw, head, never_indexed: None }
    }

    /// Returns the names of the never-indexed fields (RFC 7541 section 7.1.3).
    pub fn never_indexed(&self) -> Option<&NeverIndexed> {
        self.never_indexed.as_deref()
    }

    /// Returns the bytes that the head's spans refer to.
    pub fn raw(&self) -> &[u8] {
        self.raw.bytes()
    }

    /// Returns the parsed head.
    pub fn head(&self) -> &ReplyHead {
        &self.head
    }

    /// Whether the body is read ahead of the client: as in nginx by the last valid `X-Accel-Buffering`, else by `buffering`.
    pub fn is_buffered(&self, buffering: bool) -> bool {
        let values = self.head.all(self.raw(), HeaderId::XAccelBuffering);
        values.fold(buffering, |buffering, value| match value {
            value if value.eq_ignore_ascii_case(b"no") => false,
            value if value.eq_ignore_ascii_case(b"yes") => true,
            _ => buffering,
        })
    }
}

/// The body of a [`Reply`].
pub enum ReplyBody {
    /// No body.
    None,
    /// The complete body.
    Bytes(Source),
    /// A body from a cache, ready to be sent. Boxed, because a [`Reply`] is moved often.
    Ready(Box<Body>),
    /// A body that must still be read from an upstream.
    Live(Box<Live>),
    /// The connection switches to another protocol (101).
    Tunnel(Box<Tunnel>),
}

impl ReplyBody {
    /// Converts to the body of the response. `buffering` is whether it is read ahead of the client (`proxy_buffering`,
    /// `X-Accel-Buffering`).
    pub fn into_body(self, request: &Request, settings: &Settings, buffering: bool) -> Body {
        match self {
            ReplyBody::None => Body::None,
            ReplyBody::Bytes(source) => Body::Bytes(source),
            ReplyBody::Ready(body) => *body,
            ReplyBody::Live(mut live) => {
                live.limit_rate(rate(settings, request));
                match buffering {
                    true => Body::Source(Box::new(spool::start(live, settings, &request.conn.thread))),
                    false => Body::Source(Box::new(Direct::new(live, settings))),
                }
            }
            ReplyBody::Tunnel(tunnel) => Body::Tunnel(tunnel),
        }
    }

    /// Converts to a body for callers that store all of it.
    pub fn into_bulk(self, request: &Request, settings: &Settings) -> BulkBody {
        match self {
            ReplyBody::None => BulkBody::Complete(None),
            ReplyBody::Bytes(source) => BulkBody::of_bytes(source),
            ReplyBody::Live(mut live) => {
                live.limit_rate(rate(settings, request));
                BulkBody::Live(live)
            }
            ReplyBody::Ready(_) | ReplyBody::Tunnel(_) => BulkBody::Broken,
        }
    }
}

/// Returns the maximum rate of reading from an upstream in bytes per second; 0 means no limit.
fn rate(settings: &Settings, request: &Request) -> u64 {
    let Some(rate) = &settings.limit_rate else { return 0 };
    let text = String::from_utf8(rate.rendered(request)).unwrap_or_default();
    conf::value::size(&text).unwrap_or(0)
}

/// Reason why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The status for the client: 502, 504, 500 ….
    Status(u16),
    /// The client has disconnected (499).
    ClientClosed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_reasons_form_a_set() {
        let set = NextUpstream::ERROR | NextUpstream::HTTP_503;
        assert!(set.contains(NextUpstream::ERROR) && set.contains(NextUpstream::HTTP_503));
        assert!(
            !set.contains(NextUpstream::TIMEOUT)
                && !set.contains(NextUpstream::ERROR | NextUpstream::TIMEOUT)
        );
        assert!(!NextUpstream::OFF.contains(NextUpstream::ERROR));
        assert_eq!(NextUpstream::of_status(429), Some(NextUpstream::HTTP_429));
        assert_eq!(NextUpstream::of_status(200), None);
    }

    #[test]
    fn the_last_valid_buffering_field_counts() {
        let is_buffered = |values: &[&str]| {
            let lines: String =
                values.iter().map(|value| format!("X-Accel-Buffering: {value}\r\n")).collect();
            let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n").into_bytes();
            let mut head = ReplyHead::new();
            http::reply::parse(&mut head, &text, &http::reply::Limits::default()).expect("a response");
            Heading::new(Source::Vec(text), head).is_buffered(true)
        };
        for values in [&["No"][..], &["yes", "no"], &["no", "x"]] {
            assert!(!is_buffered(values), "{values:?}");
        }
        for values in [&["x"][..], &[], &["no", "YES"]] {
            assert!(is_buffered(values), "{values:?}");
        }
    }
}
