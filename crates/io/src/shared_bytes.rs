//! Shared immutable contents of buffers: [`SharedBytes`], readable by any thread.
//!
//! Bytes that are received once are sent to several clients and written to a file without further copies. When the last
//! owner on any thread drops them, their memory returns to its pool through a [`RemoteFreeList`], which the pool's
//! thread empties. Nothing here submits I/O.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::buf::{BufId, SharedSlot};

/// Immutable bytes. Clones and subranges share the memory.
#[derive(Clone)]
pub struct SharedBytes {
    content: Arc<Content>,
    start: u32,
    end: u32,
}

/// The owner of the bytes.
enum Content {
    /// A buffer of a thread's pool.
    SharedSlot(SharedSlot),
    /// Separately allocated memory.
    Owned(Box<[u8]>),
}

/// Released buffers on their way back to a pool.
#[derive(Default)]
pub(crate) struct RemoteFreeList {
    list: Mutex<Vec<(u8, BufId)>>,
    /// Whether the list is not empty, for a check without the lock. A delayed update only delays reuse.
    is_some: AtomicBool,
}

impl SharedBytes {
    pub(crate) fn of(lent: SharedSlot) -> SharedBytes {
        let end = lent.bytes().len() as u32;
        SharedBytes { content: Arc::new(Content::SharedSlot(lent)), start: 0, end }
    }

    /// Copies bytes.
    ///
    /// # Panics
    /// When the length exceeds 4 GiB.
    pub fn copy(bytes: &[u8]) -> SharedBytes {
        SharedBytes::from_vec(bytes.to_vec())
    }

    /// Takes over a vector; copies it only if its capacity exceeds its length.
    ///
    /// # Panics
    /// When the length exceeds 4 GiB.
    pub fn from_vec(bytes: Vec<u8>) -> SharedBytes {
        let end = u32::try_from(bytes.len()).expect("a piece is shorter than 4 GiB");
        SharedBytes { content: Arc::new(Content::Owned(bytes.into_boxed_slice())), start: 0, end }
    }

    /// Returns a subrange, which shares the memory.
    ///
    /// # Panics
    /// When the range exceeds the length.
    pub fn part(&self, range: Range<usize>) -> SharedBytes {
        assert!(range.start <= range.end && range.end <= self.len(), "a part of {} bytes", self.len());
        let (start, end) = (self.start + range.start as u32, self.start + range.end as u32);
        SharedBytes { content: Arc::clone(&self.content), start, end }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = match &*self.content {
            Content::SharedSlot(lent) => lent.bytes(),
            Content::Owned(bytes) => bytes,
        };
        &all[self.start as usize..self.end as usize]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}

impl RemoteFreeList {
    /// Adds a released buffer.
    pub(crate) fn put(&self, class: u8, id: BufId) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((class, id));
        self.is_some.store(true, Ordering::Relaxed);
    }

    /// Passes each released buffer to `each`.
    #[inline]
    pub(crate) fn take(&self, each: impl FnMut(u8, BufId)) {
        if self.is_some.load(Ordering::Relaxed) {
            self.take_all(each);
        }
    }

    fn take_all(&self, mut each: impl FnMut(u8, BufId)) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_some.store(false, Ordering::Relaxed);
        list.drain(..).for_each(|(class, id)| each(class, id));
    }
}

#[cfg(test)]
mod tests {
    use crate::buf::Pool;

    #[test]
    fn memory_is_released_with_the_last_reference() {
        let pool = Pool::new(8 << 20);
        let mut buf = pool.get(4096).unwrap();
        buf.append(&[7; 4096]);
        let whole = buf.freeze();
        let part = whole.part(10..20);
        drop(whole);
        let used = pool.counters().idle_bytes;
        let part = std::thread::spawn(move || {
            assert_eq!(*part, [7; 10]);
            part.part(1..2)
        });
        drop(part.join().unwrap());
        assert_eq!(pool.counters().idle_bytes, used + 4096);
        assert_eq!(pool.trim(|_| true), 1 << 20);
    }

    #[test]
    fn shared_bytes_may_outlive_their_pool() {
        let pool = Pool::new(8 << 20);
        let mut buf = pool.get(4096).unwrap();
        buf.append(&[3; 4000]);
        let frozen = buf.freeze();
        drop(pool);
        assert_eq!(*frozen, [3; 4000]);
    }

    #[test]
    fn small_content_retains_little_memory() {
        let pool = Pool::new(8 << 20);
        let mut buf = pool.get(64 << 10).unwrap();
        buf.append(b"abc");
        let frozen = buf.freeze();
        assert_eq!(pool.counters().idle_bytes, 1 << 20);
        assert_eq!(*frozen, *b"abc");
    }
}
