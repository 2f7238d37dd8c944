//! The system calls of a job as strace shows them, which is how write-up 002 proves which interface a program uses.
//!
//! A job runs once more under `strace -c`, which slows it down; so this run gives no other figure.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::job::Job;
use super::worker::{self, Task};
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::process::Launch;
use crate::peers::tool::Tool;

/// Calls that are made less often per operation belong to the start of a process.
const PER_OPERATION_MIN: f64 = 0.05;

/// Returns the system calls of a job per operation, the most frequent first: `io_submit 1.00, io_getevents 0.96`.
pub(super) fn calls(bench: &Bench, tool: &Tool, job: &Job) -> Result<String, Failure> {
    let program = std::env::current_exe().map_err(Failure::other)?;
    let counts = bench.workspace.directory("disk-strace")?;
    let launch = |directory: &Path, process: u32| {
        let own = ["-f".into(), "-c".into(), "-o".into(), counts.join(process.to_string()).into()];
        let traced = [program.clone().into_os_string()];
        let arguments = own.into_iter().chain(traced).chain(worker::command(directory, process));
        Launch { arguments: arguments.collect(), ..Launch::new("strace", &tool.path) }
    };
    let run = worker::run_by(bench, &Task::Blocks(job.clone()), launch)?;
    let operations = run.figures.get("operations").copied().unwrap_or_default();
    let mut sum: BTreeMap<String, f64> = BTreeMap::new();
    for process in 0..job.processes() {
        let path = counts.join(process.to_string());
        let text = fs::read_to_string(&path).map_err(Failure::file("read", &path))?;
        parse(&text).for_each(|(name, count)| *sum.entry(name.to_owned()).or_default() += count);
    }
    Ok(words(sum, operations))
}

/// Returns names and numbers of calls of the table that strace prints. A column with the number of errors is empty for
/// most calls.
fn parse(text: &str) -> impl Iterator<Item = (&str, f64)> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let name = *words.last().filter(|name| **name != "total")?;
        // The columns are: % time, seconds, usecs/call, calls, errors, syscall.
        words.first()?.parse::<f64>().ok()?;
        Some((name, words.get(3)?.parse().ok()?))
    })
}

fn words(sum: BTreeMap<String, f64>, operations: f64) -> String {
    let mut each: Vec<(String, f64)> =
        sum.into_iter().map(|(name, count)| (name, count / operations.max(1.0))).collect();
    each.retain(|(_, count)| *count >= PER_OPERATION_MIN);
    each.sort_by(|one, other| other.1.total_cmp(&one.1));
    let words: Vec<String> = each.iter().map(|(name, count)| format!("{name} {count:.2}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_per_operation_are_parsed_from_the_table_of_strace() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n \
                    70.00    0.007000           7      1000           io_submit\n \
                    29.00    0.002900           3       900        12 io_getevents\n  \
                    1.00    0.000100          10        10           mmap\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    100.00    0.010000                  1910        12 total\n";
        let sum = parse(text).map(|(name, count)| (name.to_owned(), count)).collect();
        assert_eq!(words(sum, 1000.0), "io_submit 1.00, io_getevents 0.90");
    }
}
