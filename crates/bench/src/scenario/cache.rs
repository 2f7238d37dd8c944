//! `bench cache`: the performance of cache operations, and their effect on clients.
//!
//! * **One fetch for many.** Many clients concurrently request one object of 1 MiB that is not cached and that the
//!   origin sends over several seconds. The time of the last byte of the last client is compared with that of a single
//!   client.
//! * **A start with many entries**, with the page cache dropped where permitted: from the snapshot that the server
//!   saved, and without it, by reading its directories. Until the index is complete, lookups access the disk.
//! * **The expiry of many entries.** They become inactive at the same time (`inactive=`) and are removed while requests
//!   that do not use the cache are served at a fixed rate. Their latency is compared with that before the removal.
//!
//! The server itself creates the entries, from responses of 1 000 bytes.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use super::comparison::{
    self, Compared, Measured, NGINX, READY, RING, SERVERS, Text, Variant, WHEN, labels_of,
};
use super::described::Scenario;
use super::fill::entries;
use super::measurements::{Figure, Labels, Measurements, Of, Rows, at, figure, finding_of_cases, under};
use super::origin::{Origin, read_request};
use super::served::{self, P99, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Length, LoopKind, Plan};
use crate::method::{page_cache, pause};
use crate::peers::client;
use crate::peers::server::{Instance, Program, Server};
use crate::report::model::{Results, Run, Section, Table};

#[derive(Args, Clone, Debug)]
pub(crate) struct CacheOptions {
    /// Clients that concurrently request one object
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    clients: u32,
    /// Number of entries for the start and for the expiry [default: 100000; 20000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=4_000_000))]
    entries: Option<u64>,
    /// Requests per second during the removal
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

const OBJECT_BYTES: usize = 1 << 20;
/// Number of pieces in which the object is sent, with a pause before each.
const PIECES: u32 = 100;
/// Timeout until entries are in the index, and until removals begin.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of connections that fill a cache, and of those measured during removals.
const CONNECTIONS: u32 = 64;
const CONNECTIONS_BESIDE: u32 = 16;
const LENGTH_BESIDE: Duration = Duration::from_secs(5);
/// Maximum disk space of an entry of 1 000 bytes.
const ENTRY_BYTES: u64 = 8 << 10;

const LAST: Figure = figure("last byte", "s", 2, Of::Value("last_byte_seconds", 1.0));
const FETCHES: Figure = figure("requests to the origin", "", 0, Of::Value("origin_requests", 1.0));
const KNOWN: Figure = figure("entries known", "s", 2, Of::Value("known_seconds", 1.0));
const MEASURED: Figure = figure("sizes known", "s", 2, Of::Value("measured_seconds", 1.0));
const REMOVED: Figure = figure("removed", "1/s", 0, Of::Quotient("removed_entries", "seconds", 1.0));

struct CacheRun<'a> {
    bench: &'a Bench,
    options: &'a CacheOptions,
    place: ServerCpus,
    entries: u64,
}

impl Scenario for CacheOptions {
    const NAME: &'static str = "cache";
    const MINUTES: u32 = 3;
    const QUICK_SHARE: u32 = 25;
    const TITLE: &'static str =
        "Work of a cache: coalesced requests, loading the index, and removing many entries";
    const QUESTION: &'static str = "How many requests reach the origin, how long does loading the index take after a start, and do removals delay requests?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let entries = self.entries.unwrap_or(bench.scaled(300, 20_000, 100_000));
        bench.workspace.need_space(entries * ENTRY_BYTES * SERVERS.len() as u64)?;
        if !bench.is_root() {
            section.skip(
                "dropping the page cache",
                "needs root: directories stay in the page cache before a start",
            );
        }
        let place = ServerCpus::of_one_worker(bench, section);
        let life = CacheRun { bench, options: self, place, entries };
        life.shared(section)?;
        let mut subjects = Vec::new();
        for (variant, program) in comparison::programs(bench, section, REMOVING, "") {
            bench.progress(format_args!("cache: {entries} entries of {}", variant.name));
            let filled = comparison::or_reason(life.fill(&variant, &program))?;
            subjects.push((variant, program, filled));
        }
        let labels = |how: &&'static str| started_labels(how);
        let starts = &mut STARTS.to_vec();
        comparison::measure(bench, section, starts, labels, |how, _, section| match &subjects[0] {
            (variant, program, Ok(())) => life.start(variant, program, how, section),
            (.., Err(reason)) => Err(Failure::Other(reason.clone())),
        })?;
        // Measured only once, because the entries are removed.
        for (variant, program, filled) in &subjects {
            let ended = match filled {
                Ok(()) => comparison::or_reason(life.ended(variant, program, section))?,
                Err(reason) => Err(reason.clone()),
            };
            let runs = ended.unwrap_or_else(|reason| [Err(reason.clone()), Err(reason)]);
            for (when, run) in WHEN.into_iter().zip(runs) {
                comparison::file(section, run, &labels_of(variant, &ended_labels(when)), 0);
            }
        }
        Ok(life.results(Measurements::of(section)))
    }
}

/// The servers whose removals are compared.
const REMOVING: [Variant; 2] = [RING, NGINX];

const STARTS: [&str; 2] = ["from its snapshot", "by reading its directories"];

fn started_labels(how: &str) -> Labels {
    at([("part", &"start"), ("how", &how)])
}

fn ended_labels(when: &str) -> Labels {
    at([("part", &"end"), ("when", &when)])
}

fn shared_labels(clients: u32) -> Labels {
    at([("part", &"one fetch"), ("clients", &clients)])
}

/// Returns the configuration of a server that is its own origin, with a cache in `directory`.
fn configuration(variant: &Variant, instance: &Instance, directory: &Path, inactive: Duration) -> String {
    let (directory, inactive, port) = (directory.display(), inactive.as_secs(), instance.port);
    // nginx loads and removes entries in separate processes, with pauses by default: configured without pauses, like
    // Ringroad.
    let loop_kind = match variant.peer {
        Some(_) => {
            " loader_files=1000000 loader_sleep=1 manager_files=1000000 manager_sleep=1 manager_threshold=60s"
        }
        None => "",
    };
    let http = format!(
        "proxy_cache_path {directory} levels=2 keys_zone=entries:512m use_temp_path=off inactive={inactive}s{loop_kind};"
    );
    let counters = if variant.peer.is_none() { "location = /counters { cache_counters; }\n" } else { "" };
    let server = format!(
        "{READY}\n{counters}location = /plain {{ return 200 \"a small answer\"; }}\n\
         location /origin/ {{ add_header Cache-Control max-age=86400; return 200 \"{body}\"; }}\n\
         location /kept/ {{\n    proxy_pass http://127.0.0.1:{port}/origin/; proxy_cache entries; \
         proxy_cache_key $uri;\n}}",
        body = "x".repeat(1000)
    );
    variant.configuration(instance, &Text { http, server, ..Text::default() })
}

impl CacheRun<'_> {
    fn directory(&self, variant: &Variant) -> PathBuf {
        self.bench.workspace.path.join(format!("cache-of-{}", variant.name))
    }

    fn clients(&self) -> u32 {
        if self.bench.scale == Scale::Instant { 20 } else { self.options.clients }
    }

    fn server(&self, variant: &Variant, program: &Program, inactive: Duration) -> Result<Server, Failure> {
        let directory = self.directory(variant);
        Server::start(self.bench, variant.name, program, &self.place.conditions(), |instance| {
            configuration(variant, instance, &directory, inactive)
        })
    }

    /// Measures many clients of one object, and a single client. Each round has a new object.
    fn shared(&self, section: &mut Section) -> Result<(), Failure> {
        let length = self.bench.length(Duration::from_secs(5));
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let origin = Origin::start(self.place.split.load_cpu(), move |socket| {
            // An error ends the connection: the client has closed it.
            let _ = send_slowly(socket, length, &counted);
        })?;
        let variants = (&SERVERS[..], ", one fetch");
        let mut servers =
            comparison::start(self.bench, section, &self.place, variants, |variant, instance| {
                let (directory, port) = (instance.directory.display(), origin.port);
                let http =
                    format!("proxy_cache_path {directory}/cache keys_zone=entries:1m use_temp_path=off;");
                let lock = "proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s;";
                let server = format!(
                    "{READY}\nlocation / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache entries; \
                 proxy_cache_key $uri; {lock} }}"
                );
                variant.configuration(instance, &Text { http, server, ..Text::default() })
            })?;
        for number in [1, self.clients()] {
            self.bench.progress(format_args!("cache: one object to {number} clients"));
            let labels = |(variant, _): &(Variant, Server)| labels_of(variant, &shared_labels(number));
            comparison::measure(self.bench, section, &mut servers, labels, |(_, server), round, _| {
                count.store(0, Ordering::Relaxed);
                let plan = Plan {
                    length: Length::Requests(u64::from(number)),
                    timeout: length + Duration::from_secs(30),
                    expect: served::complete_file(OBJECT_BYTES as u64),
                    ..served::load(self.bench, &self.place.split, number, length)
                };
                let plan = plan.for_url(&server.url(&format!("/{number}-{round}")))?;
                let served = served::measure(self.bench, server, &plan)?.without_errors()?;
                let mut run = served.run();
                run.set("last_byte_seconds", served.outcome.latency_us(100.0) / 1e6);
                run.set("origin_requests", count.load(Ordering::Relaxed) as f64);
                Ok(run)
            })?;
        }
        Ok(())
    }

    /// Fills a server's cache and shuts the server down gracefully, so that it saves its index.
    fn fill(&self, variant: &Variant, program: &Program) -> Result<(), Failure> {
        let mut server = self.server(variant, program, Duration::from_secs(86_400))?;
        let url = server.url(&format!("/kept/{{0..{}}}", self.entries - 1));
        let plan = served::load(self.bench, &self.place.split, CONNECTIONS, Duration::ZERO).for_url(&url)?;
        let plan = Plan { length: Length::Requests(self.entries), ..plan };
        served::measure(self.bench, &mut server, &plan)?;
        server.quit();
        Ok(())
    }

    /// Measures a start until all entries and their sizes are known.
    fn start(
        &self,
        variant: &Variant,
        program: &Program,
        how: &str,
        section: &mut Section,
    ) -> Result<Run, Failure> {
        if how == STARTS[1] {
            remove_snapshot(&self.directory(variant))?;
        }
        if self.bench.is_root() {
            page_cache::drop_all()?;
        }
        let begun = Instant::now();
        let server = self.server(variant, program, Duration::from_secs(86_400))?;
        section.configure(variant.name, &server.configuration);
        let known = self.until(&server, "ringroad_cache_loaded{zone=\"entries\"} 1", begun)?;
        let measured = self.until(&server, "ringroad_cache_measured{zone=\"entries\"} 1", begun)?;
        server.quit();
        Ok(Run::of([("known_seconds", known), ("measured_seconds", measured)]))
    }

    /// Returns the seconds until the counters contain a line.
    fn until(&self, server: &Server, line: &str, begun: Instant) -> Result<f64, Failure> {
        while !client::get(server.address(), "/counters").is_ok_and(|said| said.contains(line)) {
            self.bench.check_interrupted()?;
            if begun.elapsed() > KNOWN_TIMEOUT {
                return Err(Failure::Other(format!("the cache does not report {line}")));
            }
            pause(Duration::from_millis(10));
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Measures latencies before entries are removed, and during the removal; returns both results.
    fn ended(
        &self,
        variant: &Variant,
        program: &Program,
        section: &mut Section,
    ) -> Result<[Measured; 2], Failure> {
        let directory = self.directory(variant);
        // The snapshot has the times of last use, which may be too long ago: the entries would be removed before the
        // first measurement.
        remove_snapshot(&directory)?;
        let inactive = self.bench.length(LENGTH_BESIDE) * 2 + Duration::from_secs(3);
        let mut server = self.server(variant, program, inactive)?;
        section.configure(&format!("{}, removals", variant.name), &server.configuration);
        let plan = served::load(self.bench, &self.place.split, CONNECTIONS_BESIDE, LENGTH_BESIDE);
        let loop_kind = LoopKind::Open { rate: f64::from(self.options.rate) };
        let plan = Plan { loop_kind, ..plan }.for_url(&server.url("/plain"))?;
        served::warm_up(self.bench, &plan)?;
        let measure =
            |server: &mut Server| comparison::or_reason(served::measure_run(self.bench, server, &plan));
        let alone = measure(&mut server)?;
        let (before, begun) = (entries(&directory).count, Instant::now());
        self.bench.progress(format_args!("cache: waiting until entries of {} become inactive", variant.name));
        while entries(&directory).count > before - before / 20 {
            self.bench.check_interrupted()?;
            if begun.elapsed() > inactive + KNOWN_TIMEOUT || self.bench.is_late() {
                return Ok([alone, Err("nothing was removed".to_owned())]);
            }
            pause(Duration::from_millis(100));
        }
        let at_first = entries(&directory).count;
        let mut beside = measure(&mut server)?;
        if let Ok(run) = &mut beside {
            run.set("removed_entries", at_first.saturating_sub(entries(&directory).count) as f64);
        }
        Ok([alone, beside])
    }

    /// Returns three tables, among them the latencies during removals, and the findings.
    fn results(&self, measurements: Measurements<'_>) -> Results {
        let clients = self.clients();
        let lines = comparison::disturbance_lines(&REMOVING, ended_labels);
        let title = "Latency of requests that need no cache, without and during removals";
        let fetches = SERVERS.iter().filter(|variant| variant.peer.is_none()).filter_map(|variant| {
            let fetches = measurements.middle(FETCHES, &labels_of(variant, &shared_labels(clients)))?;
            Some((format!("{} {fetches:.0}", variant.name), fetches == 1.0))
        });
        let fetched = finding_of_cases(
            format!(
                "{clients} clients that request one object that is not stored cause one request to the origin."
            ),
            "Requests to the origin: ",
            &fetches.collect::<Vec<_>>(),
            "Not measured.",
        );
        let beside = |variant: Variant| {
            let [alone, beside] = WHEN.map(|when| labels_of(&variant, &ended_labels(when)));
            (variant.name.to_owned(), beside, alone)
        };
        let noticed = measurements.finding_of_ratios(
            "Removals do not delay other requests (99th percentile at most doubled).",
            ("p99 during removals, as a ratio to p99 without them: ", "Not measured."),
            P99,
            REMOVING.map(beside),
            |ratio| ratio.median <= 2.0,
        );
        let servers = Compared { measurements, variants: &SERVERS };
        let shared = format!(
            "One object that is not stored, requested by {clients} clients: time until the last client has it"
        );
        Results {
            tables: vec![
                shared_table(measurements, clients),
                self.start_table(measurements),
                self.end_table(measurements),
            ],
            plots: vec![measurements.curves(("cache-removals", title), "ms", &lines)],
            findings: vec![fetched, noticed],
            rankings: vec![
                servers.ranking(&shared, LAST, &shared_labels(clients)),
                servers.ranking("Latency during removals of entries, p99", P99, &ended_labels("beside")),
            ],
        }
    }

    fn start_table(&self, measurements: Measurements<'_>) -> Table {
        let cold = if self.bench.is_root() { "a dropped page cache" } else { "a warm page cache" };
        let title = format!("Loading the index: {} entries and {cold}", self.entries);
        let rows: Rows = STARTS.map(|how| (how.to_owned(), started_labels(how))).into();
        measurements.table(&title, &rows, &[KNOWN.shown(), MEASURED.shown()])
    }

    fn end_table(&self, measurements: Measurements<'_>) -> Table {
        let mut columns = comparison::disturbance_columns();
        columns.push(REMOVED.at(REMOVED.name, at([("when", &"beside")])));
        let (entries, rate) = (self.entries, self.options.rate);
        let title =
            format!("{entries} entries become inactive: {rate} requests per second that need no cache");
        let rows = under(&comparison::rows(&REMOVING), &at([("part", &"end")]));
        measurements.table(&title, &rows, &columns)
    }
}

fn shared_table(measurements: Measurements<'_>, clients: u32) -> Table {
    let columns = [
        LAST.at("alone", shared_labels(1)),
        LAST.at("last of all", shared_labels(clients)),
        LAST.over("last / alone", shared_labels(1)).where_(shared_labels(clients)),
        FETCHES.at(FETCHES.name, shared_labels(clients)),
    ];
    let title = format!("One object of 1 MiB that is not stored, requested by {clients} clients");
    measurements.table(&title, &comparison::rows(&SERVERS), &columns)
}

/// Removes the snapshot of the index that a server saved at its end.
fn remove_snapshot(directory: &Path) -> Result<(), Failure> {
    let listed = fs::read_dir(directory).map_err(Failure::file("read", directory))?;
    for path in listed.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("ringroad.index") {
            fs::remove_file(&path).map_err(Failure::file("remove", &path))?;
        }
    }
    Ok(())
}

/// Sends the object in response to each request of a connection, over the duration `length`.
fn send_slowly(mut socket: TcpStream, length: Duration, count: &AtomicU64) -> std::io::Result<()> {
    let piece = vec![b'o'; OBJECT_BYTES / PIECES as usize];
    while read_request(&mut socket)?.is_some() {
        count.fetch_add(1, Ordering::Relaxed);
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nContent-Length: {OBJECT_BYTES}\r\n\r\n"
        );
        socket.write_all(head.as_bytes())?;
        let mut left = OBJECT_BYTES;
        while left > 0 {
            pause(length / PIECES);
            let part = piece.len().min(left);
            socket.write_all(&piece[..part])?;
            left -= part;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_configuration_has_counters_and_only_that_of_nginx_a_pace() {
        let instance = Instance { host: std::net::Ipv4Addr::LOCALHOST, port: 8080, directory: "/x".into() };
        let text =
            |variant: Variant| configuration(&variant, &instance, Path::new("/c"), Duration::from_secs(9));
        assert!(text(RING).contains("cache_counters") && text(RING).contains("inactive=9s;"));
        assert!(!text(NGINX).contains("cache_counters") && text(NGINX).contains("manager_sleep"));
    }
}
