//! The command line of `ringroad bench`: options that every command has, and the table of scenarios.
//!
//! Wrong use gets one line and exit status 2; nothing is made or started before all options are understood.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgMatches, Args, Command, FromArgMatches, value_parser};

use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::method::workspace::Workspace;
use crate::report::model::{FORMAT, Report, Section};
use crate::scenario::{Prepared, SCENARIOS};

/// Options of every scenario, and of `all`.
#[derive(Args, Clone, Debug)]
struct Common {
    /// Everything in at most five minutes on two processors: an impression, no result
    #[arg(long, global = true, conflicts_with = "full")]
    quick: bool,
    /// All that can be varied, in every combination: hours
    #[arg(long, global = true)]
    full: bool,
    /// A fraction of a second for each figure: shows that everything runs
    #[arg(long, global = true, hide = true)]
    instant: bool,
    /// Repetitions of each figure [default: 3; 1 with --quick, 5 with --full]
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(u32).range(1..=100))]
    repeat: Option<u32>,
    /// Seconds of each measurement [default: by scenario]
    #[arg(long, global = true, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// Folder for the files of the run, on the disk that is to be measured
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    work: PathBuf,
    /// Do not remove the files of the run
    #[arg(long, global = true)]
    keep: bool,
    /// Where the report goes: DIR/report.html, .md and .json
    #[arg(long, global = true, value_name = "DIR", default_value = "ringroad-bench")]
    out: PathBuf,
    /// Another build of this program to measure [default: this one]
    #[arg(long, global = true, value_name = "PATH")]
    ringroad: Option<PathBuf>,
    /// A peer that is not in PATH, or another build of it: nginx=/opt/nginx/sbin/nginx (again for each)
    #[arg(long, global = true, value_name = "NAME=PATH", value_parser = peer)]
    peer: Vec<(String, PathBuf)>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("a number of seconds above 0, at most 3600".to_owned()),
    }
}

fn peer(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("NAME=PATH, such as nginx=/opt/nginx/sbin/nginx")?;
    Ok((name.to_owned(), PathBuf::from(path)))
}

/// Reads the arguments and does what they ask for.
pub(crate) fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let words = std::iter::once(OsString::from("ringroad bench")).chain(args.iter().cloned());
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => {
            print!("{error}");
            return Ok(());
        }
        Err(error) => return Err(usage(&error)),
    };
    let Some((name, own)) = matches.subcommand() else {
        return Err(Failure::Usage("no command".to_owned()));
    };
    let common = Common::from_arg_matches(own).map_err(|error| usage(&error))?;
    let prepared = prepare(name, own)?;
    let command = args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    measure(&common, command, prepared)
}

/// One line of what clap says in several.
pub(crate) fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    Failure::Usage(line.trim_start_matches("error: ").to_owned())
}

fn command() -> Command {
    let all = Command::new("all").about("Every scenario, one after the other");
    let scenarios =
        SCENARIOS.iter().map(|scenario| (scenario.augment)(Command::new(scenario.name).about(scenario.help)));
    Common::augment_args(Command::new("ringroad bench"))
        .about("Measures I/O engines, this server and its peers on this machine, and writes a report")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(scenarios)
        .subcommand(all)
}

/// The scenarios that a command means, with their options.
fn prepare(name: &str, own: &ArgMatches) -> Result<Vec<Prepared>, Failure> {
    SCENARIOS
        .iter()
        .filter(|scenario| name == "all" || name == scenario.name)
        .map(|scenario| {
            let bare;
            let matches = if name == "all" {
                // `all` has none of a scenario's own options: each is as it is when it is not written.
                bare = (scenario.augment)(Command::new(scenario.name)).get_matches_from([scenario.name]);
                &bare
            } else {
                own
            };
            (scenario.prepare)(matches)
        })
        .collect()
}

fn measure(common: &Common, command: Vec<String>, prepared: Vec<Prepared>) -> Result<(), Failure> {
    let started = jiff::Timestamp::now();
    let clock = Instant::now();
    let bench = common.bench()?;
    let mut sections: Vec<Section> = Vec::new();
    for scenario in prepared {
        bench.check_interrupted()?;
        sections.push(scenario(&bench)?);
    }
    let report = Report {
        format: FORMAT,
        started: started.to_string(),
        seconds: clock.elapsed().as_secs_f64(),
        command,
        scale: format!("{:?}", bench.scale).to_lowercase(),
        machine: Vec::new(),
        peers: Vec::new(),
        sections,
    };
    crate::report::write(&report, &common.out)
}

impl Common {
    fn bench(&self) -> Result<Bench, Failure> {
        let scale = match (self.instant, self.quick, self.full) {
            (true, ..) => Scale::Instant,
            (_, true, _) => Scale::Quick,
            (_, _, true) => Scale::Full,
            _ => Scale::Normal,
        };
        let ringroad = match &self.ringroad {
            Some(path) => path.clone(),
            None => std::env::current_exe().map_err(|error| Failure::File {
                path: Path::new("/proc/self/exe").to_owned(),
                doing: "find this program at",
                error,
            })?,
        };
        Ok(Bench {
            scale,
            workspace: Workspace::new(&self.work, self.keep)?,
            ringroad,
            peer_paths: self.peer.clone(),
            repetitions: self.repeat,
            seconds: self.seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_commands_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn wrong_use_is_one_line() {
        for args in [&["nothing"][..], &["all", "--seconds", "0"], &["all", "--repeat", "x"], &[]] {
            let failure = run(args.iter().map(OsString::from).collect()).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{args:?}: {failure}");
            assert!(!failure.to_string().contains('\n'), "{args:?}: {failure}");
        }
    }
}
