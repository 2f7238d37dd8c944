//! The way of a request to another server and of its response back, whatever the protocol's directives are called.
//!
//! ```text
//! handler -- Outgoing --> fetch --> peers (server) --> link (connection) --> header section --> Reply -- handler
//!                           ^                                |
//!                           +---- another try ---------------+          body: straight, or by way of a spool
//! ```
//!
//! A module such as `proxy` makes the [`Settings`] from its directives, the [`Outgoing`] request and the [`Target`];
//! [`fetch`] comes back with a [`Reply`] or with the [`Failure`] that answers the client. This crate knows neither
//! names of directives nor the treatment of response fields.

#![forbid(unsafe_code)]

mod attempt;
mod body;
pub mod caching;
mod choice;
mod fetch;
mod h2;
mod link;
pub mod peers;
pub mod resolve;
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
use http::reply::ReplyHead;
use http::request::Method;
use io::SharedBytes;
use io::op::{PeerAddr, Source};
use smallvec::SmallVec;

use body::Direct;
pub use body::{Coming, Live};
use exchange::client::Interim;
use exchange::request::Request;
use exchange::response::Body;
use exchange::template::Template;
pub use fetch::fetch;
pub use h2::Cut;
pub use link::Pools;
use transfer::received::ReceivedBody;
pub use tunnel::Tunnel;

/// A location's settings for upstreams, with nginx's names and defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `proxy_connect_timeout`
    pub connect_timeout: Duration,
    /// `proxy_send_timeout`
    pub send_timeout: Duration,
    /// `proxy_read_timeout`
    pub read_timeout: Duration,
    /// `proxy_buffer_size`: the longest header section of a response, and the size of reads without buffering.
    pub buffer_size: u64,
    /// `proxy_buffers`: number and size.
    pub buffers: (u32, u64),
    /// `proxy_busy_buffers_size`, if set
    pub busy_buffers_size: Option<u64>,
    /// `proxy_buffering`
    pub buffering: bool,
    /// `proxy_request_buffering`
    pub request_buffering: bool,
    /// `proxy_max_temp_file_size`; 0 is no file.
    pub max_temp_file_size: u64,
    /// `proxy_temp_file_write_size`, if set
    pub temp_file_write_size: Option<u64>,
    /// `proxy_temp_path`: directory and digits of the levels.
    pub temp_path: (PathBuf, SmallVec<[u8; 3]>),
    /// `proxy_next_upstream`
    pub next_upstream: NextUpstream,
    /// `proxy_next_upstream_tries`; 0 is no limit.
    pub next_upstream_tries: u32,
    /// `proxy_next_upstream_timeout`; zero is no limit.
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
    /// `proxy_limit_rate`: bytes a second that are read from an upstream.
    pub limit_rate: Option<Template>,
    /// `proxy_pass_trailers`
    pub pass_trailers: bool,
    /// `proxy_ssl_*`, where requests may be passed on by TLS.
    pub secure: Option<Arc<SecureSettings>>,
}

impl Default for Settings {
    /// nginx's defaults on machines with pages of 4 KiB.
    fn default() -> Settings {
        let minute = Duration::from_secs(60);
        Settings {
            connect_timeout: minute,
            send_timeout: minute,
            read_timeout: minute,
            buffer_size: 4 << 10,
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
            pass_trailers: false,
            secure: None,
        }
    }
}

/// `proxy_bind`: the address that connections go out from.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    /// The address.
    pub address: BindAddr,
    /// Whether it need not be one of this machine's (`transparent`).
    pub transparent: bool,
}

/// Where the address of a [`Bind`] comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum BindAddr {
    /// It was written; port 0 leaves the port to the kernel.
    Fixed(SocketAddr),
    /// It has variables; a text that is empty or no address means none, as in nginx.
    Text(Template),
}

/// When another upstream is tried (`proxy_next_upstream`): a set of reasons.
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
    /// Also requests that may have had an effect already are sent again.
    pub const NON_IDEMPOTENT: NextUpstream = NextUpstream(1 << 10);
    /// No reason at all (`off`).
    pub const OFF: NextUpstream = NextUpstream(0);

    /// Whether all of these are in the set.
    pub fn contains(self, reasons: NextUpstream) -> bool {
        self.0 & reasons.0 == reasons.0
    }

    /// The reason that a response of this status is, if one.
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

/// The upstream.
#[derive(Clone, Debug)]
pub enum Target {
    /// An `upstream` block, or the implicit one of an address that was written.
    Group(Arc<peers::Group>),
    /// A name that came out of variables and is no group's: it is resolved for this request.
    Dynamic {
        /// The name, or an address as text.
        host: Vec<u8>,
        /// The port.
        port: u16,
    },
    /// An address.
    Address(PeerAddr),
}

/// The request as it goes out; made once and sent once for each try.
pub struct Outgoing {
    /// The head as bytes of the upstream's protocol, and how the body is framed.
    pub encoded: Encoded,
    /// The text before the address in the error log.
    pub scheme: &'static str,
    /// How the upstream is spoken to by TLS, if it is.
    pub secure: Option<Secure>,
    /// The rest of the response.
    pub body: OutgoingBody,
    /// The method, which determines whether the response has a body.
    pub method: Method,
    /// Whether it may be sent again without harm (RFC 9110 section 9.2.2).
    pub is_idempotent: bool,
    /// Whether the head lets the connection be kept.
    pub keepalive: bool,
    /// Whether it asks for another protocol (`Upgrade`); an unrequested 101 is an error.
    pub upgrade: bool,
    /// Words of messages beside the response that make it a failure (`fastcgi_catch_stderr`).
    pub caught: Vec<Box<str>>,
    /// Makes the interim response (103) for the client, or returns none.
    pub interim: Option<MakeInterim>,
}

impl Outgoing {
    /// A request on a separate connection, without TLS, which is sent once.
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
        }
    }
}

/// See [`Outgoing::interim`].
pub type MakeInterim = fn(&Request, &ReplyHead, &[u8]) -> Option<Interim>;

/// The body of an [`Outgoing`].
pub enum OutgoingBody {
    /// There is none.
    None,
    /// These bytes.
    Bytes(SharedBytes),
    /// The body that was received, from memory or from its file.
    Received(Rc<ReceivedBody>),
    /// The body while it comes: with its length where the client said one, else in chunks.
    Streamed,
}

/// A response to pass on: from an upstream, or from a cache.
pub struct Reply {
    /// Shared with the variables that show its fields.
    pub head: Rc<Heading>,
    /// The body.
    pub body: ReplyBody,
    /// When the head was here.
    pub received_at: (Instant, SystemTime),
    /// Its facts when a cache has it, or is fetching it.
    pub stored: Option<Stored>,
}

/// The facts of a cached response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of the body, when they are known.
    pub length: Option<u64>,
    /// Seconds since it was made, for `Age`.
    pub age_s: Option<u32>,
}

/// The header section of a response: its bytes and its parsed form.
#[derive(Debug)]
pub struct Heading {
    raw: Source,
    head: ReplyHead,
}

impl Heading {
    /// A head that was parsed from the start of these bytes.
    pub fn new(raw: Source, head: ReplyHead) -> Heading {
        Heading { raw, head }
    }

    /// The bytes of the head's spans.
    pub fn raw(&self) -> &[u8] {
        self.raw.bytes()
    }

    /// The parsed head.
    pub fn head(&self) -> &ReplyHead {
        &self.head
    }
}

/// The body of a [`Reply`].
pub enum ReplyBody {
    /// There is none.
    None,
    /// All of it.
    Bytes(Source),
    /// It is as the response is to have it, out of a cache.
    Ready(Body),
    /// It is still to be read from an upstream.
    Live(Box<Live>),
    /// The connection speaks another protocol from here on (101).
    Tunnel(Box<Tunnel>),
}

impl ReplyBody {
    /// The body as the response has it. `buffering` is whether it is read ahead of the client (`proxy_buffering`,
    /// `X-Accel-Buffering`).
    pub fn into_body(self, request: &Request, settings: &Settings, buffering: bool) -> Body {
        match self {
            ReplyBody::None => Body::None,
            ReplyBody::Bytes(source) => Body::Bytes(source),
            ReplyBody::Ready(body) => body,
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

    /// The body for callers that keep all of it.
    pub fn into_coming(self, request: &Request, settings: &Settings) -> Coming {
        match self {
            ReplyBody::None => Coming::Whole(None),
            ReplyBody::Bytes(source) => Coming::of_bytes(source),
            ReplyBody::Live(mut live) => {
                live.limit_rate(rate(settings, request));
                Coming::Live(live)
            }
            ReplyBody::Ready(_) | ReplyBody::Tunnel(_) => Coming::Broken,
        }
    }
}

/// Bytes a second that may be read from an upstream; 0 is no limit.
fn rate(settings: &Settings, request: &Request) -> u64 {
    let Some(rate) = &settings.limit_rate else { return 0 };
    let text = String::from_utf8(rate.rendered(request)).unwrap_or_default();
    conf::value::size(&text).unwrap_or(0)
}

/// The reason without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The status for the client: 502, 504, 500 ….
    Status(u16),
    /// The client is gone (499).
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_a_set() {
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
}
