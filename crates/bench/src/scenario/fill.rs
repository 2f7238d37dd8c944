//! `bench fill`: a proxy cache with only misses. Every request is passed to an origin on this machine, and its response
//! is sent to the client and written to the disk.
//!
//! ```text
//!   generator --> server (a cache, empty) --> origin (a warm file)
//!                    |
//!                    +--> entries on the disk, counted afterwards
//! ```
//!
//! * Each measurement has a new server with an empty cache directory, under the memory limit of `bench cold`, so that
//!   entries must reach the disk during the measurement.
//! * The origin is Ringroad, with one warm file for each size, on the generator's processors. It is the same for all
//!   servers.
//! * A fixed number of requests is made, instead of a fixed duration: each server stores the same data, and the amount
//!   of written data is bounded. File systems are synced before and after, so that every written byte is counted
//!   exactly once.
//! * A cache under pressure may skip storing responses. So entries are counted, and written bytes are related to stored
//!   bytes.
//!
//! This file has the measurement and the tables. A cache could improve its rate by storing less, so each row includes
//! the share of stored responses. It could also leave entries in memory, so each row includes the bytes written to the
//! disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::comparison::{self, Compared, EPOLL, NGINX, READY, RING, Text, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, Of, at, figure, finding_of_cases};
use super::served::{self, CPU, P50, P99, RATE, ServerCpus};
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::{Length, Plan};
use crate::method::pause;
use crate::method::pin::{self, Split};
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::device_of;
use crate::peers::server::{Conditions, Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Results, Run, Section, Table};

#[derive(Args, Clone, Debug)]
pub(crate) struct FillOptions {
    /// Number of client connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=5000))]
    connections: u32,
}

/// Memory limit of a server including its page cache.
const MEMORY_BYTES: u64 = 128 << 20;

/// Maximum disk space of an entry beside its body.
const HEAD_AND_BLOCK_BYTES: u64 = 8 << 10;

/// Time that entries may take to be stored after their responses; entries stored later are not counted.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FillSize {
    name: &'static str,
    bytes: u64,
    /// Number of requests of a measurement for published results: for large responses more than the memory can hold.
    /// For small ones few, because a file system that discards freed blocks needs a millisecond to remove each file.
    requests: u64,
}

const SIZES: [FillSize; 3] = [
    FillSize { name: "4k", bytes: 4 << 10, requests: 2_000 },
    FillSize { name: "100k", bytes: 100 << 10, requests: 1_500 },
    FillSize { name: "1m", bytes: 1 << 20, requests: 200 },
];

impl FillSize {
    fn requests(self, bench: &Bench) -> u64 {
        bench.scaled(40, self.requests / 2, self.requests)
    }

    fn labels(self) -> Labels {
        at([("size", &self.name), ("KiB", &(self.bytes >> 10))])
    }
}

/// The servers; nginx in its default configuration, and writing with threads.
const VARIANTS: [Variant; 4] =
    [RING, EPOLL, NGINX, Variant::of("nginx, aio threads", Peer::Nginx).with(" aio threads; aio_write on;")];

/// Maximum wanted number of bytes written to the disk per stored byte.
const WRITTEN_WANTED: f64 = 1.2;

const STORED: Figure = figure("stored", "%", 1, Of::Quotient("stored_entries", "requests", 100.0));
/// Stored bytes are those of entries including their headers.
const WRITTEN: Figure =
    figure("written / stored", "bytes", 2, Of::Value("written_bytes_per_stored_byte", 1.0));

/// Returns the configuration: identical for all except the engine. Few directories, since they would otherwise account
/// for half of the written data. The key includes the query, which makes each request unique.
fn configuration(variant: &Variant, instance: &Instance, directory: &Path, origin: u16) -> String {
    let (directory, more) = (directory.display(), variant.location);
    let http = format!(
        "proxy_cache_path {directory} levels=2 keys_zone=bench:64m max_size=1000g inactive=4d use_temp_path=off;\n\
         upstream origin {{ server 127.0.0.1:{origin}; keepalive 256; }}"
    );
    let server = format!(
        "{READY}\nlocation / {{\n    \
         proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";\n    \
         proxy_cache bench; proxy_cache_key $request_uri; proxy_cache_valid 200 4d;{more}\n}}"
    );
    variant.configuration(instance, &Text { http, server, ..Text::default() })
}

/// Number and size of the entries of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries {
    pub(super) count: u64,
    bytes: u64,
}

impl Scenario for FillOptions {
    const NAME: &'static str = "fill";
    const MINUTES: u32 = 3;
    const TITLE: &'static str = "Filling a cache";
    const QUESTION: &'static str = "At which rate does a proxy fetch, send and store responses, and how many bytes does it write to the disk for them?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let one = |size: &FillSize| (size.bytes + HEAD_AND_BLOCK_BYTES) * size.requests(bench);
        let each: u64 = SIZES.iter().map(one).sum();
        bench.workspace.need_space(each * VARIANTS.len() as u64 * u64::from(bench.repetitions()))?;
        if !bench.is_root() {
            section.skip("memory limit", "cgroups need root: stored responses may stay in the page cache");
        }
        let mut variants = comparison::programs(bench, section, VARIANTS, "");
        let split = Split::of(&pin::available(), 1);
        let origin = origin(bench, &split)?;
        let caches = bench.workspace.directory("fill-caches")?;
        for size in SIZES {
            bench.progress(format_args!("fill: {} responses of {}", size.requests(bench), size.name));
            let labels = |(variant, _): &(Variant, Program)| labels_of(variant, &size.labels());
            comparison::measure(bench, section, &mut variants, labels, |(variant, program), _, section| {
                let connections = self.connections;
                let fill = Fill { bench, variant: *variant, size, connections, caches: &caches };
                fill.measure(program, origin.address().port(), section)
            })?;
        }
        // Removed for all servers together: ext4 skips recently freed inodes one by one, and the next measured server
        // would create its entries among them. But not only at the end of the run, because together the caches occupy
        // gigabytes.
        fs::remove_dir_all(&caches).map_err(Failure::file("remove", &caches))?;
        Ok(results(Measurements::of(section), self.connections, bench.is_root()))
    }
}

/// Returns a table and a ranking for each size, and two findings.
fn results(measurements: Measurements<'_>, connections: u32, is_limited: bool) -> Results {
    // No write-up has these claims: a cache should not be worse than nginx, which is the most common one.
    let speed = SIZES.iter().filter_map(|size| {
        let ours = |figure| {
            measurements.ratio(figure, &labels_of(&RING, &size.labels()), &labels_of(&NGINX, &size.labels()))
        };
        let (rate, p99) = (ours(RATE)?.median, ours(P99)?.median);
        let words = format!("{}: {rate:.2} of the rate, {p99:.2} of the p99", size.name);
        Some((words, rate >= 1.0 && p99 <= 0.5))
    });
    let claim = "io_uring fills a cache at least at nginx's rate, with at most half of its p99.";
    let speed = finding_of_cases(claim, "", &speed.collect::<Vec<_>>(), "nginx was not measured.");
    // Small entries cannot achieve it on a file system with blocks of 4 KiB, where header and body occupy two blocks:
    // the sentence includes the figure of each size, and nginx's, which writes the same blocks.
    let written = SIZES.iter().filter_map(|size| {
        let written = measurements.middle(WRITTEN, &labels_of(&RING, &size.labels()))?;
        let nginx = measurements.middle(WRITTEN, &labels_of(&NGINX, &size.labels()));
        let nginx = nginx.map_or_else(String::new, |nginx| format!(" (nginx {nginx:.2})"));
        Some((format!("{} {written:.2}{nginx}", size.name), written <= WRITTEN_WANTED))
    });
    let claim = format!(
        "At most {WRITTEN_WANTED} bytes are written to the disk per byte stored, including the file system's."
    );
    let written = finding_of_cases(claim, "io_uring: ", &written.collect::<Vec<_>>(), "Not measured.");
    let ranking = |size: FillSize| {
        let title = format!("Responses of {}, fetched and stored", size.name);
        Compared { measurements, variants: &VARIANTS }.ranking(&title, RATE, &size.labels())
    };
    Results {
        tables: SIZES.map(|size| table(measurements, size, connections, is_limited)).into(),
        findings: vec![speed, written],
        rankings: SIZES.map(ranking).into(),
        ..Results::default()
    }
}

/// Returns the table of one size. Ratios are relative to nginx's default; its other mode is a separate row.
fn table(measurements: Measurements<'_>, size: FillSize, connections: u32, is_limited: bool) -> Table {
    let memory = match is_limited {
        true => format!("{} MiB of memory", MEMORY_BYTES >> 20),
        false => "no memory limit".to_owned(),
    };
    let title = format!(
        "Responses of {}, fetched and stored, one worker, {connections} connections, {memory}",
        size.name
    );
    let nginx = || at([("server", &NGINX.name)]);
    let columns = [
        RATE.at("responses", Labels::new()),
        RATE.over("of nginx's", nginx()),
        P50.shown(),
        P99.shown(),
        P99.over("of nginx's p99", nginx()),
        CPU.shown(),
        STORED.shown(),
        WRITTEN.shown(),
    ];
    Compared { measurements, variants: &VARIANTS }.table(&title, &size.labels(), &columns)
}

/// Starts the origin of all caches.
fn origin(bench: &Bench, split: &Split) -> Result<Server, Failure> {
    let directory = bench.workspace.directory("fill-origin")?;
    served::write_files(&directory, SIZES.map(|size| (size.name, size.bytes as usize)))?;
    served::origin(bench, &directory, Conditions { cpus: split.load.clone(), ..Conditions::default() })
}

/// The parameters of one measurement.
struct Fill<'a> {
    bench: &'a Bench,
    variant: Variant,
    size: FillSize,
    connections: u32,
    /// Parent of the cache directories, to be removed afterwards.
    caches: &'a Path,
}

impl Fill<'_> {
    fn measure(&self, program: &Program, origin: u16, section: &mut Section) -> Result<Run, Failure> {
        let (bench, variant) = (self.bench, self.variant);
        let place = ServerCpus::limited(bench, 1, Some(MEMORY_BYTES))?;
        let mut directory = PathBuf::new();
        let mut server = Server::start(bench, variant.name, program, &place.conditions(), |instance| {
            directory = self.caches.join(instance.directory.file_name().unwrap_or_default());
            configuration(&variant, instance, &directory, origin)
        })?;
        section.configure(variant.name, &server.configuration);
        self.load(&mut server, &place.split, &directory)
    }

    fn load(&self, server: &mut Server, split: &Split, directory: &Path) -> Result<Run, Failure> {
        let connections = u64::from(self.connections);
        // A preceding load opens the connections to the origin and creates the cache directories.
        crate::load::run(&self.plan(server, split, "w", connections)?)?;
        let requests = self.size.requests(self.bench);
        let before = settled(directory, connections);
        let device = device_of(&self.bench.workspace.path);
        rustix::fs::sync();
        let disk = disk_traffic(device);
        let served = served::measure(self.bench, server, &self.plan(server, split, "", requests)?)?;
        let after = settled(directory, before.count + requests);
        rustix::fs::sync();
        let written_bytes = disk_traffic(device).outward.saturating_sub(disk.outward);
        served.outcome.check()?;
        let mut run = served.run();
        let mut add = |name: &str, figure: f64| run.set(name, figure);
        let stored_bytes = after.bytes.saturating_sub(before.bytes);
        add("stored_entries", after.count.saturating_sub(before.count) as f64);
        add("stored_bytes", stored_bytes as f64);
        add("written_bytes", written_bytes as f64);
        // Without stored entries the share is undefined, and JSON has no such number.
        if stored_bytes > 0 {
            add("written_bytes_per_stored_byte", written_bytes as f64 / stored_bytes as f64);
        }
        Ok(run)
    }

    /// Returns a load of this number of requests, each with a unique name.
    fn plan(&self, server: &Server, split: &Split, name: &str, requests: u64) -> Result<Plan, Failure> {
        let requests = requests.max(1);
        let connections = self.connections.min(requests as u32);
        let path = format!("/{}?{name}{{0..{}}}", self.size.name, requests - 1);
        let plan = served::load(self.bench, split, connections, Duration::ZERO);
        let (length, expect) = (Length::Requests(requests), served::complete_file(self.size.bytes));
        Plan { length, expect, ..plan }.for_url(&server.url(&path))
    }
}

/// Waits until the cache has the wanted number of entries, or no more entries appear; returns its entries.
fn settled(directory: &Path, wanted: u64) -> Entries {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    let mut entries = entries(directory);
    while entries.count < wanted && Instant::now() < deadline {
        pause(SETTLE_PAUSE);
        let now = self::entries(directory);
        // A single pause without a new entry is not the end: a writer may wait for the disk.
        if now == entries && deadline.saturating_duration_since(Instant::now()) < SETTLE_TIMEOUT / 2 {
            break;
        }
        entries = now;
    }
    entries
}

/// Counts the regular files below a directory. Other files of a server are small, and exist before the first entry.
pub(super) fn entries(directory: &Path) -> Entries {
    let mut sum = Entries::default();
    let Ok(listed) = fs::read_dir(directory) else { return sum };
    for entry in listed.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            let below = entries(&entry.path());
            sum.count += below.count;
            sum.bytes += below.bytes;
        } else {
            sum.count += 1;
            sum.bytes += metadata.len();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_in_all_directories() {
        let directory = std::env::temp_dir().join(format!("ringroad-fill-{}", std::process::id()));
        fs::create_dir_all(directory.join("a/b")).unwrap();
        fs::write(directory.join("a/b/1"), "12345").unwrap();
        fs::write(directory.join("a/2"), "123").unwrap();
        assert_eq!(entries(&directory), Entries { count: 2, bytes: 8 });
        assert_eq!(settled(&directory, 2), Entries { count: 2, bytes: 8 });
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(entries(&directory), Entries::default());
    }
}
