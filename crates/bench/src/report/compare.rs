//! Comparison of two runs: the differences between the machines, and every figure of both runs, with the ratio and
//! whether the spreads overlap. The output is text for a terminal, or a page.
//!
//! Figures are matched by name: scenario with its title, table, row, column with its unit. Figures without a
//! counterpart of the same name are listed as such: a ratio of two different quantities would be worse than none.
//! Single measurements, plots and findings are not compared: the spreads include the first, the tables have the figures
//! of the second, and the third are sentences.

use std::fmt::Write;

use crate::report::model::{Cell, Column, Fact, Report, Row, Table};
use crate::report::{page, text};

/// The figures of both runs as tables, and the names that only one of them has.
pub(crate) struct Comparison {
    /// Facts that differ, with the values in A and in B.
    facts: Table,
    /// Title and tables of each scenario of both runs. The tables have [`COLUMNS`], and a row for each figure.
    sections: Vec<(String, Vec<Table>)>,
    /// Figures and scenarios without a counterpart.
    alone: Vec<String>,
}

/// The columns beside the name of a figure.
const COLUMNS: [&str; 4] = ["A", "B", "B / A", "spreads"];

/// Pairs every figure with the one of the same scenario, table, row and column. A scenario with other options has a
/// different title, and its figures are not comparable.
pub(crate) fn compare(a: &Report, b: &Report) -> Comparison {
    let (mut sections, mut alone) = (Vec::new(), Vec::new());
    for (a, b) in pairs(&a.sections, &b.sections, |section| section.title.clone(), &mut alone) {
        let name = |table: &Table| format!("{}, {}", a.title, table.title);
        let tables = pairs(&a.tables, &b.tables, name, &mut alone).into_iter();
        let tables = tables.map(|(a, b)| compare_tables(a, b, &mut alone));
        sections.push((a.title.clone(), tables.filter(|table| !table.rows.is_empty()).collect()));
    }
    Comparison { facts: differing(a, b), sections, alone }
}

/// Returns the elements of both runs that have the same name. The others are listed in `alone`, so that a reader finds
/// them: a newer run may have more of them.
fn pairs<'a, T>(
    a: &'a [T],
    b: &'a [T],
    name: impl Fn(&T) -> String,
    alone: &mut Vec<String>,
) -> Vec<(&'a T, &'a T)> {
    let among = |all: &'a [T], one: &T| all.iter().find(|other| name(other) == name(one));
    for (own, others, run) in [(a, b, "A"), (b, a, "B")] {
        let missing = own.iter().filter(|one| among(others, one).is_none());
        alone.extend(missing.map(|one| format!("{}: in {run} only", name(one))));
    }
    a.iter().filter_map(|one| Some((one, among(b, one)?))).collect()
}

/// Returns the facts of the run and the machine that differ: they are the first candidates to explain different
/// figures.
fn differing(a: &Report, b: &Report) -> Table {
    let of_run = |report: &Report| {
        let run = [
            Fact::new("started", text::moment(&report.started)),
            Fact::new("command", report.command.join(" ")),
            Fact::new("scale", report.scale.clone()),
        ];
        run.into_iter().chain(report.machine.clone()).chain(report.peers.clone()).collect::<Vec<Fact>>()
    };
    let (in_a, in_b) = (of_run(a), of_run(b));
    // A fact that is missing in one run differs as well: an older suite may not have recorded it.
    let value = |facts: &[Fact], name: &str| {
        let fact = facts.iter().find(|fact| fact.name == name);
        Cell::Text(fact.map_or("not recorded".to_owned(), |fact| fact.value.clone()))
    };
    let only_b = in_b.iter().filter(|fact| !in_a.iter().any(|other| other.name == fact.name));
    // In the order of A, which a reader knows from the report; facts that only B has are last.
    let names = in_a.iter().chain(only_b).map(|fact| fact.name.clone());
    let rows = names.map(|name| Row { cells: vec![value(&in_a, &name), value(&in_b, &name)], name });
    Table {
        title: "Differences between the machines and runs".to_owned(),
        columns: columns(&["A", "B"]),
        rows: rows.filter(|row| row.cells[0] != row.cells[1]).collect(),
    }
}

fn columns(names: &[&str]) -> Vec<Column> {
    names.iter().map(|name| Column::new(name, "")).collect()
}

/// Pairs the cells of two tables with the same title by row and column name.
fn compare_tables(a: &Table, b: &Table, alone: &mut Vec<String>) -> Table {
    let mut rows = Vec::new();
    // Matched by name instead of position: in a run with an additional engine the rows have other positions.
    let name = |row: &Row| format!("{}, {}", a.title, row.name);
    for (row, other) in pairs(&a.rows, &b.rows, name, alone) {
        for (column, cell) in a.columns.iter().zip(&row.cells) {
            let at = b.columns.iter().position(|candidate| candidate == column);
            let Some(counterpart) = at.and_then(|at| other.cells.get(at)) else {
                alone.push(format!("{}, {}: in A only", name(row), column.name));
                continue;
            };
            // A pair without any figure (texts or reasons) is not comparable.
            if matches!(cell, Cell::Figure { .. }) || matches!(counterpart, Cell::Figure { .. }) {
                let name = format!("{}, {}", row.name, text::with_unit(&column.name, &column.unit));
                let [ratio, spreads] = relation(cell, counterpart).map(Cell::Text);
                rows.push(Row { name, cells: vec![cell.clone(), counterpart.clone(), ratio, spreads] });
            }
        }
    }
    Table { title: a.title.clone(), columns: columns(&COLUMNS), rows }
}

/// Returns the ratio of B's figure to A's, and whether the difference may be chance because the spreads overlap. This is
/// not a test of significance: three repetitions do not suffice for one.
fn relation(a: &Cell, b: &Cell) -> [String; 2] {
    let (Cell::Figure { summary: a, .. }, Cell::Figure { summary: b, .. }) = (a, b) else {
        return ["–".to_owned(), "no figure in one run".to_owned()];
    };
    let ratio = Some(b.median / a.median).filter(|ratio| ratio.is_finite());
    // A single repetition has no spread.
    let spreads = if a.low == a.high || b.low == b.high {
        "one measurement"
    } else if a.low <= b.high && b.low <= a.high {
        "overlap"
    } else {
        "apart"
    };
    [ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}")), spreads.to_owned()]
}

pub(crate) fn as_text(comparison: &Comparison) -> String {
    let mut out = "Differences between the machines and runs:\n".to_owned();
    if comparison.facts.rows.is_empty() {
        out.push_str("  none\n");
    }
    for Row { name, cells } in &comparison.facts.rows {
        let _ = writeln!(out, "  {name}\n    A: {}\n    B: {}", text::cell(&cells[0]), text::cell(&cells[1]));
    }
    for (title, tables) in &comparison.sections {
        let _ = writeln!(out, "\n{title}");
        tables.iter().for_each(|table| push_aligned(table, &mut out));
    }
    if !comparison.alone.is_empty() {
        let _ = writeln!(out, "\nIn one run only:\n  {}", comparison.alone.join("\n  "));
    }
    out
}

/// Appends a table with right-aligned columns, so that figures can be compared visually.
fn push_aligned(table: &Table, out: &mut String) {
    let head = [String::new()].into_iter().chain(table.columns.iter().map(|column| column.name.clone()));
    let line = |row: &Row| -> Vec<String> {
        [row.name.clone()].into_iter().chain(row.cells.iter().map(text::cell)).collect()
    };
    let mut lines: Vec<Vec<String>> = vec![head.collect()];
    lines.extend(table.rows.iter().map(line));
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=table.columns.len()).map(width).collect();
    let _ = writeln!(out, "  {}", table.title);
    for line in &lines {
        let mut text = format!("    {:<width$}", line[0], width = widths[0]);
        for (word, width) in line.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {word:>width$}");
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
}

/// Renders the comparison as a page in the style of the report.
pub(crate) fn as_page(comparison: &Comparison) -> String {
    let facts = [("Differences".to_owned(), vec![comparison.facts.clone()])];
    page::comparison(facts.iter().chain(&comparison.sections), &comparison.alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::stats::Summary;
    use crate::report::model::Section;

    fn figure(low: f64, median: f64, high: f64) -> Cell {
        Cell::Figure { summary: Summary { median, low, high }, decimals: 0 }
    }

    fn report(kernel: &str, cells: Vec<Cell>, extra_row: &str) -> Report {
        let names = ["ring", "epoll", "libaio", "once"];
        let mut rows: Vec<Row> = names
            .iter()
            .zip(cells)
            .map(|(name, cell)| Row { name: (*name).to_owned(), cells: vec![cell] })
            .collect();
        rows.push(Row { name: extra_row.to_owned(), cells: vec![figure(1.0, 1.0, 1.0)] });
        Report {
            machine: vec![Fact::new("kernel", kernel)],
            sections: vec![Section {
                scenario: "http".to_owned(),
                title: "Answers".to_owned(),
                tables: vec![Table {
                    title: "return 200".to_owned(),
                    columns: vec![Column::new("requests", "1/s")],
                    rows,
                }],
                ..Section::default()
            }],
            ..Report::default()
        }
    }

    fn sample() -> Comparison {
        let missing = Cell::Missing("not root".to_owned());
        let a = vec![figure(90.0, 100.0, 110.0), figure(90.0, 100.0, 110.0), missing, figure(5.0, 5.0, 5.0)];
        let b = vec![
            figure(180.0, 200.0, 220.0),
            figure(105.0, 110.0, 120.0),
            figure(1.0, 2.0, 3.0),
            figure(1.0, 4.0, 6.0),
        ];
        compare(&report("6.1", a, "old"), &report("6.18", b, "new"))
    }

    #[test]
    fn each_figure_shows_its_ratio_and_overlap() {
        let expected = "\
Differences between the machines and runs:
  kernel
    A: 6.1
    B: 6.18

Answers
  return 200
                                         A              B  B / A           spreads
    ring, requests, 1/s       100 (90–110)  200 (180–220)   2.00             apart
    epoll, requests, 1/s      100 (90–110)  110 (105–120)   1.10           overlap
    libaio, requests, 1/s  no figure: not root        2 (1–3)   –  no figure in one run
    once, requests, 1/s                  5        4 (1–6)   0.80   one measurement

In one run only:
  return 200, old: in A only
  return 200, new: in B only
";
        let text = as_text(&sample());
        let squeeze = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(squeeze(&text), squeeze(expected));
        let ends: Vec<usize> =
            text.lines().filter(|line| line.contains("requests")).map(|line| line.chars().count()).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "columns are aligned: {ends:?}\n{text}");
    }

    #[test]
    fn the_page_shows_the_same_comparison() {
        let html = as_page(&sample());
        for part in [
            "<td class=\"n\">2.00</td><td>apart</td>",
            "<td>no figure in one run</td>",
            "<li>return 200, new: in B only</li>",
        ] {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
    }
}
