//! The plan of a load: its requests, connections, rate and duration.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use io::engine::NetKind;

use super::target::Target;
use crate::failure::Failure;
use crate::method::wire::Network;

/// The plan of one load. [`Plan::new`] sets the defaults; callers then change single fields.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The URLs to request from one server, in turn and repeatedly; each may be a pattern.
    pub(crate) targets: Vec<Target>,
    /// Request method, `GET` by default. With `HEAD`, responses are parsed without a body.
    pub(crate) method: String,
    /// Further field lines, each without its line end: `Accept-Encoding: gzip`.
    pub(crate) headers: Vec<String>,
    /// The body of each request; if not empty, `Content-Length` is sent.
    pub(crate) body: Vec<u8>,
    /// I/O engine of the connections; if `None`, the best one available.
    pub(crate) engine: Option<NetKind>,
    /// Number of connections of all threads together.
    pub(crate) connections: u32,
    /// Processors, each with one pinned thread. If empty: all processors that this process may use.
    pub(crate) cpus: Vec<usize>,
    /// When requests are sent.
    pub(crate) loop_kind: LoopKind,
    pub(crate) reuse: Reuse,
    /// When the load ends.
    pub(crate) length: Length,
    /// Timeout for a connection, and for a response after its request was sent.
    pub(crate) timeout: Duration,
    pub(crate) response_kind: ResponseKind,
    /// Network namespace of the generator; `None` is that of the process.
    pub(crate) network: Option<Network>,
    /// Expectations of every response.
    pub(crate) expect: Expect,
    /// Seed of the random numbers: the same seed yields the same requests.
    pub(crate) seed: u64,
    /// Flag that ends the load early; the counts so far are the outcome.
    pub(crate) stop: Arc<AtomicBool>,
    /// Size in bytes of each receive buffer. Only the memory that received bytes fill is ever touched.
    pub(crate) receive_bytes: u32,
    /// In an open loop, requests of one thread that are due within this time are sent together; zero sends each
    /// separately. If `None`: [`GRAIN`] from [`GRAIN_FROM`] requests per second and thread, zero below.
    pub(crate) grain: Option<Duration>,
    /// TLS client settings, if the connections use TLS.
    pub(crate) tls: Option<tls::Client>,
    /// Settings of QUIC, if the requests are those of HTTP/3. The engine is not used then.
    pub(crate) quic: Option<QuicSettings>,
}

/// Settings of connections over QUIC.
#[derive(Clone, Debug)]
pub(crate) struct QuicSettings {
    pub(crate) tls: tls::Client,
    /// Requests in flight of a connection.
    pub(crate) streams: u32,
    /// Whether a request of a resumed session is sent before the handshake is complete.
    pub(crate) early_data: bool,
    /// Share of datagrams that are lost in each direction, in percent. The generator discards them.
    pub(crate) loss_percent: u32,
}

/// Kind of a response, which decides what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// An HTTP/1 response to an HTTP/1 request.
    Http,
    /// This number of bytes in reply to the plan's body, which is sent without a header section: for echo servers.
    Bytes(u64),
    /// The end of the connection, on which nothing is sent.
    End,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LoopKind {
    /// Closed loop: the next request follows immediately after the previous response, so the server sets the pace.
    Closed,
    /// Open loop: a fixed rate of all threads together, in requests per second, evenly spaced and independent of the
    /// server. Latency counts from the time when a request was due, so a request that was delayed by a slow response
    /// before it does not look fast.
    Open { rate: f64 },
}

/// How connections are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Keep-alive connections, each with one request in flight.
    KeepAlive,
    /// One request per connection (`Connection: close`). The latency includes the connect.
    PerRequest,
}

/// Default of [`Plan::grain`]. On a virtual machine, waking the generator, and through it the server, costs several
/// microseconds, as much as a request. This grain leaves 2 500 wake-ups per second; a latency is at most 0.8 ms too
/// long.
pub(crate) const GRAIN: Duration = Duration::from_micros(400);

/// Rate per thread from which [`GRAIN`] applies: slower threads have enough CPU time to wake up for each request and
/// each response.
pub(crate) const GRAIN_FROM: f64 = 50_000.0;

/// When the load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// After this duration.
    Time(Duration),
    /// After this number of requests, including failed ones. With counting patterns ([`Target`]), each number is
    /// requested equally often.
    Requests(u64),
}

/// Expectations of a response; a response that does not meet them is counted as an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expect {
    /// Expected status; if `None`, 200 to 399.
    pub(crate) status: Option<u16>,
    /// Expected length of the body in bytes, after removal of the chunked coding.
    pub(crate) length: Option<u64>,
    pub(crate) crc32c: Option<u32>,
}

impl Plan {
    /// Creates a plan of `GET` requests for these targets: closed loop, 100 keep-alive connections, ten seconds.
    pub(crate) fn new(targets: Vec<Target>) -> Plan {
        Plan {
            targets,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            engine: None,
            connections: 100,
            cpus: Vec::new(),
            loop_kind: LoopKind::Closed,
            reuse: Reuse::KeepAlive,
            length: Length::Time(Duration::from_secs(10)),
            timeout: Duration::from_secs(10),
            response_kind: ResponseKind::Http,
            network: None,
            expect: Expect::default(),
            seed: 1,
            stop: Arc::default(),
            receive_bytes: 16 << 10,
            grain: None,
            tls: None,
            quic: None,
        }
    }

    /// Returns the same load for one URL.
    pub(crate) fn for_url(self, url: &str) -> Result<Plan, Failure> {
        Ok(Plan { targets: vec![Target::parse(url)?], ..self })
    }
}
