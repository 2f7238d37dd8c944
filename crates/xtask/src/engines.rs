//! Determines which I/O engines a test run exercised, and which programs it missed, from the lines that the test suites append to a file.
//!
//! `testkit::engines` defines the lines and the variable that names the file; a test below keeps both sides consistent.
//! [`Report`] summarises the lines as a table of pairs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::workspace;

/// The environment variable that names the file for the suites' report lines.
pub(crate) const REPORT_FILE_VARIABLE: &str = "RINGROAD_ENGINE_REPORT";

/// The environment variable that excuses engines that this machine does not support, and programs that it does not have:
/// `io_uring,chromium`.
pub(crate) const EXCUSED_VARIABLE: &str = "RINGROAD_CI_WITHOUT";

/// The network and disk engines that a run must have exercised to pass the gate.
const NETS: [&str; 2] = ["io_uring", "epoll"];
const DISKS: [&str; 4] = ["io_uring", "libaio", "threads", "sync"];

/// Returns the directory of the report file: build output, so that it is never committed.
pub(crate) fn report_folder() -> PathBuf {
    workspace::root().join("target")
}

/// Returns the path of the report file.
pub(crate) fn report_file() -> PathBuf {
    report_folder().join("engine-report.txt")
}

/// What a test reports, after the name of a program or file that it needs, if it is missing.
const MISSING: &str = " is not installed";

/// Summary of the report lines.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Number of runs of each pair.
    ran: BTreeMap<String, u32>,
    /// Reasons why pairs were skipped, with counts.
    skipped: BTreeMap<(String, String), u32>,
    /// Other reasons why tests could not run, with counts.
    others: BTreeMap<String, u32>,
    /// Lines in an unknown format.
    unreadable: Vec<String>,
}

impl Report {
    /// Parses the lines of the file.
    pub(crate) fn parse(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if let Some(reason) = line.strip_prefix("skipped: ") {
                *report.others.entry(reason.to_owned()).or_default() += 1;
                continue;
            }
            let ran = line.strip_prefix("engines: ran ").and_then(|rest| rest.split_whitespace().next());
            let skipped = line.strip_prefix("engines: skipped ").and_then(|rest| rest.split_once(": "));
            match (ran, skipped) {
                (Some(pair), _) if is_pair(pair) => *report.ran.entry(pair.to_owned()).or_default() += 1,
                (None, Some((pair, reason))) if is_pair(pair) => {
                    *report.skipped.entry((pair.to_owned(), reason.to_owned())).or_default() += 1;
                }
                _ => report.unreadable.push(line.to_owned()),
            }
        }
        report
    }

    /// Formats the table for the terminal.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("engines exercised (network+disk, times):\n");
        for net in NETS {
            for disk in DISKS {
                let pair = format!("{net}+{disk}");
                let times = self.ran.get(&pair).copied().unwrap_or(0);
                let reasons: Vec<String> = self
                    .skipped
                    .iter()
                    .filter(|((skipped, _), _)| *skipped == pair)
                    .map(|((_, reason), times)| format!("skipped {times}x: {reason}"))
                    .collect();
                text.push_str(&format!("  {pair:18} {times:5}  {}\n", reasons.join("; ")));
            }
        }
        match self.others.is_empty() {
            true => text.push_str("no test was skipped for another reason\n"),
            false => text.push_str("skipped for other reasons:\n"),
        }
        for (reason, times) in &self.others {
            text.push_str(&format!("  {times}x {reason}\n"));
        }
        text
    }

    /// Returns the programs that tests needed and did not find.
    fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.others.keys().filter_map(|reason| Some((reason.split_once(MISSING)?.0, reason)));
        names.map(|(path, reason)| (path.rsplit('/').next().unwrap_or(path), reason.as_str()))
    }

    /// Returns the errors of a run: each engine that no suite exercised, and each missing program, unless `excused` names them.
    pub(crate) fn problems(&self, excused: &str) -> Vec<String> {
        let excused: Vec<&str> = excused.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let mut problems: Vec<String> = self
            .unreadable
            .iter()
            .map(|line| format!("unreadable line in the engine report: {line}"))
            .collect();
        let is_known = |name: &str| {
            NETS.contains(&name)
                || DISKS.contains(&name)
                || self.missing().any(|(missing, _)| missing == name)
        };
        for name in excused.iter().filter(|name| !is_known(name)) {
            problems.push(format!(
                "{EXCUSED_VARIABLE} names {name:?}, which is neither an engine nor a program that a test missed"
            ));
        }
        let unexcused = self.missing().filter(|(name, _)| !excused.contains(name));
        problems.extend(unexcused.map(|(name, reason)| {
            format!("a test was skipped: {reason}; on a machine that cannot have it, set {EXCUSED_VARIABLE}={name}")
        }));
        let missing = |role: &str, name: &str| {
            format!(
                "{role} engine {name} was not exercised; on a machine that does not support it, set {EXCUSED_VARIABLE}={name}"
            )
        };
        let ran =
            |side: usize, name: &str| self.ran.keys().any(|pair| pair.split('+').nth(side) == Some(name));
        for (side, role, names) in [(0, "network", &NETS[..]), (1, "disk", &DISKS[..])] {
            let absent = names.iter().filter(|name| !ran(side, name) && !excused.contains(name));
            problems.extend(absent.map(|name| missing(role, name)));
        }
        problems
    }
}

fn is_pair(text: &str) -> bool {
    text.split_once('+').is_some_and(|(net, disk)| NETS.contains(&net) && DISKS.contains(&disk))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "engines: ran io_uring+io_uring\nengines: ran epoll+libaio 12 files\n\
                       engines: ran epoll+threads\nengines: ran epoll+threads\nengines: ran epoll+sync\n";

    #[test]
    fn the_names_match_those_of_the_writer() {
        assert_eq!(NETS, testkit::engines::NETS);
        assert_eq!(DISKS, testkit::engines::DISKS);
        assert_eq!(REPORT_FILE_VARIABLE, testkit::engines::REPORT_FILE_VARIABLE);
    }

    #[test]
    fn a_full_run_has_no_problem() {
        let report = Report::parse(ALL);
        assert_eq!(report.problems(""), Vec::<String>::new());
        assert!(report.table().contains("epoll+threads          2"), "{}", report.table());
    }

    #[test]
    fn a_skipped_engine_is_a_problem_unless_excused() {
        let text = "engines: ran epoll+threads\nengines: ran epoll+sync\nengines: ran epoll+libaio\n\
                    engines: skipped io_uring+io_uring: io_uring_setup: EPERM\n";
        let report = Report::parse(text);
        let problems = report.problems("");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].starts_with("network engine io_uring"), "{problems:?}");
        assert_eq!(report.problems("io_uring"), Vec::<String>::new());
        assert!(report.table().contains("skipped 1x: io_uring_setup: EPERM"));
    }

    #[test]
    fn malformed_lines_are_not_ignored() {
        let other = Report::parse("skipped: no nginx\nskipped: no nginx\n");
        assert!(other.table().ends_with("skipped for other reasons:\n  2x no nginx\n"), "{}", other.table());
        assert!(Report::parse("engines: ran epoll+thread\n").problems("io_uring")[0].contains("unreadable"));
        assert!(Report::parse(ALL).problems("ring")[0].contains("neither an engine nor"));
    }

    #[test]
    fn a_missing_program_is_a_problem_unless_excused() {
        let text = format!(
            "{ALL}skipped: /usr/sbin/nginx is not installed (apt-get install nginx-light)\nskipped: needs root\n"
        );
        let report = Report::parse(&text);
        let problems = report.problems("");
        assert!(problems.len() == 1 && problems[0].ends_with("RINGROAD_CI_WITHOUT=nginx"), "{problems:?}");
        assert_eq!(report.problems("nginx"), Vec::<String>::new());
    }
}
