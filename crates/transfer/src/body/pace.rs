//! Limits the rate of a response (`limit_rate`), and the bytes per read.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use io::Segments;
use rt::Sleep;

use crate::body::rules::Sending;

/// A rate limit of one response. As in nginx the first `after` bytes are not limited (`limit_rate_after`).
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Rate in bytes per second.
    pub bytes_per_second: u64,
    /// Number of bytes before the limit applies.
    pub after: u64,
    /// Start of the response.
    pub since: Instant,
}

/// Enforces the rate limit of one response, if it has one, for any protocol.
pub struct Pace {
    rate: Option<Rate>,
    /// Timer until the next bytes may be sent.
    sleep: Option<Sleep>,
}

impl Pace {
    /// Returns the pace of a response.
    pub fn new(rate: Option<Rate>) -> Pace {
        Pace { rate, sleep: None }
    }

    /// Whether the response has a limit.
    pub fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Is ready when more bytes may follow the `sent` bytes.
    pub fn poll_due(&mut self, context: &mut Context<'_>, sent: u64) -> Poll<()> {
        let Some(rate) = self.rate else { return Poll::Ready(()) };
        let over = sent.saturating_sub(rate.after);
        let due = rate.since + Duration::from_secs_f64(over as f64 / rate.bytes_per_second as f64);
        if due > rt::now() {
            let sleep = self.sleep.get_or_insert_with(|| rt::sleep_until(due));
            ready!(Pin::new(sleep).poll(context));
        }
        self.sleep = None;
        Poll::Ready(())
    }

    /// Splits off the bytes of `data` that may be sent now after `sent` bytes; returns `None` if all may be sent. The
    /// bytes are copied, because the remaining bytes stay queued; the copy is cheap compared to the limited rate.
    pub fn take_allowed(&self, sent: u64, data: &mut Segments) -> Option<Vec<u8>> {
        let rate = self.rate?;
        let passed = rt::now().saturating_duration_since(rate.since) + BURST_TIME;
        let allowed = rate.after as f64 + passed.as_secs_f64() * rate.bytes_per_second as f64;
        let allowed = (allowed as u64).saturating_sub(sent).max(1);
        if data.len() as u64 <= allowed {
            return None;
        }
        let mut first = Vec::new();
        for part in data.parts() {
            let left = allowed as usize - first.len();
            first.extend_from_slice(&part.bytes()[..left.min(part.bytes().len())]);
        }
        debug_assert!(first.len() <= allowed as usize, "no more bytes than the rate allows");
        data.advance(first.len());
        Some(first)
    }
}

/// Returns the number of bytes per read, if it is configured (`output_buffers`) or limited by the rate.
pub fn chunk_bytes(rules: &Sending, rate: Option<&Rate>) -> Option<u64> {
    let configured = rules.output_buffers.map(|(_, bytes)| bytes.clamp(1, CHUNK_MAX));
    let limited = rate.map(|rate| rate.bytes_per_second.clamp(1, CHUNK_MAX));
    configured.into_iter().chain(limited).min()
}

/// Time by which a response may be ahead of its rate, as in nginx: the bytes of this time may be sent in one burst.
const BURST_TIME: Duration = Duration::from_secs(1);

/// Maximum bytes of a single read: the largest buffer class. A sendfile of this size on the worker thread delays other
/// connections by about ten microseconds; nginx sends twice as many per call.
pub(super) const CHUNK_MAX: u64 = 1 << 20;
