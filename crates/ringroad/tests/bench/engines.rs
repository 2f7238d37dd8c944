//! The engine scenarios of `ringroad bench`, for a fraction of a second each: they run, the report is complete, wrong
//! use is refused, and no file remains. No test compares measured values.

use serde_json::Value;
use testkit::TempDir;

use crate::runs::{Bench, assert_refused, check_tables};

/// Maximum number of attempts of an instant run.
const INSTANTS_MAX: usize = 5;

/// Runs one scenario that must work; returns its section of the report.
fn section(args: &[&str]) -> Value {
    let bench = Bench::new("bench");
    let instant = || bench.report(&[args, &["--instant", "--repeat", "1"]].concat());
    // An instant run may be too short for a busy machine to return any response.
    let is_enough = |report: &Value| !report.to_string().contains("no response from");
    let mut report = (1..INSTANTS_MAX).map(|_| instant()).find(is_enough).unwrap_or_else(instant);
    report["sections"][0].take()
}

#[test]
fn no_ops_are_measured() {
    let section = section(&["nop", "--batch", "1,16"]);
    let titles = check_tables(&section);
    assert!(titles[0].starts_with("No-ops by io_uring"), "the write-up's form comes first: {titles:?}");
    let batches: Vec<_> = section["tables"][1]["rows"].as_array().expect("rows").iter().collect();
    assert_eq!(batches.iter().map(|row| &row["name"]).collect::<Vec<_>>(), ["1", "16"]);
    assert_eq!(section["plots"][0]["series"].as_array().map(Vec::len), Some(3));
}

#[test]
fn wrong_arguments_of_nop_cause_one_line() {
    assert_refused(&["nop", "--cpu", "100000"], "--cpu 100000");
    assert_refused(&["nop", "--batch", "0"], "--batch");
    assert_refused(&["nop", "--seconds", "0"], "--seconds");
}

#[test]
fn every_engine_measures_a_disk() {
    let section = section(&["disk"]);
    let titles = check_tables(&section);
    assert!(titles[0].starts_with("Mixed random reads and writes of 128k"), "{titles:?}");
    let rows = section["tables"][1]["rows"].as_array().expect("rows of engines");
    let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    let engines = ["sync", "threads", "libaio", "uring", "uring-fixed", "uring-sqpoll", "uring-iopoll"];
    assert_eq!(names, engines);
    // Engines that need no special kernel support work everywhere.
    assert!(rows[0]["cells"][1]["figure"].is_object(), "{}", rows[0]);
}

#[test]
fn only_the_described_job_runs() {
    let args = ["disk", "--engine", "sync,uring", "--rw", "rw", "--bs", "64k", "--depth", "4", "--jobs", "2"];
    let section = section(&[&args[..], &["--processes", "--size", "4m"]].concat());
    let ours = |run: &&Value| run["labels"]["tool"] == "ringroad";
    let runs = section["runs"].as_array().expect("runs");
    assert_eq!(runs.iter().filter(ours).count(), 2);
    assert!(runs.iter().all(|run| run["labels"]["processes"] == "2" && run["labels"]["pattern"] == "rw"));
}

#[test]
fn a_set_of_files_is_read() {
    let made = section(&["disk", "--files", "--file-size", "10000"]);
    check_tables(&made);
    let dir = TempDir::new("set");
    dir.write("a/one", "x".repeat(5000));
    dir.write("two", "y".repeat(6000));
    let named = section(&["disk", "--files", &dir.path().display().to_string()]);
    let row = &named["tables"][0]["rows"][3];
    assert_eq!(row["name"], "sync, depth 1");
    assert!(row["cells"][0]["figure"].is_object(), "{row}");
}

#[test]
fn wrong_arguments_of_disk_cause_one_line() {
    let dir = TempDir::new("disk");
    dir.write("data", vec![7u8; 2 << 20]);
    let file = dir.path().join("data").display().to_string();
    assert_refused(&["disk", "--engine", "mmap"], "possible values: sync, threads");
    assert_refused(&["disk", "--depth", "0"], "--depth");
    assert_refused(&["disk", "--bs", "3m"], "--bs");
    assert_refused(&["disk", "--rw", "trim"], "--rw");
    assert_refused(&["disk", "--size", "800000t"], "MiB free");
    assert_refused(&["disk", "--file", "/nowhere/data"], "/nowhere/data");
    assert_refused(&["disk", "--file", "/dev/nvme99n1"], "/dev/nvme99n1");
    assert_refused(&["disk", "--file", "/dev/null"], "neither a file nor a block device");
    assert_refused(&["disk", "--files", "/nowhere"], "/nowhere");
    // An existing file is not written to unless the user requests it, and stays unchanged.
    assert_refused(&["disk", "--file", &file], "--overwrite");
    assert_refused(&["disk", "--file", &file, "--rw", "randread,write"], "--overwrite");
    assert!(std::fs::read(&file).expect("still there").iter().all(|&byte| byte == 7));
}

#[test]
fn a_named_file_is_read_and_not_removed() {
    let dir = TempDir::new("disk");
    dir.write("data", vec![7u8; 2 << 20]);
    let file = dir.path().join("data").display().to_string();
    let args = ["disk", "--file", &file, "--rw", "randread", "--engine", "sync", "--buffered"];
    let section = section(&args);
    assert!(section["tables"][0]["rows"][0]["cells"][1]["figure"].is_object(), "{}", section["tables"]);
    assert_eq!(std::fs::metadata(&file).expect("still there").len(), 2 << 20);
}
