//! `bench tls`: handshakes, full and resumed, with certificates of ECDSA and of RSA; responses over connections that are kept;
//! what an idle connection takes; and what kept requests notice of a flood of handshakes.
//!
//! How it is measured:
//!
//! * All servers speak TLS 1.3, else with their defaults, one worker on its own processor. The client is that of this project's
//!   own upstreams, on the other processors; it looks at no certificate, which saves it half of a handshake.
//! * A handshake costs a client as much as the server, so the generator may be the limit. The server's processor time for a
//!   connection is what counts: accepting, handshake, one response of 1 KiB, and the end.
//! * The time of kept connections includes their handshakes: a hundred of them in the first milliseconds of a round.
//! * Latency is that of requests at a fixed rate over kept connections, alone and while other clients make handshakes as fast
//!   as the server can.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tls::client::ClientSettings;
use tls::server::Versions;
use tls::signing::KeyKind;
use tls::{Client, ciphers, groups};

use super::lineup::{self, NGINX, RING, Text, Way};
use super::served::{self, CPU, FILES, GENERATOR_CPU, LIMITED, P50, P99, P999, RATE, ServerCpus};
use super::sheet::{Figure, Labels, Of, Sheet, alone_and_beside, at, figure, named, under};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{self, Length, Pace, Plan, Reuse};
use crate::method::memory;
use crate::method::pin::{self, Split};
use crate::method::rounds::in_turns;
use crate::peers::secure::SecureClient;
use crate::peers::server::{Place, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Run, Section, Table};

/// Options of `bench tls`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Idle connections whose memory is measured
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    idle: u32,
}

/// Length of one measurement in a result for keeping.
const LENGTH: Duration = Duration::from_secs(2);

/// Kept connections, as in the comparisons without TLS.
const CONNECTIONS: u32 = 100;

/// Clients that connect again and again.
const CLIENTS: u32 = 8;

/// Requests a second whose latency is measured: few enough that a server that makes handshakes has time for them.
const RATE_OF_KEPT: f64 = 1000.0;

const WAYS: [Way; 3] = [RING.listening(" ssl"), NGINX.listening(" ssl"), Way::of("h2o", Peer::H2o)];

const IDLE_BYTES: Figure =
    figure("an idle connection", "bytes", 0, Of::Value("bytes_per_idle_connection", 1.0));

/// Kinds of certificates.
const KEYS: [(&str, KeyKind); 2] = [("ECDSA", KeyKind::EcdsaP256), ("RSA", KeyKind::Rsa2048)];

/// What clients make handshakes with.
fn client(resumes: bool) -> Result<Client, Failure> {
    let settings = ClientSettings {
        identity: None,
        versions: Versions { tls12: false, tls13: true },
        suites: Vec::new(),
        suites_13: ciphers::all_13(),
        // What all servers have.
        groups: groups::parse("X25519").map(|groups| groups.supported).unwrap_or_default(),
        reuses_sessions: resumes,
        sends_name: false,
        alpn: vec![b"http/1.1".to_vec()],
    };
    Client::new(settings).map_err(|error| Failure::Other(format!("TLS: {error}")))
}

fn configuration(way: &Way, place: &Place, files: &Path, certificate: &Path) -> String {
    let (files, certificate) = (files.display(), certificate.display());
    match way.peer {
        Some(Peer::H2o) => format!(
            "  ssl:\n    certificate-file: {certificate}\n    key-file: {certificate}\nnum-threads: 1\n\
             max-connections: 16384\nhttp1-request-timeout: 3600\nhosts:\n  default:\n    paths:\n      /:\n        \
             file.dir: {files}\n"
        ),
        _ => {
            let server = format!(
                "ssl_protocols TLSv1.2 TLSv1.3;\nssl_certificate {certificate};\nssl_certificate_key {certificate};\n\
                 location / {{ root {files}; }}"
            );
            let http = "keepalive_timeout 1h;\nopen_file_cache max=100;".to_owned();
            way.configuration(place, &Text { http, server, connections: 16_384, ..Text::default() })
        }
    }
}

/// The files that are asked for and the certificates.
struct Data {
    files: PathBuf,
    certificates: PathBuf,
}

impl Data {
    fn make(bench: &Bench) -> Result<Data, Failure> {
        let (files, certificates) = (bench.workspace.folder("tls")?, bench.workspace.folder("tls-keys")?);
        served::write_files(&files)?;
        for (name, kind) in KEYS {
            served::write_certificate(&certificates.join(name), kind)?;
        }
        Ok(Data { files, certificates })
    }
}

pub(super) fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    served::raise_descriptors();
    let mut section = Section {
        scenario: "tls".to_owned(),
        title: "TLS: handshakes, keep-alive connections, idle connections, and requests beside handshakes".to_owned(),
        question: "What does TLS cost a server for each connection and for each request, and do handshakes delay requests?"
            .to_owned(),
        ..Section::default()
    };
    let data = Data::make(bench)?;
    let mut place = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    place.tls = Some(client(false)?);
    for (key, _) in KEYS {
        measure_key(bench, &mut section, &data, &place, key)?;
    }
    idle(bench, &mut section, &data, &place, options)?;
    place.note(&mut section);
    let tables = tables(Sheet::of(&section));
    section.tables = tables;
    Ok(section)
}

/// Handshakes with a certificate of this kind; with the first one kept connections too.
fn measure_key(
    bench: &Bench,
    section: &mut Section,
    data: &Data,
    place: &ServerCpus,
    key: &str,
) -> Result<(), Failure> {
    let certificate = data.certificates.join(key);
    let suffix = format!(", {key}");
    let mut servers = lineup::start(bench, section, (place, None), (&WAYS, &suffix), |way, at| {
        configuration(way, at, &data.files, &certificate)
    })?;
    for handshake in ["full", "resumed"] {
        bench.progress(format_args!("tls: {key}, {handshake} handshakes"));
        let with = client(handshake == "resumed")?;
        let mut chosen: Vec<_> = servers.iter_mut().collect();
        let labels = |way: &Way| handshakes(way, key, handshake);
        served::compare(bench, section, &mut chosen, labels, |server| {
            let plan = served::plan(bench, &server.url("/1k"), &place.split, CLIENTS)?;
            let length = Length::Time(bench.length(LENGTH));
            Ok(Plan { reuse: Reuse::PerRequest, tls: Some(with.clone()), length, ..plan })
        })?;
    }
    if key == KEYS[0].0 {
        for (file, bytes) in FILES {
            bench.progress(format_args!("tls: a file of {file}, {CONNECTIONS} kept connections"));
            let with = client(false)?;
            let mut chosen: Vec<_> = servers.iter_mut().collect();
            let labels = |way: &Way| kept(way, file);
            served::compare(bench, section, &mut chosen, labels, |server| {
                let path = format!("/{file}");
                let mut plan = served::plan(bench, &server.url(&path), &place.split, CONNECTIONS)?;
                plan.expect.status = Some(200);
                plan.expect.length = Some(bytes as u64);
                Ok(Plan { tls: Some(with.clone()), length: Length::Time(bench.length(LENGTH)), ..plan })
            })?;
        }
    }
    beside(bench, section, &mut servers, place, key)?;
    lineup::end(servers);
    Ok(())
}

fn handshakes(way: &Way, key: &str, handshake: &str) -> Labels {
    at([("certificate", &key), ("handshake", &handshake), ("server", &way.name)])
}

fn kept(way: &Way, file: &str) -> Labels {
    at([("tls file", &file), ("connections", &CONNECTIONS), ("server", &way.name)])
}

fn when(way: &Way, key: &str, when: &str) -> Labels {
    at([("beside certificate", &key), ("when", &when), ("server", &way.name)])
}

/// The latency of requests over kept connections, alone and beside a flood of full handshakes.
fn beside(
    bench: &Bench,
    section: &mut Section,
    servers: &mut [(Way, Server)],
    place: &ServerCpus,
    key: &str,
) -> Result<(), Failure> {
    bench.progress(format_args!("tls: kept requests beside handshakes, {key}"));
    let with = client(false)?;
    let rounds = in_turns(bench, servers, |(way, server), _| {
        let kept = served::plan(bench, &server.url("/1k"), &place.split, 10)?;
        let length = bench.length(LENGTH);
        let kept = Plan {
            tls: Some(with.clone()),
            pace: Pace::Open { rate: RATE_OF_KEPT },
            length: Length::Time(length),
            ..kept
        };
        let alone = served::measure(bench, server, &kept)?.run();
        let flood = Plan {
            connections: 2 * CLIENTS,
            pace: Pace::Closed,
            reuse: Reuse::PerRequest,
            // It is there before the others begin, and after they have ended.
            length: Length::Time(length + length / 2),
            ..kept.clone()
        };
        let beside = std::thread::scope(|scope| {
            let flooding = scope.spawn(|| load::run(&flood));
            let measured = served::measure(bench, server, &kept);
            let _ = flooding.join();
            measured
        })?;
        Ok((*way, [("alone", alone), ("beside", beside.run())]))
    })?;
    for rounds in rounds {
        for (round, (way, runs)) in rounds.into_iter().enumerate() {
            for (name, run) in runs {
                lineup::file(section, Ok(run), &when(&way, key, name), round);
            }
        }
    }
    Ok(())
}

/// The memory of idle connections, each with one response behind it.
fn idle(
    bench: &Bench,
    section: &mut Section,
    data: &Data,
    place: &ServerCpus,
    options: &Options,
) -> Result<(), Failure> {
    let count = if bench.scale == Scale::Instant { options.idle.min(20) } else { options.idle };
    let with = client(false)?;
    let certificate = data.certificates.join(KEYS[0].0);
    for (way, program) in lineup::programs(bench, section, WAYS, ", idle") {
        bench.progress(format_args!("tls: {count} idle connections, {}", way.name));
        let server = Server::start(bench, way.name, &program, &place.conditions(), |at| {
            configuration(&way, at, &data.files, &certificate)
        })?;
        let open = || -> Result<SecureClient, Failure> {
            let asked = SecureClient::connect(server.address(), &with)
                .and_then(|mut client| client.get("/1k", FILES[0].1).map(|_| client));
            asked.map_err(Failure::kernel("an idle connection"))
        };
        let first = open()?;
        let before = memory::user_space_bytes(server.tree());
        let all: Result<Vec<SecureClient>, Failure> = (0..count).map(|_| open()).collect();
        let all = all?;
        let more = memory::user_space_bytes(server.tree()).saturating_sub(before);
        let mut run = Run::default();
        run.set("bytes_per_idle_connection", more as f64 / f64::from(count));
        lineup::file(section, Ok(run), &at([("idle", &"tls"), ("server", &way.name)]), 0);
        drop((first, all));
        server.end();
    }
    Ok(())
}

/// All tables.
fn tables(sheet: Sheet<'_>) -> Vec<Table> {
    let servers = || named("server", WAYS.map(|way| way.name));
    let over_nginx = |name: &str| CPU.over(name, at([("server", &NGINX.name)]));
    let mut tables = Vec::new();
    for (key, _) in KEYS {
        for handshake in ["full", "resumed"] {
            let labels = at([("certificate", &key), ("handshake", &handshake)]);
            let title = format!("Connections with a {handshake} handshake, {key}, {CLIENTS} clients");
            let columns = [RATE, P50, P99, CPU, GENERATOR_CPU, LIMITED].map(Figure::shown);
            let mut columns: Vec<_> = columns.into();
            columns.push(over_nginx("CPU / nginx's"));
            tables.push(sheet.table(&title, &under(&servers(), &labels), &columns));
        }
    }
    for (file, _) in FILES {
        let labels = at([("tls file", &file), ("connections", &CONNECTIONS)]);
        let title = format!("A file of {file} over TLS, {CONNECTIONS} kept connections");
        let columns = [RATE.shown(), P50.shown(), P99.shown(), CPU.shown(), over_nginx("CPU / nginx's")];
        tables.push(sheet.table(&title, &under(&servers(), &labels), &columns));
    }
    for (key, _) in KEYS {
        let labels = at([("beside certificate", &key)]);
        let title = format!("Latency of kept requests, alone and beside full handshakes with {key}");
        let columns = alone_and_beside(&[P50, P99, P999]);
        tables.push(sheet.table(&title, &under(&servers(), &labels), &columns));
    }
    let labels = at([("idle", &"tls")]);
    tables.push(sheet.table(
        "Memory of an idle TLS connection",
        &under(&servers(), &labels),
        &[IDLE_BYTES.shown()],
    ));
    tables
}
