//! The result of a load: counts, latencies and resource usage.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

use super::link::Pending;
use super::plan::{LoopKind, Plan};
use super::reader::Response;
use crate::failure::Failure;

/// Share of its processor's time above which a generator thread is considered saturated.
const BUSY_SHARE: f64 = 0.95;
/// Share of the configured rate below which the rate is considered missed.
const RATE_SHARE: f64 = 0.99;

/// The counts of a load.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Name of the I/O engine of the connections: `io_uring` or `epoll`.
    pub(crate) engine: &'static str,
    /// Length of the load in seconds.
    pub(crate) seconds: f64,
    pub(crate) tally: Tally,
    /// Resource usage of each generator thread during the load.
    pub(crate) threads: Vec<ThreadUse>,
    /// Open or closed loop, which decides where a latency starts.
    pub(crate) loop_kind: LoopKind,
}

#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Complete responses, including those with a wrong status or content.
    pub(crate) responses: u64,
    /// Bytes of bodies, without framing.
    pub(crate) body_bytes: u64,
    /// Connections established after the start of the load; the initial connections are not counted.
    pub(crate) connections: u64,
    /// Requests without a correct response, by kind of failure.
    pub(crate) errors: Errors,
    /// Number of responses by status code.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Nanoseconds until the response was complete. In a closed loop they count from the time when the request was
    /// written or its connection begun, in an open loop from the time when the request was due. A timed-out request
    /// counts with the time until its timeout.
    pub(crate) latency: Histogram<u64>,
    /// Nanoseconds from the time when a request was written until its response was complete. In an open loop this omits
    /// the wait before sending: load generators that wait for each response before the next request show this figure.
    pub(crate) service: Histogram<u64>,
}

/// Kind of a failure. The first five kinds never became a response; the last two are wrong responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The connection could not be established.
    Connect,
    /// The connection was reset or closed before the first byte of a response or within its header section.
    Reset,
    /// The response was not complete within the timeout. In an open loop also a request that was due and could not be
    /// sent before the end.
    Timeout,
    /// The body ended before its length or last chunk.
    ShortBody,
    Parse,
    BadStatus,
    /// The body has an unexpected length or checksum.
    BadCheck,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Errors([u64; Errors::NAMES.len()]);

/// Resource usage of one generator thread.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ThreadUse {
    /// The processor that the thread was pinned to.
    pub(crate) cpu: usize,
    /// User and system CPU time in seconds.
    pub(crate) cpu_seconds: f64,
    /// Time in seconds that the thread was runnable and waited for a processor (`/proc/thread-self/schedstat`).
    pub(crate) delayed_seconds: f64,
    /// Time from the start of the load until this thread ended.
    #[serde(skip)]
    pub(crate) seconds: f64,
}

/// Limiting factor of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bottleneck {
    /// The configured rate: the generator and the server both achieved it.
    Rate,
    /// The server, or the network.
    Server,
    /// The generator: one of its threads was saturated, so the server may be faster than measured.
    Generator,
}

impl Outcome {
    /// Returns the number of complete responses per second.
    pub(crate) fn responses_per_second(&self) -> f64 {
        self.tally.responses as f64 / self.seconds
    }

    /// Returns an error if any request has failed.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let (responses, errors) = (self.tally.responses, self.tally.errors);
        match errors.total() {
            0 => Ok(()),
            total => Err(Failure::Other(format!("{total} errors beside {responses} responses: {errors}"))),
        }
    }

    pub(crate) fn cpu_us_per_response(&self) -> f64 {
        self.cpu_seconds() * 1e6 / self.tally.responses.max(1) as f64
    }

    /// Returns the generator's CPU time in seconds, of all its threads.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.threads.iter().map(|thread| thread.cpu_seconds).sum()
    }

    /// Returns a percentile (0 to 100) of the latency in microseconds; 0 without latencies.
    pub(crate) fn latency_us(&self, percentile: f64) -> f64 {
        percentile_us(&self.tally.latency, percentile)
    }

    /// Returns the share of its processor's time that the busiest thread used or waited for.
    pub(crate) fn busiest_share(&self) -> f64 {
        let shares = self.threads.iter().map(|thread| thread.cpu_seconds + thread.delayed_seconds);
        shares.fold(0.0, f64::max) / self.seconds
    }

    pub(crate) fn bottleneck(&self) -> Bottleneck {
        match self.loop_kind {
            LoopKind::Open { rate } if self.responses_per_second() >= rate * RATE_SHARE => Bottleneck::Rate,
            _ if self.busiest_share() >= BUSY_SHARE => Bottleneck::Generator,
            _ => Bottleneck::Server,
        }
    }
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::new()
    }
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally {
            responses: 0,
            body_bytes: 0,
            connections: 0,
            errors: Errors::default(),
            statuses: BTreeMap::new(),
            latency: histogram(),
            service: histogram(),
        }
    }

    /// Whether a request has ended.
    pub(super) fn has_outcome(&self) -> bool {
        self.responses + self.errors.total() > 0
    }

    /// Counts a response that is complete `now`, and whether it meets the expectations of the plan.
    pub(super) fn count(&mut self, plan: &Plan, pending: Pending, response: Response, now: u64) {
        self.responses += 1;
        self.body_bytes += response.body_bytes;
        *self.statuses.entry(response.status).or_default() += 1;
        // Wrong responses count too: the latency of a 503 is a valid result.
        self.latency.saturating_record(now - pending.due.min(now));
        if plan.loop_kind != LoopKind::Closed {
            self.service.saturating_record(now - pending.sent);
        }
        let expect = &plan.expect;
        // A response with a wrong status usually has a different body, so its content is not checked.
        let is_expected = match expect.status {
            Some(status) => response.status == status,
            None => (200..400).contains(&response.status),
        };
        if !is_expected {
            self.errors.count(Failed::BadStatus);
        } else if expect.length.is_some_and(|length| length != response.body_bytes)
            || expect.crc32c.is_some_and(|crc32c| crc32c != response.crc32c)
        {
            self.errors.count(Failed::BadCheck);
        }
    }

    /// Counts a request that was due at this time and has failed `now`.
    pub(super) fn count_failed(&mut self, failed: Failed, due: u64, now: u64) {
        self.errors.count(failed);
        if failed == Failed::Timeout {
            // Omitting the slowest requests would make a stalled server look fast.
            self.latency.saturating_record(now - due);
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.responses += other.responses;
        self.body_bytes += other.body_bytes;
        self.connections += other.connections;
        self.errors.0.iter_mut().zip(&other.errors.0).for_each(|(sum, count)| *sum += count);
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (sum, one) in [(&mut self.latency, &other.latency), (&mut self.service, &other.service)] {
            sum.add(one).expect("both have the same bounds");
        }
    }
}

impl Errors {
    /// Names of the kinds, in their order.
    const NAMES: [&str; 7] =
        ["connect", "reset", "timeout", "short_body", "parse", "bad_status", "bad_check"];

    pub(crate) fn count(&mut self, kind: Failed) {
        self.0[kind as usize] += 1;
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Serialize for Errors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Errors::NAMES.into_iter().zip(self.0))
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = Errors::NAMES.into_iter().zip(self.0).filter(|(_, count)| *count > 0);
        let words: Vec<String> =
            some.map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect();
        f.write_str(if words.is_empty() { "none".to_owned() } else { words.join(", ") }.as_str())
    }
}

/// Returns a percentile (0 to 100) of a histogram in microseconds; 0 without times.
pub(crate) fn percentile_us(times: &Histogram<u64>, percentile: f64) -> f64 {
    times.value_at_percentile(percentile) as f64 / 1e3
}

/// Creates a histogram of nanoseconds up to one hour, with three significant digits. Its memory is allocated at the
/// start.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("the bounds are in order")
}
