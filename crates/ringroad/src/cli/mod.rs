//! The command line: nginx's short options, and subcommands of our own.
//!
//! A first argument without a dash is a subcommand (`bench`, `serve`, `check`, `engines`, `stat`, `reference`); everything else is
//! read by `options` exactly as nginx reads it. `bench` is in builds with the feature of that name. Messages start with `ringroad:`; only the version lines keep the
//! word `nginx`, because tools read the version and the modules from them.

mod check;
mod engines;
mod options;
mod run;
mod serve;
mod signal;
mod stat;
mod test;
mod version;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use options::{Options, parse};

use crate::site;

/// Runs what the arguments (without the program's name) ask for.
pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let first = args.first().and_then(|first| first.to_str()).unwrap_or_default();
    let rest = || args.iter().skip(1).cloned().collect::<Vec<_>>();
    match first {
        crate::worker::SUBCOMMAND if args.len() == 1 => crate::worker::run(),
        crate::agent::SUBCOMMAND if args.len() == 1 => crate::agent::run(),
        "serve" => serve::run(rest()),
        #[cfg(feature = "bench")]
        "bench" => bench::run(rest()),
        #[cfg(not(feature = "bench"))]
        "bench" => without_bench(),
        "check" => check::run(rest()),
        "engines" => engines::run(rest()),
        "stat" => stat::run(rest()),
        "reference" => {
            let is_counters = args.get(1).is_some_and(|page| page == "counters");
            print(if is_counters { site::counters() } else { site::reference() });
            ExitCode::SUCCESS
        }
        "--help" => help(),
        "--version" => {
            print_error(version::version_line());
            ExitCode::SUCCESS
        }
        _ => match parse(args) {
            Ok(options) => like_nginx(&options),
            Err(error) => {
                print_error(format_args!("ringroad: {error}\n"));
                ExitCode::FAILURE
            }
        },
    }
}

/// nginx's order: help, then the version, which `-t` may follow, then everything else.
fn like_nginx(options: &Options) -> ExitCode {
    if options.help {
        return help();
    }
    if options.version || options.configure {
        print_error(version::version_line());
        if options.configure {
            print_error(version::configure_line());
        }
        if !options.test {
            return ExitCode::SUCCESS;
        }
    }
    run::run(options)
}

/// What a build without the feature says to `ringroad bench`: how to get one that has it.
#[cfg(not(feature = "bench"))]
fn without_bench() -> ExitCode {
    print_error(
        "ringroad bench: this program is built without it (cargo build --release -p ringroad --features bench)\n",
    );
    ExitCode::from(2)
}

fn help() -> ExitCode {
    print_error(version::version_line());
    print_error(version::usage());
    ExitCode::SUCCESS
}

/// Text for standard output. A reader that went away is no error of ours.
fn print(text: impl AsRef<[u8]>) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_ref()).and_then(|()| out.flush());
}

/// Text for standard error, where nginx writes everything but `-T`.
fn print_error(text: impl std::fmt::Display) {
    let _ = std::io::stderr().lock().write_all(text.to_string().as_bytes());
}
