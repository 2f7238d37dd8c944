//! What a load came to.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::Pace;
use crate::failure::Failure;

/// The share of its processor above which a thread of the generator is taken to have had no time left.
const BUSY_SHARE: f64 = 0.95;
/// The share of a set rate below which it is taken not to have been kept.
const RATE_SHARE: f64 = 0.99;

/// Everything that was counted, after the warm-up.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The engine that the connections were on: `io_uring` or `epoll`.
    pub(crate) engine: &'static str,
    /// Length of what was counted.
    pub(crate) seconds: f64,
    /// Everything that was counted after the warm-up.
    pub(crate) tally: Tally,
    /// What each thread of the generator spent meanwhile.
    pub(crate) threads: Vec<ThreadUse>,
    /// Whether a rate was set, which decides what a latency counts from.
    pub(crate) pace: Pace,
    /// The load second by second, without the warm-up.
    pub(crate) series: Vec<Second>,
}

/// Counts of responses and of what failed.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Complete responses, those with a wrong status or content too.
    pub(crate) answers: u64,
    /// Bytes received: heads, framing and bodies.
    pub(crate) bytes: u64,
    /// Bytes of bodies, without framing.
    pub(crate) body_bytes: u64,
    /// Bytes sent.
    pub(crate) sent_bytes: u64,
    /// Connections that were made; those that the load began with are not among them.
    pub(crate) connections: u64,
    /// Requests without a right response, by kind.
    pub(crate) errors: Errors,
    /// Responses by status.
    pub(crate) statuses: Statuses,
    /// Nanoseconds from when a request was to be sent until its response was complete. In a closed loop that is when the
    /// request was written, or its connection begun; in an open one when it was due. A request that timed out counts
    /// with the time that it had waited.
    pub(crate) latency: Histogram<u64>,
    /// Nanoseconds from when a request was written. In an open loop this leaves out what it waited for before: what
    /// generators show that wait for one response before they send the next request.
    pub(crate) service: Histogram<u64>,
}

/// Responses by status code. An array, so that counting one is an addition.
#[derive(Clone, Debug)]
pub(crate) struct Statuses([u64; 1000]);

/// What failed, by kind. The first five never became a response; the last two are responses that are wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Errors {
    /// A connection that could not be made.
    pub(crate) connect: u64,
    /// A connection that ended, by a reset or orderly, before the first byte of a response or within its head.
    pub(crate) reset: u64,
    /// No complete response in time. In an open loop also what was due and could not be sent until the end.
    pub(crate) timeout: u64,
    /// A body that ended before its length or last chunk.
    pub(crate) short_body: u64,
    /// Bytes that are no response of HTTP/1.
    pub(crate) parse: u64,
    /// A status other than the expected.
    pub(crate) bad_status: u64,
    /// A body of another length or checksum than expected.
    pub(crate) bad_check: u64,
}

/// What one thread of the generator spent.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ThreadUse {
    /// The processor that it was pinned to.
    pub(crate) cpu: Option<usize>,
    /// Processor time, its own and the kernel's for it.
    pub(crate) cpu_seconds: f64,
    /// Time that it could have run and had no processor (`/proc/thread-self/schedstat`).
    pub(crate) delayed_seconds: f64,
    /// Times that its engine entered the kernel.
    pub(crate) kernel_entries: u64,
}

/// One second of a load, of all threads together.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Second {
    /// Its end, in seconds since the warm-up.
    pub(crate) at: f64,
    /// Responses that came, wrong ones included.
    pub(crate) answers: u64,
    /// Bytes received, heads included.
    pub(crate) bytes: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Of its latencies.
    pub(crate) p50_us: f64,
    /// 99 of 100 responses took no longer.
    pub(crate) p99_us: f64,
    /// The longest.
    pub(crate) max_us: f64,
    /// Whether it belongs to the warm-up.
    pub(crate) is_warm_up: bool,
}

/// What kept a load from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bottleneck {
    /// The rate that was set, and both kept it.
    Rate,
    /// The server, or the network.
    Server,
    /// A thread of the generator had no processor time left: the server may be faster than this.
    Generator,
}

impl Bottleneck {
    /// In tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bottleneck::Rate => "rate",
            Bottleneck::Server => "server",
            Bottleneck::Generator => "generator",
        }
    }
}

impl Outcome {
    /// Complete responses a second.
    pub(crate) fn answers_per_second(&self) -> f64 {
        self.tally.answers as f64 / self.seconds
    }

    /// Responses that were as expected, a second.
    pub(crate) fn good_per_second(&self) -> f64 {
        let errors = &self.tally.errors;
        (self.tally.answers - errors.bad_status - errors.bad_check) as f64 / self.seconds
    }

    /// Fails where a request has failed.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let (answers, errors) = (self.tally.answers, self.tally.errors);
        match errors.total() {
            0 => Ok(()),
            total => Err(Failure::Other(format!("{total} errors beside {answers} answers: {errors}"))),
        }
    }

    /// Bytes of bodies a second.
    pub(crate) fn body_bytes_per_second(&self) -> f64 {
        self.tally.body_bytes as f64 / self.seconds
    }

    /// The generator's processor time for each response, in microseconds.
    pub(crate) fn cpu_us_per_answer(&self) -> f64 {
        self.cpu_seconds() * 1e6 / self.tally.answers.max(1) as f64
    }

    /// The generator's processor time, of all its threads.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.threads.iter().map(|thread| thread.cpu_seconds).sum()
    }

    /// Times that the generator entered the kernel.
    pub(crate) fn kernel_entries(&self) -> u64 {
        self.threads.iter().map(|thread| thread.kernel_entries).sum()
    }

    /// Times that the generator entered the kernel for each response.
    pub(crate) fn kernel_entries_per_answer(&self) -> f64 {
        self.kernel_entries() as f64 / self.tally.answers.max(1) as f64
    }

    /// A percentile (0 to 100) of the latencies, in microseconds; 0 where there is none.
    pub(crate) fn latency_us(&self, percentile: f64) -> f64 {
        self.tally.latency.value_at_percentile(percentile) as f64 / 1e3
    }

    /// The share of its processor that the busiest thread used or waited for.
    pub(crate) fn busiest_share(&self) -> f64 {
        let shares = self.threads.iter().map(|thread| thread.cpu_seconds + thread.delayed_seconds);
        shares.fold(0.0, f64::max) / self.seconds
    }

    /// What kept the load from being faster.
    pub(crate) fn bottleneck(&self) -> Bottleneck {
        match self.pace {
            Pace::Open { rate } if self.answers_per_second() >= rate * RATE_SHARE => Bottleneck::Rate,
            _ if self.busiest_share() >= BUSY_SHARE => Bottleneck::Generator,
            _ => Bottleneck::Server,
        }
    }
}

impl Tally {
    /// Nothing yet.
    pub(crate) fn new() -> Tally {
        Tally {
            answers: 0,
            bytes: 0,
            body_bytes: 0,
            sent_bytes: 0,
            connections: 0,
            errors: Errors::default(),
            statuses: Statuses([0; 1000]),
            latency: histogram(),
            service: histogram(),
        }
    }

    /// Adds what another one has counted, of another thread or of another second.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.answers += other.answers;
        self.bytes += other.bytes;
        self.body_bytes += other.body_bytes;
        self.sent_bytes += other.sent_bytes;
        self.connections += other.connections;
        self.errors.add(&other.errors);
        for (sum, count) in self.statuses.0.iter_mut().zip(&other.statuses.0) {
            *sum += count;
        }
        for (sum, one) in [(&mut self.latency, &other.latency), (&mut self.service, &other.service)] {
            sum.add(one).expect("both have the same bounds");
        }
    }

    /// Forgets everything and keeps its memory.
    pub(crate) fn clear(&mut self) {
        (self.answers, self.bytes, self.body_bytes) = (0, 0, 0);
        (self.sent_bytes, self.connections) = (0, 0);
        self.errors = Errors::default();
        self.statuses.0.fill(0);
        self.latency.reset();
        self.service.reset();
    }
}

impl Statuses {
    /// Counts a response. The parser refused statuses without three digits before.
    pub(crate) fn count(&mut self, status: u16) {
        self.0[usize::from(status).min(999)] += 1;
    }

    /// Those that were seen, with how often.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.iter().enumerate().filter(|(_, count)| **count > 0).map(|(code, count)| (code as u16, *count))
    }
}

impl Errors {
    /// Each kind with its count.
    pub(crate) fn by_kind(&self) -> [(&'static str, u64); 7] {
        [
            ("connect", self.connect),
            ("reset", self.reset),
            ("timeout", self.timeout),
            ("short body", self.short_body),
            ("parse", self.parse),
            ("bad status", self.bad_status),
            ("bad check", self.bad_check),
        ]
    }

    /// Failures of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }

    fn add(&mut self, other: &Errors) {
        self.connect += other.connect;
        self.reset += other.reset;
        self.timeout += other.timeout;
        self.short_body += other.short_body;
        self.parse += other.parse;
        self.bad_status += other.bad_status;
        self.bad_check += other.bad_check;
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, count) in self.by_kind().into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "{separator}{name} {count}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// Nanoseconds up to an hour, with three significant digits. Its memory is all there from the start.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("the bounds are in order")
}
