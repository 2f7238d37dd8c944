//! `ringroad bench cold` for a fraction of a second each: every engine serves files and hits of the proxy cache, the report is
//! complete, wrong use is refused, and no file remains. No test compares measured values.

use serde_json::Value;
use testkit::TempDir;
use testkit::program::{Finished, run};

const BINARY: &str = env!("CARGO_BIN_EXE_ringroad");

/// Runs `ringroad bench cold` with separate directories; everything created for the run must be removed afterwards.
fn cold(dir: &TempDir, args: &[&str]) -> Finished {
    let work = dir.path().join("work");
    std::fs::create_dir_all(&work).expect("a directory");
    let (work, out) = (work.display().to_string(), dir.path().join("out").display().to_string());
    let mut words = vec!["bench", "cold"];
    words.extend(args);
    words.extend(["--work", &work, "--out", &out]);
    let finished = run(BINARY, &words);
    let left: Vec<_> = std::fs::read_dir(&work).expect("the directory is there").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    finished
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

#[test]
fn every_main_engine_has_a_row_for_files_and_for_the_cache() {
    let dir = TempDir::new("bench-cold");
    let finished = cold(&dir, &["--sizes", "4k", "--instant", "--repeat", "1"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    let text = std::fs::read_to_string(dir.path().join("out/report.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("a report is JSON");
    let section = &report["sections"][0];
    let titles: Vec<&str> =
        list(&section["tables"]).iter().filter_map(|table| table["title"].as_str()).collect();
    assert!(titles[0].starts_with("As written up"), "{titles:?}");
    assert!(
        titles[1].starts_with("Files of 4k") && titles[2].starts_with("Hits of the proxy cache of 4k"),
        "{titles:?}"
    );
    for table in list(&section["tables"]) {
        let rows = list(&table["rows"]);
        for engine in ["io_uring", "libaio", "sendfile"] {
            let ours = |row: &&Value| {
                row["name"].as_str().is_some_and(|name| name.starts_with(&format!("ringroad {engine}")))
            };
            let row = rows.iter().find(ours).unwrap_or_else(|| panic!("{engine}: {table}"));
            // The cell has a value, or the reason for its absence: a kernel without the engine.
            let cell = &row["cells"][0];
            let has_reason = cell["missing"].is_string() || cell["broken"].is_string();
            assert!(cell["figure"].is_object() || has_reason, "{row}");
        }
        // The row to which the others are compared (100 %). It needs a memory limit, which only root can set.
        let limit = rows.iter().find(|row| row["name"] == "the machine's limit");
        assert_eq!(limit.is_some(), is_root(), "{table}");
        let measured = rows.iter().filter(|row| row["cells"][0]["figure"].is_object()).count();
        assert!(measured > 0, "{table}");
    }
    assert!(!list(&section["runs"]).is_empty() && !list(&section["findings"]).is_empty());
    let configurations = list(&section["configurations"]);
    // The report has only the configurations with a measurement: on a busy machine, an instant run may receive no response from
    // some of them.
    let is_ours = |fact: &&Value| fact["name"].as_str().is_some_and(|name| name.starts_with("ringroad "));
    let ours = configurations.iter().find(is_ours);
    let text = ours.and_then(|fact| fact["value"].as_str()).unwrap_or_default();
    assert!(text.contains("worker_processes 1;"), "{configurations:?}");
}

#[test]
fn the_procedure_of_the_write_up_runs() {
    let dir = TempDir::new("bench-seed");
    let finished = cold(&dir, &["--seed-000", "--sizes", "100k", "--instant", "--peer", "nginx=none"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    let text = std::fs::read_to_string(dir.path().join("out/report.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("a report is JSON");
    let tables = list(&report["sections"][0]["tables"]);
    let titles: Vec<&str> = tables.iter().filter_map(|table| table["title"].as_str()).collect();
    for part in ["worker_processes 1, 200", "worker_processes 4, 1000", "no memory limit"] {
        assert!(titles.iter().any(|title| title.contains(part)), "{part}: {titles:?}");
    }
}

/// Returns whether this test may limit memory.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn wrong_arguments_cause_one_line_and_create_no_file() {
    for (args, part) in [
        (&["--sizes", "5k"][..], "5k"),
        (&["--memory", "1"], "--memory"),
        (&["--seconds", "0"], "--seconds"),
        // More than the capacity of any disk.
        (&["--memory", "1048576", "--sizes", "1m,4k"], "MiB free"),
    ] {
        let dir = TempDir::new("bench-cold");
        let finished = cold(&dir, args);
        assert_eq!(finished.status.code(), Some(2), "{args:?}: {}", finished.stderr);
        let said = finished.stderr.trim_end();
        assert!(said.starts_with("ringroad bench: ") && said.contains(part), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}
