//! `bench http`: an answer that needs no disk (`return 200`), over connections that are kept and over new ones, with
//! few and many of them, on a ring, on epoll, and by nginx. Repeats write-up 004.
//!
//! How it is measured:
//!
//! * All servers of one number of workers run at once, on the same processors, and are asked in turns: what drifts on
//!   the machine drifts for all of them. Those that are not asked wait in the kernel and cost nothing.
//! * A load of its own warms a server up. Then the server's processor time is read, the load is made, and the time is
//!   read again: it includes the accepting of the connections, a few microseconds for each, and nothing else.
//! * System calls are counted in a further load, because counting slows each of them down.
//! * With as many workers as there are processors the generator has none for itself. Those rows say so: they compare
//!   servers with each other, and say little about what one could do alone.
//!
//! How a connection is accepted differs in three ways. Epoll tells that a listener has connections, and each is then
//! accepted by a call. A single-shot accept on the ring brings one and is asked for anew. A multishot accept brings
//! all, but where several rings wait at one listener the first would get every connection: so this server uses it
//! where a thread has its listener for itself, with one worker or with `reuseport`.
//!
//! With `deferred` a listener tells of a connection when its first request is there, which saves a turn for each: it
//! stands beside the same without it for short connections to one worker.
//!
//! Beside them files that are in memory ([`warm`]), where nginx is not the only peer that counts, and requests that are
//! passed on to an origin ([`proxied`]).
//!
//! Here: what is measured, and the measuring. What is made of it: [`tables`].

mod cost;
mod proxied;
mod tables;
mod warm;

use std::time::Duration;

use clap::{ArgMatches, Args};

use super::served::{self, Served, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Length, Plan, Reuse};
use crate::method::pin::{self, Split};
use crate::method::rounds::in_turns;
use crate::peers::server::{Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Section};
use crate::scenario::{Prepared, options};

/// Options of `bench http`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Numbers of workers [default: 1, 2, 4 and so on, and all processors]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Vec<u16>,
    /// Numbers of connections [default: 1, 10, 100, 500, 1000]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=50_000))]
    connections: Vec<u32>,
    /// The first port of the servers [default: ports that are free]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

/// The write-up's number of connections.
const CONNECTIONS_OF_WRITE_UP: u32 = 1000;

/// Length of one measurement in a result for keeping.
const LENGTH: Duration = Duration::from_secs(2);

/// Which server, and how it waits for connections and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Ours on epoll.
    Epoll,
    /// Ours on the ring; with several workers these share a listener, and each accept is asked for anew.
    Ring,
    /// Ours on the ring with a listener for each worker (`reuseport`): one multishot accept brings all.
    RingOwnListener,
    /// Ours on the ring, told of a connection when its request is there (`deferred`).
    RingDeferred,
    Nginx,
    NginxDeferred,
}

impl Way {
    /// In the order of tables.
    const ALL: [Way; 6] =
        [Way::Epoll, Way::Ring, Way::RingOwnListener, Way::RingDeferred, Way::Nginx, Way::NginxDeferred];

    /// As it stands in tables.
    fn name(self) -> &'static str {
        match self {
            Way::Epoll => "epoll",
            Way::Ring => "io_uring",
            Way::RingOwnListener => "io_uring, own listeners",
            Way::RingDeferred => "io_uring, deferred",
            Way::Nginx => "nginx",
            Way::NginxDeferred => "nginx, deferred",
        }
    }

    /// Whether it is a peer that may be missing.
    fn is_nginx(self) -> bool {
        matches!(self, Way::Nginx | Way::NginxDeferred)
    }

    /// Whether the kernel holds connections back until their request is there.
    fn is_deferred(self) -> bool {
        matches!(self, Way::RingDeferred | Way::NginxDeferred)
    }

    /// Whether it is measured with so many workers at all.
    fn is_of(self, workers: usize) -> bool {
        match self {
            // One worker has its listener for itself in any case.
            Way::RingOwnListener => workers > 1,
            Way::RingDeferred | Way::NginxDeferred => workers == 1,
            Way::Epoll | Way::Ring | Way::Nginx => true,
        }
    }

    /// Whether it differs there from the same without what its name says.
    fn takes_part(self, point: Point) -> bool {
        match self {
            // Whose listener it is makes no difference to connections that are kept.
            Way::RingOwnListener => point.kind == Kind::Short,
            // Nor does one client that connects and asks make a listener busy.
            Way::RingDeferred | Way::NginxDeferred => point.kind == Kind::Short && point.connections > 1,
            Way::Epoll | Way::Ring | Way::Nginx => true,
        }
    }

    /// What `use` says.
    fn engine(self) -> &'static str {
        if self == Way::Epoll || self.is_nginx() { "epoll" } else { "io_uring" }
    }

    /// What `listen` says behind the rest.
    fn listener(self) -> &'static str {
        match self {
            Way::RingOwnListener => " reuseport",
            _ if self.is_deferred() => " deferred",
            _ => "",
        }
    }

    /// nginx's directives are ours too, so one text serves all. The location is the write-up's.
    fn configuration(self, place: &Place, workers: usize) -> String {
        let (engine, listener) = (self.engine(), self.listener());
        format!(
            "worker_processes {workers};\n\
             events {{ worker_connections 8192; use {engine}; }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   keepalive_requests 1000000000;\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port} backlog=4096{listener};\n\
             \x20       location / {{ return 200; }}\n\
             \x20   }}\n\
             }}\n",
            port = place.port
        )
    }
}

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Connections that are kept.
    Long,
    /// One request for each connection, as browsers of old and health checks do: connect, ask, close.
    Short,
}

impl Kind {
    /// As it stands in tables.
    fn name(self) -> &'static str {
        match self {
            Kind::Long => "long",
            Kind::Short => "short",
        }
    }
}

/// What a figure depends on beside the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    kind: Kind,
    /// Threads of ours, processes of nginx.
    workers: usize,
    /// Open at the same time.
    connections: u32,
}

/// Everything about one server at one point.
struct Measured {
    point: Point,
    way: Way,
    /// In the order of the rounds, so that ratios can be formed pair by pair.
    rounds: Vec<Served>,
    /// System calls for each request, or why they are not known.
    calls: Result<f64, String>,
}

/// All that was measured, and what it was measured with.
struct Results {
    measured: Vec<Measured>,
    /// Why a server is not among them.
    missing: Vec<(Way, String)>,
    /// In the order in which they were measured; write-up and plots are about the first.
    workers: Vec<usize>,
    /// Of long connections at one worker.
    connections: Vec<u32>,
    /// Which processors servers and generator had, by workers.
    splits: Vec<(usize, Split)>,
}

/// Reads the options.
pub(crate) fn prepare(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let options: Options = options(matches)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}

/// Measures all points by all servers, which run beside each other and are asked in turns.
fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    served::raise_descriptors();
    let cpus = pin::available();
    let points = Points::choose(bench, options, cpus.len());
    let mut results = Results {
        measured: Vec::new(),
        missing: Vec::new(),
        workers: points.workers.clone(),
        connections: points.connections.clone(),
        splits: Vec::new(),
    };
    let nginx = Peer::Nginx
        .find(bench)
        .map_err(|missing| results.missing.push((Way::Nginx, missing.to_string())))
        .ok();
    let mut configurations = Vec::new();
    let mut skipped = Vec::new();
    for &workers in &points.workers {
        let place = ServerCpus::new(bench, Split::of(&cpus, workers));
        let mut servers = Vec::new();
        for way in Way::ALL.into_iter().filter(|way| way.is_of(workers)) {
            let program = match (way.is_nginx(), &nginx) {
                (true, None) => continue,
                (true, Some(tool)) => Program::Nginx(tool.clone()),
                (false, _) => Program::ours(bench),
            };
            let mut conditions = place.conditions();
            // One after the other from the one that was named.
            conditions.port = options.port.map(|port| port.saturating_add(servers.len() as u16));
            let label = format!("{}, {workers} workers", way.name());
            let server = Server::start(bench, &label, &program, &conditions, |place| {
                way.configuration(place, workers)
            })?;
            configurations.push(Fact { name: label, value: server.configuration().to_owned() });
            servers.push((way, server));
        }
        if let (Some(reason), true) = (&place.without_group, skipped.is_empty()) {
            skipped.push(Fact {
                name: "kernel workers held on the server's processors".to_owned(),
                value: reason.clone(),
            });
        }
        // All at one point before the next one, so that those that are compared are measured within seconds.
        for point in points.at(workers) {
            bench.progress(format_args!(
                "http: {} connections, {workers} workers, {} of them",
                point.kind.name(),
                point.connections
            ));
            results.measured.extend(measure(bench, &mut servers, point, &place.split)?);
        }
        results.splits.push((workers, place.split.clone()));
        // Before the control group that they are in.
        servers.into_iter().for_each(|(_, server)| server.end());
    }
    skipped.extend(
        results
            .missing
            .iter()
            .map(|(way, reason)| Fact { name: way.name().to_owned(), value: reason.clone() }),
    );
    let mut section = Section { configurations, skipped, ..tables::section(&results) };
    warm::add(bench, &mut section)?;
    proxied::add(bench, &mut section)?;
    Ok(section)
}

/// Which combinations are measured.
struct Points {
    workers: Vec<usize>,
    connections: Vec<u32>,
    /// Connections of the measurements with new ones, at one worker.
    short: Vec<u32>,
    /// Every combination, not each thing varied alone.
    product: bool,
}

impl Points {
    /// Which points there are: what the user asked for, else what the scale has room for.
    fn choose(bench: &Bench, options: &Options, cpus: usize) -> Points {
        let most = CONNECTIONS_OF_WRITE_UP;
        let (connections, short): (&[u32], &[u32]) = match bench.scale {
            Scale::Instant => (&[1, 10], &[10]),
            Scale::Quick => (&[1, 100, most], &[most]),
            Scale::Normal => (&[1, 10, 100, 500, most], &[1, 100, most]),
            Scale::Full => (&[1, 2, 5, 10, 20, 50, 100, 200, 500, most], &[1, 10, 100, 500, most]),
        };
        let mut workers = pin::worker_counts(cpus);
        if bench.scale <= Scale::Normal && workers.len() > 4 {
            // One, some between, and all: a machine with many processors takes no longer.
            workers = vec![1, 2, 4, cpus];
        }
        if bench.scale == Scale::Instant {
            workers = vec![1];
        }
        let mut points = Points {
            workers,
            connections: connections.to_vec(),
            short: short.to_vec(),
            product: bench.scale == Scale::Full,
        };
        if !options.workers.is_empty() {
            points.workers = options.workers.iter().map(|&workers| usize::from(workers)).collect();
        }
        if !options.connections.is_empty() {
            points.connections.clone_from(&options.connections);
            points.short.clone_from(&options.connections);
        }
        points
    }

    /// Those with so many workers: with the first number all connections, with the others the most.
    fn at(&self, workers: usize) -> Vec<Point> {
        let all = self.product || self.workers.first() == Some(&workers);
        let of = |kind: Kind, connections: &[u32]| {
            let chosen = if all { connections } else { &connections[connections.len().saturating_sub(1)..] };
            chosen.iter().map(|&connections| Point { kind, workers, connections }).collect::<Vec<_>>()
        };
        [of(Kind::Long, &self.connections), of(Kind::Short, &self.short)].concat()
    }
}

/// All servers at one point, in turns.
fn measure(
    bench: &Bench,
    servers: &mut [(Way, Server)],
    point: Point,
    split: &Split,
) -> Result<Vec<Measured>, Failure> {
    let mut chosen: Vec<&mut (Way, Server)> =
        servers.iter_mut().filter(|(way, _)| way.takes_part(point)).collect();
    let load = |server: &Server| -> Result<Plan, Failure> {
        let plan = served::plan(bench, &server.url("/"), split, point.connections)?;
        let reuse = match point.kind {
            Kind::Long => Reuse::KeepAlive { depth: 1 },
            Kind::Short => Reuse::PerRequest,
        };
        Ok(Plan { reuse, length: Length::Time(bench.length(LENGTH)), ..plan })
    };
    // In the order of the rounds too: the last one warmed up is the last one measured.
    for (_, server) in &chosen {
        served::warm_up(bench, &load(server)?)?;
    }
    let rounds = in_turns(bench, &mut chosen, |(_, server), _| {
        let plan = load(server)?;
        served::measure(bench, server, &plan)
    })?;
    let mut measured = Vec::new();
    for ((way, server), rounds) in chosen.into_iter().zip(rounds) {
        bench.check_interrupted()?;
        let calls = served::calls_per_answer(bench, server, &load(server)?);
        measured.push(Measured { point, way: *way, rounds, calls });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_workers_are_measured_with_the_most_connections_only() {
        let points =
            Points { workers: vec![1, 2], connections: vec![1, 10], short: vec![10], product: false };
        let names = |workers| -> Vec<_> {
            points.at(workers).iter().map(|point| (point.kind.name(), point.connections)).collect()
        };
        assert_eq!(names(1), [("long", 1), ("long", 10), ("short", 10)]);
        assert_eq!(names(2), [("long", 10), ("short", 10)]);
        assert_eq!(Points { product: true, ..points }.at(2).len(), 3);
    }

    #[test]
    fn configurations_differ_in_engine_and_listener_only() {
        let place = Place { port: 8080, folder: "/x".into() };
        let text = |way: Way| way.configuration(&place, 2);
        assert_eq!(text(Way::Epoll), text(Way::Nginx));
        assert_eq!(text(Way::Ring), text(Way::Epoll).replace("use epoll", "use io_uring"));
        assert_eq!(
            text(Way::RingOwnListener),
            text(Way::Ring).replace("backlog=4096", "backlog=4096 reuseport")
        );
        let deferred = |way| text(way).replace("backlog=4096", "backlog=4096 deferred");
        assert_eq!(text(Way::RingDeferred), deferred(Way::Ring));
        assert_eq!(text(Way::NginxDeferred), deferred(Way::Nginx));
    }
}
