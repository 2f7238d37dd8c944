//! What a load is: which requests, over how many connections, how fast, for how long.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use io::engine::NetKind;

use super::target::Target;

/// One load. [`Plan::new`] has the defaults; the fields are changed one by one.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The requested URLs, one after the other and then again; each may be a pattern.
    pub(crate) targets: Vec<Target>,
    /// `GET` unless it is changed. `HEAD` is known to have no body in the response.
    pub(crate) method: String,
    /// Further field lines, each without its line end: `Accept-Encoding: gzip`.
    pub(crate) headers: Vec<String>,
    /// The body of each request; with one there is a `Content-Length`.
    pub(crate) body: Vec<u8>,
    /// The engine of the connections; the best one of this machine where none is given.
    pub(crate) engine: Option<NetKind>,
    /// Connections of all threads together.
    pub(crate) connections: u32,
    /// A thread is pinned to each of these processors. None at all: one thread for each that this process may use.
    pub(crate) cpus: Vec<usize>,
    /// When requests are sent.
    pub(crate) pace: Pace,
    /// How many requests a connection is for.
    pub(crate) reuse: Reuse,
    /// Load before anything is counted. Nothing with [`Length::Requests`].
    pub(crate) warm_up: Duration,
    /// When it ends.
    pub(crate) length: Length,
    /// The longest wait for a connection, and for a response after its request was sent.
    pub(crate) timeout: Duration,
    /// What a response is.
    pub(crate) answers: Answers,
    /// What every response must be; targets may say more for theirs.
    pub(crate) expect: Expect,
    /// Random numbers follow from it: the same seed makes the same requests.
    pub(crate) seed: u64,
    /// Ends the load early once it is set; the counts until then are the outcome.
    pub(crate) stop: Arc<AtomicBool>,
    /// Size of each buffer for received bytes. Only what is received is ever touched of one.
    pub(crate) receive_bytes: u32,
    /// In an open loop: requests of one thread that are due within this time are sent together; zero for each alone. Where
    /// nothing is said, [`GRAIN`] from [`GRAIN_FROM`] requests a second of one thread on, and zero below.
    pub(crate) grain: Option<Duration>,
    /// What handshakes are made with, where connections speak TLS.
    pub(crate) tls: Option<tls::Client>,
}

/// What a response is, and so what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// A message of HTTP/1 to a request of it.
    Http,
    /// So many bytes to the body of the plan, which is sent alone: of a server that sends back what it receives.
    Bytes(u64),
    /// The end of the connection, on which nothing is sent.
    End,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// The next one as soon as the one before is answered: as fast as the server can.
    Closed,
    /// So many in a second, evenly, whatever the server does. The latency counts from the time that a request was due,
    /// so that one that had to wait for a response before it is not called fast.
    Open {
        /// Requests a second of all threads together.
        rate: f64,
    },
}

/// What connections are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Kept, with this many requests under way at once on each (1: no pipelining).
    KeepAlive {
        /// At least 1, at most [`PIPELINE_MAX`].
        depth: u16,
    },
    /// One request (`Connection: close`), then another connection. The latency includes the connecting.
    PerRequest,
}

/// Most requests under way on a connection: servers stop reading before that.
pub(crate) const PIPELINE_MAX: u16 = 1024;

/// See [`Plan::grain`]. A wake-up of the generator, and of the server by it, costs a virtual machine several microseconds,
/// as much as a request: this leaves 2 500 of them a second, and 0.8 ms at most by which a latency is too long.
pub(crate) const GRAIN: Duration = Duration::from_micros(400);

/// See [`Plan::grain`]: slower threads have time to spare for a wake-up of each request and each response.
pub(crate) const GRAIN_FROM: f64 = 50_000.0;

/// When it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// After this time, the warm-up not included.
    Time(Duration),
    /// After so many requests, failed ones included. With patterns that count ([`Target`]) each number comes exactly
    /// so often.
    Requests(u64),
}

/// What a response must be; a response that is not is counted as an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expect {
    /// This status; 200 to 399 where nothing is said.
    pub(crate) status: Option<u16>,
    /// So many bytes of body, chunked coding taken off.
    pub(crate) length: Option<u64>,
    /// CRC-32C of the body.
    pub(crate) crc32c: Option<u32>,
}

impl Expect {
    /// These, and what `self` leaves open from `general`.
    pub(crate) fn or(self, general: Expect) -> Expect {
        Expect {
            status: self.status.or(general.status),
            length: self.length.or(general.length),
            crc32c: self.crc32c.or(general.crc32c),
        }
    }
}

impl Plan {
    /// `GET` for these targets, closed loop, 100 keep-alive connections, ten seconds after one of warm-up.
    pub(crate) fn new(targets: Vec<Target>) -> Plan {
        Plan {
            targets,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            engine: None,
            connections: 100,
            cpus: Vec::new(),
            pace: Pace::Closed,
            reuse: Reuse::KeepAlive { depth: 1 },
            warm_up: Duration::from_secs(1),
            length: Length::Time(Duration::from_secs(10)),
            timeout: Duration::from_secs(10),
            answers: Answers::Http,
            expect: Expect::default(),
            seed: 1,
            stop: Arc::default(),
            receive_bytes: 16 << 10,
            grain: None,
            tls: None,
        }
    }
}
