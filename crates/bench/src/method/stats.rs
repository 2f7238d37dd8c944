//! Medians and spreads of repetitions, and ratios of pairs of measurements.

use serde::{Deserialize, Serialize};

/// Median of repetitions, with their minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// Median; with an even number of repetitions, the mean of the middle two.
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Summary {
    /// Summarises figures; returns `None` without figures or if one is not finite.
    pub(crate) fn of(figures: &[f64]) -> Option<Summary> {
        let mut sorted = figures.to_vec();
        if !sorted.iter().all(|figure| figure.is_finite()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Summary { median, low, high })
    }

    /// Summarises the ratios `ours / theirs` pair by pair: the figures of a pair were measured consecutively, so a
    /// drift during the run affects both.
    pub(crate) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Summary> {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        Summary::of(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_two() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(summary, Summary { median: 2.5, low: 1.0, high: 4.0 });
    }

    #[test]
    fn an_empty_list_has_no_median() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN, 1.0]), None);
    }

    #[test]
    fn ratios_are_computed_pair_by_pair() {
        let ratios = Summary::of_ratios(&[1.0, 4.0, 9.0], &[2.0, 4.0, 3.0]).unwrap();
        assert_eq!(ratios, Summary { median: 1.0, low: 0.5, high: 3.0 });
        assert_eq!(Summary::of_ratios(&[1.0], &[0.0]), None);
    }
}
