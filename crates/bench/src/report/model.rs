//! Results as data: the output of scenarios, the content of the JSON file, and the input of the page and of `compare`.
//!
//! A table cell is a figure with its spread, a text, or the reason for a missing figure; it is never empty. Columns and
//! axes have the units.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::method::stats::Summary;

/// Version of the JSON format. A reader rejects other versions.
pub(crate) const FORMAT: u32 = 2;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// [`FORMAT`] at the time of writing.
    pub(crate) format: u32,
    /// Start of the run, in RFC 3339 format, UTC.
    pub(crate) started: String,
    pub(crate) seconds: f64,
    pub(crate) command: Vec<String>,
    /// Scale of the measurement: normal, quick or full.
    pub(crate) scale: String,
    /// Facts that influence the figures: processor, memory, kernel, file system, device, limits, congestion control,
    /// and so on.
    pub(crate) machine: Vec<Fact>,
    /// Servers and tools: the version, or why one is missing.
    pub(crate) peers: Vec<Fact>,
    /// One section per scenario, in the order of execution.
    pub(crate) sections: Vec<Section>,
    /// Why requested sections are missing: the run was interrupted, or has not finished.
    #[serde(default)]
    pub(crate) incomplete: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fact {
    pub(crate) name: String,
    /// Its value; several lines for the content of a file.
    pub(crate) value: String,
}

impl Fact {
    pub(crate) fn new(name: &str, value: impl Into<String>) -> Fact {
        Fact { name: name.to_owned(), value: value.into() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Section {
    /// The scenario's name on the command line.
    pub(crate) scenario: String,
    pub(crate) title: String,
    /// The write-up that the scenario repeats, by its leading number ("000" to "004").
    #[serde(alias = "seed")]
    pub(crate) write_up: Option<String>,
    /// The question that the scenario examines, in one sentence.
    pub(crate) question: String,
    /// Duration of the scenario in seconds; 0 in reports of earlier versions.
    #[serde(default)]
    pub(crate) seconds: f64,
    /// The one-line error that ended the scenario, if results are missing.
    #[serde(default)]
    pub(crate) failed: Option<String>,
    /// The tables; the first one has the form of the write-up's table.
    pub(crate) tables: Vec<Table>,
    /// The plots; their figures are those of the tables and runs.
    pub(crate) plots: Vec<Plot>,
    /// A verdict on each claim of the write-up.
    pub(crate) findings: Vec<Finding>,
    /// Omissions with their reasons.
    pub(crate) skipped: Vec<Fact>,
    /// Rankings: charts and sentences at the head of the report.
    #[serde(default)]
    pub(crate) rankings: Vec<Ranking>,
    /// The exact configuration of each server and tool, by its name in tables.
    pub(crate) configurations: Vec<Fact>,
    pub(crate) runs: Vec<Run>,
}

impl Section {
    /// Returns a section for a scenario without results: its write-up is shown nevertheless.
    pub(crate) fn failed(scenario: &str, failure: &Failure) -> Section {
        Section {
            scenario: scenario.to_owned(),
            title: format!("bench {scenario}"),
            write_up: crate::report::write_ups::of_scenario(scenario).map(|write_up| write_up.number.clone()),
            failed: Some(failure.to_string()),
            ..Section::default()
        }
    }
}

/// The presentation of a scenario's measurements.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) rankings: Vec<Ranking>,
}

impl Section {
    /// Adds the presentation of the measurements.
    pub(crate) fn add_results(&mut self, results: Results) {
        self.tables.extend(results.tables);
        self.plots.extend(results.plots);
        self.findings.extend(results.findings);
        self.rankings.extend(results.rankings);
    }

    /// Records an omission and its reason, once.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        let fact = Fact::new(what, why);
        if !self.skipped.contains(&fact) {
            self.skipped.push(fact);
        }
    }

    /// Stores the configuration of a server or tool, once per name.
    pub(crate) fn configure(&mut self, name: &str, text: &str) {
        if self.configurations.iter().all(|fact| fact.name != name) {
            self.configurations.push(Fact::new(name, text));
        }
    }
}

/// A table; each row has as many cells as there are columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// The columns, without the first one, which contains the names of the rows.
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Unit; "" for a plain count.
    pub(crate) unit: String,
}

impl Column {
    pub(crate) fn new(name: &str, unit: &str) -> Column {
        Column { name: name.to_owned(), unit: unit.to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Name of the case; unique in its table, since `compare` matches rows by name.
    pub(crate) name: String,
    /// One cell per column.
    pub(crate) cells: Vec<Cell>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cell {
    Figure {
        summary: Summary,
        decimals: u8,
    },
    Text(String),
    /// No figure is possible on this machine, for this reason.
    Missing(String),
    /// The measurement failed, for this reason.
    Broken(String),
}

/// A ranking of servers or engines by one figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ranking {
    /// Name of the figure and the case.
    pub(crate) title: String,
    pub(crate) unit: String,
    /// Whether lower is better, as for a cost.
    pub(crate) is_less_better: bool,
    pub(crate) results: Vec<RankedResult>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankedResult {
    /// Name as in the tables.
    pub(crate) name: String,
    /// The server that it belongs to; "" if engines are compared.
    pub(crate) maker: String,
    /// The directives of a Ringroad mode; `None` for other servers. "" is the default.
    pub(crate) setting: Option<String>,
    pub(crate) cell: Cell,
}

/// A plot: lines over one pair of axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Unique id in the report, valid as an HTML id.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Axis of the varied quantity.
    pub(crate) x: Axis,
    /// Axis of the measured quantity.
    pub(crate) y: Axis,
    /// One line each; a series without points has only an entry in the legend.
    pub(crate) series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Axis {
    pub(crate) name: String,
    /// Unit; "" for a plain count.
    pub(crate) unit: String,
    /// How values are mapped to positions.
    pub(crate) scale: AxisScale,
}

/// Mapping of values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AxisScale {
    Linear,
    Logarithmic,
    /// Percentages from 0 to 100 in the style of HdrHistogram: mapped by 1 / (1 - p), so that 90, 99 and 99.9 are
    /// equally spaced. A point at 100 (the maximum) has no position and is omitted.
    Percentile,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Name in the legend; the same name has the same colour in all plots of a section.
    pub(crate) name: String,
    /// Points in the order of x.
    pub(crate) points: Vec<[f64; 2]>,
}

/// A claim of the write-up with its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The claim, rephrased.
    pub(crate) claim: String,
    /// Whether the claim holds on this machine.
    pub(crate) verdict: Verdict,
    /// A sentence with the figures that support the verdict.
    pub(crate) sentence: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Holds,
    Partly,
    Fails,
    /// Cannot be decided on this machine.
    Open,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The case: engine, size, connections, round and so on.
    pub(crate) labels: BTreeMap<String, String>,
    /// The figures by name; the name includes the unit.
    pub(crate) figures: BTreeMap<String, f64>,
    /// What disturbed the measurement, if anything (steal, other load, thermal throttling).
    pub(crate) disturbed: Option<String>,
    /// The state of the machine once a second, if it was recorded.
    pub(crate) timeline: Option<Timeline>,
    /// Latencies in microseconds by percentage, for plots; not stored in the JSON file.
    #[serde(skip)]
    pub(crate) curve: Vec<[f64; 2]>,
}

impl Run {
    pub(crate) fn of<const N: usize>(figures: [(&str, f64); N]) -> Run {
        let figures = figures.map(|(name, figure)| (name.to_owned(), figure)).into();
        Run { figures, ..Run::default() }
    }

    pub(crate) fn set(&mut self, name: &str, figure: f64) {
        self.figures.insert(name.to_owned(), figure);
    }
}

/// A recording of the machine's state, once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timeline {
    pub(crate) columns: Vec<Column>,
    /// One row per second, with one value per column.
    pub(crate) rows: Vec<Vec<f64>>,
}
