//! Mapping of values to positions along an axis, and the labelled values.

use crate::report::model::AxisScale;
use crate::report::text::{rounded, tick};

/// Labelled percentages of a percentile axis, up to the range of the points.
const PERCENTILES: [f64; 8] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];

/// Maximum number of distinct values along an axis that each get a label.
const DIFFERENT_MAX: usize = 9;

/// Width of a letter relative to the axis length, in the larger text size of a phone.
const LETTER: f64 = 0.024;

/// Relative inaccuracy of a label that is computed.
const ROUNDING: f64 = 1e-9;

/// One axis with the range of the drawn values.
pub(super) struct PlotScale {
    kind: AxisScale,
    /// Both ends, as [`straight`] returns them.
    low: f64,
    high: f64,
    /// Labelled values with their labels.
    pub(super) ticks: Vec<(f64, String)>,
}

/// Transforms a value so that the scale becomes linear; returns `None` if the axis has no position for the value.
pub(super) fn straight(kind: AxisScale, value: f64) -> Option<f64> {
    let straight = match kind {
        AxisScale::Linear => value,
        AxisScale::Logarithmic if value > 0.0 => value.log10(),
        AxisScale::Percentile if (0.0..100.0).contains(&value) => -(1.0 - value / 100.0).log10(),
        _ => return None,
    };
    straight.is_finite().then_some(straight)
}

impl PlotScale {
    /// Creates an axis that covers all values, with about `room` labels at most. With `exact` it ends at the lowest and
    /// the highest value, and a few distinct values are labelled individually. Otherwise it ends at labels, and a
    /// linear axis begins at 0, so that differences are not exaggerated.
    pub(super) fn of(
        kind: AxisScale,
        values: impl Iterator<Item = f64>,
        room: usize,
        exact: bool,
    ) -> PlotScale {
        let mut values: Vec<f64> = values.filter(|value| straight(kind, *value).is_some()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (Some(&first), Some(&last)) = (values.first(), values.last()) else {
            return PlotScale { kind, low: 0.0, high: 1.0, ticks: Vec::new() };
        };
        let (first, last) = match kind {
            AxisScale::Linear => {
                let first = if exact { first } else { first.min(0.0) };
                (first, if last > first { last } else { first + 1.0 })
            }
            // A single value, or nearly equal values, are centred, with labels around them.
            AxisScale::Logarithmic if last < first * 1.25 => (first / 1.4, last * 1.4),
            AxisScale::Logarithmic => (first, last),
            AxisScale::Percentile => (PERCENTILES[0], last.clamp(PERCENTILES[2], PERCENTILES[7])),
        };
        let mut labels = labels(kind, first, last, room);
        if exact && kind != AxisScale::Percentile && values.len() <= DIFFERENT_MAX {
            labels = values;
        }
        let (low, high) = if exact { (first, last) } else { (labels[0], labels[labels.len() - 1]) };
        let end = |value| straight(kind, value).unwrap_or(0.0);
        let mut scale = PlotScale { kind, low: end(low), high: end(high), ticks: Vec::new() };
        let inside = |value: &f64| (scale.low - ROUNDING..=scale.high + ROUNDING).contains(&end(*value));
        labels.retain(inside);
        scale.label(&labels, exact);
        scale
    }

    /// Adds labels at these values. Those of an exact axis, which are side by side, are omitted where they would touch
    /// the previous one.
    fn label(&mut self, values: &[f64], exact: bool) {
        let mut free = f64::NEG_INFINITY;
        for &value in values {
            let label = if self.kind == AxisScale::Percentile { value.to_string() } else { tick(value) };
            let half = if exact { (label.len() as f64 + 1.0) / 2.0 * LETTER } else { 0.0 };
            if let Some(place) = self.place(value)
                && place - half >= free
            {
                self.ticks.push((value, label));
                free = place + half;
            }
        }
    }

    /// Returns the position of a value, from 0 at the low end to 1 at the high end.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let straight = straight(self.kind, value)?;
        Some(((straight - self.low) / (self.high - self.low)).clamp(0.0, 1.0))
    }
}

/// Returns round values in ascending order, from the last one that is not above `first` to the first one that is not
/// below `last`.
fn labels(kind: AxisScale, first: f64, last: f64, room: usize) -> Vec<f64> {
    let round: Vec<f64> = match kind {
        AxisScale::Percentile => PERCENTILES.to_vec(),
        AxisScale::Linear => {
            let step = round_step((last - first) / room as f64);
            let (from, to) = ((first / step).floor() as i64, (last / step).ceil() as i64);
            (from..=to).map(|at| at as f64 * step).collect()
        }
        AxisScale::Logarithmic => {
            let (low, high) = (first.log10(), last.log10());
            // A few decades have labels between the powers of ten; of many decades only every second or third one has
            // a label.
            let (factors, every): (&[f64], i32) = if high - low < 1.8 {
                (&[1.0, 2.0, 5.0], 1)
            } else {
                (&[1.0], ((high - low) / room as f64).ceil() as i32)
            };
            let decades = (low.floor() as i32 - every)..=(high.ceil() as i32 + every);
            let decades = decades.filter(|decade| decade.rem_euclid(every) == 0);
            decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade))).collect()
        }
    };
    let from = round.iter().rposition(|value| *value <= first + ROUNDING * first.abs()).unwrap_or(0);
    let to = round.iter().position(|value| *value >= last - ROUNDING * last.abs());
    let to = to.unwrap_or(round.len() - 1);
    // They are in the other order if the values are equal but for rounding.
    round[from.min(to)..=to.max(from)].to_vec()
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn round_step(raw: f64) -> f64 {
    let decade = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * decade >= raw * 0.999).unwrap_or(10.0);
    factor * decade
}

/// Formats a value for the table below a plot.
pub(super) fn datum(kind: AxisScale, value: f64) -> String {
    match kind {
        AxisScale::Percentile => format!("{value} %"),
        _ => rounded(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &PlotScale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn a_linear_axis_starts_at_zero_and_ends_at_a_label() {
        let scale = PlotScale::of(AxisScale::Linear, [70.0, 93_000.0].into_iter(), 5, false);
        assert_eq!(labels(&scale), ["0", "20k", "40k", "60k", "80k", "100k"]);
        assert_eq!(scale.place(50_000.0), Some(0.5));
    }

    #[test]
    fn a_few_x_values_are_used_as_labels() {
        let scale = PlotScale::of(AxisScale::Logarithmic, [1.0, 10.0, 100.0, 1000.0].into_iter(), 7, true);
        assert_eq!(labels(&scale), ["1", "10", "100", "1k"]);
        assert!((scale.place(10.0).unwrap() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(scale.place(0.0), None, "0 has no place on a logarithmic axis");
    }

    #[test]
    fn overlapping_labels_are_omitted() {
        let scale = PlotScale::of(AxisScale::Linear, [1.0, 2.0, 100.0].into_iter(), 6, true);
        assert_eq!(labels(&scale), ["1", "100"]);
    }

    #[test]
    fn a_short_logarithmic_axis_has_labels_between_decades() {
        let scale = PlotScale::of(AxisScale::Logarithmic, [3.0, 40.0].into_iter(), 6, false);
        assert_eq!(labels(&scale), ["2", "5", "10", "20", "50"]);
        assert_eq!(scale.place(2.0), Some(0.0));
        assert_eq!(scale.place(50.0), Some(1.0));
    }

    #[test]
    fn nines_of_a_percentile_are_equally_spaced() {
        let scale = PlotScale::of(AxisScale::Percentile, [0.0, 50.0, 99.9, 100.0].into_iter(), 6, true);
        assert_eq!(labels(&scale), ["0", "50", "90", "99", "99.9"]);
        let [ninety, two, three] = [90.0, 99.0, 99.9].map(|value| scale.place(value).unwrap());
        assert!(((two - ninety) - (three - two)).abs() < 1e-9);
        assert_eq!(scale.place(100.0), None);
    }

    #[test]
    fn an_axis_is_possible_for_one_value_and_no_value() {
        for kind in [AxisScale::Linear, AxisScale::Logarithmic] {
            let scale = PlotScale::of(kind, std::iter::once(7.0), 5, false);
            assert!(scale.place(7.0).is_some_and(f64::is_finite));
        }
        let scale = PlotScale::of(AxisScale::Linear, std::iter::once(0.0), 5, false);
        assert_eq!(scale.place(0.0), Some(0.0));
        assert!(PlotScale::of(AxisScale::Linear, std::iter::empty(), 5, false).ticks.is_empty());
    }
}
