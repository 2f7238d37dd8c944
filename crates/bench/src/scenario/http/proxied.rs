//! Proxied requests (`proxy_pass`): a response of 10 KiB, the same as a cache hit, and uploads of 16 and 256 KiB. No
//! write-up has these rows. They repeat the measurement in `docs/experiments/raw/proxied-20261123`.
//!
//! ```text
//!   generator --> server --> origin: reads the complete body of a request, then responds
//! ```
//!
//! * The origin consists of threads of this process on the generator's processors, and is the same for all servers.
//! * Connections to the origin are keep-alive connections.
//! * Uploads fit into `client_body_buffer_size`: no server writes them to a temporary file.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Plan;
use crate::method::pin::Split;
use crate::peers::tool::Peer;
use crate::report::model::Section;
use crate::scenario::comparison::{self, Compared, EPOLL, NGINX, READY, RING, SERVERS, Text, Variant, of};
use crate::scenario::measurements::{Measurements, at};
use crate::scenario::origin::{Origin, Request, read_request};
use crate::scenario::served::{self, ServerCpus};

/// Number of connections, as in the repeated measurement. Each may need a connection to the origin, and a thread there.
const CONNECTIONS: u32 = 16;

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(1);

/// Bytes of a response to a request without a body.
const RESPONSE_BYTES: usize = 10 << 10;

/// Response body of an upload.
const RECEIVED: &[u8] = b"received\n";

/// The requests of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxiedCase {
    Response,
    /// A response from a proxy cache with resident entries: name and bytes.
    Hit(&'static str, usize),
    /// A request with a body: name and bytes.
    Upload(&'static str, usize),
}

impl ProxiedCase {
    const ALL: [ProxiedCase; 6] = [
        ProxiedCase::Response,
        ProxiedCase::Hit("1k", 1 << 10),
        ProxiedCase::Hit("10k", RESPONSE_BYTES),
        ProxiedCase::Hit("100k", 100 << 10),
        ProxiedCase::Upload("16k", 16 << 10),
        ProxiedCase::Upload("256k", 256 << 10),
    ];

    fn name(self) -> String {
        match self {
            ProxiedCase::Response => "response of 10k".to_owned(),
            ProxiedCase::Hit(name, _) => format!("hit of a cache of {name}"),
            ProxiedCase::Upload(name, _) => format!("upload of {name}"),
        }
    }

    fn title(self) -> String {
        format!("Proxied, {}, one worker, {CONNECTIONS} long connections", self.name())
    }

    /// Returns the load and its path.
    fn load(self, bench: &Bench, split: &Split) -> (Plan, String) {
        let mut plan = served::load(bench, split, CONNECTIONS, LENGTH);
        let (path, response_bytes) = match self {
            ProxiedCase::Response => ("/".to_owned(), RESPONSE_BYTES),
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

    /// Whether a server is measured: the modes of nginx that differ only in files are for hits.
    fn has(self, variant: &Variant) -> bool {
        matches!(self, ProxiedCase::Hit(..)) || SERVERS.contains(variant)
    }
}

/// Ringroad, nginx as it comes, and nginx with the settings that are best for hits of its cache: which of them is best
/// depends on the size.
const VARIANTS: [Variant; 5] = [
    RING,
    EPOLL,
    NGINX,
    Variant::of("nginx, open_file_cache", Peer::Nginx).with("open_file_cache max=100; sendfile on;"),
    Variant::of("nginx, open_file_cache, sendfile off", Peer::Nginx)
        .with("open_file_cache max=100; sendfile off;"),
];

/// Start of the paths of cached responses; the number of bytes follows.
const HIT: &str = "/hit/";

/// Adds the tables of proxied requests to the section of `bench http`.
pub(super) fn add(bench: &Bench, section: &mut Section) -> Result<(), Failure> {
    let place = ServerCpus::of_one_worker(bench, section);
    let origin = Origin::start(place.split.load_cpu(), |socket| {
        // An error ends the connection: the proxy has closed it, or failed a request, which the client counts.
        let _ = serve(socket);
    })?;
    let variants = (&VARIANTS[..], ", proxied");
    let mut servers = comparison::start(bench, section, &place, variants, |variant, instance| {
        let (port, directory) = (origin.port, instance.directory.display());
        let http = format!(
            "upstream origin {{ server 127.0.0.1:{port}; keepalive 256; }}\n\
             proxy_cache_path {directory}/cache keys_zone=bench:1m use_temp_path=off;"
        );
        let pass = "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        let server = format!(
            "{READY}\nlocation {HIT} {{\n    {pass} {}\n    \
             proxy_cache bench; proxy_cache_key $uri; proxy_cache_valid 200 1d;\n}}\n\
             location / {{ client_body_buffer_size 1m; {pass} }}",
            variant.location
        );
        variant.configuration(instance, &Text { http, server, ..Text::default() })
    })?;
    for case in ProxiedCase::ALL {
        let labels = at([("proxied", &case.name()), ("workers", &1), ("connections", &CONNECTIONS)]);
        let (plan, path) = case.load(bench, &place.split);
        let words = format!("proxied, {}, {CONNECTIONS} connections", case.name());
        served::compare(bench, section, &mut servers, (&words, &path), &plan, |variant| {
            case.has(variant).then(|| of(variant, &labels))
        })?;
        let variants: Vec<Variant> = VARIANTS.into_iter().filter(|variant| case.has(variant)).collect();
        let compared = Compared { measurements: Measurements::of(section), variants: &variants };
        let base = compared.cheapest(&labels, |variant| variant.peer.is_some()).unwrap_or(NGINX);
        let results = compared.costs(&case.title(), &base, &labels);
        section.add_results(results);
    }
    Ok(())
}

/// Returns the number in the path of a request for a response that is cached.
fn hit_bytes(head: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    line.split_ascii_whitespace().nth(1)?.strip_prefix(HIT)?.parse().ok()
}

/// Serves the requests of one connection until its end. Each request is read completely before its response.
fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let response = |body: &[u8]| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    };
    let (to_a_get, to_an_upload) = (response(&[b'p'; RESPONSE_BYTES]), response(RECEIVED));
    while let Some(Request { head, body_bytes }) = read_request(&mut socket)? {
        match hit_bytes(&head) {
            Some(bytes) => socket.write_all(&response(&vec![b'p'; bytes]))?,
            None => socket.write_all(if body_bytes == 0 { &to_a_get } else { &to_an_upload })?,
        }
    }
    Ok(())
}
