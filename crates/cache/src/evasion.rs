//! How many of the reads of entries that have not stayed in memory are let into the page cache again.
//!
//! An entry that was asked for before and is not in memory has not stayed there: there was less memory than would have been
//! of use. Reading it through the page cache again pushes out others of its kind, for several times the work. So all but
//! one in so many such reads go past the page cache, and that one lets in again what is asked for often. The number
//! follows from what is found when somebody looks: where less than about a third of what was let in is still there, fewer
//! are let in, and more where it stays. Main type: [`Evasion`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Of so many reads one is let in where entries stay: it costs an eighth of the reads a little, and soon all is in memory.
const OF_MIN: u32 = 8;

/// Of so many where they do not; enough to notice that there is memory again.
const OF_MAX: u32 = 256;

/// The choice for one cache, by all threads.
#[derive(Debug)]
pub(crate) struct Evasion {
    reads: AtomicU64,
    of: AtomicU32,
}

impl Default for Evasion {
    fn default() -> Evasion {
        Evasion { reads: AtomicU64::new(0), of: AtomicU32::new(OF_MIN) }
    }
}

impl Evasion {
    /// Whether the next read goes past the page cache.
    pub(crate) fn is_next(&self) -> bool {
        let of = u64::from(self.of.load(Ordering::Relaxed));
        !self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(of)
    }

    /// Somebody has looked whether an entry that was let in is still in memory. A note that is lost because two come at
    /// once does not matter.
    pub(crate) fn note(&self, in_memory: bool) {
        let before = self.of.load(Ordering::Relaxed);
        let after = if in_memory { before - before / 4 } else { before + before / 8 };
        let after = after.clamp(OF_MIN, OF_MAX);
        if after != before {
            self.of.store(after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn let_in(evasion: &Evasion, reads: usize) -> usize {
        (0..reads).filter(|_| !evasion.is_next()).count()
    }

    /// So many of ten are found in memory.
    fn look(evasion: &Evasion, looks: usize, found: usize) {
        (0..looks).for_each(|look| evasion.note(look % 10 < found));
    }

    #[test]
    fn what_does_not_stay_is_let_in_seldom() {
        let evasion = Evasion::default();
        assert_eq!(let_in(&evasion, 800), 100);
        look(&evasion, 200, 1);
        assert!(let_in(&evasion, 2560) <= 12, "{evasion:?}");
    }

    #[test]
    fn what_stays_is_let_in_again() {
        let evasion = Evasion::default();
        look(&evasion, 200, 0);
        assert_eq!(let_in(&evasion, 2560), 10);
        look(&evasion, 100, 8);
        assert!(let_in(&evasion, 800) >= 80, "{evasion:?}");
    }
}
