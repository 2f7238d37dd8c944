//! `ringroad bench cold` for a fraction of a second each: every engine serves files and hits of the proxy cache, the report is
//! complete, wrong use is refused, and no file remains. No test compares measured values.

use serde_json::Value;

use crate::runs::{Bench, assert_claims, assert_refused, list};

#[test]
fn every_main_engine_has_a_row_for_files_and_for_the_cache() {
    let report = Bench::new("bench-cold").report(&["cold", "--sizes", "4k", "--instant", "--repeat", "1"]);
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
    assert_claims(section);
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
    let args = ["cold", "--seed-000", "--sizes", "100k", "--instant", "--peer", "nginx=none"];
    let report = Bench::new("bench-seed").report(&args);
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
    assert_refused(&["cold", "--sizes", "5k"], "5k");
    assert_refused(&["cold", "--memory", "1"], "--memory");
    assert_refused(&["cold", "--seconds", "0"], "--seconds");
    // More than the capacity of any disk.
    assert_refused(&["cold", "--memory", "1048576", "--sizes", "1m,4k"], "MiB free");
}
