//! Limits on work without effect (RFC 9113 section 10.5), by the counts of [`calm`](crate::multiplexed::calm): which frames of a
//! session count.

use std::time::Duration;

use super::error::{ErrorCode, Fault};
use super::session::{Role, Session};
use super::stream::Stream;
use crate::multiplexed::calm::{COST_OF_FAULT, Flooded, Progress, Strain};

/// Payload in bytes below which DATA on a closed stream counts as a frame without effect. Larger frames are a client's body in flight;
/// their number is limited by its speed, as that of the frames of a body that is read.
const CLOSED_DATA_MIN: usize = 256;

impl From<Flooded> for Fault {
    fn from(Flooded: Flooded) -> Fault {
        Fault::Flood
    }
}

impl<T> Session<T> {
    /// Credits elapsed time to the peer.
    pub fn pass_time(&mut self, seconds: u64) {
        self.calm.pass_time(seconds);
    }

    /// Returns the strain by frames without effect.
    #[must_use]
    pub fn strain(&self) -> Strain {
        self.calm.strain()
    }

    /// Returns the minimum time between the starts of two requests, which grows with the work that the client has wasted.
    #[must_use]
    pub fn start_delay(&self) -> Duration {
        self.calm.start_delay()
    }

    /// Notes whether the work for a stream is held back: if the peer cancels it in this state, no work is wasted.
    pub fn hold(&mut self, id: u32, is_held: bool) {
        self.streams.get_mut(id).into_iter().for_each(|stream| stream.is_held = is_held);
    }

    /// Accepts no further streams because of too many frames without effect; open streams continue. Required frames are appended to
    /// `out`.
    pub fn end_calmly(&mut self, out: &mut Vec<u8>) {
        let last = self.last_served.unwrap_or(self.streams.last);
        self.last_served = Some(last);
        self.send_goaway(last, ErrorCode::EnhanceYourCalm, out);
    }

    /// Charges the budget for a frame without effect on a request.
    pub(super) fn spend(&mut self) -> Result<(), Fault> {
        Ok(self.calm.spend(1)?)
    }

    /// Accounts a DATA frame that is not empty: it is credited, unless it is a short one for a closed stream.
    pub(super) fn note_data(&mut self, id: u32, payload: usize) -> Result<(), Fault> {
        let is_closed = self.streams.get(id).is_none_or(|stream| stream.state.is_reset());
        if is_closed && payload < CLOSED_DATA_MIN {
            return self.spend();
        }
        self.calm.pay_back(1);
        Ok(())
    }

    /// Charges the budget for a stream that was refused or reset for an error of the peer.
    pub(super) fn spend_for_fault(&mut self) -> Result<(), Fault> {
        if self.role == Role::Server {
            self.calm.spend(COST_OF_FAULT)?;
        }
        Ok(())
    }

    /// Counts the waste of a stream that the peer has cancelled.
    pub(super) fn note_cancelled(&mut self, progress: Progress) -> Result<(), Fault> {
        if self.role == Role::Server {
            self.calm.note_cancelled(progress)?;
        }
        Ok(())
    }

    /// Counts the waste of a stream that this end is about to reset for an error of the peer.
    pub(super) fn note_provoked(&mut self, id: u32) {
        let Some(stream) = self.streams.get(id).filter(|stream| !stream.state.is_reset()) else { return };
        let progress = stream.progress();
        if self.role == Role::Server {
            self.calm.note_provoked(progress);
        }
    }
}

impl<T> Stream<T> {
    /// Returns the progress of its request.
    pub(super) fn progress(&self) -> Progress {
        Progress { is_held: self.is_held, has_head: self.has_head, is_complete: !self.state.sends() }
    }
}
