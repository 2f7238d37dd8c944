//! The command line of `ringroad bench`: the options that all scenarios share, and the commands from the table of
//! scenarios.
//!
//! A usage error prints one line and exits with status 2. No file is created and no process started before all options
//! are parsed.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Args, Command, FromArgMatches, value_parser};

use crate::context::{Bench, Progress, Scale};
use crate::failure::Failure;
use crate::load;
use crate::method::disturbance::Watch;
use crate::method::workspace::Workspace;
use crate::method::{SERVER_DESCRIPTORS, machine, namespace, raise_descriptors, signals};
use crate::peers::port::Ports;
use crate::peers::tool::{self, Peer};
use crate::report;
use crate::report::model::{FORMAT, Fact, Report, Section};
use crate::scenario::{Prepared, SCENARIOS};

/// The commands that are no scenarios: the load generator, and commands over earlier results.
const LOAD: &str = "load";
const REPORT: &str = "report";
const COMPARE: &str = "compare";
const CLAIMS: &str = "claims";

#[derive(Args, Debug)]
struct ReportOptions {
    /// The JSON files of runs of different scenarios
    #[arg(value_name = "JSON", required = true)]
    files: Vec<PathBuf>,
    /// Directory for the report
    #[arg(long, value_name = "DIR", default_value = report::DIRECTORY)]
    out: PathBuf,
}

/// The options of `all` beside those of every scenario.
#[derive(Args, Debug)]
struct AllOptions {
    /// Only these scenarios, separated by commas
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(SCENARIOS.iter().map(|one| one.name)))]
    only: Vec<String>,
}

#[derive(Args, Debug)]
struct ClaimsOptions {
    /// The report.md of a run, whose verdicts are shown
    #[arg(value_name = "REPORT")]
    report: Option<PathBuf>,
    /// Name of the report in the page [default: its path]
    #[arg(long, value_name = "LINK", requires = "report")]
    link: Option<String>,
}

#[derive(Args, Debug)]
struct CompareOptions {
    /// The JSON file of a run
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The JSON file of another run; ratios are B / A
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

/// Options of every scenario and of `all`.
#[derive(Args, Clone, Debug)]
struct Common {
    /// Run everything in at most five minutes on two processors: a first impression, not a result
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Run every combination of the parameters; takes hours
    #[arg(long)]
    full: bool,
    /// Measure each figure for a fraction of a second: only shows that everything runs
    #[arg(long, hide = true)]
    instant: bool,
    /// Repetitions of each figure [default: 3; 1 with --quick, 5 with --full]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100))]
    repeat: Option<u32>,
    /// Seconds of each measurement [default: by scenario]
    #[arg(long, value_name = "S", value_parser = load::command::between(f64::MIN_POSITIVE, 3600.0, "a number of seconds above 0, at most 3600"))]
    seconds: Option<f64>,
    /// Directory for the files of the run, on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    work: PathBuf,
    /// Do not remove the files of the run
    #[arg(long)]
    keep: bool,
    /// Directory for the report: report.html, report.md and report.json
    #[arg(long, value_name = "DIR", default_value = report::DIRECTORY)]
    out: PathBuf,
    /// Another ringroad program to measure [default: this program]
    #[arg(long, value_name = "PATH", value_parser = tool::parse_program)]
    ringroad: Option<PathBuf>,
    /// Path of a peer that is not in PATH or of another version of it, e.g. nginx=/opt/nginx/sbin/nginx; nginx=none
    /// skips it
    #[arg(long, value_name = "NAME=PATH", value_parser = tool::parse_named)]
    peer: Vec<(Peer, PathBuf)>,
    /// Stay in the host's network namespace even if its congestion control (bbr) paces loopback traffic
    #[arg(long)]
    host_network: bool,
}

/// Parses the arguments and runs the command.
pub(crate) fn run(args: &[OsString]) -> Result<(), Failure> {
    let words = std::iter::once(OsString::from("ringroad bench")).chain(args.iter().cloned());
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => {
            print!("{error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let Some((name, own)) = matches.subcommand() else {
        return Err(Failure::Usage("no command".to_owned()));
    };
    match name {
        LOAD => {
            signals::block();
            load::command::run(own)
        }
        REPORT => {
            // The file is read before anything is written: an invalid file leaves the directory unchanged.
            let ReportOptions { files, out } = ReportOptions::from_arg_matches(own)?;
            let runs = files.iter().map(|file| report::read(file)).collect::<Result<Vec<_>, _>>()?;
            let report = report::combine(runs, |name| SCENARIOS.iter().position(|one| one.name == name))?;
            report::check_directory(&out)?;
            report::write(&report, &out)
        }
        COMPARE => {
            let CompareOptions { a, b } = CompareOptions::from_arg_matches(own)?;
            print!("{}", report::compare::compare(&report::read(&a)?, &report::read(&b)?));
            Ok(())
        }
        CLAIMS => {
            let ClaimsOptions { report, link } = ClaimsOptions::from_arg_matches(own)?;
            let text = report.as_ref().map(|path| read(path)).transpose()?;
            let name = link.or_else(|| Some(report?.display().to_string()));
            print!("{}", report::claims::page(name.as_deref().zip(text.as_deref())));
            Ok(())
        }
        _ => run_scenarios(name, own, args),
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(Failure::file("read", path))
}

/// Measures one scenario, or all of them.
fn run_scenarios(name: &str, own: &ArgMatches, args: &[OsString]) -> Result<(), Failure> {
    let common = Common::from_arg_matches(own)?;
    let prepared = prepare(name, own)?;
    let command = args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    // Blocking signals and entering a namespace must happen before the first thread is started.
    signals::block();
    let entered = namespace::enter(common.host_network)?;
    measure(&common, command, prepared, &entered)
}

/// Builds the clap command with all subcommands and options, for the parser and for the help.
fn command() -> Command {
    // The options set a description of their own, so they come first.
    let all = AllOptions::augment_args(Command::new("all"));
    let all = Common::augment_args(all).about("Every scenario, one after the other");
    let scenarios = SCENARIOS.iter().map(|scenario| {
        let command = (scenario.augment)(Command::new(scenario.name));
        Common::augment_args(command).about(scenario.title).after_help(scenario.question)
    });
    Command::new("ringroad bench")
        .about("Measures I/O engines, this server and its peers on this machine, and writes a report")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(scenarios)
        .subcommand(all)
        .subcommand(
            load::command::LoadOptions::augment_args(Command::new(LOAD))
                .about("Loads a server with HTTP requests"),
        )
        .subcommand(
            ReportOptions::augment_args(Command::new(REPORT))
                .about("Regenerates the report from its JSON file, or combines those of several runs"),
        )
        .subcommand(CompareOptions::augment_args(Command::new(COMPARE)).about("Compares two runs"))
        .subcommand(
            ClaimsOptions::augment_args(Command::new(CLAIMS))
                .about("Prints the claims of the write-ups, and where each is measured"),
        )
}

/// Returns the scenarios that a command runs, with their parsed options.
fn prepare(name: &str, own: &ArgMatches) -> Result<Vec<(&'static str, Prepared)>, Failure> {
    let only = if name == "all" { AllOptions::from_arg_matches(own)?.only } else { vec![name.to_owned()] };
    SCENARIOS
        .iter()
        .filter(|scenario| only.is_empty() || only.iter().any(|one| one == scenario.name))
        .map(|scenario| {
            let bare;
            let matches = if name == "all" {
                // `all` accepts no options of single scenarios: each scenario gets its defaults.
                bare = (scenario.augment)(Command::new(scenario.name)).get_matches_from([scenario.name]);
                &bare
            } else {
                own
            };
            Ok((scenario.name, (scenario.prepare)(matches)?))
        })
        .collect()
}

/// Runs the scenarios in order. The JSON file is written after each scenario, so that an interrupted run or a crash of
/// the machine loses at most the current one.
fn measure(
    common: &Common,
    command: Vec<String>,
    prepared: Vec<(&'static str, Prepared)>,
    network: &namespace::Entered,
) -> Result<(), Failure> {
    report::check_directory(&common.out)?;
    let asked_for = prepared.len();
    let clock = Instant::now();
    let started = jiff::Timestamp::now().to_string();
    let bench = common.bench(prepared.len(), network.is_own)?;
    // Servers inherit the limit.
    raise_descriptors(SERVER_DESCRIPTORS);
    signals::watch(bench.workspace.interruption());
    let mut report = Report { format: FORMAT, started, command, ..Report::default() };
    report.scale = format!("{:?}", bench.scale).to_lowercase();
    report.machine = machine::facts(&common.work, &network.congestion_control);
    let missing;
    (report.peers, missing) = tool::facts(&bench.peer_paths);
    // A user who learns at the end of an hour what is not installed has to measure again.
    if asked_for > 1 {
        missing.iter().for_each(|missing| eprintln!("ringroad bench: {missing}"));
    }
    let mut end = Ok(());
    let share = |name: &str| SCENARIOS.iter().find(|one| one.name == name).map_or(1, |one| one.quick_share);
    let mut shares: u32 = prepared.iter().map(|(name, _)| share(name)).sum();
    let mut expected = Expected::of(common, &bench, prepared.iter().map(|(name, _)| *name));
    let (watch, machine) = (Watch::start(), report.machine.clone());
    for (name, scenario) in prepared {
        expected.announce(&bench, name);
        let begun = Instant::now();
        // A single scenario has no time limit: the user chose what to measure.
        if asked_for > 1 {
            bench.begin_scenario(share(name), shares);
            shares -= share(name);
        }
        match bench.check_interrupted().and_then(|()| scenario(&bench)) {
            Ok(mut section) => {
                section.seconds = begun.elapsed().as_secs_f64();
                report.sections.push(section);
            }
            // A single scenario that fails is reported in one line, without an empty report.
            Err(failure) if asked_for == 1 => return Err(failure),
            Err(Failure::Interrupted) => {
                end = Err(Failure::Interrupted);
                break;
            }
            Err(failure) => {
                eprintln!("ringroad bench: {name}: {failure}");
                report.sections.push(Section::failed(name, &failure));
            }
        }
        bench.progress.advance();
        report.seconds = clock.elapsed().as_secs_f64();
        let loads = Fact::new("load during the run", watch.loads());
        report.machine = machine.iter().cloned().chain([loads]).collect();
        report.incomplete = (report.sections.len() < asked_for)
            .then(|| format!("the run did not finish: {} of {asked_for} scenarios", report.sections.len()));
        report::save(&report, &common.out)?;
    }
    // The files of the measurement are removed before the report is written.
    drop(bench);
    if !report.sections.is_empty() {
        report::write(&report, &common.out)?;
    }
    end?;
    let failed = report.sections.iter().filter(|section| section.failed.is_some());
    let names: Vec<String> = failed.map(|section| section.scenario.clone()).collect();
    if names.is_empty() { Ok(()) } else { Err(Failure::Parts { names, of: report.sections.len() }) }
}

/// How long the remaining scenarios of a run with the default duration of measurements will take.
struct Expected {
    /// Minutes of all remaining scenarios; `None` for a single scenario, and if the options change the durations.
    minutes: Option<u32>,
    repetitions: u32,
}

impl Expected {
    fn of<'a>(common: &Common, bench: &Bench, names: impl ExactSizeIterator<Item = &'a str>) -> Expected {
        let is_known = bench.scale == Scale::Normal && common.seconds.is_none() && names.len() > 1;
        let repetitions = bench.repetitions();
        let minutes = is_known.then(|| names.map(|name| minutes(name, repetitions)).sum());
        Expected { minutes, repetitions }
    }

    /// Shows the user how long the next scenario and the remaining run will take.
    fn announce(&mut self, bench: &Bench, name: &str) {
        let Some(left) = self.minutes else { return };
        let own = minutes(name, self.repetitions);
        bench.progress(format_args!("{name}: about {own} min; the remaining run: about {left} min"));
        self.minutes = Some(left.saturating_sub(own));
    }
}

/// Returns about the minutes of a scenario. A third of the time of three repetitions is that of steps that are not repeated.
fn minutes(name: &str, repetitions: u32) -> u32 {
    let of_three = SCENARIOS.iter().find(|one| one.name == name).map_or(1, |one| one.minutes);
    (of_three * (repetitions * 2 + 3) + 4) / 9
}

impl Common {
    /// Creates the state that all scenarios share: working directory, scale, peers and measurement length.
    fn bench(&self, scenarios: usize, is_own_network: bool) -> Result<Bench, Failure> {
        let scale = match (self.instant, self.quick, self.full) {
            (true, ..) => Scale::Instant,
            (_, true, _) => Scale::Quick,
            (_, _, true) => Scale::Full,
            _ => Scale::Normal,
        };
        // Servers and tools are started in other working directories.
        let work = std::path::absolute(&self.work).map_err(Failure::file("find", &self.work))?;
        let ringroad = match &self.ringroad {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .map_err(Failure::file("find this program at", Path::new("/proc/self/exe")))?,
        };
        Ok(Bench {
            scale,
            progress: Progress::new(scenarios),
            workspace: Workspace::new(&work, self.keep)?,
            ports: Ports::default(),
            is_own_network,
            ringroad,
            peer_paths: self.peer.clone(),
            repetitions: self.repeat,
            seconds: self.seconds,
            deadline: Cell::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_commands_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn paths_of_a_run_are_absolute() {
        // The parent of the root is the root.
        const SHELL: &str = "../../../../../../../../../../../../../../../../bin/sh";
        let peer = format!("nginx={SHELL}");
        let words =
            ["bench", "all", "--work", ".", "--ringroad", SHELL, "--peer", &peer, "--peer", "h2o=none"];
        let matches = command().try_get_matches_from(words).unwrap();
        let common = Common::from_arg_matches(matches.subcommand().unwrap().1).unwrap();
        let bench = common.bench(1, false).unwrap();
        let [(_, nginx), (_, h2o)] = &bench.peer_paths[..] else { panic!("{:?}", bench.peer_paths) };
        assert_eq!(h2o, Path::new(tool::LEFT_OUT));
        for path in [bench.workspace.path.as_path(), bench.ringroad.as_path(), nginx.as_path()] {
            assert!(path.is_absolute(), "{}", path.display());
        }
    }

    #[test]
    fn the_expected_duration_depends_on_the_repetitions() {
        let all = |repetitions| SCENARIOS.iter().map(|one| minutes(one.name, repetitions)).sum::<u32>();
        assert!((55..=75).contains(&all(3)), "{}", all(3));
        assert!(all(2) < all(3) && all(3) < all(5));
    }

    #[test]
    fn wrong_arguments_cause_one_line() {
        for args in [
            &["nothing"][..],
            &["all", "--seconds", "0"],
            &["all", "--repeat", "x"],
            &["compare", "a"],
            &["report", "a", "--quick"],
            &["report"],
            &["all", "--only", "nothing"],
            &["compare", "a", "b", "--host-network"],
            &[],
        ] {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let failure = run(&args).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{args:?}: {failure}");
            assert!(!failure.to_string().contains('\n'), "{args:?}: {failure}");
        }
    }

    /// Runs fake scenarios in a separate directory; returns the outcome and the report, if one was written.
    fn run_made_up(
        name: &str,
        scenarios: Vec<(&'static str, Prepared)>,
    ) -> (Result<(), Failure>, Option<Report>) {
        let directory =
            std::env::temp_dir().join(format!("ringroad-bench-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let text = directory.to_str().unwrap();
        let words = ["bench", "all", "--instant", "--work", text, "--out", &format!("{text}/out")];
        let matches = command().try_get_matches_from(words).unwrap();
        let common = Common::from_arg_matches(matches.subcommand().unwrap().1).unwrap();
        let network = namespace::Entered { congestion_control: "cubic".to_owned(), is_own: false };
        let end = measure(&common, vec!["all".to_owned()], scenarios, &network);
        let report = report::read(&directory.join("out/report.json")).ok();
        let left: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), usize::from(report.is_some()), "left behind: {left:?}");
        std::fs::remove_dir_all(directory).unwrap();
        (end, report)
    }

    fn good(name: &'static str) -> (&'static str, Prepared) {
        (name, Box::new(move |_| Ok(Section { scenario: name.to_owned(), ..Section::default() })))
    }

    fn bad(name: &'static str, failure: fn() -> Failure) -> (&'static str, Prepared) {
        (name, Box::new(move |_| Err(failure())))
    }

    #[test]
    fn a_failed_scenario_does_not_stop_the_others() {
        let broken = || Failure::Other("no such device".to_owned());
        let (end, report) = run_made_up("parts", vec![good("nop"), bad("disk", broken), good("cold")]);
        let failure = end.unwrap_err();
        assert_eq!(failure.status(), 1);
        assert!(failure.to_string().starts_with("1 of 3 scenarios failed (disk)"), "{failure}");
        let report = report.unwrap();
        let failed: Vec<_> = report.sections.iter().map(|section| section.failed.as_deref()).collect();
        assert_eq!(failed, [None, Some("no such device"), None]);
        assert_eq!(report.incomplete, None);
    }

    #[test]
    fn an_interrupted_run_saves_its_results() {
        let (end, report) =
            run_made_up("stop", vec![good("nop"), bad("disk", || Failure::Interrupted), good("cold")]);
        assert_eq!(end.unwrap_err().status(), 2);
        let report = report.unwrap();
        assert_eq!(report.sections.len(), 1);
        assert_eq!(report.incomplete.as_deref(), Some("the run did not finish: 1 of 3 scenarios"));
    }

    #[test]
    fn a_failed_single_scenario_writes_no_report() {
        let (end, report) =
            run_made_up("alone", vec![bad("disk", || Failure::Other("no device".to_owned()))]);
        assert_eq!(end.unwrap_err().status(), 2);
        assert_eq!(report, None);
    }
}
