//! Admission to the page cache.
//!
//! When the files in use exceed the memory, caching one of them evicts another, which costs more than a direct read. So
//! admission is sampled: of the files that were admitted, how many are still cached at their next request? If the share
//! is below six in seven, fewer are admitted (down to one in [`ONE_IN_MAX`]), otherwise more. Sampling never stops, so
//! that popular files are still admitted and free memory is noticed. The caller decides which reads may bypass the page
//! cache, and how. Main type: [`PageCacheAdmission`].

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// At least one in this many reads is admitted: enough to notice free memory.
const ONE_IN_MAX: u32 = 256;

/// Fixed-point unit of [`PageCacheAdmission::one_in`], so that it changes in small steps.
const PARTS: u32 = 16;

/// Number of slots for admitted files that are recorded until their next request. Files that were never admitted
/// provide no evidence about admission.
const NOTES: usize = 512;

/// Time in ms for which an admitted file may still be being read from the device. During that time its absence proves
/// nothing, and further requests for it are admitted too: many clients may request a new file concurrently.
const SETTLING_MS: u64 = 100;

/// Mask of the lower bits of a note: the time in ms. The other bits identify the file.
const TIME: u64 = (1 << 24) - 1;

/// Zero point of the times in notes: the first use of this static.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Decides which reads use the page cache. All threads share it, as they share the page cache.
#[derive(Debug)]
pub struct PageCacheAdmission {
    /// Minimum of [`PageCacheAdmission::one_in`].
    one_in_min: u32,
    /// Time in ms for which a note is not overwritten by another file; 0 if it may be overwritten immediately.
    retained_ms: u64,
    /// One in this many reads is admitted, in units of 1/[`PARTS`].
    one_in: AtomicU32,
    reads: AtomicU64,
    /// The last admitted file of each slot, and the time of its admission.
    notes: [AtomicU64; NOTES],
}

impl PageCacheAdmission {
    /// Creates an admission that admits one in `one_in_min` reads initially, and as long as all admitted files stay
    /// resident.
    ///
    /// # Panics
    /// When `one_in_min` is 0 or above [`ONE_IN_MAX`].
    pub const fn new(one_in_min: u32) -> PageCacheAdmission {
        assert!(one_in_min > 0 && one_in_min <= ONE_IN_MAX, "one of none, or of too many");
        PageCacheAdmission {
            one_in_min,
            retained_ms: 0,
            one_in: AtomicU32::new(one_in_min * PARTS),
            reads: AtomicU64::new(0),
            notes: [const { AtomicU64::new(0) }; NOTES],
        }
    }

    /// As [`PageCacheAdmission::new`], for very large sets of files. There, a note would be overwritten long before the
    /// next request for its file, so only frequently requested files would be sampled. A note is retained for
    /// `retained_ms`, or until its file was probed.
    pub const fn keeping(one_in_min: u32, retained_ms: u64) -> PageCacheAdmission {
        assert!(retained_ms < TIME, "the time of a note wraps");
        let mut admission = PageCacheAdmission::new(one_in_min);
        admission.retained_ms = retained_ms;
        admission
    }

    /// Whether fewer reads are admitted than initially, because not all admitted files stay resident.
    pub fn is_selective(&self) -> bool {
        self.one_in.load(Ordering::Relaxed) > self.one_in_min * PARTS
    }

    /// Whether a read of this file uses the page cache, if it is unknown which of its pages are resident. `name` is a
    /// hash that identifies the file.
    pub fn admit(&self, name: u64, now: Instant) -> bool {
        self.admit_at(name, ms(now))
    }

    /// Records the result of a probe: whether the file was in the page cache. It counts once per admission. A note may
    /// be lost in a race of two threads, which does not matter.
    pub fn note(&self, name: u64, in_memory: bool, now: Instant) {
        self.note_at(name, in_memory, ms(now));
    }

    /// Whether a read uses the page cache after a probe: records the result of the probe, and decides.
    pub fn uses_page_cache(&self, name: u64, in_memory: bool, now: Instant) -> bool {
        self.uses_page_cache_at(name, in_memory, ms(now))
    }

    fn uses_page_cache_at(&self, name: u64, in_memory: bool, now_ms: u64) -> bool {
        self.note_at(name, in_memory, now_ms);
        in_memory || self.admit_at(name, now_ms)
    }

    fn admit_at(&self, name: u64, now_ms: u64) -> bool {
        let slot = self.slot(name);
        let note = slot.load(Ordering::Relaxed);
        if is_settling(note, name, now_ms) {
            return true;
        }
        let one_in = u64::from((self.one_in.load(Ordering::Relaxed) + PARTS / 2) / PARTS);
        let admitted = self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in);
        let is_retained = note != 0 && now_ms.wrapping_sub(note) & TIME < self.retained_ms;
        if admitted && !is_retained {
            slot.store(name & !TIME | now_ms & TIME, Ordering::Relaxed);
        }
        admitted
    }

    fn note_at(&self, name: u64, in_memory: bool, now_ms: u64) {
        let slot = self.slot(name);
        let note = slot.load(Ordering::Relaxed);
        let is_early = !in_memory && is_settling(note, name, now_ms);
        if is_early
            || !is_of(note, name)
            || slot.compare_exchange(note, 0, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let before = self.one_in.load(Ordering::Relaxed);
        let after = if in_memory { before - before / 16 } else { before + before / 2 };
        let after = after.clamp(self.one_in_min * PARTS, ONE_IN_MAX * PARTS);
        if after != before {
            self.one_in.store(after, Ordering::Relaxed);
        }
    }

    fn slot(&self, name: u64) -> &AtomicU64 {
        &self.notes[(name >> 32) as usize % NOTES]
    }
}

fn ms(now: Instant) -> u64 {
    now.saturating_duration_since(*START).as_millis() as u64
}

fn is_of(note: u64, name: u64) -> bool {
    note | TIME == name | TIME
}

/// Whether the note shows that the file was admitted recently.
fn is_settling(note: u64, name: u64, now_ms: u64) -> bool {
    is_of(note, name) && now_ms.wrapping_sub(note) & TIME < SETTLING_MS
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// A time after which an admitted file has been read.
    const LATER: u64 = 10 * SETTLING_MS;

    fn name(number: u64) -> u64 {
        // By Fibonacci hashing.
        (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns how many reads of these files, none of them resident, are admitted.
    fn ask(admission: &PageCacheAdmission, numbers: Range<u64>, now_ms: u64) -> usize {
        numbers.filter(|&number| admission.uses_page_cache_at(name(number), false, now_ms)).count()
    }

    /// Returns a time at which no admitted file is still being read.
    fn settled() -> u64 {
        static CLOCK: AtomicU64 = AtomicU64::new(0);
        CLOCK.fetch_add(LATER, Ordering::Relaxed)
    }

    fn admitted(admission: &PageCacheAdmission, reads: u64) -> usize {
        let now_ms = settled();
        (0..reads).filter(|&read| admission.admit_at(name(read), now_ms)).count()
    }

    /// Admits this many files, and reports `found` of ten as resident.
    fn probe(admission: &PageCacheAdmission, probes: u64, found: u64) {
        let (now_ms, later_ms) = (settled(), settled());
        let mut read = 0;
        for probe in 0..probes {
            while !admission.admit_at(name(read), now_ms) {
                admission.note_at(name(read), false, later_ms);
                read += 1;
            }
            admission.note_at(name(read), probe % 10 < found, later_ms);
            read += 1;
        }
    }

    #[test]
    fn files_that_are_quickly_evicted_are_rarely_admitted() {
        let admission = PageCacheAdmission::new(8);
        assert_eq!(admitted(&admission, 800), 100);
        probe(&admission, 200, 1);
        assert!(admitted(&admission, 2560) <= 12, "{admission:?}");
    }

    #[test]
    fn files_that_remain_resident_are_admitted_again() {
        for (one_in_min, all) in [(1, 800), (8, 800 / 8)] {
            let admission = PageCacheAdmission::new(one_in_min);
            probe(&admission, 200, 0);
            assert_eq!(admitted(&admission, 2560), 10);
            probe(&admission, 100, 7);
            assert_eq!(admitted(&admission, 2560), 10, "of ten only seven stay");
            probe(&admission, 60, 10);
            assert!(admitted(&admission, 800) >= 800 / 25, "{admission:?}");
            probe(&admission, 120, 10);
            assert_eq!(admitted(&admission, 800), all, "{admission:?}");
        }
    }

    #[test]
    fn files_with_one_request_each_are_all_admitted() {
        assert_eq!(ask(&PageCacheAdmission::new(1), 0..10_000, 0), 10_000);
    }

    #[test]
    fn the_admission_rate_follows_the_share_of_resident_files() {
        let admission = PageCacheAdmission::new(1);
        for round in 0..200 {
            ask(&admission, 0..100, LATER * round);
        }
        assert!(ask(&admission, 1000..3560, 300_000) <= 20, "{admission:?}");
        // One of them is requested repeatedly, and is resident each time.
        for _ in 0..100 {
            while !admission.uses_page_cache_at(name(7), false, 300_000) {}
            assert!(admission.uses_page_cache_at(name(7), true, 300_001));
        }
        assert_eq!(ask(&admission, 5000..5100, 400_000), 100, "{admission:?}");
    }

    #[test]
    fn a_new_file_is_admitted_for_all_concurrent_requests() {
        for admission in [PageCacheAdmission::new(1), PageCacheAdmission::keeping(1, 60_000)] {
            assert!((0..SETTLING_MS).all(|now_ms| admission.uses_page_cache_at(name(1), false, now_ms)));
            assert_eq!(ask(&admission, 2..102, 0), 100, "{admission:?}");
        }
        // A cache admits one read of eight: reads that follow the admitted one share its pages.
        let admission = PageCacheAdmission::new(8);
        assert!(admission.admit_at(name(1), 0) && !admission.admit_at(name(2), 0));
        assert!(admission.admit_at(name(1), SETTLING_MS - 1) && !admission.admit_at(name(1), SETTLING_MS));
    }

    /// Files that are requested again after thousands of others.
    #[test]
    fn some_of_thousands_of_files_are_remembered() {
        let kinds = [(PageCacheAdmission::keeping(1, 60_000), true), (PageCacheAdmission::new(1), false)];
        for (admission, is_selective) in kinds {
            for read in 0..60_000 {
                let file = name(read % 20_000);
                admission.note_at(file, false, read / 10);
                admission.admit_at(file, read / 10);
            }
            assert_eq!(admission.is_selective(), is_selective, "{admission:?}");
        }
    }

    #[test]
    fn a_note_is_not_replaced_for_some_time() {
        let admission = PageCacheAdmission::keeping(1, 1_000);
        let other = name(1) ^ 1 << 30;
        let is_noted = |name| is_of(admission.slot(name).load(Ordering::Relaxed), name);
        assert!(admission.admit_at(name(1), 0) && admission.admit_at(other, 999));
        assert!(is_noted(name(1)) && !is_noted(other));
        assert!(admission.admit_at(other, 1_000) && is_noted(other));
    }

    #[test]
    fn a_probe_counts_once_and_for_an_admitted_file() {
        let admission = PageCacheAdmission::new(1);
        admission.note_at(name(1), false, LATER);
        assert!(admission.admit_at(name(1), 0));
        assert_eq!(admitted(&admission, 100), 100, "nothing was admitted before the probe");
        admission.note_at(name(1), false, settled());
        assert_eq!((100..200).filter(|&read| admission.admit_at(name(read), 0)).count(), 50);
        for _ in 0..100 {
            admission.note_at(name(1_000), false, LATER);
        }
        assert_eq!(
            (200..300).filter(|&read| admission.admit_at(name(read), 0)).count(),
            50,
            "never admitted"
        );
    }

    #[test]
    fn an_admitted_file_is_settling_for_some_time() {
        let admission = PageCacheAdmission::new(1);
        let is_settling = |number, now_ms| {
            is_settling(admission.slot(name(number)).load(Ordering::Relaxed), name(number), now_ms)
        };
        // The time of a note wraps after 2^24 ms.
        for begun in [0, TIME - 20, 5 * TIME + LATER] {
            assert!(admission.admit_at(name(1), begun));
            assert!(is_settling(1, begun + SETTLING_MS - 1) && !is_settling(1, begun + SETTLING_MS));
            assert!(!is_settling(2, begun), "another file");
        }
        admission.note_at(name(1), true, 5 * TIME + LATER);
        assert!(!is_settling(1, 5 * TIME + LATER), "it was found");
    }
}
