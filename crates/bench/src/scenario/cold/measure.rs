//! One measurement: a server under its limits, with the page cache dropped, gets requests for random files.

use std::time::Duration;

use super::data::{Caches, Files, Size};
use super::variants::{ColdVariant, LIMIT, Setting, Source};
use super::{CONNECTIONS, limit};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::Plan;
use crate::method::disturbance::Watch;
use crate::method::page_cache;
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::{Recorder, device_of};
use crate::peers::server::{Conditions, Program, Server};
use crate::report::model::{Run, Section};
use crate::scenario::comparison;
use crate::scenario::measurements::{Labels, at};
use crate::scenario::served::{self, ServerCpus};

/// Length of one measurement: two complete seconds for the machine's timeline, and some reserve.
const LENGTH: Duration = Duration::from_millis(2100);
/// The same where workers or connections are varied: these measurements are many, and no timeline is plotted for them.
const LENGTH_VARIED: Duration = Duration::from_millis(1200);

/// The parameters of one table: all except the variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Whether the bytes come from files or from a cache.
    pub(super) source: Source,
    pub(super) size: Size,
    pub(super) workers: usize,
    pub(super) connections: u32,
    /// Memory limit in bytes of the server including its page cache; `None` without a limit.
    pub(super) memory_bytes: Option<u64>,
}

/// A variant with its program.
#[derive(Clone, Debug)]
pub(super) struct ColdServer {
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

/// A case under measurement.
pub(super) struct CaseRun<'a> {
    pub(super) bench: &'a Bench,
    pub(super) files: &'a Files,
    pub(super) caches: Option<&'a Caches<'a>>,
    pub(super) case: Case,
}

impl CaseRun<'_> {
    /// Measures the subjects in turn. A failed server is recorded with its reason.
    pub(super) fn measure(&self, section: &mut Section, subjects: &[&ColdServer]) -> Result<(), Failure> {
        let Case { source, size, workers, connections, memory_bytes } = self.case;
        let memory = if memory_bytes.is_some() { "" } else { ", no memory limit" };
        self.bench.progress(format_args!(
            "cold: {} of {size} from {}, {workers} workers, {connections} connections{memory}",
            subjects.len(),
            source.words(),
        ));
        // `None` is the machine's limit, measured in each round too, so that a drift of the disk affects it like the
        // servers.
        let first = limit::is_measured_in(self.case).then_some(None);
        let mut candidates: Vec<Option<&ColdServer>> =
            first.into_iter().chain(subjects.iter().copied().map(Some)).collect();
        let labels = |candidate: &Option<&ColdServer>| {
            self.case.labels_of(candidate.map_or(LIMIT, |subject| subject.variant.of.name))
        };
        let measure = |candidate: &mut Option<&ColdServer>, round: u32, section: &mut Section| match candidate
        {
            None => limit::measure(self, section),
            Some(subject) => self.one(section, subject, round),
        };
        comparison::measure(self.bench, section, &mut candidates, labels, measure)
    }

    /// Makes one measurement: a new server in a new cgroup, with the page cache dropped.
    fn one(&self, section: &mut Section, subject: &ColdServer, round: u32) -> Result<Run, Failure> {
        let CaseRun { bench, files, caches, case } = *self;
        // If the workers need all processors, nothing is pinned: the generator and the server share all.
        let place = ServerCpus::limited(bench, case.workers, case.memory_bytes)?;
        let cache = caches.filter(|_| case.source == Source::Cache && !subject.variant.is_plain);
        let cache = cache.map(|caches| caches.of(subject.variant.of.peer, case.size));
        let setting = Setting { size: case.size, workers: case.workers, files: &files.root, cache };
        let mut server = subject.start(bench, &setting, &place.conditions())?;
        // After the start, so that files that the server itself reads at its start (its program, an index) are cold for
        // all servers alike.
        if bench.is_root() {
            page_cache::drop_all()?;
        }
        let url = server.url(&format!("/{}/{{0-{}}}", case.size, files.count(case.size) - 1));
        let plan = served::load(bench, &place.split, case.connections, case.seconds());
        let mut plan = plan.for_url(&url)?;
        plan.expect = served::complete_file(case.size.bytes);
        // Other files in each round, the same ones for each server. No warm-up: the first request for a file is the
        // cold one.
        plan.seed = u64::from(round) + 1;
        section.configure(subject.variant.of.name, &server.configuration);
        load(bench, &mut server, &plan)
    }
}

/// Does the work, and records the state of the machine meanwhile; also returns the bytes read from the disk.
pub(super) fn observed<T>(
    bench: &Bench,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, Run, u64), Failure> {
    let directory = &bench.workspace.path;
    let (watch, recorder, device) = (Watch::start(), Recorder::start(directory), device_of(directory));
    let before = disk_traffic(device).inward;
    let done = work()?;
    let read_bytes = disk_traffic(device).inward - before;
    let run = Run { disturbed: watch.end(), timeline: Some(recorder.end()), ..Run::default() };
    Ok((done, run, read_bytes))
}

/// Loads a server, and counts its responses, CPU time, disk traffic and the machine's state.
fn load(bench: &Bench, server: &mut Server, plan: &Plan) -> Result<Run, Failure> {
    let (served, Run { disturbed, timeline, .. }, read_bytes) =
        observed(bench, || served::measure(bench, server, plan))?;
    // If the OOM killer kills a process, its CPU time is lost; the remaining responses are not representative of the
    // engine.
    if served.server_cpu_seconds.is_none() {
        return Err(Failure::Other("a process of the server ended under its memory limit".to_owned()));
    }
    // A rate of responses beside many errors would make a refusing server look fast.
    let served = if bench.scale == Scale::Instant { served } else { served.without_errors()? };
    let share = read_bytes as f64 / served.outcome.tally.body_bytes.max(1) as f64;
    let mut run = Run { disturbed, timeline, ..served.run() };
    run.set("disk_bytes_per_body_byte", share);
    Ok(run)
}

impl Case {
    /// Whether the case has one worker and the fewest connections: the other cases are variations of it.
    pub(super) fn is_base(&self) -> bool {
        self.workers == 1 && self.connections == CONNECTIONS[0]
    }

    /// The base case is measured longer than its variations.
    pub(super) fn seconds(&self) -> Duration {
        if self.is_base() { LENGTH } else { LENGTH_VARIED }
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
