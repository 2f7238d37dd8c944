//! One measurement: a server under its limits, the page cache dropped, random files asked for, and what that took.

use std::collections::BTreeMap;
use std::time::Duration;

use super::data::{Caches, Files, Size};
use super::ways::{LIMIT, Maker, Setting, Source, Way};
use super::{CONNECTIONS, limit};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Bottleneck, Length, Plan, Target};
use crate::method::cgroup::{Group, Limits};
use crate::method::disturbance::Watch;
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::{Recorder, device_of};
use crate::method::{page_cache, pin, rounds};
use crate::peers::server::{Conditions, Program, Server};
use crate::report::model::{Run, Timeline};

/// Length of one measurement: two full seconds of the table of the machine, and some.
const LENGTH: Duration = Duration::from_millis(2100);
/// The same where workers or connections are varied: there are many of these, and none has a plot over time.
const LENGTH_VARIED: Duration = Duration::from_millis(1200);

/// The share of errors above which rates say nothing.
const ERROR_SHARE_MAX: f64 = 0.001;

/// What is compared in one table: all but the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Where the bytes come from: files, or a cache.
    pub(super) source: Source,
    /// Of which set.
    pub(super) size: Size,
    /// Processes or threads of the server.
    pub(super) workers: usize,
    /// Of the generator, which keeps them.
    pub(super) connections: u32,
    /// Memory of the server and its page cache together; none for all that the machine has.
    pub(super) memory_bytes: Option<u64>,
}

/// What one measurement came to.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Complete answers, all of them right: others are errors.
    pub(super) answers_per_second: f64,
    /// Of bodies, in megabytes (10^6).
    pub(super) megabytes_per_second: f64,
    /// From when a request was written until its answer was complete.
    pub(super) p50_ms: f64,
    /// 99 of 100 answers took no longer.
    pub(super) p99_ms: f64,
    /// 999 of 1000 did not.
    pub(super) p999_ms: f64,
    /// The server's, for each answer.
    pub(super) cpu_us: f64,
    /// The disk's, for each byte that was sent: 1 when nothing came from memory.
    pub(super) read_share: f64,
    /// Few enough: with many there is no measurement.
    pub(super) errors: u64,
    /// Whether the generator kept the server from being faster.
    pub(super) is_generator_bound: bool,
    /// What else the machine did meanwhile, where that was much.
    pub(super) disturbed: Option<String>,
    /// The machine once a second.
    pub(super) timeline: Timeline,
    /// The server's configuration.
    pub(super) configuration: String,
}

/// A way with its program.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// What is compared.
    pub(super) way: &'static Way,
    /// What runs it: for nginx, the build that was found.
    pub(super) program: Program,
}

/// All measurements of a case: by subject, then by round. A server that failed has its reason.
pub(super) struct Outcome {
    /// What was measured.
    pub(super) case: Case,
    /// In the order of the table of ways.
    pub(super) by_way: Vec<(&'static Way, Vec<Result<Measured, String>>)>,
}

/// Measures the subjects in turns.
pub(super) fn measure(
    bench: &Bench,
    files: &Files,
    caches: Option<&Caches>,
    subjects: &[&Subject],
    case: Case,
) -> Result<Outcome, Failure> {
    bench.progress(format_args!(
        "cold: {} of {} from {}, {} workers, {} connections{}",
        subjects.len(),
        case.size,
        case.source.words(),
        case.workers,
        case.connections,
        if case.memory_bytes.is_some() { "" } else { ", no memory limit" }
    ));
    let servers = subjects.iter().map(|&subject| Turn::Server(subject));
    let mut turns: Vec<Turn<'_>> =
        limit::is_measured_in(case).then_some(Turn::Limit).into_iter().chain(servers).collect();
    let measured = rounds::in_turns(bench, &mut turns, |turn, round| {
        let outcome = match turn {
            Turn::Limit => limit::measure(bench, files, case, case.length(bench)),
            Turn::Server(subject) => one(bench, files, caches, subject, case, round),
        };
        match outcome {
            Err(Failure::Interrupted) => Err(Failure::Interrupted),
            outcome => Ok(outcome.map_err(|failure| failure.to_string())),
        }
    })?;
    let way = |turn: &Turn<'_>| match turn {
        Turn::Limit => &LIMIT,
        Turn::Server(subject) => subject.way,
    };
    let by_way = turns.iter().map(way).zip(measured).collect();
    Ok(Outcome { case, by_way })
}

/// Whose turn it is. The limit is measured in each round too, so that a disk that drifts does not make it look near or
/// far.
enum Turn<'a> {
    Limit,
    Server(&'a Subject),
}

/// One measurement: a server of its own in a group of its own, with a dropped page cache.
fn one(
    bench: &Bench,
    files: &Files,
    caches: Option<&Caches>,
    subject: &Subject,
    case: Case,
    round: u32,
) -> Result<Measured, Failure> {
    // With more workers than processors to spare nobody is pinned: the generator and the server share all.
    let split = pin::Split::of(&pin::available(), case.workers);
    let cpus = split.is_apart.then(|| split.server.clone());
    // A group is removed when it is dropped, and by then its processes have to be gone: so it comes before the server.
    let group = if bench.is_root() {
        Some(Group::new(&Limits { memory_bytes: case.memory_bytes, cpus, ..Limits::default() })?)
    } else {
        None
    };
    let conditions = Conditions {
        cpus: split.server.clone(),
        groups: group.as_ref().map(|group| group.folders().to_vec()).unwrap_or_default(),
        ..Conditions::default()
    };
    let mut server = start(bench, files, caches, subject, case, &conditions)?;
    // After the start, so that what the server itself reads then (its program, an index) does not stay in memory for
    // some of them and not for others.
    if bench.is_root() {
        page_cache::drop_all()?;
    }
    let url = server.url(&format!("/{}/{{0-{}}}", case.size, files.count(case.size) - 1));
    let mut plan = Plan::new(vec![Target::parse(&url)?]);
    plan.connections = case.connections;
    plan.cpus = if split.is_apart { split.load } else { Vec::new() };
    // What is asked for first is what nobody has asked for: there is nothing to warm up.
    plan.warm_up = Duration::ZERO;
    plan.length = Length::Time(case.length(bench));
    plan.expect.status = Some(200);
    plan.expect.length = Some(case.size.bytes());
    // Other names in each round, the same ones for each server.
    plan.seed = u64::from(round) + 1;
    plan.stop = bench.workspace.interruption();
    let measured = load(bench, &mut server, &plan);
    server.end();
    measured
}

/// Starts the server of a subject as the case has it.
fn start(
    bench: &Bench,
    files: &Files,
    caches: Option<&Caches>,
    subject: &Subject,
    case: Case,
    conditions: &Conditions,
) -> Result<Server, Failure> {
    let cache = match (case.source, caches) {
        (Source::Cache, Some(caches)) if !subject.way.is_plain => {
            Some(caches.of(subject.way.maker, case.size))
        }
        _ => None,
    };
    let setting = Setting {
        size: case.size,
        workers: case.workers,
        files: &files.root,
        cache: cache.as_ref().map(|(folder, port)| (folder.as_path(), *port)),
    };
    Server::start(bench, subject.way.name, &subject.program, conditions, |place| {
        subject.way.configuration(&setting, place)
    })
}

/// Loads a server and counts what it, the disk and the machine do meanwhile.
fn load(bench: &Bench, server: &mut Server, plan: &Plan) -> Result<Measured, Failure> {
    let device = device_of(bench.workspace.path());
    let (watch, recorder) = (Watch::start(), Recorder::start(bench.workspace.path()));
    // Innermost, so that neither the generator's start nor its end is counted.
    let (cpu_before, disk_before) = (server.cpu_time(), disk_traffic(device));
    let outcome = crate::load::run(plan)?;
    let (cpu_after, disk_after) = (server.cpu_time(), disk_traffic(device));
    let (disturbed, timeline) = (watch.end(), recorder.end());
    bench.check_interrupted()?;
    server.check_running()?;
    let answers = outcome.tally.answers.max(1) as f64;
    let errors = outcome.tally.errors.total();
    // A rate of answers beside many errors would read as if a server that refuses were a fast one.
    if bench.scale != Scale::Instant && errors as f64 > answers * ERROR_SHARE_MAX {
        return Err(Failure::Other(format!(
            "{errors} errors beside {answers} answers: {}",
            outcome.tally.errors
        )));
    }
    // A process that the limit's end of memory killed takes its processor time with it; what is left of the server's
    // answers says nothing about the engine.
    let cpu_seconds = cpu_before
        .until(&cpu_after)
        .ok_or_else(|| Failure::Other("a process of the server ended under its memory limit".to_owned()))?;
    Ok(Measured {
        answers_per_second: outcome.answers_per_second(),
        megabytes_per_second: outcome.body_bytes_per_second() / 1e6,
        p50_ms: outcome.latency_us(50.0) / 1e3,
        p99_ms: outcome.latency_us(99.0) / 1e3,
        p999_ms: outcome.latency_us(99.9) / 1e3,
        cpu_us: cpu_seconds * 1e6 / answers,
        read_share: (disk_after.inward - disk_before.inward) as f64 / outcome.tally.body_bytes.max(1) as f64,
        errors,
        is_generator_bound: outcome.bottleneck() == Bottleneck::Generator,
        disturbed,
        timeline,
        configuration: server.configuration().to_owned(),
    })
}

impl Outcome {
    /// Puts the limit of the same files above the servers, where it was measured with an earlier case.
    pub(super) fn take_limit(&mut self, earlier: &[Outcome]) {
        if !limit::applies(self.case) || limit::is_measured_in(self.case) {
            return;
        }
        let is_source =
            |outcome: &&Outcome| limit::is_measured_in(outcome.case) && outcome.case.size == self.case.size;
        let found = earlier
            .iter()
            .find(is_source)
            .and_then(|outcome| outcome.by_way.iter().find(|(way, _)| way.maker == Maker::Machine).cloned());
        if let Some(limit) = found {
            self.by_way.insert(0, limit);
        }
    }

    /// Every single measurement, for the report.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        // What was measured with another case stands there.
        let own = |way: &Way| way.maker != Maker::Machine || limit::is_measured_in(self.case);
        self.by_way.iter().filter(move |(way, _)| own(way)).flat_map(|(way, rounds)| {
            rounds.iter().enumerate().map(|(round, measured)| {
                let mut labels = self.case.labels();
                labels.insert("server".to_owned(), way.name.to_owned());
                labels.insert("round".to_owned(), round.to_string());
                let measured = match measured {
                    Ok(measured) => measured,
                    // Without figures, so that who reads the measurements alone learns why they are not there.
                    Err(reason) => {
                        labels.insert("nothing".to_owned(), reason.clone());
                        return Run { labels, ..Run::default() };
                    }
                };
                if measured.is_generator_bound {
                    labels.insert("bottleneck".to_owned(), "generator".to_owned());
                }
                Run {
                    labels,
                    figures: measured.figures(),
                    disturbed: measured.disturbed.clone(),
                    timeline: Some(measured.timeline.clone()),
                }
            })
        })
    }
}

impl Case {
    /// Whether it has one worker and the fewest connections: what all others are variations of.
    pub(super) fn is_base(&self) -> bool {
        self.workers == 1 && self.connections == CONNECTIONS[0]
    }

    /// What the others are variations of is measured longer than they are.
    fn length(&self, bench: &Bench) -> Duration {
        bench.length(if self.is_base() { LENGTH } else { LENGTH_VARIED })
    }

    /// What a run in the report is found by.
    fn labels(&self) -> BTreeMap<String, String> {
        let memory =
            self.memory_bytes.map_or_else(|| "all".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        [
            ("source", self.source.words().to_owned()),
            ("size", self.size.to_string()),
            ("workers", self.workers.to_string()),
            ("connections", self.connections.to_string()),
            ("memory", memory),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

impl Measured {
    /// With units in their names, for who reads the JSON file.
    fn figures(&self) -> BTreeMap<String, f64> {
        [
            ("requests_per_second", self.answers_per_second),
            ("megabytes_per_second", self.megabytes_per_second),
            ("p50_ms", self.p50_ms),
            ("p99_ms", self.p99_ms),
            ("p99_9_ms", self.p999_ms),
            ("server_cpu_us_per_request", self.cpu_us),
            ("disk_bytes_per_body_byte", self.read_share),
            ("errors", self.errors as f64),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}
