//! `-s upgrade`: replaces the binary of a running server, and reports whether the new binary serves.
//!
//! ```text
//! -s upgrade --USR2--> old master, which executes the new binary; a failure is reported as that of a reload
//!            <------- the new master has written the pid file: its worker accepts connections
//!            --WINCH, QUIT--> old master: its worker finishes its requests
//! ```
//! The pid files are those of nginx, so either server can be the old or the new one.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::output::print_error;
use super::signal::{MasterProcess, RESULT_TIME};
use crate::pidfile;
use crate::reload_report::{ReportListener, ReportStep, upgrade_failure};

/// Interval between two reads of the pid file.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time between the restored name of the pid file and the report.
const REPORT_TIME: Duration = Duration::from_secs(1);

/// Why the new binary does not serve.
enum Failure {
    /// The old master has reported this reason, or has the pid file again.
    Reported(String),
    /// The old master has exited.
    Exited,
    /// No result until the deadline.
    Late,
}

/// The time of the last change of a file, such as a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangeTime(i64, i64);

/// Returns the time of the last change of the pid file.
pub(super) fn change_time(pid_file: &Path) -> Option<ChangeTime> {
    let found = std::fs::metadata(pid_file).ok()?;
    Some(ChangeTime(found.ctime(), found.ctime_nsec()))
}

/// Waits until the new binary serves, then makes the old master finish its requests and exit. `changed` is the time of the last change of
/// the pid file before the signal. `listener` receives a failure.
pub(super) fn finish(
    old: &MasterProcess,
    (pid_file, changed): (&Path, Option<ChangeTime>),
    listener: Option<ReportListener>,
    until: Instant,
    is_quiet: bool,
) -> ExitCode {
    let failure = match wait(old, (pid_file, changed), listener, until) {
        Ok(new) => {
            // WINCH first: the old worker stops accepting connections immediately, also with shutdown_delay. The order of two pending
            // signals is undefined, so QUIT is sent after the master has received WINCH.
            let _ = old.send(Signal::WINCH);
            MasterProcess::wait_received(old.pid, Signal::WINCH, until);
            let _ = old.send(Signal::QUIT);
            if !is_quiet {
                let old = old.pid;
                print_error(format_args!(
                    "ringroad: upgrade successful: process {new} serves, process {old} finishes its requests and exits\n"
                ));
            }
            return ExitCode::SUCCESS;
        }
        Err(Failure::Reported(reason)) => format!("process {} continues to serve: {reason}", old.pid),
        Err(Failure::Exited) => "the server has exited".to_owned(),
        Err(Failure::Late) => {
            let seconds = RESULT_TIME.as_secs();
            format!("the new binary does not serve within {seconds} seconds; the error log has its messages")
        }
    };
    print_error(format_args!("ringroad: [emerg] upgrade failed: {failure}\n"));
    ExitCode::FAILURE
}

/// Waits until the new master has written the pid file; returns its process ID.
#[expect(clippy::disallowed_methods, reason = "a command line program that waits for another process")]
fn wait(
    old: &MasterProcess,
    (pid_file, changed): (&Path, Option<ChangeTime>),
    mut listener: Option<ReportListener>,
    until: Instant,
) -> Result<Pid, Failure> {
    let read =
        |path: &Path| pidfile::read(path).ok().flatten().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let old_file = pidfile::with_old(pid_file);
    let mut is_begun = false;
    while Instant::now() < until {
        // Both renames may be between two reads.
        is_begun |= read(&old_file) == Some(old.pid) || change_time(pid_file) != changed;
        match read(pid_file) {
            Some(new) if new != old.pid && is_begun => return Ok(new),
            // The old master has restored the name of the pid file. One that is nginx reports nothing else.
            Some(pid) if pid == old.pid && is_begun => {
                let report = listener
                    .map(|mut listener| listener.receive(old.pid, old.ends(), Instant::now() + REPORT_TIME));
                let reason = match report {
                    Some(ReportStep::Packet(packet)) => upgrade_failure(&packet),
                    _ => "the new binary has exited; the error log has the reason".to_owned(),
                };
                return Err(Failure::Reported(reason));
            }
            _ => {}
        }
        match &mut listener {
            Some(reports) => match reports.receive(old.pid, old.ends(), Instant::now() + POLL_INTERVAL) {
                ReportStep::Packet(packet) => return Err(Failure::Reported(upgrade_failure(&packet))),
                ReportStep::Exited => return Err(Failure::Exited),
                ReportStep::Closed => listener = None,
                ReportStep::Late => {}
            },
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
    Err(Failure::Late)
}
