//! How fast a response may go (`limit_rate`), and how much of it is read at once.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use io::Segments;
use rt::Sleep;

use crate::body::rules::Sending;

/// A limit on the rate of one response: as in nginx the first `after` bytes are not limited (`limit_rate_after`), the
/// rest to this many a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes in a second.
    pub bytes_per_second: u64,
    /// Bytes that go before the limit holds.
    pub after: u64,
    /// When the response began.
    pub since: Instant,
}

/// Keeps one response to its rate, if it has one, in any protocol.
pub struct Pace {
    rate: Option<Rate>,
    /// Until the next bytes may go.
    sleep: Option<Sleep>,
}

impl Pace {
    /// The pace of a response.
    pub fn new(rate: Option<Rate>) -> Pace {
        Pace { rate, sleep: None }
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Ready when more may follow the `sent` bytes.
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

    /// Splits off the bytes of `data` that may be sent now after `sent` bytes; none if all may. It copies them, because
    /// the rest stays, and a limited rate needs no speed.
    pub fn take_allowed(&self, sent: u64, data: &mut Segments) -> Option<Vec<u8>> {
        let rate = self.rate?;
        let passed = rt::now().saturating_duration_since(rate.since) + AT_ONCE;
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
        data.advance(first.len());
        Some(first)
    }
}

/// Bytes that one read should bring, where they are configured (`output_buffers`) or limited by the rate.
pub fn chunk_bytes(rules: &Sending, rate: Option<&Rate>) -> Option<u64> {
    let configured = rules.output_buffers.map(|(_, bytes)| bytes.clamp(1, CHUNK_MAX));
    let limited = rate.map(|rate| rate.bytes_per_second.clamp(1, CHUNK_MAX));
    configured.into_iter().chain(limited).min()
}

/// How much of a limited rate may always go at once: a second's worth, as in nginx.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The longest single read: the largest class of buffers. A sendfile of as many bytes on the worker thread holds up
/// other connections for some ten microseconds; nginx passes twice as many on at once.
pub(super) const CHUNK_MAX: u64 = 1 << 20;
