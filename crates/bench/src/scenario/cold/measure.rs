//! One measurement: a server under its limits, the page cache dropped, random files asked for, and what that took.

use std::time::Duration;

use super::data::{Caches, Files, Size};
use super::ways::{ColdWay, LIMIT, Setting, Source};
use super::{CONNECTIONS, limit};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::Plan;
use crate::method::cgroup::Limits;
use crate::method::disturbance::Watch;
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::{Recorder, device_of};
use crate::method::{page_cache, pin};
use crate::peers::server::{Conditions, Program, Server};
use crate::report::model::{Run, Section};
use crate::scenario::lineup;
use crate::scenario::served;
use crate::scenario::sheet::{Labels, at};

/// Length of one measurement: two full seconds of the table of the machine, and some.
const LENGTH: Duration = Duration::from_millis(2100);
/// The same where workers or connections are varied: there are many of these, and none has a plot over time.
const LENGTH_VARIED: Duration = Duration::from_millis(1200);

/// The case of one table: all but the way.
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

/// A way with its program.
#[derive(Clone, Debug)]
pub(super) struct ColdServer {
    /// The way that is compared.
    pub(super) way: &'static ColdWay,
    /// What runs it: for nginx, the build that was found.
    pub(super) program: Program,
}

/// Whose turn it is. The limit is measured in each round too, so that a disk that drifts does not make it look near or
/// far.
enum Turn<'a> {
    Limit,
    Server(&'a ColdServer),
}

/// Measures the subjects in turns. A server that failed has its reason.
pub(super) fn measure(
    bench: &Bench,
    section: &mut Section,
    (files, caches): (&Files, Option<&Caches>),
    subjects: &[&ColdServer],
    case: Case,
) -> Result<(), Failure> {
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
    let labels = |turn: &Turn<'_>| match turn {
        Turn::Limit => case.labels_of(LIMIT),
        Turn::Server(subject) => case.labels_of(subject.way.of.name),
    };
    lineup::measure(bench, section, &mut turns, labels, |turn, round, section| {
        lineup::or_reason(match turn {
            Turn::Limit => limit::measure(bench, section, files, case, case.length(bench)),
            Turn::Server(subject) => one(bench, section, (files, caches), subject, case, round),
        })
    })
}

/// One measurement: a server of its own in a group of its own, with a dropped page cache.
fn one(
    bench: &Bench,
    section: &mut Section,
    (files, caches): (&Files, Option<&Caches>),
    subject: &ColdServer,
    case: Case,
    round: u32,
) -> Result<Run, Failure> {
    // With more workers than processors to spare nothing is pinned: the generator and the server share all.
    let split = pin::Split::of(&pin::available(), case.workers);
    let cpus = split.is_apart.then(|| split.server.clone());
    let limits = Limits { memory_bytes: case.memory_bytes, cpus, ..Limits::default() };
    let (_group, conditions) = served::limited(bench, &split.server, &limits)?;
    let mut server = start(bench, files, caches, subject, case, &conditions)?;
    // After the start, so that what the server itself reads then (its program, an index) does not stay in memory for
    // some of them and not for others.
    if bench.is_root() {
        page_cache::drop_all()?;
    }
    let mut plan = served::load(bench, &split, case.connections, case.seconds());
    plan.expect = served::whole(case.size.bytes());
    // Other names in each round, the same ones for each server. The first request for a file is the one that counts:
    // there is nothing to warm up.
    plan.seed = u64::from(round) + 1;
    let plan =
        served::aimed(&plan, &server, &format!("/{}/{{0-{}}}", case.size, files.count(case.size) - 1))?;
    let measured = load(bench, &mut server, &plan);
    section.configure(subject.way.of.name, server.configuration());
    server.end();
    measured
}

/// Starts the server of a subject as the case has it.
fn start(
    bench: &Bench,
    files: &Files,
    caches: Option<&Caches>,
    subject: &ColdServer,
    case: Case,
    conditions: &Conditions,
) -> Result<Server, Failure> {
    let cache = match (case.source, caches) {
        (Source::Cache, Some(caches)) if !subject.way.is_plain => {
            Some(caches.of(subject.way.of.peer, case.size))
        }
        _ => None,
    };
    let setting = Setting {
        size: case.size,
        workers: case.workers,
        files: &files.root,
        cache: cache.as_ref().map(|(directory, port)| (directory.as_path(), *port)),
    };
    Server::start(bench, subject.way.of.name, &subject.program, conditions, |instance| {
        subject.way.configuration(&setting, instance)
    })
}

/// Loads a server and counts what it, the disk and the machine do meanwhile.
fn load(bench: &Bench, server: &mut Server, plan: &Plan) -> Result<Run, Failure> {
    let device = device_of(bench.workspace.path());
    let (watch, recorder) = (Watch::start(), Recorder::start(bench.workspace.path()));
    let disk = disk_traffic(device);
    let served = served::measure(bench, server, plan)?;
    let read_bytes = disk_traffic(device).inward - disk.inward;
    let (disturbed, timeline) = (watch.end(), recorder.end());
    // A process that the limit's end of memory killed takes its processor time with it; the remaining
    // responses say nothing about the engine.
    if served.server_cpu_seconds.is_none() {
        return Err(Failure::Other("a process of the server ended under its memory limit".to_owned()));
    }
    // A rate of responses beside many errors would read as if a server that refuses were a fast one.
    let served = if bench.scale == Scale::Instant {
        served
    } else {
        served.without_errors().map_err(Failure::Other)?
    };
    let share = read_bytes as f64 / served.outcome.tally.body_bytes.max(1) as f64;
    let mut run = Run { disturbed, timeline: Some(timeline), ..served.run() };
    run.set("disk_bytes_per_body_byte", share);
    Ok(run)
}

impl Case {
    /// Whether it has one worker and the fewest connections: what all others are variations of.
    pub(super) fn is_base(&self) -> bool {
        self.workers == 1 && self.connections == CONNECTIONS[0]
    }

    /// What the others are variations of is measured longer than they are.
    fn seconds(&self) -> Duration {
        if self.is_base() { LENGTH } else { LENGTH_VARIED }
    }

    fn length(&self, bench: &Bench) -> Duration {
        bench.length(self.seconds())
    }

    /// The requested objects, in titles.
    pub(super) fn what(&self) -> &'static str {
        match self.source {
            Source::Files => "Files",
            Source::Cache => "Hits of the proxy cache",
        }
    }

    /// What a run in the report is found by.
    pub(super) fn labels(&self) -> Labels {
        let memory =
            self.memory_bytes.map_or_else(|| "all".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        at([
            ("source", &self.source.words()),
            ("size", &self.size),
            ("workers", &self.workers),
            ("connections", &self.connections),
            ("memory", &memory),
        ])
    }

    /// The same of one way, or of the limit, which is measured with the base case of the files and stands for the others too.
    pub(super) fn labels_of(&self, name: &str) -> Labels {
        let case = if name == LIMIT {
            Case { source: Source::Files, workers: 1, connections: CONNECTIONS[0], ..*self }
        } else {
            *self
        };
        [case.labels(), at([("server", &name)])].concat()
    }
}
