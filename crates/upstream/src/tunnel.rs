//! A connection after a protocol switch (101): bytes are relayed in both directions until both have ended.
//!
//! The end of one direction is passed on. If the other side ignores it, the tunnel is closed soon: its peer may have left. `relay` moves the bytes.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use io::Buf;
use io::segments::Source;
use rt::Timer;

use crate::body::Live;
use crate::choice::Chosen;
use crate::link::Link;
use crate::relay::{HalfClose, Relay, RelayCounts, RelayEnd, RelayLimits, Side};
use crate::settings::Settings;
use crate::state::Try;
use exchange::takeover::{Ended, Takeover, TakeoverEnd};
use exchange::thread::Thread;
use transfer::duplex::Duplex;

/// A connection after a protocol switch.
pub struct Tunnel {
    thread: Rc<Thread>,
    link: Option<Box<Link>>,
    /// The bytes received after the header section of the 101.
    rest: Option<Buf>,
    record: Rc<Try>,
    /// Counts a request in flight at the upstream server until the end.
    _chosen: Chosen,
    /// Maximum time without data in either direction; then the tunnel is closed.
    idle_max: Duration,
    /// The same after one side has ended.
    half_closed_max: Duration,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tunnel")
    }
}

impl Tunnel {
    /// Takes the connection of a response 101 with the time limits of the location.
    pub(super) fn new(live: Live, settings: &Settings, thread: &Rc<Thread>) -> Tunnel {
        let (link, rest, record, chosen) = live.into_parts();
        let (idle_max, half_closed_max) = (settings.read_timeout, settings.half_close_timeout);
        Tunnel {
            thread: Rc::clone(thread),
            link,
            rest,
            record,
            _chosen: chosen,
            idle_max,
            half_closed_max: half_closed_max.min(idle_max),
        }
    }

    /// Relays all bytes in both directions.
    async fn pass_all(mut self, client: &mut dyn Duplex, timer: &Timer, early: &[u8]) -> TakeoverEnd {
        let Some(mut link) = self.link.take() else { return TakeoverEnd { reason: Ended::Closed, sent: 0 } };
        let [received, up, upstream_received, down] = [const { Cell::new(0) }; 4];
        let first_byte = Cell::new(None);
        let relay = Relay {
            thread: &self.thread,
            client,
            upstream: &mut link.wire,
            timer,
            limits: RelayLimits {
                idle_max: self.idle_max,
                half_close: HalfClose::IsPassedOn(self.half_closed_max),
                upload_rate: None,
                download_rate: None,
            },
            counts: RelayCounts {
                up: [&received, &up],
                down: [&upstream_received, &down],
                first_byte: &first_byte,
            },
        };
        let early = (!early.is_empty()).then(|| Source::Vec(early.to_vec()));
        let reason = match relay.run(early, self.rest.take().map(Source::Buf)).await {
            RelayEnd::Closed(_) => Ended::Closed,
            RelayEnd::Idle => Ended::Idle,
            RelayEnd::HalfClosed => Ended::HalfClosed,
            RelayEnd::CutOff => Ended::CutOff,
            RelayEnd::Broken(Side::Client, _, errno) => Ended::Client(errno),
            RelayEnd::Broken(Side::Upstream, _, errno) => Ended::Upstream(errno),
        };
        self.record.bytes_sent.set(self.record.bytes_sent.get() + up.get());
        self.record.count_received(down.get() as usize);
        self.record.end();
        TakeoverEnd { reason, sent: down.get() }
    }
}

impl Takeover for Tunnel {
    fn run<'a>(
        self: Box<Self>,
        client: &'a mut dyn Duplex,
        timer: &'a Timer,
        early: &'a [u8],
    ) -> Pin<Box<dyn Future<Output = TakeoverEnd> + 'a>> {
        Box::pin(self.pass_all(client, timer, early))
    }
}
