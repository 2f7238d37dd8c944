//! `cargo xtask`: development tasks of the repository: checks, and the gate that runs all checks of a change.
//!
//! Nothing here is part of the product: no other crate depends on this one.
//!
//! Crates of the workspace that it may use: none.
//!
//! | module | content |
//! |---|---|
//! | [`gate`] | all checks, with their times; `.ci/run` calls it |
//! | [`suite`], [`engines`], [`http2`] | the tests; the I/O engines that they exercised; tests repeated over HTTP/2 |
//! | [`tidy`] | shape and text of the sources, by the following modules |
//! | [`shape`], [`ratchet`] | lengths, comments, words and type names; the tolerated exceptions |
//! | [`rules`], [`plain`], [`commits`] | rules for single files; the server without the feature `bench`; commit subjects |
//! | [`layers`], [`roots`] | the dependencies between crates; the documentation at the root of each crate |
//! | [`circles`], [`imports`] | import cycles; the imports between files |
//! | [`metadata`], [`licences`] | packages and their dependencies; their licences, and banned packages |
//! | [`instructions`] | the instruction counts of hot code, compared with the committed counts |
//! | [`pgo`] | the release build, optimised by the profile of a run |
//! | [`aims`] | a report of `ringroad bench`, compared with the aims of the project |
//! | [`configurations`] | nginx configurations of public projects, tested by `ringroad -t` |
//! | [`mod@reference`] | the generated pages of directives and counters |
//! | [`package`] | Debian and RPM packages, and an image for containers |
//! | [`book`] | the documentation as a site |
//! | [`fuzz`], [`loom`], [`toolchains`] | fuzz targets; models of thread synchronisation; the oldest compiler and a target without an operating system |
//! | [`sample`] | random texts of the repository, for a test with readers |
//! | [`workspace`], [`failure`] | files and commands of the repository; errors |
#![forbid(unsafe_code)]
// A command-line tool: the output is its purpose.
#![allow(clippy::print_stdout)]

mod aims;
mod book;
mod circles;
mod commits;
mod configurations;
mod engines;
mod failure;
mod fuzz;
mod gate;
mod http2;
mod imports;
mod instructions;
mod layers;
mod licences;
mod loom;
mod metadata;
mod package;
mod pgo;
mod plain;
mod ratchet;
mod reference;
mod roots;
mod rules;
mod sample;
mod shape;
mod suite;
mod tidy;
mod toolchains;
mod workspace;

use std::process::ExitCode;

use failure::Failure;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  ci [--tools PROGRAM]  every check and the tests: the gate for a change; PROGRAM installs what the tests use, and runs
                        beside the steps before them
  test [ARGS]           cargo test for the workspace, with ARGS; sums up the engines at the end
                        (the heavy tests: cargo xtask test -- --ignored)
  further               instructions, toolchains, loom and fuzz, which `ci` runs beside the tests
  http2                 the tests of responses, proxying and caching with HTTP/2 between client and server
  tidy [--tighten]      shape of the sources; --tighten lowers crates/xtask/ratchet.txt to what is reached
  instructions [--bless]
                        counts the instructions of pure hot code (needs valgrind) and compares with the committed
                        figures; --bless writes these figures
  pgo                   the release build with the profile of a run: target/pgo/ringroad
  package [deb|rpm|image|all] [--pgo | --binary FILE] [--revision N] [--out DIR]
                        the packages of a release: target/package; --pgo makes their program with the profile of a run,
                        --binary takes a program that was built for them
  reproduce [deb|rpm|image|all]
                        makes packages of the last commit twice, in two directories, and compares them; without a kind the
                        Debian packages
  aims REPORT.json      how a run of `ringroad bench` stands against bench/aims.json
  configurations [--repositories DIR] [--program FILE] [--bless]
                        nginx configurations of public projects, tested by `ringroad -t`; without git directories in DIR
                        (OWNER+NAME) they are cloned. --program tests another server, --bless stores the results
  book                  the documentation as a site: target/book/html (needs mdbook)
  licences              licences of all dependencies, and dependencies that are banned
  fuzz --smoke          the fuzz targets for 60 s in all, with a stable compiler
  fuzz [--seconds N] [--seed N] [--target NAME]
                        the same for another time; fuzz/README.md has the runs under libFuzzer
  fuzz --peers [--sessions N] [--seed N]
                        random sessions between this HTTP/2 and the crate h2
  fuzz --tls [--seconds N] [--seed N] [--target NAME]
                        the targets of TLS, which the gate leaves out
  loom                  the models of how threads meet, in every order
  toolchains            the oldest compiler that is promised, ARM, and the pure crates for wasm32
  sample [SEED]         comments, paragraphs, messages and subjects at random, for a test by readers
  reference             writes docs/directives.md and docs/counters.md from the tables
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["ci"] => gate::run(None),
        ["ci", "--tools", program] => gate::run(Some(program)),
        ["test", rest @ ..] => suite::run_alone(rest),
        ["further"] => gate::run_further(None),
        ["further", group] => gate::run_further(Some(group)),
        ["tidy"] => tidy::check(),
        ["tidy", "--tighten"] => tidy::tighten(),
        ["instructions"] => instructions::check(),
        ["instructions", "--bless"] => instructions::bless(),
        ["fuzz", "--smoke"] => fuzz::smoke(),
        ["fuzz", "--peers", rest @ ..] => fuzz::peers(rest),
        ["fuzz", "--tls", rest @ ..] => fuzz::tls(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["loom"] => loom::check(),
        ["toolchains"] => toolchains::check(),
        ["sample"] => sample::print(None),
        ["sample", seed] => sample::print(Some(seed)),
        ["http2"] => http2::run(),
        ["pgo"] => pgo::build(&|_| ()).map(|program| println!("{}", program.display())),
        ["package", rest @ ..] => package::run(rest),
        ["reproduce", rest @ ..] => package::reproduce::run(rest),
        ["aims", report] => aims::compare(report),
        ["configurations", rest @ ..] => configurations::run(rest),
        ["book"] => book::build(),
        ["licences"] => licences::check(),
        ["reference"] => reference::write(),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(Failure::Usage),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage) => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
