//! Results as data: what a scenario hands over, what the JSON file holds, what the page and `compare` are made of.
//!
//! A table's cell is a figure with its spread, a text, or the reason why the machine has no figure for it: never an
//! empty place. Units stand at columns and axes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::method::stats::Summary;

/// The version of the JSON file. A reader refuses one that it does not know.
pub(crate) const FORMAT: u32 = 1;

/// Everything that one run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// [`FORMAT`] at the time that it was written.
    pub(crate) format: u32,
    /// RFC 3339, UTC.
    pub(crate) started: String,
    /// From the start of the command to its end.
    pub(crate) seconds: f64,
    /// The command as it was given.
    pub(crate) command: Vec<String>,
    /// How much was measured: normal, quick or full.
    pub(crate) scale: String,
    /// What figures depend on: processor, memory, kernel, file system, device, limits, congestion control, and so on.
    pub(crate) machine: Vec<Fact>,
    /// Servers and tools: version, or why one is missing.
    pub(crate) peers: Vec<Fact>,
    /// One for each scenario, in the order in which they ran.
    pub(crate) sections: Vec<Section>,
    /// Why sections are missing that were asked for: the run was interrupted, or is not at its end yet.
    #[serde(default)]
    pub(crate) incomplete: Option<String>,
}

/// A name and what is so called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fact {
    /// Its name.
    pub(crate) name: String,
    /// Its value; more than one line where it is a file.
    pub(crate) value: String,
}

impl Fact {
    pub(crate) fn new(name: &str, value: impl Into<String>) -> Fact {
        Fact { name: name.to_owned(), value: value.into() }
    }
}

/// What one scenario found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Section {
    /// The scenario's name on the command line.
    pub(crate) scenario: String,
    /// Its heading in the report.
    pub(crate) title: String,
    /// The write-up that it repeats, by the number it starts with ("000" to "004").
    pub(crate) seed: Option<String>,
    /// The question, in one sentence.
    pub(crate) question: String,
    /// Why there are no results, or not all: the one line with which the scenario ended.
    #[serde(default)]
    pub(crate) failed: Option<String>,
    /// Our tables, the one in the write-up's form first.
    pub(crate) tables: Vec<Table>,
    /// Its plots; the figures are those of the tables and runs.
    pub(crate) plots: Vec<Plot>,
    /// A verdict on each claim of the write-up.
    pub(crate) findings: Vec<Finding>,
    /// Omissions with their reasons.
    pub(crate) skipped: Vec<Fact>,
    /// Who stands where: charts and sentences at the head of the report.
    #[serde(default)]
    pub(crate) standings: Vec<Standing>,
    /// The exact configuration of each server and tool, by its name in tables.
    pub(crate) configurations: Vec<Fact>,
    /// Every single measurement.
    pub(crate) runs: Vec<Run>,
}

impl Section {
    /// The place of a scenario that ended without results: its write-up is shown all the same.
    pub(crate) fn failed(scenario: &str, failure: &Failure) -> Section {
        Section {
            scenario: scenario.to_owned(),
            title: format!("bench {scenario}"),
            seed: crate::report::seeds::of_scenario(scenario).map(|seed| seed.number.clone()),
            failed: Some(failure.to_string()),
            ..Section::default()
        }
    }
}

/// What a scenario makes of its measurements.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) standings: Vec<Standing>,
}

impl Section {
    /// Adds what was made of its measurements.
    pub(crate) fn tell(&mut self, told: Told) {
        self.tables.extend(told.tables);
        self.plots.extend(told.plots);
        self.findings.extend(told.findings);
        self.standings.extend(told.standings);
    }

    /// Notes what is left out, and why.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        self.skipped.push(Fact::new(what, why));
    }

    /// Keeps what a server or tool was run with, once for each name.
    pub(crate) fn configure(&mut self, name: &str, text: &str) {
        if self.configurations.iter().all(|fact| fact.name != name) {
            self.configurations.push(Fact::new(name, text));
        }
    }
}

/// Figures in rows, each row with as many cells as there are columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Its heading.
    pub(crate) title: String,
    /// The first column holds the rows' names and is not among these.
    pub(crate) columns: Vec<Column>,
    /// From the top to the bottom.
    pub(crate) rows: Vec<Row>,
}

/// What all figures of a column share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Column {
    /// Its head.
    pub(crate) name: String,
    /// "" for a number of things.
    pub(crate) unit: String,
}

impl Column {
    pub(crate) fn new(name: &str, unit: &str) -> Column {
        Column { name: name.to_owned(), unit: unit.to_owned() }
    }
}

/// The figures of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The case; unique in its table, since `compare` looks for it by name.
    pub(crate) name: String,
    /// One for each column, none of them empty.
    pub(crate) cells: Vec<Cell>,
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cell {
    Figure {
        summary: Summary,
        decimals: u8,
    },
    Text(String),
    /// The machine allows no figure here: why.
    Missing(String),
    /// It was measured and failed: how.
    Broken(String),
}

/// Some servers, or engines, beside each other by one figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Figure and case.
    pub(crate) title: String,
    pub(crate) unit: String,
    /// A cost, not a rate.
    pub(crate) is_less_better: bool,
    pub(crate) entrants: Vec<Entrant>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entrant {
    /// As in the tables.
    pub(crate) name: String,
    /// Whose it is, of servers; "" where engines are compared.
    pub(crate) maker: String,
    /// The directives that make ours what it is; none of others'. "" is the default.
    pub(crate) setting: Option<String>,
    pub(crate) cell: Cell,
}

/// Lines over one pair of axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Unique in the report, fit for an HTML id.
    pub(crate) id: String,
    /// Its heading.
    pub(crate) title: String,
    /// The varied quantity.
    pub(crate) x: Axis,
    /// The measured quantity.
    pub(crate) y: Axis,
    /// One line each; a series without points has a key and no line.
    pub(crate) series: Vec<Series>,
}

/// What an axis says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Axis {
    /// The quantity along it.
    pub(crate) name: String,
    /// "" for a number of things.
    pub(crate) unit: String,
    /// How values are placed on it.
    pub(crate) scale: AxisScale,
}

/// How a value becomes a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AxisScale {
    Linear,
    Logarithmic,
    /// Percentages from 0 to 100, drawn as HdrHistogram draws them: by 1 / (1 - p), so that 90, 99 and 99.9 are equally
    /// far from each other. A point at 100 (the highest value) is left out of the curve: it has no place.
    Percentile,
}

/// One line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Its key; the same name has the same colour in all plots of a section.
    pub(crate) name: String,
    /// In the order of x.
    pub(crate) points: Vec<[f64; 2]>,
}

/// A claim of the write-up with its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The claim, in our words.
    pub(crate) claim: String,
    /// Whether the claim holds on this machine.
    pub(crate) verdict: Verdict,
    /// A plain sentence with the figures that say so.
    pub(crate) sentence: String,
}

/// How a claim fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Holds,
    Partly,
    Fails,
    /// This machine cannot say.
    Open,
}

/// One measurement, as it was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The case: engine, size, connections, round and so on.
    pub(crate) labels: BTreeMap<String, String>,
    /// Each by its name, with its unit in the name.
    pub(crate) figures: BTreeMap<String, f64>,
    /// What disturbed it, if anything did (steal, other load, thermal throttling).
    pub(crate) disturbed: Option<String>,
    /// The machine once a second, where that was recorded: columns and a row for each second.
    pub(crate) timeline: Option<Timeline>,
    /// Latencies in microseconds by percentage, of which plots are made; not kept.
    #[serde(skip)]
    pub(crate) curve: Vec<[f64; 2]>,
}

impl Run {
    /// Of these figures.
    pub(crate) fn of<const N: usize>(figures: [(&str, f64); N]) -> Run {
        let figures = figures.map(|(name, figure)| (name.to_owned(), figure)).into();
        Run { figures, ..Run::default() }
    }

    /// Adds a figure.
    pub(crate) fn set(&mut self, name: &str, figure: f64) {
        self.figures.insert(name.to_owned(), figure);
    }
}

/// A recording of the machine, once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timeline {
    /// What each place of a row is.
    pub(crate) columns: Vec<Column>,
    /// One row for each second, as long as the columns are many.
    pub(crate) rows: Vec<Vec<f64>>,
}
