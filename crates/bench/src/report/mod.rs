//! Results as data ([`model`]), and the report files.
//!
//! * [`page`]: a self-contained HTML file, and tables and findings as Markdown; [`plot`]: the plots of both.
//! * [`compare`]: comparison of two reports.
//! * [`claims`]: the claims of the write-ups, as a page of the documentation.
//! * [`write_ups`]: the published figures of the five write-ups, which the report shows before the measured ones.
//! * [`ranking`]: the leading servers and the best settings, for the beginning of the page and the Markdown file.
//! * [`timelines`]: the state of the machine once a second; [`text`]: formatting of figures.

pub(crate) mod claims;
pub(crate) mod compare;
pub(crate) mod model;
mod page;
mod plot;
mod ranking;
pub(crate) mod text;
mod timelines;
pub(crate) mod write_ups;

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::method::workspace::write_whole;
use model::{FORMAT, Plot, Report, Section};

/// Default directory of a report.
pub(crate) const DIRECTORY: &str = "ringroad-bench";

/// Name of the file with all data, from which the other files are generated.
const JSON: &str = "report.json";

/// Directory of the plots below that of the report.
const PLOTS: &str = "plots";

/// Fails if a report could not be written to this directory, before a run of about an hour begins. Leaves no files:
/// a run without results creates no directory.
pub(crate) fn check_directory(directory: &Path) -> Result<(), Failure> {
    let denied = Failure::file("write the report to", directory);
    let absolute = std::path::absolute(directory).map_err(denied)?;
    let there = absolute.ancestors().find(|path| path.exists()).unwrap_or(&absolute);
    if !there.is_dir() {
        return Err(denied(std::io::ErrorKind::NotADirectory.into()));
    }
    // A check of permissions would succeed for root, even on file systems that reject new files, such as /proc.
    let trial = there.join(format!(".ringroad-bench-{}", std::process::id()));
    fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)).map_err(denied)
}

/// Writes the JSON file, so that the results of an interrupted run are available.
pub(crate) fn save(report: &Report, directory: &Path) -> Result<PathBuf, Failure> {
    fs::create_dir_all(directory).map_err(Failure::file("create the directory", directory))?;
    let text = serde_json::to_string_pretty(report).map_err(Failure::other)?;
    let path = directory.join(JSON);
    write_whole(&path, &(text + "\n"))?;
    Ok(path)
}

/// Writes the files of a report into a directory, which is created if necessary, and prints the path of the page.
pub(crate) fn write(report: &Report, directory: &Path) -> Result<(), Failure> {
    save(report, directory)?;
    // Plots are also separate files, for Markdown and a README.
    let plots = directory.join(PLOTS);
    fs::create_dir_all(&plots).map_err(Failure::file("create the directory", &plots))?;
    for (one, drawing) in report.sections.iter().flat_map(|section| page::plots(&section.plots)) {
        write_whole(&directory.join(plot_path(one)), &drawing)?;
    }
    write_whole(&directory.join("report.md"), &page::markdown(report))?;
    let page = directory.join("report.html");
    write_whole(&page, &page::page(report))?;
    println!("{}", page.display());
    Ok(())
}

/// Returns the path of a plot below the report's directory. A plot id from a foreign JSON file cannot name a path
/// outside it.
fn plot_path(plot: &Plot) -> PathBuf {
    let id = plot.id.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' });
    Path::new(PLOTS).join(id.collect::<String>()).with_extension("svg")
}

/// Reads the JSON file of an earlier run.
pub(crate) fn read(path: &Path) -> Result<Report, Failure> {
    /// The format field, which is parsed first.
    #[derive(serde::Deserialize)]
    struct Head {
        format: u32,
    }
    let text = fs::read_to_string(path).map_err(Failure::file("read", path))?;
    let problem = |what: String| Failure::Other(format!("{}: {what}", path.display()));
    // The format is checked first: files of another format may have other fields.
    let head: Head = serde_json::from_str(&text)
        .map_err(|error| problem(format!("not a report of ringroad bench: {error}")))?;
    if head.format != FORMAT {
        return Err(problem(format!(
            "a report of format {}; this program reads format {FORMAT}: measure again",
            head.format
        )));
    }
    serde_json::from_str(&text).map_err(|error| problem(error.to_string()))
}

/// Combines the reports of several runs on one machine into one, with the sections in the order of `place`. Fails if two
/// runs have the same scenario or differ in their scale.
pub(crate) fn combine(runs: Vec<Report>, place: impl Fn(&str) -> Option<usize>) -> Result<Report, Failure> {
    let mut runs = runs.into_iter();
    let Some(mut all) = runs.next() else { return Err(Failure::Usage("no JSON file".to_owned())) };
    for run in runs {
        if run.scale != all.scale {
            let problem = format!("one run is {}, another {}: repeat one of them", all.scale, run.scale);
            return Err(Failure::Other(problem));
        }
        let is_known = |section: &&Section| all.sections.iter().any(|one| one.scenario == section.scenario);
        if let Some(section) = run.sections.iter().find(is_known) {
            return Err(Failure::Other(format!("two runs have the scenario {}", section.scenario)));
        }
        // Facts that differ are shown for each run, such as the load.
        let facts: Vec<_> = run.machine.into_iter().filter(|fact| !all.machine.contains(fact)).collect();
        all.machine.extend(facts);
        all.seconds += run.seconds;
        all.command.push("+".to_owned());
        all.command.extend(run.command);
        all.incomplete = all.incomplete.or(run.incomplete);
        all.sections.extend(run.sections);
    }
    all.sections.sort_by_key(|section| place(&section.scenario));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::model::Fact;
    use super::*;

    #[test]
    fn runs_of_different_scenarios_are_combined() {
        let run = |name: &str, load: &str| Report {
            sections: vec![Section { scenario: name.to_owned(), ..Section::default() }],
            machine: vec![Fact::new("kernel", "6"), Fact::new("load", load)],
            seconds: 2.0,
            ..Report::default()
        };
        let place = |name: &str| ["wire", "http"].iter().position(|one| *one == name);
        let all = combine(vec![run("http", "1"), run("wire", "2")], place).unwrap();
        let names: Vec<&str> = all.sections.iter().map(|section| section.scenario.as_str()).collect();
        assert_eq!((names, all.machine.len(), all.seconds), (vec!["wire", "http"], 3, 4.0));
        assert!(combine(vec![run("http", "1"), run("http", "2")], place).is_err());
        let quick = Report { scale: "quick".to_owned(), ..run("wire", "2") };
        assert!(combine(vec![run("http", "1"), quick], place).is_err());
    }

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ringroad-report-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_saved_report_can_be_read() {
        let directory = directory("again");
        let report = Report { format: FORMAT, scale: "quick".to_owned(), ..Report::default() };
        let path = save(&report, &directory.join("below")).unwrap();
        assert_eq!(read(&path).unwrap(), report);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn invalid_report_files_are_refused_with_one_line() {
        let directory = directory("refused");
        for (text, expected) in [
            (r#"{"format": 1, "new": []}"#, "a report of format 1; this program reads format 2"),
            (r#"{"format": 2}"#, "missing field"),
            ("[1, 2]", "not a report of ringroad bench"),
        ] {
            let path = directory.join("report.json");
            fs::write(&path, text).unwrap();
            let failure = read(&path).unwrap_err().to_string();
            assert!(failure.contains(expected) && !failure.contains('\n'), "{text}: {failure}");
        }
        assert!(read(&directory.join("none.json")).unwrap_err().to_string().contains("No such file"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_refused_before_measuring() {
        let directory = directory("check");
        fs::write(directory.join("file"), "").unwrap();
        check_directory(&directory.join("a/b/c")).unwrap();
        check_directory(Path::new("ringroad-bench")).unwrap();
        assert!(!directory.join("a").exists(), "nothing is made by looking");
        assert!(
            check_directory(&directory.join("file/below"))
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
        fs::remove_dir_all(directory).unwrap();
    }
}
