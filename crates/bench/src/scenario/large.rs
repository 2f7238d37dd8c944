//! `bench large`: one large file from a cold page cache to a few clients, each of which fetches it once. Repeats
//! write-up 001: sendfile, compared with reads into shared memory that are sent by sendfile.
//!
//! The write-up's claim is about blocking. A sendfile of a file that is not resident blocks the calling thread, and
//! with it every other client of a single-threaded server. A backend can instead request the next chunk asynchronously
//! and send it from shared memory when the read has completed: disk and network are busy concurrently, and nothing is
//! copied. Both are measured as Ringroad implements them, with later forms of the idea (reads on a ring, also direct
//! ones) and the modes of nginx and of current lighttpd.
//!
//! All servers run concurrently, with one worker each on the first processor, and are loaded in turn. Before each
//! measurement the file's pages are dropped, which requires only read permission; dentry and inode stay cached. All
//! clients start together, each fetches the complete file once, and the measurement ends with the last of them. A
//! response of a different length is an error, and errors yield no figure.
//!
//! This file has the measurement and the tables. The write-up shows throughput and the idle share of a machine with one
//! processor. Here the idle share is that of all processors including the generator's, so the server's CPU time per
//! megabyte is the comparable figure. Time spent waiting for a disk counts as idle, since other tasks can use it.

use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::comparison::{self, Compared, READY, Text, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{
    Figure, Labels, Measurements, Of, ShownColumn, at, figure, finding_of_cases, plural,
};
use super::served::{self, ServerCpus};
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::{Length, Plan};
use crate::method::page_cache;
use crate::method::pin::Split;
use crate::peers::server::Server;
use crate::peers::tool::Peer;
use crate::report::model::{Finding, Results, Run, Section};

#[derive(Args, Clone, Debug)]
pub(crate) struct LargeOptions {
    /// File size in MB [default: 700; 100 with --quick]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    megabytes: Option<u64>,
    /// Numbers of clients
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,5,10", value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: Vec<u32>,
}

const MEGABYTES_OF_WRITE_UP: u64 = 700;
/// Size with `--quick` in MB: still more than a readahead window.
const MEGABYTES_QUICK: u64 = 100;
const MEGABYTES_INSTANT: u64 = 2;

const MEGABYTE: u64 = 1_000_000;

/// Timeout of one client. At 10 MB/s the write-up's file needs 70 s.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(180);

/// Ringroad with each way to send the file, then the peers with theirs.
const VARIANTS: [Variant; 12] = [
    Variant::ours("as it comes", "io_uring"),
    // The kernel's readahead makes the next bytes resident, and no thread blocks.
    Variant::ours("sendfile, never waiting", "io_uring").with("sendfile on; "),
    // The worker calls sendfile(2), which blocks until the disk read completes: the write-up's linux-sendfile.
    SENDFILE,
    // Reads into shared memory that are sent by sendfile(2): the write-up's linux-aio-sendfile.
    SHARED_SMALL,
    SHARED,
    Variant::ours("io_uring reads", "io_uring").with("sendfile off; aio io_uring; "),
    Variant::ours("io_uring direct reads", "io_uring").with("sendfile off; aio io_uring; directio 1; "),
    Variant::of("nginx sendfile", Peer::Nginx).with("sendfile on; "),
    // Pool threads call sendfile(2), so that the worker does not block.
    Variant::of("nginx sendfile, aio threads", Peer::Nginx).with("sendfile on; aio threads; "),
    Variant::of("lighttpd sendfile", Peer::Lighttpd).with("server.network-backend = \"sendfile\""),
    Variant::of("lighttpd writev", Peer::Lighttpd).with("server.network-backend = \"writev\""),
    Variant::of("lighttpd write", Peer::Lighttpd).with("server.network-backend = \"write\""),
];
const SENDFILE: Variant = Variant::ours("sendfile, blocking", "io_uring").with("sendfile on; aio off; ");
const SHARED_SMALL: Variant = Variant::ours("shm-sendfile 512k", "io_uring").with("aio_sendfile 512k; ");
const SHARED: Variant = Variant::ours("shm-sendfile 1m", "io_uring").with("aio_sendfile 1m; ");

/// Bytes of all clients together, bodies only.
const SPEED: Figure = figure("throughput", "MB/s", 0, Of::Quotient("body_bytes", "seconds", 1e-6));
/// The server's CPU time per megabyte.
const COST: Figure = figure("CPU", "ms/MB", 3, Of::Quotient("server_cpu_seconds", "body_bytes", 1e9));
const IDLE: Figure = figure("idle", "%", 0, Of::Value("idle_percent", 1.0));

impl Scenario for LargeOptions {
    const NAME: &'static str = "large";
    const MINUTES: u32 = 4;
    const QUICK_SHARE: u32 = 20;
    const TITLE: &'static str = "One large file, cold, to a few clients";
    const QUESTION: &'static str = "At which rate is a large file sent that is not in the page cache, and how much of the machine stays idle?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let megabytes = bench.scaled(MEGABYTES_INSTANT, MEGABYTES_QUICK, MEGABYTES_OF_WRITE_UP);
        let megabytes = self.megabytes.unwrap_or(megabytes);
        bench.workspace.need_space(megabytes * MEGABYTE)?;
        section.title = format!("One file of {megabytes} MB, cold, to a few clients");
        section.skip(
            "lighttpd linux-aio-sendfile",
            "lighttpd 1.4 does not have the write-up's backend (it was in the 1.5 branch of 2006): shm-sendfile is our \
             counterpart",
        );
        if megabytes != MEGABYTES_OF_WRITE_UP {
            let why =
                format!("the file has {megabytes} MB here and {MEGABYTES_OF_WRITE_UP} MB in the write-up");
            section.skip("size of the file", &why);
        }
        let files = bench.workspace.directory("large")?;
        let file = files.join("file");
        super::disk::fill(bench, &file, megabytes * MEGABYTE)?;
        let place = ServerCpus::of_one_worker(bench, section);
        let mut servers = comparison::start(bench, section, &place, (&VARIANTS, ""), |variant, instance| {
            variant.serving(instance, &files, None, Text { server: format!("{READY}\n"), ..Text::default() })
        })?;
        for &clients in &self.clients {
            bench.progress(format_args!("large: {}", plural(clients, "client")));
            let labels = |(variant, _): &(Variant, Server)| labels_of(variant, &fetching(clients));
            comparison::measure(bench, section, &mut servers, labels, |(_, server), _, _| {
                measure(bench, server, &file, clients, megabytes, &place.split)
            })?;
        }
        Ok(results(Measurements::of(section), &self.clients, megabytes))
    }
}

fn fetching(clients: u32) -> Labels {
    at([("clients", &clients)])
}

/// Measures clients that start together and fetch the file once each. Fails if a response is incomplete.
fn measure(
    bench: &Bench,
    server: &mut Server,
    file: &Path,
    clients: u32,
    megabytes: u64,
    split: &Split,
) -> Result<Run, Failure> {
    page_cache::drop_file(file)?;
    // One request per connection: the load ends when all responses are complete.
    let plan = Plan {
        length: Length::Requests(u64::from(clients)),
        timeout: RESPONSE_TIMEOUT,
        expect: served::complete_file(megabytes * MEGABYTE),
        receive_bytes: 256 << 10,
        ..served::load(bench, split, clients, Duration::ZERO).for_url(&server.url("/file"))?
    };
    let served = served::measure(bench, server, &plan)?;
    served.outcome.check()?;
    Ok(served.run())
}

/// Returns the write-up's table first, with the idle share beside each throughput; then the same for every variant.
fn results(measurements: Measurements<'_>, clients: &[u32], megabytes: u64) -> Results {
    const WRITE_UP_COLUMNS: [(&str, &str); 3] = [
        ("sendfile, blocking", "non-aio"),
        ("shm-sendfile 512k", "aio [512k]"),
        ("shm-sendfile 1m", "aio [1M]"),
    ];
    let row = |clients: &u32| (clients.to_string(), fetching(*clients));
    let by_clients: Vec<_> = clients.iter().map(row).collect();
    let speed = Figure { decimals: 2, ..SPEED };
    let columns: Vec<ShownColumn> = WRITE_UP_COLUMNS
        .iter()
        .flat_map(|(server, name)| {
            let server = || at([("server", server)]);
            [speed.at(name, server()), IDLE.at(&format!("{name}, idle"), server())]
        })
        .collect();
    let title = "conc: sendfile (non-aio) against reads into shared memory and sendfile (aio)";
    let write_up_table = measurements.table(title, &by_clients, &columns);
    let variants = comparison::rows(&VARIANTS);
    let of_every_way = |title: &str, figure: Figure| {
        let column = |&clients: &u32| figure.at(&plural(clients, "client"), fetching(clients));
        measurements.table(title, &variants, &clients.iter().map(column).collect::<Vec<_>>())
    };
    let tables = vec![
        write_up_table,
        of_every_way("Throughput of all clients together", SPEED),
        of_every_way("CPU time of the server per megabyte", COST),
        of_every_way(
            "Idle time of the machine, including waiting for the disk; the clients run on the same machine",
            IDLE,
        ),
    ];
    let ranking = |&clients: &u32| {
        let title = format!("One cold file of {megabytes} MB to {}", plural(clients, "client"));
        Compared { measurements, variants: &VARIANTS }.ranking(&title, SPEED, &fetching(clients))
    };
    let ends = [clients.first(), clients.last().filter(|_| clients.len() > 1)];
    let rankings = ends.into_iter().flatten().map(ranking).collect();
    let findings = vec![
        throughput_finding(measurements, clients),
        idle_finding(measurements, clients),
        pieces_finding(measurements, clients),
    ];
    Results { tables, findings, rankings, ..Results::default() }
}

/// Returns the finding about throughput. The write-up's table has factors of 1.4 to 2.3, so a factor of 1.5 counts as
/// "about twice".
fn throughput_finding(measurements: Measurements<'_>, clients: &[u32]) -> Finding {
    let claim = "A cold file is sent about twice as fast when it is read ahead into shared memory (1 MB chunks) than by sendfile alone, with few clients and with ten.";
    let cases = clients.iter().map(|&clients| {
        (
            clients.to_string(),
            labels_of(&SHARED, &fetching(clients)),
            labels_of(&SENDFILE, &fetching(clients)),
        )
    });
    let before = "Throughput of shm-sendfile as a ratio to sendfile alone, by number of clients: ";
    let words = (before, "Not measured.");
    measurements.finding_of_ratios(claim, words, SPEED, cases, |ratio| ratio.median >= 1.5)
}

/// Returns the finding about the idle share. The write-up's figures imply a fraction of the CPU time; any smaller CPU
/// time fulfils the claim in part.
fn idle_finding(measurements: Measurements<'_>, clients: &[u32]) -> Finding {
    let claim =
        "Reading ahead leaves the processor idle: 70 to 90 % of it, where sendfile leaves under 10 %.";
    let compared = |&clients: &u32| {
        let (shared, plain) =
            (labels_of(&SHARED, &fetching(clients)), labels_of(&SENDFILE, &fetching(clients)));
        let ratio = measurements.ratio(COST, &shared, &plain)?.median;
        let (idle_shared, idle_plain) =
            (measurements.middle(IDLE, &shared)?, measurements.middle(IDLE, &plain)?);
        let words = format!(
            "{clients}: {ratio:.2} of sendfile's CPU time per MB, {idle_shared:.0} % idle instead of {idle_plain:.0} %"
        );
        Some((words, ratio < 1.0))
    };
    let said: Vec<(String, bool)> = clients.iter().filter_map(compared).collect();
    finding_of_cases(claim, "By number of clients, ", &said, "Not measured.")
}

/// Returns the finding about the size of pieces.
fn pieces_finding(measurements: Measurements<'_>, clients: &[u32]) -> Finding {
    let claim = "With more clients larger pieces lose less throughput.";
    let remaining = |variant: &Variant, many: u32, few: u32| {
        let of = |clients| labels_of(variant, &fetching(clients));
        Some(measurements.ratio(SPEED, &of(many), &of(few))?.median)
    };
    let case = match clients {
        [few, .., many] => remaining(&SHARED_SMALL, *many, *few).zip(remaining(&SHARED, *many, *few)),
        _ => None,
    };
    let said = case.map(|(small, large)| (format!("512k {small:.2}; 1m {large:.2}"), large > small));
    let before = "Throughput with the most clients as a ratio to the fewest: ";
    finding_of_cases(claim, before, said.as_slice(), "Not measured.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_has_a_separate_configuration() {
        let instance = crate::peers::server::Instance {
            host: std::net::Ipv4Addr::LOCALHOST,
            port: 8080,
            directory: "/x".into(),
        };
        let text = |variant: &Variant| variant.serving(&instance, Path::new("/files"), None, Text::default());
        let texts: std::collections::BTreeSet<String> = VARIANTS.iter().map(text).collect();
        assert_eq!(texts.len(), VARIANTS.len());
    }
}
