//! The engine scenarios of `ringroad bench`, for a fraction of a second each: they run, the report is complete, wrong
//! use is refused, and no file remains. No test compares measured values.

use std::path::Path;

use serde_json::Value;
use testkit::TempDir;
use testkit::program::{Finished, run};

const BINARY: &str = env!("CARGO_BIN_EXE_ringroad");

/// Runs `ringroad bench` with separate directories for its files and its report; checks that none of its files remains.
fn bench(dir: &TempDir, args: &[&str]) -> Finished {
    let work = dir.path().join("work");
    std::fs::create_dir_all(&work).expect("a directory");
    let (work, out) = (work.display().to_string(), dir.path().join("out").display().to_string());
    let mut words = vec!["bench"];
    words.extend(args);
    words.extend(["--work", &work, "--out", &out]);
    let finished = run(BINARY, &words);
    let left: Vec<_> = std::fs::read_dir(&work).expect("the directory is there").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    finished
}

/// Maximum number of attempts of an instant run.
const INSTANTS_MAX: usize = 5;

/// Like [`bench`] for one scenario that must work; returns its section of the report.
fn section(args: &[&str]) -> Value {
    let dir = TempDir::new("bench");
    let instant = || {
        let finished = bench(&dir, &[args, &["--instant", "--repeat", "1"]].concat());
        assert!(finished.status.success(), "{}", finished.stderr);
        std::fs::read_to_string(dir.path().join("out/report.json")).expect("a report")
    };
    // An instant run may be too short for a busy machine to return any response.
    let is_enough = |report: &String| !report.contains("no response from");
    let text = (1..INSTANTS_MAX).map(|_| instant()).find(is_enough).unwrap_or_else(instant);
    let mut report: Value = serde_json::from_str(&text).expect("a report is JSON");
    report["sections"][0].take()
}

/// Checks that every row has a non-empty cell for each column; returns the titles.
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

/// Checks wrong use: one line that contains `part`, exit status 2, and no report.
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
    assert!(titles[0].starts_with("No-ops by io_uring"), "the write-up's form comes first: {titles:?}");
    let batches: Vec<_> = section["tables"][1]["rows"].as_array().expect("rows").iter().collect();
    assert_eq!(batches.iter().map(|row| &row["name"]).collect::<Vec<_>>(), ["1", "16"]);
    assert_eq!(section["plots"][0]["series"].as_array().map(Vec::len), Some(3));
}

#[test]
fn wrong_arguments_of_nop_cause_one_line() {
    refused(&["nop", "--cpu", "100000"], "--cpu 100000");
    refused(&["nop", "--batch", "0"], "--batch");
    refused(&["nop", "--seconds", "0"], "--seconds");
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
    refused(&["echo", "--sizes", "0"], "--sizes");
    refused(&["echo", "--connections", "x"], "--connections");
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    refused(&["echo", "--instant", "--host-network", "--port", &port], "Address already in use");
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
    refused(&["disk", "--engine", "mmap"], "possible values: sync, threads");
    refused(&["disk", "--depth", "0"], "--depth");
    refused(&["disk", "--bs", "3m"], "--bs");
    refused(&["disk", "--rw", "trim"], "--rw");
    refused(&["disk", "--size", "800000t"], "MiB free");
    refused(&["disk", "--file", "/nowhere/data"], "/nowhere/data");
    refused(&["disk", "--file", "/dev/nvme99n1"], "/dev/nvme99n1");
    refused(&["disk", "--file", "/dev/null"], "neither a file nor a block device");
    refused(&["disk", "--files", "/nowhere"], "/nowhere");
    // An existing file is not written to unless the user requests it, and stays unchanged.
    refused(&["disk", "--file", &file], "--overwrite");
    refused(&["disk", "--file", &file, "--rw", "randread,write"], "--overwrite");
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
