//! `bench isolate`: the effect of requests that wait for a slow disk on requests that need no disk. Users notice this
//! effect: one disk that hangs, or one cold directory, beside all other requests.
//!
//! One server at a time is measured, with one worker on the first processor and a generator on another one. First,
//! requests that need no disk are measured alone. Then several hundred clients request cold files from a disk that does
//! a few reads per second, and the first requests are measured again while those clients wait. A server that reads on
//! the responding thread blocks then. A server with a thread pool continues until all its threads are blocked. A server
//! with asynchronous reads should not be affected. A file on another disk, read bypassing the page cache (O_DIRECT), is
//! requested too: a pool whose threads are all blocked can only serve resident files.
//!
//! A server that does not respond is a result, reported with the time waited: the run continues.
//!
//! This file has the measurement and the tables; the slow disk is in [`slow`]. The limit is a p99 that at most doubles,
//! which users do not notice. A request to which a server does not respond does not meet it.

mod slow;

use std::fs;
use std::time::Duration;

use clap::Args;

use self::slow::{SlowDisk, WaitingClients};
use super::comparison::{self, Compared, Measured, READY, Text, Variant, WHEN, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, Of, at, figure, finding_of_cases, spread};
use super::served::{self, P99, RATE, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::Plan;
use crate::method::pin::Split;
use crate::peers::server::{Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Finding, Results, Section, Table, Verdict};

#[derive(Args, Clone, Debug)]
pub(crate) struct IsolateOptions {
    /// Clients that wait for the slow disk
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5000))]
    stuck: u32,
    /// Reads per second of the slow disk
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    reads: u32,
    /// Connections of the measured load
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
}

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(2);

/// Timeout of a response: longer than any server here delays a client that is not blocked, and brief enough for a
/// server that does not respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

const FILE_BYTES: usize = 4096;

/// Ringroad with sockets and files on one ring, and its fallback for kernels without io_uring; nginx with a thread pool
/// for files, and without `aio`, its most common configuration.
const VARIANTS: [Variant; 4] = [
    Variant::ours("ringroad, io_uring", "io_uring"),
    Variant::ours("ringroad, epoll and threads", "epoll").with(" aio threads;"),
    Variant::of("nginx, aio threads", Peer::Nginx).with(" aio threads;"),
    Variant::of("nginx, blocking reads", Peer::Nginx),
];

/// Maximum wanted ratio of the p99 beside blocked clients to the p99 without them.
const RATIO_WANTED: f64 = 2.0;

const RESPONDED: Figure =
    figure("waiting clients that received a response", "", 0, Of::Value("stuck_answered", 1.0));

/// Returns the configuration, with one worker, so that no other worker can compensate for a blocked one.
fn configuration(variant: &Variant, instance: &Instance, disk: &SlowDisk, warm: &str) -> String {
    // nginx does not know the directive.
    let events = if variant.peer.is_some() { String::new() } else { disk.faults() };
    let (aio, slow) = (variant.location, disk.directory.display());
    let server = format!(
        "{READY}\nlocation = /answer {{ return 200; }}\nlocation /warm/ {{ alias {warm}/;{aio} }}\n\
         location /other/ {{ alias {warm}/; directio 512;{aio} }}\nlocation /slow/ {{ alias {slow}/;{aio} }}"
    );
    variant.configuration(instance, &Text { events, server, ..Text::default() })
}

/// A request that is measured while others are blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    name: &'static str,
    path: &'static str,
}

const RETURN: Probe = Probe { name: "return 200", path: "/answer" };

/// All of them, in the order of tables.
const PROBES: [Probe; 3] = [
    RETURN,
    // A resident file.
    Probe { name: "a warm file", path: "/warm/file" },
    // A file on another disk, read bypassing the page cache (O_DIRECT): a pool whose threads are all blocked cannot read
    // it.
    Probe { name: "a file on another disk", path: "/other/file" },
];

impl Probe {
    fn labels(self, when: &str) -> Labels {
        at([("asked for", &self.name), ("when", &when)])
    }
}

/// Returns the labels of the results of a round.
fn labels(variant: &Variant) -> Vec<Labels> {
    WHEN.map(|when| PROBES.map(|what| labels_of(variant, &what.labels(when)))).concat()
}

impl Scenario for IsolateOptions {
    const NAME: &'static str = "isolate";
    const MINUTES: u32 = 3;
    const TITLE: &'static str =
        "Requests that need no disk or another disk, while clients wait for a slow disk";
    const QUESTION: &'static str =
        "While clients wait for a slow disk, how long do requests take that need no disk or another disk?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        // A test needs few connections.
        let stuck = if bench.scale == Scale::Instant { self.stuck.min(20) } else { self.stuck };
        let disk = SlowDisk::make(bench, stuck, self.reads)?;
        section.question = format!(
            "While {stuck} clients wait for a slow disk ({}), how long do requests take that need no disk or another disk?",
            disk.description
        );
        let warm = bench.workspace.directory("isolate-warm")?;
        let file = warm.join("file");
        fs::write(&file, vec![b'w'; FILE_BYTES]).map_err(Failure::file("write", &file))?;
        let place = ServerCpus::of_one_worker(bench, section);
        let is_slowed = |variant: &Variant| variant.peer.is_none() || disk.slows_nginx();
        let mut variants = comparison::programs(bench, section, VARIANTS.into_iter().filter(is_slowed), "");
        for variant in VARIANTS.iter().filter(|variant| !is_slowed(variant)) {
            let why = "slowing a disk for nginx needs root; Ringroad's fault engine needs no root";
            section.skip(variant.name, why);
        }
        let warm = warm.display().to_string();
        let labels = |(variant, _): &(Variant, Program)| labels(variant);
        let measure = |(variant, program): &mut (Variant, Program), round: u32, section: &mut Section| {
            bench.progress(format_args!("isolate: {}, round {}", variant.name, round + 1));
            // A new cgroup for each server: reads of the previous server must not count against this one.
            let group = disk.group()?;
            let mut conditions = place.conditions();
            conditions.groups.extend(group.iter().flat_map(|group| group.directories.clone()));
            let server = Server::start(bench, variant.name, program, &conditions, |instance| {
                configuration(variant, instance, &disk, &warm)
            })?;
            section.configure(variant.name, &server.configuration);
            let (split, connections) = (&place.split, self.connections);
            let mut subject = IsolateServer { bench, server, split, connections };
            let measured = subject.measure(&disk, group.as_ref(), stuck);
            // Lifting the limit completes the queued reads, so that the server can exit.
            disk.restore(group.as_ref())?;
            measured
        };
        comparison::measure_all(bench, section, &mut variants, labels, measure)?;
        let measured = variants.iter().map(|(variant, _)| *variant).collect::<Vec<_>>();
        Ok(results(Measurements::of(section), &measured, stuck))
    }
}

fn results(measurements: Measurements<'_>, measured: &[Variant], stuck: u32) -> Results {
    let lines = comparison::disturbance_lines(&VARIANTS, |when| RETURN.labels(when));
    let title = "Latency of return 200, without and with clients that wait for the slow disk";
    let ranking = |what: Probe| {
        let title = format!("Latency while {stuck} clients wait for a slow disk, p99: {}", what.name);
        Compared { measurements, variants: &VARIANTS }.ranking(&title, P99, &what.labels("beside"))
    };
    Results {
        tables: PROBES.map(|what| table(measurements, what, stuck)).into(),
        plots: vec![measurements.curves(("isolate-percentiles", title), "ms", &lines)],
        findings: measured.iter().map(|variant| noticed(measurements, variant, stuck)).collect(),
        rankings: PROBES.map(ranking).into(),
    }
}

/// Returns the table of one kind: each percentile alone, beside the blocked clients, and the ratio of both, round by
/// round.
fn table(measurements: Measurements<'_>, what: Probe, stuck: u32) -> Table {
    let when = |when: &str| at([("when", &when)]);
    let mut columns = comparison::disturbance_columns();
    columns.push(RATE.at("requests alone", when("alone")));
    columns.push(RATE.at("requests beside", when("beside")));
    columns.push(RESPONDED.at(RESPONDED.name, when("beside")));
    let title = format!("{}: latency without and with {stuck} clients that wait for a slow disk", what.name);
    Compared { measurements, variants: &VARIANTS }.table(&title, &at([("asked for", &what.name)]), &columns)
}

/// Returns the finding whether users of a server notice the slow disk.
fn noticed(measurements: Measurements<'_>, variant: &Variant, stuck: u32) -> Finding {
    let claim = format!(
        "{}: clients that wait for a slow disk do not delay others (99th percentile at most doubled).",
        variant.name
    );
    let said = PROBES.map(|what| {
        let [alone, beside] = WHEN.map(|when| labels_of(variant, &what.labels(when)));
        match measurements.series(P99, &beside) {
            // A server that does not respond does not meet the claim.
            Err(reason) => (format!("{}: {reason}", what.name), false),
            Ok(_) => {
                let ratio = measurements.ratio(P99, &beside, &alone);
                let words = ratio.as_ref().map_or_else(|| "no figure without them".to_owned(), spread);
                let is_met = ratio.is_some_and(|ratio| ratio.median <= RATIO_WANTED);
                (format!("{}: {words}", what.name), is_met)
            }
        }
    });
    let before = format!("p99 with {stuck} waiting clients, as a ratio to p99 without them: ");
    let finding = finding_of_cases(claim, &before, &said, "Not measured.");
    // One kind of request without any response is not a part of the claim.
    let is_silent = |what: Probe| {
        let [alone, beside] =
            WHEN.map(|when| measurements.series(P99, &labels_of(variant, &what.labels(when))).is_err());
        beside && !alone
    };
    if PROBES.into_iter().any(is_silent) { Finding { verdict: Verdict::Fails, ..finding } } else { finding }
}

struct IsolateServer<'a> {
    bench: &'a Bench,
    server: Server,
    split: &'a Split,
    connections: u32,
}

impl IsolateServer<'_> {
    /// Makes one measurement, without and with blocked requests. The results are in the order of [`labels`].
    fn measure(
        &mut self,
        disk: &SlowDisk,
        group: Option<&crate::method::cgroup::Group>,
        stuck: u32,
    ) -> Result<Vec<Measured>, Failure> {
        // First-time costs must not be attributed to the slow disk.
        for what in PROBES {
            served::warm_up(self.bench, &self.plan(what)?)?;
        }
        let mut measured = Vec::new();
        for what in PROBES {
            measured.push(self.load(what)?);
        }
        // Connected before the disk becomes slow, so that only the disk delays these clients.
        let clients = WaitingClients::connect(self.server.address(), stuck)?;
        disk.slow_down(group)?;
        clients.send_requests()?;
        for what in PROBES {
            measured.push(self.load(what)?);
        }
        let answered = clients.responded() as f64;
        for run in measured.iter_mut().skip(PROBES.len()).flatten() {
            run.set("stuck_answered", answered);
        }
        Ok(measured)
    }

    /// Returns a load with few connections: its own queueing would hide the slow disk's effect.
    fn plan(&self, what: Probe) -> Result<Plan, Failure> {
        let plan = served::load(self.bench, self.split, self.connections, LENGTH);
        // A longer timeout would only prolong the measurement of a server that does not respond.
        let timeout = RESPONSE_TIMEOUT.min(self.bench.length(LENGTH) * 2);
        Plan { timeout, ..plan }.for_url(&self.server.url(what.path))
    }

    /// Runs the load. A server that does not respond is a result instead of an error of the run.
    fn load(&mut self, what: Probe) -> Result<Measured, Failure> {
        let plan = self.plan(what)?;
        match served::measure(self.bench, &mut self.server, &plan) {
            // The generator's error if no response arrived.
            Err(Failure::Other(_)) => {
                let seconds = self.bench.length(LENGTH).as_secs_f64();
                Ok(Err(format!("no response within {seconds} s")))
            }
            served => Ok(Ok(served?.run())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_injected_only_into_ringroad() {
        let disk = SlowDisk::of_faults("/slow".into());
        let instance = Instance { host: std::net::Ipv4Addr::LOCALHOST, port: 8080, directory: "/x".into() };
        for variant in VARIANTS {
            let text = configuration(&variant, &instance, &disk, "/warm");
            assert_eq!(text.contains("engine_fault"), variant.peer.is_none(), "{text}");
            assert_eq!(text.contains("aio threads"), variant.name.ends_with("threads"));
        }
    }
}
