//! The page cache policy, used for the server's files and for caches: it decides which files are read through the page
//! cache, and which bypass it.
//!
//! [`probe`] finds the resident bytes, [`PageCacheAdmission`] decides which files are admitted, [`TryPredictor`]
//! predicts whether a cheap attempt succeeds. Nothing here submits operations.

mod admission;
mod predictor;
mod probe;

use std::time::{Duration, Instant};

pub use admission::PageCacheAdmission;
pub use predictor::TryPredictor;
pub(crate) use probe::UNCACHED;
pub use probe::{
    ProbeOptions, Residency, are_counted, begin_reading, cached_start, is_resident, read_cached, residency,
};

/// Time for which bytes that a probe has found resident are assumed to be resident. One probe then serves every request
/// for the same open file: counting the pages of 1 MiB costs a tenth of sending them. The sender notices when the bytes
/// were evicted.
pub const RESIDENT_TIME: Duration = Duration::from_millis(20);

/// Whether bytes that were resident at `since` are assumed to be resident at `now`.
pub fn is_assumed_resident(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) <= RESIDENT_TIME
}

/// Returns a number that identifies a file with negligible collisions; its bits are spread, as admission requires.
pub fn name_of_file(stat: &crate::facts::Stat) -> u64 {
    // Fibonacci hashing: the upper half selects the cell.
    (stat.inode ^ stat.device.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
