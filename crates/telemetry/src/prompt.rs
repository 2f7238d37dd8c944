//! Writes log lines by a direct system call: the line is in its file before the thread processes another request.
//!
//! If the disk is slow, the call blocks the thread and all its clients. Therefore only regular files on local file
//! systems are written directly. After a slow write the engine writes for some time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use io::facts::{DeviceId, Stat};
use io::{Disk, Errno};
use rt::File;
use rustix::fs::FileType;

/// Duration of a write above which it must have waited for the disk. A copy into the page cache takes a few
/// microseconds.
const QUICK: Duration = Duration::from_millis(10);

/// Time for which the engine writes after a slow write. A slow disk makes writers wait for 0.2 s at a time (the
/// kernel's limit for writers of dirty pages), so a thread loses at most 2 % of its time.
const CAUTION: Duration = Duration::from_secs(10);

/// Maximum number of bytes of a direct write: the lines of a busy turn with 256 requests. If more bytes are queued, the
/// log is already delayed, and the engine writes them.
const BYTES_MAX: usize = 64 << 10;

/// Whether a file is written directly.
#[derive(Default)]
pub(super) struct Prompt {
    is_possible: Cell<bool>,
    /// Time until which the engine writes.
    cautious_until: Cell<Option<Instant>>,
}

impl Prompt {
    /// Checks a file that was just opened.
    pub(super) async fn check(&self, file: &File, stat: &Stat, device: DeviceId) {
        if FileType::from_raw_mode(stat.mode) == FileType::RegularFile {
            let space = file.space(Disk { device, via: rt::caps().best_disk() }).await;
            self.is_possible.set(space.is_ok_and(|space| space.is_local));
        }
    }

    /// Appends lines, or some of them, to the file. Returns `None` if the engine must write them.
    pub(super) fn write(&self, file: &File, lines: &[u8]) -> Option<Result<usize, Errno>> {
        if !self.is_possible.get() || lines.len() > BYTES_MAX || self.is_cautious(rt::now()) {
            return None;
        }
        let began = Instant::now();
        #[expect(
            clippy::disallowed_methods,
            reason = "a copy into the page cache; after a slow write the engine writes for some time"
        )]
        let written = rustix::io::write(file.fd(), lines);
        self.note(began, Instant::now());
        // A signal arrived before the first byte was written.
        (written != Err(Errno::INTR)).then_some(written)
    }

    /// Notes the duration of a direct write or a write by the engine.
    pub(super) fn note(&self, began: Instant, ended: Instant) {
        if ended.saturating_duration_since(began) > QUICK {
            self.cautious_until.set(Some(ended + CAUTION));
        }
    }

    fn is_cautious(&self, now: Instant) -> bool {
        self.cautious_until.get().is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_writes_for_some_time_after_a_slow_write() {
        let (prompt, start) = (Prompt::default(), Instant::now());
        prompt.note(start, start + QUICK);
        assert!(!prompt.is_cautious(start + QUICK), "a quick one changes nothing");
        let slow = start + QUICK * 2;
        prompt.note(start, slow);
        assert!(prompt.is_cautious(slow) && prompt.is_cautious(slow + CAUTION / 2));
        // The write by the engine was slow too, so the disk is still slow.
        let later = slow + CAUTION;
        assert!(!prompt.is_cautious(later));
        prompt.note(slow, later);
        assert!(prompt.is_cautious(later + CAUTION / 2));
        assert!(!prompt.is_cautious(later + CAUTION), "the engine writes only for a limited time");
    }
}
