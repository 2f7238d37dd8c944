//! How many of the reads of what is not in memory are let into the page cache: all where it stays there, else one in so many.
//!
//! Where more is asked for than there is memory, each file that is brought in pushes out another one, which is several times
//! the work of a direct read and seldom of use. So it is watched whether what was let in is still there when it is asked
//! for again. Where less than about six sevenths of it are, fewer are let in, and more where it stays: what is let in beyond
//! that pushes out what would have been found as often. Even then one in so many is, so that what is asked for often comes
//! in, and that there is memory again is seen. How a read goes past the page cache, and which ones may, is the caller's. Main
//! type: [`Retention`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Of so many reads at least one is let in: enough to notice that there is memory again.
const OF_MAX: u32 = 256;

/// [`Retention::of`] is counted in such parts: it changes in small steps.
const PARTS: u32 = 16;

/// Files that were let in and are looked at when they are asked for again: what most files are found to be, which never
/// were, says nothing of that.
const LET_IN: usize = 512;

/// The lower bits of a note are the time in ms, the others tell the file.
const TIME: u64 = (1 << 24) - 1;

/// Whether what is let into the page cache stays there: seen by all threads, for all of them.
#[derive(Debug)]
pub struct Retention {
    /// The least that [`Retention::of`] can be.
    of_min: u32,
    /// A note gives its place to another file after so long; 0 for at once.
    kept_ms: u64,
    /// Of so many reads one is let in, in [`PARTS`].
    of: AtomicU32,
    reads: AtomicU64,
    /// The file that was let in last of those that belong to each place, and when.
    let_in: [AtomicU64; LET_IN],
}

impl Retention {
    /// One read in `of_min`, which is not 0, is let in as long as nothing else has been seen, and where all stays.
    pub const fn new(of_min: u32) -> Retention {
        assert!(of_min > 0 && of_min <= OF_MAX, "one in so many");
        Retention {
            of_min,
            kept_ms: 0,
            of: AtomicU32::new(of_min * PARTS),
            reads: AtomicU64::new(0),
            let_in: [const { AtomicU64::new(0) }; LET_IN],
        }
    }

    /// As [`Retention::new`], where there may be so many files that a note would have made room for others long before its
    /// file is asked for again: then what comes back soon would speak for all. A note keeps its place for `kept_ms`, or until
    /// its file was looked at.
    pub const fn keeping(of_min: u32, kept_ms: u64) -> Retention {
        assert!(kept_ms < TIME, "the time of a note comes round");
        let mut retention = Retention::new(of_min);
        retention.kept_ms = kept_ms;
        retention
    }

    /// Whether it is known that not all stays, so that fewer than at first are let in.
    pub fn is_choosy(&self) -> bool {
        self.of.load(Ordering::Relaxed) > self.of_min * PARTS
    }

    /// Whether the next read, of this file, is by way of the page cache. `name` is a hash of what tells the file from
    /// others; `now_ms` is for [`Retention::is_settling`] and [`Retention::keeping`] alone.
    pub fn lets_in(&self, name: u64, now_ms: u64) -> bool {
        let of = u64::from((self.of.load(Ordering::Relaxed) + PARTS / 2) / PARTS);
        let lets_in = self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(of);
        let place = self.place(name);
        if lets_in && !self.is_kept(place.load(Ordering::Relaxed), now_ms) {
            place.store(name & !TIME | now_ms & TIME, Ordering::Relaxed);
        }
        lets_in
    }

    fn is_kept(&self, note: u64, now_ms: u64) -> bool {
        note != 0 && now_ms.wrapping_sub(note) & TIME < self.kept_ms
    }

    /// Whether the file was let in less than `settling_ms` ago: it may be on its way, and its absence says nothing.
    pub fn is_settling(&self, name: u64, now_ms: u64, settling_ms: u64) -> bool {
        let note = self.place(name).load(Ordering::Relaxed);
        is_of(note, name) && now_ms.wrapping_sub(note) & TIME < settling_ms
    }

    /// Somebody has looked whether a file is in memory. It counts once if that was let in. A note that is lost because two
    /// come at once does not matter.
    pub fn note(&self, name: u64, in_memory: bool) {
        let place = self.place(name);
        let note = place.load(Ordering::Relaxed);
        if !is_of(note, name)
            || place.compare_exchange(note, 0, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let before = self.of.load(Ordering::Relaxed);
        let after = if in_memory { before - before / 16 } else { before + before / 2 };
        let after = after.clamp(self.of_min * PARTS, OF_MAX * PARTS);
        if after != before {
            self.of.store(after, Ordering::Relaxed);
        }
    }

    fn place(&self, name: u64) -> &AtomicU64 {
        &self.let_in[(name >> 32) as usize % LET_IN]
    }
}

fn is_of(note: u64, name: u64) -> bool {
    note | TIME == name | TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> u64 {
        // By Fibonacci hashing.
        (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// How many of so many reads are let in.
    fn let_in(retention: &Retention, reads: u64) -> usize {
        (0..reads).filter(|&read| retention.lets_in(name(read), 0)).count()
    }

    /// Lets so many in, and finds so many of ten of them in memory. Of others nothing is.
    fn look(retention: &Retention, looks: u64, found: u64) {
        let mut read = 0;
        for look in 0..looks {
            while !retention.lets_in(name(read), 0) {
                retention.note(name(read), false);
                read += 1;
            }
            retention.note(name(read), look % 10 < found);
            read += 1;
        }
    }

    #[test]
    fn what_does_not_stay_is_let_in_seldom() {
        let retention = Retention::new(8);
        assert_eq!(let_in(&retention, 800), 100);
        look(&retention, 200, 1);
        assert!(let_in(&retention, 2560) <= 12, "{retention:?}");
    }

    #[test]
    fn what_stays_is_let_in_again() {
        for (of_min, all) in [(1, 800), (8, 800 / 8)] {
            let retention = Retention::new(of_min);
            look(&retention, 200, 0);
            assert_eq!(let_in(&retention, 2560), 10);
            look(&retention, 100, 7);
            assert_eq!(let_in(&retention, 2560), 10, "of ten only seven stay");
            look(&retention, 60, 10);
            assert!(let_in(&retention, 800) >= 800 / 25, "{retention:?}");
            look(&retention, 120, 10);
            assert_eq!(let_in(&retention, 800), all, "{retention:?}");
        }
    }

    /// Files that come back after thousands of others.
    #[test]
    fn of_many_files_some_are_remembered() {
        for (retention, is_choosy) in [(Retention::keeping(1, 60_000), true), (Retention::new(1), false)] {
            for read in 0..60_000 {
                let file = name(read % 20_000);
                retention.note(file, false);
                retention.lets_in(file, read / 10);
            }
            assert_eq!(retention.is_choosy(), is_choosy, "{retention:?}");
        }
    }

    #[test]
    fn a_note_keeps_its_place_for_some_time() {
        let retention = Retention::keeping(1, 1_000);
        let other = name(1) ^ 1 << 30;
        assert!(retention.lets_in(name(1), 0) && retention.lets_in(other, 999));
        assert!(retention.is_settling(name(1), 999, 1_000) && !retention.is_settling(other, 999, 100));
        assert!(retention.lets_in(other, 1_000));
        assert!(retention.is_settling(other, 1_000, 100));
    }

    #[test]
    fn a_look_counts_once_and_for_what_was_let_in() {
        let retention = Retention::new(1);
        retention.note(name(1), false);
        assert!(retention.lets_in(name(1), 0));
        assert_eq!(let_in(&retention, 100), 100, "nothing was let in when it was looked at");
        retention.note(name(1), false);
        assert_eq!(let_in(&retention, 100), 50);
        for _ in 0..100 {
            retention.note(name(1_000), false);
        }
        assert_eq!(let_in(&retention, 100), 50, "it was never let in");
    }

    #[test]
    fn a_file_settles_for_some_time_after_it_was_let_in() {
        let retention = Retention::new(1);
        // The time of a note comes round after 2^24 ms.
        for begun in [0, TIME - 20, 5 * TIME] {
            assert!(retention.lets_in(name(1), begun));
            assert!(retention.is_settling(name(1), begun + 99, 100));
            assert!(!retention.is_settling(name(1), begun + 100, 100));
            assert!(!retention.is_settling(name(2), begun, 100), "another file");
        }
        retention.note(name(1), true);
        assert!(!retention.is_settling(name(1), 5 * TIME, 100), "it has been found");
    }
}
