//! [`RangeSet`]: which bytes of a representation are there, for a cache that stores parts.
//!
//! Ranges that touch are merged, so the set has at most one more range than there are holes. [`crate::validator`]
//! decides whether parts belong together.

use super::ByteRange;

/// Bytes that are there: ranges in order, with at least one byte missing between two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<ByteRange>,
}

/// Why a range was not taken up: the set would have more ranges than the caller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRanges;

impl RangeSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A set made from stored ranges in any order; empty ones are skipped.
    ///
    /// # Errors
    /// [`TooManyRanges`] as soon as it would have more than `ranges_max`.
    pub fn from_ranges(
        ranges: impl IntoIterator<Item = ByteRange>,
        ranges_max: usize,
    ) -> Result<Self, TooManyRanges> {
        let mut set = Self::new();
        ranges.into_iter().try_for_each(|range| set.insert(range, ranges_max))?;
        Ok(set)
    }

    /// The ranges in order.
    #[must_use]
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// Whether nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many bytes are there.
    #[must_use]
    pub fn covered(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// Adds a range; one that touches others becomes one with them.
    ///
    /// # Errors
    /// [`TooManyRanges`] when it touches none and there are `ranges_max` already; the set is unchanged then. An origin
    /// that sends byte by byte must not make the table of an entry grow without bounds.
    pub fn insert(&mut self, range: ByteRange, ranges_max: usize) -> Result<(), TooManyRanges> {
        if range.start >= range.end {
            return Ok(());
        }
        // The ranges that end before it and those that start behind it stay; ranges between touch it.
        let first = self.ranges.partition_point(|other| other.end < range.start);
        let last = self.ranges.partition_point(|other| other.start <= range.end);
        let touched = self.ranges.get(first..last).unwrap_or_default();
        let joined = match (touched.first(), touched.last()) {
            (Some(left), Some(right)) => {
                ByteRange { start: left.start.min(range.start), end: right.end.max(range.end) }
            }
            _ if self.ranges.len() >= ranges_max => return Err(TooManyRanges),
            _ => range,
        };
        self.ranges.splice(first..last.max(first), [joined]);
        Ok(())
    }

    /// Takes everything from `size` on away: the representation turned out to be shorter.
    pub fn truncate(&mut self, size: u64) {
        self.ranges.retain(|range| range.start < size);
        if let Some(last) = self.ranges.last_mut() {
            last.end = last.end.min(size);
        }
    }

    /// Whether all of `range` is there.
    #[must_use]
    pub fn contains(&self, range: ByteRange) -> bool {
        range.start >= range.end || self.present_from(range.start) >= range.end - range.start
    }

    /// How many bytes are there without a gap from `at` on: the bytes that can be served before a gap.
    #[must_use]
    pub fn present_from(&self, at: u64) -> u64 {
        let index = self.ranges.partition_point(|range| range.end <= at);
        self.ranges.get(index).filter(|range| range.start <= at).map_or(0, |range| range.end - at)
    }

    /// The parts of `wanted` that are missing, in order.
    pub fn holes(&self, wanted: ByteRange) -> impl Iterator<Item = ByteRange> + '_ {
        self.holes_joined(wanted, 0)
    }

    /// The parts of `wanted` to ask the origin for, in order. Two holes are one request when fewer than `gap_max` bytes
    /// between them are there: asking once more costs a round trip, fetching those again only bytes.
    pub fn holes_joined(&self, wanted: ByteRange, gap_max: u64) -> impl Iterator<Item = ByteRange> + '_ {
        let mut index = self.ranges.partition_point(|range| range.end <= wanted.start);
        let mut at = wanted.start;
        std::iter::from_fn(move || {
            // Skips the range at this position.
            if let Some(range) = self.ranges.get(index).filter(|range| range.start <= at) {
                at = at.max(range.end);
                index += 1;
            }
            if at >= wanted.end {
                return None;
            }
            let start = at;
            loop {
                let next = self.ranges.get(index).filter(|range| range.start < wanted.end);
                let Some(range) = next else {
                    at = wanted.end;
                    return Some(ByteRange { start, end: wanted.end });
                };
                // A part at the end of the requested range is no gap between two holes.
                let is_gap = range.end < wanted.end && range.len() < gap_max;
                if !is_gap {
                    at = range.start;
                    return Some(ByteRange { start, end: range.start });
                }
                index += 1;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 100;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        RangeSet::from_ranges(ranges.iter().map(|&(start, end)| range(start, end)), MAX).expect("few ranges")
    }

    fn pairs(ranges: impl IntoIterator<Item = ByteRange>) -> Vec<(u64, u64)> {
        ranges.into_iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        for (ranges, wanted) in [
            (&[][..], &[][..]),
            (&[(5, 5), (7, 3)], &[]),
            (&[(0, 5), (5, 10)], &[(0, 10)]),
            (&[(5, 10), (0, 5)], &[(0, 10)]),
            (&[(0, 5), (6, 10)], &[(0, 5), (6, 10)]),
            (&[(0, 5), (6, 10), (5, 6)], &[(0, 10)]),
            (&[(0, 9), (2, 3)], &[(0, 9)]),
            (&[(2, 3), (0, 9)], &[(0, 9)]),
            (&[(10, 12), (0, 2), (5, 6), (1, 11)], &[(0, 12)]),
            (&[(0, u64::MAX), (5, u64::MAX)], &[(0, u64::MAX)]),
        ] {
            assert_eq!(pairs(set(ranges).ranges().iter().copied()), wanted, "{ranges:?}");
        }
        assert_eq!(set(&[(0, 5), (6, 10)]).covered(), 9);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut found = RangeSet::new();
        assert_eq!(found.insert(range(0, 1), 2), Ok(()));
        assert_eq!(found.insert(range(4, 5), 2), Ok(()));
        assert_eq!(found.insert(range(8, 9), 2), Err(TooManyRanges));
        assert_eq!(found.insert(range(5, 8), 2), Ok(()), "one that touches is no new one");
        assert_eq!(pairs(found.ranges().iter().copied()), [(0, 1), (4, 8)]);
        assert_eq!(RangeSet::from_ranges([range(0, 1), range(2, 3)], 1), Err(TooManyRanges));
    }

    #[test]
    fn holes_are_filled_with_few_requests() {
        let found = set(&[(10, 20), (30, 34), (40, 60)]);
        for (start, end, gap_max, wanted) in [
            (0, 10, 0, &[(0, 10)][..]),
            (0, 70, 0, &[(0, 10), (20, 30), (34, 40), (60, 70)]),
            (0, 70, 5, &[(0, 10), (20, 40), (60, 70)]),
            (0, 70, 4, &[(0, 10), (20, 30), (34, 40), (60, 70)]),
            (0, 70, 100, &[(0, 70)]),
            (10, 20, 0, &[]),
            (12, 60, 5, &[(20, 40)]),
            (25, 32, 100, &[(25, 30)]),
            (15, 25, 100, &[(20, 25)]),
            (60, 60, 0, &[]),
            (70, 60, 0, &[]),
            (100, 110, 0, &[(100, 110)]),
        ] {
            let holes = pairs(found.holes_joined(range(start, end), gap_max));
            assert_eq!(holes, wanted, "{start}..{end} by {gap_max}");
        }
        assert_eq!(pairs(RangeSet::new().holes(range(3, 4))), [(3, 4)]);
    }

    #[test]
    fn what_is_there() {
        let found = set(&[(10, 20), (30, 34)]);
        for (at, wanted) in [(0, 0), (9, 0), (10, 10), (19, 1), (20, 0), (33, 1), (34, 0)] {
            assert_eq!(found.present_from(at), wanted, "{at}");
        }
        for (start, end, wanted) in
            [(10, 20, true), (10, 21, false), (9, 20, false), (12, 13, true), (5, 5, true)]
        {
            assert_eq!(found.contains(range(start, end)), wanted, "{start}..{end}");
        }
        for (size, wanted) in
            [(40, &[(10, 20), (30, 34)][..]), (32, &[(10, 20), (30, 32)]), (30, &[(10, 20)]), (0, &[])]
        {
            let mut cut = found.clone();
            cut.truncate(size);
            assert_eq!(pairs(cut.ranges().iter().copied()), wanted, "{size}");
        }
    }

    proptest! {
        /// Compares with a table of bytes.
        #[test]
        fn agrees_with_a_naive_model(
            inserts in proptest::collection::vec((0u64..40, 0u64..12), 0..12),
            wanted in (0u64..40, 0u64..40),
            gap_max in 0u64..8,
        ) {
            let mut found = RangeSet::new();
            let mut bytes = [false; 64];
            for (start, len) in inserts {
                found.insert(range(start, start + len), MAX).expect("few ranges");
                bytes[start as usize..(start + len) as usize].fill(true);
            }
            prop_assert_eq!(found.covered(), bytes.iter().filter(|byte| **byte).count() as u64);
            prop_assert!(found.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
            let (start, end) = (wanted.0, wanted.0 + wanted.1 % 24);
            let missing: Vec<u64> = (start..end).filter(|&at| !bytes[at as usize]).collect();
            let holes: Vec<u64> = found.holes(range(start, end)).flat_map(|hole| hole.start..hole.end).collect();
            prop_assert_eq!(&holes, &missing);
            prop_assert_eq!(found.contains(range(start, end)), missing.is_empty());

            // Joined holes cover what is missing, begin and end with a missing byte, and are never more.
            let joined: Vec<ByteRange> = found.holes_joined(range(start, end), gap_max).collect();
            prop_assert!(joined.len() <= found.holes(range(start, end)).count());
            prop_assert!(joined.windows(2).all(|pair| pair[0].end < pair[1].start));
            for hole in &joined {
                prop_assert!(!bytes[hole.start as usize] && !bytes[hole.end as usize - 1]);
            }
            prop_assert!(missing.iter().all(|&at| joined.iter().any(|hole| hole.start <= at && at < hole.end)));
        }
    }
}
