//! Checks commit messages: prints the share of messages with a body, and fails for new subjects that are too long.
//!
//! In a shallow clone without the commit [`BASE`], nothing fails.

use crate::workspace;

/// Maximum length of a subject that a log in a terminal shows completely, in characters.
const SUBJECT_CHARS_MAX: usize = 72;

/// Number of checked commits, the newest first.
const COMMITS_MAX: &str = "--max-count=500";

/// The last commit before the rule was introduced: older subjects are not checked.
const BASE: &str = "287c49ae";

/// Returns a line for each subject after [`BASE`] that is too long.
pub(crate) fn check() -> Vec<String> {
    let mut git = std::process::Command::new("git");
    git.args(["log", "--no-merges", "--format=%h %s", &format!("{BASE}..HEAD")])
        .current_dir(workspace::root());
    match git.output() {
        Ok(output) if output.status.success() => too_long(&String::from_utf8_lossy(&output.stdout)),
        _ => Vec::new(),
    }
}

/// Returns the lines of a log (name and subject) whose subject is too long.
fn too_long(log: &str) -> Vec<String> {
    let subject = |line: &str| line.split_once(' ').map_or(0, |(_, subject)| subject.chars().count());
    let problem =
        |line: &str| format!("commit {line}: the subject has more than {SUBJECT_CHARS_MAX} characters");
    log.lines().filter(|line| subject(line) > SUBJECT_CHARS_MAX).map(problem).collect()
}

/// Prints the figure, or why it is missing.
pub(crate) fn print_figure() {
    let mut git = std::process::Command::new("git");
    // Unit and record separators, which do not occur in commit messages.
    git.args(["log", "--no-merges", COMMITS_MAX, "--format=%s%x1f%b%x1e"]).current_dir(workspace::root());
    match git.output() {
        Ok(output) if output.status.success() => {
            println!("commits: {}", figure(&String::from_utf8_lossy(&output.stdout)));
        }
        _ => println!("commits: not checked, because git log failed"),
    }
}

fn figure(log: &str) -> String {
    let (mut count, mut with_body, mut long) = (0_u32, 0_u32, Vec::new());
    for record in log.split('\x1e') {
        let Some((subject, body)) = record.trim_start().split_once('\x1f') else { continue };
        count += 1;
        with_body += u32::from(!body.trim().is_empty());
        if subject.chars().count() > SUBJECT_CHARS_MAX {
            long.push(format!("\n  subject over {SUBJECT_CHARS_MAX} characters: {subject}"));
        }
    }
    let share = 100 * with_body / count.max(1);
    format!("{count} checked, {share} % with a body (wanted: 80 or more){}", long.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_subjects_fail() {
        let subject = |length| format!("abc1234 {}", "\u{e9}".repeat(length));
        assert!(too_long(&subject(72)).is_empty());
        let found = too_long(&format!("{}\n{}\n", subject(72), subject(73)));
        assert!(found.len() == 1 && found[0].starts_with("commit abc1234 "), "{found:?}");
    }

    #[test]
    fn bodies_are_counted_and_long_subjects_named() {
        let long = "x".repeat(73);
        let log = format!("a: b\x1fwhy\n\x1e\nc: d\x1f\x1e\n{long}\x1f\nbody\x1e\n");
        let text = figure(&log);
        assert!(text.starts_with("3 checked, 66 % with a body"), "{text}");
        assert!(text.ends_with(&long), "{text}");
        assert!(figure("").starts_with("0 checked"));
    }
}
