//! Measures round trips by PING (RFC 9113 section 6.7), without a clock: the caller counts what happens during one.

use super::frame::{self, FrameType};

/// Content of the PING that measures a round trip.
const ROUND_PING: &[u8; 8] = b"roundtrp";

/// Maximum number of WINDOW_UPDATE frames between two measurements, while the windows suffice.
const PAUSE_MAX: u8 = 15;

/// The measurement of round trips on a connection.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Number of the round trip.
    number: u32,
    is_in_flight: bool,
    /// Number of WINDOW_UPDATE frames without a measurement after the last one, and of those that remain.
    pause: u8,
    pause_left: u8,
}

impl Round {
    /// Handles the acknowledgement of a PING; returns whether it ends a measurement.
    pub(super) fn ends(&mut self, payload: &[u8]) -> bool {
        payload == ROUND_PING && std::mem::take(&mut self.is_in_flight)
    }

    /// Begins a measurement, unless one is in flight.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        if self.is_in_flight {
            return;
        }
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return;
        }
        self.is_in_flight = true;
        self.number = self.number.wrapping_add(1);
        frame::push(out, FrameType::Ping, 0, 0, ROUND_PING);
    }

    /// Sets the pause after a measurement: it grows while the windows suffice.
    pub(super) fn pause(&mut self, suffices: bool) {
        let pause = if suffices { (2 * self.pause + 1).min(PAUSE_MAX) } else { 0 };
        (self.pause, self.pause_left) = (pause, pause);
    }

    /// Returns the number of the last measured round trip.
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}
