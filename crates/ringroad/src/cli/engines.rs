//! `ringroad engines [--json]`: which I/O engines this machine offers, and why some are missing.

use std::ffi::OsString;
use std::process::ExitCode;

use io::probe::Probe;

use super::{print, print_error};

/// Probes as the caller, which may have more rights than a worker would have.
pub(super) fn run(args: Vec<OsString>) -> ExitCode {
    let texts: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    match texts.as_slice() {
        [] => {
            let probe = Probe::run();
            print(format!("{}{}\n", probe.to_table(), probe.summary()));
            ExitCode::SUCCESS
        }
        ["--json"] => {
            print(format!("{}\n", Probe::run().to_json()));
            ExitCode::SUCCESS
        }
        _ => {
            print_error("ringroad: usage: ringroad engines [--json]\n");
            ExitCode::FAILURE
        }
    }
}
