//! The state of the disk: after failures, the cache passes responses through for a while, and tries again.
//!
//! ```text
//!            a write fails, or reads fail in a row
//!   working ---------------------------------------> passing through
//!      ^                                              |   ^
//!      |                     after the pause          v   | trial fails: the pause is doubled
//!      +------- trial succeeds ------------------- on trial
//! ```
//! The trial of writing is a small file that the manager writes and removes. The trial of reading is the next read
//! after the pause.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use io::Errno;

/// First pause without disk access, in ms; doubled with each failed trial.
const PAUSE_FIRST_MS: u64 = 1000;

/// Maximum pause without disk access, in ms.
const PAUSE_MAX_MS: u64 = 30_000;

/// Time in ms for which a staging directory is not used after a failure.
const STAGING_PAUSE_MS: u64 = 30_000;

/// Number of consecutive failed reads after which reading is suspended: one bad sector affects one entry only.
const READ_ERRORS_MAX: u32 = 3;

/// The state of the disk. Times are in ms of the caller's clock.
#[derive(Debug, Default)]
pub(crate) struct Health {
    writes: Direction,
    reads: Direction,
    read_errors: AtomicU32,
    /// Time until which a staging directory outside of the cache is not used; 0 when it works.
    staging_until_ms: AtomicU64,
}

/// The state of reading or writing.
#[derive(Debug, Default)]
struct Direction {
    /// Time until which the disk is not used; 0 when it works.
    until_ms: AtomicU64,
    pause_ms: AtomicU64,
}

impl Direction {
    /// Records a failure; returns whether the disk worked until now.
    fn fail(&self, now_ms: u64) -> bool {
        let pause = match self.pause_ms.load(Ordering::Relaxed) {
            0 => PAUSE_FIRST_MS,
            pause => (pause * 2).min(PAUSE_MAX_MS),
        };
        let until = self.until_ms.load(Ordering::Relaxed);
        // Operations in flight at the failure add no information.
        if until > now_ms {
            return false;
        }
        debug_assert!((PAUSE_FIRST_MS..=PAUSE_MAX_MS).contains(&pause));
        self.pause_ms.store(pause, Ordering::Relaxed);
        self.until_ms.swap(now_ms + pause, Ordering::Relaxed) == 0
    }

    /// Records a success; returns whether the disk had failed before.
    fn recover(&self) -> bool {
        if self.until_ms.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.pause_ms.store(0, Ordering::Relaxed);
        self.until_ms.swap(0, Ordering::Relaxed) != 0
    }
}

/// Whether an error is a temporary shortage of descriptors or memory in this process, not a fault of the disk, the file
/// system or the directory.
pub(crate) fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR | Errno::CANCELED)
}

impl Health {
    /// Whether entries may be written.
    pub(crate) fn can_write(&self) -> bool {
        self.writes.until_ms.load(Ordering::Relaxed) == 0
    }

    /// Whether entries may be read: also after the pause, when the read is the trial.
    pub(crate) fn can_read(&self, now_ms: u64) -> bool {
        self.reads.until_ms.load(Ordering::Relaxed) <= now_ms
    }

    /// Whether the manager should try to write.
    pub(crate) fn needs_trial(&self, now_ms: u64) -> bool {
        let until = self.writes.until_ms.load(Ordering::Relaxed);
        until != 0 && until <= now_ms
    }

    /// Records a failed write; returns whether this changed the state.
    pub(crate) fn write_failed(&self, errno: Errno, now_ms: u64) -> bool {
        !is_shortage(errno) && self.writes.fail(now_ms)
    }

    /// Records a successful trial; returns whether this changed the state.
    pub(crate) fn write_succeeded(&self) -> bool {
        self.writes.recover()
    }

    /// Records a failed read; returns whether this changed the state.
    pub(crate) fn read_failed(&self, errno: Errno, now_ms: u64) -> bool {
        if is_shortage(errno) {
            return false;
        }
        let count = self.read_errors.fetch_add(1, Ordering::Relaxed) + 1;
        count >= READ_ERRORS_MAX && self.reads.fail(now_ms)
    }

    /// Records a successful read; returns whether this changed the state.
    pub(crate) fn read_succeeded(&self) -> bool {
        if self.read_errors.load(Ordering::Relaxed) != 0 {
            self.read_errors.store(0, Ordering::Relaxed);
        }
        self.reads.recover()
    }

    /// Whether files may be created in a staging directory outside of the cache.
    pub(crate) fn is_staging_usable(&self, now_ms: u64) -> bool {
        self.staging_until_ms.load(Ordering::Relaxed) <= now_ms
    }

    /// Records a failure of a staging directory; returns whether it worked until now.
    pub(crate) fn staging_failed(&self, now_ms: u64) -> bool {
        self.staging_until_ms.swap(now_ms + STAGING_PAUSE_MS, Ordering::Relaxed) == 0
    }

    /// Records that a file of a staging directory was moved into the cache.
    pub(crate) fn staging_succeeded(&self) {
        self.staging_until_ms.store(0, Ordering::Relaxed);
    }

    /// Returns the time from `now_ms` until a trial is due.
    pub(crate) fn trial_in(&self, now_ms: u64) -> Option<Duration> {
        let until = self.writes.until_ms.load(Ordering::Relaxed);
        (until != 0).then(|| Duration::from_millis(until.saturating_sub(now_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_pauses_grow_with_each_failure_and_end_after_recovery() {
        let health = Health::default();
        assert!(!health.write_failed(Errno::MFILE, 0) && health.can_write(), "not a fault of the disk");
        assert!(health.write_failed(Errno::NOSPC, 100));
        assert!(!health.write_failed(Errno::NOSPC, 200), "reported once");
        assert!(!health.can_write() && !health.needs_trial(1099) && health.needs_trial(1100));
        assert!(!health.write_failed(Errno::NOSPC, 1100));
        assert!(!health.needs_trial(3099) && health.needs_trial(3100));
        for _ in 0..10 {
            let due = 3100 + health.trial_in(3100).unwrap().as_millis() as u64;
            health.write_failed(Errno::IO, due);
        }
        assert!(health.trial_in(0).unwrap() < Duration::from_secs(400));
        assert!(health.write_succeeded() && health.can_write() && !health.write_succeeded());
    }

    #[test]
    fn one_bad_sector_does_not_stop_reading() {
        let health = Health::default();
        assert!(!health.read_failed(Errno::IO, 0) && !health.read_failed(Errno::IO, 0));
        assert!(health.can_read(0));
        assert!(health.read_failed(Errno::IO, 0), "three in a row");
        assert!(!health.can_read(999) && health.can_read(1000));
        assert!(health.read_succeeded() && health.can_read(0));
        assert!(!health.read_failed(Errno::IO, 0), "counted anew");
    }
}
