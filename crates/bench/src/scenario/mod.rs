//! What can be measured: one module for each command of the suite, in one table.

mod cache;
mod cold;
mod crowd;
mod disk;
mod echo;
mod fill;
mod h2;
mod http;
mod isolate;
mod large;
mod lineup;
mod nop;
mod origin;
mod served;
mod sheet;
mod stream;
mod tls;

use clap::{ArgMatches, Args, Command};

use crate::context::Bench;
use crate::failure::Failure;
use crate::report::model::Section;

/// One command of the suite.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// One line for the list of commands.
    pub(crate) help: &'static str,
    /// Adds the command's own options.
    pub(crate) augment: fn(Command) -> Command,
    /// Reads them. Nothing is made or started before they are understood.
    pub(crate) prepare: fn(&ArgMatches) -> Result<Prepared, Failure>,
}

/// A scenario whose options were understood.
pub(crate) type Prepared = Box<dyn FnOnce(&Bench) -> Result<Section, Failure>>;

/// All of them, in the order in which `all` runs them.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "nop",
        help: "What an operation costs before it does anything: the ring, its flags, our engine over it, libaio",
        augment: nop::Options::augment_args,
        prepare: |matches| prepare(matches, nop::check, nop::run),
    },
    Scenario {
        name: "disk",
        help: "Reads and writes of a disk by each engine, depth and block size; or a set of files (--files)",
        augment: disk::Options::augment_args,
        prepare: |matches| prepare(matches, disk::check, disk::run),
    },
    Scenario {
        name: "echo",
        help: "Messages that are sent back, and connections that are accepted: epoll, the ring single-shot and multishot",
        augment: echo::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), echo::run),
    },
    Scenario {
        name: "http",
        help: "Answers without a disk, proxied requests: connections, workers, system calls; ring, epoll, nginx",
        augment: http::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), http::run),
    },
    Scenario {
        name: "crowd",
        help: "Ten thousand connections of which most are idle: processor time and memory; latencies at half load",
        augment: crowd::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), crowd::run),
    },
    Scenario {
        name: "cold",
        help: "Files that do not fit into memory: every engine, nginx in each of its modes, and the proxy cache",
        augment: cold::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), cold::run),
    },
    Scenario {
        name: "fill",
        help: "A proxy cache that is being filled: misses of three sizes, and what is written to the disk for them",
        augment: fill::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), fill::run),
    },
    Scenario {
        name: "cache",
        help: "A cache's own work: one fetch for a thousand clients, a start and an end of many entries",
        augment: cache::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), cache::run),
    },
    Scenario {
        name: "large",
        help: "One large cold file to a few clients: sendfile, shm-sendfile, ring, nginx, lighttpd",
        augment: large::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), large::run),
    },
    Scenario {
        name: "isolate",
        help: "What requests that need no disk notice of others that wait for a slow one, beside nginx",
        augment: isolate::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), isolate::run),
    },
    Scenario {
        name: "stream",
        help: "Responses that come piece by piece: the first byte and the delay of each piece, beside nginx",
        augment: stream::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), stream::run),
    },
    Scenario {
        name: "tls",
        help: "TLS: handshakes full and resumed, kept connections, idle ones, and latency beside handshakes",
        augment: tls::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), tls::run),
    },
    Scenario {
        name: "h2",
        help: "Files in memory over TLS and HTTP/2: processor time of a request, beside nginx and H2O (needs h2load)",
        augment: h2::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), h2::run_files),
    },
    Scenario {
        name: "grpc",
        help: "Unary calls of gRPC through a proxy: processor time of a call, beside nginx (needs h2load)",
        augment: h2::Options::augment_args,
        prepare: |matches| prepare(matches, |_| Ok(()), h2::run_calls),
    },
];

pub(crate) use disk::worker::{COMMAND as DISK_WORKER, main as disk_worker};
pub(crate) use echo::server::{COMMAND as ECHO_SERVER, main as echo_server};

/// Reads the options of a scenario, and looks whether they can be meant.
fn prepare<O: Args + 'static>(
    matches: &ArgMatches,
    check: fn(&O) -> Result<(), Failure>,
    run: fn(&Bench, &O) -> Result<Section, Failure>,
) -> Result<Prepared, Failure> {
    let options = O::from_arg_matches(matches).map_err(|error| crate::failure::usage(&error))?;
    check(&options)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}
