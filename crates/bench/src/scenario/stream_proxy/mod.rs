//! `bench stream-proxy`: what a proxy of `stream` costs per message, per MiB and per connection, over TCP, TLS and UDP.
//!
//! How it is measured:
//!
//! * Each server has one worker on a dedicated processor and passes all bytes to one origin. Clients and origin are threads of this
//!   process on the other processors, so the generator is the limit of most rates: the relevant figure is the server's CPU time.
//! * A client sends the next message when the complete response has arrived, and each has its length checked; echoes over TCP and TLS also
//!   their checksum.
//! * Over UDP each client has a socket of its own, so each has a session. A datagram that is lost is counted as an error after its
//!   timeout.
//!
//! This file has the comparison, [`origin`] the origin, [`udp`] the clients of UDP.

mod origin;
mod udp;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tls::signing::KeyKind;

use super::comparison::{self, Compared, EPOLL, HAPROXY, NGINX, RING, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, at, plural};
use super::served::{self, CALLS, CPU, GENERATOR_CPU, LIMITED, P50, P99, RATE, ServerCpus};
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::{Expect, Length, Plan, ResponseKind, Reuse};
use crate::peers::server::{Instance, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Finding, Results, Section};

/// `bench stream-proxy`, which has no options.
#[derive(Args, Clone, Debug)]
pub(crate) struct StreamProxyOptions {}

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(2);

/// The servers. HAProxy has no UDP.
const VARIANTS: [Variant; 4] = [RING, EPOLL, NGINX, HAPROXY];

/// Size of the small message in bytes.
const MESSAGE_BYTES: usize = 64;

/// Time limit of the largest response.
const HUGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Number of clients over UDP.
const UDP_CLIENTS: u32 = 16;

/// What the clients of a case do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxiedExchange {
    /// A message is echoed.
    Echo,
    /// A message is echoed, on a connection of its own.
    Connection,
    /// A response of [`origin::LARGE_BYTES`].
    Large,
    /// One response of [`origin::HUGE_BYTES`].
    Huge,
    /// A ClientHello is echoed, on a connection of its own. The server reads the name in it and passes the bytes on.
    Preread,
    /// A message is echoed over TLS, which the server terminates.
    Tls,
    /// A datagram of this number of bytes is echoed.
    Datagram(usize),
}

/// One row of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionCase {
    exchange: ProxiedExchange,
    connections: u32,
}

const fn case(exchange: ProxiedExchange, connections: u32) -> SessionCase {
    SessionCase { exchange, connections }
}

const CASES: [SessionCase; 9] = [
    case(ProxiedExchange::Echo, 1),
    case(ProxiedExchange::Echo, 100),
    case(ProxiedExchange::Large, 10),
    case(ProxiedExchange::Connection, 20),
    case(ProxiedExchange::Preread, 20),
    case(ProxiedExchange::Tls, 100),
    case(ProxiedExchange::Datagram(64), UDP_CLIENTS),
    case(ProxiedExchange::Datagram(1200), UDP_CLIENTS),
    case(ProxiedExchange::Huge, 1),
];

/// What the address of the servers does before it passes bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    Clear,
    Tls,
    Preread,
}

const LISTENING: [Listening; 3] = [Listening::Clear, Listening::Tls, Listening::Preread];

impl SessionCase {
    fn words(self) -> String {
        let connections = plural(self.connections, "connection");
        match self.exchange {
            ProxiedExchange::Echo => format!("TCP, echo of {MESSAGE_BYTES} bytes, {connections}"),
            ProxiedExchange::Connection => {
                format!(
                    "TCP, a connection for each echo of {MESSAGE_BYTES} bytes, {} at a time",
                    self.connections
                )
            }
            ProxiedExchange::Large => format!("TCP, responses of 1 MiB, {connections}"),
            ProxiedExchange::Huge => format!("TCP, a response of 10 GiB, {connections}"),
            ProxiedExchange::Preread => {
                format!("TCP, a connection for each echo of a ClientHello, {} at a time", self.connections)
            }
            ProxiedExchange::Tls => format!("TLS, echo of {MESSAGE_BYTES} bytes, {connections}"),
            ProxiedExchange::Datagram(bytes) => {
                format!("UDP, echo of {bytes} bytes, {}", plural(self.connections, "client"))
            }
        }
    }

    fn labels(self) -> Labels {
        at([("case", &self.words())])
    }

    fn listening(self) -> Listening {
        match self.exchange {
            ProxiedExchange::Tls => Listening::Tls,
            ProxiedExchange::Preread => Listening::Preread,
            _ => Listening::Clear,
        }
    }

    /// Returns the load of a case over TCP; `None` over UDP.
    fn plan(self, bench: &Bench, cpus: &ServerCpus) -> Result<Option<Plan>, Failure> {
        let plan = served::load(bench, &cpus.split, self.connections, LENGTH);
        let echo = |body: Vec<u8>| {
            let expect = Expect { crc32c: Some(crc32c::crc32c(&body)), ..Expect::default() };
            Plan { response_kind: ResponseKind::Bytes(body.len() as u64), body, expect, ..plan.clone() }
        };
        let response = |first: u8, bytes: usize| Plan {
            response_kind: ResponseKind::Bytes(bytes as u64),
            body: vec![first; MESSAGE_BYTES],
            receive_bytes: 256 << 10,
            ..plan.clone()
        };
        let message = (0..MESSAGE_BYTES as u8).collect();
        Ok(Some(match self.exchange {
            ProxiedExchange::Echo => echo(message),
            ProxiedExchange::Connection => Plan { reuse: Reuse::PerRequest, ..echo(message) },
            ProxiedExchange::Preread => Plan { reuse: Reuse::PerRequest, ..echo(client_hello()?) },
            ProxiedExchange::Tls => Plan { tls: cpus.tls.clone(), ..echo(message) },
            ProxiedExchange::Large => response(origin::LARGE, origin::LARGE_BYTES),
            ProxiedExchange::Huge => Plan {
                length: Length::Requests(self.connections.into()),
                timeout: HUGE_TIMEOUT,
                ..response(origin::HUGE, origin::HUGE_BYTES)
            },
            ProxiedExchange::Datagram(_) => return Ok(None),
        }))
    }
}

impl Scenario for StreamProxyOptions {
    const NAME: &'static str = "stream-proxy";
    const MINUTES: u32 = 4;
    const QUICK_SHARE: u32 = 15;
    const TITLE: &'static str = "Proxying of TCP, TLS and UDP";
    const QUESTION: &'static str =
        "What does a proxy of `stream` cost per message, per MiB and per connection?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let mut cpus = ServerCpus::of_one_worker(bench, section);
        let cpu = cpus.split.load_cpu();
        let origin = origin::start(cpu)?;
        let certificate = bench.workspace.directory("stream-proxy")?.join("certificate.pem");
        served::write_certificate(&certificate, KeyKind::EcdsaP256)?;
        let module = module_of_nginx(bench);
        if let Err(reason) = &module {
            section.skip(NGINX.name, reason);
        }
        let is_possible = |variant: &Variant| variant.peer != Some(Peer::Nginx) || module.is_ok();
        let variants: Vec<Variant> = VARIANTS.into_iter().filter(is_possible).collect();
        let module = module.unwrap_or_default();
        for listening in LISTENING {
            let is_tls = listening == Listening::Tls;
            cpus.tls = is_tls.then(|| super::tls::client(false)).transpose()?;
            let suffix = match listening {
                Listening::Clear => "",
                Listening::Tls => ", TLS",
                Listening::Preread => ", preread",
            };
            let text = |variant: &Variant, instance: &Instance| {
                let origins = (origin.tcp.port, origin.udp);
                configuration(variant, instance, (&module, &certificate, listening), origins)
            };
            let mut servers = comparison::start(bench, section, &cpus, (&variants, suffix), text)?;
            for case in CASES.into_iter().filter(|case| case.listening() == listening) {
                measure(bench, section, &cpus, &mut servers, case)?;
            }
        }
        Ok(results(Measurements::of(section)))
    }
}

/// Measures one case with all servers in turn.
fn measure(
    bench: &Bench,
    section: &mut Section,
    cpus: &ServerCpus,
    servers: &mut [(Variant, Server)],
    case: SessionCase,
) -> Result<(), Failure> {
    let labels = |variant: &Variant| labels_of(variant, &case.labels());
    if let Some(plan) = case.plan(bench, cpus)? {
        let words = (case.words(), "/");
        return served::compare(bench, section, servers, (&words.0, words.1), &plan, |variant| {
            Some(labels(variant))
        });
    }
    let ProxiedExchange::Datagram(bytes) = case.exchange else { return Ok(()) };
    bench.progress(format_args!("stream-proxy: {}", case.words()));
    let mut servers: Vec<_> =
        servers.iter_mut().filter(|(variant, _)| variant.peer != Some(Peer::Haproxy)).collect();
    let length = bench.length(LENGTH);
    comparison::measure(
        bench,
        section,
        &mut servers,
        |(variant, _)| labels(variant),
        |(_, server), _, _| {
            let clients = udp::Clients { count: case.connections, bytes, cpu: cpus.split.load_cpu(), length };
            // A short load first, so that all sessions exist.
            udp::measure(server, udp::Clients { length: length / 10, ..clients })?;
            udp::measure(server, clients)
        },
    )
}

/// Returns the directive that loads nginx's module for `stream`, or the reason why it is not available.
fn module_of_nginx(bench: &Bench) -> Result<String, String> {
    let about = Peer::Nginx.find(&bench.peer_paths)?.about;
    let has = |option: &str| about.split_ascii_whitespace().any(|word| word == option);
    if has("--with-stream") {
        return Ok(String::new());
    }
    let directory = about.split_ascii_whitespace().find_map(|word| word.strip_prefix("--modules-path="));
    let module = directory.map(|directory| PathBuf::from(directory).join("ngx_stream_module.so"));
    match module.filter(|module| has("--with-stream=dynamic") && module.exists()) {
        Some(module) => Ok(format!("load_module {};\n", module.display())),
        None => Err("nginx has no module for stream (apt-get install libnginx-mod-stream)".to_owned()),
    }
}

/// Returns the first bytes of a client of TLS that names its server.
fn client_hello() -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::Other(format!("TLS: {error}"));
    let mut session = super::tls::client(false)?.session("", "www.example.com").map_err(failed)?;
    // The first step of a client makes its first message.
    session.read(&mut [], &mut |_| {}).map_err(failed)?;
    Ok(session.output())
}

/// Returns the configuration of a server that passes TCP and UDP of its port to these ports.
fn configuration(
    variant: &Variant,
    instance: &Instance,
    (module, certificate, listening): (&str, &Path, Listening),
    (tcp, udp): (u16, u16),
) -> String {
    let (host, port, engine) = (instance.host, instance.port, variant.engine);
    let certificate = certificate.display();
    if variant.peer == Some(Peer::Haproxy) {
        let (ssl, directives) = match listening {
            Listening::Clear => (String::new(), ""),
            Listening::Tls => (format!(" ssl crt {certificate}"), ""),
            Listening::Preread => (
                String::new(),
                "    tcp-request inspect-delay 5s\n    tcp-request content set-var(sess.name) req.ssl_sni\n    \
                 tcp-request content accept if { req.ssl_hello_type 1 }\n",
            ),
        };
        return format!(
            "global\n    nbthread 1\n    maxconn 8192\n    no strict-limits\ndefaults\n    mode tcp\n    timeout connect 5s\n    \
             timeout client 1h\n    timeout server 1h\nlisten bench\n    bind {host}:{port} backlog 4096{ssl}\n{directives}    \
             server origin 127.0.0.1:{tcp}\n"
        );
    }
    let module = if variant.peer == Some(Peer::Nginx) { module } else { "" };
    let (ssl, directives, upstream) = match listening {
        Listening::Clear => ("", String::new(), format!("127.0.0.1:{tcp}")),
        Listening::Tls => (
            " ssl",
            format!(
                "ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {certificate}; ssl_certificate_key {certificate}; "
            ),
            format!("127.0.0.1:{tcp}"),
        ),
        Listening::Preread => ("", "ssl_preread on; ".to_owned(), "$site".to_owned()),
    };
    format!(
        "{module}worker_processes 1;\nevents {{ worker_connections 8192; use {engine}; }}\nstream {{\n    proxy_timeout 1h;\n    \
         map $ssl_preread_server_name $site {{ www.example.com origin; default origin; }}\n    \
         upstream origin {{ server 127.0.0.1:{tcp}; }}\n    \
         server {{ listen {host}:{port} backlog=4096{ssl}; {directives}proxy_pass {upstream}; }}\n    \
         server {{ listen {host}:{port} udp; proxy_pass 127.0.0.1:{udp}; }}\n}}\n"
    )
}

const MESSAGE_CPU: Figure = Figure { unit: "us each", ..CPU };

/// Returns a table for each case, and rankings.
fn results(measurements: Measurements<'_>) -> Results {
    let mut results = Results::default();
    for case in CASES {
        let variants: Vec<Variant> = VARIANTS
            .into_iter()
            .filter(|variant| !matches!(case.exchange, ProxiedExchange::Datagram(_)) || *variant != HAPROXY)
            .collect();
        let compared = Compared { measurements, variants: &variants };
        let over = |variant: &Variant| {
            MESSAGE_CPU.over(&format!("CPU / that of {}", variant.name), variant.labels())
        };
        let mut columns = vec![RATE.at("messages", Labels::new()), MESSAGE_CPU.shown(), over(&NGINX)];
        if variants.contains(&HAPROXY) {
            columns.push(over(&HAPROXY));
        }
        columns.extend([P50.shown(), P99.shown()]);
        if !matches!(case.exchange, ProxiedExchange::Datagram(_)) {
            columns.extend([CALLS, GENERATOR_CPU, LIMITED].map(Figure::shown));
        }
        results.tables.push(compared.table(&case.words(), &case.labels(), &columns));
        let title = format!("CPU time per message: {}", case.words());
        results.rankings.push(compared.ranking(&title, MESSAGE_CPU, &case.labels()));
    }
    results.findings = vec![
        finding(measurements, ("Responses of 1 MiB and 10 GiB", &NGINX, 0.60), |case| {
            is_large(case.exchange)
        }),
        finding(measurements, ("Messages and connections over TCP and TLS", &NGINX, 0.80), |case| {
            !is_large(case.exchange) && !matches!(case.exchange, ProxiedExchange::Datagram(_))
        }),
        finding(measurements, ("Datagrams", &NGINX, 0.60), |case| {
            matches!(case.exchange, ProxiedExchange::Datagram(_))
        }),
        finding(measurements, ("All exchanges over TCP and TLS", &HAPROXY, 1.0), |case| {
            !matches!(case.exchange, ProxiedExchange::Datagram(_))
        }),
    ];
    results
}

fn is_large(exchange: ProxiedExchange) -> bool {
    matches!(exchange, ProxiedExchange::Large | ProxiedExchange::Huge)
}

/// Returns the finding whether the CPU time on io_uring is at most this share of a peer's in the cases that `is_about` selects.
fn finding(
    measurements: Measurements<'_>,
    (subject, peer, most): (&str, &Variant, f64),
    is_about: impl Fn(&SessionCase) -> bool,
) -> Finding {
    let cases = CASES.into_iter().filter(is_about).map(|case| {
        let labels = |variant: &Variant| labels_of(variant, &case.labels());
        (case.words(), labels(&RING), labels(peer))
    });
    let claim = format!("{subject} cost at most {most:.2} times the CPU time of {}.", peer.maker());
    let none = format!("{} was not measured.", peer.name);
    let words = ("CPU time on io_uring as a ratio: ", none.as_str());
    measurements.finding_of_ratios(claim, words, MESSAGE_CPU, cases, |ratio| ratio.median <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_hello_is_a_record_with_the_name_of_its_server() {
        let hello = client_hello().expect("a client of TLS");
        assert_eq!(hello[0], 0x16);
        assert!(hello.windows(15).any(|bytes| bytes == b"www.example.com"), "{hello:?}");
    }

    #[test]
    fn the_servers_have_the_same_configuration_but_engine_and_module() {
        let instance = Instance { host: std::net::Ipv4Addr::LOCALHOST, port: 8080, directory: "/x".into() };
        let text = |variant: &Variant| {
            configuration(
                variant,
                &instance,
                ("load_module x;\n", Path::new("a"), Listening::Preread),
                (1, 2),
            )
        };
        assert_eq!(text(&RING).replace("io_uring", "epoll"), text(&EPOLL));
        assert_eq!(text(&NGINX), format!("load_module x;\n{}", text(&EPOLL)));
    }
}
