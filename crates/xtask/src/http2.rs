//! `cargo xtask http2`: runs the tests of responses, proxying and caching with HTTP/2 between their clients and the
//! server.
//!
//! The suites are those of `cargo xtask test`; the clients of `testkit` connect through a bridge that translates to
//! HTTP/2. [`EXCLUDED`] lists tests of HTTP/1 itself, each with its reason.

use crate::{Failure, workspace};

/// The suites with responses, each a directory.
const RESPONSE_SUITES: [&str; 4] = ["serve", "proxy", "cache", "status"];

/// The list of excluded tests: the path of a test in its suite, a tab and a reason per line.
const EXCLUDED: &str = "crates/ringroad/tests/over-http2.tsv";

/// Excluded modules: their tests open connections themselves, take too long, or compare log lines that contain
/// `HTTP/1.1`.
const EXCLUDED_MODULES: [&str; 7] =
    ["bytes::", "local_tls::", "restart::", "room::", "logs::", "log_lines::", "log_targets::"];

/// Runs the suites.
pub(crate) fn run() -> Result<(), Failure> {
    let list = workspace::read(EXCLUDED)?;
    let mut command = workspace::cargo(&["test", "--package", "ringroad", "--no-fail-fast"]);
    command.args(workspace::ALL_FEATURES).env("RINGROAD_TEST_PROTOCOL", "http2");
    for suite in RESPONSE_SUITES {
        command.args(["--test", suite]);
    }
    command.arg("--");
    for name in EXCLUDED_MODULES.into_iter().chain(names(&list).map(|(name, _)| name)) {
        command.args(["--skip", name]);
    }
    workspace::run(&mut command)
}

/// Returns names and reasons.
fn names(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directory of the suites in the repository.
    const SUITES: &str = "crates/ringroad/tests";

    #[test]
    fn excluded_tests_exist_and_have_a_reason() {
        let list = workspace::read(EXCLUDED).expect("the list is in the repository");
        let files = workspace::files().expect("the repository is readable");
        // Module path and text of each file.
        let mut modules: Vec<(String, &str)> = Vec::new();
        for file in &files {
            let path = RESPONSE_SUITES
                .iter()
                .find_map(|suite| file.path.strip_prefix(&format!("{SUITES}/{suite}/")));
            let Some(name) = path.and_then(|path| path.strip_suffix(".rs")) else { continue };
            modules.push((format!("{name}::"), &file.text));
        }
        assert!(modules.len() > 30);
        for module in EXCLUDED_MODULES {
            assert!(modules.iter().any(|(name, _)| name == module), "{module} is no module");
        }
        for (path, reason) in names(&list) {
            assert!(!reason.is_empty(), "{path}");
            // libtest skips each test whose path contains the argument of `--skip`.
            let tests = modules.iter().filter_map(|(module, text)| {
                let name = path.strip_prefix(module.as_str())?;
                Some(text.matches(&format!("fn {name}")).count())
            });
            let count: usize = tests.sum();
            assert_eq!(count, 1, "{path} is not exactly one test");
        }
        assert_eq!(names(&list).count(), list.lines().count() - 1, "each line has a name and a reason");
    }
}
