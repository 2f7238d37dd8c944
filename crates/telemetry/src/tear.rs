//! Lines that a failed write has torn: their beginning is in the file, and the remainder is lost, for example on a full disk.
//!
//! The next write begins with a line end, so that the torn line does not join another one. A line counts as lost unless its end was
//! written.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::writer::count_lines;

/// State of the end of a file.
#[derive(Default)]
pub(super) struct Tear {
    /// Whether the file ends with a torn line. All threads that write to the file share it.
    torn: Arc<AtomicBool>,
    /// Whether the last byte that was written is not the end of a line.
    is_within: Cell<bool>,
    /// Whether the queue begins with a line end that belongs to a torn line.
    has_break: Cell<bool>,
}

impl Tear {
    /// Returns the state of a file whose torn end other threads may note and see.
    pub(super) fn shared(torn: &Arc<AtomicBool>) -> Tear {
        Tear { torn: Arc::clone(torn), ..Tear::default() }
    }

    /// Prepares a write of queued lines: a line end is inserted if the file ends with a torn line. Returns the number of inserted
    /// bytes.
    pub(super) fn prepare(&self, queue: &mut Vec<u8>) -> usize {
        if !self.torn.load(Ordering::Relaxed) || self.has_break.get() || queue.is_empty() {
            return 0;
        }
        queue.insert(0, b'\n');
        self.has_break.set(true);
        1
    }

    /// Notes bytes that were written.
    pub(super) fn written(&self, text: &[u8]) {
        let Some(last) = text.last() else { return };
        if self.has_break.replace(false) {
            self.torn.store(false, Ordering::Relaxed);
        }
        self.is_within.set(*last != b'\n');
    }

    /// Notes a failed write of `text`, of which the first `count` bytes were written. Returns the number of lost lines.
    pub(super) fn failed(&self, text: &[u8], count: usize) -> u64 {
        assert!(count <= text.len(), "only bytes of the text were written");
        self.written(&text[..count]);
        // An inserted line end is no line.
        let lost = count_lines(&text[count..]) - u64::from(self.has_break.replace(false));
        if self.is_within.replace(false) {
            self.torn.store(true, Ordering::Relaxed);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_partly_written_batch_are_not_lost() {
        let tear = Tear::default();
        assert_eq!(tear.failed(b"one\ntwo\nthree\n", 8), 1, "two lines are in the file");
        let mut queue = b"four\n".to_vec();
        assert_eq!((tear.prepare(&mut queue), queue.as_slice()), (0, &b"four\n"[..]), "no line is torn");
    }

    #[test]
    fn the_line_after_a_torn_line_begins_on_a_new_line() {
        let tear = Tear::default();
        assert_eq!(tear.failed(b"one\ntwo\nthree\n", 6), 2, "the torn line is lost");
        let mut queue = b"four\n".to_vec();
        assert_eq!((tear.prepare(&mut queue), queue.as_slice()), (1, &b"\nfour\n"[..]));
        assert_eq!(tear.prepare(&mut queue), 0, "it is prepared once");
        assert_eq!(tear.failed(&queue, 0), 1, "the inserted end is no line");
        assert_eq!(tear.prepare(&mut queue), 1, "the line is still torn");
        tear.written(&queue[..2]);
        tear.written(&queue[2..]);
        assert_eq!(tear.prepare(&mut queue), 0);
    }

    #[test]
    fn a_short_write_that_is_continued_tears_no_line() {
        let tear = Tear::default();
        tear.written(b"on");
        tear.written(b"e\n");
        assert_eq!(tear.prepare(&mut b"two\n".to_vec()), 0);
        tear.written(b"tw");
        assert_eq!(tear.failed(b"o\nthree\n", 0), 2);
        assert_eq!(tear.prepare(&mut b"four\n".to_vec()), 1);
    }
}
