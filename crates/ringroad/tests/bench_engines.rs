//! The engine scenarios of `ringroad bench`, for a fraction of a second each: that they run, what they hand over, what
//! wrong use gets, and that nothing is left behind. No figure is judged here.
#![forbid(unsafe_code)]

use std::path::Path;

use serde_json::Value;
use testkit::TempDir;
use testkit::program::{Finished, run};

const BINARY: &str = env!("CARGO_BIN_EXE_ringroad");

/// Runs `ringroad bench` with a folder of its own for its files and for its report, and checks that the first is empty
/// afterwards.
fn bench(dir: &TempDir, args: &[&str]) -> Finished {
    let work = dir.path().join("work");
    std::fs::create_dir_all(&work).expect("a folder");
    let (work, out) = (work.display().to_string(), dir.path().join("out").display().to_string());
    let mut words = vec!["bench"];
    words.extend(args);
    words.extend(["--work", &work, "--out", &out]);
    let finished = run(BINARY, &words);
    let left: Vec<_> = std::fs::read_dir(&work).expect("the folder is there").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    finished
}

/// As [`bench`] for one scenario that is expected to work; answers its section of the report.
fn section(args: &[&str]) -> Value {
    let dir = TempDir::new("bench");
    let finished = bench(&dir, &[args, &["--instant", "--repeat", "1"]].concat());
    assert!(finished.status.success(), "{}", finished.stderr);
    let text = std::fs::read_to_string(dir.path().join("out/report.json")).expect("a report");
    let mut report: Value = serde_json::from_str(&text).expect("a report is JSON");
    report["sections"][0].take()
}

/// Every row has a cell for each column, and each cell says something; answers the titles.
fn check_tables(section: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let mut titles = Vec::new();
    for table in list(&section["tables"]) {
        let title = table["title"].as_str().expect("a title").to_owned();
        let columns = list(&table["columns"]).len();
        assert!(!list(&table["rows"]).is_empty(), "{title}");
        for row in list(&table["rows"]) {
            assert_eq!(list(&row["cells"]).len(), columns, "{title}: {row}");
        }
        titles.push(title);
    }
    assert!(
        !titles.is_empty() && !list(&section["findings"]).is_empty() && !list(&section["runs"]).is_empty()
    );
    titles
}

/// Wrong use: one line that has `part`, exit status 2, and no report.
#[track_caller]
fn refused(args: &[&str], part: &str) {
    let dir = TempDir::new("bench");
    let finished = bench(&dir, args);
    assert_eq!(finished.status.code(), Some(2), "{args:?}: {}", finished.stderr);
    let said = finished.stderr.trim_end();
    assert!(said.starts_with("ringroad bench: ") && said.contains(part), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    assert!(!Path::new(&dir.path().join("out/report.json")).exists(), "{args:?}");
}

#[test]
fn no_ops_are_measured() {
    let section = section(&["nop", "--batch", "1,16"]);
    let titles = check_tables(&section);
    assert!(titles[0].starts_with("No-ops through the ring"), "the write-up's form comes first: {titles:?}");
    let batches: Vec<_> = section["tables"][1]["rows"].as_array().expect("rows").iter().collect();
    assert_eq!(batches.iter().map(|row| &row["name"]).collect::<Vec<_>>(), ["1", "16"]);
    assert_eq!(section["plots"][0]["series"].as_array().map(Vec::len), Some(3));
}

#[test]
fn wrong_use_of_nop_is_one_line() {
    refused(&["nop", "--cpu", "100000"], "--cpu 100000");
    refused(&["nop", "--batch", "0"], "--batch");
    refused(&["nop", "--seconds", "0"], "--seconds");
}
