//! The recordings of the machine's state during measurements: as plots, and as a table in the form of dstat's.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::model::{Axis, AxisScale, Cell, Plot, Row, Run, Section, Series, Table, Timeline};
use crate::report::text;

/// Maximum number of recordings that a page shows per scenario. The JSON file has all of them.
const SHOWN_MAX: usize = 16;

/// The label that differs between repetitions of the same measurement.
const ROUND: &str = "round";

/// One recording as plots and as a table.
pub(crate) struct Recording {
    /// The measurement that was recorded.
    pub(crate) title: String,
    /// CPU, disk, network, interrupts and context switches over time.
    pub(crate) plots: Vec<Plot>,
    /// The same figures as a table in the form of the write-up.
    pub(crate) table: Table,
}

/// Returns the recordings of a section to be shown: one per measured case instead of one per repetition, preferably an
/// undisturbed one. `prefix` makes the plots' ids unique in the page.
pub(crate) fn shown(section: &Section, prefix: &str) -> Vec<Recording> {
    let mut best: Vec<(BTreeMap<&str, &str>, &Run, &Timeline)> = Vec::new();
    for run in &section.runs {
        // Measurements of less than a second have a recording without rows.
        let Some(timeline) = run.timeline.as_ref().filter(|timeline| !timeline.rows.is_empty()) else {
            continue;
        };
        // Repetitions of a case differ only in the round.
        let labels = run.labels.iter().filter(|(name, _)| *name != ROUND);
        let labels: BTreeMap<&str, &str> =
            labels.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        match best.iter_mut().find(|(known, ..)| *known == labels) {
            Some(known) if known.1.disturbed.is_some() && run.disturbed.is_none() => {
                *known = (labels, run, timeline)
            }
            Some(_) => {}
            None => best.push((labels, run, timeline)),
        }
    }
    // Dozens of recordings would enlarge the page by megabytes, and readers compare only a few.
    best.truncate(SHOWN_MAX);
    best.iter()
        .enumerate()
        .map(|(at, (labels, _, timeline))| {
            let title: Vec<String> = labels.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let title = if title.is_empty() { "the run".to_owned() } else { title.join(", ") };
            Recording {
                plots: plots(timeline, &format!("{prefix}-t{at}"), &title),
                table: table(timeline, &title),
                title,
            }
        })
        .collect()
}

/// Returns one plot per unit: shares of time and bytes do not share an axis.
fn plots(timeline: &Timeline, prefix: &str, title: &str) -> Vec<Plot> {
    let units: BTreeSet<&str> = timeline.columns.iter().map(|column| column.unit.as_str()).collect();
    let plot = |(at, unit): (usize, &str)| {
        let columns = timeline.columns.iter().enumerate().filter(|(_, column)| column.unit == unit);
        let series = |(at, name): (usize, &str)| Series {
            name: name.to_owned(),
            points: timeline
                .rows
                .iter()
                .enumerate()
                .filter_map(|(second, row)| Some([second as f64 + 1.0, *row.get(at)?]))
                .collect(),
        };
        Plot {
            id: format!("{prefix}-{at}"),
            title: format!("{}: {title}", if unit.is_empty() { "counts" } else { unit }),
            x: Axis { name: "time".to_owned(), unit: "s".to_owned(), scale: AxisScale::Linear },
            y: Axis { name: unit.to_owned(), unit: String::new(), scale: AxisScale::Linear },
            series: columns.map(|(at, column)| series((at, &column.name))).collect(),
        }
    };
    units.into_iter().enumerate().map(plot).collect()
}

/// Returns a table with a row for each second, in the column order of dstat.
fn table(timeline: &Timeline, title: &str) -> Table {
    let row = |(second, row): (usize, &Vec<f64>)| Row {
        name: (second + 1).to_string(),
        cells: row.iter().map(|value| Cell::Text(text::rounded(*value))).collect(),
    };
    Table {
        title: format!("Once a second: {title}"),
        columns: timeline.columns.clone(),
        rows: timeline.rows.iter().enumerate().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Column;

    fn run(engine: &str, round: &str, disturbed: bool, idle: f64) -> Run {
        Run {
            labels: [("engine", engine), ("round", round)].map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
            disturbed: disturbed.then(|| "steal".to_owned()),
            timeline: Some(Timeline {
                columns: vec![Column::new("idl", "%"), Column::new("read", "MB/s"), Column::new("sys", "%")],
                rows: vec![vec![idle, 3.0, 5.0], vec![idle, 4.0, 6.0]],
            }),
            ..Run::default()
        }
    }

    #[test]
    fn an_undisturbed_repetition_is_shown() {
        let section = Section {
            runs: vec![
                run("ring", "1", true, 10.0),
                run("ring", "2", false, 20.0),
                run("libaio", "1", false, 30.0),
            ],
            ..Section::default()
        };
        let shown = shown(&section, "s0");
        let titles: Vec<&str> = shown.iter().map(|one| one.title.as_str()).collect();
        assert_eq!(titles, ["engine ring", "engine libaio"]);
        assert_eq!(shown[0].table.rows[0].cells[0], Cell::Text("20".to_owned()));
        let series: Vec<usize> = shown[0].plots.iter().map(|plot| plot.series.len()).collect();
        assert_eq!(series, [2, 1], "a plot for shares and one for bytes");
        assert_eq!(shown[0].plots[1].series[0].points, [[1.0, 3.0], [2.0, 4.0]]);
    }
}
