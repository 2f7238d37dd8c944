//! Counts of work without effect: frames that cause none, and requests whose work is wasted because the peer cancels them.
//!
//! | state of the peer | frames | new requests |
//! |---|---|---|
//! | normal | – | begin immediately |
//! | many of its requests were cancelled | – | begin after [`Calm::start_delay`], and not at all if they are cancelled before |
//! | [`Strain::Slow`] | the caller receives them slowly | as before |
//! | [`Strain::Ended`] | the same | the caller ends the connection by GOAWAY; open streams continue |
//! | [`Flooded`] | the connection ends immediately | |
//!
//! A connection may carry the requests of many clients of a proxy, so a cancelled request never ends a connection: its cost is limited
//! by the rate at which further requests begin. Main types: [`Calm`], [`Strain`].

use std::time::Duration;

/// Maximum budget: number of frames without effect that the peer may send beyond those credited for its messages.
pub(crate) const BUDGET_MAX: i32 = 1000;

/// Number of frames without effect that are received slowly before the connection accepts no further streams. After as many again it
/// ends.
const SLOW_FRAMES_MAX: i32 = 1000;

/// Number of frames, and of cancelled requests, per second that are permitted to the peer: a low rate is no attack, however long it
/// lasts.
const CREDIT_PER_SECOND: u32 = 10;

/// Number of frames that a stream costs which was refused, or reset for an error of the peer.
pub(crate) const COST_OF_FAULT: i32 = 4;

/// Number of frames credited to the peer's budget for a complete message.
const CREDIT_FOR_MESSAGE: u32 = 4;

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
pub(crate) struct Calm {
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

/// Error of a peer that has sent too many frames without effect, although they were received slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flooded;

/// Progress of a request that the peer cancels, or that is reset for its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Whether its work is held back.
    pub(crate) is_held: bool,
    /// Whether the header section of its response was sent.
    pub(crate) has_head: bool,
    /// Whether its response is complete.
    pub(crate) is_complete: bool,
}

impl Calm {
    /// Credits elapsed time to the peer.
    pub(crate) fn pass_time(&mut self, seconds: u64) {
        let credit = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(CREDIT_PER_SECOND);
        self.pay_back(credit);
        self.forget_waste(credit);
    }

    /// Returns the strain by frames without effect.
    pub(crate) fn strain(&self) -> Strain {
        match self.frames {
            0.. => Strain::None,
            frames if frames >= -SLOW_FRAMES_MAX => Strain::Slow,
            _ => Strain::Ended,
        }
    }

    /// Returns the minimum time between the starts of two requests, which grows with the work that the client has wasted.
    pub(crate) fn start_delay(&self) -> Duration {
        let wasted = self.waste / WASTE_OF_REQUEST;
        let delay_ms = wasted.saturating_sub(WASTED_FREE).div_ceil(WASTED_PER_MS).min(START_DELAY_MAX_MS);
        Duration::from_millis(delay_ms.into())
    }

    /// Credits frames to the peer's budget.
    pub(crate) fn pay_back(&mut self, frames: u32) {
        let frames = i32::try_from(frames).unwrap_or(BUDGET_MAX).min(BUDGET_MAX);
        self.frames = (self.frames + frames).min(BUDGET_MAX);
    }

    /// Charges the budget for frames without effect.
    pub(crate) fn spend(&mut self, frames: i32) -> Result<(), Flooded> {
        self.frames -= frames;
        if self.frames < -2 * SLOW_FRAMES_MAX { Err(Flooded) } else { Ok(()) }
    }

    /// Notes that a message was sent completely.
    pub(crate) fn note_message(&mut self) {
        self.pay_back(CREDIT_FOR_MESSAGE);
        self.forget_waste(1);
    }

    /// Counts the waste of a request that the peer has cancelled. The cancellation itself is not charged, unless the request was held
    /// back: then its frames had no effect.
    pub(crate) fn note_cancelled(&mut self, progress: Progress) -> Result<(), Flooded> {
        if progress.is_held {
            return self.spend(1);
        }
        self.pay_back(1);
        self.note_provoked(progress);
        Ok(())
    }

    /// Counts the waste of a request that this end is about to reset for an error of the peer: a client may provoke resets to cancel
    /// requests (CVE-2025-8671).
    pub(crate) fn note_provoked(&mut self, progress: Progress) {
        let waste = match (progress.has_head, progress.is_complete) {
            _ if progress.is_held => 0,
            (_, true) => 0,
            (true, false) => WASTE_OF_BODY,
            (false, false) => WASTE_OF_REQUEST,
        };
        self.waste = (self.waste + waste).min(WASTED_MAX * WASTE_OF_REQUEST);
    }

    /// Credits complete responses, or the same number of wasted requests.
    pub(crate) fn forget_waste(&mut self, requests: u32) {
        self.waste = self.waste.saturating_sub(requests.saturating_mul(WASTE_OF_REQUEST));
    }
}
