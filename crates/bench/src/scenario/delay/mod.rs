//! `bench delay`: the time of one large body over HTTP/2 and a network with a long round trip.
//!
//! ```text
//!   h2load --4 MiB--> relay --> server --> file, or an origin        uploads
//!   h2load <-- server <-- relay <--4 MiB-- origin                    responses of HTTP/2 upstreams
//! ```
//!
//! * A window of W bytes permits W bytes per round trip, so a server with small windows needs many round trips.
//! * The relays are threads of this process; their bandwidth is not limited. The time includes the connection and its handshake.
//! * The origin of uploads reads a complete body before it responds. The origin of responses is Ringroad.
//!
//! This file has the cases, the measurement and the tables; `relay` is the network.

mod relay;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::comparison::{self, Compared, EPOLL, NGINX, READY, RING, SERVERS, Text, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, Of, at, figure};
use super::origin::{Origin, read_request};
use super::served::ServerCpus;
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::disturbance::Watch;
use crate::method::pin::{self, Split};
use crate::method::process::Launch;
use crate::peers::server::{Conditions, Instance, Program, Server};
use crate::peers::tool::{Peer, Tool};
use crate::report::model::{Results, Run, Section};

/// `bench delay`, which has no options.
#[derive(Args, Clone, Debug)]
pub(crate) struct DelayOptions {}

/// Size of a body in bytes.
const BODY_BYTES: usize = 4 << 20;

/// Maximum duration of one request: a server with windows of 32 KiB needs 128 round trips.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// The measured round trips in milliseconds.
const ROUND_TRIPS: [u64; 3] = [10, 50, 100];

/// The permitted ratio to nginx's time.
const RATIO_MAX: f64 = 1.2;

const TIME: Figure = figure("time", "ms", 0, Of::Value("ms", 1.0));

/// A way of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    name: &'static str,
    path: &'static str,
    /// Method of an upload.
    method: Option<&'static str>,
}

const WAYS: [Way; 5] = [
    Way { name: "PUT to a file (dav_methods)", path: "/dav/a.bin", method: Some("PUT") },
    Way { name: "upload, proxied", path: "/buffered", method: Some("POST") },
    Way { name: "upload, proxy_request_buffering off", path: "/unbuffered", method: Some("POST") },
    Way { name: "response, proxy_http_version 2", path: "/down", method: None },
    Way { name: "response, grpc_pass", path: "/grpc", method: None },
];

/// A way over a network.
#[derive(Clone, Copy, Debug)]
struct DelayCase {
    way: Way,
    round_trip_ms: u64,
}

impl DelayCase {
    fn all() -> impl Iterator<Item = DelayCase> {
        let over = |round_trip_ms| WAYS.into_iter().map(move |way| DelayCase { way, round_trip_ms });
        ROUND_TRIPS.into_iter().flat_map(over)
    }

    fn labels(self) -> Labels {
        at([("way", &self.way.name), ("round trip", &format!("{} ms", self.round_trip_ms))])
    }
}

/// The network and the origins of all servers.
struct World {
    tool: Tool,
    cpus: Vec<usize>,
    directory: PathBuf,
    /// Relays to the origin of responses, in the order of [`ROUND_TRIPS`].
    downs: Vec<Origin>,
    uploads: Origin,
    _origin: Server,
}

impl World {
    fn start(bench: &Bench, tool: Tool, split: &Split) -> Result<World, Failure> {
        let directory = bench.workspace.directory("delay")?;
        let body = directory.join("body");
        fs::write(&body, vec![b'd'; BODY_BYTES]).map_err(Failure::file("write", &body))?;
        let (port, cpu) = (bench.ports.reserve()?, split.load_cpu());
        let conditions = Conditions { cpus: split.load.clone(), ..Conditions::default() };
        let origin = Server::start(
            bench,
            "origin of responses",
            &Program::ours(bench),
            &conditions,
            |instance| {
                let root = directory.display();
                let server = format!(
                    "{READY}\nlisten 127.0.0.1:{port} http2;\nlocation / {{\n    root {root};\n    rewrite ^ /body break;\n    \
                     default_type application/grpc;\n    types {{ }}\n}}"
                );
                RING.configuration(instance, &Text { server, ..Text::default() })
            },
        )?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let down = |ms| relay::start(cpu, address, Duration::from_millis(ms));
        let downs = ROUND_TRIPS.into_iter().map(down).collect::<Result<_, _>>()?;
        let uploads = Origin::start(cpu, |mut socket| {
            use std::io::Write;
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            while let Ok(Some(_)) = read_request(&mut socket)
                && socket.write_all(response).is_ok()
            {}
        })?;
        Ok(World { tool, cpus: split.load.clone(), directory, downs, uploads, _origin: origin })
    }

    /// Returns the configuration: identical for all except the engine.
    fn configuration(&self, variant: &Variant, instance: &Instance, port: u16) -> String {
        let (dav, uploads) = (instance.directory.display(), self.uploads.port);
        let mut server = format!(
            "{READY}\nlisten 127.0.0.1:{port} http2;\nclient_max_body_size 0;\n\
             location /dav/ {{ root {dav}; dav_methods PUT; create_full_put_path on; }}\n\
             location /buffered {{ proxy_pass http://127.0.0.1:{uploads}; }}\n\
             location /unbuffered {{ proxy_pass http://127.0.0.1:{uploads}; proxy_http_version 1.1; \
             proxy_request_buffering off; }}"
        );
        for (ms, down) in ROUND_TRIPS.into_iter().zip(&self.downs) {
            let port = down.port;
            server += &format!(
                "\nlocation /down/{ms} {{ proxy_http_version 2; proxy_pass http://127.0.0.1:{port}; }}\n\
                 location /grpc/{ms} {{ grpc_pass grpc://127.0.0.1:{port}; }}"
            );
        }
        variant.configuration(instance, &Text { server, ..Text::default() })
    }

    /// Measures one request.
    fn run(&self, server: &mut Server, port: u16, case: DelayCase) -> Result<Run, Failure> {
        server.check_running()?;
        let DelayCase { way, round_trip_ms } = case;
        let path = match way.method {
            Some(_) => way.path.to_owned(),
            None => format!("{}/{round_trip_ms}", way.path),
        };
        let mut arguments = ["--clients=1", "--requests=1", "--threads=1"].map(str::to_owned).to_vec();
        if let Some(method) = way.method {
            arguments.push(format!("--header=:method: {method}"));
            arguments.push(format!("--data={}", self.directory.join("body").display()));
        }
        arguments.push(format!("http://127.0.0.1:{port}{path}"));
        let output = self.directory.join("output");
        let watch = Watch::start();
        let (arguments, cpus) = (arguments.into_iter().map(Into::into).collect(), self.cpus.clone());
        let ran =
            Launch { arguments, cpus, ..Launch::new("h2load", &self.tool.path) }.run(&output, REQUEST_MAX);
        let disturbed = watch.end();
        server.check_running()?;
        ran?;
        let ms = time_of(&output)?;
        Ok(Run { disturbed, ..Run::of([("ms", ms)]) })
    }
}

/// Returns the time of a successful request from h2load's output, in milliseconds.
fn time_of(output: &Path) -> Result<f64, Failure> {
    let text = fs::read_to_string(output).unwrap_or_default();
    parse(&text).ok_or_else(|| Failure::Other(format!("h2load reports no successful request: {text}")))
}

/// Parses `finished in 1.00s, …` and `status codes: 1 2xx, …`.
fn parse(text: &str) -> Option<f64> {
    let line = |start: &str| text.lines().find_map(|line| line.trim_start().strip_prefix(start));
    line("status codes: ").filter(|codes| codes.starts_with("1 2xx"))?;
    let time = line("finished in ")?.split(',').next()?;
    let (digits, unit) = time.split_at(time.find(|letter: char| letter.is_ascii_alphabetic())?);
    let ms = [("us", 0.001), ("ms", 1.0), ("s", 1000.0)].into_iter().find(|(name, _)| *name == unit)?.1;
    Some(digits.parse::<f64>().ok()? * ms)
}

impl Scenario for DelayOptions {
    const NAME: &'static str = "delay";
    const MINUTES: u32 = 2;
    const TITLE: &'static str = "Large bodies over HTTP/2 and a long round trip";
    const QUESTION: &'static str = "How long does a body of 4 MiB take over HTTP/2 and a network with a long round trip, compared with nginx?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let tool = match Peer::H2load.find(&bench.peer_paths) {
            Ok(tool) => tool,
            Err(missing) => {
                // Under the names of the servers, so that their rows have the reason.
                SERVERS.iter().for_each(|variant| section.skip(variant.name, &missing));
                return Ok(results(Measurements::of(section)));
            }
        };
        let place = ServerCpus::of_one_worker(bench, section);
        let world = World::start(bench, tool, &Split::of(&pin::available(), 1))?;
        // HTTP/2 without TLS has a separate port beside the one for the readiness check.
        let mut ports = Vec::new();
        for variant in SERVERS {
            ports.push((variant, bench.ports.reserve()?));
        }
        let port =
            |variant: &Variant| ports.iter().find(|(other, _)| other == variant).map_or(0, |(_, port)| *port);
        let mut servers = comparison::start(bench, section, &place, (&SERVERS, ""), |variant, instance| {
            world.configuration(variant, instance, port(variant))
        })?;
        for case in DelayCase::all() {
            bench.progress(format_args!("delay: {}, {} ms", case.way.name, case.round_trip_ms));
            let labels = |(variant, _): &(Variant, Server)| labels_of(variant, &case.labels());
            comparison::measure(bench, section, &mut servers, labels, |(variant, server), _, _| {
                let port = port(variant);
                if case.way.method.is_none() {
                    return world.run(server, port, case);
                }
                let (address, cpu) = (SocketAddr::from(([127, 0, 0, 1], port)), place.split.load_cpu());
                let relay = relay::start(cpu, address, Duration::from_millis(case.round_trip_ms))?;
                world.run(server, relay.port, case)
            })?;
        }
        Ok(results(Measurements::of(section)))
    }
}

/// Returns a table for each round trip, rankings, and a finding.
fn results(measurements: Measurements<'_>) -> Results {
    let compared = Compared { measurements, variants: &SERVERS };
    let table = |ms: u64| {
        let cases = DelayCase::all().filter(|case| case.round_trip_ms == ms);
        let row = |case: DelayCase, variant: Variant| {
            (format!("{}: {}", case.way.name, variant.name), labels_of(&variant, &case.labels()))
        };
        let rows: Vec<_> = cases.flat_map(|case| SERVERS.map(|variant| row(case, variant))).collect();
        measurements.table(&format!("A body of 4 MiB, round trip of {ms} ms"), &rows, &[TIME.shown()])
    };
    let pairs = DelayCase::all().flat_map(|case| [RING, EPOLL].map(|variant| (case, variant)));
    let pairs = pairs.map(|(case, variant)| {
        let words = format!("{}, {} ms, {}", case.way.name, case.round_trip_ms, variant.name);
        (words, labels_of(&variant, &case.labels()), labels_of(&NGINX, &case.labels()))
    });
    let claim = "A body takes at most 1.2 times nginx's time, however long the round trip is.";
    let words = ("As a ratio to nginx: ", "nginx was not measured.");
    let finding =
        measurements.finding_of_ratios(claim, words, TIME, pairs, |ratio| ratio.median <= RATIO_MAX);
    let ranking = |case: DelayCase| {
        compared.ranking(&format!("Time, {} ms: {}", case.round_trip_ms, case.way.name), TIME, &case.labels())
    };
    Results {
        tables: ROUND_TRIPS.map(table).into(),
        findings: vec![finding],
        rankings: DelayCase::all().filter(|case| case.round_trip_ms == 50).map(ranking).collect(),
        ..Results::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_successful_request_is_parsed() {
        let text = |time: &str, codes: &str| {
            format!("\nfinished in {time}, 7.6 req/s, 30MB/s\nstatus codes: {codes}\n")
        };
        for (time, ms) in [("131.25ms", 131.25), ("1.05s", 1050.0), ("900us", 0.9)] {
            assert_eq!(parse(&text(time, "1 2xx, 0 3xx, 0 4xx, 0 5xx")), Some(ms));
        }
        assert_eq!(parse(&text("1.05s", "0 2xx, 0 3xx, 1 4xx, 0 5xx")), None);
        assert_eq!(parse(""), None);
    }
}
