//! `bench stream`: responses that the origin sends piece by piece. Measures the time to the first byte, and the delay
//! of each piece.
//!
//! ```text
//!   clients <-- server <-- origin: a piece every 10 ms, with the time at which it was sent
//! ```
//!
//! * Origin and clients are threads of this process and share one clock. They run on the generator's processors.
//! * Each kind of response is measured with all servers in turn. Several streams run concurrently, with staggered
//!   starts.
//! * A WebSocket message needs two TCP segments; its delay is the time until it is echoed completely.
//!
//! This file has the measurement and the tables.

mod client;
mod origin;

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::comparison::{self, Compared, EPOLL, NGINX, READY, RING, SERVERS, Text, Variant, labels_of};
use super::described::Scenario;
use super::measurements::{Figure, Labels, Measurements, Of, at, figure};
use super::served::ServerCpus;
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::{histogram, percentile_us};
use crate::method::pause;
use crate::method::pin;
use crate::peers::server::{Instance, Server};
use crate::report::model::{Results, Run, Section};
use client::StreamTimes;

#[derive(Args, Clone, Debug)]
pub(crate) struct StreamOptions {
    /// Number of concurrent streams
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=500))]
    streams: u32,
}

/// Bytes of a WebSocket message: with a receive buffer of 4 KiB, it does not fit into one read.
const MESSAGE_BYTES: usize = 5000;

/// A kind of response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamKind {
    name: &'static str,
    path: &'static str,
    version: &'static str,
    fields: &'static str,
}

const PROXIED: StreamKind = kind("proxied", "/proxied", "");
const HTTP10: StreamKind =
    StreamKind { version: "1.0", ..kind("proxied, to a client of HTTP/1.0", "/proxied", "") };
const GZIP: StreamKind = kind("proxied, gzip, proxy_buffering off", "/gzip", "Accept-Encoding: gzip\r\n");
const WEB_SOCKET: StreamKind =
    kind("messages of 5 000 bytes, WebSocket", "/socket", "Connection: upgrade\r\nUpgrade: websocket\r\n");

/// All kinds, in the order of the table.
const KINDS: [StreamKind; 7] = [
    PROXIED,
    kind("proxied, proxy_buffering off", "/unbuffered", ""),
    HTTP10,
    GZIP,
    kind("a miss of a cache", "/cached", ""),
    kind("included by SSI", "/page", ""),
    WEB_SOCKET,
];

const fn kind(name: &'static str, path: &'static str, fields: &'static str) -> StreamKind {
    StreamKind { name, path, version: "1.1", fields }
}

impl StreamKind {
    /// Returns the request. Each has a unique number, so that no response is cached.
    fn request(self, number: u64) -> String {
        let StreamKind { path, version, fields, .. } = self;
        format!("GET {path}?{number} HTTP/{version}\r\nHost: bench\r\n{fields}\r\n")
    }

    fn labels(self) -> Labels {
        at([("kind", &self.name)])
    }
}

const FIRST_P50: Figure = figure("first byte, p50", "us", 0, Of::Value("first_byte_p50_us", 1.0));
const FIRST_P99: Figure = figure("first byte, p99", "us", 0, Of::Value("first_byte_p99_us", 1.0));
const DELAY_P50: Figure = figure("delay of a piece, p50", "us", 0, Of::Value("delay_p50_us", 1.0));
const DELAY_P99: Figure = figure("delay of a piece, p99", "us", 0, Of::Value("delay_p99_us", 1.0));

/// Returns the configuration: identical for all except the engine.
fn configuration(variant: &Variant, instance: &Instance, origin: u16) -> String {
    let directory = instance.directory.display();
    let pass = format!("proxy_pass http://127.0.0.1:{origin};");
    let http = format!("proxy_http_version 1.1;\nproxy_cache_path {directory}/cache keys_zone=bench:16m;");
    let server = format!(
        "{READY}\n\
         location / {{ {pass} proxy_set_header Connection \"\"; }}\n\
         location = /unbuffered {{ {pass} proxy_buffering off; }}\n\
         location = /gzip {{ {pass} proxy_buffering off; gzip on; gzip_types text/event-stream; }}\n\
         location = /cached {{ {pass} proxy_cache bench; proxy_cache_key $request_uri; proxy_cache_valid 200 1m; }}\n\
         location = /page {{ default_type text/html; ssi on; return 200 '<!--#include virtual=\"/proxied\" -->'; }}\n\
         location = /socket {{\n    {pass} proxy_set_header Upgrade $http_upgrade;\n    \
         proxy_set_header Connection upgrade;\n}}"
    );
    variant.configuration(instance, &Text { http, server, ..Text::default() })
}

impl Scenario for StreamOptions {
    const NAME: &'static str = "stream";
    const MINUTES: u32 = 2;
    const TITLE: &'static str = "Streamed responses";
    const QUESTION: &'static str =
        "What delay does a proxy add to the first byte and to each piece of a streamed response?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let place = ServerCpus::of_one_worker(bench, section);
        let cpu = place.split.load_cpu();
        let (epoch, length) = (Instant::now(), bench.length(Duration::from_secs(2)));
        let origin = origin::start(epoch, cpu, length)?;
        let mut servers = comparison::start(bench, section, &place, (&SERVERS, ""), |variant, instance| {
            configuration(variant, instance, origin.port)
        })?;
        let mut load =
            Streams { epoch, cpu, pieces: origin::pieces(length), streams: self.streams, names: 0 };
        for kind in KINDS {
            bench.progress(format_args!("stream: {}", kind.name));
            let labels = |(variant, _): &(Variant, Server)| labels_of(variant, &kind.labels());
            comparison::measure(bench, section, &mut servers, labels, |(_, server), _, _| {
                server.check_running()?;
                Ok(run_of(&load.run(server, kind)?))
            })?;
        }
        Ok(results(Measurements::of(section), self.streams))
    }
}

/// Summarises the times of all clients of a round.
fn run_of(times: &[StreamTimes]) -> Run {
    let (mut first, mut delays) = (histogram(), histogram());
    for one in times {
        first.saturating_record(one.first_byte.as_nanos() as u64);
        one.delays.iter().for_each(|delay| delays.saturating_record(delay.as_nanos() as u64));
    }
    Run::of([
        ("pieces", delays.len() as f64),
        ("first_byte_p50_us", percentile_us(&first, 50.0)),
        ("first_byte_p99_us", percentile_us(&first, 99.0)),
        ("delay_p50_us", percentile_us(&delays, 50.0)),
        ("delay_p99_us", percentile_us(&delays, 99.0)),
        ("delay_max_us", percentile_us(&delays, 100.0)),
    ])
}

/// Returns a table of all kinds, rankings, and a finding.
fn results(measurements: Measurements<'_>, streams: u32) -> Results {
    let row = |kind: StreamKind, variant: Variant| {
        (format!("{}: {}", kind.name, variant.name), labels_of(&variant, &kind.labels()))
    };
    let rows: Vec<_> = KINDS.into_iter().flat_map(|kind| SERVERS.map(|variant| row(kind, variant))).collect();
    let mut columns: Vec<_> = [FIRST_P50, FIRST_P99, DELAY_P50, DELAY_P99].map(Figure::shown).into();
    columns.push(DELAY_P99.over("of nginx's p99", NGINX.labels()));
    let title = format!("A piece every 10 ms, one worker, {streams} concurrent streams");
    let table = measurements.table(&title, &rows, &columns);
    // These delays are what users of event streams and token streams notice.
    let ours = KINDS.into_iter().flat_map(|kind| [(kind, RING), (kind, EPOLL)]);
    let ours = ours.map(|(kind, variant)| {
        let words = format!("{}, {}", kind.name, variant.name);
        (words, labels_of(&variant, &kind.labels()), labels_of(&NGINX, &kind.labels()))
    });
    let claim = "The p99 of the delay of a piece is at most nginx's for every kind of response.";
    let words = ("As a ratio to nginx: ", "nginx was not measured.");
    let finding = measurements.finding_of_ratios(claim, words, DELAY_P99, ours, |ratio| ratio.median <= 1.0);
    let ranking = |kind: StreamKind| {
        let title = format!("Delay of a piece, p99: {}", kind.name);
        Compared { measurements, variants: &SERVERS }.ranking(&title, DELAY_P99, &kind.labels())
    };
    Results {
        tables: vec![table],
        findings: vec![finding],
        rankings: [PROXIED, WEB_SOCKET].map(ranking).into(),
        ..Results::default()
    }
}

/// State of the clients of all measurements.
struct Streams {
    epoch: Instant,
    cpu: Option<usize>,
    pieces: usize,
    streams: u32,
    /// Number of names used so far.
    names: u64,
}

impl Streams {
    /// Runs concurrent streams; returns the times that their clients measured.
    fn run(&mut self, server: &Server, kind: StreamKind) -> Result<Vec<StreamTimes>, Failure> {
        let (address, epoch, cpu, pieces) = (server.address(), self.epoch, self.cpu, self.pieces);
        let clients: Vec<_> = (0..self.streams)
            .map(|_| {
                self.names += 1;
                let name = self.names;
                // Staggered starts: otherwise pieces of one stream would be delayed by those of the others.
                pause(Duration::from_millis(1));
                thread::spawn(move || {
                    let _ = cpu.map(pin::this_thread);
                    client::read(address, kind, name, epoch, pieces)
                })
            })
            .collect();
        let times = clients.into_iter().map(|client| {
            let read = client.join().map_err(|_| Failure::Other("a client panicked".to_owned()))?;
            read.map_err(Failure::other)
        });
        times.collect()
    }
}
