//! Counts of each server: its tries by status, bytes and times. They are kept under the lock of its group, which each try
//! takes anyway.

use std::time::{Duration, Instant};

use telemetry::histogram::Distribution;
use telemetry::traffic::{CODE_PLACES, Codes, code_place};

/// Facts of a try that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// Its status; 0 where the client went away before there was one.
    pub status: u16,
    /// Bytes of the request.
    pub sent: u64,
    /// Bytes of the response.
    pub received: u64,
    /// Time from the start to a new connection.
    pub connect: Option<Duration>,
    /// From its begin to the header section of the response.
    pub header: Option<Duration>,
    /// From its begin to its end.
    pub response: Duration,
}

/// Counts of one server.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Times that it was chosen.
    pub chosen: u64,
    /// Tries by status; a client that went away counts as 499.
    pub codes: Codes,
    /// Bytes of requests.
    pub sent: u64,
    /// Bytes of responses.
    pub received: u64,
    /// Failed tries.
    pub fails: u64,
    /// Times that it was left alone after failures.
    pub unavailable: u64,
    /// When it was chosen last.
    pub selected: Option<Instant>,
    /// Times to a connection.
    pub connect: Distribution,
    /// Times to a header section.
    pub header: Distribution,
    /// Responses that came to an end, and the sum of their times: there is no histogram of these.
    pub responses: (u64, Duration),
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            chosen: 0,
            codes: [0; CODE_PLACES],
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
    /// It was chosen.
    pub(super) fn choose(&mut self, now: Instant) {
        self.chosen += 1;
        self.selected = Some(now);
    }

    /// A try has ended.
    pub(super) fn end(&mut self, tried: &Tried) {
        let status = if tried.status == 0 { GONE } else { tried.status };
        self.codes[code_place(status)] += 1;
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

    /// Adds those of the same server on another line.
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

/// nginx's status for a client that went away.
const GONE: u16 = 499;
