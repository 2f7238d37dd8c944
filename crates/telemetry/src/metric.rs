//! Metrics as constants. A metric is one constant next to the code that counts it, or next to the code that reads the
//! number. The metrics pages and
//! docs/counters.md are generated from the constants.
//!
//! A [`Metric`] describes a number. A [`Series`] is a metric that threads count, with its indexes in the [`Cells`] of
//! each thread. [`Series::after`] puts a series after another one, so that adding a series needs no other change.

use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::{AGE_SCALE, Distribution};

/// The prefix of the names of all metrics.
const PREFIX: &str = "ringroad_";

/// A number, or several numbers that labels distinguish.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The prefix of the name: `ringroad_`, or empty for names that all programs share.
    pub prefix: &'static str,
    /// The name after the prefix.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: MetricType,
    /// The unit, in the plural; `1` for a state that is true or false.
    pub unit: &'static str,
    /// A sentence that describes the metric.
    pub help: &'static str,
    /// The labels of the metric.
    pub labels: &'static [Label],
}

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A number that only grows until the worker ends.
    Counter,
    /// A present value.
    Gauge,
    /// Numbers of times by bucket.
    Histogram,
}

impl MetricType {
    /// Returns the keyword of the text format.
    pub const fn name(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

/// A label of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// The name of the label.
    pub name: &'static str,
    /// The values of the label, with explanations; empty if the configuration determines the values.
    pub values: &'static [Value],
}

/// A value of a label, with an explanation if the value is not self-explanatory.
pub type Value = (&'static str, &'static str);

impl Metric {
    /// Describes a number that only grows.
    pub const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
        Metric { prefix: PREFIX, name, kind: MetricType::Counter, unit, help, labels: &[] }
    }

    /// Describes a present value.
    pub const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
        Metric { kind: MetricType::Gauge, ..Metric::counter(name, unit, help) }
    }

    /// Describes a histogram of times in seconds.
    pub const fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric { kind: MetricType::Histogram, ..Metric::counter(name, "seconds", help) }
    }

    /// Removes the prefix, for names that all programs share.
    pub const fn without_prefix(self) -> Metric {
        Metric { prefix: "", ..self }
    }

    /// Sets the labels.
    pub const fn labelled(self, labels: &'static [Label]) -> Metric {
        Metric { labels, ..self }
    }

    /// Returns the values of the last label.
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
    /// Returns the media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Form::Plain => "text/plain; version=0.0.4",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A metrics page that is being written: the description of each metric, followed by its numbers.
#[derive(Debug)]
pub struct Page {
    text: String,
    form: Form,
}

impl Page {
    /// Creates an empty page.
    pub const fn new(form: Form) -> Page {
        Page { text: String::new(), form }
    }

    /// Returns the complete page.
    pub fn finish(mut self) -> String {
        if self.form == Form::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Appends the description of a metric.
    pub fn head(&mut self, metric: &Metric) {
        let Metric { prefix, name, help, .. } = metric;
        let kind = metric.kind.name();
        // In OpenMetrics, the description of a counter has its name without the suffix `_total`.
        let name = match self.form {
            Form::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            Form::Plain => name,
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// Appends a number with the values of its labels.
    pub fn number(&mut self, metric: &Metric, values: &[&str], number: u64) {
        self.line(metric, "", values, None, number);
    }

    /// Appends a number that may have a fraction.
    pub fn fraction(&mut self, metric: &Metric, values: &[&str], number: f64) {
        self.line(metric, "", values, None, number);
    }

    /// Appends a number for each value of the last label.
    pub fn numbers(&mut self, metric: &Metric, values: &[&str], numbers: &[u64]) {
        match metric.values() {
            [] => numbers.iter().for_each(|&number| self.number(metric, values, number)),
            all => {
                debug_assert!(numbers.len() <= all.len(), "each number has a value of the label");
                for ((value, _), &number) in all.iter().zip(numbers) {
                    self.number(metric, &[values, &[*value]].concat(), number);
                }
            }
        }
    }

    /// Appends the numbers that are not zero, with their values of the last label.
    pub fn occurred(&mut self, metric: &Metric, values: &[&str], numbers: &[u64]) {
        debug_assert!(metric.values().len() == numbers.len(), "each value of the label has a number");
        for ((value, _), &number) in metric.values().iter().zip(numbers).filter(|(_, number)| **number > 0) {
            self.number(metric, &[values, &[*value]].concat(), number);
        }
    }

    /// Appends a histogram of times, with one bucket per octave.
    pub fn times(&mut self, metric: &Metric, values: &[&str], times: &Distribution) {
        self.scaled(metric, values, times, 1.0);
    }

    /// Appends a histogram of ages, counted by [`Histogram::add_age`], with one bucket for each octave.
    ///
    /// [`Histogram::add_age`]: crate::histogram::Histogram::add_age
    pub fn ages(&mut self, metric: &Metric, values: &[&str], ages: &Distribution) {
        self.scaled(metric, values, ages, AGE_SCALE);
    }

    fn scaled(&mut self, metric: &Metric, values: &[&str], times: &Distribution, scale: f64) {
        for (end, count) in times.octaves() {
            let mut bound = (end * scale).to_string();
            // OpenMetrics 1.0, "Canonical Numbers": a bound has a fraction, so that it is recognised as a float.
            if self.form == Form::OpenMetrics && !bound.contains('.') {
                bound.push_str(".0");
            }
            self.line(metric, "_bucket", values, Some(&bound), count);
        }
        let count = times.count();
        self.line(metric, "_bucket", values, Some("+Inf"), count);
        self.line(metric, "_sum", values, None, times.sum_s() * scale);
        self.line(metric, "_count", values, None, count);
    }

    /// Appends a line. Values from the configuration are escaped.
    fn line(
        &mut self,
        metric: &Metric,
        suffix: &str,
        values: &[&str],
        bound: Option<&str>,
        number: impl Display,
    ) {
        debug_assert!(values.len() == metric.labels.len(), "each label of {} has a value", metric.name);
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

/// A metric that threads count, with its indexes in their [`Cells`].
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// The metric.
    pub metric: Metric,
    first: usize,
    len: usize,
}

impl Series {
    /// Creates the first series of a list. It has a number for each value of its last label, or one number.
    pub const fn first(metric: Metric) -> Series {
        let len = match metric.labels {
            [.., last] if !last.values.is_empty() => last.values.len(),
            _ => 1,
        };
        Series { metric, first: 0, len }
    }

    /// Creates a series whose indexes follow those of `self`.
    pub const fn after(&self, metric: Metric) -> Series {
        Series { first: self.end(), ..Series::first(metric) }
    }

    /// Returns the index after the last number of this series, which is the number of cells so far.
    pub const fn end(&self) -> usize {
        self.first + self.len
    }

    /// Returns the numbers of this series from the sums of all series.
    pub fn of<'a>(&self, sums: &'a [u64]) -> &'a [u64] {
        &sums[self.first..self.end()]
    }
}

/// The counters of one thread. Only that thread writes, so neither a lock nor an atomic addition is necessary. The
/// alignment avoids cache lines that two threads share.
#[derive(Debug)]
#[repr(align(128))]
pub struct Cells<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Cells<N> {
    fn default() -> Cells<N> {
        Cells([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Cells<N> {
    /// Adds one; `index` is the index of the label's value.
    pub fn add(&self, series: &Series, index: usize) {
        self.grow(series, index, 1);
    }

    /// Increases a counter by `count`.
    pub fn grow(&self, series: &Series, index: usize, count: u64) {
        debug_assert!(index < series.len, "value {index} of {} does not exist", series.metric.name);
        let cell = &self.0[series.first + index];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Subtracts one; `index` is the index of the label's value.
    pub fn take(&self, series: &Series, index: usize) {
        debug_assert!(index < series.len, "value {index} of {} does not exist", series.metric.name);
        let cell = &self.0[series.first + index];
        cell.store(cell.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// Sets the only number of a series that other code counts.
    pub fn set(&self, series: &Series, number: u64) {
        debug_assert!(series.len == 1, "{} has several numbers", series.metric.name);
        self.0[series.first].store(number, Ordering::Relaxed);
    }

    /// Returns the number for a value of the label.
    pub fn get(&self, series: &Series, index: usize) -> u64 {
        debug_assert!(index < series.len, "value {index} of {} does not exist", series.metric.name);
        self.0[series.first + index].load(Ordering::Relaxed)
    }

    /// Adds all numbers to the sums. Counts that change during the reading may not match each other exactly.
    pub fn add_to(&self, sums: &mut [u64; N]) {
        sums.iter_mut().zip(&self.0).for_each(|(sum, cell)| *sum += cell.load(Ordering::Relaxed));
    }
}

/// Returns the rows of docs/counters.md: a table of the metrics, and a list of their label values.
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
    fn series_have_separate_cells() {
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
    fn label_values_are_escaped() {
        assert_eq!(
            page(Form::Plain),
            "# HELP ringroad_moves_total Moves.\n# TYPE ringroad_moves_total counter\n\
             ringroad_moves_total{zone=\"a\\\"b\\\\\\nc\",way=\"in\"} 0\n\
             ringroad_moves_total{zone=\"a\\\"b\\\\\\nc\",way=\"out\"} 5\n\
             ringroad_moves_total{zone=\"d\",way=\"out\"} 5\nringroad_open 6\n"
        );
    }

    #[test]
    fn openmetrics_have_families_and_an_eof_line() {
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
    fn bounds_of_openmetrics_are_floats() {
        let bounds = |form| {
            let mut page = Page::new(form);
            page.ages(&TIMES, &["a", "in"], &Distribution::default());
            let text = page.finish();
            let bounds = text.lines().filter_map(|line| Some(line.split_once("le=\"")?.1.split_once('"')?.0));
            bounds.map(str::to_owned).collect::<Vec<_>>()
        };
        let (plain, open) = (bounds(Form::Plain), bounds(Form::OpenMetrics));
        assert_eq!((&*plain[0], &*plain[1], &*plain[24]), ("1", "2", "+Inf"));
        assert_eq!((&*open[0], &*open[1], &*open[24]), ("1.0", "2.0", "+Inf"));
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
