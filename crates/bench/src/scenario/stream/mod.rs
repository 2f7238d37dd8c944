//! `bench stream`: responses that come piece by piece. When does a client have the first byte, and how long after it was
//! sent does it have each piece?
//!
//! ```text
//!   clients <-- server <-- origin: a piece every 10 ms, with the time at which it was sent
//! ```
//!
//! * Origin and clients are threads of this process and have one clock. They share the generator's processors.
//! * Each kind of response is measured with all servers in turns. Several streams run at once, begun one after the other.
//! * A message of the WebSocket takes two segments; its delay is the time until all of it is back.
//!
//! Here: what is measured, and the measuring. Tables, plots and findings are in [`tables`].

mod client;
mod origin;
mod tables;

use std::thread;
use std::time::{Duration, Instant};

use clap::{ArgMatches, Args};

use crate::context::Bench;
use crate::failure::Failure;
use crate::method::pause;
use crate::method::pin::{self, Split};
use crate::method::rounds::in_turns;
use crate::peers::server::{Conditions, Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Section};
use crate::scenario::figures::Rounds;
use crate::scenario::{Prepared, options};
use client::Seen;

/// Options of `bench stream`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Streams at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=500))]
    streams: u32,
}

/// Bytes of a message of the WebSocket: more than the header of one segment leaves room for where the buffer that it is
/// received into has 4 KiB.
const MESSAGE_BYTES: usize = 5000;

/// Kinds of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Proxied,
    Unbuffered,
    Http10,
    Gzip,
    Cached,
    Ssi,
    WebSocket,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Proxied, Kind::Unbuffered, Kind::Http10, Kind::Gzip, Kind::Cached, Kind::Ssi, Kind::WebSocket];

    fn name(self) -> &'static str {
        match self {
            Kind::Proxied => "proxied",
            Kind::Unbuffered => "proxied, proxy_buffering off",
            Kind::Http10 => "proxied, to a client of HTTP/1.0",
            Kind::Gzip => "proxied, gzip, proxy_buffering off",
            Kind::Cached => "a miss of a cache",
            Kind::Ssi => "included by SSI",
            Kind::WebSocket => "messages of 5 000 bytes, WebSocket",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Kind::Proxied | Kind::Http10 => "/proxied",
            Kind::Unbuffered => "/unbuffered",
            Kind::Gzip => "/gzip",
            Kind::Cached => "/cached",
            Kind::Ssi => "/page",
            Kind::WebSocket => "/socket",
        }
    }

    /// Each has a name of its own, so that none is in a cache.
    fn request(self, name: u64) -> String {
        let version = if self == Kind::Http10 { "1.0" } else { "1.1" };
        let fields = match self {
            Kind::Gzip => "Accept-Encoding: gzip\r\n",
            Kind::WebSocket => "Connection: upgrade\r\nUpgrade: websocket\r\n",
            _ => "",
        };
        format!("GET {}?{name} HTTP/{version}\r\nHost: bench\r\n{fields}\r\n", self.path())
    }

    fn is_chunked(self) -> bool {
        self != Kind::Http10
    }
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ring,
    Epoll,
    Nginx,
}

impl Way {
    const ALL: [Way; 3] = [Way::Ring, Way::Epoll, Way::Nginx];

    fn name(self) -> &'static str {
        match self {
            Way::Ring => "io_uring",
            Way::Epoll => "epoll",
            Way::Nginx => "nginx",
        }
    }

    /// Everything but the engine is the same.
    fn configuration(self, place: &Place, origin: u16) -> String {
        let engine = if self == Way::Ring { "io_uring" } else { "epoll" };
        format!(
            "worker_processes 1;\n\
             events {{ worker_connections 8192; use {engine}; }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   proxy_http_version 1.1;\n\
             \x20   proxy_cache_path {folder}/cache keys_zone=bench:16m;\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port} backlog=4096;\n\
             \x20       location = /ready {{ return 204; }}\n\
             \x20       location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_set_header Connection \"\"; }}\n\
             \x20       location = /unbuffered {{ proxy_pass http://127.0.0.1:{origin}; proxy_buffering off; }}\n\
             \x20       location = /gzip {{\n\
             \x20           proxy_pass http://127.0.0.1:{origin}; proxy_buffering off;\n\
             \x20           gzip on; gzip_types text/event-stream;\n\
             \x20       }}\n\
             \x20       location = /cached {{\n\
             \x20           proxy_pass http://127.0.0.1:{origin}; proxy_cache bench; proxy_cache_key $request_uri;\n\
             \x20           proxy_cache_valid 200 1m;\n\
             \x20       }}\n\
             \x20       location = /page {{\n\
             \x20           default_type text/html; ssi on;\n\
             \x20           return 200 '<p>The events:</p>\n<!--#include virtual=\"/proxied\" -->\n';\n\
             \x20       }}\n\
             \x20       location = /socket {{\n\
             \x20           proxy_pass http://127.0.0.1:{origin}; proxy_set_header Upgrade $http_upgrade;\n\
             \x20           proxy_set_header Connection upgrade;\n\
             \x20       }}\n\
             \x20   }}\n\
             }}\n",
            folder = place.folder.display(),
            port = place.port
        )
    }
}

/// One server with one kind of response: what all clients of a round saw.
struct Measured {
    way: Way,
    kind: Kind,
    rounds: Rounds<Vec<Seen>>,
}

/// All that was measured.
struct Results {
    measured: Vec<Measured>,
    streams: u32,
}

/// Reads the options.
pub(crate) fn prepare(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let options: Options = options(matches)?;
    Ok(Box::new(move |bench| run(bench, &options)))
}

fn run(bench: &Bench, options: &Options) -> Result<Section, Failure> {
    let mut skipped = Vec::new();
    let split = Split::of(&pin::available(), 1);
    let cpu = split.is_apart.then(|| split.load.first().copied()).flatten();
    let (epoch, length) = (Instant::now(), bench.length(Duration::from_secs(2)));
    let origin = origin::start(epoch, cpu, length)?;
    let conditions = Conditions { cpus: split.server.clone(), ..Conditions::default() };
    let mut servers: Vec<(Way, Server)> = Vec::new();
    let nginx = Peer::Nginx.find(bench);
    for way in Way::ALL {
        let program = match (way, &nginx) {
            (Way::Nginx, Ok(tool)) => Program::Nginx(tool.clone()),
            (Way::Nginx, Err(missing)) => {
                skipped.push(Fact { name: way.name().to_owned(), value: missing.to_string() });
                continue;
            }
            _ => Program::ours(bench),
        };
        let server = Server::start(bench, way.name(), &program, &conditions, |place| {
            way.configuration(place, origin.port())
        })?;
        servers.push((way, server));
    }
    let configurations = servers
        .iter()
        .map(|(way, server)| Fact { name: way.name().to_owned(), value: server.configuration().to_owned() })
        .collect();
    let mut load = Load { epoch, cpu, pieces: origin::pieces(length), streams: options.streams, names: 0 };
    let mut measured = Vec::new();
    for kind in Kind::ALL {
        bench.progress(format_args!("stream: {}", kind.name()));
        let rounds = in_turns(bench, &mut servers, |(_, server), _| {
            server.check_running()?;
            Ok(load.run(server, kind))
        })?;
        let of_way = |((way, _), rounds): (&(Way, Server), _)| Measured { way: *way, kind, rounds };
        measured.extend(servers.iter().zip(rounds).map(of_way));
    }
    servers.into_iter().for_each(|(_, server)| server.end());
    let results = Results { measured, streams: options.streams };
    Ok(Section { configurations, skipped, ..tables::section(&results) })
}

/// The clients of all measurements.
struct Load {
    epoch: Instant,
    cpu: Option<usize>,
    pieces: usize,
    streams: u32,
    /// Names that were used.
    names: u64,
}

impl Load {
    /// Some streams at once, as their clients saw them.
    fn run(&mut self, server: &Server, kind: Kind) -> Result<Vec<Seen>, String> {
        let (address, epoch, cpu, pieces) = (server.address(), self.epoch, self.cpu, self.pieces);
        let clients: Vec<_> = (0..self.streams)
            .map(|_| {
                self.names += 1;
                let name = self.names;
                // Not all at the same moment: pieces of one would wait for those of the others.
                pause(Duration::from_millis(1));
                thread::spawn(move || {
                    let _ = cpu.map(pin::this_thread);
                    client::read(address, kind, name, epoch, pieces)
                })
            })
            .collect();
        let seen =
            clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked".to_owned())?);
        seen.collect()
    }
}
