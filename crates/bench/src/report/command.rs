//! `ringroad bench report` and `ringroad bench compare`: commands over earlier results.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::failure::Failure;
use crate::report;

/// Names of the commands.
const REPORT: &str = "report";
const COMPARE: &str = "compare";

#[derive(Args, Debug)]
struct Compare {
    /// The JSON file of a run
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The JSON file of another run; ratios are B / A
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

#[derive(Args, Debug)]
struct Render {
    /// The JSON file of a run
    #[arg(value_name = "JSON")]
    file: PathBuf,
    /// Directory for the report
    #[arg(long, value_name = "DIR", default_value = report::DIRECTORY)]
    out: PathBuf,
}

/// Returns the commands for the command line.
pub(crate) fn commands() -> [Command; 2] {
    [
        Render::augment_args(Command::new(REPORT).about("Regenerates the report from its JSON file")),
        Compare::augment_args(Command::new(COMPARE).about("Compares two runs")),
    ]
}

/// Runs one of the commands; returns `None` if the name is not one of them.
pub(crate) fn run(name: &str, own: &ArgMatches) -> Option<Result<(), Failure>> {
    match name {
        REPORT => Some(render(own)),
        COMPARE => Some(compare(own)),
        _ => None,
    }
}

/// Renders a report. The file is read before anything is written: an invalid file leaves the directory unchanged.
fn render(own: &ArgMatches) -> Result<(), Failure> {
    let Render { file, out } = Render::from_arg_matches(own)?;
    let report = report::read(&file)?;
    report::check_directory(&out)?;
    report::write(&report, &out)
}

fn compare(own: &ArgMatches) -> Result<(), Failure> {
    let Compare { a, b } = Compare::from_arg_matches(own)?;
    print!("{}", report::compare::compare(&report::read(&a)?, &report::read(&b)?));
    Ok(())
}
