//! `bench tls`: full and resumed handshakes with ECDSA and RSA certificates; responses over keep-alive connections; the
//! memory of idle connections; and the effect of many handshakes on keep-alive requests.
//!
//! How it is measured:
//!
//! * All servers speak TLS 1.3, otherwise with their defaults, with one worker on a dedicated processor. The client is
//!   Ringroad's upstream client, on the other processors; it does not verify certificates, which saves half of its
//!   handshake cost.
//! * A handshake costs a client as much CPU time as the server, so the generator may be the limit. The relevant figure
//!   is the server's CPU time per connection: accept, handshake, one response of 1 KiB, and close.
//! * The CPU time of keep-alive connections includes their handshakes: a hundred of them in the first milliseconds of a
//!   round.
//! * Latency is that of requests at a fixed rate over keep-alive connections, alone and while other clients perform
//!   handshakes at the maximum rate. The two loads run on separate processors if the generator has two or more.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tls::Client;
use tls::signing::KeyKind;

use super::comparison::{self, Compared, NGINX, RING, Text, Variant, WHEN, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, Of, ShownColumn, at, figure};
use super::served::{self, CPU, FILES, GENERATOR_CPU, LIMITED, P50, P99, RATE, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{self, Length, LoopKind, Plan, Reuse};
use crate::method::memory;
use crate::peers::client::Idle;
use crate::peers::server::{Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Finding, Results, Run, Section};

#[derive(Args, Clone, Debug)]
pub(crate) struct TlsOptions {
    /// Number of idle connections whose memory is measured
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    idle: u32,
}

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(2);

/// Number of keep-alive connections, as in the comparisons without TLS.
const CONNECTIONS: u32 = 100;

/// Number of clients that connect repeatedly.
const CLIENTS: u32 = 8;

/// Rate of the requests whose latency is measured: low enough for a server that is busy with handshakes.
const RATE_OF_KEPT: f64 = 1000.0;

const VARIANTS: [Variant; 3] =
    [RING.listening(" ssl"), NGINX.listening(" ssl"), Variant::of("h2o", Peer::H2o)];

const IDLE_BYTES: Figure =
    figure("an idle connection", "bytes", 0, Of::Value("bytes_per_idle_connection", 1.0));

const KEYS: [(&str, KeyKind); 2] = [("ECDSA", KeyKind::EcdsaP256), ("RSA", KeyKind::Rsa2048)];

pub(super) fn client(resumes: bool) -> Result<Client, Failure> {
    load::tls_client(resumes, b"http/1.1")
}

/// The state of a run: the requested files, the certificates, and the processors of the servers.
struct TlsRun<'a> {
    bench: &'a Bench,
    files: PathBuf,
    certificates: PathBuf,
    place: ServerCpus,
}

impl Scenario for TlsOptions {
    const NAME: &'static str = "tls";
    const MINUTES: u32 = 4;
    const TITLE: &'static str =
        "TLS: handshakes, keep-alive connections, idle connections, and requests during handshakes";
    const QUESTION: &'static str =
        "What does TLS cost per connection and per request, and do handshakes delay requests?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let files = bench.workspace.directory("tls")?;
        served::write_files(&files, FILES)?;
        let certificates = bench.workspace.directory("tls-keys")?;
        for (name, kind) in KEYS {
            served::write_certificate(&certificates.join(name), kind)?;
        }
        let mut place = ServerCpus::of_one_worker(bench, section);
        place.tls = Some(client(false)?);
        if place.split.load.len() < 2 {
            section.skip(
                "a separate processor for the clients that make handshakes",
                "the generator has only one: latencies during handshakes include the time of the clients' handshakes",
            );
        }
        let run = TlsRun { bench, files, certificates, place };
        for (key, _) in KEYS {
            run.measure_key(section, key)?;
        }
        let count = if bench.scale == Scale::Instant { self.idle.min(20) } else { self.idle };
        run.idle(section, count)?;
        Ok(results(Measurements::of(section)))
    }
}

const HANDSHAKES: [&str; 2] = ["full", "resumed"];

fn handshakes(key: &str, handshake: &str) -> Labels {
    at([("certificate", &key), ("handshake", &handshake)])
}

fn kept(file: &str, bytes: usize) -> Labels {
    at([("tls file", &file), ("KiB", &(bytes >> 10)), ("connections", &CONNECTIONS)])
}

fn when(key: &str, when: &str) -> Labels {
    at([("beside certificate", &key), ("when", &when)])
}

fn idle_labels() -> Labels {
    at([("idle", &"tls")])
}

impl TlsRun<'_> {
    /// Measures handshakes with a certificate of this kind; with the first kind also keep-alive connections.
    fn measure_key(&self, section: &mut Section, key: &str) -> Result<(), Failure> {
        let (bench, split, suffix) = (self.bench, &self.place.split, format!(", {key}"));
        let mut servers =
            comparison::start(bench, section, &self.place, (&VARIANTS, &suffix), |variant, instance| {
                self.configuration(variant, instance, key)
            })?;
        for handshake in HANDSHAKES {
            let mut plan = served::load(bench, split, CLIENTS, LENGTH);
            (plan.reuse, plan.tls) = (Reuse::PerRequest, Some(client(handshake == "resumed")?));
            let words = format!("{key}, {handshake} handshakes");
            let labels = |variant: &Variant| Some(labels_of(variant, &handshakes(key, handshake)));
            served::compare(bench, section, &mut servers, (&words, "/1k"), &plan, labels)?;
        }
        let files = FILES.iter().filter(|_| key == KEYS[0].0);
        for &(file, bytes) in files {
            let mut plan = served::load(bench, split, CONNECTIONS, LENGTH);
            (plan.tls, plan.expect) = (Some(client(false)?), served::complete_file(bytes as u64));
            let words = format!("a file of {file}, {CONNECTIONS} keep-alive connections");
            let labels = |variant: &Variant| Some(labels_of(variant, &kept(file, bytes)));
            served::compare(bench, section, &mut servers, (&words, &format!("/{file}")), &plan, labels)?;
        }
        self.beside(section, &mut servers, key)
    }

    fn configuration(&self, variant: &Variant, instance: &Instance, key: &str) -> String {
        let text = Text {
            http: "keepalive_timeout 1h;\nopen_file_cache max=100;".to_owned(),
            server: "ssl_protocols TLSv1.2 TLSv1.3;\n".to_owned(),
            connections: 16_384,
            ..Text::default()
        };
        variant.serving(instance, &self.files, Some(&self.certificates.join(key)), text)
    }

    /// Measures the latency of requests over keep-alive connections, alone and beside a flood of full handshakes.
    fn beside(
        &self,
        section: &mut Section,
        servers: &mut [(Variant, Server)],
        key: &str,
    ) -> Result<(), Failure> {
        let (bench, split) = (self.bench, &self.place.split);
        bench.progress(format_args!("tls: keep-alive requests during handshakes, {key}"));
        let (with, length) = (client(false)?, bench.length(LENGTH));
        let (kept_cpus, flood_cpus) = split.load_halves();
        let labels = |(variant, _): &(Variant, Server)| {
            Vec::from(WHEN.map(|words| labels_of(variant, &when(key, words))))
        };
        comparison::measure_all(bench, section, servers, labels, |(_, server), _, _| {
            let kept = Plan {
                cpus: kept_cpus.to_vec(),
                tls: Some(with.clone()),
                loop_kind: LoopKind::Open { rate: RATE_OF_KEPT },
                ..served::load(bench, split, 10, LENGTH).for_url(&server.url("/1k"))?
            };
            let alone = comparison::or_reason(served::measure_run(bench, server, &kept))?;
            let flood = Plan {
                cpus: flood_cpus.to_vec(),
                connections: 2 * CLIENTS,
                loop_kind: LoopKind::Closed,
                reuse: Reuse::PerRequest,
                // The flood starts before the measured load and ends after it.
                length: Length::Time(length + length / 2),
                ..kept.clone()
            };
            let (measured, flooded) = std::thread::scope(|scope| {
                let flooding = scope.spawn(|| load::run(&flood));
                (served::measure_run(bench, server, &kept), flooding.join())
            });
            let measured = comparison::or_reason(measured)?;
            // Without handshakes the latencies would be those of the requests alone.
            let beside = match flooded {
                Ok(Ok(_)) => measured,
                Ok(Err(failure)) => Err(format!("no handshakes: {failure}")),
                Err(_) => Err("no handshakes: their thread panicked".to_owned()),
            };
            Ok(vec![alone, beside])
        })
    }

    /// Measures the memory of idle connections that have received one response each.
    fn idle(&self, section: &mut Section, count: u32) -> Result<(), Failure> {
        let with = client(false)?;
        let measure = |variant: &Variant, program: &Program| -> Result<Run, Failure> {
            let conditions = self.place.conditions();
            let server = Server::start(self.bench, variant.name, program, &conditions, |instance| {
                self.configuration(variant, instance, KEYS[0].0)
            })?;
            let open = |count: u32| Idle::open(server.address(), Some(&with), count, "/1k");
            let _first = open(1)?;
            let before = memory::user_space_bytes(server.child.tree());
            let _all = open(count)?;
            let each = memory::of_each(before, memory::user_space_bytes(server.child.tree()), count)?;
            Ok(Run::of([("bytes_per_idle_connection", each)]))
        };
        for (variant, program) in comparison::programs(self.bench, section, VARIANTS, ", idle") {
            if comparison::is_late(self.bench, section) {
                break;
            }
            self.bench.progress(format_args!("tls: {count} idle connections, {}", variant.name));
            let measured = comparison::or_reason(measure(&variant, &program))?;
            comparison::file(section, measured, &labels_of(&variant, &idle_labels()), 0);
        }
        Ok(())
    }
}

/// Returns every kind of connection with its labels, and a description.
fn connections() -> Vec<(String, Labels)> {
    let of_key = |(key, _): (&str, KeyKind)| {
        HANDSHAKES.map(|handshake| (format!("{handshake} handshake, {key}"), handshakes(key, handshake)))
    };
    KEYS.into_iter().flat_map(of_key).collect()
}

fn results(measurements: Measurements<'_>) -> Results {
    let servers = Compared { measurements, variants: &VARIANTS };
    let mut results = Results { findings: findings(measurements), ..Results::default() };
    let mut add = |title: &str, ranking: Option<(&str, Figure)>, case: &Labels, columns: &[ShownColumn]| {
        results.tables.push(servers.table(title, case, columns));
        results.rankings.extend(ranking.map(|(title, figure)| servers.ranking(title, figure, case)));
    };
    let over_nginx = || CPU.over("CPU / nginx's", NGINX.labels());
    for (words, case) in connections() {
        let mut columns: Vec<_> = [RATE, P50, P99, CPU, GENERATOR_CPU, LIMITED].map(Figure::shown).into();
        columns.push(over_nginx());
        let ranking = format!("CPU time per connection: {words}");
        let title = format!("Connections with a {words}, {CLIENTS} clients");
        add(&title, Some((&ranking, CPU)), &case, &columns);
    }
    for (file, bytes) in FILES {
        let columns = [RATE.shown(), P50.shown(), P99.shown(), CPU.shown(), over_nginx()];
        let words = format!("{CONNECTIONS} keep-alive connections");
        let ranking = format!("CPU time per request: a file of {file}, {words}");
        let title = format!("A file of {file} over TLS, {words}");
        add(&title, Some((&ranking, CPU)), &kept(file, bytes), &columns);
    }
    let beside = |key: &str| {
        format!(
            "Latency of requests over keep-alive connections, without and during full handshakes with {key}"
        )
    };
    for (key, _) in KEYS {
        let case = at([("beside certificate", &key)]);
        add(&beside(key), None, &case, &comparison::disturbance_columns());
    }
    let title = "Memory of an idle TLS connection";
    add(title, Some((title, IDLE_BYTES)), &idle_labels(), &[IDLE_BYTES.shown()]);
    let ecdsa = KEYS[0].0;
    let lines = comparison::disturbance_lines(&VARIANTS, |words| when(ecdsa, words));
    results.plots = vec![measurements.curves(("tls-percentiles", &beside(ecdsa)), "ms", &lines)];
    results
}

/// No write-up has these claims: a site that enables TLS needs to rely on them.
fn findings(measurements: Measurements<'_>) -> Vec<Finding> {
    let beside_nginx = |claim: &str, figure: Figure, cases: Vec<(String, Labels)>| {
        let cases =
            cases.into_iter().map(|(words, case)| (words, labels_of(&RING, &case), labels_of(&NGINX, &case)));
        let words = ("As a ratio to nginx: ", "nginx was not measured.");
        measurements.finding_of_ratios(claim, words, figure, cases, |ratio| ratio.median <= 1.0)
    };
    let files = FILES.map(|(file, bytes)| (file.to_owned(), kept(file, bytes))).into();
    let felt = KEYS.map(|(key, _)| {
        let [alone, beside] = WHEN.map(|words| labels_of(&RING, &when(key, words)));
        (key.to_owned(), beside, alone)
    });
    vec![
        beside_nginx("A connection takes at most nginx's CPU time.", CPU, connections()),
        beside_nginx("A request over a keep-alive connection takes at most nginx's CPU time.", CPU, files),
        measurements.finding_of_ratios(
            "Handshakes do not delay requests over keep-alive connections (99th percentile at most doubled).",
            ("p99 during handshakes, as a ratio to p99 without them: ", "Not measured."),
            P99,
            felt,
            |ratio| ratio.median <= 2.0,
        ),
        beside_nginx(
            "An idle connection takes at most nginx's memory.",
            IDLE_BYTES,
            vec![("an idle connection".to_owned(), idle_labels())],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::load::Target;
    use crate::method::pin;

    #[test]
    fn a_load_ends_if_the_server_never_completes_a_handshake() {
        // The kernel establishes the connections; nothing reads from them.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let plan = Plan {
            connections: 2,
            cpus: pin::available().into_iter().take(1).collect(),
            timeout: Duration::from_millis(50),
            tls: Some(client(false).unwrap()),
            ..Plan::new(vec![Target::parse(&url).unwrap()])
        };
        let failure = load::run(&plan).unwrap_err().to_string();
        assert_eq!(failure, "TLS: no handshake completed within 0.05 s");
    }
}
