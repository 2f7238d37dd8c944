//! HTTP/2 to clients and upstreams with random engine faults: partial, interrupted, late, lost and failed operations.
//!
//! Each seed determines the faults of one server and the requests of one client. A complete response must have the right content.
//! Any other stream must end with an error status, a reset or the end of its connection. No stream may hang.
//!
//! `RINGROAD_TEST_HTTP2_FAULTS=1000` sets the number of seeds; without the variable the test begins no seeds after some seconds.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::http2::{self, DATA, END, Got, HEADERS, Http2, WHOLE, block, frame};
use crate::common::http2_origin::{Asked, Conn, Http2Origin};
use crate::common::{BINARY, ours_only};
use testkit::{Content, Setup};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events { use @NET@; @FAULTS@ }
http {
  client_header_timeout 2s; client_body_timeout 2s; send_timeout 2s; keepalive_timeout 2s;
  lingering_time 1s; lingering_timeout 1s;
  proxy_connect_timeout 2s; proxy_send_timeout 2s; proxy_read_timeout 2s;
  grpc_connect_timeout 2s; grpc_send_timeout 2s; grpc_read_timeout 2s;
  upstream app { server @APP@; keepalive 4; }
  server {
    listen 127.0.0.1:0;
    http2 on;
    root html;
    location /app/ { proxy_http_version 2; proxy_pass http://app; }
    location /stream/ { proxy_http_version 2; proxy_buffering off; proxy_request_buffering off; proxy_pass http://app; }
    location /call/ { grpc_pass grpc://app; }
  }
}
"#;

/// Environment variable with the number of seeds.
const SEEDS_VARIABLE: &str = "RINGROAD_TEST_HTTP2_FAULTS";

/// Number of seeds without the variable, and the time during which seeds are begun.
const SEEDS: u64 = 16;
const USUAL_TIME: Duration = Duration::from_secs(12);

/// Number of concurrent servers, which wait for timeouts most of the time.
const AT_ONCE: u64 = 4;

/// Maximum number of requests sent together, and the number of such rounds.
const STREAMS: usize = 5;
const ROUNDS: usize = 5;

const FILE: Content = Content::new(61, 70_001);

/// Request and its expected response.
#[derive(Clone, Copy, Debug)]
enum Ask {
    /// GET of the file.
    File,
    /// GET of a response with this length from the origin.
    Get(&'static str, usize),
    /// POST of a body with this length, which the origin returns.
    Post(&'static str, usize),
}

const ASKS: [Ask; 8] = [
    Ask::File,
    Ask::Get("/app/", 30_000),
    Ask::Get("/stream/", 30_000),
    Ask::Get("/call/", 100),
    Ask::Post("/app/", 9_000),
    Ask::Post("/stream/", 9_000),
    Ask::Post("/call/", 9_000),
    Ask::Post("/call/", 5),
];

/// Faults that may occur with any kernel; they must have no effect on responses.
const GENTLE: [&str; 7] = [
    "recv short probability=0.4",
    "send short probability=0.4",
    "recv error=ENOBUFS probability=0.2",
    "send error=EINTR probability=0.2",
    "recv end probability=0.3",
    "recv delay=3ms probability=0.3",
    "send delay=3ms probability=0.3",
];

/// Faults that end connections to the client or the upstream.
const HARSH: [&str; 9] = [
    "send error=EPIPE",
    "recv error=ECONNRESET",
    "send lost",
    "recv lost",
    "send delay=4s",
    "recv delay=4s",
    "connect error=ECONNREFUSED",
    "connect lost",
    "read error=EIO",
];

/// Random number generator whose results depend only on the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % count as u64) as usize
    }
}

/// Returns the faults of a seed as directives. The harsh fault is first, because the first matching directive applies.
fn faults(random: &mut Random, seed: u64) -> String {
    let mut rules = Vec::new();
    if random.below(4) > 0 {
        let fault = HARSH[random.below(HARSH.len())];
        let after = if fault.starts_with("connect") { 0 } else { random.below(40) };
        rules.push(format!("{fault} after={after} first={}", 1 + random.below(2)));
    }
    for _ in 0..1 + random.below(3) {
        rules.push(format!("{} seed={seed}", GENTLE[random.below(GENTLE.len())]));
    }
    rules.iter().map(|rule| format!("engine_fault {rule}; ")).collect()
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|place| (place % 251) as u8).collect()
}

/// Sends the body of a POST back; otherwise a body with the length in the last segment of the path.
fn answer(conn: &mut Conn, asked: &Asked) {
    if asked.field(":method") == Some("POST") {
        return conn.reply(asked.stream, 200, &[], &asked.body);
    }
    let count = asked.path().rsplit('/').next().and_then(|count| count.parse().ok()).unwrap_or(0);
    conn.reply(asked.stream, 200, &[("content-length", &count.to_string())], &numbers(count));
}

/// Numbers of streams by outcome.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    whole: usize,
    refused: usize,
    broken: usize,
}

/// Sends a request; returns its stream.
fn send(client: &mut Http2<TcpStream>, ask: Ask) -> std::io::Result<u32> {
    let stream = client.next_stream();
    let (method, path, body) = match ask {
        Ask::File => ("GET", "/a.bin".to_owned(), None),
        Ask::Get(place, count) => ("GET", format!("{place}{count}"), None),
        Ask::Post(place, count) => ("POST", format!("{place}echo"), Some(numbers(count))),
    };
    let line = [(":method", method), (":scheme", "http"), (":path", path.as_str()), (":authority", "here")];
    let ends = if body.is_none() { END } else { 0 };
    let mut bytes = frame(HEADERS, WHOLE | ends, stream, &block(&line));
    bytes.extend(body.map(|body| frame(DATA, END, stream, &body)).unwrap_or_default());
    client.try_send(&bytes)?;
    Ok(stream)
}

/// Checks and counts the outcome of a stream.
fn judge(ask: Ask, got: Option<&Got>, counts: &mut Counts) {
    let Some(got) = got.filter(|got| got.ended && got.reset.is_none()) else {
        counts.broken += 1;
        return;
    };
    if got.status != 200 {
        let known = match ask {
            Ask::File => &[500][..],
            _ => &[408, 500, 502, 504],
        };
        assert!(known.contains(&got.status), "{ask:?}: status {}", got.status);
        counts.refused += 1;
        return;
    }
    let is_right = match ask {
        Ask::File => got.body == FILE.bytes(0..FILE.size()),
        Ask::Get(_, count) | Ask::Post(_, count) => got.body == numbers(count),
    };
    assert!(is_right, "{ask:?}: {} other bytes", got.body.len());
    counts.whole += 1;
}

/// Makes the requests of one seed.
fn requests(random: &mut Random, connect: impl Fn() -> Http2<TcpStream>) -> Counts {
    let mut counts = Counts::default();
    let mut client = connect();
    for _ in 0..ROUNDS {
        let asked: Vec<Ask> =
            (0..1 + random.below(STREAMS)).map(|_| ASKS[random.below(ASKS.len())]).collect();
        let streams: Vec<_> = asked.iter().map(|ask| send(&mut client, *ask)).collect();
        let ids: Vec<u32> = streams.iter().filter_map(|stream| stream.as_ref().ok().copied()).collect();
        let is_over = |client: &Http2<TcpStream>| {
            let ended = |id| client.streams.get(id).is_some_and(|got| got.ended || got.reset.is_some());
            ids.iter().all(ended)
        };
        let mut is_closed = ids.len() < asked.len();
        while !is_over(&client) {
            match client.read_frame() {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("a stream has no end"),
                Err(_) => {
                    is_closed = true;
                    break;
                }
            }
        }
        for (ask, stream) in asked.iter().zip(streams) {
            let got = stream.ok().and_then(|id| client.streams.get(&id));
            judge(*ask, got, &mut counts);
        }
        if is_closed || !client.goaways.is_empty() {
            client = connect();
        }
    }
    counts
}

/// Runs one seed; returns `None` if the machine does not support the engine.
#[expect(clippy::print_stdout, reason = "a failed test shows its seed")]
fn run(net: &str, seed: u64) -> Option<Counts> {
    let mut random = Random(seed);
    let faults = faults(&mut random, seed);
    // The output of a failed test includes this line.
    println!("seed {seed} on {net}: {faults}");
    let app = Http2Origin::answering(answer);
    let setup = Setup::new(CONF).value("APP", &app.address()).value("NET", net).value("FAULTS", &faults);
    let started = setup.builder(BINARY).file("html/a.bin", FILE).try_start();
    let Ok(server) = started else {
        assert_eq!(net, "io_uring", "epoll is available everywhere");
        return None;
    };
    let counts = requests(&mut random, || http2::connect(&server));
    assert!(!server.stderr().contains("panicked"), "{}", server.stderr());
    assert!(server.stop_and_wait().success());
    assert_eq!(app.finish(), 0, "connections of the origin with an error");
    Some(counts)
}

#[test]
fn failing_operations_abort_streams_and_nothing_else() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    let wanted: Option<u64> = std::env::var(SEEDS_VARIABLE).ok().and_then(|count| count.parse().ok());
    let (seeds, began) = (wanted.unwrap_or(SEEDS), Instant::now());
    let mut all = Counts::default();
    let mut count = 0;
    for first in (1..=seeds).step_by(AT_ONCE as usize) {
        if wanted.is_none() && began.elapsed() > USUAL_TIME {
            break;
        }
        let nets = testkit::engines::NETS;
        let found: Vec<Option<Counts>> = std::thread::scope(|scope| {
            let one = |seed: u64| scope.spawn(move || run(nets[seed as usize % nets.len()], seed));
            let running: Vec<_> = (first..=seeds.min(first + AT_ONCE - 1)).map(one).collect();
            running
                .into_iter()
                .map(|seed| seed.join().expect("a seed without a fault of the server"))
                .collect()
        });
        for counts in found.into_iter().flatten() {
            all.whole += counts.whole;
            all.refused += counts.refused;
            all.broken += counts.broken;
            count += 1;
        }
    }
    println!("{count} seeds: {all:?}");
    assert!(all.whole > 0, "no complete response: {all:?}");
}
