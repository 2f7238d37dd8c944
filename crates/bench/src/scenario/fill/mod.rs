//! `bench fill`: a proxy cache that has nothing of what it is asked for. Every request is a miss: it goes to an origin on
//! this machine, and its answer to the client and to the disk.
//!
//! ```text
//!   generator --> server (a cache, empty) --> origin (a warm file)
//!                    |
//!                    +--> entries on the disk, counted afterwards
//! ```
//!
//! * Each measurement has a new server with an empty folder, under the limit of memory that `bench cold` has too, so that
//!   what is stored has to reach the disk while it is measured.
//! * The origin is ours, with one warm file for each size, and shares the generator's processors. It is the same for all.
//! * A number of requests is made and not a time of them: each server stores the same, and the run has a bound on what it
//!   writes. File systems are synchronised before and after, so that every written byte is counted, and counted once.
//! * A cache may leave answers unstored that it has no time for. So entries are counted, and bytes written are set
//!   against bytes that are there.
//!
//! Here: what is measured, and the measuring. Tables, plots and findings are in [`tables`].

mod tables;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgMatches, Args};

use super::served::{self, Served};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Length, Plan, Target};
use crate::method::cgroup::{Group, Limits};
use crate::method::pause;
use crate::method::pin::{self, Split};
use crate::method::rounds::in_turns;
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::device_of;
use crate::peers::server::{Conditions, Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Section};
use crate::scenario::figures::Rounds;
use crate::scenario::{Prepared, options};

/// Options of `bench fill`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Connections of the clients
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=5000))]
    connections: u32,
}

/// Memory of a server and what it has in the page cache.
const MEMORY_BYTES: u64 = 128 << 20;

/// What an entry takes beyond its body, at the most.
const HEAD_AND_BLOCK_BYTES: u64 = 8 << 10;

/// How long entries may take to be stored after their answers: then what is there is what was stored.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// Sizes of what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    name: &'static str,
    bytes: u64,
    /// Requests of a measurement in a result for keeping: of large answers more than memory has room for. No more of
    /// small ones, because a file system that discards what is freed takes a millisecond to remove each.
    requests: u64,
}

const SIZES: [Size; 3] = [
    Size { name: "4k", bytes: 4 << 10, requests: 2_000 },
    Size { name: "100k", bytes: 100 << 10, requests: 1_500 },
    Size { name: "1m", bytes: 1 << 20, requests: 200 },
];

impl Size {
    fn requests(self, bench: &Bench) -> u64 {
        match bench.scale {
            Scale::Instant => 40,
            Scale::Quick => self.requests / 2,
            Scale::Normal | Scale::Full => self.requests,
        }
    }
}

/// Which server, and how it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ring,
    Epoll,
    Nginx,
    NginxThreads,
}

impl Way {
    const ALL: [Way; 4] = [Way::Ring, Way::Epoll, Way::Nginx, Way::NginxThreads];

    fn name(self) -> &'static str {
        match self {
            Way::Ring => "io_uring",
            Way::Epoll => "epoll",
            Way::Nginx => "nginx",
            Way::NginxThreads => "nginx, aio threads",
        }
    }

    fn is_nginx(self) -> bool {
        matches!(self, Way::Nginx | Way::NginxThreads)
    }

    /// Everything but the engine is the same. Few folders, or they would be half of what is written. The key has the query, which makes each request another one.
    fn configuration(self, place: &Place, origin: u16) -> String {
        let engine = if self == Way::Ring { "io_uring" } else { "epoll" };
        let aio = if self == Way::NginxThreads { " aio threads; aio_write on;" } else { "" };
        format!(
            "worker_processes 1;\n\
             events {{ worker_connections 8192; use {engine}; }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   keepalive_requests 1000000000;\n\
             \x20   proxy_cache_path {folder}/cache levels=2 keys_zone=bench:64m max_size=1000g inactive=4d \
             use_temp_path=off;\n\
             \x20   upstream origin {{ server 127.0.0.1:{origin}; keepalive 256; }}\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port} backlog=4096;\n\
             \x20       location = /ready {{ return 204; }}\n\
             \x20       location / {{\n\
             \x20           proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
             \x20           proxy_cache bench; proxy_cache_key $request_uri; proxy_cache_valid 200 4d;{aio}\n\
             \x20       }}\n\
             \x20   }}\n\
             }}\n",
            folder = place.folder.display(),
            port = place.port
        )
    }
}

/// Entries of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entries {
    count: u64,
    bytes: u64,
}

/// One measurement.
struct Filled {
    served: Served,
    stored: Entries,
    /// The disk's, file system and journal included.
    written_bytes: u64,
}

/// One server with one size.
struct Measured {
    way: Way,
    size: Size,
    rounds: Rounds<Filled>,
}

/// All that was measured.
struct Results {
    measured: Vec<Measured>,
    connections: u32,
    /// Whether memory was limited.
    is_limited: bool,
}

/// Reads the options.
pub(crate) fn prepare(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let options: Options = options(matches)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}

fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    served::raise_descriptors();
    let each: u64 = SIZES.iter().map(|size| (size.bytes + HEAD_AND_BLOCK_BYTES) * size.requests(bench)).sum();
    bench.workspace.need_space(each * Way::ALL.len() as u64 * u64::from(bench.repetitions()))?;
    let mut skipped = Vec::new();
    let mut skip = |name: &str, value: String| skipped.push(Fact { name: name.to_owned(), value });
    if !bench.is_root() {
        skip("memory limit", "control groups need root: what is stored may wait in memory".to_owned());
    }
    let nginx = Peer::Nginx.find(bench);
    let mut ways: Vec<(Way, Program)> = Vec::new();
    for way in Way::ALL {
        match &nginx {
            _ if !way.is_nginx() => ways.push((way, Program::ours(bench))),
            Ok(tool) => ways.push((way, Program::Nginx(tool.clone()))),
            Err(missing) => skip(way.name(), missing.to_string()),
        }
    }
    let split = Split::of(&pin::available(), 1);
    let origin = origin(bench, &split)?;
    let mut configurations: Vec<Fact> = Vec::new();
    let mut measured = Vec::new();
    let caches = RefCell::default();
    for size in SIZES {
        bench.progress(format_args!("fill: {} answers of {}", size.requests(bench), size.name));
        let rounds = in_turns(bench, &mut ways, |(way, program), _| {
            let connections = options.connections;
            let fill = Fill { bench, way: *way, size, split: &split, connections, caches: &caches };
            match fill.measure(program, origin.address().port(), &mut configurations) {
                Err(Failure::Interrupted) => Err(Failure::Interrupted),
                outcome => Ok(outcome.map_err(|failure| failure.to_string())),
            }
        })?;
        let of_way =
            |((way, _), rounds): (&(Way, Program), Rounds<Filled>)| Measured { way: *way, size, rounds };
        measured.extend(ways.iter().zip(rounds).map(of_way));
    }
    origin.end();
    // Not one after the other: ext4 passes over inodes that were freed within seconds, one by one, and whoever is measured
    // next would create its entries among them. Nor at the end of the run: together they are gigabytes.
    for folder in caches.into_inner() {
        fs::remove_dir_all(&folder).map_err(|error| Failure::File {
            path: folder,
            doing: "remove",
            error,
        })?;
    }
    let results = Results { measured, connections: options.connections, is_limited: bench.is_root() };
    Ok(Section { configurations, skipped, ..tables::section(&results) })
}

/// What all caches are filled from.
fn origin(bench: &Bench, split: &Split) -> Result<Server, Failure> {
    let folder = bench.workspace.folder("fill-origin")?;
    for size in SIZES {
        let path = folder.join(size.name);
        let written = fs::write(&path, vec![b'f'; size.bytes as usize]);
        written.map_err(|error| Failure::File { path, doing: "write", error })?;
    }
    let conditions = Conditions { cpus: split.load.clone(), ..Conditions::default() };
    Server::start(bench, "origin", &Program::ours(bench), &conditions, |place| {
        format!(
            "worker_processes 1;\nevents {{ worker_connections 8192; }}\n\
             http {{\n    access_log off;\n    keepalive_requests 1000000000;\n    sendfile on;\n    \
             server {{ listen 127.0.0.1:{} backlog=4096; location / {{ root {}; }} }}\n}}\n",
            place.port,
            folder.display()
        )
    })
}

/// One measurement to be made.
struct Fill<'a> {
    bench: &'a Bench,
    way: Way,
    size: Size,
    split: &'a Split,
    connections: u32,
    /// Folders to be removed at the end.
    caches: &'a RefCell<Vec<PathBuf>>,
}

impl Fill<'_> {
    fn measure(
        &self,
        program: &Program,
        origin: u16,
        configurations: &mut Vec<Fact>,
    ) -> Result<Filled, Failure> {
        let (bench, way) = (self.bench, self.way);
        // A group is removed when it is dropped, and by then its processes have to be gone: so it comes before the server.
        let group = if bench.is_root() {
            let cpus = Some(self.split.server.clone());
            Some(Group::new(&Limits { memory_bytes: Some(MEMORY_BYTES), cpus, ..Limits::default() })?)
        } else {
            None
        };
        let conditions = Conditions {
            cpus: self.split.server.clone(),
            groups: group.as_ref().map(|group| group.folders().to_vec()).unwrap_or_default(),
            ..Conditions::default()
        };
        let mut folder = Path::new("").to_owned();
        let mut server = Server::start(bench, way.name(), program, &conditions, |place| {
            folder = place.folder.join("cache");
            way.configuration(place, origin)
        })?;
        if !configurations.iter().any(|fact| fact.name == way.name()) {
            configurations
                .push(Fact { name: way.name().to_owned(), value: server.configuration().to_owned() });
        }
        let filled = self.load(&mut server, &folder);
        server.end();
        self.caches.borrow_mut().push(folder);
        filled
    }

    fn load(&self, server: &mut Server, folder: &Path) -> Result<Filled, Failure> {
        let connections = u64::from(self.connections);
        // Connections to the origin are there when it is measured, and folders.
        crate::load::run(&self.plan(server, "w", connections)?)?;
        let requests = self.size.requests(self.bench);
        let before = settled(folder, connections);
        let device = device_of(self.bench.workspace.path());
        rustix::fs::sync();
        let disk = disk_traffic(device);
        let served = served::measure(self.bench, server, &self.plan(server, "", requests)?)?;
        let after = settled(folder, before.count + requests);
        rustix::fs::sync();
        let written_bytes = disk_traffic(device).outward.saturating_sub(disk.outward);
        let errors = served.outcome.tally.errors;
        if errors.total() > 0 {
            let answers = served.outcome.tally.answers;
            return Err(Failure::Other(format!(
                "{} errors beside {answers} answers: {errors}",
                errors.total()
            )));
        }
        let stored = Entries {
            count: after.count.saturating_sub(before.count),
            bytes: after.bytes.saturating_sub(before.bytes),
        };
        Ok(Filled { served, stored, written_bytes })
    }

    /// So many requests, each for a name of its own.
    fn plan(&self, server: &Server, name: &str, requests: u64) -> Result<Plan, Failure> {
        let url = server.url(&format!("/{}?{name}{{0..{}}}", self.size.name, requests.max(1) - 1));
        let mut plan = Plan::new(vec![Target::parse(&url)?]);
        plan.connections = self.connections.min(requests.max(1) as u32);
        plan.cpus = if self.split.is_apart { self.split.load.clone() } else { Vec::new() };
        plan.warm_up = Duration::ZERO;
        plan.length = Length::Requests(requests);
        plan.expect.status = Some(200);
        plan.expect.length = Some(self.size.bytes);
        plan.stop = self.bench.workspace.interruption();
        Ok(plan)
    }
}

/// What a cache has once so many entries are there, or nothing comes any more.
fn settled(folder: &Path, wanted: u64) -> Entries {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    let mut entries = entries(folder);
    while entries.count < wanted && Instant::now() < deadline {
        pause(SETTLE_PAUSE);
        let now = self::entries(folder);
        // One pause without a new entry is not the end: a writer may wait for the disk.
        if now == entries && deadline.saturating_duration_since(Instant::now()) < SETTLE_TIMEOUT / 2 {
            break;
        }
        entries = now;
    }
    entries
}

/// Regular files below a folder. What servers keep beside entries is small, and there before the first.
fn entries(folder: &Path) -> Entries {
    let mut sum = Entries::default();
    let Ok(listed) = fs::read_dir(folder) else { return sum };
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
    fn configurations_differ_in_the_engine_only() {
        let place = Place { port: 8080, folder: "/x".into() };
        let text = |way: Way| way.configuration(&place, 99);
        assert_eq!(text(Way::Epoll), text(Way::Nginx));
        assert_eq!(text(Way::Ring), text(Way::Epoll).replace("use epoll", "use io_uring"));
        assert_eq!(text(Way::NginxThreads).replace(" aio threads; aio_write on;", ""), text(Way::Nginx));
    }

    #[test]
    fn entries_are_counted_in_all_folders() {
        let folder = std::env::temp_dir().join(format!("ringroad-fill-{}", std::process::id()));
        fs::create_dir_all(folder.join("a/b")).unwrap();
        fs::write(folder.join("a/b/1"), "12345").unwrap();
        fs::write(folder.join("a/2"), "123").unwrap();
        assert_eq!(entries(&folder), Entries { count: 2, bytes: 8 });
        assert_eq!(settled(&folder, 2), Entries { count: 2, bytes: 8 });
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(entries(&folder), Entries::default());
    }
}
