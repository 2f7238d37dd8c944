//! Requests over https, each on a new connection (RFC 9110, RFC 9112). Connections are not reused, because a CA receives only a
//! few requests in weeks. Commands of the program, such as `ringroad stat`, use this module too.
//!
//! [`Fetcher`] sends the requests; a [`Response`] is completely in memory. The certificate of the CA's server is verified like
//! that of an upstream. The time of a request and the size of a response are limited.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use http::fields::Method;
use http::gateway::{BodyEvent, Decoder, HeadEvent};
use http::response::parse::{Limits, ParsedResponse};
use tls::client::ClientSettings;
use tls::server::Versions;
use tls::x509::{Certificate, Purpose, Roots};
use tls::{Client, Session, Trust, certificate, ciphers, groups};

use crate::url::Url;

/// Maximum time for a request and its response.
const REQUEST_TIME: Duration = Duration::from_secs(60);

/// Maximum time for establishing a connection.
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// Maximum size of a response in bytes; certificate chains have a few KiB.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Maximum size of a header section in bytes.
const HEAD_BYTES_MAX: u32 = 32 << 10;

/// Maximum number of certificates between the server's certificate and a root.
const DEPTH_MAX: u32 = 9;

/// Files with the roots that the system trusts: on Debian, Fedora, Alpine, openSUSE.
pub const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// Reason why a request has no response.
#[derive(Debug)]
pub enum FetchError {
    /// The text is not an https URL.
    Url(String),
    /// The host name has no address, or the connection failed.
    Io {
        /// The host.
        host: String,
        /// The reason.
        error: io::Error,
    },
    /// The TLS handshake failed.
    Tls {
        /// The host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The server's certificate is not trusted; has OpenSSL's message.
    Distrust {
        /// The host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The response is not valid HTTP.
    Malformed {
        /// The host.
        host: String,
    },
    /// The root certificates cannot be used.
    Roots(String),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Url(url) => write!(f, "\"{url}\" is not an https URL"),
            FetchError::Io { host, error } => write!(f, "connection to {host} failed: {error}"),
            FetchError::Tls { host, reason } => write!(f, "TLS handshake with {host} failed: {reason}"),
            FetchError::Distrust { host, reason } => {
                write!(f, "the certificate of {host} is not trusted: {reason}")
            }
            FetchError::Malformed { host } => write!(f, "{host} sent an invalid response"),
            FetchError::Roots(reason) => write!(f, "trusted certificates cannot be loaded: {reason}"),
        }
    }
}

/// A complete response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The header fields: names in lower case, and values.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the first field with this name, which must be in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns all fields with this name, which must be in lower case.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Sends requests.
pub struct Fetcher {
    client: Client,
    /// Maximum time for a request and its response.
    time: Duration,
    /// Maximum size of a response in bytes.
    response_bytes_max: usize,
    /// The trusted CAs for certificates of servers; `None` if certificates are not verified.
    trust: Option<Trust>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("time", &self.time).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Creates a fetcher that trusts these roots in PEM, or the roots of the system. `verifies`: whether certificates of
    /// servers are verified.
    pub fn new(roots: Option<&[u8]>, verifies: bool) -> Result<Fetcher, FetchError> {
        let settings = ClientSettings {
            identity: None,
            versions: Versions { tls12: true, tls13: true },
            suites: ciphers::parse("HIGH:!aNULL:!MD5"),
            suites_13: ciphers::all_13(),
            groups: groups::auto(),
            reuses_sessions: true,
            sends_name: true,
            alpn: vec![b"http/1.1".to_vec()],
        };
        let client = Client::new(settings).map_err(|error| FetchError::Roots(error.to_string()))?;
        let trust = if verifies { Some(trust(roots)?) } else { None };
        Ok(Fetcher { client, time: REQUEST_TIME, response_bytes_max: RESPONSE_BYTES_MAX, trust })
    }

    /// Sets the maximum time for a request and its response, and the maximum size of a response in bytes.
    #[must_use]
    pub fn with_limits(self, time: Duration, response_bytes_max: usize) -> Fetcher {
        Fetcher { time, response_bytes_max, ..self }
    }

    /// Sends a GET request.
    pub fn get(&self, url: &str) -> Result<Response, FetchError> {
        self.request(Method::Get, url, None)
    }

    /// Sends a request. `body` is its media type and its bytes.
    pub fn request(
        &self,
        method: Method,
        url: &str,
        body: Option<(&str, &[u8])>,
    ) -> Result<Response, FetchError> {
        let url = Url::parse(url).ok_or_else(|| FetchError::Url(url.to_owned()))?;
        let name = match method {
            Method::Head => "HEAD",
            Method::Post => "POST",
            _ => "GET",
        };
        let Url { host, target, authority, .. } = &url;
        let (kind, bytes) = body.unwrap_or_default();
        let version = env!("CARGO_PKG_VERSION");
        let mut message = format!(
            "{name} {target} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: ringroad/{version}\r\nConnection: close\r\n"
        );
        if body.is_some() {
            message.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", bytes.len()));
        }
        message.push_str("\r\n");
        let mut link = Link::open(self, &url)?;
        if let Some(trust) = &self.trust {
            link.judge(trust, host)?;
        }
        link.send(&[message.as_bytes(), bytes].concat())?;
        link.receive(method, self.response_bytes_max)
    }
}

/// Reads root certificates.
fn trust(pem: Option<&[u8]>) -> Result<Trust, FetchError> {
    let bytes = match pem {
        Some(pem) => pem.to_vec(),
        None => system_roots()?,
    };
    let mut roots = Roots::new().ok_or_else(|| FetchError::Roots("no memory".to_owned()))?;
    for der in certificate::certificates(&bytes).map_err(|error| FetchError::Roots(error.to_string()))? {
        roots.add(&der).map_err(FetchError::Roots)?;
    }
    Ok(Trust::new(roots, DEPTH_MAX, Purpose::Server))
}

/// Reads the file that `SSL_CERT_FILE` names, or the roots that the system trusts.
fn system_roots() -> Result<Vec<u8>, FetchError> {
    let named = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let known = SYSTEM_ROOTS.iter().map(std::path::PathBuf::from);
    let found = named.into_iter().chain(known).find_map(|path| std::fs::read(path).ok());
    found.ok_or_else(|| {
        FetchError::Roots(format!(
            "none of {} can be read; install ca-certificates, or set SSL_CERT_FILE",
            SYSTEM_ROOTS.join(", ")
        ))
    })
}

/// A connection.
struct Link<'a> {
    socket: TcpStream,
    session: Session,
    host: &'a str,
    end: Instant,
    /// Received plaintext that has not been parsed.
    plain: Vec<u8>,
    is_over: bool,
}

impl<'a> Link<'a> {
    fn open(fetcher: &Fetcher, url: &'a Url) -> Result<Link<'a>, FetchError> {
        let host = url.host.as_str();
        let end = Instant::now() + fetcher.time;
        let failed = |error| FetchError::Io { host: host.to_owned(), error };
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let mut socket = None;
        for address in (host, url.port).to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&address, CONNECT_TIME.min(fetcher.time)) {
                Ok(found) => {
                    socket = Some(found);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let socket = socket.ok_or(last).map_err(failed)?;
        // The request is sent directly after the last message of the handshake. Nagle's algorithm would delay the request
        // until that message is acknowledged.
        socket.set_nodelay(true).map_err(failed)?;
        let session = fetcher.client.session(&format!("{host}:{}", url.port), host);
        let session =
            session.map_err(|error| FetchError::Tls { host: host.to_owned(), reason: error.to_string() })?;
        let mut link = Link { socket, session, host, end, plain: Vec::new(), is_over: false };
        link.take(&mut [])?;
        while link.session.is_handshaking() {
            link.turn()?;
        }
        Ok(link)
    }

    fn broken(&self, error: io::Error) -> FetchError {
        FetchError::Io { host: self.host.to_owned(), error }
    }

    /// Verifies the certificate of the server. The handshake accepts any certificate. This check follows before the first byte of
    /// a request is sent, as for upstreams.
    fn judge(&self, trust: &Trust, host: &str) -> Result<(), FetchError> {
        let chain = self.session.peer_certificates();
        let distrust = |reason| Err(FetchError::Distrust { host: host.to_owned(), reason });
        if let Err(reason) = trust.judge(chain) {
            return distrust(reason.to_string());
        }
        let first = chain.first().and_then(|first| Certificate::from_der(first));
        if first.is_some_and(|first| first.is_for(host)) {
            return Ok(());
        }
        distrust("it is for another name".to_owned())
    }

    /// Passes received bytes to the session, and sends its output.
    fn take(&mut self, incoming: &mut [u8]) -> Result<(), FetchError> {
        let plain = &mut self.plain;
        let read = self.session.read(incoming, &mut |bytes| plain.extend_from_slice(bytes));
        let output = self.session.output();
        if !output.is_empty() {
            self.write(&output)?;
        }
        let host = self.host;
        read.map_err(|error| FetchError::Tls { host: host.to_owned(), reason: error.to_string() })
    }

    /// Receives once.
    fn turn(&mut self) -> Result<(), FetchError> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.broken(io::ErrorKind::TimedOut.into()));
        }
        self.socket.set_read_timeout(Some(left)).map_err(|error| self.broken(error))?;
        let mut bytes = [0; 16 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) if self.session.is_handshaking() => Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(0) => {
                self.is_over = true;
                Ok(())
            }
            Ok(len) => {
                self.take(&mut bytes[..len])?;
                self.is_over |= self.session.peer_closed();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.broken(error)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        let left = self.end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let written = self.socket.set_write_timeout(Some(left)).and_then(|()| self.socket.write_all(bytes));
        written.map_err(|error| self.broken(error))
    }

    fn send(&mut self, message: &[u8]) -> Result<(), FetchError> {
        let mut sealed = vec![0; self.session.sealed_bytes(message.len())];
        let len = self.session.seal(message, &mut sealed);
        let host = self.host;
        let len =
            len.map_err(|error| FetchError::Tls { host: host.to_owned(), reason: error.to_string() })?;
        self.write(&sealed[..len])
    }

    /// Receives the response to a request with this method.
    fn receive(&mut self, method: Method, body_bytes_max: usize) -> Result<Response, FetchError> {
        let malformed = |host: &str| FetchError::Malformed { host: host.to_owned() };
        let limits = Limits { head_max: HEAD_BYTES_MAX, ..Limits::default() };
        let mut decoder = Decoder::http1(method, limits);
        let mut head = ParsedResponse::new();
        loop {
            match decoder.head(&mut head, &self.plain).map_err(|_| malformed(self.host))? {
                HeadEvent::Head(len) => {
                    let mut response = Response { status: head.status().code(), ..Response::default() };
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    for line in head.lines(&self.plain) {
                        response.fields.push((text(line.name).to_ascii_lowercase(), text(line.value)));
                    }
                    debug_assert!(len as usize <= self.plain.len(), "the header section was received");
                    self.plain.drain(..len as usize);
                    response.body = self.body(&mut decoder, body_bytes_max)?;
                    return Ok(response);
                }
                HeadEvent::Interim(len) => {
                    self.plain.drain(..len as usize);
                    head.clear();
                }
                HeadEvent::More if !self.is_over => self.turn()?,
                HeadEvent::More | HeadEvent::NoHead | HeadEvent::Written(_) => {
                    return Err(malformed(self.host));
                }
            }
        }
    }

    fn body(&mut self, decoder: &mut Decoder, bytes_max: usize) -> Result<Vec<u8>, FetchError> {
        let malformed = |host: &str| FetchError::Malformed { host: host.to_owned() };
        let mut body = Vec::new();
        loop {
            let step = decoder.body(&self.plain).map_err(|_| malformed(self.host))?;
            if let BodyEvent::Data { start, end } = step.event {
                body.extend_from_slice(&self.plain[start..end]);
            }
            debug_assert!(step.consumed <= self.plain.len(), "only received bytes are processed");
            self.plain.drain(..step.consumed);
            match step.event {
                BodyEvent::End => return Ok(body),
                _ if body.len() > bytes_max => return Err(malformed(self.host)),
                BodyEvent::Data { .. } => {}
                BodyEvent::More if !self.is_over => self.turn()?,
                BodyEvent::More if decoder.close() => return Ok(body),
                BodyEvent::More => return Err(malformed(self.host)),
            }
        }
    }
}
