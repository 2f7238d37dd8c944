//! `ringroad bench`: measures I/O engines, this server and its peers, and writes one report.
//!
//! Serving does not need this crate: `ringroad` contains it only with the feature `bench`. Blocking calls are allowed: nothing
//! else runs during a measurement. The report has no script and loads nothing.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `bare`, `tls`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`cli`] | the command line, and the one-line message of a usage error |
//! | [`scenario`] | the measurements, a module for each command of the suite, in one table. A scenario records each round as a measurement with labels; `comparison` starts and measures the servers of a comparison, `measurements` computes tables, plots and findings |
//! | [`load`] | the HTTP load generator, which is also a separate command |
//! | [`peers`], [`context`] | detection, start and stop of the servers and tools that are installed on the machine; the settings of a run |
//! | [`report`], [`method`] | results as data (`report::model::Section`), and the report files: `page` generates HTML and Markdown by templates, `plot` the plots; `write_ups` has the tables of the write-ups, `compare` and `merge` read several runs. `method` has the measurement methods: rounds, medians, pinning, memory limits, CPU time, disturbances |
//! | [`failure`] | errors |
#![forbid(unsafe_code)]
// This is a command-line tool: it prints to standard output.
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

/// Runs the command that the arguments after `ringroad bench` select.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let outcome = match args.first() {
        Some(first) if first == method::enter::COMMAND => method::enter::run(args),
        Some(first) if first == scenario::DISK_WORKER => scenario::disk_worker(&args[1..]),
        Some(first) if first == scenario::ECHO_SERVER => scenario::echo_server(&args[1..]),
        _ => cli::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ringroad bench: {failure}");
            ExitCode::from(failure.status())
        }
    }
}
