//! Writes of log lines by a call of the thread: the line is in its file before the thread looks at another request.
//!
//! The call waits where the disk makes it wait, and so would all clients of the thread. It is made for regular files of
//! this machine only, and not again for a time where one took long: the engine writes then.

use std::cell::Cell;
use std::time::{Duration, Instant};

use io::Errno;
use io::op::{DeviceId, Stat};
use rt::File;
use rustix::fs::FileType;

/// A write that takes longer has waited for the disk: without that it is a copy into the page cache, some microseconds.
const QUICK: Duration = Duration::from_millis(10);

/// How long the engine writes after that. A slow disk makes writers wait 0.2 s at a time (the kernel's limit for writers
/// of dirty pages), so a thread loses 2 % at most.
const CAUTION: Duration = Duration::from_secs(10);

/// Bytes of one such write: those of a busy turn of 256 requests. A target with more lines than that is behind already.
const BYTES_MAX: usize = 64 << 10;

/// Whether a file is written in this way.
#[derive(Default)]
pub(super) struct Prompt {
    is_possible: Cell<bool>,
    /// Until when the engine writes.
    cautious_until: Cell<Option<Instant>>,
}

impl Prompt {
    /// Looks at the file, which was opened now.
    pub(super) async fn look_at(&self, file: &File, stat: &Stat, device: DeviceId) {
        if FileType::from_raw_mode(stat.mode) == FileType::RegularFile {
            let space = file.space(device, rt::caps().best_disk()).await;
            self.is_possible.set(space.is_ok_and(|space| space.is_local));
        }
    }

    /// Writes lines, or a part of them, behind the end of the file; `None` leaves them to the engine.
    pub(super) fn write(&self, file: &File, lines: &[u8]) -> Option<Result<usize, Errno>> {
        if !self.is_possible.get() || lines.len() > BYTES_MAX || self.is_cautious(rt::now()) {
            return None;
        }
        let began = Instant::now();
        #[expect(
            clippy::disallowed_methods,
            reason = "a copy into the page cache; a slow one is the last for a time"
        )]
        let written = rustix::io::write(file.fd(), lines);
        self.note(began, Instant::now());
        // A signal came before the first byte.
        (written != Err(Errno::INTR)).then_some(written)
    }

    /// A write, of either kind, took from `began` to `ended`.
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
    fn after_a_slow_write_the_engine_writes_for_a_time() {
        let (prompt, start) = (Prompt::default(), Instant::now());
        prompt.note(start, start + QUICK);
        assert!(!prompt.is_cautious(start + QUICK), "a quick one changes nothing");
        let slow = start + QUICK * 2;
        prompt.note(start, slow);
        assert!(prompt.is_cautious(slow) && prompt.is_cautious(slow + CAUTION / 2));
        // One by the engine was slow too: the disk is behind still.
        let later = slow + CAUTION;
        assert!(!prompt.is_cautious(later));
        prompt.note(slow, later);
        assert!(prompt.is_cautious(later + CAUTION / 2));
        assert!(!prompt.is_cautious(later + CAUTION), "no wait of the engine's for ever");
    }
}
