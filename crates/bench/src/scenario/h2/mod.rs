//! `bench h2` and `bench grpc`: the cost of a request over HTTP/2, compared with nginx and H2O.
//!
//! ```text
//!   h2load --TLS, HTTP/2--> server                       bench h2: files in memory
//!   h2load --HTTP/2--> server --HTTP/2--> origin         bench grpc: unary calls of 64 bytes
//! ```
//!
//! * The load generator is h2load with one thread. It runs on the generator's processors and keeps the case's number of
//!   streams in flight.
//! * The origin of the gRPC calls is Ringroad: a file with trailers. It runs on the generator's processors.
//! * If a request fails, its server gets no figure.
//!
//! This file has cases, configurations and tables; the load generator is in `h2load`.

mod h2load;

use std::fs;
use std::time::Duration;

use clap::Args;
use tls::Client;
use tls::signing::KeyKind;

use super::comparison::{self, Compared, EPOLL, NGINX, READY, RING, Text, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{Labels, Measurements, at, axis, plural};
use super::served::{self, CPU, RATE, ServerCpus};
use super::tls::client;
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::pin::{self, Split};
use crate::peers::server::{Conditions, Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{AxisScale, Results, Section};
use h2load::Load;

/// `bench h2`, which has no options.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilesOptions {}

/// `bench grpc`, which has no options.
#[derive(Args, Clone, Debug)]
pub(crate) struct CallsOptions {}

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(1);

/// The requested object, the number of connections and of streams on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct H2Case {
    path: &'static str,
    kib: u32,
    connections: u32,
    streams: u32,
    is_grpc: bool,
}

impl H2Case {
    const fn file(path: &'static str, kib: u32, connections: u32, streams: u32) -> H2Case {
        H2Case { path, kib, connections, streams, is_grpc: false }
    }

    const fn call(connections: u32, streams: u32) -> H2Case {
        H2Case { path: "/bench.Echo/Call", kib: 0, connections, streams, is_grpc: true }
    }

    fn name(self) -> String {
        let H2Case { path, connections, streams, is_grpc, .. } = self;
        let what = if is_grpc { "unary call" } else { path.trim_start_matches('/') };
        format!("{what}, {} of {}", plural(connections, "connection"), plural(streams, "stream"))
    }

    fn labels(self) -> Labels {
        let H2Case { kib, connections, streams, .. } = self;
        at([("case", &self.name()), ("KiB", &kib), ("connections", &connections), ("streams", &streams)])
    }
}

const FILE_CASES: [H2Case; 5] = [
    H2Case::file("/1k", 1, 10, 100),
    H2Case::file("/1k", 1, 100, 1),
    H2Case::file("/10k", 10, 10, 10),
    H2Case::file("/100k", 100, 10, 10),
    H2Case::file("/1m", 1024, 10, 2),
];

const CALL_CASES: [H2Case; 3] = [H2Case::call(10, 10), H2Case::call(50, 1), H2Case::call(1, 100)];

const H2O: Variant = Variant::of("h2o", Peer::H2o);

/// nginx in its cheapest mode for small files.
const NGINX_TUNED: Variant = Variant::of("nginx, open_file_cache, sendfile off", Peer::Nginx)
    .with("open_file_cache max=100; sendfile off; ");

const FILE_VARIANTS: [Variant; 4] = [RING, EPOLL, NGINX_TUNED, H2O];
const CALL_VARIANTS: [Variant; 3] = [RING, EPOLL, NGINX];

impl Scenario for FilesOptions {
    const NAME: &'static str = "h2";
    const MINUTES: u32 = 2;
    const TITLE: &'static str = "Resident files over TLS and HTTP/2";
    const QUESTION: &'static str =
        "How much CPU time does a request over HTTP/2 and TLS take, compared with nginx and H2O?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let files = bench.workspace.directory("h2-files")?;
        served::write_files(&files, served::FILES)?;
        let certificate = bench.workspace.directory("h2")?.join("certificate.pem");
        served::write_certificate(&certificate, KeyKind::EcdsaP256)?;
        let configuration = |variant: &Variant, instance: &Instance| {
            let text = Text { http: "sendfile on;".to_owned(), ..Text::default() };
            // Not in the list of variants: the report's advice would take it for a setting.
            variant.listening(" ssl http2").serving(instance, &files, Some(&certificate), text)
        };
        let (tls, cases) = (Some(client(false)?), (&FILE_VARIANTS[..], &FILE_CASES[..]));
        measure(bench, section, tls, cases, configuration, |_, server| server.address().port())?;
        let claim = "A request takes at most the CPU time of nginx and of H2O.";
        Ok(results(Measurements::of(section), &FILE_VARIANTS, &FILE_CASES, claim))
    }
}

impl Scenario for CallsOptions {
    const NAME: &'static str = "grpc";
    const MINUTES: u32 = 2;
    const TITLE: &'static str = "Proxied unary gRPC calls";
    const QUESTION: &'static str = "How much CPU time does a proxied gRPC call take, compared with nginx?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let split = Split::of(&pin::available(), 1);
        let (_origin, calls) = origin(bench, &split)?;
        // HTTP/2 without TLS has a separate port beside the one for the readiness check.
        let mut ports = Vec::new();
        for variant in CALL_VARIANTS {
            ports.push((variant, bench.ports.reserve()?));
        }
        let port =
            |variant: &Variant| ports.iter().find(|(other, _)| other == variant).map_or(0, |(_, port)| *port);
        let configuration = |variant: &Variant, instance: &Instance| {
            let http = format!("upstream origin {{ server 127.0.0.1:{calls}; keepalive 64; }}");
            let server = format!(
                "{READY}\nlisten 127.0.0.1:{} http2;\nlocation / {{ grpc_pass grpc://origin; }}",
                port(variant)
            );
            variant.configuration(instance, &Text { http, server, ..Text::default() })
        };
        let cases = (&CALL_VARIANTS[..], &CALL_CASES[..]);
        measure(bench, section, None, cases, configuration, |variant, _| port(variant))?;
        let claim = "A call takes at most 0.60 of nginx's CPU time.";
        Ok(results(Measurements::of(section), &CALL_VARIANTS, &CALL_CASES, claim))
    }
}

/// Starts the origin behind the proxies; returns it and its HTTP/2 port. It responds with 64 bytes and the trailers of
/// a call.
fn origin(bench: &Bench, split: &Split) -> Result<(Server, u16), Failure> {
    let (files, port) = (bench.workspace.directory("grpc-files")?, bench.ports.reserve()?);
    let path = files.join("message");
    fs::write(&path, h2load::MESSAGE).map_err(Failure::file("write", &path))?;
    let conditions = Conditions { cpus: split.load.clone(), ..Conditions::default() };
    let server = Server::start(bench, "origin of calls", &Program::ours(bench), &conditions, |instance| {
        let server = format!(
            "{READY}\nlisten 127.0.0.1:{port} http2;\nlocation / {{\n    root {};\n    \
             rewrite ^ /message break;\n    default_type application/grpc;\n    types {{ }}\n    \
             error_page 405 =200 /message;\n    add_trailer grpc-status 0;\n}}",
            files.display()
        );
        RING.configuration(instance, &Text { server, ..Text::default() })
    })?;
    Ok((server, port))
}

/// Starts the servers, and measures each case with all of them in turn, on this port. `tls` are the client settings of
/// servers that speak TLS.
fn measure(
    bench: &Bench,
    section: &mut Section,
    tls: Option<Client>,
    (variants, cases): (&[Variant], &[H2Case]),
    configuration: impl Fn(&Variant, &Instance) -> String,
    port: impl Fn(&Variant, &Server) -> u16,
) -> Result<(), Failure> {
    let tool = match Peer::H2load.find(&bench.peer_paths) {
        Ok(tool) => tool,
        Err(missing) => {
            // Under the names of the servers, so that their rows have the reason.
            variants.iter().for_each(|variant| section.skip(variant.name, &missing));
            return Ok(());
        }
    };
    let mut place = ServerCpus::of_one_worker(bench, section);
    place.tls = tls;
    let load = Load::new(tool, bench, &place.split.load, bench.length(LENGTH))?;
    let mut servers = comparison::start(bench, section, &place, (variants, ""), configuration)?;
    for case in cases {
        bench.progress(format_args!("{}: {}", section.scenario, case.name()));
        let labels = |(variant, _): &(Variant, Server)| labels_of(variant, &case.labels());
        comparison::measure(bench, section, &mut servers, labels, |(variant, server), _, _| {
            let port = port(variant, server);
            load.run(server, port, case)
        })?;
    }
    Ok(())
}

/// Returns a table and a chart for each case, a plot, and a finding about Ringroad's CPU time.
fn results(measurements: Measurements<'_>, variants: &[Variant], cases: &[H2Case], claim: &str) -> Results {
    let (compared, peers) = (Compared { measurements, variants }, &variants[2..]);
    let mut results = Results::default();
    let mut columns = vec![RATE.shown(), CPU.shown()];
    columns.extend(peers.iter().map(|peer| {
        let name = peer.name.split(',').next().unwrap_or_default();
        CPU.over(&format!("CPU / {name}'s"), peer.labels())
    }));
    for case in cases {
        let title = format!("{}, one worker", capitalised(&case.name()));
        results.tables.push(compared.table(&title, &case.labels(), &columns));
        let title = format!("CPU time per request: {}", case.name());
        results.rankings.push(compared.ranking(&title, CPU, &case.labels()));
    }
    let is_grpc = cases[0].is_grpc;
    let (id, by, x, common) = match is_grpc {
        true => ("grpc-cpu", "call, by streams of a connection", ("streams", "", "streams"), Labels::new()),
        false => {
            ("h2-cpu", "request, by size of the file", ("KiB", "KiB", "size"), at([("connections", &10)]))
        }
    };
    results.plots.push(measurements.plot(
        (id, &format!("CPU time of the server per {by}")),
        (x.0, axis(x.2, x.1, AxisScale::Logarithmic)),
        (CPU, axis("CPU", CPU.unit, AxisScale::Logarithmic)),
        &compared.rows(&common),
    ));
    let limit = if is_grpc { 0.60 } else { 1.0 };
    let pairs = cases.iter().flat_map(|case| peers.iter().map(move |peer| (case, peer)));
    let pairs = pairs.map(|(case, peer)| {
        let words = format!("{}, {}", case.name(), peer.name);
        (words, labels_of(&RING, &case.labels()), labels_of(peer, &case.labels()))
    });
    let words = ("io_uring, as a ratio to peers: ", "No peer was measured.");
    let finding = measurements.finding_of_ratios(claim, words, CPU, pairs, |ratio| ratio.median <= limit);
    results.findings.push(finding);
    results
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_are_unique() {
        let names: std::collections::BTreeSet<String> =
            FILE_CASES.iter().chain(&CALL_CASES).map(|case| case.name()).collect();
        assert_eq!(names.len(), FILE_CASES.len() + CALL_CASES.len());
        assert!(names.contains("1k, 100 connections of 1 stream"), "{names:?}");
    }
}
