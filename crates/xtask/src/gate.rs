//! `cargo xtask ci`: all checks that a change must pass, in one command, with the time used against a budget.
//!
//! `.ci/run` installs missing packages and then runs this command; no second list of checks exists. `--tools PROGRAM`
//! first starts a program that installs the tools of the tests; the tests wait until it has ended. All steps run even
//! after a failure, and the failed steps are listed at the end. Exceeded times are printed, but do not fail the gate: a
//! slow machine does not make a change invalid.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Failure, book, engines, fuzz, instructions, licences, loom, suite, tidy, toolchains, workspace};

/// The time budget of a step. The budgets are for 2 cores and an empty target directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Budget {
    /// Steps that compile the workspace.
    BuildAndClippy,
    /// The execution of the tests, and of the further checks at the same time.
    Tests,
    /// Other steps: rustdoc, format, tidy, licences.
    DocsAndTidy,
}

impl Budget {
    const ALL: [Budget; 3] = [Budget::BuildAndClippy, Budget::Tests, Budget::DocsAndTidy];

    fn name(self) -> &'static str {
        match self {
            Budget::BuildAndClippy => "build and clippy",
            Budget::Tests => "tests and further checks",
            Budget::DocsAndTidy => "docs and tidy",
        }
    }

    /// Returns the limit; the sum is the 30 minutes that the complete gate may take.
    fn limit(self) -> Duration {
        let minutes = match self {
            Budget::BuildAndClippy => 12,
            Budget::Tests => 15,
            Budget::DocsAndTidy => 3,
        };
        Duration::from_secs(minutes * 60)
    }
}

/// The steps executed so far.
#[derive(Default)]
struct Gate {
    /// Duration of each step.
    times: Vec<(Budget, Duration)>,
    /// Names of the failed steps.
    failed: Vec<String>,
}

/// A step: its name and its function.
type Step = (&'static str, fn() -> Result<(), Failure>);

/// Steps that compute for minutes. They run in groups at the same time as the tests, because parts of each step use only one
/// processor.
const FURTHER: [&[Step]; 3] = [
    &[("instructions", instructions::check), ("book", book::check), ("fuzz", fuzz::smoke)],
    &[("toolchains", toolchains::check)],
    &[("loom", loom::check)],
];

/// Runs every step. The quick ones are first, so that a formatting error is reported immediately; the tests are last,
/// so that their results are at the end of the output.
pub(crate) fn run(tools: Option<&str>) -> Result<(), Failure> {
    let mut gate = Gate::default();
    let [feature, name] = workspace::ALL_FEATURES;
    // The installation mostly waits for the network, so it runs during the steps before the tests, which compile.
    let tools = tools.map(|program| {
        let mut command = Command::new(program);
        command.current_dir(workspace::root()).stdin(Stdio::null());
        in_background(command)
    });
    // Link-time optimisation uses one processor for minutes. Started here, it also uses the time in which a step waits.
    let is_counted = tools.is_some() || instructions::tool().is_some();
    let counted = is_counted.then(|| in_background(instructions::build()));
    gate.step("prerequisites", Budget::DocsAndTidy, suite::check_prerequisites);
    gate.step("format", Budget::DocsAndTidy, || {
        let product = cargo(&["fmt", "--all", "--check"], &[]);
        let targets = ["fmt", "--check", "--manifest-path", fuzz::MANIFEST];
        // With `--all` it would check the crates of the product again.
        let packages = ["-p", "ringroad-fuzz", "-p", "ringroad-peers", "-p", "ringroad-fuzz-tls"];
        product.and(cargo(&[&targets[..], &packages[..]].concat(), &[]))
    });
    gate.step("tidy", Budget::DocsAndTidy, tidy::check);
    gate.step("licences", Budget::DocsAndTidy, licences::check);
    gate.step("clippy", Budget::BuildAndClippy, || {
        cargo(&["clippy", "--workspace", feature, name, "--all-targets", "--", "-D", "warnings"], &[])
    });
    gate.step("build", Budget::BuildAndClippy, || suite::run_as_reader(&["--no-run"])?.result);
    gate.step("docs", Budget::DocsAndTidy, || {
        // A link from public to private documentation is useful in the source and is rendered here as plain text.
        let flags = "-D warnings -A rustdoc::private-intra-doc-links";
        cargo(&["doc", "--workspace", feature, name, "--no-deps"], &[("RUSTDOCFLAGS", flags)])
    });
    if let Some(counted) = counted {
        gate.step("instructions, build", Budget::BuildAndClippy, || joined(counted));
    }
    if let Some(tools) = tools {
        gate.step("tools", Budget::Tests, || joined(tools));
    }
    let mut tally = suite::Tally::default();
    gate.step("tests and further checks", Budget::Tests, || {
        let further = (0..FURTHER.len()).map(Beside::start).collect::<Result<Vec<_>, _>>()?;
        let tests = tests(&mut tally);
        let results = further.into_iter().map(Beside::finish).chain([tests]);
        let found = results.filter_map(Result::err).map(|failure| failure.to_string());
        Failure::unless_empty("the tests and the further checks", found.collect())
    });
    println!("\n{}", gate.times_against_budget());
    for name in &gate.failed {
        println!("failed: {name}");
    }
    tally.is_failed |= !gate.failed.is_empty();
    println!("{tally}");
    Failure::unless_empty("the gate", gate.failed)
}

/// A command that runs at the same time as the steps.
type Background = JoinHandle<Result<(), Failure>>;

fn in_background(mut command: Command) -> Background {
    std::thread::spawn(move || workspace::run(&mut command))
}

fn joined(background: Background) -> Result<(), Failure> {
    background.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs the tests as a reader of README.md does. They must exercise every engine.
fn tests(tally: &mut suite::Tally) -> Result<(), Failure> {
    let outcome = suite::run_as_reader(&[])?;
    *tally = outcome.tally;
    outcome.result?;
    let excused = std::env::var(engines::EXCUSED_VARIABLE).unwrap_or_default();
    Failure::unless_empty("the check of the engines", outcome.report.problems(&excused))
}

/// Runs only the further checks: all of them, or those of one group.
pub(crate) fn run_further(group: Option<&str>) -> Result<(), Failure> {
    let groups = match group {
        None => &FURTHER[..],
        Some(group) => {
            let found = group.parse::<usize>().ok().and_then(|index| FURTHER.get(index..=index));
            found.ok_or(Failure::Format { what: "the group of further checks", detail: group.to_owned() })?
        }
    };
    let mut gate = Gate::default();
    for &(name, work) in groups.iter().copied().flatten() {
        gate.step(name, Budget::Tests, work);
    }
    Failure::unless_empty("the further checks", gate.failed)
}

/// A process with a group of further checks. It runs at the same time as the tests, with a lower priority.
struct Beside {
    child: Child,
    /// The file of its output, so that it is not mixed with the results of the tests.
    output: PathBuf,
}

impl Beside {
    fn start(group: usize) -> Result<Beside, Failure> {
        let output = workspace::root().join(format!("target/further-checks-{group}.txt"));
        let failed = |error| Failure::File { path: output.clone(), error };
        std::fs::create_dir_all(output.parent().unwrap_or(&output)).map_err(failed)?;
        let file = File::create(&output).map_err(failed)?;
        let stderr = file.try_clone().map_err(failed)?;
        // Not `current_exe`: the build has replaced the executable of this process.
        let program = std::env::args_os().next().unwrap_or_else(|| "xtask".into());
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(program).args(["further", &group.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(file).stderr(stderr).spawn();
        let child = child.map_err(|error| workspace::not_started(&command, error))?;
        Ok(Beside { child, output })
    }

    /// Waits until the checks have ended, and prints their output.
    fn finish(mut self) -> Result<(), Failure> {
        let failed = |error| Failure::File { path: self.output.clone(), error };
        let status = self.child.wait().map_err(failed)?;
        println!("\n== further checks\n{}", std::fs::read_to_string(&self.output).map_err(failed)?);
        if status.success() {
            return Ok(());
        }
        Err(Failure::Command { command: "cargo xtask further".to_owned(), status })
    }
}

impl Gate {
    /// Runs a step; returns whether it succeeded.
    fn step(&mut self, name: &str, budget: Budget, work: impl FnOnce() -> Result<(), Failure>) -> bool {
        println!("\n== {name}");
        let (started, processor) = (Instant::now(), processor_time_of_children());
        let result = work();
        if let Err(failure) = &result {
            println!("{name}: {failure}");
            self.failed.push(name.to_owned());
        }
        let time = started.elapsed();
        let processor = processor_time_of_children().saturating_sub(processor);
        println!("{name}: {} minutes, {} of processor time", minutes(time), minutes(processor));
        self.times.push((budget, time));
        result.is_ok()
    }

    fn times_against_budget(&self) -> String {
        let mut text = String::from("time used on this machine, and the budget for 2 cores:\n");
        for budget in Budget::ALL {
            let used: Duration =
                self.times.iter().filter(|(of, _)| *of == budget).map(|(_, time)| *time).sum();
            let over = if used > budget.limit() { "  OVER BUDGET" } else { "" };
            let (used, limit) = (minutes(used), minutes(budget.limit()));
            text.push_str(&format!("  {:24} {used:>6} of {limit:>5}{over}\n", budget.name()));
        }
        text
    }
}

fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<(), Failure> {
    workspace::run(workspace::cargo(args).envs(env.iter().copied()))
}

/// Returns the processor time of all ended child processes and of their children; zero where `/proc` is missing.
fn processor_time_of_children() -> Duration {
    children_of_stat(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default())
}

/// Sums `cutime` and `cstime`, the 16th and 17th field of `/proc/PID/stat` (proc_pid_stat(5)), in ticks of 10 ms.
fn children_of_stat(stat: &str) -> Duration {
    // The second field, the name of the program, may contain spaces and parentheses.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = after_name.split_ascii_whitespace().skip(13).take(2);
    Duration::from_millis(10 * fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>())
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_remembered_and_the_next_one_runs() {
        let mut gate = Gate::default();
        let mut ran = false;
        gate.step("first", Budget::Tests, || Failure::unless_empty("first", vec!["bad".to_owned()]));
        gate.step("second", Budget::Tests, || {
            ran = true;
            Ok(())
        });
        assert!(ran);
        assert_eq!(gate.failed, ["first"]);
    }

    #[test]
    fn processor_time_of_children_is_read_behind_a_name_with_parentheses() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 900 800 0 0 11 12 250 50 20 0 1 0 5 1000 200";
        assert_eq!(children_of_stat(stat), Duration::from_secs(3));
        assert_eq!(children_of_stat(""), Duration::ZERO);
    }

    #[test]
    fn times_are_summed_by_budget() {
        let seconds = Duration::from_secs;
        let times = vec![
            (Budget::Tests, seconds(840)),
            (Budget::Tests, seconds(65)),
            (Budget::DocsAndTidy, seconds(5)),
        ];
        let text = Gate { times, failed: Vec::new() }.times_against_budget();
        assert!(text.contains("tests and further checks  15:05 of 15:00  OVER BUDGET"), "{text}");
        assert!(text.contains("docs and tidy              0:05 of  3:00\n"), "{text}");
    }
}
