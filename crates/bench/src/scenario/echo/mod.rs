//! `bench echo`: the least that a server does with its network. Messages that are sent back, on epoll and on the ring
//! with a receive for each message or one for all of them; and connections that are accepted and closed, for what an
//! accept costs. The other half of write-up 004, which had measured such a server before it turned to nginx.
//!
//! How it is measured:
//!
//! * The server is this program's own ([`server`]), over the same engines as the web server and without it: what differs
//!   between two rows is the engine, and how it was asked. All of them run at once and are loaded in turns.
//! * The other end ([`client`]) has the processors that are left, and sends the next message on a connection when the one
//!   before is back. It checks every byte.
//! * Processor time is that of the server's process, from before the connections are made until they are closed: a
//!   thousand of them are some milliseconds of it. System calls are counted in a load of their own.
//! * Connections by the thousand a second end in a few seconds what ports there are, unless those that wait for their
//!   end (TIME_WAIT) can be used again. The server closes first here, so that the client may.
//!
//! Here: what is measured, and the measuring. What is made of it: [`tables`].

mod client;
mod owners;
pub(crate) mod server;
mod tables;

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::{ArgMatches, Args};
use io::probe::Probe;

use self::client::{Load, Task};
use super::served::{self, Served, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::method::pin::{self, Split};
use crate::method::process::{Child, Launch};
use crate::method::rounds::in_turns;
use crate::report::model::{Fact, Section};
use crate::scenario::figures::Rounds;
use crate::scenario::{Prepared, options};

/// Options of `bench echo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Bytes of a message [default: 64, 1024, 16384]
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=BYTES_MAX))]
    sizes: Vec<u32>,
    /// Numbers of connections [default: 1, 10, 100, 1000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Vec<u32>,
    /// The first port of the servers [default: ports that are free]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

/// The longest message: a server has a thousand buffers of that size.
const BYTES_MAX: i64 = 64 << 10;
/// Length of one measurement in a result for keeping.
const LENGTH: Duration = Duration::from_millis(1500);
/// Connections at which sizes are varied.
const CONNECTIONS_OF_SIZES: u32 = 100;
/// How long a server may take until it listens.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Which server. The same for messages and for connections: what is asked for once and again differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Connections and listener wait in an epoll set.
    Epoll,
    /// On the ring, each receive and each accept asked for anew.
    RingSingle,
    /// On the ring, asked for once; receives take the kernel's choice of the buffers it was given.
    RingMulti,
}

impl Way {
    /// In the order of tables.
    const ALL: [Way; 3] = [Way::Epoll, Way::RingSingle, Way::RingMulti];

    /// As it stands in tables.
    fn name(self) -> &'static str {
        match self {
            Way::Epoll => "epoll",
            Way::RingSingle => "io_uring, single-shot",
            Way::RingMulti => "io_uring, multishot",
        }
    }

    /// The words that make the server so.
    fn arguments(self) -> [&'static str; 6] {
        let (engine, shots) = match self {
            // On epoll "multi" tells the engine that the caller goes on, so that it need not be asked in between.
            Way::Epoll => ("epoll", "multi"),
            Way::RingSingle => ("uring", "single"),
            Way::RingMulti => ("uring", "multi"),
        };
        ["--engine", engine, "--receive", shots, "--accept", shots]
    }
}

/// What a figure depends on beside the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    task: Task,
    /// Open at the same time.
    connections: u32,
}

/// Everything about one server at one point.
struct Measured {
    point: Point,
    way: Way,
    /// In the order of the rounds, so that ratios can be formed pair by pair.
    rounds: Rounds<Served>,
    /// System calls for each message or connection, or why they are not known.
    calls: Result<f64, String>,
}

/// All that was measured.
struct Results {
    measured: Vec<Measured>,
    /// Why the ring is not among them, where it is not.
    without_ring: Option<String>,
    points: Points,
    split: Split,
}

/// Which combinations are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Points {
    sizes: Vec<u32>,
    connections: Vec<u32>,
    /// Connections that are accepted at a time.
    accepts: Vec<u32>,
    /// Every size with every number of connections.
    product: bool,
}

/// Reads the options.
pub(crate) fn prepare(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let options: Options = options(matches)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}

/// Measures all points by all ways, in turns.
fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    served::raise_descriptors();
    let points = Points::choose(bench, options);
    let probe = Probe::run();
    let without_ring = probe.uring_refusal().map(|refusal| format!("no io_uring here: {}", refusal.cause));
    let place = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    let mut results =
        Results { measured: Vec::new(), without_ring, points: points.clone(), split: place.split.clone() };
    let mut configurations = Vec::new();
    let mut first_port = options.port;
    for (purpose, of_purpose) in [("messages", points.messages()), ("connections", points.accepts())] {
        let mut servers = Vec::new();
        for way in Way::ALL {
            if way != Way::Epoll && results.without_ring.is_some() {
                continue;
            }
            let port = first_port.unwrap_or(0);
            first_port = first_port.map(|port| port.saturating_add(1));
            let server = Server::start(bench, way, purpose, &points, port, &place)?;
            let (name, value) = (format!("{}, {purpose}", way.name()), server.command.clone());
            configurations.push(Fact { name, value });
            servers.push((way, server));
        }
        for point in of_purpose {
            bench.progress(format_args!("echo: {}", tables::point_words(point)));
            results.measured.extend(measure(bench, &mut servers, point, &place.split)?);
        }
    }
    let mut section = Section { configurations, ..tables::section(&results) };
    if let Some(reason) = &place.without_group {
        section.skip("kernel workers held on the server's processors", reason);
    }
    if let Some(reason) = &results.without_ring {
        section.skip("io_uring", reason);
    }
    Ok(section)
}

impl Points {
    /// Which points there are: what the user asked for, else what the scale has room for.
    fn choose(bench: &Bench, options: &Options) -> Points {
        let (sizes, connections, accepts): (&[u32], &[u32], &[u32]) = match bench.scale {
            Scale::Instant => (&[64, 16384], &[1, 10], &[10]),
            Scale::Quick => (&[64, 16384], &[1, 100, 1000], &[100]),
            Scale::Normal => (&[64, 1024, 16384], &[1, 10, 100, 1000], &[1, 100]),
            Scale::Full => (&[64, 256, 1024, 4096, 16384], &[1, 10, 100, 500, 1000], &[1, 10, 100, 1000]),
        };
        let or = |named: &[u32], fallback: &[u32]| {
            if named.is_empty() { fallback.to_vec() } else { named.to_vec() }
        };
        let accepts = or(&options.connections, accepts);
        Points {
            sizes: or(&options.sizes, sizes),
            connections: or(&options.connections, connections),
            accepts,
            product: bench.scale == Scale::Full,
        }
    }

    /// The size with which connections are varied.
    fn first_size(&self) -> u32 {
        self.sizes.first().copied().unwrap_or(64)
    }

    /// The connections with which sizes are varied: a hundred, or what is nearest to it.
    fn middle_connections(&self) -> u32 {
        let distance = |connections: &&u32| connections.abs_diff(CONNECTIONS_OF_SIZES);
        self.connections.iter().min_by_key(distance).copied().unwrap_or(CONNECTIONS_OF_SIZES)
    }

    /// A point of the table by message size and connections.
    fn at(bytes: u32, connections: u32) -> Point {
        Point { task: Task::Messages { bytes: bytes as usize }, connections }
    }

    /// Messages of the first size over each number of connections.
    fn by_connections(&self) -> Vec<Point> {
        self.connections.iter().map(|&connections| Points::at(self.first_size(), connections)).collect()
    }

    /// Messages of each size over the middle number of connections.
    fn by_size(&self) -> Vec<Point> {
        self.sizes.iter().map(|&bytes| Points::at(bytes, self.middle_connections())).collect()
    }

    /// One thing at a time, or all.
    fn messages(&self) -> Vec<Point> {
        let mut points = self.by_connections();
        let of_size =
            |&bytes: &u32| self.connections.iter().map(move |&connections| Points::at(bytes, connections));
        let more = if self.product { self.sizes.iter().flat_map(of_size).collect() } else { self.by_size() };
        for point in more {
            if !points.contains(&point) {
                points.push(point);
            }
        }
        points
    }

    /// The points of connections that are accepted and closed.
    fn accepts(&self) -> Vec<Point> {
        let point = |&connections: &u32| Point { task: Task::Connections, connections };
        self.accepts.iter().map(point).collect()
    }

    /// What a server's buffers have to hold.
    fn longest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or_default().max(4096)
    }
}

/// An echo server that listens. Dropping it ends it.
struct Server {
    child: Child,
    port: u16,
    /// What it was started with.
    command: String,
}

impl Server {
    /// Starts a server that echoes in this way, in a process of its own.
    fn start(
        bench: &Bench,
        way: Way,
        purpose: &str,
        points: &Points,
        port: u16,
        place: &ServerCpus,
    ) -> Result<Server, Failure> {
        let folder = bench.workspace.folder(&format!("echo-{way:?}-{purpose}").to_lowercase())?;
        let ready = folder.join("port");
        let mut words: Vec<String> = way.arguments().map(str::to_owned).to_vec();
        words.extend(["--purpose", purpose, "--buffer"].map(str::to_owned));
        words.extend([points.longest().to_string(), "--port".to_owned(), port.to_string()]);
        let command = format!("ringroad bench {} {}", server::COMMAND, words.join(" "));
        let conditions = place.conditions();
        let launch = Launch::new(way.name(), Path::new("/proc/self/exe"))
            .arguments(["bench", server::COMMAND])
            .arguments(words)
            .arguments(["--ready".into(), ready.clone().into_os_string()])
            .cpus(&conditions.cpus)
            .groups(&conditions.groups);
        let mut child = launch.start(&folder.join("output"))?;
        child.wait_until(READY_LIMIT, || ready.exists())?;
        let text = fs::read_to_string(&ready);
        let text = text.map_err(|error| Failure::File { path: ready, doing: "read", error })?;
        let port = text.parse().map_err(|_| child.problem("told no port"))?;
        Ok(Server { child, port, command })
    }
}

/// All servers at one point, in turns.
fn measure(
    bench: &Bench,
    servers: &mut [(Way, Server)],
    point: Point,
    split: &Split,
) -> Result<Vec<Measured>, Failure> {
    let load = |server: &Server, length: Duration| Load {
        port: server.port,
        task: point.task,
        connections: point.connections,
        length,
        cpus: split.load.clone(),
        stop: bench.workspace.interruption(),
    };
    for (_, server) in servers.iter() {
        // As in `served::warm_up`: what is wrong is told by the measurement.
        let _ = client::run(&load(server, served::warm_up_length(bench)));
    }
    let length = bench.length(LENGTH);
    let rounds = in_turns(bench, servers, |(_, server), _| {
        let child = &server.child;
        let served = served::observe(|| child.cpu_time(), || client::run(&load(server, length)))?;
        bench.check_interrupted()?;
        if server.child.ended().is_some() {
            return Err(server.child.problem("ended while it was measured"));
        }
        // A connection that ends early takes its messages with it: then the others were measured, and fewer of them.
        let errors = &served.outcome.tally.errors;
        Ok(if errors.total() > 0 { Err(format!("errors: {errors}")) } else { Ok(served) })
    })?;
    let mut measured = Vec::new();
    for ((way, server), rounds) in servers.iter().zip(rounds) {
        bench.check_interrupted()?;
        let length = served::calls_length(bench);
        let calls = served::calls_during(server.child.tree(), || client::run(&load(server, length)));
        measured.push(Measured { point, way: *way, rounds, calls });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(product: bool) -> Points {
        Points { sizes: vec![64, 1024], connections: vec![1, 100, 1000], accepts: vec![100], product }
    }

    #[test]
    fn one_thing_is_varied_at_a_time() {
        let words = |points: &Points| -> Vec<String> {
            points.messages().into_iter().map(tables::point_words).collect()
        };
        assert_eq!(
            words(&points(false)),
            [
                "64 bytes, 1 connection",
                "64 bytes, 100 connections",
                "64 bytes, 1000 connections",
                "1024 bytes, 100 connections"
            ]
        );
        assert_eq!(points(true).messages().len(), 6);
        assert_eq!(points(false).longest(), 4096);
    }

    #[test]
    fn servers_differ_in_engine_and_shots_only() {
        let [epoll, single, multi] = Way::ALL.map(Way::arguments);
        assert_eq!((epoll[1], single[1], multi[1]), ("epoll", "uring", "uring"));
        assert_eq!((single[3], single[5], multi[3], multi[5]), ("single", "single", "multi", "multi"));
    }
}
