//! A worker that is taken over tries to escape from its sandbox.
//!
//! The worker is the unchanged program. [`testkit::takeover`] lets a thread of the worker execute system calls and operations of its
//! io_uring, as an attacker would who can execute code in the worker. [`attempts`] and [`calls`] list the attempts with the expected
//! result for each mode of the `sandbox` directive; the table in docs/sandbox-escapes.md must be the same. With `sandbox off` the attempts show
//! that they are correct: most of them succeed there.
//!
//! The server runs as root with workers of user nobody, and completely as user nobody. Both need root, because the kernel permits no
//! other user to trace a process that is not dumpable.

mod attempts;
mod calls;
mod target;

use std::fmt::Write;
use std::path::Path;

use attempts::Attempt;
use target::{Starter, Target};

/// Error numbers of a refusal: EPERM, EACCES, and EXDEV, by which Landlock refuses a move between directories with different rights.
const REFUSED: [i32; 3] = [1, 13, 18];

/// All attempts in the order of the documentation.
fn all() -> impl Iterator<Item = &'static Attempt> {
    attempts::FILES.iter().chain(attempts::PROCESSES).chain(attempts::NETWORK).chain(calls::CALLS)
}

/// Result of an attempt with a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Refused,
    Permitted,
}

/// Result of an attempt without a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// It succeeds.
    Succeeds,
    /// The arguments are invalid on purpose, because a valid call would change the machine or end the worker. The kernel has accepted
    /// the call if it reports them.
    Invalid,
    /// The kernel refuses it to an ordinary user.
    Refused,
    /// The result depends on the machine or on the user of the master.
    Varies,
    /// It is not tried, because it would duplicate the worker.
    Untried,
}

/// Returns the failed expectations of one mode.
fn run_all(mode: &str, starter: Starter) -> Option<String> {
    let mut target = match Target::start(mode, starter) {
        Ok(target) => target,
        Err(reason) => {
            testkit::skip(format_args!("no worker can be taken over: {reason}"));
            return None;
        }
    };
    let mut failures = String::new();
    for attempt in all().filter(|attempt| mode != "off" || attempt.without != Without::Untried) {
        let outcome = (attempt.run)(&mut target);
        let is_refused = outcome.is_err_and(|errno| REFUSED.contains(&errno));
        let is_expected = match (mode, attempt.without) {
            ("off", Without::Succeeds) => outcome.is_ok(),
            ("off", Without::Invalid) => outcome.is_err() && !is_refused,
            ("off", Without::Refused) => is_refused,
            ("off", Without::Varies | Without::Untried) => true,
            ("on", _) => is_refused == (attempt.on == Effect::Refused),
            _ => is_refused == (attempt.strict == Effect::Refused),
        };
        if !is_expected {
            let _ = writeln!(failures, "sandbox {mode}, {starter:?}: {}: {outcome:?}", attempt.name);
        }
    }
    target.still_serves();
    Some(failures)
}

fn check(mode: &str) {
    for starter in [Starter::Root, Starter::Nobody] {
        if let Some(failures) = run_all(mode, starter) {
            assert!(failures.is_empty(), "{failures}");
        }
    }
}

#[test]
fn without_a_sandbox_the_attempts_reach_the_kernel() {
    check("off");
}

#[test]
fn sandbox_on_refuses_what_its_documentation_names() {
    check("on");
}

#[test]
fn sandbox_strict_refuses_what_its_documentation_names() {
    check("strict");
}

#[test]
fn the_documentation_has_a_row_for_each_attempt() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sandbox-escapes.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, table) = page.split_once("| attempt | `on` | `strict` |\n|---|---|---|\n").expect("the table");
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let word = |effect| match effect {
        Effect::Refused => "refused",
        Effect::Permitted => "permitted",
    };
    let expected: Vec<String> = all()
        .map(|attempt| format!("| {} | {} | {} |", attempt.name, word(attempt.on), word(attempt.strict)))
        .collect();
    assert_eq!(rows, expected, "\n{}\n", expected.join("\n"));
    assert!(rows.len() >= 30);
}

/// The filter and the bit that forbids new privileges are on every thread, also on those of the pools.
#[test]
fn every_thread_of_a_worker_is_restricted() {
    for mode in ["on", "strict"] {
        let (_target, worker) = match Target::start(mode, Starter::Root) {
            Ok(target) => {
                let worker = target.worker();
                (target, worker)
            }
            Err(reason) => return testkit::skip(format_args!("no worker can be taken over: {reason}")),
        };
        let threads = testkit::process::threads(worker);
        assert!(threads.len() > 1, "{threads:?}");
        for thread in threads {
            let status = std::fs::read_to_string(format!("/proc/{worker}/task/{}/status", thread.tid));
            let status = status.expect("the thread runs");
            for line in
                ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000", "CapPrm:\t0000000000000000"]
            {
                assert!(status.contains(line), "sandbox {mode}: {line}\n{status}");
            }
        }
    }
}
