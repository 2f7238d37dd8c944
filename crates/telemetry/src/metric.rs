//! Metrics as rows: what is counted has one constant beside the line that counts it, and the pages and
//! docs/counters.md are made of the constants.
//!
//! A [`Metric`] says what a number is. A [`Series`] is a metric that threads count, with its places in the [`Cells`] of
//! each thread; a row is put behind another one by [`Series::after`], so that adding one touches nothing else.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// The prefix of the names of all metrics.
const PREFIX: &str = "ringroad_";

/// One number, or several that labels tell apart.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name behind `ringroad_`.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: Kind,
    /// Its unit, in the plural; `1` for a state that is true or false.
    pub unit: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [Label],
}

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It grows until the worker ends.
    Counter,
    /// A present value.
    Gauge,
}

impl Kind {
    /// The word of the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// A label of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values with a few words each; none where the configuration names them.
    pub values: &'static [Value],
}

/// A value of a label, with its meaning where the name is not enough.
pub type Value = (&'static str, &'static str);

impl Metric {
    /// A number that only grows.
    pub const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Counter, unit, help, labels: &[] }
    }

    /// A number that holds now.
    pub const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
        Metric { kind: Kind::Gauge, ..Metric::counter(name, unit, help) }
    }

    /// With these labels.
    pub const fn labelled(self, labels: &'static [Label]) -> Metric {
        Metric { labels, ..self }
    }

    /// The values of the last label.
    pub fn values(&self) -> &'static [Value] {
        self.labels.last().map_or(&[], |label| label.values)
    }

    /// Appends what comes before the numbers in the text format of Prometheus.
    pub fn write_head(&self, page: &mut String) {
        let Metric { name, help, .. } = self;
        let kind = self.kind.name();
        // A string takes every write.
        let _ = writeln!(page, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}");
    }

    /// Appends one number with the values of its labels. Values from the configuration are quoted as the format wants it.
    pub fn write_number(&self, values: &[&str], number: u64, page: &mut String) {
        page.push_str(PREFIX);
        page.push_str(self.name);
        for (index, (label, value)) in self.labels.iter().zip(values).enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(page, "{open}{}=\"{value}\"", label.name);
        }
        page.push_str(if self.labels.is_empty() { "" } else { "}" });
        let _ = writeln!(page, " {number}");
    }
}

/// A metric that threads count, and its places in their [`Cells`].
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// The metric.
    pub metric: Metric,
    first: usize,
    len: usize,
}

impl Series {
    /// The first one: a number for each value of its last label, or one.
    pub const fn first(metric: Metric) -> Series {
        let len = match metric.labels {
            [.., last] if !last.values.is_empty() => last.values.len(),
            _ => 1,
        };
        Series { metric, first: 0, len }
    }

    /// One whose cells follow those of this one.
    pub const fn after(&self, metric: Metric) -> Series {
        Series { first: self.end(), ..Series::first(metric) }
    }

    /// The number of places up to the end of this one.
    pub const fn end(&self) -> usize {
        self.first + self.len
    }

    /// Its numbers among the sums of all.
    pub fn of<'a>(&self, sums: &'a [u64]) -> &'a [u64] {
        &sums[self.first..self.end()]
    }
}

/// Counts of one thread. Only that thread writes, so that neither a lock nor an atomic addition is needed. Aligned so
/// that counting never takes a cache line away from another thread.
#[derive(Debug)]
#[repr(align(128))]
pub struct Cells<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Cells<N> {
    fn default() -> Cells<N> {
        Cells([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Cells<N> {
    /// Counts one more; `place` is that of the label's value.
    pub fn add(&self, series: &Series, place: usize) {
        let cell = &self.0[series.first + place];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts one less.
    pub fn take(&self, series: &Series, place: usize) {
        let cell = &self.0[series.first + place];
        cell.store(cell.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// The number of one place now.
    pub fn get(&self, series: &Series, place: usize) -> u64 {
        self.0[series.first + place].load(Ordering::Relaxed)
    }

    /// Adds all numbers to these sums. Numbers that are read while others change may be a moment apart.
    pub fn add_to(&self, sums: &mut [u64; N]) {
        sums.iter_mut().zip(&self.0).for_each(|(sum, cell)| *sum += cell.load(Ordering::Relaxed));
    }
}

/// The rows of a document: a table of the metrics, and a list of the values of their labels.
pub fn document(metrics: &[&Metric]) -> String {
    let mut text = String::from("| name | kind | unit | labels | what |\n|---|---|---|---|---|\n");
    for metric in metrics {
        let Metric { name, unit, help, .. } = metric;
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{}`", label.name)).collect();
        let (kind, labels) = (metric.kind.name(), labels.join(", "));
        let _ = writeln!(text, "| `{PREFIX}{name}` | {kind} | {unit} | {labels} | {help} |");
    }
    for metric in metrics.iter().filter(|metric| !metric.values().is_empty()) {
        let label = metric.labels.last().map_or("", |label| label.name);
        let _ = writeln!(text, "\n`{label}` of `{PREFIX}{}`:\n", metric.name);
        for (value, meaning) in metric.values() {
            let dash = if meaning.is_empty() { "" } else { ": " };
            let _ = writeln!(text, "* `{value}`{dash}{meaning}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: &[Label] = &[
        Label { name: "zone", values: &[] },
        Label { name: "way", values: &[("in", ""), ("out", "it has left")] },
    ];
    const FIRST: Series = Series::first(Metric::counter("moves_total", "moves", "Moves.").labelled(WAYS));
    const SECOND: Series = FIRST.after(Metric::gauge("open", "files", "Open files."));

    #[test]
    fn series_have_places_of_their_own() {
        let threads = [Cells::<{ SECOND.end() }>::default(), Cells::default()];
        threads[0].add(&FIRST, 1);
        threads[1].add(&FIRST, 1);
        threads[1].add(&SECOND, 0);
        threads[0].add(&SECOND, 0);
        threads[0].take(&SECOND, 0);
        let mut sums = [0; SECOND.end()];
        threads.iter().for_each(|cells| cells.add_to(&mut sums));
        assert_eq!((FIRST.of(&sums), SECOND.of(&sums)), (&[0, 2][..], &[1][..]));
        assert_eq!(threads[0].get(&FIRST, 1), 1);
    }

    #[test]
    fn values_of_labels_are_quoted() {
        let mut page = String::new();
        FIRST.metric.write_head(&mut page);
        FIRST.metric.write_number(&["a\"b\\", "in"], 5, &mut page);
        SECOND.metric.write_number(&[], 6, &mut page);
        assert_eq!(
            page,
            "# HELP ringroad_moves_total Moves.\n# TYPE ringroad_moves_total counter\n\
             ringroad_moves_total{zone=\"a\\\"b\\\\\",way=\"in\"} 5\nringroad_open 6\n"
        );
    }

    #[test]
    fn a_document_has_a_row_for_each_and_all_values() {
        let text = document(&[&FIRST.metric, &SECOND.metric]);
        assert!(
            text.contains("| `ringroad_moves_total` | counter | moves | `zone`, `way` | Moves. |\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\n`way` of `ringroad_moves_total`:\n\n* `in`\n* `out`: it has left\n"),
            "{text}"
        );
    }
}
