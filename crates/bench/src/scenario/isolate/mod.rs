//! `bench isolate`: what requests that need no disk notice of others that wait for a slow one. The figure that users
//! feel: one disk that hangs, or one cold folder, beside everything else.
//!
//! One server at a time, one worker on the first processor, and a generator on another one. First requests that need no
//! disk are measured alone. Then some hundred clients ask for cold files of a disk that does a few reads a second, and
//! the same requests are measured again, while those clients wait. A server that reads on the thread that answers
//! stands still then; one that has a pool of threads lasts until they are all stuck; one that asks the kernel for
//! completions should not notice. A file of the ordinary disk, read past the page cache, is asked for too: a pool with
//! stuck threads can answer what is in memory, and nothing else.
//!
//! A server that answers nobody any more is a result, with the time that was waited as its reason: the run goes on.
//!
//! Here: what is measured, and the measuring. The slow disk is in [`slow`], tables and findings in [`tables`].

mod slow;
mod tables;

use std::fs;
use std::time::Duration;

use clap::{ArgMatches, Args};

use self::slow::{SlowDisk, Stuck};
use super::served::{self, Served, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Length, Plan};
use crate::method::pin::{self, Split};
use crate::method::rounds::in_turns;
use crate::peers::server::{Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Section};
use crate::scenario::{Prepared, options};

/// Options of `bench isolate`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Clients that wait for the slow disk
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5000))]
    stuck: u32,
    /// Reads that the slow disk does in a second
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    reads: u32,
    /// Connections that are measured
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
}

/// Length of one measurement in a result for keeping.
const LENGTH: Duration = Duration::from_secs(2);

/// How long an answer may take before it counts as none: longer than any server here lets a client wait that is not
/// stuck, and short enough for a server that answers nobody.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of each file.
const FILE_BYTES: usize = 4096;

/// Which server, and how it reads files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Ours: sockets and files on one ring.
    Ring,
    /// Ours without a ring: what other kernels get.
    EpollThreads,
    /// nginx with a pool of threads for files.
    NginxThreads,
    /// nginx as it is without `aio`, which is how most run it.
    NginxPlain,
}

impl Way {
    /// In the order of tables.
    const ALL: [Way; 4] = [Way::Ring, Way::EpollThreads, Way::NginxThreads, Way::NginxPlain];

    /// As it stands in tables.
    fn name(self) -> &'static str {
        match self {
            Way::Ring => "ringroad, io_uring",
            Way::EpollThreads => "ringroad, epoll and threads",
            Way::NginxThreads => "nginx, aio threads",
            Way::NginxPlain => "nginx, blocking reads",
        }
    }

    /// Whether it is a peer that may be missing.
    fn is_nginx(self) -> bool {
        matches!(self, Way::NginxThreads | Way::NginxPlain)
    }

    /// One worker, so that nothing but its own patience keeps it going.
    fn configuration(self, place: &Place, disk: &SlowDisk, warm: &str) -> String {
        let (engine, aio) = match self {
            Way::Ring => ("io_uring", ""),
            Way::NginxPlain => ("epoll", ""),
            Way::EpollThreads | Way::NginxThreads => ("epoll", " aio threads;"),
        };
        // nginx would refuse the directive.
        let faults = if self.is_nginx() { String::new() } else { disk.faults() };
        format!(
            "worker_processes 1;\n\
             events {{ worker_connections 8192; use {engine};{faults} }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   keepalive_requests 1000000000;\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port} backlog=4096;\n\
             \x20       location = /ready {{ return 204; }}\n\
             \x20       location = /answer {{ return 200; }}\n\
             \x20       location /warm/ {{ alias {warm}/;{aio} }}\n\
             \x20       location /other/ {{ alias {warm}/; directio 512;{aio} }}\n\
             \x20       location /slow/ {{ alias {slow}/;{aio} }}\n\
             \x20   }}\n\
             }}\n",
            port = place.port,
            slow = disk.folder().display()
        )
    }
}

/// What is asked for while others are stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// `return 200`.
    Answer,
    /// A file that is in memory.
    WarmFile,
    /// A file of the ordinary disk, read past the page cache: what a pool whose threads are all stuck cannot do.
    OtherDisk,
}

impl What {
    /// In the order of tables.
    const ALL: [What; 3] = [What::Answer, What::WarmFile, What::OtherDisk];

    /// As it stands in tables.
    fn name(self) -> &'static str {
        match self {
            What::Answer => "return 200",
            What::WarmFile => "a warm file",
            What::OtherDisk => "a file of another disk",
        }
    }

    /// What is asked for.
    fn path(self) -> &'static str {
        match self {
            What::Answer => "/answer",
            What::WarmFile => "/warm/file",
            What::OtherDisk => "/other/file",
        }
    }
}

/// One server in one round.
struct Round {
    /// For each of [`What::ALL`], without the others and beside them. A text when nothing was answered.
    pairs: Vec<[Result<Served, String>; 2]>,
    /// How many of the stuck clients had an answer at the end.
    answered: usize,
}

/// All that was measured, and beside what.
struct Results {
    /// In the order of the table.
    ways: Vec<(Way, Vec<Round>)>,
    /// Servers without a row, and why.
    missing: Vec<(Way, String)>,
    /// Clients that waited.
    stuck: u32,
    /// What for.
    disk: String,
}

/// Reads the options.
pub(crate) fn prepare(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let options: Options = options(matches)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}

/// Measures each way alone and beside requests that wait for the slow disk.
fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    served::raise_descriptors();
    // A test needs no crowd to see that it runs.
    let stuck = if bench.scale == Scale::Instant { options.stuck.min(20) } else { options.stuck };
    let disk = SlowDisk::make(bench, stuck, options.reads)?;
    let warm = bench.workspace.folder("isolate-warm")?;
    let file = warm.join("file");
    fs::write(&file, vec![b'w'; FILE_BYTES]).map_err(|error| Failure::File {
        path: file.clone(),
        doing: "write",
        error,
    })?;
    let place = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    let nginx = Peer::Nginx.find(bench);
    let mut missing = Vec::new();
    let mut ways: Vec<(Way, Program)> = Vec::new();
    for way in Way::ALL {
        match &nginx {
            _ if !way.is_nginx() => ways.push((way, Program::ours(bench))),
            _ if !disk.slows_nginx() => {
                missing.push((
                    way,
                    "slowing a disk for nginx needs root: only our own fault engine is without".to_owned(),
                ));
            }
            Ok(tool) => ways.push((way, Program::Nginx(tool.clone()))),
            Err(reason) => missing.push((way, reason.to_string())),
        }
    }
    let mut configurations: Vec<Fact> = Vec::new();
    let warm = warm.display().to_string();
    let rounds = in_turns(bench, &mut ways, |(way, program), round| {
        bench.progress(format_args!("isolate: {}, round {}", way.name(), round + 1));
        // A group for each: what the last server read must not count against this one.
        let group = disk.group()?;
        let mut conditions = place.conditions();
        conditions.groups.extend(group.iter().flat_map(|group| group.folders().to_vec()));
        let server = Server::start(bench, way.name(), program, &conditions, |place| {
            way.configuration(place, &disk, &warm)
        })?;
        if round == 0 {
            configurations
                .push(Fact { name: way.name().to_owned(), value: server.configuration().to_owned() });
        }
        let mut subject = Subject { bench, server, split: &place.split, connections: options.connections };
        let measured = subject.measure(&disk, group.as_ref(), stuck);
        // Reads that wait for their turn end at once, and the server with them.
        disk.heal(group.as_ref())?;
        subject.server.end();
        measured
    })?;
    let ways = ways.iter().map(|(way, _)| *way).zip(rounds).collect();
    let results = Results { ways, missing, stuck, disk: disk.words().to_owned() };
    let mut skipped: Vec<Fact> = results
        .missing
        .iter()
        .map(|(way, reason)| Fact { name: way.name().to_owned(), value: reason.clone() })
        .collect();
    if let Some(reason) = &place.without_group {
        skipped.push(Fact {
            name: "kernel workers held on the server's processors".to_owned(),
            value: reason.clone(),
        });
    }
    Ok(Section { configurations, skipped, ..tables::section(&results) })
}

/// A server that is measured.
struct Subject<'a> {
    bench: &'a Bench,
    server: Server,
    split: &'a Split,
    connections: u32,
}

impl Subject<'_> {
    /// One measurement, with or without requests that are stuck.
    fn measure(
        &mut self,
        disk: &SlowDisk,
        group: Option<&crate::method::cgroup::Group>,
        stuck: u32,
    ) -> Result<Round, Failure> {
        // First-time costs are not the slow disk's.
        for what in What::ALL {
            served::warm_up(self.bench, &self.plan(what)?)?;
        }
        let alone: Vec<_> = What::ALL.into_iter().map(|what| self.load(what)).collect::<Result<_, _>>()?;
        // Connected before the disk is slow, so that nothing but the disk holds them up.
        let clients = Stuck::connect(self.server.address(), stuck)?;
        disk.hurt(group)?;
        clients.ask()?;
        let beside: Vec<_> = What::ALL.into_iter().map(|what| self.load(what)).collect::<Result<_, _>>()?;
        let answered = clients.answered();
        let pairs = alone.into_iter().zip(beside).map(|(alone, beside)| [alone, beside]).collect();
        Ok(Round { pairs, answered })
    }

    /// Few connections: a queue of its own would hide the slow disk's.
    fn plan(&self, what: What) -> Result<Plan, Failure> {
        let plan = served::plan(self.bench, &self.server.url(what.path()), self.split, self.connections)?;
        let length = self.bench.length(LENGTH);
        // Longer would only make a server that answers nobody take longer.
        Ok(Plan { length: Length::Time(length), timeout: ANSWER_TIMEOUT.min(length * 2), ..plan })
    }

    /// A server that answers nobody is a result, not the end of the run.
    fn load(&mut self, what: What) -> Result<Result<Served, String>, Failure> {
        let plan = self.plan(what)?;
        match served::measure(self.bench, &mut self.server, &plan) {
            Ok(served) if served.outcome.tally.answers == 0 => Ok(Err(unanswered(&plan))),
            Ok(served) => Ok(Ok(served)),
            // What the generator says when there were only errors.
            Err(Failure::Other(_)) => Ok(Err(unanswered(&plan))),
            Err(failure) => Err(failure),
        }
    }
}

/// What stands in a cell where nothing was answered in all the time.
fn unanswered(plan: &Plan) -> String {
    match plan.length {
        Length::Time(length) => format!("no request was answered in {} s", length.as_secs_f64()),
        Length::Requests(_) => "no request was answered".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_ours_alone() {
        let disk = SlowDisk::of_faults("/slow".into());
        let place = Place { port: 8080, folder: "/x".into() };
        for way in Way::ALL {
            let text = way.configuration(&place, &disk, "/warm");
            assert_eq!(text.contains("engine_fault"), !way.is_nginx(), "{text}");
            assert_eq!(text.contains("aio threads"), matches!(way, Way::EpollThreads | Way::NginxThreads));
        }
    }
}
