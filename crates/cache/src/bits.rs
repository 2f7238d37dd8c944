//! A set of numbers that threads share: [`Bits`].

use std::sync::atomic::{AtomicU64, Ordering};

/// A fixed number of bits, set by any thread.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[AtomicU64]>,
    count: u64,
}

impl Bits {
    pub(crate) fn new(count: usize) -> Bits {
        let words = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Bits { words, count: count as u64 }
    }

    pub(crate) fn has(&self, index: u64) -> bool {
        let word = self.words.get((index / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) & (1 << (index % 64)) != 0)
    }

    /// Sets a bit; returns whether it was not set before.
    pub(crate) fn set(&self, index: u64) -> bool {
        assert!(index < self.count, "bit {index} of {}", self.count);
        let bit = 1 << (index % 64);
        self.words[(index / 64) as usize].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    pub(crate) fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    pub(crate) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count() == self.count
    }
}
