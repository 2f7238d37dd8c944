//! The engine scenarios of `ringroad bench`, for a fraction of a second each: they run, the report is complete, wrong
//! use is refused, and no file remains. No test compares measured values.

use serde_json::Value;
use testkit::TempDir;

use crate::runs::{Bench, assert_refused, check_tables};

/// Runs one scenario that must work; returns its section of the report.
fn section(args: &[&str]) -> Value {
    let mut report = Bench::new("bench").report(&[args, &["--instant", "--repeat", "1"]].concat());
    report["sections"][0].take()
}

#[test]
fn no_ops_are_measured() {
    let section = section(&["nop", "--batch", "1,16"]);
    let titles = check_tables(&section);
    assert!(titles[0].starts_with("No-ops by io_uring"), "the write-up's form comes first: {titles:?}");
    let batches: Vec<_> = section["tables"][1]["rows"].as_array().expect("rows").iter().collect();
    assert_eq!(batches.iter().map(|row| &row["name"]).collect::<Vec<_>>(), ["1", "16"]);
    assert!(titles[2].starts_with("Set-up flags, one at a time"), "{titles:?}");
    assert_eq!(section["plots"][0]["series"].as_array().map(Vec::len), Some(3));
}

#[test]
fn wrong_arguments_of_nop_cause_one_line() {
    assert_refused(&["nop", "--seconds", "0"], "--seconds");
    assert_refused(&["nop", "--cpu", "100000"], "--cpu 100000");
    assert_refused(&["nop", "--batch", "0"], "--batch");
}

#[test]
fn messages_are_echoed_and_connections_are_accepted() {
    let section = section(&["echo", "--sizes", "1,5000", "--connections", "1,3"]);
    let titles = check_tables(&section);
    assert!(titles[0].starts_with("Messages of 1 bytes"), "the write-up's form comes first: {titles:?}");
    assert!(titles.iter().any(|title| title.starts_with("Connections accepted")), "{titles:?}");
    let runs = section["runs"].as_array().expect("runs");
    // Epoll exists on every machine; if it had echoed other bytes, the run would be absent.
    for (counted, bytes) in [("messages", "1"), ("messages", "5000"), ("connections", "0")] {
        let found = runs.iter().find(|run| {
            let labels = &run["labels"];
            labels["server"] == "epoll" && labels["counted"] == counted && labels["bytes"] == bytes
        });
        let run = found.unwrap_or_else(|| panic!("{counted} of {bytes}: {}", section["tables"]));
        assert!(run["figures"]["requests"].as_f64().is_some_and(|count| count > 0.0), "{run}");
        assert_eq!(run["figures"]["errors"], 0.0, "{run}");
    }
}

#[test]
fn wrong_arguments_of_echo_cause_one_line() {
    assert_refused(&["echo", "--sizes", "0"], "--sizes");
    assert_refused(&["echo", "--connections", "x"], "--connections");
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    assert_refused(&["echo", "--instant", "--host-network", "--port", &port], "Address already in use");
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
    let section = section(&[&args[..], &["--processes", "--size", "4"]].concat());
    let ours = |run: &&Value| run["labels"]["tool"] == "ringroad";
    let runs = section["runs"].as_array().expect("runs");
    assert_eq!(runs.iter().filter(ours).count(), 2);
    assert!(runs.iter().all(|run| run["labels"]["processes"] == "2" && run["labels"]["pattern"] == "rw"));
}

#[test]
fn files_of_a_set_are_opened_read_and_closed() {
    let section = section(&["disk", "--files", "6k", "--size", "1"]);
    let rows = section["tables"][0]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8, "two engines at four depths");
    // Threads work everywhere.
    for run in section["runs"].as_array().expect("runs") {
        let figure = |name: &str| run["figures"][name].as_f64().unwrap_or_default();
        let is_complete = figure("requests") > 0.0 && figure("body_bytes") == figure("requests") * 6144.0;
        assert!(is_complete || run["labels"]["engine"] == "uring", "{run}");
    }
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

#[test]
fn wrong_arguments_of_disk_cause_one_line() {
    let dir = TempDir::new("disk");
    dir.write("data", vec![7u8; 2 << 20]);
    let file = dir.path().join("data").display().to_string();
    assert_refused(&["disk", "--engine", "mmap"], "possible values: sync, threads");
    assert_refused(&["disk", "--depth", "0"], "--depth");
    assert_refused(&["disk", "--bs", "3m"], "--bs");
    assert_refused(&["disk", "--files", "4k", "--depth", "1"], "--depth");
    assert_refused(&["disk", "--rw", "trim"], "--rw");
    assert_refused(&["disk", "--size", "0"], "--size");
    // More than the capacity of any disk.
    assert_refused(&["disk", "--size", "1073741824"], "MiB free");
    assert_refused(&["disk", "--file", "/nowhere/data"], "/nowhere/data");
    assert_refused(&["disk", "--file", "/dev/null"], "neither a file nor a block device");
    // An existing file is not written to unless the user requests it, and stays unchanged.
    assert_refused(&["disk", "--file", &file], "--overwrite");
    assert_refused(&["disk", "--file", &file, "--rw", "randread,write"], "--overwrite");
    assert!(std::fs::read(&file).expect("still there").iter().all(|&byte| byte == 7));
}
