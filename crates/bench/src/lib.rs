//! `ringroad bench`: measures I/O engines, this server and its peers, and writes one report.
//!
//! * [`cli`]: the command line, and the one line that wrong use gets.
//! * [`scenario`]: the measurements, a module for each command of the suite, in one table.
//! * [`load`]: the generator of HTTP load, also a command of its own.
//! * [`method`]: how scenarios measure: rounds, medians, pinning, memory limits, processor time, disturbances.
//! * [`peers`]: servers and tools that are found on the machine, started and ended.
//! * [`report`]: results as data, and the files made of them.
//!
//! Nothing here is needed to serve. Calls that block are allowed: a measurement has the machine for itself.
#![forbid(unsafe_code)]
// A command-line tool: standard output is what it is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod context;
mod failure;
mod load;
mod method;
mod peers;
mod report;
mod scenario;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs what the arguments (those behind `ringroad bench`) ask for.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let outcome = match args.first() {
        Some(first) if first == method::enter::COMMAND => method::enter::run(args),
        Some(first) if first == scenario::DISK_WORKER => scenario::disk_worker(&args[1..]),
        Some(first) if first == scenario::ECHO_SERVER => scenario::echo_server(&args[1..]),
        _ => cli::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ringroad bench: {failure}");
            ExitCode::from(failure.status())
        }
    }
}
