//! The published figures of the five write-ups that the suite repeats; reports show them before the measured ones.
//!
//! The data are in `write_ups/NUMBER.json`, one file per write-up. Figures are copied as printed, with their decimals;
//! sentences are rephrased, and each file names where and when the write-up was published. The files contain nothing
//! about the machine that runs the suite.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::method::stats::Summary;
use crate::report::model::{Cell, Column, Row, Table};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteUp {
    /// Number, which `Section::write_up` refers to.
    pub(crate) number: String,
    /// The scenarios that repeat it.
    pub(crate) scenarios: Vec<String>,
    pub(crate) title: String,
    pub(crate) author: String,
    /// Date in ISO 8601, as far as it is known.
    pub(crate) date: String,
    pub(crate) source: String,
    pub(crate) url: String,
    /// The author's machine and tools: name and value.
    pub(crate) setting: Vec<(String, String)>,
    pub(crate) claims: Vec<Claim>,
    /// Its tables, as printed.
    pub(crate) tables: Vec<Published>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    pub(crate) sentence: String,
    /// Where a report judges it: a scenario, the start of a table's title, and the start of the claim of a verdict.
    pub(crate) rows: Vec<(String, String, String)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    pub(crate) title: String,
    /// Explanation for the reader; "" for none.
    pub(crate) remark: String,
    /// Name and unit of the columns, without the column of the row names.
    pub(crate) columns: Vec<(String, String)>,
    /// The rows: the name, then the cells as printed.
    pub(crate) rows: Vec<Vec<String>>,
}

/// The files, ordered by number.
const FILES: [&str; 5] = [
    include_str!("write_ups/000.json"),
    include_str!("write_ups/001.json"),
    include_str!("write_ups/002.json"),
    include_str!("write_ups/003.json"),
    include_str!("write_ups/004.json"),
];

static WRITE_UPS: LazyLock<Vec<WriteUp>> = LazyLock::new(|| {
    let read = |text: &&str| serde_json::from_str(text).expect("a test reads each of these files");
    FILES.iter().map(read).collect()
});

pub(crate) fn all() -> impl Iterator<Item = &'static WriteUp> {
    WRITE_UPS.iter()
}

pub(crate) fn find(number: &str) -> Option<&'static WriteUp> {
    WRITE_UPS.iter().find(|write_up| write_up.number == number)
}

/// Returns the write-up that a scenario repeats, if any.
pub(crate) fn of_scenario(name: &str) -> Option<&'static WriteUp> {
    WRITE_UPS.iter().find(|write_up| write_up.scenarios.iter().any(|scenario| scenario == name))
}

impl Published {
    /// Converts the table to the model of measured tables, so that both are drawn alike.
    pub(crate) fn table(&self) -> Table {
        let column = |(name, unit): &(String, String)| Column::new(name, unit);
        let row = |row: &Vec<String>| {
            let mut cells = row.iter();
            let name = cells.next().cloned().unwrap_or_default();
            Row { name, cells: cells.map(|text| cell(text)).collect() }
        };
        Table {
            title: self.title.clone(),
            columns: self.columns.iter().map(column).collect(),
            rows: self.rows.iter().map(row).collect(),
        }
    }
}

/// Converts a cell: a plain number becomes a figure with the printed number of decimals.
fn cell(text: &str) -> Cell {
    let Ok(figure) = text.parse::<f64>() else { return Cell::Text(text.to_owned()) };
    let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    Cell::Figure {
        summary: Summary { median: figure, low: figure, high: figure },
        decimals: u8::try_from(decimals).unwrap_or(u8::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a cell by table, row and column, formatted for display.
    fn shown(number: &str, table: &str, row: &str, column: &str) -> String {
        let write_up = find(number).unwrap();
        let table = write_up.tables.iter().find(|published| published.title.contains(table)).unwrap().table();
        let at = table.columns.iter().position(|candidate| candidate.name == column).unwrap();
        let row = table.rows.iter().find(|candidate| candidate.name == row).unwrap();
        crate::report::text::cell(&row.cells[at])
    }

    #[test]
    fn rows_of_every_table_have_equal_length() {
        for write_up in WRITE_UPS.iter() {
            assert!(
                !write_up.claims.is_empty() && !write_up.tables.is_empty() && !write_up.setting.is_empty(),
                "{}",
                write_up.number
            );
            for Published { title, columns, rows, .. } in &write_up.tables {
                let is_row = |row: &Vec<String>| {
                    row.len() == columns.len() + 1 && row.iter().all(|cell| !cell.is_empty())
                };
                assert!(!rows.is_empty() && rows.iter().all(is_row), "{} {title}", write_up.number);
            }
        }
    }

    #[test]
    fn figures_have_the_decimals_and_words_of_the_write_up() {
        for (number, table, row, column, expected) in [
            ("000", "1 worker", "libaio", "1M", "600 (1\u{202f}000 with 200 connections)"),
            ("000", "reviewer", "1 worker", "libaio", "1.40"),
            ("000", "second, io_uring, memory limit", "2", "disk read", "196M"),
            ("002", "one process", "context switches", "libaio, depth 16", "28\u{202f}484"),
        ] {
            assert_eq!(shown(number, table, row, column), expected, "{number} {table} {row} {column}");
        }
    }

    #[test]
    fn scenarios_have_their_write_up() {
        assert_eq!(of_scenario("cold").unwrap().number, "000");
        assert_eq!(of_scenario("echo").unwrap().number, "004");
        assert!(of_scenario("isolate").is_none());
    }
}
