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

/// The figures of both runs, and the names that only one of them has.
pub(crate) struct Comparison {
    /// Facts that differ: name, value in A, value in B.
    facts: Vec<[String; 3]>,
    sections: Vec<SectionPairs>,
    /// Figures and scenarios without a counterpart.
    alone: Vec<String>,
}

/// One scenario of both runs.
struct SectionPairs {
    title: String,
    rows: Vec<Pair>,
}

/// One figure of both runs.
struct Pair {
    table: String,
    row: String,
    column: Column,
    a: Cell,
    b: Cell,
}

/// Relation between two figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// The spreads overlap: the difference may be chance.
    Overlap,
    /// The spreads do not overlap.
    Apart,
    /// The spread is unknown: one of the runs measured only once.
    Unknown,
}

impl Stand {
    fn words(self) -> &'static str {
        match self {
            Stand::Overlap => "overlap",
            Stand::Apart => "apart",
            Stand::Unknown => "one measurement",
        }
    }
}

/// Pairs every figure with the one of the same scenario, table, row and column.
pub(crate) fn compare(a: &Report, b: &Report) -> Comparison {
    let mut comparison = Comparison { facts: differing(a, b), sections: Vec::new(), alone: Vec::new() };
    for section in &a.sections {
        let same = |other: &&crate::report::model::Section| {
            other.scenario == section.scenario && other.title == section.title
        };
        // A scenario with other options has a different title, and its figures are not comparable.
        let Some(other) = b.sections.iter().find(same) else {
            comparison.alone.push(format!("{}: in A only", section.title));
            continue;
        };
        let mut rows = Vec::new();
        for table in &section.tables {
            match other.tables.iter().find(|other| other.title == table.title) {
                Some(other) => pairs(table, other, &mut rows, &mut comparison.alone),
                None => comparison.alone.push(format!("{}, {}: in A only", section.title, table.title)),
            }
        }
        // Figures that only B has cannot be compared, but are listed, so that a reader finds them.
        for table in &other.tables {
            if !section.tables.iter().any(|mine| mine.title == table.title) {
                comparison.alone.push(format!("{}, {}: in B only", section.title, table.title));
            }
        }
        comparison.sections.push(SectionPairs { title: section.title.clone(), rows });
    }
    // The same for scenarios: a newer run may have more of them.
    for section in &b.sections {
        if !a.sections.iter().any(|mine| mine.scenario == section.scenario && mine.title == section.title) {
            comparison.alone.push(format!("{}: in B only", section.title));
        }
    }
    comparison
}

/// Returns the facts of the run and the machine that differ: they are the first candidates to explain different
/// figures.
fn differing(a: &Report, b: &Report) -> Vec<[String; 3]> {
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
        facts
            .iter()
            .find(|fact| fact.name == name)
            .map_or("not recorded".to_owned(), |fact| fact.value.clone())
    };
    let only_b = in_b.iter().filter(|fact| !in_a.iter().any(|other| other.name == fact.name));
    // In the order of A, which a reader knows from the report; facts that only B has are last.
    let names = in_a.iter().chain(only_b).map(|fact| fact.name.clone());
    names
        .map(|name| [value(&in_a, &name), value(&in_b, &name), name])
        .filter(|[a, b, _]| a != b)
        .map(|[a, b, name]| [name, a, b])
        .collect()
}

/// Pairs the cells of two tables with the same title by row and column name.
fn pairs(a: &Table, b: &Table, rows: &mut Vec<Pair>, alone: &mut Vec<String>) {
    for row in &a.rows {
        // Matched by name instead of position: in a run with an additional engine the rows have other positions.
        let Some(other) = b.rows.iter().find(|other| other.name == row.name) else {
            alone.push(format!("{}, {}: in A only", a.title, row.name));
            continue;
        };
        for (column, cell) in a.columns.iter().zip(&row.cells) {
            let at = b.columns.iter().position(|candidate| candidate == column);
            let Some(counterpart) = at.and_then(|at| other.cells.get(at)) else {
                alone.push(format!("{}, {}, {}: in A only", a.title, row.name, column.name));
                continue;
            };
            // A pair without any figure (texts or reasons) is not comparable.
            if matches!(cell, Cell::Figure { .. }) || matches!(counterpart, Cell::Figure { .. }) {
                rows.push(Pair {
                    table: a.title.clone(),
                    row: row.name.clone(),
                    column: column.clone(),
                    a: cell.clone(),
                    b: counterpart.clone(),
                });
            }
        }
    }
    let known = |row: &&Row| a.rows.iter().any(|mine| mine.name == row.name);
    alone.extend(
        b.rows.iter().filter(|row| !known(row)).map(|row| format!("{}, {}: in B only", b.title, row.name)),
    );
}

impl Pair {
    /// Returns the ratio of B's figure to A's, if both exist and A's is not 0.
    fn ratio(&self) -> Option<f64> {
        let (Cell::Figure { summary: a, .. }, Cell::Figure { summary: b, .. }) = (&self.a, &self.b) else {
            return None;
        };
        Some(b.median / a.median).filter(|ratio| ratio.is_finite())
    }

    /// Returns whether the difference may be chance. This is not a test of significance: three repetitions do not
    /// suffice for one.
    fn stand(&self) -> Option<Stand> {
        let (Cell::Figure { summary: a, .. }, Cell::Figure { summary: b, .. }) = (&self.a, &self.b) else {
            return None;
        };
        // A single repetition has no spread.
        if a.low == a.high || b.low == b.high {
            return Some(Stand::Unknown);
        }
        Some(if a.low <= b.high && b.low <= a.high { Stand::Overlap } else { Stand::Apart })
    }

    /// Returns row and column: unique within one table.
    fn name(&self) -> String {
        format!("{}, {}", self.row, text::with_unit(&self.column.name, &self.column.unit))
    }

    /// Returns a row of a table with [`COLUMNS`].
    fn row(&self) -> Row {
        let [_, _, ratio, stand] = self.words();
        let cells = vec![self.a.clone(), self.b.clone(), Cell::Text(ratio), Cell::Text(stand)];
        Row { name: self.name(), cells }
    }

    /// Returns A, B, ratio and relation as text.
    fn words(&self) -> [String; 4] {
        let ratio = self.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        let stand = self.stand().map_or("no figure in one", Stand::words);
        [text::cell(&self.a), text::cell(&self.b), ratio, stand.to_owned()]
    }
}

/// The columns beside the name of a figure.
const COLUMNS: [&str; 4] = ["A", "B", "B / A", "spreads"];

/// Formats the comparison for a terminal.
pub(crate) fn as_text(comparison: &Comparison) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "Differences between the machines and runs:");
    if comparison.facts.is_empty() {
        let _ = writeln!(out, "  none");
    }
    for [name, a, b] in &comparison.facts {
        let _ = writeln!(out, "  {name}\n    A: {a}\n    B: {b}");
    }
    for section in &comparison.sections {
        let _ = writeln!(out, "\n{}", section.title);
        let mut title = "";
        // All texts are formatted before the first line is written, since the widest one of a column sets its width.
        let lines: Vec<(String, [String; 4])> =
            section.rows.iter().map(|pair| (pair.name(), pair.words())).collect();
        let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let names = width(&mut lines.iter().map(|(name, _)| name.chars().count()));
        let widths: Vec<usize> = (0..COLUMNS.len())
            .map(|at| {
                let cells = lines.iter().map(|(_, words)| words[at].chars().count());
                width(&mut cells.chain([COLUMNS[at].chars().count()]))
            })
            .collect();
        for (pair, (name, words)) in section.rows.iter().zip(&lines) {
            if pair.table != title {
                title = &pair.table;
                let _ = writeln!(out, "  {title}");
                out.push_str(&aligned("", names, &COLUMNS.map(str::to_owned), &widths));
            }
            out.push_str(&aligned(name, names, words, &widths));
        }
    }
    if !comparison.alone.is_empty() {
        let _ = writeln!(out, "\nWithout a counterpart:");
        comparison.alone.iter().for_each(|line| {
            let _ = writeln!(out, "  {line}");
        });
    }
    out
}

/// Formats a line with right-aligned columns, so that figures can be compared visually.
fn aligned(name: &str, name_width: usize, words: &[String; 4], widths: &[usize]) -> String {
    let mut line = format!("    {name:<name_width$}");
    for (word, width) in words.iter().zip(widths) {
        let _ = write!(line, "  {word:>width$}");
    }
    line.trim_end().to_owned() + "\n"
}

/// Renders the comparison as a page in the style of the report.
pub(crate) fn as_page(comparison: &Comparison) -> String {
    let text_column = |name: &&str| Column::new(name, "");
    let text_row = |[name, a, b]: &[String; 3]| Row {
        name: name.clone(),
        cells: vec![Cell::Text(a.clone()), Cell::Text(b.clone())],
    };
    let facts = Table {
        title: "Machines and runs, where they differ".to_owned(),
        columns: ["A", "B"].iter().map(text_column).collect(),
        rows: comparison.facts.iter().map(text_row).collect(),
    };
    let mut cards = vec![("Differences", vec![facts])];
    for section in &comparison.sections {
        // The rows of a table are consecutive.
        let tables = section.rows.chunk_by(|one, other| one.table == other.table).map(|pairs| Table {
            title: pairs[0].table.clone(),
            columns: COLUMNS.iter().map(text_column).collect(),
            rows: pairs.iter().map(Pair::row).collect(),
        });
        cards.push((&section.title, tables.collect()));
    }
    page::comparison_page(page::comparison(&cards, &comparison.alone))
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
    libaio, requests, 1/s  no figure: not root        2 (1–3)   –  no figure in one
    once, requests, 1/s                  5        4 (1–6)   0.80   one measurement

Without a counterpart:
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
            "<td>no figure in one</td>",
            "<li>return 200, new: in B only</li>",
        ] {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
    }
}
