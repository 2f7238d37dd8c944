//! `cargo xtask http2`: runs the tests of responses, proxying and caching with HTTP/2 between their clients and the
//! server.
//!
//! The suites are the same ones; the clients of `testkit` connect through its bridge. [`LEFT_OUT`] excludes tests that
//! are about HTTP/1 itself, each with its reason.

use crate::{Failure, workspace};

/// Directory of the suites in the repository.
const SUITES: &str = "crates/ringroad/tests";

/// The list of excluded tests: a name, a tab and a reason per line.
const LEFT_OUT: &str = "crates/ringroad/tests/over-http2.tsv";

/// Excluded suites: those that open connections themselves, that take too long, or that compare log lines with
/// `HTTP/1.1` in them.
const OWN: [&str; 7] = [
    "serve_http2",
    "serve_bytes",
    "serve_local_tls",
    "cache_restart",
    "serve_logs",
    "serve_log_lines",
    "serve_log_targets",
];

/// Runs the suites.
pub(crate) fn run() -> Result<(), Failure> {
    let list = workspace::read(LEFT_OUT)?;
    let mut command = workspace::cargo(&["test", "--package", "ringroad", "--no-fail-fast"]);
    command.args(workspace::ALL_FEATURES).env("RINGROAD_TEST_PROTOCOL", "http2");
    for suite in suites()? {
        command.args(["--test", &suite]);
    }
    command.args(["--", "--exact"]);
    for (name, _) in names(&list) {
        command.args(["--skip", name]);
    }
    workspace::run(&mut command)
}

/// Returns names and reasons.
fn names(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'))
}

fn suites() -> Result<Vec<String>, Failure> {
    let of_responses = |path: &str| {
        let name = path.strip_prefix(SUITES)?.strip_prefix('/')?.strip_suffix(".rs")?;
        let starts = ["serve_", "proxy_", "cache_", "status_", "limits", "resolve"];
        let is_one = starts.iter().any(|start| name.starts_with(start)) && !OWN.contains(&name);
        is_one.then(|| name.to_owned())
    };
    Ok(workspace::files()?.iter().filter_map(|file| of_responses(&file.path)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_exists_and_has_a_reason() {
        let list = workspace::read(LEFT_OUT).expect("the list is in the repository");
        let files = workspace::files().expect("the repository is readable");
        let suites: Vec<&str> = files
            .iter()
            .filter(|file| file.path.starts_with(SUITES) && file.path.ends_with(".rs"))
            .map(|file| file.text.as_str())
            .collect();
        for (name, reason) in names(&list) {
            assert!(!reason.is_empty(), "{name}");
            let heading = format!("fn {name}()");
            assert!(suites.iter().any(|text| text.contains(&heading)), "{name} is no test");
        }
        assert_eq!(names(&list).count(), list.lines().count() - 1, "each line has a name and a reason");
        assert!(super::suites().expect("the repository is readable").len() > 30);
    }
}
