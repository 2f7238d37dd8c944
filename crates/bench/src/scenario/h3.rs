//! `bench h3`: the cost of requests, handshakes and idle connections over HTTP/3, compared with nginx and H2O.
//!
//! * The load generator is part of this suite ([`crate::load::quic`]), so that all servers have the same client. It runs on the
//!   generator's processors and keeps the case's number of streams in flight.
//! * All servers run one worker and pass several packets to the kernel in one call (`quic_gso on`; H2O does so by default).
//! * Datagrams are lost in the generator, so that no special network device is needed.
//! * nginx and H2O need builds with QUIC, which Debian's packages are not (`--peer nginx=PATH`). Others have the reason in their rows.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tls::signing::KeyKind;

use super::comparison::{self, Compared, EPOLL, NGINX, RING, Text, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, Of, ShownColumn, at, axis, figure, plural};
use super::served::{self, CALLS, CPU, FILES, GENERATOR_CPU, LIMITED, P50, P99, RATE, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Plan, QuicSettings, Reuse, quic, tls_client};
use crate::method::memory;
use crate::peers::server::{Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{AxisScale, Results, Run, Section};

#[derive(Args, Clone, Debug)]
pub(crate) struct Http3Options {
    /// Number of idle connections whose memory is measured
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    idle: u32,
}

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(1);

/// Limit on the connections of a server. A server does not notice the end of a connection whose last packet was lost, as may happen when a
/// load closes many at once.
const CONNECTIONS_MAX: u32 = 65_535;

/// Number of clients that connect repeatedly.
const CLIENTS: u32 = 8;

/// nginx in its cheapest mode for small files.
const NGINX_TUNED: Variant =
    Variant { name: "nginx, open_file_cache", ..NGINX.with("open_file_cache max=100; ") };

const VARIANTS: [Variant; 4] = [RING, EPOLL, NGINX_TUNED, Variant::of("h2o", Peer::H2o)];

const IDLE_BYTES: Figure =
    figure("an idle connection", "bytes", 0, Of::Value("bytes_per_idle_connection", 1.0));

/// A file, the number of connections and of streams on each, and the share of lost datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct H3Case {
    file: &'static str,
    kib: u32,
    connections: u32,
    streams: u32,
    loss_percent: u32,
    /// The largest share of nginx's CPU time that is aimed at, in percent.
    aim_percent: u32,
}

impl H3Case {
    const fn of(file: (&'static str, u32), connections: u32, streams: u32, aim_percent: u32) -> H3Case {
        H3Case { file: file.0, kib: file.1, connections, streams, loss_percent: 0, aim_percent }
    }

    fn words(self) -> String {
        let (connections, streams) = (plural(self.connections, "connection"), plural(self.streams, "stream"));
        let loss = match self.loss_percent {
            0 => String::new(),
            percent => format!(", {percent} % of the datagrams lost"),
        };
        format!("{}, {connections} of {streams}{loss}", self.file)
    }

    fn labels(self) -> Labels {
        let H3Case { kib, connections, streams, loss_percent: loss, .. } = self;
        at([
            ("case", &self.words()),
            ("KiB", &kib),
            ("connections", &connections),
            ("streams", &streams),
            ("loss", &loss),
        ])
    }
}

const CASES: [H3Case; 8] = [
    H3Case::of(("1k", 1), 10, 10, 60),
    H3Case::of(("1k", 1), 100, 1, 60),
    H3Case::of(("1k", 1), 1000, 1, 60),
    H3Case::of(("10k", 10), 10, 10, 60),
    H3Case::of(("100k", 100), 10, 10, 55),
    H3Case::of(("100k", 100), 100, 1, 55),
    H3Case::of(("1m", 1024), 10, 2, 55),
    H3Case { loss_percent: 1, ..H3Case::of(("100k", 100), 10, 1, 55) },
];

/// The handshakes, and whether they resume a session and send the request in early data.
const HANDSHAKES: [(&str, bool, bool); 3] =
    [("full", false, false), ("resumed", true, false), ("resumed, with early data", true, true)];

/// Returns the labels of the measurements with this handshake.
fn handshake(words: &str) -> Labels {
    at([("h3 handshake", &words)])
}

fn idle_labels() -> Labels {
    at([("idle", &"h3")])
}

/// Returns the settings of the client.
fn settings(resumes: bool, early_data: bool) -> Result<QuicSettings, Failure> {
    Ok(QuicSettings { tls: tls_client(resumes, b"h3")?, streams: 1, early_data, loss_percent: 0 })
}

/// The requested files, the certificate, and the processors of the servers.
struct H3Run<'a> {
    bench: &'a Bench,
    files: PathBuf,
    certificate: PathBuf,
    processors: ServerCpus,
}

impl Scenario for Http3Options {
    const NAME: &'static str = "h3";
    const MINUTES: u32 = 4;
    const TITLE: &'static str = "Resident files over HTTP/3, handshakes and idle connections of QUIC";
    const QUESTION: &'static str =
        "How much CPU time does a request over HTTP/3 take, compared with nginx and H2O?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let files = bench.workspace.directory("h3-files")?;
        served::write_files(&files, FILES)?;
        let certificate = bench.workspace.directory("h3")?.join("certificate.pem");
        served::write_certificate(&certificate, KeyKind::EcdsaP256)?;
        let mut processors = ServerCpus::of_one_worker(bench, section);
        // A server that accepts handshakes over TCP also receives datagrams.
        processors.tls = Some(tls_client(false, b"http/1.1")?);
        let run = H3Run { bench, files, certificate, processors };
        run.requests(section)?;
        let count = if bench.scale == Scale::Instant { self.idle.min(20) } else { self.idle };
        run.idle(section, count)?;
        Ok(results(Measurements::of(section)))
    }
}

impl H3Run<'_> {
    /// Returns the configuration of a server that listens on TCP, for the readiness check, and on UDP.
    fn configuration(&self, variant: &Variant, instance: &Instance) -> String {
        let (host, port) = (instance.host, instance.port);
        if variant.peer == Some(Peer::H2o) {
            // The first lines belong to the listener of TCP, with which each configuration of H2O begins.
            let certificate = self.certificate.display();
            let ssl = format!("  ssl:\n    certificate-file: {certificate}\n    key-file: {certificate}\n");
            // H2O does not start with a larger number than the limit on open files.
            let text = Text { connections: 8192, ..Text::default() };
            let rest = variant.serving(instance, &self.files, None, text);
            return format!("{ssl}listen:\n  type: quic\n  host: {host}\n  port: {port}\n{ssl}{rest}");
        }
        let text = Text {
            http: "keepalive_timeout 1h;\nquic_gso on;\nssl_early_data on;\nsendfile on;".to_owned(),
            server: format!("listen {host}:{port} quic reuseport;\nssl_protocols TLSv1.3;\n"),
            connections: CONNECTIONS_MAX,
            ..Text::default()
        };
        variant.listening(" ssl").serving(instance, &self.files, Some(&self.certificate), text)
    }

    /// Measures the requests of all cases, and the connections with one request each.
    fn requests(&self, section: &mut Section) -> Result<(), Failure> {
        let (bench, split) = (self.bench, &self.processors.split);
        let mut servers =
            comparison::start(bench, section, &self.processors, (&VARIANTS, ""), |variant, instance| {
                self.configuration(variant, instance)
            })?;
        for case in CASES {
            let H3Case { streams, loss_percent, .. } = case;
            // Each of several loads makes all handshakes.
            let connections = case.connections.min(bench.scaled(20, 1000, 1000));
            let plan = Plan {
                quic: Some(QuicSettings { streams, loss_percent, ..settings(false, false)? }),
                expect: served::complete_file(u64::from(case.kib) << 10),
                ..served::load(bench, split, connections, LENGTH)
            };
            let labels = |variant: &Variant| Some(labels_of(variant, &case.labels()));
            let path = format!("/{}", case.file);
            served::compare(bench, section, &mut servers, (&case.words(), &path), &plan, labels)?;
        }
        for (words, resumes, early_data) in HANDSHAKES {
            let plan = Plan {
                quic: Some(settings(resumes, early_data)?),
                reuse: Reuse::PerRequest,
                ..served::load(bench, split, CLIENTS, LENGTH)
            };
            let labels = |variant: &Variant| Some(labels_of(variant, &handshake(words)));
            served::compare(bench, section, &mut servers, (words, "/1k"), &plan, labels)?;
        }
        Ok(())
    }

    /// Measures the memory of idle connections that have received one response each.
    fn idle(&self, section: &mut Section, count: u32) -> Result<(), Failure> {
        let measure = |variant: &Variant, program: &Program| -> Result<Run, Failure> {
            let conditions = self.processors.conditions();
            let server = Server::start(self.bench, variant.name, program, &conditions, |instance| {
                self.configuration(variant, instance)
            })?;
            let used = || memory::user_space_bytes(server.child.tree());
            let held = |count: u32| {
                let plan = served::load(self.bench, &self.processors.split, count, LENGTH);
                let plan =
                    Plan { quic: Some(settings(false, false)?), ..plan }.for_url(&server.url("/1k"))?;
                quic::hold(&plan, used)
            };
            let before = held(1)?;
            let each = memory::of_each(before, held(count)?, count)?;
            Ok(Run::of([("bytes_per_idle_connection", each)]))
        };
        for (variant, program) in comparison::programs(self.bench, section, VARIANTS, ", idle") {
            if comparison::is_late(self.bench, section) {
                break;
            }
            self.bench.progress(format_args!("h3: {count} idle connections, {}", variant.name));
            let measured = comparison::or_reason(measure(&variant, &program))?;
            comparison::file(section, measured, &labels_of(&variant, &idle_labels()), 0);
        }
        Ok(())
    }
}

/// Returns a table and a ranking for each case, a plot, and findings about Ringroad's CPU time.
fn results(measurements: Measurements<'_>) -> Results {
    let compared = Compared { measurements, variants: &VARIANTS };
    let mut results = Results::default();
    let mut add = |title: &str, figure: Figure, case: &Labels, columns: &[ShownColumn]| {
        results.tables.push(compared.table(title, case, columns));
        results.rankings.push(compared.ranking(title, figure, case));
    };
    let columns = || {
        let [_, _, nginx, h2o] = VARIANTS;
        let mut columns: Vec<_> = [RATE, P50, P99, CPU].map(Figure::shown).into();
        columns.push(CPU.over("CPU / nginx's", nginx.labels()));
        columns.push(CPU.over("CPU / H2O's", h2o.labels()));
        columns.extend([CALLS, GENERATOR_CPU, LIMITED].map(Figure::shown));
        columns
    };
    for case in CASES {
        add(&format!("HTTP/3: {}", case.words()), CPU, &case.labels(), &columns());
    }
    for (words, ..) in HANDSHAKES {
        let title = format!("Connections over QUIC with a handshake ({words}), {CLIENTS} clients");
        add(&title, CPU, &handshake(words), &columns());
    }
    add("Memory of an idle connection over QUIC", IDLE_BYTES, &idle_labels(), &[IDLE_BYTES.shown()]);
    results.plots.push(measurements.plot(
        ("h3-cpu", "CPU time of the server per request over HTTP/3, by size of the file"),
        ("KiB", axis("size", "KiB", AxisScale::Logarithmic)),
        (CPU, axis("CPU", CPU.unit, AxisScale::Logarithmic)),
        &compared.rows(&at([("connections", &10), ("loss", &0)])),
    ));
    let [_, _, nginx, h2o] = VARIANTS;
    let all = |peer: Variant| {
        CASES.map(|case| (case.words(), labels_of(&RING, &case.labels()), labels_of(&peer, &case.labels())))
    };
    for (aim_percent, size) in [(60, "up to 10 KiB"), (55, "from 100 KiB")] {
        let cases = CASES.into_iter().zip(all(nginx)).filter(|(case, _)| case.aim_percent == aim_percent);
        let aim = f64::from(aim_percent) / 100.0;
        results.findings.push(measurements.finding_of_ratios(
            format!("A response of {size} over HTTP/3 takes at most {aim:.2} of nginx's CPU time."),
            ("CPU time on io_uring as a ratio: ", "nginx with QUIC was not measured."),
            CPU,
            cases.map(|(_, pair)| pair),
            |ratio| ratio.median <= aim,
        ));
    }
    results.findings.push(measurements.finding_of_ratios(
        "A response over HTTP/3 takes at most H2O's CPU time.",
        ("CPU time on io_uring as a ratio: ", "H2O with QUIC was not measured."),
        CPU,
        all(h2o),
        |ratio| ratio.median <= 1.0,
    ));
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cases_are_unique() {
        let names: std::collections::BTreeSet<String> = CASES.map(H3Case::words).into();
        assert_eq!(names.len(), CASES.len());
        assert!(names.contains("100k, 10 connections of 1 stream, 1 % of the datagrams lost"), "{names:?}");
    }
}
