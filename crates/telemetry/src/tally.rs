//! Counts connections and requests, as `stub_status` shows them.
//!
//! Each thread counts in memory that no other thread writes to. A reader adds up the counts of all threads. Counts that
//! change during the reading may not match each other exactly, as in nginx.

use std::sync::Arc;

use crate::metric::{Cells, Label, Metric, Page, Series};

const ACCEPTED: Series =
    Series::first(Metric::counter("connections_accepted_total", "connections", "Accepted connections."));

const CLOSED: Series =
    ACCEPTED.after(Metric::counter("connections_closed_total", "connections", "Closed connections."));

const REQUESTS: Series = CLOSED.after(Metric::counter(
    "requests_total",
    "requests",
    "Requests of which at least one byte was received.",
));

const CONNECTIONS: Series =
    REQUESTS.after(Metric::gauge("connections", "connections", "Open connections, by state.").labelled(&[
        Label {
            name: "state",
            values: &[
                ("waiting", "no request has begun"),
                ("reading", "the header section of a request is being received"),
                ("writing", "a response is being sent"),
            ],
        },
    ]));

const HTTP2_LIMITS: Series = CONNECTIONS.after(
    Metric::counter("http2_limits_total", "times", "Number of times that an HTTP/2 client reached a limit.")
        .labelled(&[Label {
            name: "limit",
            values: &[
                ("streams", "a request was refused, since the maximum number of streams was open"),
                (
                    "resets",
                    "requests of a connection were delayed, since many of its requests were cancelled",
                ),
                ("frames", "a connection accepted no further requests, since many frames had no effect"),
                ("header_block", "a connection ended, since a header block was too large"),
                ("output", "a connection was paused, since its client did not receive the queued frames"),
                (
                    "bodies",
                    "a connection was paused, since it had used its share of the thread's memory for bodies",
                ),
            ],
        }]),
);

const HANDSHAKES: Series = HTTP2_LIMITS.after(
    Metric::counter("tls_handshakes_total", "handshakes", "TLS handshakes with clients, by result.")
        .labelled(&[Label {
            name: "result",
            values: &[
                ("full", ""),
                ("resumed", "the client continued an earlier session"),
                ("failed", "closed by the client, too slow, or without common parameters of both sides"),
            ],
        }]),
);

const HANDSHAKE_STEPS: Series = HANDSHAKES.after(
    Metric::counter(
        "tls_handshake_steps_total",
        "steps",
        "Handshake steps that were deferred because several handshakes were in progress.",
    )
    .labelled(&[Label {
        name: "how",
        values: &[
            ("later", "in a later turn of the event loop, so that requests were served in between"),
            ("elsewhere", "on another thread, for RSA signatures"),
        ],
    }]),
);

/// Checks of client certificates; the values of `result` are in the order of [`OcspVerdict`].
const OCSP_VERDICTS: Series = HANDSHAKE_STEPS.after(
    Metric::counter(
        "tls_ocsp_verdicts_total",
        "clients",
        "Clients whose certificates were checked by OCSP (`ssl_ocsp`), by result.",
    )
    .labelled(&[Label {
        name: "result",
        values: &[
            ("good", "each checked certificate of the chain is good"),
            ("revoked", "a certificate of the chain was revoked"),
            ("unknown", "a responder does not know a certificate of the chain"),
            ("failed", "no valid response was received before the time limit, or before the client closed the connection"),
        ],
    }]),
);

/// Requests for responses to staple; the values of `result` are in the order of [`StaplingFetch`].
const STAPLING_FETCHES: Series = OCSP_VERDICTS.after(
    Metric::counter(
        "tls_stapling_fetches_total",
        "requests",
        "Requests for an OCSP response for a certificate of the server (`ssl_stapling`), by result.",
    )
    .labelled(&[Label {
        name: "result",
        values: &[
            ("good", "later handshakes send the response"),
            ("rejected", "the status was not good, or the response was invalid or had expired"),
            ("failed", "no response was received"),
        ],
    }]),
);

/// Closed and refused connections; the values of `limit` are in the order of [`Refusal`].
const REFUSED: Series = STAPLING_FETCHES.after(
    Metric::counter(
        "connections_refused_total",
        "connections",
        "Connections that a limit closed or did not allow, by limit.",
    )
    .labelled(&[Label {
        name: "limit",
        values: &[
            (
                "worker_connections",
                "a connection without a complete request, or with a response that its client does not read, was closed to make room for another client",
            ),
            ("descriptors", "such a connection was closed because the process had no free descriptors"),
            (
                "buffers",
                "the connection of a stalled request was closed, since `buffer_pool` had no free buffer",
            ),
            ("upstream", "`worker_connections` allowed no further connection to an upstream"),
            (
                "windows",
                "the connection of a silent HTTP/2 client was closed, since it held the memory for bodies that others need",
            ),
        ],
    }]),
);

/// Bodies without compression, or with less; the values of `how` are in the order of [`EncoderLimit`].
const ENCODERS_LIMITED: Series = REFUSED.after(
    Metric::counter(
        "encoders_limited_total",
        "responses",
        "Responses that were not completely compressed, since the thread's memory for encoders was in use.",
    )
    .labelled(&[Label {
        name: "how",
        values: &[
            ("refused", "no memory was free in time"),
            ("recalled", "another response needed the memory while the client or the source let it wait"),
        ],
    }]),
);

/// Ended tunnels; the values of `end` are in the order of [`TunnelEnd`].
const TUNNELS: Series = ENCODERS_LIMITED.after(
    Metric::counter(
        "tunnels_ended_total",
        "tunnels",
        "Ended connections that had switched to another protocol (WebSocket, CONNECT), by end.",
    )
    .labelled(&[Label {
        name: "end",
        values: &[
            ("closed", "both sides have ended the connection"),
            ("half_closed", "one side has ended the connection, and the other sent nothing for `proxy_half_close_timeout`"),
            ("idle", "no side sent anything for `proxy_read_timeout`"),
            ("cut_off", "the server shut down, and `worker_shutdown_timeout` had passed"),
            ("upstream", "the connection to the upstream failed"),
            ("client", "the connection to the client failed"),
        ],
    }]),
);

const SPLICED: Series = TUNNELS.after(Metric::counter(
    "spliced_bytes_total",
    "bytes",
    "Bytes that were passed from an upstream to a client, or in tunnels and sessions of `stream` in both directions, by splice(2).",
));

/// Events of QUIC; the values of `event` are in the order of [`QuicEvent`].
const QUIC_EVENTS: Series = SPLICED.after(
    Metric::counter("quic_events_total", "events", "Events of QUIC connections, by event.").labelled(&[
        Label {
            name: "event",
            values: &[
                ("connection", "a handshake began"),
                ("retry", "a client had to prove its address before the handshake"),
                ("early_accepted", "the server accepted early data (0-RTT)"),
                ("early_refused", "the server did not accept the early data that a client offered"),
                ("migration", "a client continued from another address"),
            ],
        },
    ]),
);

/// Sent packets of QUIC; the values of `result` are in the order of the arguments of [`Tally::count_packets`].
const QUIC_PACKETS: Series = QUIC_EVENTS.after(
    Metric::counter(
        "quic_packets_total",
        "packets",
        "Packets of QUIC sent to clients, counted once a second.",
    )
    .labelled(&[Label {
        name: "result",
        values: &[
            ("sent", "all sent packets"),
            ("lost", "packets that the client did not acknowledge in time"),
        ],
    }]),
);

const ALL: [&Series; 15] = [
    &ACCEPTED,
    &CLOSED,
    &REQUESTS,
    &CONNECTIONS,
    &HTTP2_LIMITS,
    &HANDSHAKES,
    &HANDSHAKE_STEPS,
    &OCSP_VERDICTS,
    &STAPLING_FETCHES,
    &REFUSED,
    &ENCODERS_LIMITED,
    &TUNNELS,
    &SPLICED,
    &QUIC_EVENTS,
    &QUIC_PACKETS,
];

/// All metrics of this file, in the order of the documentation.
pub const METRICS: &[&Metric] = &[
    &ACCEPTED.metric,
    &CLOSED.metric,
    &REQUESTS.metric,
    &CONNECTIONS.metric,
    &HTTP2_LIMITS.metric,
    &HANDSHAKES.metric,
    &HANDSHAKE_STEPS.metric,
    &OCSP_VERDICTS.metric,
    &STAPLING_FETCHES.metric,
    &REFUSED.metric,
    &ENCODERS_LIMITED.metric,
    &TUNNELS.metric,
    &SPLICED.metric,
    &QUIC_EVENTS.metric,
    &QUIC_PACKETS.metric,
];

/// Result of a handshake, in the order of the values of `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Completed with a new session.
    Full,
    /// Completed with a resumed session.
    Resumed,
    /// Failed.
    Failed,
}

/// Result of the OCSP checks for a client, in the order of the values of `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcspVerdict {
    /// All checked certificates are good.
    Good,
    /// A certificate was revoked.
    Revoked,
    /// A responder does not know a certificate.
    Unknown,
    /// No valid response.
    Failed,
}

/// Result of a request for a response to staple, in the order of the values of `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaplingFetch {
    /// Received, valid, and the status is good.
    Good,
    /// Received, but not sent to clients.
    Rejected,
    /// Not received.
    Failed,
}

/// Limits that close or refuse connections, in the order of the values of `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Limit on connections of a thread (`worker_connections`).
    Connections,
    /// Limit on descriptors of the process.
    Descriptors,
    /// Limit on buffers of a thread.
    Buffers,
    /// Limit on connections of a thread, reached by an upstream connection.
    Upstream,
    /// Limit on the memory of a thread for bodies over HTTP/2.
    Windows,
}

/// The end of a connection that had switched to another protocol, in the order of the values of `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEnd {
    /// Both sides have ended it.
    Closed,
    /// One side has ended it, and the other sent nothing.
    HalfClosed,
    /// No side sent anything.
    Idle,
    /// The server shut down.
    CutOff,
    /// The connection to the upstream failed.
    Upstream,
    /// The connection to the client failed.
    Client,
}

/// Limits of HTTP/2 whose use is counted, in the order of the values of `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2Limit {
    /// Number of concurrent requests.
    Streams,
    /// Number of requests that were cancelled before their response.
    Resets,
    /// Number of frames without effect.
    Frames,
    /// Number of bytes and fragments of a header block.
    HeaderBlock,
    /// Number of bytes that are ready to be sent.
    Output,
    /// Memory of a thread for request bodies.
    Bodies,
}

/// Events of QUIC connections, in the order of the values of `event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicEvent {
    /// A handshake began.
    Connection,
    /// A Retry packet was sent.
    Retry,
    /// Early data was accepted.
    EarlyAccepted,
    /// Early data was offered and not accepted.
    EarlyRefused,
    /// The address of a client has changed.
    Migration,
}

/// Effect of the limit for encoders on a response, in the order of the values of `how`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderLimit {
    /// It is not compressed.
    Refused,
    /// Its rest is not compressed.
    Recalled,
}

/// Number of counters of a thread.
const CELLS: usize = QUIC_PACKETS.end();

/// The counters of one thread.
#[derive(Debug, Default)]
pub struct Tally(Cells<CELLS>);

/// State of a connection, in the order of the values of `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waits for its first or next request.
    Waiting,
    /// Receives the header section of a request.
    Reading,
    /// A request is being processed.
    Writing,
}

/// Sums over all threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of open connections.
    pub active: u64,
    /// Number of accepted connections since the start. All of them are handled: if `worker_connections` is reached,
    /// further connections stay in the accept queue.
    pub accepted: u64,
    /// Number of requests since the start.
    pub requests: u64,
    /// Number of connections that receive a header section.
    pub reading: u64,
    /// Number of connections that process a request.
    pub writing: u64,
    /// Number of connections that wait for a request.
    pub waiting: u64,
}

impl Tally {
    /// Counts a connection of this thread, until the returned value is dropped.
    pub fn connection(self: &Arc<Tally>) -> Counted {
        self.0.add(&ACCEPTED, 0);
        self.0.add(&CONNECTIONS, Stage::Waiting as usize);
        Counted { tally: Arc::clone(self), stage: Stage::Waiting }
    }

    /// Counts a client of HTTP/2 that exceeded a limit.
    pub fn count_http2_limit(&self, limit: Http2Limit) {
        self.0.add(&HTTP2_LIMITS, limit as usize);
    }

    /// Counts connections that were closed or refused because of a limit.
    pub fn count_refused(&self, limit: Refusal, count: usize) {
        self.0.grow(&REFUSED, limit as usize, count as u64);
    }

    /// Counts a response that was not completely compressed.
    pub fn count_encoder_limit(&self, limit: EncoderLimit) {
        self.0.add(&ENCODERS_LIMITED, limit as usize);
    }

    /// Counts an ended connection that had switched to another protocol.
    pub fn count_tunnel(&self, end: TunnelEnd) {
        self.0.add(&TUNNELS, end as usize);
    }

    /// Counts bytes that were passed on by splice(2).
    pub fn count_spliced(&self, bytes: u64) {
        self.0.grow(&SPLICED, 0, bytes);
    }

    /// Counts an event of a QUIC connection.
    pub fn count_quic(&self, event: QuicEvent) {
        self.0.add(&QUIC_EVENTS, event as usize);
    }

    /// Counts packets of QUIC.
    pub fn count_packets(&self, sent: u64, lost: u64) {
        for (index, count) in [sent, lost].into_iter().enumerate() {
            self.0.grow(&QUIC_PACKETS, index, count);
        }
    }

    /// Counts a completed or failed TLS handshake with a client.
    pub fn count_handshake(&self, handshake: Handshake) {
        self.0.add(&HANDSHAKES, handshake as usize);
    }

    /// Counts handshake steps that ran in a later turn, and steps that ran on another thread.
    pub fn count_handshake_steps(&self, later: u64, elsewhere: u64) {
        for (index, count) in [later, elsewhere].into_iter().enumerate() {
            self.0.grow(&HANDSHAKE_STEPS, index, count);
        }
    }

    /// Counts a client whose certificates were checked by OCSP.
    pub fn count_ocsp_verdict(&self, verdict: OcspVerdict) {
        self.0.add(&OCSP_VERDICTS, verdict as usize);
    }

    /// Counts a request for an OCSP response to staple.
    pub fn count_stapling_fetch(&self, fetch: StaplingFetch) {
        self.0.add(&STAPLING_FETCHES, fetch as usize);
    }

    /// Returns the handshakes of these threads, by [`Handshake`].
    pub(crate) fn handshakes<'a>(tallies: impl Iterator<Item = &'a Arc<Tally>>) -> [u64; 3] {
        let sums = sums(tallies);
        std::array::from_fn(|index| HANDSHAKES.of(&sums)[index])
    }

    /// Appends how often limits of HTTP/2 were exceeded on these threads.
    pub(crate) fn write_http2_limits<'a>(tallies: impl Iterator<Item = &'a Arc<Tally>>, page: &mut Page) {
        page.head(&HTTP2_LIMITS.metric);
        page.numbers(&HTTP2_LIMITS.metric, &[], HTTP2_LIMITS.of(&sums(tallies)));
    }

    /// Appends all metrics of these threads.
    pub(crate) fn write_all<'a>(tallies: impl Iterator<Item = &'a Arc<Tally>>, page: &mut Page) {
        let sums = sums(tallies);
        for series in ALL {
            page.head(&series.metric);
            page.numbers(&series.metric, &[], series.of(&sums));
        }
    }
}

fn sums<'a>(tallies: impl Iterator<Item = &'a Arc<Tally>>) -> [u64; CELLS] {
    let mut sums = [0; CELLS];
    tallies.for_each(|tally| tally.0.add_to(&mut sums));
    sums
}

impl Totals {
    /// Returns the sums over these threads.
    pub(crate) fn of<'a>(tallies: impl Iterator<Item = &'a Arc<Tally>>) -> Totals {
        let (mut sums, mut closed) = ([0; CELLS], 0);
        for tally in tallies {
            // Closed connections are read first. A connection that is closed during the reading then counts as open,
            // and the difference cannot be negative.
            closed += tally.0.get(&CLOSED, 0);
            tally.0.add_to(&mut sums);
        }
        let [waiting, reading, writing] = [0, 1, 2].map(|state| CONNECTIONS.of(&sums)[state]);
        let (accepted, requests) = (ACCEPTED.of(&sums)[0], REQUESTS.of(&sums)[0]);
        Totals { active: accepted.saturating_sub(closed), accepted, requests, reading, writing, waiting }
    }
}

/// A counted connection.
#[derive(Debug)]
pub struct Counted {
    tally: Arc<Tally>,
    stage: Stage,
}

impl Counted {
    /// Sets the state of the connection. A change to `Reading` counts a request.
    pub fn set(&mut self, stage: Stage) {
        if stage == self.stage {
            return;
        }
        if stage == Stage::Reading {
            self.tally.0.add(&REQUESTS, 0);
        }
        self.leave();
        self.tally.0.add(&CONNECTIONS, stage as usize);
        self.stage = stage;
    }

    fn leave(&self) {
        self.tally.0.take(&CONNECTIONS, self.stage as usize);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.leave();
        self.tally.0.add(&CLOSED, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Shared;

    #[test]
    fn connections_are_counted_in_their_stage() {
        let shared = Shared::default();
        let (first, second) = (shared.new_tally(), shared.new_tally());
        let mut a = first.connection();
        let mut b = second.connection();
        let c = second.connection();
        a.set(Stage::Reading);
        b.set(Stage::Reading);
        b.set(Stage::Writing);
        let expected = Totals { active: 3, accepted: 3, requests: 2, reading: 1, writing: 1, waiting: 1 };
        assert_eq!(shared.totals(), expected);
        b.set(Stage::Reading);
        assert_eq!(shared.totals().requests, 3, "the next request of a connection is counted too");
        b.set(Stage::Waiting);
        drop((a, c));
        let expected = Totals { active: 1, accepted: 3, requests: 3, waiting: 1, ..Totals::default() };
        assert_eq!(shared.totals(), expected);
        drop(b);
        assert_eq!(shared.totals(), Totals { active: 0, waiting: 0, ..expected });
    }
}
