//! Requests that are passed on with `proxy_pass`: a response of 10 KiB, the same as a hit of a cache, and uploads of 16 and
//! 256 KiB. No write-up has these
//! rows. They repeat the measurement in `docs/experiments/raw/proxied-20261123`.
//!
//! ```text
//!   generator --> server --> origin: reads the whole body of a request, then responds
//! ```
//!
//! * The origin consists of threads of this process on the generator's processors, and is the same for all servers.
//! * Connections to the origin are kept.
//! * Uploads fit into `client_body_buffer_size`: no server writes them to a temporary file.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::costs;
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Plan;
use crate::method::pin::{self, Split};
use crate::report::model::Section;
use crate::scenario::lineup::{self, READY, SERVERS, Text, of};
use crate::scenario::origin::Origin;
use crate::scenario::served::{self, ServerCpus};
use crate::scenario::sheet::{Sheet, at};

/// As in the measurement that these rows repeat. Each may have a connection and a thread of the origin.
const CONNECTIONS: u32 = 16;

/// Length of one measurement in a result for keeping.
const LENGTH: Duration = Duration::from_secs(1);

/// Bytes of a response to a request without a body.
const RESPONSE_BYTES: usize = 10 << 10;

/// The response body of an upload.
const RECEIVED: &[u8] = b"received\n";

/// The requests of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxiedCase {
    Response,
    /// The same out of a proxy cache whose entries are in memory.
    Hit,
    /// A request body: its name and its bytes.
    Upload(&'static str, usize),
}

impl ProxiedCase {
    const ALL: [ProxiedCase; 4] = [
        ProxiedCase::Response,
        ProxiedCase::Hit,
        ProxiedCase::Upload("16k", 16 << 10),
        ProxiedCase::Upload("256k", 256 << 10),
    ];

    fn name(self) -> String {
        match self {
            ProxiedCase::Response => "response of 10k".to_owned(),
            ProxiedCase::Hit => "hit of a cache of 10k".to_owned(),
            ProxiedCase::Upload(name, _) => format!("upload of {name}"),
        }
    }

    fn title(self) -> String {
        format!("Proxied, {}, one worker, {CONNECTIONS} long connections", self.name())
    }

    /// The load, and the path that it is for.
    fn load(self, bench: &Bench, split: &Split) -> (Plan, &'static str) {
        let mut plan = served::load(bench, split, CONNECTIONS, LENGTH);
        plan.expect = served::whole(RESPONSE_BYTES as u64);
        if let ProxiedCase::Upload(_, bytes) = self {
            "POST".clone_into(&mut plan.method);
            plan.body = vec![b'u'; bytes];
            plan.expect = served::whole(RECEIVED.len() as u64);
        }
        (plan, if self == ProxiedCase::Hit { "/hit" } else { "/" })
    }
}

/// Adds the tables of them to the section of `bench http`.
pub(super) fn add(bench: &Bench, section: &mut Section) -> Result<(), Failure> {
    let place = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    let origin = Origin::start(place.split.load_cpu(), |socket| {
        // An error ends the connection: the server at its other side is gone, or failed a request, which its client counts.
        let _ = serve(socket);
    })?;
    let ways = (&SERVERS[..], ", proxied");
    let mut servers = lineup::start(bench, section, (&place, None), ways, |way, instance| {
        let (port, directory) = (origin.port(), instance.directory.display());
        let http = format!(
            "upstream origin {{ server 127.0.0.1:{port}; keepalive 256; }}\n\
             proxy_cache_path {directory}/cache keys_zone=bench:1m use_temp_path=off;"
        );
        let pass = "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        let server = format!(
            "{READY}\nlocation = /hit {{\n    {pass}\n    \
             proxy_cache bench; proxy_cache_key $uri; proxy_cache_valid 200 1d;\n}}\n\
             location / {{ client_body_buffer_size 1m; {pass} }}"
        );
        way.configuration(instance, &Text { http, server, ..Text::default() })
    })?;
    for case in ProxiedCase::ALL {
        let labels = at([("proxied", &case.name()), ("workers", &1), ("connections", &CONNECTIONS)]);
        let (plan, path) = case.load(bench, &place.split);
        let words = format!("proxied, {}, {CONNECTIONS} connections", case.name());
        served::compare(bench, section, &mut servers, (&words, path), &plan, |way| Some(of(way, &labels)))?;
        let told = costs(Sheet::of(section), &case.title(), &SERVERS, &labels);
        section.tell(told);
    }
    lineup::end(servers);
    Ok(())
}

/// Requests of one connection, until its end. Each is read with its body before it is answered.
fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let response = |body: &[u8]| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    };
    let (to_a_get, to_an_upload) = (response(&[b'p'; RESPONSE_BYTES]), response(RECEIVED));
    let mut part = vec![0; 64 << 10];
    while let Some(length) = read_request(&mut socket, &mut part)? {
        socket.write_all(if length == 0 { &to_a_get } else { &to_an_upload })?;
    }
    Ok(())
}

/// Reads a request: the length of its body, or nothing at the end of the connection. A proxy sends the next request after
/// the response only, so nothing behind the body is expected.
fn read_request(socket: &mut impl Read, part: &mut [u8]) -> std::io::Result<Option<usize>> {
    let mut head = Vec::new();
    let end = loop {
        match socket.read(part)? {
            0 if head.is_empty() => return Ok(None),
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&part[..count]),
        }
        if let Some(at) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let length = content_length(&head[..end])?;
    let mut left = length.saturating_sub(head.len() - end);
    while left > 0 {
        match socket.read(part)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => left = left.saturating_sub(count),
        }
    }
    Ok(Some(length))
}

/// `Content-Length` of a header section; 0 without one. A coding of the body would need another reader.
fn content_length(head: &[u8]) -> std::io::Result<usize> {
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let text = std::str::from_utf8(head).map_err(|_| invalid())?;
    let fields = || text.lines().filter_map(|line| line.split_once(':'));
    if fields().any(|(name, _)| name.eq_ignore_ascii_case("transfer-encoding")) {
        return Err(invalid());
    }
    match fields().find(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        Some((_, value)) => value.trim().parse().map_err(|_| invalid()),
        None => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that brings at most so many bytes with each read.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let most = self.1.min(into.len());
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn the_origin_reads_a_whole_body_before_it_answers() {
        let request = [&b"POST / HTTP/1.1\r\ncontent-length: 1000\r\n\r\n"[..], &[b'u'; 1000]].concat();
        for size in [1, 7, 600, 5000] {
            let mut connection = Slow(&request, size);
            assert_eq!(read_request(&mut connection, &mut [0; 4096]).unwrap(), Some(1000));
            assert!(connection.0.is_empty(), "{size}: {} bytes are left", connection.0.len());
            assert_eq!(read_request(&mut connection, &mut [0; 4096]).unwrap(), None);
        }
        let cut = &request[..request.len() - 1];
        assert!(read_request(&mut Slow(cut, 100), &mut [0; 4096]).is_err());
        let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(read_request(&mut Slow(get, 100), &mut [0; 4096]).unwrap(), Some(0));
    }

    #[test]
    fn the_origin_takes_no_chunked_body() {
        assert!(content_length(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }
}
