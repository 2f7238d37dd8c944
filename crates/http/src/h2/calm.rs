//! Limits on work without effect: frames that cause none, and requests whose work is wasted because the peer cancels them.
//!
//! | state of the peer | frames | new requests |
//! |---|---|---|
//! | normal | – | begin immediately |
//! | many of its requests were cancelled | – | begin after [`Session::start_delay`], and not at all if they are cancelled before |
//! | [`Strain::Slow`] | the caller receives them slowly | as before |
//! | [`Strain::Ended`] | the same | the caller ends the connection by [`Session::end_calmly`]; open streams continue |
//! | [`Fault::Flood`] | the connection ends immediately | |
//!
//! A connection may carry the requests of many clients of a proxy, so a cancelled request never ends a connection: its cost is limited
//! by the rate at which further requests begin. Main types: [`Calm`], [`Strain`].

use std::time::Duration;

use super::error::{ErrorCode, Fault};
use super::session::{Role, Session};
use super::stream::Stream;

/// Maximum budget: number of frames without effect that the peer may send beyond those credited for its messages.
pub(super) const BUDGET_MAX: i32 = 1000;

/// Number of frames without effect that are received slowly before the connection accepts no further streams. After as many again it
/// ends.
const SLOW_FRAMES_MAX: i32 = 1000;

/// Number of frames, and of cancelled requests, per second that are permitted to the peer: a low rate is no attack, however long it
/// lasts.
const CREDIT_PER_SECOND: u32 = 10;

/// Number of frames that a stream costs which was refused, or reset for an error of the peer.
const COST_OF_FAULT: i32 = 4;

/// Payload in bytes below which DATA on a closed stream counts as a frame without effect. Larger frames are a client's body in flight;
/// their number is limited by its speed, as that of the frames of a body that is read.
const CLOSED_DATA_MIN: usize = 256;

/// Waste of a request that was cancelled before the header section of its response: its work, such as a request to an upstream, had no
/// effect.
const WASTE_OF_REQUEST: u32 = 4;

/// Waste of a request that was cancelled during the body of its response: the client has received a part of it.
const WASTE_OF_BODY: u32 = 1;

/// Number of wasted requests in excess of complete responses from which on new requests are delayed.
const WASTED_FREE: u32 = 16;

/// Maximum of that number: when the client is quiet again, the delay ends within 13 seconds.
const WASTED_MAX: u32 = 128;

/// Number of wasted requests above [`WASTED_FREE`] that increase the delay by a millisecond.
const WASTED_PER_MS: u32 = 5;

/// Maximum delay between the starts of two requests in ms. 50 requests per second are more than a person causes that types into a search
/// field.
const START_DELAY_MAX_MS: u32 = 20;

/// The counts of a connection.
#[derive(Debug)]
pub(super) struct Calm {
    /// Number of frames without effect that the peer may still send; negative if they are received slowly.
    frames: i32,
    /// Waste in units of [`WASTE_OF_BODY`].
    waste: u32,
}

impl Default for Calm {
    fn default() -> Calm {
        Calm { frames: BUDGET_MAX, waste: 0 }
    }
}

/// Strain that the peer's frames without effect put on this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strain {
    /// The peer is within its budget.
    None,
    /// The budget is exhausted: frames must be received slowly.
    Slow,
    /// The peer exceeds the budget although its frames are received slowly: no further streams are accepted.
    Ended,
}

impl<T> Session<T> {
    /// Credits elapsed time to the peer.
    pub fn pass_time(&mut self, seconds: u64) {
        let credit = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(CREDIT_PER_SECOND);
        self.pay_back(credit);
        self.forget_waste(credit);
    }

    /// Returns the strain by frames without effect.
    #[must_use]
    pub fn strain(&self) -> Strain {
        match self.calm.frames {
            0.. => Strain::None,
            frames if frames >= -SLOW_FRAMES_MAX => Strain::Slow,
            _ => Strain::Ended,
        }
    }

    /// Returns the minimum time between the starts of two requests, which grows with the work that the client has wasted.
    #[must_use]
    pub fn start_delay(&self) -> Duration {
        let wasted = self.calm.waste / WASTE_OF_REQUEST;
        let delay_ms = wasted.saturating_sub(WASTED_FREE).div_ceil(WASTED_PER_MS).min(START_DELAY_MAX_MS);
        Duration::from_millis(delay_ms.into())
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

    /// Credits frames to the peer's budget.
    pub(super) fn pay_back(&mut self, frames: u32) {
        let frames = i32::try_from(frames).unwrap_or(BUDGET_MAX).min(BUDGET_MAX);
        self.calm.frames = (self.calm.frames + frames).min(BUDGET_MAX);
    }

    /// Charges the budget for a frame without effect on a request.
    pub(super) fn spend(&mut self) -> Result<(), Fault> {
        self.spend_frames(1)
    }

    /// Accounts a DATA frame that is not empty: it is credited, unless it is a short one for a closed stream.
    pub(super) fn note_data(&mut self, id: u32, payload: usize) -> Result<(), Fault> {
        let is_closed = self.streams.get(id).is_none_or(|stream| stream.state.is_reset());
        if is_closed && payload < CLOSED_DATA_MIN {
            return self.spend();
        }
        self.pay_back(1);
        Ok(())
    }

    /// Charges the budget for a stream that was refused or reset for an error of the peer.
    pub(super) fn spend_for_fault(&mut self) -> Result<(), Fault> {
        if self.role == Role::Server { self.spend_frames(COST_OF_FAULT) } else { Ok(()) }
    }

    fn spend_frames(&mut self, frames: i32) -> Result<(), Fault> {
        self.calm.frames -= frames;
        if self.calm.frames < -2 * SLOW_FRAMES_MAX { Err(Fault::Flood) } else { Ok(()) }
    }

    /// Counts the waste of a stream that the peer has cancelled. Its RST_STREAM is not charged, unless the stream was held back: then
    /// its two frames had no effect.
    pub(super) fn note_cancelled(
        &mut self,
        (is_held, has_head, is_complete): (bool, bool, bool),
    ) -> Result<(), Fault> {
        if self.role == Role::Client {
            return Ok(());
        }
        if is_held {
            return self.spend();
        }
        self.pay_back(1);
        self.waste(has_head, is_complete);
        Ok(())
    }

    /// Counts the waste of a stream that this end is about to reset for an error of the peer: a client may provoke resets to cancel
    /// requests (CVE-2025-8671).
    pub(super) fn note_provoked(&mut self, id: u32) {
        let Some(stream) = self.streams.get(id).filter(|stream| !stream.state.is_reset()) else { return };
        let (is_held, has_head, is_complete) = stream.progress();
        if self.role == Role::Server && !is_held {
            self.waste(has_head, is_complete);
        }
    }

    /// Counts the waste of a stream that ends early.
    fn waste(&mut self, has_head: bool, is_complete: bool) {
        let waste = match (has_head, is_complete) {
            (_, true) => 0,
            (true, false) => WASTE_OF_BODY,
            (false, false) => WASTE_OF_REQUEST,
        };
        self.calm.waste = (self.calm.waste + waste).min(WASTED_MAX * WASTE_OF_REQUEST);
    }

    /// Credits complete responses, or the same number of wasted requests.
    pub(super) fn forget_waste(&mut self, requests: u32) {
        self.calm.waste = self.calm.waste.saturating_sub(requests.saturating_mul(WASTE_OF_REQUEST));
    }
}

impl<T> Stream<T> {
    /// Returns whether its work is held back, whether the header section of its response was sent, and whether the response is complete.
    pub(super) fn progress(&self) -> (bool, bool, bool) {
        (self.is_held, self.has_head, !self.state.sends())
    }
}
