//! `bench crowd`: the cost of open idle connections, and latencies below full load. Both are more typical of a server's
//! operation than the full load of few clients, which is easier to measure.
//!
//! Cost: `return 200` over 100 and 1 000 keep-alive connections, all active, and over 1 000 active of 10 000. Each
//! round starts a new server and measures its memory without connections, and with the idle ones after one response
//! each. The difference is the memory retained per idle client. The CPU time per request shows whether the server's
//! event loop visits idle connections.
//!
//! Half load: requests are due at half of the rate that nginx achieves with 100 connections, independent of the server
//! (open loop). A latency counts from the time when its request was due, so a server cannot look fast by responding
//! less.
//!
//! This file has the measurement and the tables. No write-up has such tables. They are for an operator with ten
//! thousand clients instead of a hundred: each server's growth from few to many connections is the relevant figure.

use std::time::Duration;

use clap::Args;

use super::comparison::{self, Compared, EPOLL, Measured, NGINX, RING, SERVERS, Text, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, Of, at, figure, finding_of_cases, under};
use super::served::{self, CPU, P50, P99, P999, RATE, Served, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{LoopKind, Plan};
use crate::method::pin::Split;
use crate::method::stats::Summary;
use crate::method::{SERVER_DESCRIPTORS, memory, raise_descriptors};
use crate::peers::client::Idle;
use crate::peers::server::{Instance, Program, Server};
use crate::report::model::{Finding, Results, Run, Section, Table};

#[derive(Args, Clone, Debug)]
pub(crate) struct CrowdOptions {
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=50_000))]
    connections: u32,
}

/// Length of one measurement at full load, for published results.
const LENGTH: Duration = Duration::from_secs(1);
/// The same at half load. One stall of 4 ms (a turn of another task, at 250 ticks a second) affects a thousandth of the
/// requests of 4 s, or more with those queued behind it: in a shorter measurement p99.9 would depend on a single stall.
const LENGTH_HALF: Duration = Duration::from_secs(6);

/// Maximum number of active connections beside idle ones; cases without idle connections also use fewer.
const ACTIVE: u32 = 1000;
const FEW: u32 = 100;

/// Number of file descriptors that a program needs beside its connections.
const DESCRIPTORS_BESIDE: u32 = 300;

/// Maximum wanted ratio of the CPU time per request with the most connections to that with the fewest.
const GROWTH_WANTED: f64 = 1.25;

const MEMORY: Figure = figure("without connections", "KiB", 0, Of::Value("memory_bytes", 1.0 / 1024.0));
const EACH: Figure =
    figure("more per idle connection", "bytes", 0, Of::Value("bytes_per_idle_connection", 1.0));

/// Returns the configuration of a server: identical for all except the engine. Idle connections outlast the
/// measurement.
fn configuration(variant: &Variant, instance: &Instance, open: u32) -> String {
    // nginx closes idle connections when less than a sixteenth of its connections is free.
    let connections = open + open / 4 + DESCRIPTORS_BESIDE;
    let http = "keepalive_timeout 1h;".to_owned();
    let server = "location / { return 200; }".to_owned();
    variant.configuration(instance, &Text { connections, http, server, ..Text::default() })
}

impl Scenario for CrowdOptions {
    const NAME: &'static str = "crowd";
    const MINUTES: u32 = 3;
    const TITLE: &'static str = "Many connections, most of them idle; latency at half load";
    const QUESTION: &'static str = "What does a request cost with many idle connections, how much memory does each idle connection need, and what is the latency at half load?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let crowd = ConnectionCounts::choose(bench, self, section);
        let place = ServerCpus::of_one_worker(bench, section);
        let mut variants = comparison::programs(bench, section, SERVERS, "");
        let labels = |(variant, _): &(Variant, Program)| crowd.labels(variant);
        let measure = |(variant, program): &mut (Variant, Program), round: u32, section: &mut Section| {
            bench.progress(format_args!("crowd: {}, round {}", variant.name, round + 1));
            let server = Server::start(bench, variant.name, program, &place.conditions(), |instance| {
                configuration(variant, instance, crowd.connections)
            })?;
            section.configure(variant.name, &server.configuration);
            crowd.measure(bench, server, &place.split)
        };
        comparison::measure_all(bench, section, &mut variants, labels, measure)?;
        let half = half_load(bench, section, &crowd, &place)?;
        Ok(crowd.results(Measurements::of(section), half))
    }
}

/// Returns the labels of a measurement with this number of open connections.
fn open(connections: u32) -> Labels {
    at([("connections", &connections)])
}

/// Returns the labels of a measurement with half of the load, see [`half_load`].
fn half() -> Labels {
    at([("load", &"half")])
}

struct ConnectionCounts {
    /// Maximum number of concurrently open connections.
    connections: u32,
    active: u32,
    few: u32,
}

impl ConnectionCounts {
    fn choose(bench: &Bench, options: &CrowdOptions, section: &mut Section) -> ConnectionCounts {
        // A test needs few connections.
        if bench.scale == Scale::Instant {
            return ConnectionCounts { connections: 60, active: 20, few: 10 };
        }
        // The server may have the same limit of descriptors as this process, and must not run short of them.
        let descriptors = raise_descriptors(SERVER_DESCRIPTORS);
        let room = u32::try_from(descriptors).unwrap_or(u32::MAX).saturating_sub(DESCRIPTORS_BESIDE) / 5 * 4;
        let connections = options.connections.min(room).max(FEW);
        if connections < options.connections {
            let why = format!(
                "the limit is {descriptors} descriptors per process: {connections} connections were open"
            );
            section.skip(&format!("{} connections", options.connections), &why);
        }
        ConnectionCounts::of(connections)
    }

    /// Returns three different numbers, so that each label belongs to one case.
    fn of(connections: u32) -> ConnectionCounts {
        let active = ACTIVE.min(connections / 2);
        ConnectionCounts { connections, active, few: FEW.min(active / 2) }
    }

    /// Returns the labels of the results of a round.
    fn labels(&self, variant: &Variant) -> Vec<Labels> {
        [self.few, self.active, self.connections]
            .map(|connections| labels_of(variant, &open(connections)))
            .into()
    }

    /// Measures a complete round: memory, then the load with idle connections, then without them. Idle connections
    /// come first, since memory that a server allocated for a load would otherwise be available for them.
    fn measure(&self, bench: &Bench, mut server: Server, split: &Split) -> Result<Vec<Measured>, Failure> {
        let idle = |server: &Server, count: u32| Idle::open(server.address(), None, count, "/");
        let alone = idle(&server, 1)?;
        let memory_bytes = memory::user_space_bytes(server.child.tree());
        drop(alone);
        let idle_count = self.connections - self.active;
        let idle = idle(&server, idle_count)?;
        let each = memory::of_each(memory_bytes, memory::user_space_bytes(server.child.tree()), idle_count);
        let load = |server: &mut Server, connections: u32| -> Result<Run, Failure> {
            let plan = served::load(bench, split, connections, LENGTH).for_url(&server.url("/"))?;
            served::warm_up(bench, &plan)?;
            served::measure_run(bench, server, &plan)
        };
        let mut crowd = load(&mut server, self.active)?;
        // All of them must still be open, or the load had fewer connections than stated.
        idle.check_open().map_err(|failure| server.with_log(failure))?;
        drop(idle);
        // The other figures do not depend on it.
        if let Ok(each) = each {
            crowd.set("bytes_per_idle_connection", each);
        }
        crowd.set("memory_bytes", memory_bytes as f64);
        let (active, few) = (load(&mut server, self.active)?, load(&mut server, self.few)?);
        Ok(vec![Ok(few), Ok(active), Ok(crowd)])
    }

    /// Returns tables, a plot and findings. `server` is the server whose `rate` was halved.
    fn results(&self, measurements: Measurements<'_>, (server, rate): (&str, f64)) -> Results {
        let half_rows = under(&comparison::rows(&SERVERS), &half());
        let title = ("crowd-half", "Latency by percentile at half load");
        let servers = Compared { measurements, variants: &SERVERS };
        let (active, all) = (self.active, self.connections);
        let words = format!("CPU time per request: {active} of {all} connections are active");
        Results {
            tables: vec![
                self.costs(measurements),
                self.memory(measurements),
                halves(measurements, server, rate, &half_rows),
            ],
            plots: vec![measurements.curves(title, "ms", &half_rows)],
            findings: vec![self.growth(measurements), latency_finding(measurements)],
            rankings: vec![
                servers.ranking(&words, CPU, &open(all)),
                servers.ranking("Memory of an idle connection", EACH, &open(all)),
                servers.ranking(&format!("Latency at {rate:.0} requests per second, p99"), P99, &half()),
            ],
        }
    }

    /// Returns a column for each number of connections, and the growth from the smallest to the largest, computed round
    /// by round: both figures of a round are of the same server process.
    fn costs(&self, measurements: Measurements<'_>) -> Table {
        let mut columns: Vec<_> = [self.few, self.active, self.connections]
            .map(|connections| CPU.at(&format!("{connections} open"), open(connections)))
            .into();
        let growth = CPU.over(&format!("{} / {}", self.connections, self.few), open(self.few));
        columns.push(growth.where_(open(self.connections)));
        let title = format!(
            "return 200 over keep-alive connections, at most {} of them active: CPU time of the server",
            self.active
        );
        measurements.table(&title, &comparison::rows(&SERVERS), &columns)
    }

    /// Memory without connections is listed beside the memory per connection: a server may allocate memory for all
    /// possible connections at its start, which the figure per connection would hide.
    fn memory(&self, measurements: Measurements<'_>) -> Table {
        let title = format!(
            "User-space memory of the server, with {} idle connections that have received one response each",
            self.connections - self.active
        );
        let columns = [MEMORY.shown(), EACH.shown()];
        Compared { measurements, variants: &SERVERS }.table(&title, &open(self.connections), &columns)
    }

    /// Returns the finding about the growth. No write-up has this claim: operators want to rely on it.
    fn growth(&self, measurements: Measurements<'_>) -> Finding {
        let of = |variant: &Variant, connections| labels_of(variant, &open(connections));
        let case = |one: Variant| (one.name.to_owned(), of(&one, self.connections), of(&one, self.few));
        let claim =
            format!("With many open connections a request costs at most {GROWTH_WANTED} times as much.");
        let words = ("All connections as a ratio to few: ", "Not measured.");
        let is_met = |ratio: &Summary| ratio.median <= GROWTH_WANTED;
        measurements.finding_of_ratios(claim, words, CPU, [RING, EPOLL].map(case), is_met)
    }
}

/// Measures all servers in turn at half of the rate that nginx achieves (without nginx, Ringroad on epoll). Returns the
/// server whose rate was used, and half of its rate.
fn half_load(
    bench: &Bench,
    section: &mut Section,
    crowd: &ConnectionCounts,
    place: &ServerCpus,
) -> Result<(&'static str, f64), Failure> {
    let variants = (&SERVERS[..], ", half load");
    let mut servers = comparison::start(bench, section, place, variants, |variant, instance| {
        configuration(variant, instance, crowd.connections)
    })?;
    let plan =
        |server: &Server| served::load(bench, &place.split, crowd.few, LENGTH_HALF).for_url(&server.url("/"));
    for (_, server) in &servers {
        served::warm_up(bench, &plan(server)?)?;
    }
    let mut full = Err("no server to measure".to_owned());
    for (variant, server) in servers.iter_mut().rev() {
        let plan = plan(server)?;
        let served = served::measure(bench, server, &plan).and_then(Served::without_errors);
        full = comparison::or_reason(served)?.map(|served| (variant.name, served));
        if full.is_ok() {
            break;
        }
    }
    let (halved, full) = full.map_err(Failure::Other)?;
    let rate = full.outcome.responses_per_second() / 2.0;
    bench.progress(format_args!("crowd: {rate:.0} requests per second, half of the rate of {halved}"));
    let labels = |(variant, _): &(Variant, Server)| labels_of(variant, &half());
    comparison::measure(bench, section, &mut servers, labels, |(_, server), _, _| {
        let plan = Plan { loop_kind: LoopKind::Open { rate }, ..plan(server)? };
        let mut run = served::measure_run(bench, server, &plan)?;
        run.set("wanted_requests_per_second", rate);
        Ok(run)
    })?;
    Ok((halved, rate))
}

/// Returns the table for half load. The rate is the first column, so that a server that does not achieve it is obvious:
/// its latencies then include queueing.
fn halves(measurements: Measurements<'_>, of: &str, rate: f64, rows: &[(String, Labels)]) -> Table {
    let mut columns = vec![RATE.shown()];
    for percentile in [P50, P99, P999] {
        let over = percentile.over(&format!("{} of nginx's", percentile.name), NGINX.labels());
        columns.extend([percentile.shown(), over]);
    }
    columns.push(CPU.shown());
    let title = format!("return 200, open loop of {rate:.0} requests per second: half of the rate of {of}");
    measurements.table(&title, rows, &columns)
}

/// Returns the finding about latencies. The verdict considers the spread, because at half load a percentile depends
/// more on other activity of the machine than on the server.
fn latency_finding(measurements: Measurements<'_>) -> Finding {
    let claim = "At half load the latency is at most nginx's, within the spread.";
    let cases = [P50, P99, P999].map(|figure| {
        let case = (figure.name.to_owned(), labels_of(&RING, &half()), labels_of(&NGINX, &half()));
        measurements.ratios(figure, [case], |ratio| ratio.low <= 1.0)
    });
    finding_of_cases(claim, "io_uring, as a ratio to nginx: ", &cases.concat(), "nginx was not measured.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_open_connections_yield_three_different_cases() {
        for connections in [FEW, ACTIVE, 1200, 10_000] {
            let ConnectionCounts { few, active, .. } = ConnectionCounts::of(connections);
            assert!(0 < few && few < active && active < connections, "{few} {active} {connections}");
        }
        let ConnectionCounts { few, active, .. } = ConnectionCounts::of(10_000);
        assert_eq!((few, active), (FEW, ACTIVE));
    }

    #[test]
    fn the_server_allows_more_connections_than_are_opened() {
        let instance = Instance { host: std::net::Ipv4Addr::LOCALHOST, port: 8080, directory: "/x".into() };
        assert!(configuration(&RING, &instance, 10_000).contains("worker_connections 12800;"));
    }
}
