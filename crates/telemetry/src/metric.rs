//! Metrics as rows: a metric is one constant beside the line that counts it, and the pages and docs/counters.md are
//! made of the constants.
//!
//! A [`Metric`] describes a number. A [`Series`] is a metric that threads count, with its places in the [`Cells`] of
//! each thread; a row is put behind another one by [`Series::after`], so that adding one touches nothing else.

use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::Distribution;

/// The prefix of the names of all metrics.
const PREFIX: &str = "ringroad_";

/// One number, or several distinguished by labels.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// `ringroad_`, but for names that all programs share.
    pub prefix: &'static str,
    /// The name behind that.
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
    /// How often times came, by their length.
    Histogram,
}

impl Kind {
    /// The word of the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
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
        Metric { prefix: PREFIX, name, kind: Kind::Counter, unit, help, labels: &[] }
    }

    /// A number that holds now.
    pub const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
        Metric { kind: Kind::Gauge, ..Metric::counter(name, unit, help) }
    }

    /// Times, in seconds.
    pub const fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric { kind: Kind::Histogram, ..Metric::counter(name, "seconds", help) }
    }

    /// With a name that all programs share.
    pub const fn without_prefix(self) -> Metric {
        Metric { prefix: "", ..self }
    }

    /// With these labels.
    pub const fn labelled(self, labels: &'static [Label]) -> Metric {
        Metric { labels, ..self }
    }

    /// The values of the last label.
    pub fn values(&self) -> &'static [Value] {
        self.labels.last().map_or(&[], |label| label.values)
    }
}

/// A text format of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Version 0.0.4.
    Plain,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Form {
    /// The media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Form::Plain => "text/plain; version=0.0.4",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A page of metrics while it is written: each metric's head, and then its numbers.
#[derive(Debug)]
pub struct Page {
    text: String,
    form: Form,
}

impl Page {
    /// An empty page.
    pub const fn new(form: Form) -> Page {
        Page { text: String::new(), form }
    }

    /// The whole page.
    pub fn finish(mut self) -> String {
        if self.form == Form::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Appends the text before the numbers of a metric.
    pub fn head(&mut self, metric: &Metric) {
        let Metric { prefix, name, help, .. } = metric;
        let kind = metric.kind.name();
        // There a counter is named without the suffix of its numbers.
        let name = match self.form {
            Form::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            Form::Plain => name,
        };
        // A string takes every write.
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// Appends one number with the values of its labels.
    pub fn number(&mut self, metric: &Metric, values: &[&str], number: u64) {
        self.line(metric, "", values, None, number);
    }

    /// The same for a number that need not be whole.
    pub fn fraction(&mut self, metric: &Metric, values: &[&str], number: f64) {
        self.line(metric, "", values, None, number);
    }

    /// Appends a number for each value of the last label.
    pub fn numbers(&mut self, metric: &Metric, values: &[&str], numbers: &[u64]) {
        match metric.values() {
            [] => numbers.iter().for_each(|&number| self.number(metric, values, number)),
            all => {
                for ((value, _), &number) in all.iter().zip(numbers) {
                    self.number(metric, &[values, &[*value]].concat(), number);
                }
            }
        }
    }

    /// Appends those of the numbers for values of the last label that are not zero.
    pub fn occurred(&mut self, metric: &Metric, values: &[&str], numbers: &[u64]) {
        for ((value, _), &number) in metric.values().iter().zip(numbers).filter(|(_, number)| **number > 0) {
            self.number(metric, &[values, &[*value]].concat(), number);
        }
    }

    /// Appends times, by octaves.
    pub fn times(&mut self, metric: &Metric, values: &[&str], times: &Distribution) {
        for (end, count) in times.octaves() {
            self.line(metric, "_bucket", values, Some(&end.to_string()), count);
        }
        let count = times.count();
        self.line(metric, "_bucket", values, Some("+Inf"), count);
        self.line(metric, "_sum", values, None, times.sum_s());
        self.line(metric, "_count", values, None, count);
    }

    /// Values from the configuration are quoted in the form of the format.
    fn line(
        &mut self,
        metric: &Metric,
        suffix: &str,
        values: &[&str],
        bound: Option<&str>,
        number: impl Display,
    ) {
        let text = &mut self.text;
        text.push_str(metric.prefix);
        text.push_str(metric.name);
        text.push_str(suffix);
        let names = metric.labels.iter().map(|label| label.name);
        let mut open = '{';
        for (name, value) in names.zip(values.iter().copied()).chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(text, "{open}{name}=\"");
            push_quoted(value, text);
            text.push('"');
            open = ',';
        }
        text.push_str(if open == '{' { " " } else { "} " });
        let _ = writeln!(text, "{number}");
    }
}

fn push_quoted(value: &str, text: &mut String) {
    for char in value.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            char => text.push(char),
        }
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

    /// Sets the number of a series that has one, which was counted elsewhere.
    pub fn set(&self, series: &Series, number: u64) {
        self.0[series.first].store(number, Ordering::Relaxed);
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
        let Metric { prefix, name, unit, help, .. } = metric;
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{}`", label.name)).collect();
        let (kind, labels) = (metric.kind.name(), labels.join(", "));
        let _ = writeln!(text, "| `{prefix}{name}` | {kind} | {unit} | {labels} | {help} |");
    }
    for metric in metrics.iter().filter(|metric| !metric.values().is_empty()) {
        let label = metric.labels.last().map_or("", |label| label.name);
        let _ = writeln!(text, "\n`{label}` of `{}{}`:\n", metric.prefix, metric.name);
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

    const TIMES: Metric = Metric::histogram("wait_seconds", "Waits.").labelled(WAYS);

    fn page(form: Form) -> String {
        let mut page = Page::new(form);
        page.head(&FIRST.metric);
        page.numbers(&FIRST.metric, &["a\"b\\\nc"], &[0, 5]);
        page.occurred(&FIRST.metric, &["d"], &[0, 5]);
        page.number(&SECOND.metric, &[], 6);
        page.finish()
    }

    #[test]
    fn values_of_labels_are_quoted() {
        assert_eq!(
            page(Form::Plain),
            "# HELP ringroad_moves_total Moves.\n# TYPE ringroad_moves_total counter\n\
             ringroad_moves_total{zone=\"a\\\"b\\\\\\nc\",way=\"in\"} 0\n\
             ringroad_moves_total{zone=\"a\\\"b\\\\\\nc\",way=\"out\"} 5\n\
             ringroad_moves_total{zone=\"d\",way=\"out\"} 5\nringroad_open 6\n"
        );
    }

    #[test]
    fn open_metrics_have_families_and_an_end() {
        let text = page(Form::OpenMetrics);
        assert!(text.starts_with("# HELP ringroad_moves Moves.\n# TYPE ringroad_moves counter\n"), "{text}");
        assert!(text.ends_with("ringroad_open 6\n# EOF\n"), "{text}");
    }

    #[test]
    fn times_have_a_bucket_for_each_octave() {
        let mut times = Distribution::default();
        for us in [20, 40, 1 << 30] {
            times.add(std::time::Duration::from_micros(us));
        }
        let mut page = Page::new(Form::Plain);
        page.times(&TIMES, &["a", "in"], &times);
        let text = page.finish();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 27);
        assert_eq!(lines[0], "ringroad_wait_seconds_bucket{zone=\"a\",way=\"in\",le=\"0.000016\"} 0");
        assert_eq!(lines[1], "ringroad_wait_seconds_bucket{zone=\"a\",way=\"in\",le=\"0.000032\"} 1");
        assert_eq!(lines[24], "ringroad_wait_seconds_bucket{zone=\"a\",way=\"in\",le=\"+Inf\"} 3");
        assert_eq!(lines[25], "ringroad_wait_seconds_sum{zone=\"a\",way=\"in\"} 1073.741884");
        assert_eq!(lines[26], "ringroad_wait_seconds_count{zone=\"a\",way=\"in\"} 3");
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
