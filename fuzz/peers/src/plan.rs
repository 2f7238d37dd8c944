//! The plan of a session: messages with fields, bodies and trailers, how each exchange ends, and the settings of both
//! ends.
//!
//! Both ends know the plan, so each can check the received messages.

use http::h2::Limits;

use crate::random::Random;

/// Fields in order.
pub type Fields = Vec<(String, Vec<u8>)>;

/// The code of RST_STREAM for planned resets: CONNECT_ERROR, which neither end uses otherwise.
pub const PLANNED_CODE: u32 = 0xa;

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The fields after the pseudo-header fields.
    pub fields: Fields,
    /// Length of the body in bytes.
    pub body: usize,
    /// Maximum number of body bytes sent in one call.
    pub piece_max: usize,
    /// Whether the head has `content-length`.
    pub is_counted: bool,
    /// Fields of the trailer section.
    pub trailers: Option<Fields>,
    /// Number of interim responses before the head.
    pub interim: usize,
}

impl Message {
    /// Whether the message consists of its head only.
    #[must_use]
    pub fn is_head_only(&self) -> bool {
        self.body == 0 && self.trailers.is_none()
    }

    /// Returns the fields, with `content-length` if it is sent.
    #[must_use]
    pub fn all_fields(&self) -> Fields {
        let mut fields = self.fields.clone();
        if self.is_counted {
            fields.push(("content-length".to_owned(), self.body.to_string().into_bytes()));
        }
        fields
    }
}

/// How an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both messages are sent and received completely.
    Whole,
    /// The client resets the stream after it has sent this number of bytes.
    ResetByClient(usize),
    /// The server resets the stream after it has sent this number of bytes.
    ResetByServer(usize),
    /// The server responds and does not read the complete request.
    Early,
}

/// A request and its response.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The request.
    pub request: Message,
    /// The response.
    pub response: Message,
    /// How it ends.
    pub ending: Ending,
}

/// A complete session.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Exchanges in the order in which they begin.
    pub exchanges: Vec<Exchange>,
    /// Limits of Ringroad's end.
    pub limits: Limits,
    /// Settings of the h2 end.
    pub peer: PeerPlan,
    /// Maximum number of bytes per read or write.
    pub chunk_max: usize,
    /// Maximum number of bytes in transit in one direction.
    pub wire_max: usize,
    /// Whether the server announces the end of the connection (GOAWAY) before all exchanges have begun.
    pub goes_away: bool,
}

/// Settings of the h2 end.
#[derive(Clone, Copy, Debug)]
pub struct PeerPlan {
    /// SETTINGS_INITIAL_WINDOW_SIZE
    pub initial_window: u32,
    /// Initial window of the connection.
    pub connection_window: u32,
    /// SETTINGS_MAX_FRAME_SIZE
    pub frame_max: u32,
    /// SETTINGS_HEADER_TABLE_SIZE
    pub table_bytes: u32,
    /// SETTINGS_MAX_CONCURRENT_STREAMS
    pub streams_max: u32,
    /// Number of streams that h2 as a client may open before it has received the server's limit.
    pub untold_streams: usize,
    /// Another initial window, set during the session.
    pub later_window: Option<u32>,
}

/// Direction of a message in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Request,
    /// From the server to the client.
    Response,
}

/// Returns the byte at an offset of a body.
#[must_use]
pub fn byte(exchange: usize, way: Way, at: usize) -> u8 {
    let start = exchange * 37 + if way == Way::Request { 11 } else { 101 };
    (start + at + (at >> 8) * 7) as u8
}

/// Returns a range of a body.
#[must_use]
pub fn bytes(exchange: usize, way: Way, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| byte(exchange, way, at)).collect()
}

const NAMES: [&str; 12] = [
    "accept",
    "cache-control",
    "user-agent",
    "x-a",
    "x-b",
    "etag",
    "via",
    "x-trace-id",
    "accept-language",
    "vary",
    "a",
    "grpc-timeout",
];
const VALUES: [&str; 8] =
    ["", "a", "gzip, deflate", "no-cache", "Mozilla/5.0 (X11; Linux x86_64)", "text/html", "0", "~{}\"\\|"];

fn fields(random: &mut Random, is_large: bool) -> Fields {
    let mut fields = Vec::new();
    for _ in 0..random.below(8) {
        let name = match random.once_in(6) {
            true => format!("x-{}", random.below(40)),
            false => random.one(&NAMES).to_owned(),
        };
        let value = match random.below(6) {
            0 => (0..random.below(60)).map(|_| 0x21 + random.below(0x5e) as u8).collect(),
            1 => b"\x80\xff\xc3\xa9"[random.below(4)..].to_vec(),
            _ => random.one(&VALUES).as_bytes().to_vec(),
        };
        fields.push((name, value));
    }
    if is_large {
        // More than fits into one frame.
        for name in ["x-large-a", "x-large-b", "x-large-c"] {
            let len = 5000 + random.below(2500);
            fields.push((name.to_owned(), (0..len).map(|_| 0x23 + random.below(0x50) as u8).collect()));
        }
    }
    fields
}

fn message(random: &mut Random, body_max: usize, is_large: bool) -> Message {
    let body = if random.once_in(3) { 0 } else { random.below(body_max) };
    let piece_max = random.one(&[100, 1000, 5000, 70_000]);
    Message {
        fields: fields(random, is_large),
        body,
        // Many frames of a few bytes would be rejected as abuse by both ends.
        piece_max: piece_max.max(body / 40),
        is_counted: body > 0 && random.once_in(2),
        trailers: random.once_in(4).then(|| {
            let mut fields = fields(random, false);
            fields.push(("grpc-status".to_owned(), b"0".to_vec()));
            fields
        }),
        interim: 0,
    }
}

impl Plan {
    /// Creates a random plan.
    #[must_use]
    pub fn new(random: &mut Random) -> Plan {
        let chunk_max = random.one(&[7, 100, 1500, 20_000, 100_000]);
        let windows = [3000, 10_000, 65_535, 200_000];
        let (limits, mut peer) = (settings(random, &windows), peer(random, &windows));
        let body_max = match chunk_max {
            7 => 300,
            100 => 3000,
            _ => random.one(&[100, 5000, 60_000]),
        };
        let is_large = chunk_max > 1000 && random.once_in(12);
        let exchanges: Vec<Exchange> =
            (0..1 + random.below(9)).map(|_| exchange(random, body_max, is_large)).collect();
        if exchanges.iter().any(|exchange| exchange.request.trailers.is_some()) {
            // h2 0.4 mistakes trailers of a stream that it has refused for a new stream, and ends the connection.
            peer.streams_max = 100;
        }
        let wire_max = random.one(&[50, 2000, 70_000, 1 << 20]).max(chunk_max);
        Plan { exchanges, limits, peer, chunk_max, wire_max, goes_away: random.once_in(10) }
    }
}

fn settings(random: &mut Random, windows: &[u32]) -> Limits {
    Limits {
        streams_max: random.one(&[1, 2, 5, 128]),
        initial_window: random.one(windows),
        ..Limits::default()
    }
}

fn peer(random: &mut Random, windows: &[u32]) -> PeerPlan {
    PeerPlan {
        initial_window: random.one(windows),
        connection_window: random.one(&[65_535, 70_000, 1 << 20]),
        frame_max: random.one(&[16_384, 20_000, 100_000]),
        table_bytes: random.one(&[0, 60, 500, 4096, 65_536]),
        streams_max: random.one(&[1, 3, 100]),
        untold_streams: random.one(&[1, 100]),
        later_window: random.once_in(4).then(|| random.one(windows)),
    }
}

fn exchange(random: &mut Random, body_max: usize, is_large: bool) -> Exchange {
    let request = message(random, body_max, is_large);
    let mut response = message(random, body_max, is_large);
    response.interim = if random.once_in(6) { 1 + random.below(2) } else { 0 };
    let ending = match random.below(16) {
        0 => Ending::ResetByClient(random.below(request.body + 1)),
        1 => Ending::ResetByServer(random.below(response.body + 1)),
        2 => Ending::Early,
        _ => Ending::Whole,
    };
    Exchange { request, response, ending }
}
