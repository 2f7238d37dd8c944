//! The lookup table of a `geo`: consecutive ranges of addresses, each with a value.
//!
//! Nested networks and split ranges are flattened when the configuration is complete. So a lookup is one binary search
//! over contiguous memory, however the rows were nested.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;

/// Index of a value in the list of a `geo`.
pub(super) type ValueIndex = u32;

/// Consecutive ranges of addresses; each ends where the next one starts.
#[derive(Debug)]
pub(super) struct Stretches<A> {
    starts: Vec<A>,
    /// In a separate vector, because a search reads only the starts.
    values: Vec<ValueIndex>,
}

impl<A: Copy + Ord> Stretches<A> {
    /// Returns the value of an address. The first range starts at the lowest address, so there is always a value.
    pub(super) fn find(&self, address: A) -> ValueIndex {
        let behind = self.starts.partition_point(|start| *start <= address);
        debug_assert!(behind > 0, "the first range begins at the first address");
        self.values[behind - 1]
    }

    /// Returns a table with a single range, which starts at the lowest address.
    fn starting(lowest: A, value: ValueIndex) -> Stretches<A> {
        Stretches { starts: vec![lowest], values: vec![value] }
    }

    /// Begins a range at an address that is not below the last start.
    fn push(&mut self, start: A, value: ValueIndex) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.values.pop();
        }
        if self.values.last() != Some(&value) {
            self.starts.push(start);
            self.values.push(value);
        }
    }
}

/// Networks of one address family while they are read, by first address and prefix length.
#[derive(Debug, Default)]
pub(super) struct Networks(HashMap<(u128, u32), ValueIndex>);

impl Networks {
    /// Adds a network or replaces its value; returns the previous value, if any.
    pub(super) fn insert(&mut self, start: u128, bits: u32, value: ValueIndex) -> Option<ValueIndex> {
        self.0.insert((start, bits), value)
    }

    /// Removes a network; returns whether it existed.
    pub(super) fn remove(&mut self, start: u128, bits: u32) -> bool {
        self.0.remove(&(start, bits)).is_some()
    }

    /// Flattens the networks: an address gets the value of the smallest network that contains it. `width` is the number
    /// of bits of an address, `outside` the value of addresses in no network.
    pub(super) fn flatten(self, width: u32, outside: ValueIndex) -> Stretches<u128> {
        let mut networks: Vec<((u128, u32), ValueIndex)> = self.0.into_iter().collect();
        // A network precedes its nested networks, which start at the same address or later.
        networks.sort_unstable_by_key(|(network, _)| *network);
        let mut flat = Stretches::starting(0, outside);
        // The networks that contain the current address, each with the address after its end; `None` means after the last address.
        let mut around: Vec<(Option<u128>, ValueIndex)> = vec![(None, outside)];
        let close =
            |flat: &mut Stretches<u128>, around: &mut Vec<(Option<u128>, ValueIndex)>, to: Option<u128>| {
                while let Some(&(Some(end), _)) = around.last()
                    && to.is_none_or(|to| end <= to)
                {
                    around.pop();
                    let value = around.last().map_or(outside, |(_, value)| *value);
                    flat.push(end, value);
                }
            };
        for ((start, bits), value) in networks {
            close(&mut flat, &mut around, Some(start));
            flat.push(start, value);
            debug_assert!(bits <= width, "a prefix is not longer than an address");
            let host_bits = width - bits;
            let size = 1_u128.checked_shl(host_bits);
            let end = size.and_then(|size| start.checked_add(size));
            around.push((end.filter(|end| width == 128 || *end < 1 << width), value));
        }
        close(&mut flat, &mut around, None);
        flat
    }
}

/// A table of 32-bit addresses needs a quarter of the memory.
impl From<Stretches<u128>> for Stretches<u32> {
    fn from(wide: Stretches<u128>) -> Stretches<u32> {
        Stretches { starts: wide.starts.into_iter().map(|start| start as u32).collect(), values: wide.values }
    }
}

/// Ranges while they are read, by first address, with their last address. As in nginx, a range is split into pieces at
/// multiples of 65536, and the rule about nested ranges applies to each piece.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u32, (u32, ValueIndex)>);

/// Number of addresses in a piece.
const PIECE: u32 = 0x1_0000;

/// The result of adding a range.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The range was added; contains the earlier value of the range, if all of it had the same value.
    Done(Option<ValueIndex>),
    /// This existing range overlaps, and does not completely contain the new range.
    Overlaps(Ipv4Addr, Ipv4Addr),
}

impl Ranges {
    /// Adds a range. It may be nested in an existing range, whose value it replaces; any other overlap is rejected.
    pub(super) fn insert(&mut self, first: u32, last: u32, value: ValueIndex) -> Added {
        let mut before = None;
        for (first, last) in pieces(first, last) {
            let lowest = first & !(PIECE - 1);
            let there =
                self.0.range(lowest..=last).next_back().map(|(&start, &(end, old))| (start, end, old));
            match there {
                Some((start, end, old)) if first <= end => {
                    if first < start || end < last {
                        return Added::Overlaps(start.into(), end.into());
                    }
                    if (first, last) == (start, end) {
                        before = Some(old);
                    }
                    self.0.remove(&start);
                    if start < first {
                        self.0.insert(start, (first - 1, old));
                    }
                    if last < end {
                        self.0.insert(last + 1, (end, old));
                    }
                }
                _ => {}
            }
            self.0.insert(first, (last, value));
        }
        Added::Done(before)
    }

    /// Removes a range; returns `false` if it did not exist completely.
    pub(super) fn remove(&mut self, first: u32, last: u32) -> bool {
        let mut all = true;
        for (first, last) in pieces(first, last) {
            let is_there = self.0.get(&first).is_some_and(|(end, _)| *end == last);
            if is_there {
                self.0.remove(&first);
            }
            all &= is_there;
        }
        all
    }

    /// Converts the ranges to a table; `outside` is the value of addresses in no range.
    pub(super) fn flatten(self, outside: ValueIndex) -> Stretches<u32> {
        let mut flat = Stretches::starting(0, outside);
        for (first, (last, value)) in self.0 {
            flat.push(first, value);
            if let Some(behind) = last.checked_add(1) {
                flat.push(behind, outside);
            }
        }
        flat
    }
}

/// Returns the pieces of a range.
fn pieces(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    (first / PIECE..=last / PIECE).map(move |number| {
        let lowest = number * PIECE;
        (first.max(lowest), last.min(lowest + (PIECE - 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OUTSIDE: ValueIndex = 0;

    fn start_of(address: u128, bits: u32, width: u32) -> u128 {
        address & !(((1_u128 << (width - bits)) - 1) & ((1 << width) - 1))
    }

    proptest! {
        /// With addresses of eight bits, every address is compared with a search for the longest prefix.
        #[test]
        fn the_smallest_network_containing_an_address_is_found(rows in proptest::collection::vec((0_u128..256, 0_u32..9), 0..12)) {
            let mut networks = Networks::default();
            let rows: Vec<(u128, u32, ValueIndex)> =
                (1..).zip(&rows).map(|(value, &(address, bits))| (start_of(address, bits, 8), bits, value)).collect();
            for &(start, bits, value) in &rows {
                networks.insert(start, bits, value);
            }
            let flat = networks.flatten(8, OUTSIDE);
            for address in 0..256 {
                let having = rows.iter().filter(|(start, bits, _)| start_of(address, *bits, 8) == *start);
                let expected = having.max_by_key(|(_, bits, value)| (*bits, *value)).map_or(OUTSIDE, |row| row.2);
                prop_assert_eq!(flat.find(address), expected, "{} of {:?}", address, &rows);
            }
        }

        /// The same for ranges that cross the borders of pieces.
        #[test]
        fn inner_ranges_override_outer_ranges(
            rows in proptest::collection::vec((0_u32..40, 0_u32..40), 0..12),
        ) {
            let base = PIECE - 20;
            let (mut ranges, mut model) = (Ranges::default(), [OUTSIDE; 40]);
            for (value, (a, b)) in (1..).zip(rows) {
                let (first, last) = (a.min(b), a.max(b));
                let mut copy = Ranges(ranges.0.clone());
                if matches!(copy.insert(base + first, base + last, value), Added::Done(_)) {
                    ranges = copy;
                    model[first as usize..=last as usize].fill(value);
                }
            }
            let flat = ranges.flatten(OUTSIDE);
            for address in 0..40 {
                prop_assert_eq!(flat.find(base + address), model[address as usize]);
            }
            prop_assert_eq!(flat.find(base - 1), OUTSIDE);
            prop_assert_eq!(flat.find(base + 40), OUTSIDE);
        }
    }

    #[test]
    fn the_first_and_last_addresses_of_a_family_are_included() {
        let mut networks = Networks::default();
        networks.insert(0, 0, 1);
        networks.insert(u128::MAX, 128, 2);
        networks.insert(0, 128, 3);
        let flat = networks.flatten(128, OUTSIDE);
        let found = [0, 1, u128::MAX - 1, u128::MAX].map(|address| flat.find(address));
        assert_eq!(found, [3, 1, 1, 2]);
        let mut networks = Networks::default();
        networks.insert(0xffff_ffff, 32, 1);
        networks.insert(0x8000_0000, 1, 2);
        assert!(networks.insert(0x8000_0000, 1, 3).is_some() && !networks.remove(0, 1));
        let flat = Stretches::<u32>::from(networks.flatten(32, OUTSIDE));
        assert_eq!([0, 0x8000_0000, u32::MAX].map(|address| flat.find(address)), [OUTSIDE, 3, 1]);
    }

    #[test]
    fn ranges_are_distinguished_by_segment() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.insert(0, 2 * PIECE - 1, 1), Added::Done(None));
        assert_eq!(ranges.insert(0, 2 * PIECE - 1, 2), Added::Done(Some(1)));
        assert_eq!(ranges.insert(5, 9, 3), Added::Done(None));
        let overlaps = Added::Overlaps(Ipv4Addr::from_bits(5), Ipv4Addr::from_bits(9));
        assert_eq!(ranges.insert(4, 9, 4), overlaps);
        assert!(ranges.remove(5, 9) && !ranges.remove(5, 9));
        assert!(!ranges.remove(0, PIECE - 1) && ranges.remove(PIECE, 2 * PIECE - 1));
        let flat = ranges.flatten(OUTSIDE);
        let found = [0, 4, 5, 9, 10, PIECE - 1, PIECE, u32::MAX].map(|address| flat.find(address));
        assert_eq!(found, [2, 2, OUTSIDE, OUTSIDE, 2, 2, OUTSIDE, OUTSIDE]);
    }
}
