//! Measurement of a web server: runs a load, and measures the resources that server, generator and machine use. Shared
//! by the scenarios that start servers.
//!
//! Most tables are about the cost of a response, because a rate alone depends on which side is the limit. The server's
//! cost is the CPU time of all its processes, which the scheduler accounts in nanoseconds, including kernel workers of
//! its ring. The generator's cost is that of its threads. The time of interrupts is charged to the interrupted thread,
//! on loopback mostly the sender.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tls::issue;
use tls::signing::KeyKind;

use crate::context::Bench;
use crate::failure::Failure;
use crate::load::{self, Expect, Length, Outcome, Plan, ResponseKind, Tally};
use crate::method::cgroup::{Group, Limits};
use crate::method::disturbance::Watch;
use crate::method::pin::{self, Split};
use crate::method::syscalls::Calls;
use crate::method::system_stat::SystemStat;
use crate::peers::server::{Conditions, Program, Server};
use crate::report::model::{Finding, Run, Section, Verdict};
use crate::scenario::comparison::{self, Text, Variant};
use crate::scenario::measurements::{
    CURVE, Figure, Labels, Measurements, Of, at, at_least, figure, finding, without,
};

/// The results of one round.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// The load, as measured by the generator.
    pub(crate) outcome: Outcome,
    /// CPU time in seconds of all processes of the server; `None` if one of them exited during the load.
    pub(crate) server_cpu_seconds: Option<f64>,
    /// Percentage of the machine's time that was idle, including I/O wait.
    pub(crate) idle_percent: f64,
    /// What else used the machine, if anything.
    pub(crate) disturbed: Option<String>,
}

impl Served {
    /// Returns the results as a single measurement of the report.
    pub(crate) fn run(&self) -> Run {
        let outcome = &self.outcome;
        let mut figures = vec![
            ("requests", outcome.tally.responses as f64),
            ("seconds", outcome.seconds),
            ("requests_per_second", outcome.responses_per_second()),
            ("body_bytes", outcome.tally.body_bytes as f64),
            ("p50_us", outcome.latency_us(50.0)),
            ("p90_us", outcome.latency_us(90.0)),
            ("p99_us", outcome.latency_us(99.0)),
            ("p99_9_us", outcome.latency_us(99.9)),
            ("errors", outcome.tally.errors.total() as f64),
            ("generator_cpu_seconds", outcome.cpu_seconds()),
            ("generator_busiest_share", outcome.busiest_share()),
            ("idle_percent", self.idle_percent),
        ];
        let bottleneck = format!("{:?}", outcome.bottleneck()).to_lowercase();
        let mut labels = vec![("limited by".to_owned(), bottleneck)];
        match self.server_cpu_seconds {
            Some(seconds) => figures.push(("server_cpu_seconds", seconds)),
            None => labels.push((without("server_cpu_seconds"), "a process of the server ended".to_owned())),
        }
        Run {
            labels: labels.into_iter().collect(),
            figures: figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            disturbed: self.disturbed.clone(),
            timeline: None,
            curve: CURVE.map(|percent| [percent, outcome.latency_us(percent)]).to_vec(),
        }
    }

    /// Rejects results with errors in more than a thousandth of the responses, because failed requests may be cheap.
    pub(crate) fn without_errors(self) -> Result<Served, Failure> {
        let Tally { errors, responses, .. } = &self.outcome.tally;
        if errors.total() * 1000 > *responses {
            self.outcome.check()?;
        }
        Ok(self)
    }
}

/// Figures of a load that most scenarios display.
pub(crate) const RATE: Figure = figure("requests", "1/s", 0, Of::Value("requests_per_second", 1.0));
pub(crate) const P50: Figure = figure("p50", "ms", 3, Of::Value("p50_us", 1e-3));
pub(crate) const P99: Figure = figure("p99", "ms", 3, Of::Value("p99_us", 1e-3));
pub(crate) const P999: Figure = figure("p99.9", "ms", 3, Of::Value("p99_9_us", 1e-3));
pub(crate) const CPU: Figure =
    figure("server CPU", "us/request", 2, Of::Quotient("server_cpu_seconds", "requests", 1e6));
pub(crate) const GENERATOR_CPU: Figure =
    figure("generator CPU", "us/request", 2, Of::Quotient("generator_cpu_seconds", "requests", 1e6));
pub(crate) const CALLS: Figure = figure("system calls", "1/request", 3, Of::Value(CALLS_NAME, 1.0));
pub(crate) const LIMITED: Figure = figure("limited by", "", 0, Of::Label("limited by"));

/// Name of the figure with the counted system calls.
pub(crate) const CALLS_NAME: &str = "system_calls_per_request";

/// Returns a load from the generator's processors, which a signal ends; `length` is its duration for published results.
/// [`Plan::for_url`] sets its server.
pub(crate) fn load(bench: &Bench, split: &Split, connections: u32, length: Duration) -> Plan {
    Plan {
        connections,
        cpus: split.load.clone(),
        length: Length::Time(bench.length(length)),
        stop: bench.workspace.interruption(),
        ..Plan::new(Vec::new())
    }
}

/// Returns the expectation of a file of this number of bytes.
pub(crate) fn complete_file(bytes: u64) -> Expect {
    Expect { status: Some(200), length: Some(bytes), crc32c: None }
}

/// Runs the load and measures the resources used.
pub(crate) fn measure(bench: &Bench, server: &mut Server, plan: &Plan) -> Result<Served, Failure> {
    server.check_running()?;
    // Nested, so that the narrower measurement is within the wider one.
    let watch = Watch::start();
    let (cpu, system) = (server.child.cpu_time(), SystemStat::read());
    let outcome = load::run(plan);
    let (cpu_after, system_after) = (server.child.cpu_time(), SystemStat::read());
    let disturbed = watch.end();
    bench.check_interrupted()?;
    // A server that has exited is a more precise failure than the clients' errors.
    server.check_running()?;
    let outcome = outcome?;
    let idle = (system_after.idle + system_after.wait).saturating_sub(system.idle + system.wait);
    let total = system_after.total().saturating_sub(system.total()).max(1);
    Ok(Served {
        outcome,
        server_cpu_seconds: cpu.until(&cpu_after),
        idle_percent: idle as f64 * 100.0 / total as f64,
        disturbed,
    })
}

/// Does the same, and returns the results as a measurement of the report, unless too many responses were errors.
pub(crate) fn measure_run(bench: &Bench, server: &mut Server, plan: &Plan) -> Result<Run, Failure> {
    Ok(measure(bench, server, plan)?.without_errors()?.run())
}

/// Runs a brief load without counting, so that memory, connections and caches of a server grow to their final size.
pub(crate) fn warm_up(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let length = Duration::from_millis(bench.scaled(10, 50, 250));
    // On a busy machine, or after a signal, it may have received no response yet. The following measurement reports any
    // problem of the server.
    let _ = load::run(&Plan { length: Length::Time(length), ..plan.clone() });
    bench.check_interrupted()
}

/// Returns the system calls of a server per response, counted in a separate load since counting is slow; or why there
/// is no figure.
fn calls_per_response(bench: &Bench, server: &Server, plan: &Plan) -> Result<f64, String> {
    // Brief, because the number varies less than times.
    let length = bench.length(Duration::from_secs(1)).min(Duration::from_millis(bench.scaled(50, 150, 500)));
    // Counts the server's current threads, and those that they start.
    let mut calls = Calls::start(server.child.tree())?;
    let outcome = load::run(&Plan { length: Length::Time(length), ..plan.clone() });
    let outcome = outcome.map_err(|failure| failure.to_string())?;
    // A load without a response is a failure.
    Ok(calls.count()? as f64 / outcome.tally.responses as f64)
}

/// Measures the same load on each of these servers in turn, after a warm-up of each; then counts system calls. Each
/// round is recorded under the labels of its server; a server without labels is skipped.
pub(crate) fn compare(
    bench: &Bench,
    section: &mut Section,
    servers: &mut [(Variant, Server)],
    (words, path): (&str, &str),
    plan: &Plan,
    labels: impl Fn(&Variant) -> Option<Labels>,
) -> Result<(), Failure> {
    if comparison::is_late(bench, section) {
        return Ok(());
    }
    bench.progress(format_args!("{}: {words}", section.scenario));
    // A comparison that has begun is completed, so that it does not lack servers.
    let deadline = bench.deadline.take();
    let mut chosen: Vec<(Labels, &mut Server, Plan)> = Vec::new();
    for (variant, server) in servers {
        if let Some(labels) = labels(variant) {
            let plan = plan.clone().for_url(&server.url(path))?;
            chosen.push((labels, server, plan));
        }
    }
    // In the order of the rounds too: the server that was warmed up last is measured last.
    for (_, _, plan) in &chosen {
        warm_up(bench, plan)?;
    }
    let of = |(labels, ..): &(Labels, &mut Server, Plan)| labels.clone();
    comparison::measure(bench, section, &mut chosen, of, |(_, server, plan), _, _| {
        let served = measure(bench, server, plan)?;
        if plan.response_kind != ResponseKind::Http {
            // If a connection to an echo server ends early, its remaining messages are not measured.
            served.outcome.check()?;
        }
        Ok(served.without_errors()?.run())
    })?;
    for (labels, server, plan) in &chosen {
        bench.check_interrupted()?;
        comparison::add(section, labels, CALLS_NAME, &calls_per_response(bench, server, plan));
    }
    bench.deadline.set(deadline);
    Ok(())
}

/// Whether the generator was the limit in one of the rounds.
pub(crate) fn is_generator_bound(measurements: Measurements<'_>, labels: &Labels) -> bool {
    measurements.has(&[labels.as_slice(), &at([("limited by", &"generator")])].concat())
}

/// Returns the finding of write-up 004 about the gain of io_uring over epoll. `said` makes the sentence, from the ratios
/// of rates and of CPU times, and a note if the generator was the limit.
pub(crate) fn gain_finding(
    measurements: Measurements<'_>,
    claim: &str,
    [ring, epoll]: [&Labels; 2],
    said: impl FnOnce(f64, f64, &str) -> String,
) -> Finding {
    let ratio = |figure| Some(measurements.ratio(figure, ring, epoll)?.median);
    let (Some(speed), Some(cost)) = (ratio(RATE), ratio(CPU)) else {
        return finding(claim, Verdict::Open, "io_uring and epoll were not both measured.");
    };
    // If the server is the limit, its rate is inversely proportional to its CPU time per request. If the generator is
    // the limit, only the CPU time is significant.
    let is_bound = [ring, epoll].into_iter().any(|labels| is_generator_bound(measurements, labels));
    let (gain, bound) = match is_bound {
        true => (1.0 / cost, ", limited by the generator, so compare the CPU time"),
        false => (speed, ""),
    };
    finding(claim, at_least(gain, 1.15, 1.03), said(speed, cost, bound))
}

/// Returns the finding about saved system calls: io_uring needs at most a tenth of epoll's.
pub(crate) fn calls_finding(
    measurements: Measurements<'_>,
    claim: &str,
    [ring, epoll]: [&Labels; 2],
    subject: &str,
) -> Finding {
    match (measurements.series(CALLS, ring), measurements.series(CALLS, epoll)) {
        (Ok(ring), Ok(epoll)) if epoll[0] > 0.0 => {
            let (ring, epoll) = (ring[0], epoll[0]);
            let said = format!("{subject} takes {ring:.3} system calls on io_uring and {epoll:.3} on epoll.");
            finding(claim, at_least(epoll / ring.max(1e-9), 10.0, 3.0), said)
        }
        (Err(reason), _) | (_, Err(reason)) => {
            finding(claim, Verdict::Open, format!("Not counted: {reason}."))
        }
        _ => finding(claim, Verdict::Open, "Too few responses."),
    }
}

/// The processors of servers, and a cgroup that also binds their kernel threads, if one is available. Dropping it
/// removes the cgroup, so it must outlive the servers.
pub(crate) struct ServerCpus {
    pub(crate) split: Split,
    /// Required because an affinity alone does not bind io-wq workers, which the kernel starts. The error is the reason
    /// why there is no cgroup.
    group: Result<Group, String>,
    /// Port of the first server; the others get the following ones. If `None`, free ports.
    pub(crate) first_port: Option<u16>,
    /// TLS client settings, if the servers speak TLS.
    pub(crate) tls: Option<tls::Client>,
    /// The address that the servers listen on; `None` is that of loopback.
    pub(crate) host: Option<Ipv4Addr>,
}

impl ServerCpus {
    /// Returns processors for servers with this number of workers.
    fn new(bench: &Bench, workers: usize, memory_bytes: Option<u64>) -> ServerCpus {
        let split = Split::of(&pin::available(), workers);
        let cpus = split.is_apart.then(|| split.server.clone());
        let limits = Limits { memory_bytes, cpus, ..Limits::default() };
        let group = match bench.is_root() {
            true => Group::new(&limits).map_err(|failure| failure.to_string()),
            false => Err("cgroups need root".to_owned()),
        };
        ServerCpus { split, group, first_port: None, tls: None, host: None }
    }

    /// Records in the section if kernel workers are not bound.
    pub(crate) fn of_workers(bench: &Bench, section: &mut Section, workers: usize) -> ServerCpus {
        let cpus = ServerCpus::new(bench, workers, None);
        if let Err(reason) = &cpus.group {
            // A fact whose name begins with that of a server would be the reason for the server's missing rows.
            section.skip("pinning io_uring worker threads to the server's processors", reason);
        }
        cpus
    }

    pub(crate) fn of_one_worker(bench: &Bench, section: &mut Section) -> ServerCpus {
        ServerCpus::of_workers(bench, section, 1)
    }

    /// Also limits the memory, page cache included. Without root there are no limits.
    pub(crate) fn limited(
        bench: &Bench,
        workers: usize,
        memory_bytes: Option<u64>,
    ) -> Result<ServerCpus, Failure> {
        let cpus = ServerCpus::new(bench, workers, memory_bytes);
        match &cpus.group {
            Err(reason) if bench.is_root() => Err(Failure::Other(reason.clone())),
            _ => Ok(cpus),
        }
    }

    /// Returns the conditions for a server on these processors.
    pub(crate) fn conditions(&self) -> Conditions {
        let groups = self.group.as_ref().map_or_else(|_| Vec::new(), |group| group.directories.clone());
        Conditions {
            cpus: self.split.server.clone(),
            groups,
            host: self.host,
            port: None,
            tls: self.tls.clone(),
        }
    }
}

/// Resident files that scenarios request: names and sizes in bytes.
pub(crate) const FILES: [(&str, usize); 4] =
    [("1k", 1 << 10), ("10k", 10 << 10), ("100k", 100 << 10), ("1m", 1 << 20)];

/// Writes files of these names and sizes into a directory.
pub(crate) fn write_files<const N: usize>(
    directory: &Path,
    files: [(&str, usize); N],
) -> Result<(), Failure> {
    for (name, bytes) in files {
        let path = directory.join(name);
        fs::write(&path, vec![b'x'; bytes]).map_err(Failure::file("write", &path))?;
    }
    Ok(())
}

/// Starts Ringroad as the origin from which caches are filled. It is the same for all of them.
pub(crate) fn origin(bench: &Bench, files: &Path, conditions: Conditions) -> Result<Server, Failure> {
    Server::start(bench, "origin", &Program::ours(bench), &conditions, |place| {
        let http = "sendfile on;\ndefault_type application/octet-stream;".to_owned();
        let server = format!("location / {{ root {}; }}", files.display());
        Variant::ours("origin", "").configuration(place, &Text { http, server, ..Text::default() })
    })
}

/// Writes a self-signed certificate and its key into one file.
pub(crate) fn write_certificate(path: &Path, kind: KeyKind) -> Result<(), Failure> {
    let made = issue::self_signed_pem(&["bench".to_owned()], kind, SystemTime::now());
    let made = made.map_err(|error| Failure::Other(format!("a certificate: {error}")))?;
    fs::write(path, made).map_err(Failure::file("write", path))
}
