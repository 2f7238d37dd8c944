//! `bench crowd`: what connections cost that are open and say nothing, and how long answers take where there is time for
//! them. Both are what a server meets most of its life, unlike the full load of few clients that is easy to measure.
//!
//! Cost: `return 200` over 100 and 1 000 kept connections, all of them active, and over 1 000 of 10 000. Each round
//! starts a server anew and looks at its memory with no connection and with those that will stay idle, each of which has
//! had one answer: what it takes for them is what it has to keep for a client that may come back. Processor time of a
//! request shows whether a turn of the server looks at connections that have nothing to say.
//!
//! Half load: requests are due at half of the rate that nginx reaches with 100 connections, whatever the server does
//! (an open loop). A latency counts from when its request was due, so a server cannot look fast by answering less.
//!
//! Here: what is measured, and the measuring. Tables, plots and findings are in [`tables`].

mod idle;
mod tables;

use std::time::Duration;

use clap::{ArgMatches, Args};

use self::idle::Idle;
use super::served::{self, Served, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Length, Pace, Plan};
use crate::method::memory;
use crate::method::pin::{self, Split};
use crate::method::rounds::in_turns;
use crate::peers::server::{Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Section};
use crate::scenario::{Prepared, options};

/// Options of `bench crowd`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Connections that are open in the largest crowd
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=50_000))]
    connections: u32,
}

/// Length of one measurement at full load, in a result for keeping.
const LENGTH: Duration = Duration::from_secs(1);
/// The same at half of it. One stop of 4 ms (a turn of another task, at 250 ticks a second) is a thousandth of the requests
/// of 4 s, more with those that wait behind it: in a shorter time p99.9 says whether there was one, not how often.
const LENGTH_HALF: Duration = Duration::from_secs(6);

/// Connections that ask in a crowd; without idle ones beside them also fewer.
const ACTIVE: u32 = 1000;
const FEW: u32 = 100;

/// Descriptors that a program needs beside its connections.
const DESCRIPTORS_BESIDE: u32 = 300;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ring,
    Epoll,
    Nginx,
}

impl Way {
    const ALL: [Way; 3] = [Way::Ring, Way::Epoll, Way::Nginx];

    fn name(self) -> &'static str {
        match self {
            Way::Ring => "io_uring",
            Way::Epoll => "epoll",
            Way::Nginx => "nginx",
        }
    }

    /// The same for all but the engine. Idle connections outlast the measurement.
    fn configuration(self, place: &Place, connections: u32) -> String {
        let engine = if self == Way::Ring { "io_uring" } else { "epoll" };
        // nginx ends idle connections once less than a sixteenth of what it may have is free.
        let most = connections + connections / 4 + DESCRIPTORS_BESIDE;
        format!(
            "worker_processes 1;\n\
             events {{ worker_connections {most}; use {engine}; }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   keepalive_requests 1000000000;\n\
             \x20   keepalive_timeout 1h;\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port} backlog=4096;\n\
             \x20       location / {{ return 200; }}\n\
             \x20   }}\n\
             }}\n",
            port = place.port
        )
    }
}

/// One server in one round, from its start.
struct Round {
    /// User-space memory of the server without connections, in bytes.
    memory_bytes: u64,
    /// How much more it has for each idle one.
    bytes_per_idle: f64,
    /// The load of the active ones: few, more, and as many beside the idle ones.
    loads: Vec<(u32, Served)>,
}

/// Requests at a set rate.
struct Half {
    /// Whose full rate it is half of.
    of: &'static str,
    rate: f64,
    by_way: Vec<(Way, Vec<Served>)>,
}

/// All that was measured.
struct Results {
    /// In the order of the tables.
    crowds: Vec<(Way, Vec<Round>)>,
    half: Half,
    /// Connections of the largest crowd, and how many of these ask.
    connections: u32,
    active: u32,
    /// Servers without a row, and why.
    missing: Vec<(Way, String)>,
}

/// Reads the options.
pub(crate) fn prepare(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let options: Options = options(matches)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}

fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    let descriptors = served::raise_descriptors();
    let mut crowd = Crowd::choose(bench, options, descriptors);
    let place = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    let mut missing = Vec::new();
    let mut ways: Vec<(Way, Program)> = Vec::new();
    for way in Way::ALL {
        match (way, Peer::Nginx.find(bench)) {
            (Way::Ring | Way::Epoll, _) => ways.push((way, Program::ours(bench))),
            (Way::Nginx, Ok(tool)) => ways.push((way, Program::Nginx(tool))),
            (Way::Nginx, Err(reason)) => missing.push((way, reason.to_string())),
        }
    }
    let mut configurations: Vec<Fact> = Vec::new();
    let rounds = in_turns(bench, &mut ways, |(way, program), round| {
        bench.progress(format_args!("crowd: {}, round {}", way.name(), round + 1));
        let server = crowd.start(bench, *way, program, &place)?;
        if round == 0 {
            configurations
                .push(Fact { name: way.name().to_owned(), value: server.configuration().to_owned() });
        }
        crowd.measure(bench, server, &place.split)
    })?;
    let crowds = ways.iter().map(|(way, _)| *way).zip(rounds).collect();
    let half = half_load(bench, &crowd, &ways, &place)?;
    for (way, reason) in &missing {
        crowd.skipped.push(Fact { name: way.name().to_owned(), value: reason.clone() });
    }
    if let Some(reason) = &place.without_group {
        crowd.skipped.push(Fact {
            name: "kernel workers held on the server's processors".to_owned(),
            value: reason.clone(),
        });
    }
    let results = Results { crowds, half, connections: crowd.connections, active: crowd.active, missing };
    Ok(Section { configurations, skipped: crowd.skipped, ..tables::section(&results) })
}

/// How many connections there are.
struct Crowd {
    /// Open at once, at the most.
    connections: u32,
    active: u32,
    few: u32,
    skipped: Vec<Fact>,
}

impl Crowd {
    fn choose(bench: &Bench, options: &Options, descriptors: u64) -> Crowd {
        let mut skipped = Vec::new();
        // A test needs no crowd to see that it runs.
        if bench.scale == Scale::Instant {
            return Crowd { connections: 60, active: 20, few: 10, skipped };
        }
        // The server may have no more than this process, and has to believe that there is some room.
        let room = u32::try_from(descriptors).unwrap_or(u32::MAX).saturating_sub(DESCRIPTORS_BESIDE) / 5 * 4;
        let connections = options.connections.min(room).max(FEW);
        if connections < options.connections {
            skipped.push(Fact {
                name: format!("{} connections", options.connections),
                value: format!("a process may have {descriptors} descriptors here: {connections} were open"),
            });
        }
        Crowd { connections, active: ACTIVE.min(connections), few: FEW, skipped }
    }

    fn start(
        &self,
        bench: &Bench,
        way: Way,
        program: &Program,
        place: &ServerCpus,
    ) -> Result<Server, Failure> {
        Server::start(bench, way.name(), program, &place.conditions(), |place| {
            way.configuration(place, self.connections)
        })
    }

    /// A whole round: memory, then the crowd, then without it. The crowd comes first, since memory that a server took
    /// for a load would be there for idle connections too.
    fn measure(&self, bench: &Bench, mut server: Server, split: &Split) -> Result<Round, Failure> {
        let alone = Idle::open(server.address(), 1)?;
        let memory_bytes = memory::user_space_bytes(server.tree());
        drop(alone);
        let idle_count = self.connections - self.active;
        let idle = Idle::open(server.address(), idle_count)?;
        let more = memory::user_space_bytes(server.tree()).saturating_sub(memory_bytes);
        let mut loads = Vec::new();
        let mut load = |connections: u32, label: u32| -> Result<(), Failure> {
            let plan = served::plan(bench, &server.url("/"), split, connections)?;
            let plan = Plan { length: Length::Time(bench.length(LENGTH)), ..plan };
            served::warm_up(bench, &plan)?;
            loads.push((label, served::measure(bench, &mut server, &plan)?));
            Ok(())
        };
        load(self.active, self.connections)?;
        // All of them have to be open up to here, or it was another crowd.
        idle.check_open()?;
        drop(idle);
        load(self.active, self.active)?;
        load(self.few, self.few)?;
        server.end();
        loads.reverse();
        Ok(Round { memory_bytes, bytes_per_idle: more as f64 / f64::from(idle_count.max(1)), loads })
    }
}

/// All servers at half of what nginx (or, without it, ours on epoll) can answer, in turns.
fn half_load(
    bench: &Bench,
    crowd: &Crowd,
    ways: &[(Way, Program)],
    place: &ServerCpus,
) -> Result<Half, Failure> {
    let mut servers: Vec<(Way, Server)> = Vec::new();
    for (way, program) in ways {
        servers.push((*way, crowd.start(bench, *way, program, place)?));
    }
    let plan = |server: &Server| -> Result<Plan, Failure> {
        let plan = served::plan(bench, &server.url("/"), &place.split, crowd.few)?;
        Ok(Plan { length: Length::Time(bench.length(LENGTH_HALF)), ..plan })
    };
    for (_, server) in &servers {
        served::warm_up(bench, &plan(server)?)?;
    }
    let (of, rate) = match servers.last_mut() {
        Some((way, server)) => {
            let plan = plan(server)?;
            (way.name(), served::measure(bench, server, &plan)?.outcome.answers_per_second() / 2.0)
        }
        None => return Err(Failure::Other("no server to measure".to_owned())),
    };
    bench.progress(format_args!("crowd: {rate:.0} requests a second, half of what {of} answers"));
    let rounds = in_turns(bench, &mut servers, |(_, server), _| {
        let plan = Plan { pace: Pace::Open { rate }, ..plan(server)? };
        served::measure(bench, server, &plan)
    })?;
    let by_way = servers.iter().map(|(way, _)| *way).zip(rounds).collect();
    servers.into_iter().for_each(|(_, server)| server.end());
    Ok(Half { of, rate, by_way })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_differ_in_the_engine_only() {
        let place = Place { port: 8080, folder: "/x".into() };
        let text = |way: Way| way.configuration(&place, 10_000);
        assert_eq!(text(Way::Epoll), text(Way::Nginx));
        assert_eq!(text(Way::Ring), text(Way::Epoll).replace("use epoll", "use io_uring"));
        assert!(text(Way::Ring).contains("worker_connections 12800;"));
    }
}
