//! Runs of `ringroad bench`, each in a separate directory, in which only its report may remain.

use std::path::PathBuf;

use serde_json::Value;
use testkit::TempDir;
use testkit::process::Pid;
use testkit::program;

use crate::control::BINARY;

/// Runs the command; expects one line, status 2 and no other output.
#[track_caller]
pub(crate) fn refused(args: &[&str]) -> String {
    let finished = program::run(BINARY, args);
    assert_eq!(finished.status.code(), Some(2), "{args:?}: {}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{args:?}: {}", finished.stderr);
    assert_eq!(finished.stdout, "", "{args:?}");
    finished.stderr
}

/// Checks wrong use in a separate directory: one line that contains `part`, exit status 2, and no report.
#[track_caller]
pub(crate) fn assert_refused(args: &[&str], part: &str) {
    let said = Bench::new("bench").refused(args);
    assert!(said.starts_with("ringroad bench: ") && said.contains(part), "{args:?}: {said}");
}

pub(crate) fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

/// Checks that every table has rows, every row a cell for each column, and that the claims of the write-ups have their table
/// and their verdict; returns the titles.
#[track_caller]
pub(crate) fn check_tables(section: &Value) -> Vec<&str> {
    let check = |table: &Value| {
        let (title, columns) = (&table["title"], list(&table["columns"]).len());
        assert!(!list(&table["rows"]).is_empty(), "{title}");
        for row in list(&table["rows"]) {
            assert_eq!(list(&row["cells"]).len(), columns, "{title}: {row}");
        }
    };
    let tables = list(&section["tables"]);
    tables.iter().for_each(check);
    for part in ["tables", "findings", "runs"] {
        assert!(!list(&section[part]).is_empty(), "{part}");
    }
    assert_claims(section);
    tables.iter().map(|table| table["title"].as_str().expect("a title")).collect()
}

/// Checks that the claims of the write-ups which the scenario measures have their table and their verdict.
#[track_caller]
pub(crate) fn assert_claims(section: &Value) {
    let texts = |part: &str, name: &str| -> Vec<&str> {
        list(&section[part]).iter().map(|one| one[name].as_str().expect("a text")).collect()
    };
    let (titles, claims) = (texts("tables", "title"), texts("findings", "claim"));
    for (scenario, table, claim) in claimed_rows() {
        if section["scenario"] == scenario.as_str() {
            assert!(titles.iter().any(|title| title.starts_with(&table)), "{table}: {titles:?}");
            assert!(claims.iter().any(|found| found.starts_with(&claim)), "{claim}: {claims:?}");
        }
    }
}

/// Returns the rows of reports that judge the claims of the write-ups: scenario, start of a title, start of a claim.
fn claimed_rows() -> Vec<(String, String, String)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/src/report/write_ups");
    let files = std::fs::read_dir(directory).expect("the directory of write-ups").flatten();
    let read = |path| std::fs::read_to_string(path).expect("a write-up");
    let mut rows = Vec::new();
    for write_up in files.map(|file| serde_json::from_str::<Value>(&read(file.path())).expect("JSON")) {
        for row in list(&write_up["claims"]).iter().flat_map(|claim| list(&claim["rows"])) {
            rows.push(serde_json::from_value(row.clone()).expect("three texts"));
        }
    }
    assert!(rows.len() >= 19, "{rows:?}");
    rows
}

/// A run in a separate directory.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
}

impl Bench {
    pub(crate) fn new(name: &str) -> Bench {
        let dir = TempDir::new(name);
        std::fs::create_dir(dir.path().join("work")).expect("a directory");
        Bench { dir }
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Returns the command line with this directory.
    pub(crate) fn command_line(&self, args: &[&str]) -> Vec<String> {
        let directories = ["--work".to_owned(), self.work().display().to_string()];
        let out = ["--out".to_owned(), self.dir.path().join("out").display().to_string()];
        let args = args.iter().map(|&arg| arg.to_owned());
        std::iter::once("bench".to_owned()).chain(args).chain(directories).chain(out).collect()
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> program::Finished {
        let words = self.command_line(args);
        let finished = program::run(BINARY, &words.iter().map(String::as_str).collect::<Vec<_>>());
        self.assert_no_process_left(finished.pid);
        finished
    }

    /// Runs the command to success; returns the report.
    #[track_caller]
    pub(crate) fn report(&self, args: &[&str]) -> Value {
        let finished = self.run(args);
        assert_eq!(finished.status.code(), Some(0), "{args:?}: {}", finished.stderr);
        let text = std::fs::read_to_string(self.dir.path().join("out/report.json")).expect("a report");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Like [`refused`]; checks that no file remains.
    #[track_caller]
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let finished = self.run(args);
        assert_eq!(finished.status.code(), Some(2), "{args:?}: {}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{args:?}: {}", finished.stderr);
        assert!(!self.dir.path().join("out/report.json").exists(), "{args:?}");
        finished.stderr
    }

    /// Checks that no file, mount or cgroup of this run remains, and no process whose command line contains the
    /// directory. Remains of other runs, which may have been killed meanwhile, are ignored.
    #[track_caller]
    pub(crate) fn assert_no_process_left(&self, pid: Pid) {
        let files: Vec<_> = std::fs::read_dir(self.work()).expect("the directory").collect();
        assert!(files.is_empty(), "{files:?}");
        assert_eq!(self.processes(), Vec::<String>::new());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        assert!(!mounts.contains(&self.work().display().to_string()), "{mounts}");
        let groups = groups_of(pid);
        assert!(groups.is_empty(), "{groups:?}");
    }

    /// Returns the command lines of programs that were started for this run.
    pub(crate) fn processes(&self) -> Vec<String> {
        let directory = self.work().display().to_string();
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let lines = entries.filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(|line| line.contains(&directory) && !line.contains("--work")).collect()
    }
}

/// Returns the cgroups of a run.
pub(crate) fn groups_of(pid: Pid) -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::from("/sys/fs/cgroup")];
    let controllers =
        std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    directories.extend(controllers);
    let entries =
        directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    let start = format!("ringroad-bench-{pid}-");
    let is_one =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
    entries.map(|entry| entry.path()).filter(is_one).collect()
}

/// A difference means that `cargo xtask reference` has not been run.
#[test]
fn page_of_claims_is_current() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let days = std::fs::read_dir(format!("{root}/bench/results")).expect("stored reports").flatten();
    let last = days.filter_map(|day| day.file_name().into_string().ok()).max().expect("a report");
    let report = format!("bench/results/{last}/report.md");
    let link = format!("../{report}");
    let args = ["bench", "claims", &format!("{root}/{report}"), "--link", &link];
    let generated = program::run(BINARY, &args).stdout;
    assert_eq!(include_str!("../../../../docs/benchmark-claims.md"), generated);
}
