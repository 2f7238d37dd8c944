//! Measures the time of parsing typical requests; ignored by default because it asserts nothing. Run it with
//! `cargo test -p http --release --test parse_speed -- --ignored --nocapture`.

use http::request::{Head, Policy, Progress, parse};
use http::uri::normalise;
use std::hint::black_box;
use std::time::Instant;

/// The request of wrk.
const WRK: &str = "GET /index.html HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

/// The request of a desktop browser for a page.
const BROWSER: &str = "GET /articles/2026/11/how-a-ring-serves-files.html?ref=front&n=12 HTTP/1.1\r\n\
Host: www.example.com\r\n\
Connection: keep-alive\r\n\
Cache-Control: max-age=0\r\n\
Upgrade-Insecure-Requests: 1\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
Sec-Fetch-Site: same-origin\r\n\
Sec-Fetch-Mode: navigate\r\n\
Sec-Fetch-User: ?1\r\n\
Sec-Fetch-Dest: document\r\n\
Referer: https://www.example.com/articles/2026/11/\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\n\
Cookie: session=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08; theme=dark\r\n\
If-None-Match: \"5a1b2c3d-264\"\r\n\
If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";

const ROUNDS: u32 = 200_000;
const REPEATS: u32 = 7;

#[test]
#[ignore = "a measurement, to be run in release mode"]
fn nanoseconds_per_request() {
    for (name, text) in [("wrk", WRK), ("browser", BROWSER)] {
        let mut head = Head::new();
        let policy = Policy::default();
        let ns = best_of(|| {
            head.clear();
            let progress = parse(&mut head, black_box(text.as_bytes()), &policy).expect("a valid request");
            assert!(matches!(progress, Progress::Complete { .. }));
        });
        let target = head.path().of(text.as_bytes());
        let mut out = Vec::new();
        let uri_ns = best_of(|| {
            black_box(normalise(black_box(target), true, &mut out).expect("a clean path"));
        });
        println!("{name}: {} bytes, head {ns:.0} ns, path {uri_ns:.0} ns", text.len());
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement needs a clock; the crate itself has none")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the nanoseconds per call in the fastest of several runs, since the others were disturbed.
fn best_of(mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = now();
        for _ in 0..ROUNDS {
            call();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    best
}
