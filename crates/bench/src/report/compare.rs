//! Comparison of two runs, as text for a terminal: the differences between the machines, and every figure of both runs,
//! with the ratio and whether the spreads overlap.
//!
//! Figures are matched by name: title of the scenario and of the table, row, column with its unit. A scenario with
//! other options has a different title, and its figures are not comparable. Figures without a counterpart are counted:
//! a ratio of two different quantities would be worse than none. Single measurements, plots and findings are not
//! compared: the spreads include the first, the tables have the figures of the second, and the third are sentences.

use std::fmt::Write;

use crate::method::stats::Summary;
use crate::report::model::{Cell, Fact, Report};
use crate::report::text;

/// The columns of the output. The first one has the names of the figures.
const COLUMNS: [&str; 5] = ["", "A", "B", "B / A", "spreads"];

/// A cell of a report with the names by which it is matched.
struct NamedCell<'a> {
    /// Titles of the scenario and of the table.
    table: String,
    /// Row and column.
    name: String,
    cell: &'a Cell,
}

/// Formats the comparison.
pub(crate) fn compare(a: &Report, b: &Report) -> String {
    let mut out = differences(a, b);
    let (in_a, in_b) = (cells(a), cells(b));
    for table in in_a.chunk_by(|one, next| one.table == next.table) {
        let pairs = table.iter().filter_map(|one| Some((one, counterpart(&in_b, one)?)));
        let rows: Vec<[String; 5]> = pairs.filter_map(|(one, other)| row(one, other)).collect();
        if !rows.is_empty() {
            let _ = writeln!(out, "\n{}", table[0].table);
            push_aligned(&rows, &mut out);
        }
    }
    // A newer run may have more figures.
    for (own, others, run) in [(&in_a, &in_b, "A"), (&in_b, &in_a, "B")] {
        for table in own.chunk_by(|one, next| one.table == next.table) {
            let figures = table.iter().filter(|one| matches!(one.cell, Cell::Figure { .. }));
            match figures.filter(|one| counterpart(others, one).is_none()).count() {
                0 => {}
                alone => {
                    let _ =
                        writeln!(out, "\n{}: {} in {run} only", table[0].table, text::count(alone, "figure"));
                }
            }
        }
    }
    out
}

/// Returns the cells of all tables, in the order of the report.
fn cells(report: &Report) -> Vec<NamedCell<'_>> {
    let mut all = Vec::new();
    for section in &report.sections {
        for table in &section.tables {
            for row in &table.rows {
                all.extend(table.columns.iter().zip(&row.cells).map(|(column, cell)| NamedCell {
                    table: format!("{}: {}", section.title, table.title),
                    name: format!("{}, {}", row.name, text::with_unit(&column.name, &column.unit)),
                    cell,
                }));
            }
        }
    }
    all
}

/// Returns the cell of the other run with the same names. Its position may differ: a run may have an additional engine.
fn counterpart<'a>(others: &[NamedCell<'a>], one: &NamedCell<'_>) -> Option<&'a Cell> {
    let is_same = |other: &&NamedCell<'_>| other.name == one.name && other.table == one.table;
    others.iter().find(is_same).map(|other| other.cell)
}

/// Returns the line of a pair; a pair without any figure (texts or reasons) is not comparable.
fn row(one: &NamedCell<'_>, other: &Cell) -> Option<[String; 5]> {
    let [ratio, spreads] = match (one.cell, other) {
        (Cell::Figure { summary: a, .. }, Cell::Figure { summary: b, .. }) => relation(a, b),
        (Cell::Figure { .. }, _) | (_, Cell::Figure { .. }) => {
            ["–", "no figure in one run"].map(str::to_owned)
        }
        _ => return None,
    };
    Some([one.name.clone(), text::cell(one.cell), text::cell(other), ratio, spreads])
}

/// Returns the ratio of B's figure to A's, and whether the difference may be chance because the spreads overlap. This is
/// not a test of significance: three repetitions do not suffice for one.
fn relation(a: &Summary, b: &Summary) -> [String; 2] {
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

/// Lists the facts of the run and the machine that differ: they are the first candidates to explain different figures.
fn differences(a: &Report, b: &Report) -> String {
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
        fact.map_or("not recorded".to_owned(), |fact| fact.value.clone())
    };
    let only_b = in_b.iter().filter(|fact| !in_a.iter().any(|other| other.name == fact.name));
    let mut out = "Differences between the machines and runs:\n".to_owned();
    // In the order of A, which a reader knows from the report; facts that only B has are last.
    for Fact { name, .. } in in_a.iter().chain(only_b) {
        let (a, b) = (value(&in_a, name), value(&in_b, name));
        if a != b {
            let _ = writeln!(out, "  {name}\n    A: {a}\n    B: {b}");
        }
    }
    if out.lines().count() == 1 {
        out.push_str("  none\n");
    }
    out
}

/// Appends rows with right-aligned columns, so that figures can be compared visually.
fn push_aligned(rows: &[[String; 5]], out: &mut String) {
    let rows = rows.iter().map(|row| row.each_ref().map(String::as_str));
    let lines: Vec<[&str; 5]> = [COLUMNS].into_iter().chain(rows).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let [name_width, a, b, ratio, spreads] = std::array::from_fn(width);
    for [name, of_a, of_b, of_ratio, of_spreads] in &lines {
        let _ = writeln!(
            out,
            "  {name:<name_width$}  {of_a:>a$}  {of_b:>b$}  {of_ratio:>ratio$}  {of_spreads:>spreads$}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Column, Row, Section, Table};

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

    fn sample() -> String {
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

Answers: return 200
                                         A              B  B / A           spreads
    ring, requests, 1/s       100 (90–110)  200 (180–220)   2.00             apart
    epoll, requests, 1/s      100 (90–110)  110 (105–120)   1.10           overlap
    libaio, requests, 1/s  no figure: not root        2 (1–3)   –  no figure in one run
    once, requests, 1/s                  5        4 (1–6)   0.80   one measurement

Answers: return 200: 1 figure in A only

Answers: return 200: 1 figure in B only
";
        let text = sample();
        let squeeze = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(squeeze(&text), squeeze(expected));
        let ends: Vec<usize> =
            text.lines().filter(|line| line.contains("requests")).map(|line| line.chars().count()).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "columns are aligned: {ends:?}\n{text}");
    }
}
