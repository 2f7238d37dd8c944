//! `ringroad bench report` and `ringroad bench compare`: commands over earlier results.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::failure::Failure;
use crate::report;

/// Names of the commands, also used in their help texts.
const REPORT: &str = "report";
const COMPARE: &str = "compare";

#[derive(Args, Debug)]
struct Compare {
    /// The JSON file of a run
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The JSON file of another run; ratios are B / A. With --out DIR the page DIR/compare.html is written too
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

#[derive(Args, Debug)]
struct Render {
    /// JSON files of runs. Several are merged into one report; a scenario in a later file replaces the same scenario of
    /// an earlier one
    #[arg(value_name = "JSON", required = true)]
    files: Vec<PathBuf>,
}

/// Returns the commands for the command line.
pub(crate) fn commands() -> [Command; 2] {
    [
        Render::augment_args(
            Command::new(REPORT)
                .about("Regenerates the report from JSON files, and merges several into one report"),
        ),
        Compare::augment_args(Command::new(COMPARE).about("Compares two runs")),
    ]
}

/// Runs one of the commands; returns `None` if the name is not one of them.
pub(crate) fn run(name: &str, own: &ArgMatches, out: &Path) -> Option<Result<(), Failure>> {
    match name {
        REPORT => Some(no_measurement(name, own).and_then(|()| render(own, out))),
        COMPARE => {
            let is_written = own.value_source("out") == Some(ValueSource::CommandLine);
            let out = is_written.then_some(out);
            Some(no_measurement(name, own).and_then(|()| compare(own, out)))
        }
        _ => None,
    }
}

/// Rejects options of measurements: they are accepted everywhere on the command line, but have no meaning here.
fn no_measurement(name: &str, own: &ArgMatches) -> Result<(), Failure> {
    let own_names = ["a", "b", "files", "out"];
    let written = own.ids().map(clap::Id::as_str).filter(|id| !own_names.contains(id));
    // An argument group has an id too, but no value on the command line.
    let is_option =
        |id: &&str| own.try_contains_id(id).is_ok() && !id.starts_with(|first: char| first.is_uppercase());
    match written.filter(is_option).find(|id| own.value_source(id) == Some(ValueSource::CommandLine)) {
        Some(id) => {
            let option = id.replace('_', "-");
            Err(Failure::Usage(format!("--{option} has no effect on {name}: it measures nothing")))
        }
        None => Ok(()),
    }
}

/// Renders reports. All files are read before anything is written: an invalid file leaves the directory unchanged.
fn render(own: &ArgMatches, out: &Path) -> Result<(), Failure> {
    let Render { files } = Render::from_arg_matches(own)?;
    let reports = files.iter().map(|path| report::read(path)).collect::<Result<Vec<_>, _>>()?;
    report::check_directory(out)?;
    let merged = reports.into_iter().reduce(report::merge::merge);
    merged.map_or(Ok(()), |merged| report::write(&merged, out))
}

/// Prints the comparison on the terminal; the page is written only with `--out`.
fn compare(own: &ArgMatches, out: Option<&Path>) -> Result<(), Failure> {
    let Compare { a, b } = Compare::from_arg_matches(own)?;
    let comparison = report::compare::compare(&report::read(&a)?, &report::read(&b)?);
    print!("{}", report::compare::as_text(&comparison));
    let Some(out) = out else { return Ok(()) };
    report::check_directory(out)?;
    let path = out.join("compare.html");
    report::write_file(&path, &report::compare::as_page(&comparison))?;
    println!("{}", path.display());
    Ok(())
}
