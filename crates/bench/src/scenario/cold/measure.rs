//! One measurement: a server under its limits, with the page cache dropped, gets requests for random files.

use std::time::Duration;

use super::data::{Caches, Files, Size};
use super::variants::{ColdVariant, LIMIT, Setting, Source};
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
use crate::scenario::comparison;
use crate::scenario::measurements::{Labels, at};
use crate::scenario::served;

/// Length of one measurement: two complete seconds for the machine's timeline, and some reserve.
const LENGTH: Duration = Duration::from_millis(2100);
/// The same where workers or connections are varied: these measurements are many, and no timeline is plotted for them.
const LENGTH_VARIED: Duration = Duration::from_millis(1200);

/// The parameters of one table: all except the variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Whether the bytes come from files or from a cache.
    pub(super) source: Source,
    /// Size of the files.
    pub(super) size: Size,
    /// Number of worker processes or threads of the server.
    pub(super) workers: usize,
    /// Number of keep-alive connections of the generator.
    pub(super) connections: u32,
    /// Memory limit in bytes of the server including its page cache; `None` without a limit.
    pub(super) memory_bytes: Option<u64>,
}

/// A variant with its program.
#[derive(Clone, Debug)]
pub(super) struct ColdServer {
    /// The variant that is compared.
    pub(super) variant: &'static ColdVariant,
    /// The program that runs it: for nginx, the binary that was found.
    pub(super) program: Program,
}

impl ColdServer {
    pub(super) fn start(
        &self,
        bench: &Bench,
        setting: &Setting<'_>,
        conditions: &Conditions,
    ) -> Result<Server, Failure> {
        Server::start(bench, self.variant.of.name, &self.program, conditions, |instance| {
            self.variant.configuration(setting, instance)
        })
    }
}

/// The next subject of a measurement. The limit is measured in each round too, so that a drift of the disk affects it like the
/// servers.
enum Candidate<'a> {
    Limit,
    Server(&'a ColdServer),
}

/// Measures the subjects in turn. A failed server is recorded with its reason.
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
    let servers = subjects.iter().map(|&subject| Candidate::Server(subject));
    let mut candidates: Vec<Candidate<'_>> =
        limit::is_measured_in(case).then_some(Candidate::Limit).into_iter().chain(servers).collect();
    let labels = |candidate: &Candidate<'_>| match candidate {
        Candidate::Limit => case.labels_of(LIMIT),
        Candidate::Server(subject) => case.labels_of(subject.variant.of.name),
    };
    comparison::measure(bench, section, &mut candidates, labels, |candidate, round, section| {
        let measured = match candidate {
            Candidate::Limit => limit::measure(bench, section, files, case, case.length(bench)),
            Candidate::Server(subject) => one(bench, section, (files, caches), subject, case, round),
        };
        measured.map(Ok)
    })
}

/// Makes one measurement: a new server in a new cgroup, with the page cache dropped.
fn one(
    bench: &Bench,
    section: &mut Section,
    (files, caches): (&Files, Option<&Caches>),
    subject: &ColdServer,
    case: Case,
    round: u32,
) -> Result<Run, Failure> {
    // If the workers need all processors, nothing is pinned: the generator and the server share all.
    let split = pin::Split::of(&pin::available(), case.workers);
    let cpus = split.is_apart.then(|| split.server.clone());
    let limits = Limits { memory_bytes: case.memory_bytes, cpus, ..Limits::default() };
    let (_group, conditions) = served::limited(bench, &split.server, &limits)?;
    let cache = caches.filter(|_| case.source == Source::Cache && !subject.variant.is_plain);
    let cache = cache.map(|caches| caches.of(subject.variant.of.peer, case.size));
    let setting = Setting { size: case.size, workers: case.workers, files: &files.root, cache };
    let mut server = subject.start(bench, &setting, &conditions)?;
    // After the start, so that files that the server itself reads at its start (its program, an index) are cold for all
    // servers alike.
    if bench.is_root() {
        page_cache::drop_all()?;
    }
    let mut plan = served::load(bench, &split, case.connections, case.seconds());
    plan.expect = served::complete_file(case.size.bytes());
    // Other files in each round, the same ones for each server. No warm-up: the first request for a file is the cold
    // one.
    plan.seed = u64::from(round) + 1;
    let plan =
        served::with_path(&plan, &server, &format!("/{}/{{0-{}}}", case.size, files.count(case.size) - 1))?;
    let measured = load(bench, &mut server, &plan);
    section.configure(subject.variant.of.name, server.configuration());
    server.end();
    measured
}

/// Loads a server, and counts its responses, CPU time, disk traffic and the machine's state.
fn load(bench: &Bench, server: &mut Server, plan: &Plan) -> Result<Run, Failure> {
    let device = device_of(bench.workspace.path());
    let (watch, recorder) = (Watch::start(), Recorder::start(bench.workspace.path()));
    let disk = disk_traffic(device);
    let served = served::measure(bench, server, plan)?;
    let read_bytes = disk_traffic(device).inward - disk.inward;
    let (disturbed, timeline) = (watch.end(), recorder.end());
    // If the OOM killer kills a process, its CPU time is lost; the remaining responses are not representative of the
    // engine.
    if served.server_cpu_seconds.is_none() {
        return Err(Failure::Other("a process of the server ended under its memory limit".to_owned()));
    }
    // A rate of responses beside many errors would make a refusing server look fast.
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
    /// Whether the case has one worker and the fewest connections: the other cases are variations of it.
    pub(super) fn is_base(&self) -> bool {
        self.workers == 1 && self.connections == CONNECTIONS[0]
    }

    /// The base case is measured longer than its variations.
    fn seconds(&self) -> Duration {
        if self.is_base() { LENGTH } else { LENGTH_VARIED }
    }

    fn length(&self, bench: &Bench) -> Duration {
        bench.length(self.seconds())
    }

    /// Returns the requested objects, for titles.
    pub(super) fn what(&self) -> &'static str {
        match self.source {
            Source::Files => "Files",
            Source::Cache => "Hits of the proxy cache",
        }
    }

    /// Returns the labels that identify a run in the report.
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

    /// Returns the labels of one variant, or of the limit. The limit is measured with the base case of the files and
    /// applies to the other cases too.
    pub(super) fn labels_of(&self, name: &str) -> Labels {
        let case = if name == LIMIT {
            Case { source: Source::Files, workers: 1, connections: CONNECTIONS[0], ..*self }
        } else {
            *self
        };
        [case.labels(), at([("server", &name)])].concat()
    }
}
