//! The policy of the page cache: which files are read through it and which past it, for the server's files and for caches
//! alike.
//!
//! [`probe`] finds the resident bytes, [`PageCacheAdmission`] decides which files may enter, [`TryPredictor`] predicts
//! whether a cheap try succeeds. Nothing here submits operations.

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

/// How long bytes that a probe has found count as resident. One probe then serves every request for the same open file:
/// counting the pages of 1 MiB costs a tenth of sending them. The sender notices when the bytes were evicted.
pub const BELIEVED: Duration = Duration::from_millis(20);

/// Whether bytes that were in the page cache at `since` are taken to be there at `now`.
pub fn is_believed(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) <= BELIEVED
}

/// A number that identifies a file, nearly always: its bits are spread, as admission needs them.
pub fn name_of_file(stat: &crate::op::Stat) -> u64 {
    // By Fibonacci hashing: the upper half selects its cell.
    (stat.inode ^ stat.device.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
