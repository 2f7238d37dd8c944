//! Histograms of times, with four buckets per octave from 16 us to 134 s. The error of percentiles is at most 12 %.
//!
//! [`Histogram`] contains the counts of one thread. [`Distribution`] is a sum of histograms, or counts under a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Base 2 logarithm of the end of the first bucket, in microseconds.
const FIRST_OCTAVE: u32 = 4;

/// Number of octaves above the first bucket.
const OCTAVES: u32 = 23;

/// Factor by which ages are divided, so that the buckets cover 1 s to 97 days.
pub(crate) const AGE_SCALE: f64 = 62_500.0;

/// Duration that represents one second of age: the start of the first octave.
const AGE_SECOND: Duration = Duration::from_micros(1 << FIRST_OCTAVE);

/// Maximum age in seconds; longer ages count as this age.
const AGE_MAX: u64 = u32::MAX as u64;

/// Number of buckets: four for each octave, one below and one above.
const BUCKETS: usize = 4 * OCTAVES as usize + 2;

/// Returns the bucket of a time in nanoseconds.
fn bucket_of(ns: u64) -> usize {
    let us = ns / 1000;
    let Some(octave) = us.checked_ilog2().and_then(|log| log.checked_sub(FIRST_OCTAVE)) else { return 0 };
    let quarter = us >> (octave + FIRST_OCTAVE - 2) & 3;
    let position = 1 + 4 * octave as usize + quarter as usize;
    position.min(BUCKETS - 1)
}

/// Returns the start of a bucket in microseconds.
fn begin_us(position: usize) -> f64 {
    debug_assert!(position < BUCKETS, "bucket {position} does not exist");
    match position.checked_sub(1) {
        None => 0.0,
        Some(position) => {
            let (octave, quarter) = (position / 4, position % 4);
            f64::from(1_u32 << (octave as u32 + FIRST_OCTAVE)) * (1.0 + quarter as f64 / 4.0)
        }
    }
}

/// Counts of times. One thread counts; other threads may read.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts a time.
    pub fn add(&self, time: Duration) {
        let add = |cell: &AtomicU64, more: u64| {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        let ns = nanoseconds(time);
        add(&self.counts[bucket_of(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// Counts an age. A histogram has either ages or times, not both.
    pub fn add_age(&self, seconds: u64) {
        self.add(AGE_SECOND * seconds.min(AGE_MAX) as u32);
    }

    /// Adds all counts to a sum.
    pub fn add_to(&self, sum: &mut Distribution) {
        for (sum, count) in sum.counts.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
        sum.sum_ns = sum.sum_ns.wrapping_add(self.sum_ns.load(Ordering::Relaxed));
    }
}

/// Counts of times by bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Distribution {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let ns = nanoseconds(time);
        self.counts[bucket_of(ns)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns);
    }

    /// Adds another distribution.
    pub fn merge(&mut self, other: &Distribution) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Returns the count of each bucket: below 16 us, then four buckets per octave, then above the last octave.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the times in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Returns the quantile `share` in seconds, as the middle of its bucket; `None` if no times were counted.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        debug_assert!((0.0..=1.0).contains(&share), "{share} is no share");
        let count = self.count();
        let rank = (share * count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let position = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        let middle = match position + 1 {
            BUCKETS => begin_us(position),
            next => f64::midpoint(begin_us(position), begin_us(next)),
        };
        Some(middle / 1e6)
    }

    /// Returns the end of each octave in seconds, with the number of times below it.
    pub fn octaves(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut seen = 0;
        let mut next = 0;
        (0..=OCTAVES as usize).map(move |octave| {
            let end = 1 + 4 * octave;
            seen += self.counts[next..end].iter().sum::<u64>();
            debug_assert!(next <= end && end <= self.counts.len(), "octaves are consecutive buckets");
            next = end;
            (begin_us(end) / 1e6, seen)
        })
    }
}

/// Converts to nanoseconds. Overflows only after more than five centuries.
fn nanoseconds(time: Duration) -> u64 {
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_counted_in_its_bucket() {
        for us in (0..5000).chain([99_999, 1 << 20, (1 << 27) - 1, 1 << 27, 1 << 40]) {
            let position = bucket_of(us * 1000);
            assert!(begin_us(position) <= us as f64, "{us}");
            assert!(position + 1 == BUCKETS || (us as f64) < begin_us(position + 1), "{us}");
        }
        assert_eq!(bucket_of(15_999), 0);
        assert_eq!(begin_us(BUCKETS - 1), f64::from(1_u32 << 27));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_age_of_one_second_begins_the_first_octave() {
        let (ages, mut sum) = (Histogram::default(), Distribution::default());
        for seconds in [0, 1, 3, 86_400, u64::MAX] {
            ages.add_age(seconds);
        }
        ages.add_to(&mut sum);
        let ends: Vec<(f64, u64)> = sum.octaves().map(|(end, below)| (end * AGE_SCALE, below)).collect();
        assert_eq!(ends[..3], [(1.0, 1), (2.0, 2), (4.0, 3)]);
        assert_eq!(ends.last(), Some(&(f64::from(1 << 23), 4)), "97 days");
    }

    #[test]
    fn quantiles_are_within_an_eighth_of_a_sorted_list() {
        let (threads, mut sum) = ([Histogram::default(), Histogram::default()], Distribution::default());
        // Times over six orders of magnitude, from a fixed sequence.
        let mut state = 1_u64;
        let mut list: Vec<f64> = (0..10_000)
            .map(|index| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let us = 16.0 * 10_f64.powf((state >> 40) as f64 / f64::from(1 << 24) * 6.0);
                let time = Duration::from_secs_f64(us / 1e6);
                threads[index % 2].add(time);
                time.as_secs_f64()
            })
            .collect();
        threads.iter().for_each(|thread| thread.add_to(&mut sum));
        list.sort_by(f64::total_cmp);
        for share in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let exact = list[(share * list.len() as f64).ceil() as usize - 1];
            let found = sum.quantile(share).expect("there are times");
            assert!((found / exact - 1.0).abs() <= 0.125, "{share}: {found} {exact}");
        }
        assert_eq!(sum.count(), 10_000);
        assert!((sum.sum_s() / list.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        assert_eq!(Distribution::default().quantile(0.5), None);
    }

    #[test]
    fn octaves_are_cumulative_sums() {
        let mut times = Distribution::default();
        for us in [1, 15, 16, 31, 40, 1000, 1 << 30] {
            times.add(Duration::from_micros(us));
        }
        let mut other = Distribution::default();
        other.merge(&times);
        assert_eq!(times, other);
        let octaves: Vec<_> = other.octaves().collect();
        assert_eq!(octaves.len(), 24);
        assert_eq!(octaves[..3], [(16e-6, 2), (32e-6, 4), (64e-6, 5)]);
        assert_eq!(octaves[6], (1.024e-3, 6));
        assert_eq!(octaves[23], (134.217_728, 6), "one is above all");
    }
}
