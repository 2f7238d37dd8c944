//! `ringroad bench report` and `ringroad bench compare`: commands over earlier results.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::failure::Failure;
use crate::report;

/// Names of the commands, here and in their help.
const REPORT: &str = "report";
const COMPARE: &str = "compare";

#[derive(Args, Debug)]
struct Compare {
    /// The JSON file of a run
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The JSON file of another one; ratios are B to A. With --out DIR a page is written, too: DIR/compare.html
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

#[derive(Args, Debug)]
struct Render {
    /// JSON files of runs. Of several one report is made; a scenario that a later one has again replaces the earlier
    #[arg(value_name = "JSON", required = true)]
    files: Vec<PathBuf>,
}

/// The commands for the table of commands.
pub(crate) fn commands() -> [Command; 2] {
    [
        Render::augment_args(
            Command::new(REPORT).about("Writes the report of JSON files anew, or of several one"),
        ),
        Compare::augment_args(Command::new(COMPARE).about("Puts two runs side by side")),
    ]
}

/// Does what one of them asks for; none when the name is not theirs.
pub(crate) fn run(name: &str, own: &ArgMatches, out: &Path) -> Option<Result<(), Failure>> {
    match name {
        REPORT => Some(no_measurement(name, own).and_then(|()| render(&options(own)?, out))),
        COMPARE => {
            let is_written = own.value_source("out") == Some(ValueSource::CommandLine);
            let out = is_written.then_some(out);
            Some(no_measurement(name, own).and_then(|()| compare(&options(own)?, out)))
        }
        _ => None,
    }
}

/// The options of a command out of what was parsed.
fn options<O: FromArgMatches>(own: &ArgMatches) -> Result<O, Failure> {
    O::from_arg_matches(own).map_err(|error| crate::failure::usage(&error))
}

/// Options of measurements are known everywhere on the command line, and mean nothing here.
fn no_measurement(name: &str, own: &ArgMatches) -> Result<(), Failure> {
    let own_names = ["a", "b", "files", "out"];
    let written = own.ids().map(clap::Id::as_str).filter(|id| !own_names.contains(id));
    // A group of arguments has an id, too, but nothing was written for it.
    let is_option =
        |id: &&str| own.try_contains_id(id).is_ok() && !id.starts_with(|first: char| first.is_uppercase());
    match written.filter(is_option).find(|id| own.value_source(id) == Some(ValueSource::CommandLine)) {
        Some(id) => {
            let option = id.replace('_', "-");
            Err(Failure::Usage(format!("--{option} means nothing to {name}: nothing is measured")))
        }
        None => Ok(()),
    }
}

/// All files are read before anything is written: a broken one leaves the directory as it is.
fn render(options: &Render, out: &Path) -> Result<(), Failure> {
    let reports = options.files.iter().map(|path| report::read(path)).collect::<Result<Vec<_>, _>>()?;
    report::check_directory(out)?;
    match report::merge::merge(reports) {
        Some(merged) => report::write(&merged, out),
        None => Err(Failure::Usage("no file".to_owned())),
    }
}

/// The text is for a terminal; the page is written only with `--out`.
fn compare(options: &Compare, out: Option<&Path>) -> Result<(), Failure> {
    let (a, b) = (report::read(&options.a)?, report::read(&options.b)?);
    let comparison = report::compare::compare(&a, &b);
    print!("{}", report::compare::as_text(&comparison));
    let Some(out) = out else { return Ok(()) };
    report::check_directory(out)?;
    let path = out.join("compare.html");
    report::write_file(&path, &report::compare::as_page(&comparison))?;
    println!("{}", path.display());
    Ok(())
}
