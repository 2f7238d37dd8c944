//! `cargo xtask test`: the tests of the workspace, their prerequisites, and the engines that they exercised.
//!
//! The command runs `cargo test` and copies its output. At the end it prints the table of engines and one line in
//! cargo's style with the sums over all test programs. [`run_alone`] only prints missing engines. The gate runs the same
//! command by [`run_as_reader`], and fails because of missing engines.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::engines::{self, Report};
use crate::{Failure, workspace};

/// The installation command on common systems.
const COMPILER_HINT: &str =
    "a C compiler with the headers of the C library is needed (to link, and to build PCRE2):
    Debian, Ubuntu   apt-get install gcc libc6-dev
    Fedora           dnf install gcc glibc-devel
    Alpine           apk add gcc musl-dev";

/// The variable with the number of concurrent tests in a test program, which libtest reads.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";

/// The start of the last line of a test program's output.
const CLOSING_LINE: &str = "test result: ";

/// Sums over all test programs. The counts are those of the last line that each test program prints.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    measured: u64,
    filtered: u64,
    /// Whether something failed that is not counted in `failed`: a compilation, or a test program that did not end with a result.
    pub(crate) is_failed: bool,
    /// Total duration in ms.
    pub(crate) millis: u128,
}

/// The result of a run of the tests.
pub(crate) struct Outcome {
    /// Sum of the closing lines of all test programs.
    pub(crate) tally: Tally,
    /// The suites' reports about engines.
    pub(crate) report: Report,
    /// The result of the command itself.
    pub(crate) result: Result<(), Failure>,
}

/// The test command of README.md: its program and arguments. The gate runs it literally.
const README_COMMAND: [&str; 3] = ["cargo", "xtask", "test"];

/// The variables that a reader of README.md is expected to have. `CARGO_HOME` and `RUSTUP_HOME` are set where the toolchain is
/// installed in another directory than the home directory. `.ci/run` sets `CARGO_INCREMENTAL` for a smaller target directory.
const READERS_VARIABLES: [&str; 5] = ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "CARGO_INCREMENTAL"];

/// Runs the tests separately. Engines that this machine lacks are displayed and do not fail the run.
pub(crate) fn run_alone(args: &[&str]) -> Result<(), Failure> {
    check_prerequisites()?;
    let report_file = engines::report_file();
    start_report(&report_file)?;
    let started = Instant::now();
    let mut command = workspace::cargo(&["test", "--workspace", "--no-fail-fast"]);
    command
        .args(workspace::ALL_FEATURES)
        .args(args)
        .env(engines::REPORT_FILE_VARIABLE, &report_file)
        .env(THREADS_VARIABLE, threads());
    let mut tally = Tally::default();
    let result = copy_output(&mut command, |line| tally.add(line))?;
    tally.millis = started.elapsed().as_millis();
    tally.is_failed = result.is_err();
    print!("{}", engines_of_last_run().table());
    println!("{tally}");
    result
}

/// Runs the test command of README.md in the environment of its readers, with additional arguments.
pub(crate) fn run_as_reader(args: &[&str]) -> Result<Outcome, Failure> {
    let [program, readme_args @ ..] = README_COMMAND;
    let mut command = Command::new(program);
    command.args(readme_args).args(args).current_dir(workspace::root()).env_clear();
    command.envs(READERS_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    let started = Instant::now();
    let mut tally = Tally::default();
    // The last closing line has the sums.
    let result = copy_output(&mut command, |line| tally.replace(line))?;
    tally.millis = started.elapsed().as_millis();
    tally.is_failed = result.is_err();
    Ok(Outcome { tally, report: engines_of_last_run(), result })
}

/// Runs a command with its output on the terminal, and passes each line of its standard output to `on_line`.
fn copy_output(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<Result<(), Failure>, Failure> {
    let spawned = command.stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| workspace::not_started(command, error))?;
    // Line by line, so that the output is displayed while the tests run, and the closing lines can be parsed.
    let output = child.stdout.take().expect("standard output was configured as a pipe");
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| workspace::not_started(command, error))?;
        let mut terminal = std::io::stdout().lock();
        // A closed terminal must not end the tests.
        let _ = terminal.write_all(&line).and_then(|()| terminal.write_all(b"\n"));
        on_line(&String::from_utf8_lossy(&line));
    }
    let status = child.wait().map_err(|error| workspace::not_started(command, error))?;
    let failed = || Failure::Command { command: workspace::describe(command), status };
    Ok(if status.success() { Ok(()) } else { Err(failed()) })
}

fn engines_of_last_run() -> Report {
    Report::parse(&std::fs::read_to_string(engines::report_file()).unwrap_or_default())
}

/// Returns the number of concurrent tests if the user has not set one: three per processor, since most tests of a
/// server wait instead of computing.
fn threads() -> OsString {
    std::env::var_os(THREADS_VARIABLE).unwrap_or_else(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (3 * processors).to_string().into()
    })
}

/// Fails with installation instructions if a tool is missing.
///
/// Only the C compiler is needed: the `pcre2` crate contains its library's source and builds it if `pkg-config` does
/// not find an installed one.
pub(crate) fn check_prerequisites() -> Result<(), Failure> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-x", "c", "-fsyntax-only", "-"]).stdin(Stdio::piped());
    let works = command.spawn().and_then(|mut child| {
        if let Some(mut input) = child.stdin.take() {
            input.write_all(b"#include <stdlib.h>\nint main(void) { return 0; }\n")?;
        }
        child.wait()
    });
    if !works.is_ok_and(|status| status.success()) {
        let found = vec![format!("`{compiler}` cannot compile C: {COMPILER_HINT}")];
        return Err(Failure::Problems { task: "the check of prerequisites", found });
    }
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.args(["--exists", "libpcre2-8"]).stderr(Stdio::null());
    let system = pkg_config.status().is_ok_and(|status| status.success());
    println!("PCRE2: {}", if system { "the system's library" } else { "built from the bundled source" });
    Ok(())
}

/// Creates an empty report file, to which the suites append.
fn start_report(file: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(engines::report_folder())
        .and_then(|()| std::fs::write(file, ""))
        .map_err(|error| Failure::File { path: file.to_owned(), error })
}

impl Tally {
    /// Stores the counts of a closing line instead of the present ones; other lines are ignored.
    fn replace(&mut self, line: &str) {
        if line.starts_with(CLOSING_LINE) {
            *self = Tally::default();
            self.add(line);
        }
    }

    /// Adds the closing line of one test program; other lines are ignored.
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix(CLOSING_LINE) else { return };
        let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                "measured" => self.measured += number,
                "filtered out" => self.filtered += number,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { passed, failed, ignored, measured, filtered, is_failed, millis } = self;
        let verdict = if *failed == 0 && !is_failed { "ok" } else { "FAILED" };
        let seconds = Duration::from_millis(*millis as u64).as_secs_f64();
        write!(
            f,
            "test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; {measured} measured; \
             {filtered} filtered out; finished in {seconds:.2}s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_runs_the_test_command_of_the_readme() {
        let readme = workspace::read("README.md").expect("the file is in the repository");
        let tests = readme.split_once("\n## Tests\n").expect("the section about tests").1;
        let commands = tests.split("```").nth(1).expect("its commands");
        assert_eq!(commands.split_ascii_whitespace().skip(1).collect::<Vec<_>>(), README_COMMAND);
    }

    #[test]
    fn sums_of_the_test_command_replace_the_lines_of_its_programs() {
        let mut tally = Tally::default();
        for passed in [2, 5, 7] {
            tally.replace(&format!(
                "test result: ok. {passed} passed; 0 failed; 1 ignored; 0 measured; 0 filtered out"
            ));
            tally.replace("");
        }
        assert_eq!(tally, Tally { passed: 7, ignored: 1, ..Tally::default() });
    }

    #[test]
    fn summary_lines_are_summed() {
        let mut tally = Tally { millis: 1500, ..Tally::default() };
        for line in [
            "running 2 tests",
            "test a ... ok",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.10s",
            "test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            tally.add(line);
        }
        let expected = "test result: FAILED. 7 passed; 1 failed; 1 ignored; 0 measured; 3 filtered out; \
                        finished in 1.50s";
        assert_eq!(tally.to_string(), expected);
        let broken = Tally { is_failed: true, ..Tally::default() }.to_string();
        assert!(broken.starts_with("test result: FAILED. 0 passed; 0 failed;"), "{broken}");
    }
}
