//! `bench large`: one large file from a cold page cache to a few clients, each of whom fetches it once. Repeats write-up
//! 001: sendfile against reads into shared memory that leave by sendfile.
//!
//! The write-up's claim is about who waits. A sendfile of what is not in memory blocks the thread that calls it, and
//! with it every other client of a server that has one thread. A backend that asks the kernel for the next chunk and
//! sends it from shared memory when it is there keeps the disk and the network busy at once, and copies nothing. Here
//! are both, as this server has them; what has become of the idea since (reads on a ring, direct ones too); and the
//! modes of nginx and of today's lighttpd.
//!
//! All servers run at once, one worker each on the first processor, and are asked in turns. Before each measurement the
//! file's pages are dropped, which needs no right but to read it; its name and its inode stay known. Each client
//! fetches the whole file once, all begin together, and the measurement ends with the last of them. An answer of
//! another length counts as an error, and errors leave no figure.
//!
//! Here: what is measured, and the measuring. What is made of it: [`tables`].

mod tables;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgMatches, Args};

use super::served::{self, Served, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Expect, Length, Plan};
use crate::method::page_cache;
use crate::method::pin::{self, Split};
use crate::peers::server::{Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Section};
use crate::scenario::{Prepared, options};

/// Options of `bench large`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Size of the file in MB [default: 700; 100 with --quick]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    megabytes: Option<u64>,
    /// Numbers of clients
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,5,10", value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: Vec<u32>,
}

/// The write-up's file.
const MEGABYTES_OF_WRITE_UP: u64 = 700;
/// With `--quick`: still more than a window of reads.
const MEGABYTES_QUICK: u64 = 100;
/// In tests, where only the way counts.
const MEGABYTES_INSTANT: u64 = 2;

/// What a decimal megabyte is.
const MEGABYTE: u64 = 1_000_000;

/// How long one client may take. At 10 MB/s the write-up's file takes 70 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(180);

/// Time for all rounds but the first: as many as fit are made.
const ROUNDS_TIME_MAX: Duration = Duration::from_secs(450);

/// How a server moves the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing is configured.
    Unwritten,
    /// Sendfile of what is in memory, which the kernel's read-ahead brings there while nobody waits.
    Resident,
    /// The worker calls sendfile(2) and waits for the disk in it: the write-up's linux-sendfile.
    Sendfile,
    /// Reads into shared memory that leave by sendfile(2): the write-up's linux-aio-sendfile.
    Shared512k,
    Shared1m,
    /// Reads on the ring into buffers of the server, through the page cache.
    Ring,
    /// The same past the page cache.
    RingDirect,
    NginxSendfile,
    /// Pool threads call sendfile(2), so that the worker does not wait.
    NginxThreads,
    LighttpdSendfile,
    /// Reads into memory and writev(2).
    LighttpdWritev,
    /// One read and one write after the other.
    LighttpdWrite,
}

impl Way {
    /// In the order of tables.
    const ALL: [Way; 12] = [
        Way::Unwritten,
        Way::Resident,
        Way::Sendfile,
        Way::Shared512k,
        Way::Shared1m,
        Way::Ring,
        Way::RingDirect,
        Way::NginxSendfile,
        Way::NginxThreads,
        Way::LighttpdSendfile,
        Way::LighttpdWritev,
        Way::LighttpdWrite,
    ];

    /// As it stands in tables.
    fn name(self) -> &'static str {
        match self {
            Way::Unwritten => "as it comes",
            Way::Resident => "sendfile, never waiting",
            Way::Sendfile => "sendfile, blocking",
            Way::Shared512k => "shm-sendfile 512k",
            Way::Shared1m => "shm-sendfile 1m",
            Way::Ring => "io_uring reads",
            Way::RingDirect => "io_uring direct reads",
            Way::NginxSendfile => "nginx sendfile",
            Way::NginxThreads => "nginx sendfile, aio threads",
            Way::LighttpdSendfile => "lighttpd sendfile",
            Way::LighttpdWritev => "lighttpd writev",
            Way::LighttpdWrite => "lighttpd write",
        }
    }

    /// Whose it is; none for ours.
    fn peer(self) -> Option<Peer> {
        match self {
            Way::Unwritten
            | Way::Resident
            | Way::Sendfile
            | Way::Shared512k
            | Way::Shared1m
            | Way::Ring
            | Way::RingDirect => None,
            Way::NginxSendfile | Way::NginxThreads => Some(Peer::Nginx),
            Way::LighttpdSendfile | Way::LighttpdWritev | Way::LighttpdWrite => Some(Peer::Lighttpd),
        }
    }

    /// What makes the difference.
    fn directives(self) -> &'static str {
        match self {
            Way::Unwritten => "",
            Way::Resident => "sendfile on;",
            Way::Sendfile => "sendfile on; aio off;",
            Way::Shared512k => "aio_sendfile 512k;",
            Way::Shared1m => "aio_sendfile 1m;",
            Way::Ring => "sendfile off; aio io_uring;",
            Way::RingDirect => "sendfile off; aio io_uring; directio 1;",
            Way::NginxSendfile => "sendfile on;",
            Way::NginxThreads => "sendfile on; aio threads;",
            Way::LighttpdSendfile => "server.network-backend = \"sendfile\"",
            Way::LighttpdWritev => "server.network-backend = \"writev\"",
            Way::LighttpdWrite => "server.network-backend = \"write\"",
        }
    }

    /// The configuration of its server, whole.
    fn configuration(self, place: &Place, files: &Path) -> String {
        let (files, directives) = (files.display(), self.directives());
        if self.peer() == Some(Peer::Lighttpd) {
            // One process, as the others have one worker. The first request has to be answered too.
            return format!(
                "server.document-root = \"{files}\"\nserver.event-handler = \"linux-sysepoll\"\n\
                 server.max-fds = 4096\n{directives}\n"
            );
        }
        let engine = if self.peer().is_none() { "use io_uring;" } else { "use epoll;" };
        format!(
            "worker_processes 1;\n\
             events {{ worker_connections 1024; {engine} }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port};\n\
             \x20       location = /ready {{ return 204; }}\n\
             \x20       location / {{ root {files}; {directives} }}\n\
             \x20   }}\n\
             }}\n",
            port = place.port
        )
    }
}

/// One way with so many clients.
struct Measured {
    way: Way,
    clients: u32,
    /// In the order of the rounds, so that ratios can be formed pair by pair.
    rounds: Vec<Served>,
}

/// All that was measured, and of what.
struct Results {
    measured: Vec<Measured>,
    /// Ways without a row, and why.
    missing: Vec<(Way, String)>,
    /// The rows of the write-up's table.
    clients: Vec<u32>,
    /// Size of the file.
    megabytes: u64,
}

/// Reads the options.
pub(crate) fn prepare(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let options: Options = options(matches)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}

/// Measures each way at each number of clients, with a dropped page cache before each.
fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    served::raise_descriptors();
    let megabytes = options.megabytes.unwrap_or(match bench.scale {
        Scale::Instant => MEGABYTES_INSTANT,
        Scale::Quick => MEGABYTES_QUICK,
        Scale::Normal | Scale::Full => MEGABYTES_OF_WRITE_UP,
    });
    bench.workspace.need_space(megabytes * MEGABYTE)?;
    let files = bench.workspace.folder("large")?;
    let file = make_file(bench, &files, megabytes)?;
    let cpus = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    let mut skipped = skipped(&cpus, megabytes);
    // What is not installed has no row of figures, and its reason in each cell.
    let (ways, missing) = available(bench);
    let mut results = Results { measured: Vec::new(), missing, clients: options.clients.clone(), megabytes };
    let mut configurations = Vec::new();
    let (begun, wanted) = (Instant::now(), bench.repetitions());
    let mut servers = Vec::new();
    for (way, program) in &ways {
        let server = Server::start(bench, way.name(), program, &cpus.conditions(), |place| {
            way.configuration(place, &files)
        })?;
        configurations.push(Fact { name: way.name().to_owned(), value: server.configuration().to_owned() });
        servers.push((*way, server));
    }
    for round in 0..wanted {
        // A slow disk takes minutes for a round: two of them are worth more than a run that nobody waits for.
        let each = begun.elapsed() / round.max(1);
        if round > 0 && begun.elapsed() + each > ROUNDS_TIME_MAX && bench.scale < Scale::Full {
            let value = format!("{round} of {wanted} were made: one takes {:.0} s", each.as_secs_f64());
            skipped.push(Fact { name: "repetitions".to_owned(), value });
            break;
        }
        bench.progress(format_args!("large: round {} of {wanted}", round + 1));
        for &clients in &options.clients {
            for (way, server) in &mut servers {
                let served = measure(bench, server, &file, clients, megabytes, &cpus.split)?;
                results.add(*way, clients, served);
            }
        }
    }
    servers.into_iter().for_each(|(_, server)| server.end());
    skipped.extend(
        results
            .missing
            .iter()
            .map(|(way, reason)| Fact { name: way.name().to_owned(), value: reason.clone() }),
    );
    Ok(Section { configurations, skipped, ..tables::section(&results) })
}

impl Results {
    /// Files a measurement under what it is of.
    fn add(&mut self, way: Way, clients: u32, served: Served) {
        match self.measured.iter_mut().find(|measured| measured.way == way && measured.clients == clients) {
            Some(measured) => measured.rounds.push(served),
            None => self.measured.push(Measured { way, clients, rounds: vec![served] }),
        }
    }
}

/// What is known to be missing before anything is measured.
fn skipped(cpus: &ServerCpus, megabytes: u64) -> Vec<Fact> {
    let mut skipped = vec![Fact {
        name: "lighttpd linux-aio-sendfile".to_owned(),
        value: "lighttpd 1.4 does not have the write-up's backend (it was in the 1.5 branch of 2006): shm-sendfile is our \
                counterpart"
            .to_owned(),
    }];
    if megabytes != MEGABYTES_OF_WRITE_UP {
        let value =
            format!("the file has {megabytes} MB here and {MEGABYTES_OF_WRITE_UP} MB in the write-up");
        skipped.push(Fact { name: "size of the file".to_owned(), value });
    }
    if let Some(reason) = &cpus.without_group {
        skipped.push(Fact {
            name: "kernel workers held on the server's processors".to_owned(),
            value: reason.clone(),
        });
    }
    skipped
}

type Available = (Vec<(Way, Program)>, Vec<(Way, String)>);

/// All ways, with the programs that go them.
fn available(bench: &Bench) -> Available {
    let (mut ways, mut missing) = (Vec::new(), Vec::new());
    for way in Way::ALL {
        match way.peer().map(|peer| (peer, peer.find(bench))) {
            None => ways.push((way, Program::ours(bench))),
            Some((Peer::Lighttpd, Ok(tool))) => ways.push((way, Program::Lighttpd(tool))),
            Some((_, Ok(tool))) => ways.push((way, Program::Nginx(tool))),
            Some((_, Err(reason))) => missing.push((way, reason.to_string())),
        }
    }
    (ways, missing)
}

/// Writes the file, with bytes that no file system stores as nothing.
fn make_file(bench: &Bench, folder: &Path, megabytes: u64) -> Result<PathBuf, Failure> {
    let path = folder.join("file");
    let failed = |error| Failure::File { path: path.clone(), doing: "write", error };
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(failed)?);
    let mut block = vec![0_u8; MEGABYTE as usize];
    for number in 0..megabytes {
        bench.check_interrupted()?;
        // xorshift: each block differs from the others, and takes no time to speak of.
        let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        file.write_all(&block).map_err(failed)?;
    }
    file.flush().map_err(failed)?;
    Ok(path)
}

/// Each client fetches the file once, all at the same time.
fn measure(
    bench: &Bench,
    server: &mut Server,
    file: &Path,
    clients: u32,
    megabytes: u64,
    split: &Split,
) -> Result<Served, Failure> {
    page_cache::drop_file(file)?;
    // One request for each connection: the load ends when all are answered.
    let plan = served::plan(bench, &server.url("/file"), split, clients)?;
    let plan = Plan {
        length: Length::Requests(u64::from(clients)),
        timeout: ANSWER_TIMEOUT,
        expect: Expect { status: Some(200), length: Some(megabytes * MEGABYTE), crc32c: None },
        receive_bytes: 256 << 10,
        ..plan
    };
    served::measure(bench, server, &plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_configuration_of_its_own() {
        let place = Place { port: 8080, folder: "/x".into() };
        let texts: std::collections::BTreeSet<String> =
            Way::ALL.into_iter().map(|way| way.configuration(&place, Path::new("/files"))).collect();
        assert_eq!(texts.len(), Way::ALL.len());
    }

    #[test]
    fn the_missing_backend_and_a_smaller_file_are_said() {
        let cpus = ServerCpus::of_tests(Split::of(&[0, 1], 1));
        let names =
            |megabytes| -> Vec<_> { skipped(&cpus, megabytes).into_iter().map(|fact| fact.name).collect() };
        assert_eq!(names(MEGABYTES_OF_WRITE_UP), ["lighttpd linux-aio-sendfile"]);
        assert_eq!(names(100), ["lighttpd linux-aio-sendfile", "size of the file"]);
    }
}
