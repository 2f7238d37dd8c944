//! Reports which engine pairs a test run exercised: the protocol between the test suites and `cargo xtask ci`.
//!
//! A passing run on a machine without io_uring proves nothing about io_uring. So each suite reports every pair that it
//! ran with [`report_ran`], and every pair that it had to skip, with the reason, with [`report_skipped`]. A line is
//!
//! ```text
//! engines: ran <net>+<disk>
//! engines: skipped <net>+<disk>: <reason>
//! skipped: <reason>
//! ```
//!
//! where the last form is for a test that could not run for another reason ([`skip`]), `<net>` is one of [`NETS`] and
//! `<disk>` one of [`DISKS`]. The line goes to standard error (which `cargo test` shows for a failed test only). If the
//! environment variable `RINGROAD_ENGINE_REPORT` names a file, the line is appended to that file too. `cargo xtask ci`
//! and `cargo xtask test` set the variable and summarise the file at the end. `cargo xtask ci` fails if an engine was
//! never exercised and `RINGROAD_CI_WITHOUT` does not excuse it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// The environment variable that names the file to which report lines are appended.
pub const REPORT_FILE_VARIABLE: &str = "RINGROAD_ENGINE_REPORT";

/// Names of the network engines in report lines.
pub const NETS: [&str; 2] = ["io_uring", "epoll"];

/// Names of the disk engines in report lines.
pub const DISKS: [&str; 4] = ["io_uring", "libaio", "threads", "sync"];

/// Reports that the calling test transferred bytes with this pair of engines and compared them.
///
/// Call it after the assertions: a pair that failed was not exercised. Panics on an unknown name, so that a typing
/// error is not mistaken for a missing engine.
pub fn report_ran(net: &str, disk: &str) {
    check_names(net, disk);
    report(&format!("engines: ran {net}+{disk}\n"));
}

/// Reports that the calling test could not run this pair on this machine, and why.
///
/// `reason` is for the operator of the machine: "io_uring_setup: EPERM" rather than "unsupported".
pub fn report_skipped(net: &str, disk: &str, reason: &str) {
    check_names(net, disk);
    let reason = reason.replace(['\n', '\r'], " ");
    report(&format!("engines: skipped {net}+{disk}: {reason}\n"));
}

/// Reports that the calling test, or a part of it, could not run on this machine, and why. Otherwise a skipped test
/// would count as passed, because `cargo test` hides the output of a passing test.
pub fn skip(reason: impl std::fmt::Display) {
    report(&format!("skipped: {}\n", reason.to_string().replace(['\n', '\r'], " ")));
}

fn check_names(net: &str, disk: &str) {
    assert!(NETS.contains(&net), "{net:?} is no network engine: {NETS:?}");
    assert!(DISKS.contains(&disk), "{disk:?} is no disk engine: {DISKS:?}");
}

fn report(line: &str) {
    eprint!("{line}");
    if let Some(file) = std::env::var_os(REPORT_FILE_VARIABLE) {
        append(Path::new(&file), line);
    }
}

/// Appends a line by one `write`: with O_APPEND, lines of concurrent tests are not mixed.
fn append(file: &Path, line: &str) {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("engine report {}: {error}", file.display()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempDir;

    #[test]
    fn lines_are_appended() {
        let dir = TempDir::new("engines");
        let file = dir.path().join("report");
        append(&file, "engines: ran epoll+sync\n");
        append(&file, "engines: skipped io_uring+io_uring: EPERM\n");
        let text = std::fs::read_to_string(&file).expect("append made the file");
        assert_eq!(text, "engines: ran epoll+sync\nengines: skipped io_uring+io_uring: EPERM\n");
    }

    #[test]
    #[should_panic(expected = "no disk engine")]
    fn a_misspelt_engine_is_refused() {
        report_ran("epoll", "thread");
    }
}
