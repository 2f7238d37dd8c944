//! Requests of commands to a running server: `ringroad health` and `ringroad stat`.
//!
//! The address is a URL with `http` or `https`, or that of a location that the configuration names. `http://unix:PATH:URI` is a unix
//! socket, as in `proxy_pass`. The time of a request and the size of a response are limited.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use acme::fetch::{FetchError, Fetcher};
use conf::Statement;

use super::failure::CommandFailure;
use super::options::Arguments;
use super::request::request_for;
use crate::adapter::{self, Files, Reread};
use crate::explain::{Query, explain};
use crate::listen::{error_text, reachable};
use crate::loader::DiskLoader;
use crate::paths::Request;

/// Maximum size of a response in bytes: more than the metrics of a server with a thousand locations.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// A request to make.
#[derive(Debug)]
pub(super) struct Asked {
    /// The URL, which messages show.
    pub(super) url: String,
    /// The `Host` of the request, if it is not that of the URL.
    host: Option<String>,
    /// The configuration in which the URL was found.
    request: Option<Request>,
    /// Maximum time for the request.
    time: Duration,
    /// Sends requests over https.
    fetcher: Option<Fetcher>,
}

/// A response.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Asked {
    /// Returns the request for the URL in the arguments. Without a URL, finds a location of the configuration that has one of these
    /// directives, each with its first argument.
    pub(super) fn of(
        given: &Arguments,
        directives: &[(&str, &str)],
        time: Duration,
    ) -> Result<Asked, CommandFailure> {
        let Some(url) = given.operands.first() else {
            return Ok(Asked::in_configuration(given, directives, time)?);
        };
        let url = url.to_str().ok_or_else(|| CommandFailure::misuse("the URL is not text"))?.to_owned();
        let fetcher = match url.split_once("://") {
            Some(("http", _)) => None,
            Some(("https", _)) => {
                let roots = given.value("ca").map(std::fs::read).transpose();
                let roots = roots.map_err(|error| format!("--ca: {}", error_text(&error)))?;
                let fetcher = Fetcher::new(roots.as_deref(), !given.has("insecure"));
                Some(fetcher.map_err(|error| error.to_string())?.with_limits(time, RESPONSE_BYTES_MAX))
            }
            _ => {
                let what = format_args!("\"{url}\": write the address with http:// or https://");
                return Err(CommandFailure::misuse(what));
            }
        };
        if fetcher.is_none() && Destination::parse(&url).is_none() {
            return Err(CommandFailure::misuse(format_args!("\"{url}\": the URL is not valid")));
        }
        Ok(Asked { url, host: None, request: None, time, fetcher })
    }

    fn in_configuration(
        given: &Arguments,
        directives: &[(&str, &str)],
        time: Duration,
    ) -> Result<Asked, String> {
        let request = request_for(given.value("p").map(Path::new), given.value("c").map(Path::new));
        // The server may run although the file has got an error since.
        let tree = conf::parse_past_faults(&conf::Source::new(&request.main), &DiskLoader::new(&request))
            .map_err(|error| error.to_string())?;
        let (url, host) = directives.iter().find_map(|wanted| find(&tree, *wanted)).ok_or_else(|| {
            let (name, argument) = directives[0];
            let directive = format!("{name} {argument}");
            let (directive, file) = (directive.trim_end(), request.main.display());
            format!(
                "{file} has no location with \"{directive};\" at an address without TLS and PROXY protocol; add \"location = /{name} {{ \
                 {directive}; }}\" to a server, or write the URL"
            )
        })?;
        Ok(Asked { url, host: Some(host), request: Some(request), time, fetcher: None })
    }

    /// Returns the reason why the server refuses this command, and the remedy, for the end of a message; empty for other statuses. If
    /// the URL is one of the configuration, the reason is that of `ringroad explain`.
    pub(super) fn refusal(&self, status: u16) -> String {
        let client = match self.client() {
            Some(client) => client.to_string(),
            None if self.url.contains("://unix:") => "unix:".to_owned(),
            None => "ADDRESS".to_owned(),
        };
        let remedy = format!("\"allow {client};\" before it permits this command");
        match status {
            403 => match self.access_rule() {
                Some(rule) => format!("; refused by {rule}; {remedy}"),
                None => format!(
                    "; if this is an access rule, {remedy}; \"ringroad explain URL\" shows the reason of a refusal"
                ),
            },
            401 => "; the location needs a password, which this command cannot send: use a location without one, \
                         with \"allow\" and \"deny\""
                .to_owned(),
            _ => String::new(),
        }
    }

    /// Returns the access rule that refuses the request, as `deny all at FILE:LINE`.
    fn access_rule(&self) -> Option<String> {
        let request = self.request.as_ref()?;
        let from = self.client()?.to_string();
        let site = adapter::load(request, Files::Disk).ok()?;
        let tree = conf::parse(&conf::Source::new(&request.main), &DiskLoader::new(request)).ok()?;
        let fields = self.host.iter().map(|host| ("host".to_owned(), host.clone())).collect();
        let query = Query { url: self.url.clone(), from, method: "GET".to_owned(), fields, http3: false };
        let files = Reread { request, memory: None };
        let explained = explain(&site, files, &tree, &query, |_| Ok(())).ok()?;
        let line = explained.text.lines().find_map(|line| line.strip_prefix("access"))?;
        line.trim().strip_suffix(": 403").map(str::to_owned)
    }

    /// Returns the address of this command at a server on this machine, which is that of the server; `None` for other servers.
    fn client(&self) -> Option<IpAddr> {
        let Peer::Inet(address) = Destination::parse(&self.url)?.peer else { return None };
        let ip = address.parse::<SocketAddr>().ok()?.ip();
        (ip.is_loopback() || self.request.is_some()).then_some(ip)
    }
}

/// Returns the URL and the host of the first location with a directive, in all servers of `http`.
fn find(tree: &conf::Tree, wanted: (&str, &str)) -> Option<(String, String)> {
    let blocks = |of: &'_ [Statement], name: &'static str| -> Vec<Statement> {
        of.iter().filter(|child| child.name.text == name).cloned().collect()
    };
    let https = blocks(&tree.statements, "http");
    let mut servers = https.iter().flat_map(|http| blocks(http.children(), "server"));
    servers.find_map(|server| {
        let uri = uri_in(server.children(), wanted)?;
        let listens = blocks(server.children(), "listen");
        let addresses: Vec<String> = match listens.as_slice() {
            [] if rustix::process::geteuid().is_root() => vec!["127.0.0.1:80".to_owned()],
            // The default of nginx for other users.
            [] => vec!["127.0.0.1:8000".to_owned()],
            listens => listens.iter().filter_map(address_of).collect(),
        };
        let address = addresses.first()?;
        let names = blocks(server.children(), "server_name");
        let mut names = names.iter().flat_map(Statement::texts);
        let host = names.find(|name| is_plain_name(name)).unwrap_or("localhost");
        Some((format!("http://{address}{uri}"), host.to_owned()))
    })
}

/// Returns the path of the first location with a directive; nested locations included.
fn uri_in(children: &[Statement], wanted: (&str, &str)) -> Option<String> {
    let locations = children.iter().filter(|child| child.name.text == "location");
    locations
        .filter_map(|location| {
            let is_wanted = |child: &Statement| {
                child.name.text == wanted.0 && child.arg(0).unwrap_or_default() == wanted.1
            };
            if !location.children().iter().any(is_wanted) {
                return uri_in(location.children(), wanted);
            }
            let text: String = location.texts().collect();
            let path = text.trim_start_matches("^~").trim_start_matches('=');
            path.starts_with('/').then(|| path.to_owned())
        })
        .next()
}

/// Returns the address of a `listen` directive for a client on this machine; `None` if the client would need TLS, QUIC or a PROXY
/// header.
fn address_of(listen: &Statement) -> Option<String> {
    if listen.texts().any(|text| matches!(text, "ssl" | "quic" | "proxy_protocol")) {
        return None;
    }
    let text = listen.arg(0)?;
    if text.starts_with("unix:") {
        return Some(format!("{text}:"));
    }
    let with_port = match text.rsplit_once(':') {
        Some((_, port)) if !port.contains(']') => text.to_owned(),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => format!("*:{text}"),
        _ => format!("{text}:80"),
    };
    let address = with_port.replacen("*:", "0.0.0.0:", 1);
    Some(address.parse::<SocketAddr>().map_or(address, |address| reachable(address).to_string()))
}

/// Whether a `server_name` is a name that a client can send.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "_" && !name.starts_with('.') && !name.contains(['*', '~', '$'])
}

/// Makes a request. `query` is appended to the URL.
pub(super) fn get(asked: &Asked, query: &str) -> Result<Reply, String> {
    let url = format!("{}{query}", asked.url);
    let until = Instant::now() + asked.time;
    let failed = |error: std::io::Error| match error.kind() {
        // The error of a timeout is EAGAIN (socket(7), `SO_RCVTIMEO`).
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let seconds = asked.time.as_secs();
            format!("no response within {seconds} seconds; the server is stopped or overloaded")
        }
        _ => error_text(&error),
    };
    if let Some(fetcher) = &asked.fetcher {
        let response = fetcher.get(&url).map_err(|error| match error {
            FetchError::Io { error, .. } => failed(error),
            other => other.to_string(),
        })?;
        return Ok(Reply { status: response.status, body: response.body });
    }
    let destination = Destination::parse(&url).ok_or("the URL is not valid")?;
    let host = asked.host.as_deref().unwrap_or(&destination.host);
    // HTTP/1.0, in which bodies are not chunked.
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {host}\r\nAccept: application/json, */*\r\n\r\n",
        destination.target
    );
    let response = match &destination.peer {
        Peer::Unix(path) => exchange(UnixStream::connect(path), &request, until),
        Peer::Inet(address) => exchange(connect(address, until), &request, until),
    };
    Reply::parse(&response.map_err(failed)?).ok_or_else(|| "the server sent no HTTP response".to_owned())
}

/// The parts of a URL with `http`.
#[derive(Debug, PartialEq, Eq)]
struct Destination {
    peer: Peer,
    host: String,
    target: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Peer {
    Unix(PathBuf),
    /// Host and port.
    Inet(String),
}

impl Destination {
    fn parse(url: &str) -> Option<Destination> {
        let rest = url.strip_prefix("http://")?;
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let with_slash = |target: &str| match target.starts_with('/') {
            true => target.to_owned(),
            false => format!("/{target}"),
        };
        if let Some(rest) = rest.strip_prefix("unix:") {
            let (path, target) = rest.split_once(':').unwrap_or((rest, ""));
            let (peer, host) = (Peer::Unix(path.into()), "localhost".to_owned());
            return Some(Destination { peer, host, target: with_slash(target) });
        }
        let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let has_port = host.rsplit(']').next().is_some_and(|port| port.contains(':'));
        let address = if has_port { host.to_owned() } else { format!("{host}:80") };
        Some(Destination { peer: Peer::Inet(address), host: host.to_owned(), target: with_slash(target) })
    }
}

/// A socket with a limit on the time of each call.
trait Timed: Read + Write {
    fn set_time(&self, time: Duration) -> std::io::Result<()>;
}

impl Timed for TcpStream {
    fn set_time(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Timed for UnixStream {
    fn set_time(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// Sends the request and receives the response, until the server closes the connection.
fn exchange(stream: std::io::Result<impl Timed>, request: &str, until: Instant) -> std::io::Result<Vec<u8>> {
    let mut stream = stream?;
    stream.set_time(remaining(until)?)?;
    stream.write_all(request.as_bytes())?;
    let (mut response, mut piece) = (Vec::new(), [0; 16 << 10]);
    while response.len() <= RESPONSE_BYTES_MAX {
        stream.set_time(remaining(until)?)?;
        match stream.read(&mut piece)? {
            0 => return Ok(response),
            count => response.extend_from_slice(&piece[..count]),
        }
    }
    Err(std::io::Error::other("the response is too long"))
}

/// Connects to the first address of the host that accepts the connection. If none does, returns the error of the last
/// address.
fn connect(host: &str, until: Instant) -> std::io::Result<TcpStream> {
    let mut failure = ErrorKind::NotFound.into();
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, remaining(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Returns the time until the deadline.
fn remaining(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl Reply {
    fn parse(response: &[u8]) -> Option<Reply> {
        let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&response[..end]);
        let mut words = head.split_ascii_whitespace();
        words.next().filter(|version| version.starts_with("HTTP/"))?;
        let status = words.next()?.parse().ok()?;
        Some(Reply { status, body: response[end + 4..].to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> conf::Tree {
        let files: conf::MapLoader = [(PathBuf::from("a.conf"), text.to_owned())].into_iter().collect();
        conf::parse(&conf::Source::new("a.conf"), &files).expect("valid")
    }

    #[test]
    fn urls_are_split() {
        let parts = |url| Destination::parse(url).map(|found| (found.peer, found.host, found.target));
        let inet = |address: &str, host: &str, target: &str| {
            Some((Peer::Inet(address.to_owned()), host.to_owned(), target.to_owned()))
        };
        assert_eq!(parts("http://a/b?c"), inet("a:80", "a", "/b?c"));
        assert_eq!(parts("http://[::1]:81"), inet("[::1]:81", "[::1]:81", "/"));
        assert_eq!(parts("http://[::1]?a"), inet("[::1]:80", "[::1]", "/?a"));
        let unix = Some((Peer::Unix("/run/a.sock".into()), "localhost".to_owned(), "/x".to_owned()));
        assert_eq!(parts("http://unix:/run/a.sock:/x"), unix);
        assert_eq!(parts("http://a/\r\nb"), None);
        assert_eq!(parts("ftp://a/"), None);
    }

    #[test]
    fn locations_of_the_configuration_are_found_with_an_address_that_needs_no_tls() {
        let found = |servers: &str, wanted| find(&tree(&format!("http {{ {servers} }}")), wanted);
        let is = |url: &str, host: &str| Some((url.to_owned(), host.to_owned()));
        let (ready, live) = (("health", "ready"), ("health", "live"));
        assert_eq!(
            found("server { listen 8080; location = /ready { health ready; } }", ready),
            is("http://127.0.0.1:8080/ready", "localhost")
        );
        assert_eq!(found("server { listen 8080; location = /ready { health ready; } }", live), None);
        let tls = "server { listen 443 ssl; listen [::]:8000; server_name *.a .b ~c d.example; location /a/ { location ^~ /a/live { health live; } } }";
        assert_eq!(found(tls, live), is("http://[::1]:8000/a/live", "d.example"));
        for (listen, url) in [
            ("*:81", "http://127.0.0.1:81/x"),
            ("192.0.2.1", "http://192.0.2.1:80/x"),
            ("[::1]", "http://[::1]:80/x"),
            ("localhost:82", "http://localhost:82/x"),
            ("unix:/run/a.sock", "http://unix:/run/a.sock:/x"),
        ] {
            let server = format!("server {{ listen {listen}; location =/x {{ dashboard; }} }}");
            assert_eq!(found(&server, ("dashboard", "")), is(url, "localhost"), "{listen}");
        }
        for server in [
            "server { listen 443 ssl; location /x { health live; } }",
            "server { listen 80 proxy_protocol; location /x { health live; } }",
            "server { listen 80; location ~ x { health live; } }",
            "server { listen 80; location @x { health live; } }",
        ] {
            assert_eq!(found(server, live), None, "{server}");
        }
    }

    #[test]
    fn responses_are_parsed() {
        let reply = Reply::parse(b"HTTP/1.1 503 Unavailable\r\nA: b\r\n\r\ndrained\n").expect("valid");
        assert_eq!((reply.status, reply.body.as_slice()), (503, &b"drained\n"[..]));
        assert!(Reply::parse(b"SSH-2.0\r\n\r\n").is_none());
        assert!(Reply::parse(b"HTTP/1.1 200 OK\r\n").is_none());
    }
}
