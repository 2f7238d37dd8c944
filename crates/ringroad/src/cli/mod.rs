//! The command line: nginx's single-letter options, and the commands that nginx does not have.
//!
//! A first argument without a dash is a command of the table in `options`; `letters` parses everything else exactly as
//! nginx does. Only builds with the feature `bench` have the command `bench`. A usage error of a command exits with
//! status 2, an unknown letter with 1 as in nginx. Messages start with `ringroad:`; only the lines of `-v` and `-V`
//! contain the word `nginx`, because tools parse the version and the modules from them.

mod call;
mod check;
mod completions;
mod diff;
mod drain;
mod engines;
mod explain;
mod failure;
mod fetch;
mod fmt;
mod health;
mod help;
mod letters;
mod lint;
mod log;
mod man;
mod options;
mod output;
mod request;
mod run;
mod serve;
mod signal;
mod stat;
mod test;
mod top;
mod trial;
mod trust;
mod upgrade;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use failure::MISUSED;
use letters::{OptionError, Options, parse};
use options::{Arguments, COMMANDS, Command, Misuse};
use output::{print, print_error};

use crate::adapter;

/// Usual command names of other programs, with the equivalent command lines of this program.
const EQUIVALENTS: [(&str, &str); 10] = [
    ("start", "ringroad"),
    ("run", "ringroad"),
    ("stop", "ringroad -s stop"),
    ("quit", "ringroad -s quit"),
    ("reload", "ringroad -s reload"),
    ("restart", "ringroad -s reload"),
    ("reopen", "ringroad -s reopen"),
    ("upgrade", "ringroad -s upgrade"),
    ("test", "ringroad -t"),
    ("version", "ringroad --version"),
];

/// Runs the command of the arguments (without the program name).
pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let first = args.first().and_then(|first| first.to_str()).unwrap_or_default();
    match first {
        crate::worker::SUBCOMMAND if args.len() == 1 => crate::worker::run(),
        crate::agent::SUBCOMMAND if args.len() == 1 => crate::agent::run(),
        crate::signer::SUBCOMMAND if args.len() == 1 => crate::signer::run(),
        "--help" => help(&Arguments::default()),
        "--version" => {
            print(version::long());
            ExitCode::SUCCESS
        }
        #[cfg(feature = "bench")]
        "bench" => bench::run(args.into_iter().skip(1).collect()),
        _ if first.is_empty() || first.starts_with('-') => letters(args),
        _ => match options::find(first) {
            Some(command) => command_of_table(command, args.into_iter().skip(1).collect()),
            None => unknown_command(first),
        },
    }
}

/// Runs with nginx's options.
fn letters(args: Vec<OsString>) -> ExitCode {
    match parse(args) {
        Ok(options) => like_nginx(&options),
        Err(error) => {
            print_error(format_args!("ringroad: {error}\n"));
            let is_ours = matches!(error, OptionError::Long(_));
            if is_ours { ExitCode::from(MISUSED) } else { ExitCode::FAILURE }
        }
    }
}

/// Runs a command of the table with its arguments.
fn command_of_table(command: &'static Command, args: Vec<OsString>) -> ExitCode {
    let read = options::read(command, args).and_then(|mut given| {
        // Whether the word after `--tls` is a list of names or the directory is only known after all arguments are
        // parsed.
        if !command.operands.is_empty() {
            given.value_as_operand("tls");
        }
        options::check_operands(command, &given).map(|()| given)
    });
    let given = match read {
        Ok(given) => given,
        Err(Misuse::Help) => {
            print(help::help_text(command));
            return ExitCode::SUCCESS;
        }
        Err(misuse) => return misused(command, &misuse),
    };
    match command.name {
        "serve" | "proxy" => serve::run(&given),
        "check" => check::run(&given),
        "explain" => explain::run(&given),
        "fmt" => fmt::run(&given),
        "lint" => lint::run(&given),
        "engines" => engines::run(&given),
        "stat" => stat::run(&given),
        "health" => health::run(&given),
        "trust" => trust::run(&given),
        "log" => log::run(&given),
        "top" => top::run(&given),
        "drain" => drain::run(&given, true),
        "undrain" => drain::run(&given, false),
        "bench" => without_bench(),
        "reference" => reference(command, &given),
        "completions" => match given.operands[0].to_str().and_then(completions::script) {
            Some(script) => {
                print(script);
                ExitCode::SUCCESS
            }
            None => misused(command, &Misuse::Shell(given.operands[0].to_string_lossy().into_owned())),
        },
        _ => help(&given),
    }
}

/// Prints the reference tables.
fn reference(command: &'static Command, given: &Arguments) -> ExitCode {
    match given.operands.first().map(|page| page.to_string_lossy()).as_deref() {
        None => print(adapter::reference()),
        Some("counters") => print(adapter::counters()),
        Some("lint") => print(::lint::page()),
        Some("json") => print(directives_as_json()),
        Some(other) => return misused(command, &Misuse::TooMany(other.to_owned())),
    }
    ExitCode::SUCCESS
}

/// Returns the directives as a JSON array, for editors.
fn directives_as_json() -> String {
    let entry = |entry: adapter::DirectiveEntry| {
        let contexts: Vec<&str> = entry.contexts.split(", ").collect();
        serde_json::json!({
            "name": entry.name,
            "module": entry.module,
            "contexts": contexts,
            "syntax": entry.syntax,
            "default": entry.default,
            "effect": entry.effect,
            "has_effect": entry.has_effect,
            "examples": entry.examples,
            "nginx": entry.nginx,
        })
    };
    let rows: Vec<_> = adapter::directive_entries().map(entry).collect();
    format!("{:#}\n", serde_json::Value::Array(rows))
}

/// Reports a usage error of a command, and its usage.
fn misused(command: &'static Command, misuse: &Misuse) -> ExitCode {
    let (name, usage) = (command.name, help::synopsis(command));
    print_error(format_args!("ringroad {name}: {misuse}\n{usage}\n"));
    ExitCode::from(MISUSED)
}

/// Suggests the command that was probably meant.
fn unknown_command(name: &str) -> ExitCode {
    let elsewhere = EQUIVALENTS.iter().find(|(word, _)| *word == name).map(|(_, instead)| *instead);
    let known = COMMANDS.iter().map(|command| command.name);
    let path = std::path::Path::new(name);
    let hint = match elsewhere {
        Some(instead) => format!("write \"{instead}\""),
        None if path.is_dir() => format!("\"ringroad serve {name}\" serves a directory"),
        None if path.is_file() => {
            format!(
                "\"ringroad check {name}\" checks a configuration, and \"ringroad -c\" with the absolute path of the file starts a server"
            )
        }
        None => match conf::similar(name, known) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => "\"ringroad -h\" lists the commands".to_owned(),
        },
    };
    print_error(format_args!("ringroad: unknown command \"{name}\"; {hint}\n"));
    ExitCode::from(MISUSED)
}

/// Handles nginx's options in nginx's order: help, then the version, which `-t` may follow, then the other options.
fn like_nginx(options: &Options) -> ExitCode {
    if options.help {
        // On standard error, as in nginx.
        print_error(help::usage());
        return ExitCode::SUCCESS;
    }
    if options.version || options.configure {
        print_error(version::version_line());
        if options.configure {
            print_error(version::tls_lines());
            print_error(version::configure_line());
        }
        if !options.test {
            return ExitCode::SUCCESS;
        }
    }
    run::run(options)
}

/// Prints how to build a program with `ringroad bench`.
fn without_bench() -> ExitCode {
    print_error(
        "ringroad bench: this program was built without the feature bench (cargo build --release -p ringroad --features bench)\n",
    );
    ExitCode::from(MISUSED)
}

/// Suggests the command or the directive that was probably meant.
fn unknown_topic(name: &str) -> ExitCode {
    let known = COMMANDS.iter().map(|command| command.name).chain(adapter::directive_names());
    let hint = match conf::similar(name, known) {
        Some(meant) => format!("did you mean \"{meant}\"?"),
        None => "\"ringroad -h\" lists the commands, \"ringroad reference\" the directives".to_owned(),
    };
    print_error(format_args!("ringroad help: \"{name}\" is neither a command nor a directive; {hint}\n"));
    ExitCode::from(MISUSED)
}

/// Handles `help`, with or without the name of a command or a directive, and `--help`.
fn help(given: &Arguments) -> ExitCode {
    let page = match given.operands.first().map(|name| name.to_string_lossy()).as_deref() {
        None => help::usage(),
        Some("man") => man::page(),
        Some(name) => match options::find(name) {
            Some(command) => help::help_text(command),
            None => match adapter::directive_help(name) {
                Some(text) => text,
                None => return unknown_topic(name),
            },
        },
    };
    print(page);
    ExitCode::SUCCESS
}
