//! How many of the reads of entries that have not stayed in memory are let into the page cache again.
//!
//! An entry that was asked for before and is not in memory has not stayed there: there was less memory than would have been
//! of use. Reading it through the page cache again pushes out others of its kind, for several times the work. So all but
//! one in so many such reads go past the page cache, and that one lets in again what is asked for often. The number
//! follows from what is found when what was let in is asked for again: where less than about a third of it is still there,
//! fewer are let in, and more where it stays. Main type: [`Evasion`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::key::Key;

/// Of so many reads one is let in where entries stay: it costs an eighth of the reads a little, and soon all is in memory.
const OF_MIN: u32 = 8;

/// Of so many where they do not; enough to notice that there is memory again.
const OF_MAX: u32 = 256;

/// Entries that were let in and are looked at when they are asked for again: what most entries are found to be, which never
/// were, says nothing of that.
const LET_IN: usize = 512;

/// The choice for one cache, by all threads.
#[derive(Debug)]
pub(crate) struct Evasion {
    reads: AtomicU64,
    of: AtomicU32,
    /// Half a key in each place, of the entry that was let in last of those that belong there.
    let_in: [AtomicU64; LET_IN],
}

impl Default for Evasion {
    fn default() -> Evasion {
        let let_in = std::array::from_fn(|_| AtomicU64::new(0));
        Evasion { reads: AtomicU64::new(0), of: AtomicU32::new(OF_MIN), let_in }
    }
}

impl Evasion {
    /// Whether the next read, of this entry, goes past the page cache.
    pub(crate) fn is_next(&self, key: &Key) -> bool {
        let of = u64::from(self.of.load(Ordering::Relaxed));
        let is_let_in = self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(of);
        if is_let_in {
            let (place, name) = self.place(key);
            place.store(name, Ordering::Relaxed);
        }
        !is_let_in
    }

    /// Somebody has looked whether an entry is in memory. It counts once if that was let in. A note that is lost because two
    /// come at once does not matter.
    pub(crate) fn note(&self, key: &Key, in_memory: bool) {
        let (place, name) = self.place(key);
        if place.compare_exchange(name, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let before = self.of.load(Ordering::Relaxed);
        let after = if in_memory { before - before / 4 } else { before + before / 8 };
        let after = after.clamp(OF_MIN, OF_MAX);
        if after != before {
            self.of.store(after, Ordering::Relaxed);
        }
    }

    fn place(&self, key: &Key) -> (&AtomicU64, u64) {
        let (low, high) = key.0.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a half of sixteen bytes"));
        // 0 is no entry.
        (&self.let_in[half(high) as usize % LET_IN], half(low) | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::of(&number.to_le_bytes())
    }

    fn let_in(evasion: &Evasion, reads: usize) -> usize {
        (0..reads).filter(|&read| !evasion.is_next(&key(read))).count()
    }

    /// Lets so many in, and finds so many of ten of them in memory. Of others nothing is.
    fn look(evasion: &Evasion, looks: usize, found: usize) {
        let mut read = 0;
        for look in 0..looks {
            while evasion.is_next(&key(read)) {
                evasion.note(&key(read), false);
                read += 1;
            }
            evasion.note(&key(read), look % 10 < found);
            read += 1;
        }
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
