//! Proxied requests: responses of 1 KiB to 1 MiB, hits of a cache, and uploads of 16 and 256 KiB. No write-up has these rows.
//! They repeat the measurement `raw/proxied-20261123` in `docs/experiments/raw.tar.xz`. `bench wire` has those without a cache too.
//!
//! ```text
//!   generator --> server --> origin: reads the complete body of a request, then responds
//! ```
//!
//! * The origin consists of threads of this process on the generator's processors, and is the same for all servers.
//! * Connections to the origin are keep-alive connections.
//! * Uploads fit into `client_body_buffer_size`: no server writes them to a temporary file.
//! * A server has a row for each of its modes that may be its best one in a case.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Plan;
use crate::method::pin::Split;
use crate::method::wire::Network;
use crate::peers::server::{Instance, Server};
use crate::peers::tool::Peer;
use crate::report::model::Section;
use crate::scenario::comparison::{self, Compared, HAPROXY, NGINX, READY, SERVERS, Text, Variant, labels_of};
use crate::scenario::measurements::{Measurements, at};
use crate::scenario::origin::{Origin, Request, read_request};
use crate::scenario::served::{self, ServerCpus};

/// Number of connections, as in the repeated measurement. Each may need a connection to the origin, and a thread there.
const CONNECTIONS: u32 = 16;

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(1);

/// Response body of an upload.
const RECEIVED: &[u8] = b"received\n";

/// The requests of one table, with the name of their size and the size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxiedCase {
    Response(&'static str, usize),
    /// A response from a proxy cache with resident entries.
    Hit(&'static str, usize),
    /// A request with a body.
    Upload(&'static str, usize),
}

/// Size from which the modes for large bodies are measured too.
const LARGE_BYTES: usize = 100 << 10;

impl ProxiedCase {
    const ALL: [ProxiedCase; 9] = [
        ProxiedCase::Response("1k", 1 << 10),
        ProxiedCase::Response("10k", 10 << 10),
        ProxiedCase::Response("100k", LARGE_BYTES),
        ProxiedCase::Response("1m", 1 << 20),
        ProxiedCase::Hit("1k", 1 << 10),
        ProxiedCase::Hit("10k", 10 << 10),
        ProxiedCase::Hit("100k", 100 << 10),
        ProxiedCase::Upload("16k", 16 << 10),
        ProxiedCase::Upload("256k", 256 << 10),
    ];

    fn name(self) -> String {
        match self {
            ProxiedCase::Response(name, _) => format!("response of {name}"),
            ProxiedCase::Hit(name, _) => format!("hit of a cache of {name}"),
            ProxiedCase::Upload(name, _) => format!("upload of {name}"),
        }
    }

    /// Returns the load and its path.
    fn load(self, bench: &Bench, split: &Split) -> (Plan, String) {
        let mut plan = served::load(bench, split, CONNECTIONS, LENGTH);
        let (path, response_bytes) = match self {
            ProxiedCase::Response(_, bytes) => (format!("/{bytes}"), bytes),
            ProxiedCase::Hit(_, bytes) => (format!("{HIT}{bytes}"), bytes),
            ProxiedCase::Upload(_, bytes) => {
                "POST".clone_into(&mut plan.method);
                plan.body = vec![b'u'; bytes];
                ("/".to_owned(), RECEIVED.len())
            }
        };
        plan.expect = served::complete_file(response_bytes as u64);
        (plan, path)
    }

    /// Whether a server is measured: a mode only where it may be the best one.
    fn has(self, variant: &Variant) -> bool {
        if SERVERS.contains(variant) || *variant == HAPROXY {
            return true;
        }
        match self {
            ProxiedCase::Hit(_, bytes) => {
                NGINX_FILES.contains(variant) || MEMORY.contains(variant) && bytes < LARGE_BYTES
            }
            ProxiedCase::Response(_, bytes) => {
                *variant == H2O || bytes >= LARGE_BYTES && FOR_LARGE.contains(variant)
            }
            ProxiedCase::Upload(_, bytes) => {
                *variant == H2O || bytes >= LARGE_BYTES && *variant == HAPROXY_SPLICE
            }
        }
    }
}

/// nginx's settings that are best for hits of its cache: which of them is best depends on the size.
const NGINX_FILES: [Variant; 2] = [
    Variant::of("nginx, open_file_cache", Peer::Nginx).with("open_file_cache max=100; sendfile on;"),
    Variant::of("nginx, open_file_cache, sendfile off", Peer::Nginx)
        .with("open_file_cache max=100; sendfile off;"),
];

/// The server with the entries of its cache in memory, which are not larger than 64 KiB.
const MEMORY: [Variant; 2] =
    [Variant::ours("io_uring, memory=64m", "io_uring"), Variant::ours("epoll, memory=64m", "epoll")];

/// Buffers that are large enough for 1 MiB, so that nothing is written to a temporary file.
const BUFFERS: &str =
    "proxy_buffer_size 64k; proxy_buffers 32 64k; proxy_busy_buffers_size 512k; proxy_max_temp_file_size 0;";

const H2O: Variant = Variant::of("h2o", Peer::H2o);
const HAPROXY_SPLICE: Variant = Variant::of("haproxy, splice", Peer::Haproxy)
    .with("    option splice-request\n    option splice-response\n");

/// The modes for large responses.
const FOR_LARGE: [Variant; 4] = [
    Variant::ours("io_uring, proxy_buffers 32 64k", "io_uring").with(BUFFERS),
    Variant::of("nginx, proxy_buffers 32 64k", Peer::Nginx).with(BUFFERS),
    HAPROXY_SPLICE,
    // H2O has it since 2.3, for all hosts only.
    Variant::of("h2o, proxy.zerocopy", Peer::H2o).with("proxy.zerocopy: ON\n"),
];

/// All servers, in the order of tables.
fn variants() -> Vec<Variant> {
    [&SERVERS[..], &MEMORY, &NGINX_FILES, &[HAPROXY, H2O], &FOR_LARGE].concat()
}

/// Start of the paths of cached responses; the number of bytes follows.
const HIT: &str = "/hit/";

/// Adds the tables of proxied requests to a section. `network` is that of the generator if it is on the other end of a
/// wire: hits of a cache are not measured there, since files are.
pub(in crate::scenario) fn add(
    bench: &Bench,
    section: &mut Section,
    place: &ServerCpus,
    network: Option<&Network>,
) -> Result<(), Failure> {
    let origin = Origin::start(place.split.load_cpu(), |socket| {
        // An error ends the connection: the proxy has closed it, or failed a request, which the client counts.
        let _ = serve(socket);
    })?;
    let all = variants();
    let mut servers = comparison::start(bench, section, place, (&all, ", proxied"), |variant, instance| {
        configuration(variant, instance, origin.port)
    })?;
    let is_wanted = |case: &ProxiedCase| network.is_none() || !matches!(case, ProxiedCase::Hit(..));
    for case in ProxiedCase::ALL.into_iter().filter(is_wanted) {
        add_case(bench, section, &mut servers, (case, place, network))?;
    }
    Ok(())
}

/// Measures one case and adds its table.
fn add_case(
    bench: &Bench,
    section: &mut Section,
    servers: &mut [(Variant, Server)],
    (case, place, network): (ProxiedCase, &ServerCpus, Option<&Network>),
) -> Result<(), Failure> {
    let labels = at([("proxied", &case.name()), ("workers", &1), ("connections", &CONNECTIONS)]);
    let (mut plan, path) = case.load(bench, &place.split);
    plan.network = network.cloned();
    let words = format!("proxied, {}, {CONNECTIONS} connections", case.name());
    served::compare(bench, section, servers, (&words, &path), &plan, |variant| {
        case.has(variant).then(|| labels_of(variant, &labels))
    })?;
    let rows: Vec<Variant> = variants().into_iter().filter(|variant| case.has(variant)).collect();
    let compared = Compared { measurements: Measurements::of(section), variants: &rows };
    let base = compared.cheapest(&labels, |variant| variant.peer.is_some()).unwrap_or(NGINX);
    let over = if network.is_some() { "Over a wire: proxied" } else { "Proxied" };
    let title = format!("{over}, {}, one worker, {CONNECTIONS} long connections", case.name());
    let results = compared.costs(&title, &base, &labels);
    section.add_results(results);
    Ok(())
}

/// Returns the configuration of a proxy in the language of each server.
fn configuration(variant: &Variant, instance: &Instance, origin: u16) -> String {
    let directory = instance.directory.display();
    let (http, server) = match variant.peer {
        Some(Peer::H2o) => {
            return format!(
                "num-threads: 1\nmax-connections: 8192\nhttp1-request-timeout: 3600\nhosts:\n  default:\n    paths:\n      \
                 /:\n        proxy.reverse.url: http://127.0.0.1:{origin}/\n{}",
                variant.location
            );
        }
        Some(Peer::Haproxy) => {
            // Its cache needs a lifetime in each response, and a size of at least twice the largest one.
            let backend = |name: &str, cache: &str| {
                format!("backend {name}\n{cache}    server origin 127.0.0.1:{origin}\n")
            };
            let cache = "    http-request cache-use bench\n    http-response set-header Cache-Control max-age=86400\n    \
                         http-response cache-store bench\n";
            let size = "cache bench\n    total-max-size 16\n    max-object-size 1048576\n    max-age 86400\n";
            let http = [size, &backend("hits", cache), &backend("origin", "")].concat();
            (http, format!("    use_backend hits if {{ path_beg {HIT} }}\n    default_backend origin\n"))
        }
        _ => {
            let pass = "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";";
            let location = variant.location;
            let memory = if MEMORY.contains(variant) { " memory=64m" } else { "" };
            let http = format!(
                "upstream origin {{ server 127.0.0.1:{origin}; keepalive 256; }}\n\
                 proxy_cache_path {directory}/cache keys_zone=bench:1m use_temp_path=off{memory};"
            );
            let server = format!(
                "{READY}\nlocation {HIT} {{\n    {pass} {location}\n    \
                 proxy_cache bench; proxy_cache_key $uri; proxy_cache_valid 200 1d;\n}}\n\
                 location / {{ client_body_buffer_size 1m; {pass} {location} }}"
            );
            (http, server)
        }
    };
    variant.configuration(instance, &Text { http, server, ..Text::default() })
}

/// Returns the number at the end of the path of a request: the bytes of its response.
fn response_bytes(head: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    line.split_ascii_whitespace().nth(1)?.rsplit('/').next()?.parse().ok()
}

/// Serves the requests of one connection until its end. Each request is read completely before its response.
fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let response = |body: &[u8]| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    };
    let to_an_upload = response(RECEIVED);
    // The response to the last GET, since most requests of a connection are for the same size.
    let mut to_a_get = (0, response(&[]));
    while let Some(Request { head, body_bytes }) = read_request(&mut socket)? {
        if body_bytes > 0 {
            socket.write_all(&to_an_upload)?;
            continue;
        }
        let bytes = response_bytes(&head).unwrap_or(0);
        if to_a_get.0 != bytes {
            to_a_get = (bytes, response(&vec![b'p'; bytes]));
        }
        socket.write_all(&to_a_get.1)?;
    }
    Ok(())
}
