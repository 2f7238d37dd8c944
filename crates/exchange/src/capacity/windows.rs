//! Limits the bytes of request bodies that HTTP/2 clients of a thread may send before they are read.
//!
//! Each request with a body has a window, which its client may fill immediately. Without a common limit, many
//! connections with many requests each could use any amount of memory.

use std::cell::Cell;
use std::rc::Rc;

/// Maximum sum of all windows of a thread in bytes: 4096 bodies with the default `http2_body_preread_size`.
const OPEN_MAX: u64 = 256 << 20;

/// Limit in bytes up to which windows are widened. The remaining bytes are reserved for new bodies.
const WIDENED_MAX: u64 = OPEN_MAX / 2;

/// All windows of a thread.
#[derive(Debug, Default)]
pub struct Windows(Rc<Cell<u64>>);

/// The window of one body; it closes when the value is dropped.
#[derive(Debug)]
pub struct Window {
    all: Rc<Cell<u64>>,
    bytes: Cell<u64>,
    /// The length of the body if known, which limits the window.
    most: u64,
}

impl Windows {
    /// Opens a window for a body of at most `most` bytes; returns `None` if the sum of all windows would exceed the limit.
    #[must_use]
    pub fn open(&self, bytes: u64, most: u64) -> Option<Window> {
        let bytes = bytes.min(most);
        let sum = self.0.get() + bytes;
        if sum > OPEN_MAX {
            return None;
        }
        self.0.set(sum);
        Some(Window { all: Rc::clone(&self.0), bytes: Cell::new(bytes), most })
    }
}

impl Window {
    /// Widens the window to this many bytes; returns false if the limit does not allow it.
    #[must_use]
    pub fn widen(&self, bytes: u64) -> bool {
        let more = bytes.min(self.most).saturating_sub(self.bytes.get());
        let sum = self.all.get() + more;
        if sum > WIDENED_MAX {
            return false;
        }
        self.all.set(sum);
        self.bytes.set(self.bytes.get() + more);
        true
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.bytes.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_open_up_to_the_limit_and_release_it() {
        let windows = Windows::default();
        let first = windows.open(OPEN_MAX - 10, u64::MAX).expect("all is free");
        assert!(windows.open(11, u64::MAX).is_none());
        let short = windows.open(1000, 10).expect("a body of ten bytes");
        assert!(windows.open(1, u64::MAX).is_none() && windows.open(0, 0).is_some());
        drop(first);
        assert!(short.widen(1 << 20), "its length is known");
        assert_eq!(windows.0.get(), 10);
        let other = windows.open(10, u64::MAX).expect("there is room");
        assert!(!other.widen(WIDENED_MAX - 9) && other.widen(WIDENED_MAX - 10));
        assert_eq!(windows.0.get(), WIDENED_MAX);
        drop((short, other));
        assert_eq!(windows.0.get(), 0);
    }
}
