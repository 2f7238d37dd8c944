//! `bench fill`: a proxy cache that has nothing of what it is asked for. Every request is a miss: it goes to an origin on
//! this machine, and its response to the client and to the disk.
//!
//! ```text
//!   generator --> server (a cache, empty) --> origin (a warm file)
//!                    |
//!                    +--> entries on the disk, counted afterwards
//! ```
//!
//! * Each measurement has a new server with an empty directory, under the limit of memory that `bench cold` has too, so that
//!   what is stored has to reach the disk while it is measured.
//! * The origin is ours, with one warm file for each size, and shares the generator's processors. It is the same for all.
//! * A number of requests is made and not a time of them: each server stores the same, and the run has a bound on what it
//!   writes. File systems are synchronised before and after, so that every written byte is counted, and counted once.
//! * A cache may leave responses unstored that it has no time for. So entries are counted, and bytes written are set
//!   against bytes that are there.
//!
//! Here: measurement and tables. A rate alone can be bought by storing less, so the share of responses that
//! were stored stands in the same row; and by leaving what is stored in memory, so bytes that reached the disk do too.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::described::Scenario;
use super::lineup::{self, Compared, EPOLL, NGINX, READY, RING, Text, Way, of};
use super::served::{self, CPU, P50, P99, RATE};
use super::sheet::{Figure, Labels, Of, Sheet, at, axis, figure, judged};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Length, Plan};
use crate::method::cgroup::Limits;
use crate::method::pause;
use crate::method::pin::{self, Split};
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::device_of;
use crate::peers::server::{Conditions, Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{AxisScale, Run, Section, Table, Told};

/// Options of `bench fill`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FillOptions {
    /// Connections of the clients
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=5000))]
    connections: u32,
}

/// Memory of a server and what it has in the page cache.
const MEMORY_BYTES: u64 = 128 << 20;

/// What an entry takes beyond its body, at the most.
const HEAD_AND_BLOCK_BYTES: u64 = 8 << 10;

/// How long entries may take to be stored after their responses: then what is there is what was stored.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// Sizes of what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FillSize {
    name: &'static str,
    bytes: u64,
    /// Requests of a measurement in a result for keeping: of large responses more than memory has room for. No more of
    /// small ones, because a file system that discards what is freed takes a millisecond to remove each.
    requests: u64,
}

const SIZES: [FillSize; 3] = [
    FillSize { name: "4k", bytes: 4 << 10, requests: 2_000 },
    FillSize { name: "100k", bytes: 100 << 10, requests: 1_500 },
    FillSize { name: "1m", bytes: 1 << 20, requests: 200 },
];

impl FillSize {
    fn requests(self, bench: &Bench) -> u64 {
        match bench.scale {
            Scale::Instant => 40,
            Scale::Quick => self.requests / 2,
            Scale::Normal | Scale::Full => self.requests,
        }
    }

    fn labels(self) -> Labels {
        at([("size", &self.name), ("KiB", &(self.bytes >> 10))])
    }
}

/// nginx as it comes, and as it writes with threads.
const WAYS: [Way; 4] =
    [RING, EPOLL, NGINX, Way::of("nginx, aio threads", Peer::Nginx).with(" aio threads; aio_write on;")];

/// Bytes that reach the disk for each byte that is stored, at the most.
const WRITTEN_WANTED: f64 = 1.2;

const STORED: Figure = figure("stored", "%", 1, Of::Quotient("stored_entries", "requests", 100.0));
/// Of entries, their heads included: what a cache keeps.
const WRITTEN: Figure =
    figure("written / stored", "bytes", 2, Of::Value("written_bytes_per_stored_byte", 1.0));
const THROUGHPUT: Figure = figure("throughput", "MB/s", 0, Of::Quotient("body_bytes", "seconds", 1e-6));

/// Everything but the engine is the same. Few directories, or they would be half of what is written. The key has the query,
/// which makes each request another one.
fn configuration(way: &Way, instance: &Instance, origin: u16) -> String {
    let (directory, more) = (instance.directory.display(), way.location);
    let http = format!(
        "proxy_cache_path {directory}/cache levels=2 keys_zone=bench:64m max_size=1000g inactive=4d use_temp_path=off;\n\
         upstream origin {{ server 127.0.0.1:{origin}; keepalive 256; }}"
    );
    let server = format!(
        "{READY}\nlocation / {{\n    \
         proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";\n    \
         proxy_cache bench; proxy_cache_key $request_uri; proxy_cache_valid 200 4d;{more}\n}}"
    );
    way.configuration(instance, &Text { http, server, ..Text::default() })
}

/// Entries of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries {
    pub(super) count: u64,
    bytes: u64,
}

impl Scenario for FillOptions {
    const NAME: &'static str = "fill";
    const SECONDS: u32 = 160;
    const HELP: &'static str =
        "A proxy cache that is being filled: misses of three sizes, and what is written to the disk for them";
    const TITLE: &'static str = "A cache that is being filled";
    const QUESTION: &'static str = "How fast are responses that a proxy has to fetch and store, and how many bytes does it write for them?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<(), Failure> {
        served::raise_descriptors();
        let one = |size: &FillSize| (size.bytes + HEAD_AND_BLOCK_BYTES) * size.requests(bench);
        let each: u64 = SIZES.iter().map(one).sum();
        bench.workspace.need_space(each * WAYS.len() as u64 * u64::from(bench.repetitions()))?;
        if !bench.is_root() {
            section.skip("memory limit", "control groups need root: stored responses may wait in memory");
        }
        let mut ways = lineup::programs(bench, section, WAYS, "");
        let split = Split::of(&pin::available(), 1);
        let origin = origin(bench, &split)?;
        let caches = RefCell::default();
        for size in SIZES {
            bench.progress(format_args!("fill: {} responses of {}", size.requests(bench), size.name));
            let labels = |(way, _): &(Way, Program)| of(way, &size.labels());
            lineup::measure(bench, section, &mut ways, labels, |(way, program), _, section| {
                let connections = self.connections;
                let fill = Fill { bench, way: *way, size, split: &split, connections, caches: &caches };
                lineup::or_reason(fill.measure(program, origin.address().port(), section))
            })?;
        }
        origin.end();
        // Not one after the other: ext4 passes over inodes that were freed within seconds, one by one, and the server
        // that is measured next would create its entries among them. Nor at the end of the run: together they are gigabytes.
        for directory in caches.into_inner() {
            fs::remove_dir_all(&directory).map_err(Failure::file("remove", &directory))?;
        }
        let told = told(Sheet::of(section), self.connections, bench.is_root());
        section.tell(told);
        Ok(())
    }
}

/// A table for each size, throughput by size, and two findings.
fn told(sheet: Sheet<'_>, connections: u32, is_limited: bool) -> Told {
    // By bytes: the rates of the sizes are too far apart for one axis, what they move is not.
    let plot = sheet.plot(
        ("fill-throughput", "Bytes a second that are fetched, sent and stored, by size"),
        ("KiB", axis("size", "KiB", AxisScale::Logarithmic)),
        (THROUGHPUT, axis("throughput", "MB/s", AxisScale::Logarithmic)),
        &lineup::rows(&WAYS),
    );
    // No write-up has these claims: they are what a cache should not be worse at than the one that everybody has.
    let speed = SIZES.iter().filter_map(|size| {
        let ours = |figure| sheet.ratio(figure, &of(&RING, &size.labels()), &of(&NGINX, &size.labels()));
        let (rate, p99) = (ours(RATE)?.median, ours(P99)?.median);
        let words = format!("{}: {rate:.2} of the rate, {p99:.2} of the p99", size.name);
        Some((words, rate >= 1.0 && p99 <= 0.5))
    });
    let claim = "A cache is filled on the ring at nginx's rate or more, with at most half of its p99.";
    let speed = judged(claim, "", &speed.collect::<Vec<_>>(), "nginx was not measured.");
    // Small entries cannot hold it on a file system of 4 KiB blocks, where head and body of one take two: the sentence has
    // the figure of each size, and nginx's, which writes the same blocks.
    let written = SIZES.iter().filter_map(|size| {
        let written = sheet.middle(WRITTEN, &of(&RING, &size.labels()))?;
        let nginx = sheet.middle(WRITTEN, &of(&NGINX, &size.labels()));
        let nginx = nginx.map_or_else(String::new, |nginx| format!(" (nginx {nginx:.2})"));
        Some((format!("{} {written:.2}{nginx}", size.name), written <= WRITTEN_WANTED))
    });
    let claim =
        format!("At most {WRITTEN_WANTED} bytes are written for each that is stored, file system included.");
    let written = judged(claim, "On the ring: ", &written.collect::<Vec<_>>(), "Nothing was measured.");
    let standing = |size: FillSize| {
        let title = format!("Responses of {} that are fetched and stored", size.name);
        Compared { sheet, ways: &WAYS }.standing(&title, RATE, &size.labels())
    };
    Told {
        tables: SIZES.map(|size| table(sheet, size, connections, is_limited)).into(),
        plots: vec![plot],
        findings: vec![speed, written],
        standings: SIZES.map(standing).into(),
    }
}

/// Ratios are to nginx as it comes, whose other mode is a row of its own.
fn table(sheet: Sheet<'_>, size: FillSize, connections: u32, is_limited: bool) -> Table {
    let memory = match is_limited {
        true => format!("{} MiB of memory", MEMORY_BYTES >> 20),
        false => "no memory limit".to_owned(),
    };
    let title = format!(
        "Responses of {} that are fetched and stored, one worker, {connections} connections, {memory}",
        size.name
    );
    let nginx = || at([("server", &NGINX.name)]);
    let columns = [
        RATE.at("answers", Labels::new()),
        RATE.over("of nginx's", nginx()),
        P50.shown(),
        P99.shown(),
        P99.over("of nginx's p99", nginx()),
        CPU.shown(),
        STORED.shown(),
        WRITTEN.shown(),
    ];
    Compared { sheet, ways: &WAYS }.table(&title, &size.labels(), &columns)
}

/// What all caches are filled from.
fn origin(bench: &Bench, split: &Split) -> Result<Server, Failure> {
    let directory = bench.workspace.directory("fill-origin")?;
    for size in SIZES {
        let path = directory.join(size.name);
        let written = fs::write(&path, vec![b'f'; size.bytes as usize]);
        written.map_err(Failure::file("write", &path))?;
    }
    served::origin(bench, &directory, Conditions { cpus: split.load.clone(), ..Conditions::default() })
}

/// One measurement to be made.
struct Fill<'a> {
    bench: &'a Bench,
    way: Way,
    size: FillSize,
    split: &'a Split,
    connections: u32,
    /// Directories to be removed at the end.
    caches: &'a RefCell<Vec<PathBuf>>,
}

impl Fill<'_> {
    fn measure(&self, program: &Program, origin: u16, section: &mut Section) -> Result<Run, Failure> {
        let (bench, way) = (self.bench, self.way);
        let limits = Limits {
            memory_bytes: Some(MEMORY_BYTES),
            cpus: Some(self.split.server.clone()),
            ..Limits::default()
        };
        let (_group, conditions) = served::limited(bench, &self.split.server, &limits)?;
        let mut directory = Path::new("").to_owned();
        let mut server = Server::start(bench, way.name, program, &conditions, |instance| {
            directory = instance.directory.join("cache");
            configuration(&way, instance, origin)
        })?;
        section.configure(way.name, server.configuration());
        let filled = self.load(&mut server, &directory);
        server.end();
        self.caches.borrow_mut().push(directory);
        filled
    }

    fn load(&self, server: &mut Server, directory: &Path) -> Result<Run, Failure> {
        let connections = u64::from(self.connections);
        // Connections to the origin are there when it is measured, and directories.
        crate::load::run(&self.plan(server, "w", connections)?)?;
        let requests = self.size.requests(self.bench);
        let before = settled(directory, connections);
        let device = device_of(self.bench.workspace.path());
        rustix::fs::sync();
        let disk = disk_traffic(device);
        let served = served::measure(self.bench, server, &self.plan(server, "", requests)?)?;
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
        // Of nothing that was stored there is no share, and no number that JSON could hold.
        if stored_bytes > 0 {
            add("written_bytes_per_stored_byte", written_bytes as f64 / stored_bytes as f64);
        }
        Ok(run)
    }

    /// So many requests, each for a name of its own.
    fn plan(&self, server: &Server, name: &str, requests: u64) -> Result<Plan, Failure> {
        let requests = requests.max(1);
        let connections = self.connections.min(requests as u32);
        let mut plan = served::load(self.bench, self.split, connections, Duration::ZERO);
        (plan.length, plan.expect) = (Length::Requests(requests), served::whole(self.size.bytes));
        served::aimed(&plan, server, &format!("/{}?{name}{{0..{}}}", self.size.name, requests - 1))
    }
}

/// What a cache has once so many entries are there, or nothing comes any more.
fn settled(directory: &Path, wanted: u64) -> Entries {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    let mut entries = entries(directory);
    while entries.count < wanted && Instant::now() < deadline {
        pause(SETTLE_PAUSE);
        let now = self::entries(directory);
        // One pause without a new entry is not the end: a writer may wait for the disk.
        if now == entries && deadline.saturating_duration_since(Instant::now()) < SETTLE_TIMEOUT / 2 {
            break;
        }
        entries = now;
    }
    entries
}

/// Regular files below a directory. What servers keep beside entries is small, and there before the first.
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
