//! Statistics per server: tries by status, bytes and times. The lock of the group protects them: each try holds it in any case.

use std::time::{Duration, Instant};

use telemetry::histogram::Distribution;
use telemetry::traffic::{CODE_VALUES, Codes, code_index};

/// Facts about a finished try.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// Status; 0 if the client disconnected first.
    pub status: u16,
    /// Bytes of the request sent.
    pub sent: u64,
    /// Bytes of the response received.
    pub received: u64,
    /// Time from the start of the try to a new connection.
    pub connect: Option<Duration>,
    /// Time from the start of the try to the header section of the response.
    pub header: Option<Duration>,
    /// Time from the start of the try to its end.
    pub response: Duration,
}

/// Statistics of one server.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Number of times that the server was chosen.
    pub chosen: u64,
    /// Number of tries by status; a disconnected client counts as 499.
    pub codes: Codes,
    /// Number of request bytes sent.
    pub sent: u64,
    /// Number of response bytes received.
    pub received: u64,
    /// Number of failed tries.
    pub fails: u64,
    /// Number of times that the server became unavailable after failures.
    pub unavailable: u64,
    /// Time of the last choice.
    pub selected: Option<Instant>,
    /// Distribution of connection times.
    pub connect: Distribution,
    /// Distribution of times to the header section.
    pub header: Distribution,
    /// Number of completed responses and the sum of their times; they have no histogram.
    pub responses: (u64, Duration),
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            chosen: 0,
            codes: [0; CODE_VALUES],
            sent: 0,
            received: 0,
            fails: 0,
            unavailable: 0,
            selected: None,
            connect: Distribution::default(),
            header: Distribution::default(),
            responses: (0, Duration::ZERO),
        }
    }
}

impl Counts {
    /// Counts a choice of the server.
    pub(super) fn choose(&mut self, now: Instant) {
        self.chosen += 1;
        self.selected = Some(now);
    }

    /// Counts a finished try.
    pub(super) fn end(&mut self, tried: &Tried) {
        let status = if tried.status == 0 { GONE } else { tried.status };
        self.codes[code_index(status)] += 1;
        self.sent += tried.sent;
        self.received += tried.received;
        if let Some(connect) = tried.connect {
            self.connect.add(connect);
        }
        if let Some(header) = tried.header {
            self.header.add(header);
            let (count, sum) = self.responses;
            self.responses = (count + 1, sum.saturating_add(tried.response));
        }
    }

    /// Adds the statistics of the same server on another line.
    pub(super) fn merge(&mut self, other: &Counts) {
        self.codes.iter_mut().zip(&other.codes).for_each(|(sum, count)| *sum += count);
        self.chosen += other.chosen;
        self.sent += other.sent;
        self.received += other.received;
        self.fails += other.fails;
        self.unavailable += other.unavailable;
        self.connect.merge(&other.connect);
        self.header.merge(&other.header);
        let (count, sum) = other.responses;
        self.responses = (self.responses.0 + count, self.responses.1.saturating_add(sum));
    }
}

/// nginx's status for a disconnected client.
const GONE: u16 = 499;
