//! Encoded requests: each thread's share of the requests of a plan.

use std::io::Write;

use bare::Noise;

use super::plan::{Plan, ResponseKind, Reuse};
use super::target::{Order, Piece, Target};

/// Generator of the requests of one thread.
pub(crate) struct Requests {
    /// For each target, the encoded bytes of its request, with its variable numbers between them.
    templates: Vec<Vec<Piece>>,
    /// Number of this thread's next request.
    next: u64,
    /// Number of threads. With N of them, each makes every Nth request, so that together they make every request
    /// exactly once.
    threads: u64,
    noise: Noise,
}

impl Requests {
    /// Creates the share of thread number `thread` of `threads`; each thread has a separate random sequence.
    pub(crate) fn new(plan: &Plan, (thread, threads): (usize, usize)) -> Requests {
        Requests {
            templates: plan.targets.iter().map(|target| pieces(plan, target)).collect(),
            next: thread as u64,
            threads: threads as u64,
            noise: Noise::new(plan.seed.wrapping_add((thread as u64) << 32)),
        }
    }

    /// Appends the next request to `out`; over QUIC, its path.
    pub(crate) fn push(&mut self, out: &mut Vec<u8>) {
        let number = self.next;
        self.next += self.threads;
        let among = self.templates.len() as u64;
        let round = number / among;
        for piece in &self.templates[(number % among) as usize] {
            match piece {
                Piece::Literal(bytes) => out.extend_from_slice(bytes),
                &Piece::Number { first, count, width, order } => {
                    let offset = match order {
                        // Uniformly distributed up to a bias of `count` / 2^64 (Lemire's multiplication).
                        Order::Random => ((u128::from(self.noise.number()) * u128::from(count)) >> 64) as u64,
                        Order::Counting => round % count,
                    };
                    // A vector accepts everything.
                    let _ = write!(out, "{:0width$}", first + offset);
                }
            }
        }
    }
}

/// Encodes the fixed bytes of a target's requests, with its numbers between them.
fn pieces(plan: &Plan, target: &Target) -> Vec<Piece> {
    if plan.quic.is_some() {
        // Only the path: QPACK compresses the rest.
        return target.pieces.clone();
    }
    if plan.response_kind != ResponseKind::Http {
        return vec![Piece::Literal(plan.body.clone())];
    }
    let mut pieces = Vec::new();
    let mut bytes = format!("{} ", plan.method).into_bytes();
    for piece in &target.pieces {
        match piece {
            Piece::Literal(path) => bytes.extend_from_slice(path),
            number @ Piece::Number { .. } => {
                pieces.extend([Piece::Literal(std::mem::take(&mut bytes)), number.clone()]);
            }
        }
    }
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    // A header field that the user sets replaces the default one.
    let is_set = |name: &str| {
        let mut names = plan.headers.iter().filter_map(|line| line.split_once(':'));
        names.any(|(set, _)| set.trim().eq_ignore_ascii_case(name))
    };
    let mut field = |name: &str, value: &str| {
        if !is_set(name) {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
    };
    field("Host", &target.host);
    if plan.reuse == Reuse::PerRequest {
        field("Connection", "close");
    }
    if !plan.body.is_empty() {
        field("Content-Length", &plan.body.len().to_string());
    }
    for line in &plan.headers {
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&plan.body);
    pieces.push(Piece::Literal(bytes));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(plan: &Plan, thread: usize, threads: usize, count: usize) -> Vec<String> {
        let mut requests = Requests::new(plan, (thread, threads));
        let made = (0..count).map(|_| {
            let mut out = Vec::new();
            requests.push(&mut out);
            String::from_utf8(out).unwrap()
        });
        made.collect()
    }

    fn path(request: &str) -> String {
        request.split(' ').nth(1).unwrap().to_owned()
    }

    fn plan(urls: &[&str]) -> Plan {
        Plan::new(urls.iter().map(|url| Target::parse(url).unwrap()).collect())
    }

    #[test]
    fn a_request_has_all_required_fields() {
        let mut plan = plan(&["http://127.0.0.1:81/a?b"]);
        assert_eq!(made(&plan, 0, 1, 1), ["GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:81\r\n\r\n"]);
        plan.method = "POST".to_owned();
        plan.headers = vec!["host: other".to_owned(), "X: y".to_owned()];
        plan.body = b"body".to_vec();
        plan.reuse = Reuse::PerRequest;
        let wanted = concat!(
            "POST /a?b HTTP/1.1\r\nConnection: close\r\nContent-Length: 4\r\n",
            "host: other\r\nX: y\r\n\r\nbody"
        );
        assert_eq!(made(&plan, 0, 1, 1), [wanted]);
    }

    #[test]
    fn threads_share_a_counting_pattern_without_gap_or_repetition() {
        let plan = plan(&["http://127.0.0.1/a{00..02}", "http://127.0.0.1/b"]);
        let mut all: Vec<String> = Vec::new();
        for thread in 0..2 {
            all.extend(made(&plan, thread, 2, 3).iter().map(|text| path(text)));
        }
        all.sort();
        assert_eq!(all, ["/a00", "/a01", "/a02", "/b", "/b", "/b"]);
    }

    #[test]
    fn random_numbers_cover_the_range_and_repeat_with_the_seed() {
        let mut plan = plan(&["http://127.0.0.1/{5-9}"]);
        let first = made(&plan, 0, 1, 200);
        for number in 5..=9 {
            assert!(first.iter().any(|text| text.starts_with(&format!("GET /{number} "))), "{number}");
        }
        assert_eq!(first, made(&plan, 0, 1, 200));
        assert_ne!(first, made(&plan, 1, 2, 200));
        plan.seed = 2;
        assert_ne!(first, made(&plan, 0, 1, 200));
    }
}
