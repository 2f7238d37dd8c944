//! When a fetch that receives nothing counts as stalled.

use std::time::Duration;

/// Maximum duration of a timer.
pub const LONGEST_WAIT: Duration = Duration::from_secs(u32::MAX as u64);

/// Times without a byte after which a fetch counts as stalled. They are separate: a late header section is normal for a slow
/// upstream, a pause within a body is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimits {
    /// From the start of the fetch to the header section of its response.
    pub head: Duration,
    /// Between two pieces of the body.
    pub body: Duration,
}

impl StallLimits {
    /// Returns these limits with an endless wait for the header section.
    pub fn with_patience(self) -> StallLimits {
        StallLimits { head: LONGEST_WAIT, ..self }
    }
}
