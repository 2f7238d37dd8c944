//! [`RangeSet`]: the stored byte ranges of a representation, for a cache of partial responses.
//!
//! Adjacent and overlapping ranges are merged, so the set has at most one more range than there are holes. [`crate::validator`]
//! decides whether ranges belong to the same representation.

use super::ByteRange;

/// Stored bytes: ranges in order, with at least one missing byte between two ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<ByteRange>,
}

/// A range was not added: the set would exceed the caller's maximum number of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRanges;

impl RangeSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a set from ranges in any order; empty ranges are skipped.
    ///
    /// # Errors
    /// [`TooManyRanges`] if the set would have more than `ranges_max`.
    pub fn from_ranges(
        ranges: impl IntoIterator<Item = ByteRange>,
        ranges_max: usize,
    ) -> Result<Self, TooManyRanges> {
        let mut set = Self::new();
        ranges.into_iter().try_for_each(|range| set.insert(range, ranges_max))?;
        Ok(set)
    }

    /// Returns the ranges in order.
    #[must_use]
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of stored bytes.
    #[must_use]
    pub fn covered(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// Adds a range and merges it with adjacent and overlapping ranges.
    ///
    /// # Errors
    /// [`TooManyRanges`] if the range cannot be merged and the set already has `ranges_max` ranges; the set is unchanged then. An
    /// origin that sends single bytes must not make the table of an entry grow without limit.
    pub fn insert(&mut self, range: ByteRange, ranges_max: usize) -> Result<(), TooManyRanges> {
        if range.start >= range.end {
            return Ok(());
        }
        // Ranges that end before this range or start after it are unchanged; ranges between these are merged with it.
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

    /// Removes all bytes from offset `size` on: the representation is shorter than expected.
    pub fn truncate(&mut self, size: u64) {
        self.ranges.retain(|range| range.start < size);
        if let Some(last) = self.ranges.last_mut() {
            last.end = last.end.min(size);
        }
    }

    /// Whether all bytes of `range` are stored.
    #[must_use]
    pub fn contains(&self, range: ByteRange) -> bool {
        range.start >= range.end || self.present_from(range.start) >= range.end - range.start
    }

    /// Returns the number of contiguous stored bytes from `at` on.
    #[must_use]
    pub fn present_from(&self, at: u64) -> u64 {
        let index = self.ranges.partition_point(|range| range.end <= at);
        self.ranges.get(index).filter(|range| range.start <= at).map_or(0, |range| range.end - at)
    }

    /// Returns the missing subranges of `wanted`, in order.
    pub fn holes(&self, wanted: ByteRange) -> impl Iterator<Item = ByteRange> + '_ {
        self.holes_joined(wanted, 0)
    }

    /// Returns the subranges of `wanted` to request from the origin, in order. Two holes are combined into one request if fewer
    /// than `gap_max` stored bytes are between them: another request would cost a round trip, and refetching the gap costs only
    /// bytes.
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
                // A stored range at the end of `wanted` is not between two holes.
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
    fn adjacent_ranges_are_merged() {
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
        assert_eq!(found.insert(range(5, 8), 2), Ok(()), "an adjacent range is merged");
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
    fn present_ranges_are_found() {
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
        /// Compares with a table of single bytes.
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

            // Joined holes cover all missing bytes, begin and end with a missing byte, and are not more than the single holes.
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
