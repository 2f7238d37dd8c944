//! Generates tables, plots and findings from the single measurements of a scenario, by declarative descriptions.
//!
//! A [`Figure`] selects a quantity of a measurement, [`Labels`] select measurements. A table has a row per set of
//! labels and a column per figure. A column may also be the ratio to the same figure under other labels, computed round
//! by round: both were measured consecutively, so a disturbance most likely affected both. A cell without a figure has
//! the reason.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::method::stats::Summary;
use crate::report::model::{
    Axis, AxisScale, Cell, Column, Fact, Finding, Plot, RankedResult, Ranking, Row, Run, Section, Series,
    Table, Verdict,
};

/// Names and values of labels; a later value replaces an earlier one of the same name.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// Names of rows or lines, each with the labels of its measurements.
pub(crate) type Rows = Vec<(String, Labels)>;

pub(crate) fn at<const N: usize>(labels: [(&'static str, &dyn Display); N]) -> Labels {
    labels.iter().map(|(name, value)| (*name, value.to_string())).collect()
}

/// A quantity of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) decimals: u8,
    pub(crate) of: Of,
}

/// How the quantity is computed from the figures of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    /// A figure, converted to another unit.
    Value(&'static str, f64),
    /// The quotient of two figures, converted to another unit.
    Quotient(&'static str, &'static str, f64),
    /// A label instead of a figure, in a separate column.
    Label(&'static str),
}

/// Creates an element of a scenario's list of figures.
pub(crate) const fn figure(name: &'static str, unit: &'static str, decimals: u8, of: Of) -> Figure {
    Figure { name, unit, decimals, of }
}

/// A column of a table: a figure with labels that are added to those of the row. The divisor of a ratio is the same
/// figure with the further labels in `over`.
pub(crate) struct ShownColumn {
    name: String,
    figure: Figure,
    at: Labels,
    over: Option<Labels>,
}

impl Figure {
    /// Returns a column with the figure's own name and the row's labels.
    pub(crate) fn shown(self) -> ShownColumn {
        self.at(self.name, Labels::new())
    }

    /// Returns a column with another name and additional labels.
    pub(crate) fn at(self, name: &str, labels: Labels) -> ShownColumn {
        ShownColumn { name: name.to_owned(), figure: self, at: labels, over: None }
    }

    /// Returns a column with the ratio to the figure under additional labels.
    pub(crate) fn over(self, name: &str, labels: Labels) -> ShownColumn {
        ShownColumn { over: Some(labels), ..self.at(name, Labels::new()) }
    }
}

impl ShownColumn {
    /// Returns the same column with these labels added to those of the row.
    pub(crate) fn where_(self, labels: Labels) -> ShownColumn {
        ShownColumn { at: labels, ..self }
    }

    fn head(&self) -> Column {
        let unit = if self.over.is_some() { "" } else { self.figure.unit };
        Column::new(&self.name, unit)
    }
}

/// The measurements of a scenario, and its omissions.
#[derive(Clone, Copy)]
pub(crate) struct Measurements<'a> {
    runs: &'a [Run],
    skipped: &'a [Fact],
}

impl<'a> Measurements<'a> {
    pub(crate) fn of(section: &'a Section) -> Measurements<'a> {
        Measurements { runs: &section.runs, skipped: &section.skipped }
    }

    /// Returns the measurements with these labels, in the order of their rounds; or why there are none.
    fn find(&self, labels: &Labels) -> Result<Vec<&'a Run>, String> {
        let wanted: BTreeMap<&str, &String> = labels.iter().map(|(name, value)| (*name, value)).collect();
        let is_wanted = |run: &&Run| wanted.iter().all(|(name, value)| run.labels.get(*name) == Some(*value));
        let found: Vec<&Run> = self.runs.iter().filter(is_wanted).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let server = wanted.get("server").map_or("", |server| server.as_str());
        let is_about = |fact: &&Fact| fact.name.starts_with(server) || server.starts_with(&fact.name);
        let reason = self.skipped.iter().filter(|_| !server.is_empty()).find(is_about);
        Err(reason.map_or_else(|| "not part of this run".to_owned(), |fact| fact.value.clone()))
    }

    pub(crate) fn has(&self, labels: &Labels) -> bool {
        self.find(labels).is_ok()
    }

    /// Returns a figure of each round. If it is missing in one round, its reason applies to all of them: the remaining
    /// figures would be those of a different case.
    pub(crate) fn series(&self, figure: Figure, labels: &Labels) -> Result<Vec<f64>, String> {
        self.find(labels)?.into_iter().map(|run| value(run, figure.of)).collect()
    }

    /// Returns the median of a figure, for plots and sentences.
    pub(crate) fn middle(&self, figure: Figure, labels: &Labels) -> Option<f64> {
        Summary::of(&self.series(figure, labels).ok()?).map(|summary| summary.median)
    }

    /// Returns the ratio of a figure under some labels to the same figure under others.
    pub(crate) fn ratio(&self, figure: Figure, ours: &Labels, theirs: &Labels) -> Option<Summary> {
        Summary::of_ratios(&self.series(figure, ours).ok()?, &self.series(figure, theirs).ok()?)
    }

    fn cell(&self, shown: &ShownColumn, row: &Labels) -> Cell {
        let labels = [row.as_slice(), &shown.at].concat();
        if let Some(reason) = self.failure(&labels) {
            return Cell::Broken(reason);
        }
        if let Of::Label(name) = shown.figure.of {
            return self.find(&labels).map_or_else(Cell::Missing, |runs| label_cell(&runs, name));
        }
        let ours = self.series(shown.figure, &labels);
        let over = shown.over.as_ref().map(|more| [labels.as_slice(), more].concat());
        let theirs = over.map(|labels| self.series(shown.figure, &labels));
        let (summary, decimals) = match (ours, theirs) {
            (Err(reason), _) | (_, Some(Err(reason))) => return Cell::Missing(reason),
            (Ok(ours), None) => (Summary::of(&ours), shown.figure.decimals),
            (Ok(ours), Some(Ok(theirs))) => (Summary::of_ratios(&ours, &theirs), 2),
        };
        match summary {
            Some(summary) => Cell::Figure { summary, decimals },
            None => Cell::Missing("too little was measured".to_owned()),
        }
    }

    /// Returns how a server failed in one of its rounds. A row that is not a server may lack a figure because of the
    /// machine instead.
    fn failure(&self, labels: &Labels) -> Option<String> {
        let of_server = |run: &&Run| run.labels.contains_key("server");
        self.find(labels).ok()?.into_iter().filter(of_server).find_map(|run| run.labels.get(NOTHING).cloned())
    }

    /// Returns a ranking of the measured rows. Of a figure per second (a rate) more is better; any other figure is a
    /// cost.
    pub(crate) fn ranking(&self, title: &str, figure: Figure, rows: &[(String, Labels)]) -> Ranking {
        let results = rows.iter().filter(|(_, labels)| self.has(labels)).map(|(name, labels)| RankedResult {
            name: name.clone(),
            maker: String::new(),
            setting: None,
            cell: self.cell(&figure.shown(), labels),
        });
        Ranking {
            title: title.to_owned(),
            unit: figure.unit.to_owned(),
            is_less_better: !figure.unit.ends_with("/s"),
            results: results.collect(),
        }
    }

    /// Returns for each case a text with the ratio of a figure under two sets of labels and its spread, and whether the
    /// claim is met. Cases in which one of them was not measured are omitted.
    pub(crate) fn ratios(
        &self,
        figure: Figure,
        cases: impl IntoIterator<Item = (String, Labels, Labels)>,
        is_met: impl Fn(&Summary) -> bool,
    ) -> Vec<(String, bool)> {
        let case = |(name, ours, theirs): (String, Labels, Labels)| {
            let ratio = self.ratio(figure, &ours, &theirs)?;
            Some((format!("{name}: {}", spread(&ratio)), is_met(&ratio)))
        };
        cases.into_iter().filter_map(case).collect()
    }

    /// Returns the finding of a claim about such ratios. `before` precedes the cases; `none` is said without cases.
    pub(crate) fn finding_of_ratios(
        &self,
        claim: impl Into<String>,
        (before, none): (&str, &str),
        figure: Figure,
        cases: impl IntoIterator<Item = (String, Labels, Labels)>,
        is_met: impl Fn(&Summary) -> bool,
    ) -> Finding {
        finding_of_cases(claim, before, &self.ratios(figure, cases, is_met), none)
    }

    /// Returns a table with a row for each name and its labels, and a column for each figure.
    pub(crate) fn table(&self, title: &str, rows: &[(String, Labels)], columns: &[ShownColumn]) -> Table {
        let cells = |labels| columns.iter().map(|shown| self.cell(shown, labels)).collect();
        let rows = rows.iter().map(|(name, labels)| Row { name: name.clone(), cells: cells(labels) });
        Table {
            title: title.to_owned(),
            columns: columns.iter().map(ShownColumn::head).collect(),
            rows: rows.collect(),
        }
    }

    /// Plots the medians of a figure by the numeric values of a label, with a line for each name and its labels. Cases
    /// without a figure are omitted: the table beside the plot has the reason.
    pub(crate) fn plot(
        &self,
        (id, title): (&str, &str),
        (label, x): (&'static str, Axis),
        (figure, y): (Figure, Axis),
        lines: &[(String, Labels)],
    ) -> Plot {
        let line = |(name, labels): &(String, Labels)| {
            let mut places: Vec<(f64, String)> = Vec::new();
            for run in self.find(labels).unwrap_or_default() {
                let place = run.labels.get(label).and_then(|text| Some((text.parse().ok()?, text.clone())));
                places.extend(place.filter(|place| !places.contains(place)));
            }
            places.sort_by(|one, other| one.0.total_cmp(&other.0));
            let point = |(place, text): (f64, String)| {
                Some([place, self.middle(figure, &[labels.as_slice(), &[(label, text)]].concat())?])
            };
            Series { name: name.clone(), points: places.into_iter().filter_map(point).collect() }
        };
        let series = lines.iter().map(line).filter(|series| !series.points.is_empty());
        Plot { id: id.to_owned(), title: title.to_owned(), x, y, series: series.collect() }
    }

    /// Plots the latencies of the first round by percentile, in ms or µs.
    pub(crate) fn curves(&self, (id, title): (&str, &str), unit: &str, lines: &[(String, Labels)]) -> Plot {
        let scale = if unit == "ms" { 1e-3 } else { 1.0 };
        let line = |(name, labels): &(String, Labels)| {
            let run = self.find(labels).ok()?.into_iter().find(|run| !run.curve.is_empty())?;
            let points = run.curve.iter().map(|[percent, us]| [*percent, us * scale]).collect();
            Some(Series { name: name.clone(), points })
        };
        Plot {
            id: id.to_owned(),
            title: title.to_owned(),
            x: axis("percentile", "%", AxisScale::Percentile),
            y: axis("latency", unit, AxisScale::Logarithmic),
            series: lines.iter().filter_map(line).collect(),
        }
    }
}

/// Formats a ratio with its spread, which shows whether a verdict is close.
pub(crate) fn spread(ratio: &Summary) -> String {
    let Summary { median, low, high } = ratio;
    if low == high { format!("{median:.2}") } else { format!("{median:.2} ({low:.2} to {high:.2})") }
}

/// Percentages of a latency curve: denser at the high end.
pub(crate) const CURVE: [f64; 10] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];

/// Returns a figure of one measurement, or why it is missing.
fn value(run: &Run, of: Of) -> Result<f64, String> {
    let figure = |name: &str| {
        let reason = || run.labels.get(NOTHING).or_else(|| run.labels.get(&without(name)));
        let reason = || reason().cloned().unwrap_or_else(|| "not measured".to_owned());
        run.figures.get(name).copied().ok_or_else(reason)
    };
    match of {
        Of::Value(name, scale) => Ok(figure(name)? * scale),
        Of::Quotient(above, below, scale) => Ok(figure(above)? / figure(below)? * scale),
        Of::Label(name) => Err(format!("{name} is no figure")),
    }
}

/// Label of a failed measurement, whose value is the reason.
pub(crate) const NOTHING: &str = "nothing";

/// Returns the label whose value is the reason why one figure is missing.
pub(crate) fn without(figure: &str) -> String {
    format!("without {figure}")
}

/// Returns a cell with the distinct values of a label in all rounds.
fn label_cell(runs: &[&Run], name: &str) -> Cell {
    let mut found: Vec<&str> =
        runs.iter().filter_map(|run| run.labels.get(name)).map(String::as_str).collect();
    found.sort_unstable();
    found.dedup();
    match found.is_empty() {
        true => Cell::Missing("not measured".to_owned()),
        false => Cell::Text(found.join(", ")),
    }
}

/// Formats a count: `1 client`, `2 clients`.
pub(crate) fn plural(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn axis(name: &str, unit: &str, scale: AxisScale) -> Axis {
    Axis { name: name.to_owned(), unit: unit.to_owned(), scale }
}

/// Returns a row or line for each name, with the name as the value of the label.
pub(crate) fn named<N: ToString>(label: &'static str, names: impl IntoIterator<Item = N>) -> Rows {
    let names = names.into_iter().map(|name| name.to_string());
    names.map(|name| (name.clone(), vec![(label, name)])).collect()
}

/// Returns the same rows or lines with further labels.
pub(crate) fn under(rows: &[(String, Labels)], labels: &Labels) -> Rows {
    rows.iter().map(|(name, own)| (name.clone(), [own.as_slice(), labels].concat())).collect()
}

pub(crate) fn finding(claim: impl Into<String>, verdict: Verdict, sentence: impl Into<String>) -> Finding {
    Finding { claim: claim.into(), verdict, sentence: sentence.into() }
}

/// Sentence of a claim without figures.
pub(crate) const NOT_MEASURED: &str = "Not measured; the tables have the reason.";

pub(crate) fn open(claim: &str) -> Finding {
    finding(claim, Verdict::Open, NOT_MEASURED)
}

/// Returns the finding of a claim about several cases: it holds if all cases meet it, and partly if some do. `said` has
/// a text for each case; without cases the claim stays open.
pub(crate) fn finding_of_cases(
    claim: impl Into<String>,
    before: &str,
    said: &[(String, bool)],
    none: &str,
) -> Finding {
    if said.is_empty() {
        return finding(claim, Verdict::Open, none);
    }
    let words: Vec<&str> = said.iter().map(|(words, _)| words.as_str()).collect();
    let met = said.iter().filter(|(_, is_met)| *is_met).count();
    finding(claim, verdict(met, said.len()), format!("{before}{}.", words.join("; ")))
}

/// Returns the verdict on a claim that is met in some of several cases.
pub(crate) fn verdict(met: usize, cases: usize) -> Verdict {
    match met {
        _ if cases == 0 => Verdict::Open,
        0 => Verdict::Fails,
        met if met == cases => Verdict::Holds,
        _ => Verdict::Partly,
    }
}

/// Returns the verdict on a figure by two thresholds.
pub(crate) fn at_least(figure: f64, holds: f64, partly: f64) -> Verdict {
    match figure {
        figure if figure >= holds => Verdict::Holds,
        figure if figure >= partly => Verdict::Partly,
        _ => Verdict::Fails,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Figure = figure("rate", "1/s", 0, Of::Quotient("requests", "seconds", 1.0));
    const CALLS: Figure = figure("calls", "", 3, Of::Value("calls", 1.0));

    fn run(server: &str, clients: u32, figures: &[(&str, f64)], labels: &[(&str, &str)]) -> Run {
        let own = [("server", server.to_owned()), ("clients", clients.to_string())];
        let more = labels.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let labels = own.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value));
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value));
        Run { labels: labels.collect(), figures: figures.collect(), ..Run::default() }
    }

    fn section() -> Section {
        let rate = |requests| [("requests", requests), ("seconds", 2.0)];
        Section {
            runs: vec![
                run("a", 1, &rate(200.0), &[("limit", "server"), ("without calls", "needs root")]),
                run("a", 1, &rate(400.0), &[("limit", "server")]),
                run("b", 1, &rate(100.0), &[]),
                run("b", 1, &rate(100.0), &[]),
                run("a", 9, &rate(600.0), &[]),
                run("c", 1, &[], &[(NOTHING, "it ended")]),
            ],
            skipped: vec![Fact::new("nginx", "not installed")],
            ..Section::default()
        }
    }

    #[test]
    fn a_table_has_figures_ratios_and_reasons() {
        let section = section();
        let limit = figure("limit", "", 0, Of::Label("limit"));
        let columns =
            [RATE.shown(), RATE.over("of b's", at([("server", &"b")])), CALLS.shown(), limit.shown()];
        let rows = under(&named("server", ["a", "c", "nginx, deferred", "d"]), &at([("clients", &1)]));
        let table = Measurements::of(&section).table("t", &rows, &columns);
        let shown: Vec<Vec<String>> =
            table.rows.iter().map(|row| row.cells.iter().map(crate::report::text::cell).collect()).collect();
        assert_eq!(shown[0], ["150 (100–200)", "3.00 (2.00–4.00)", "no figure: needs root", "server"]);
        assert!(shown[1].iter().all(|cell| cell == "broken: it ended"), "{shown:?}");
        assert!(shown[2].iter().all(|cell| cell == "no figure: not installed"), "{shown:?}");
        assert!(shown[3].iter().all(|cell| cell == "no figure: not part of this run"), "{shown:?}");
        assert_eq!((table.columns[0].unit.as_str(), table.columns[1].unit.as_str()), ("1/s", ""));
    }

    #[test]
    fn a_line_has_only_the_measured_points() {
        let section = section();
        let axes = || axis("", "", AxisScale::Linear);
        let lines = named("server", ["a", "c"]);
        let plot = Measurements::of(&section).plot(("p", "P"), ("clients", axes()), (RATE, axes()), &lines);
        assert_eq!(plot.series.len(), 1, "without a figure there is no line");
        assert_eq!(plot.series[0].points, [[1.0, 150.0], [9.0, 300.0]]);
    }

    #[test]
    fn contradictory_cases_are_reported() {
        let said = |holds: &[bool]| -> Vec<(String, bool)> {
            holds.iter().map(|is_met| ("x".to_owned(), *is_met)).collect()
        };
        let verdict = |holds: &[bool]| finding_of_cases("claim", "", &said(holds), "none").verdict;
        assert_eq!(verdict(&[true, true]), Verdict::Holds);
        assert_eq!(verdict(&[true, false]), Verdict::Partly);
        assert_eq!(verdict(&[false]), Verdict::Fails);
        assert_eq!(verdict(&[]), Verdict::Open);
    }
}
