//! OCSP: requests the revocation status of certificates from their authorities. Client certificates are checked before the first
//! request of a connection (`ssl_ocsp`). Responses for certificates of the server are sent in handshakes (`ssl_stapling`).
//!
//! ```text
//!   handshake --> Staple::tend   -- request due, none in flight --> new task: fetch --> verify --> certificate slot
//!             --> client::check  -- status not cached -----------> fetch --> verify --> cache --> verdict on the client
//! ```
//! This crate does not connect to other servers. It calls the function in [`Fetch`], which a module of `gateways` sets on each thread.

mod cache;
pub mod client;
mod staple;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use cache::{StatusCache, named as named_cache};
pub use staple::{Staple, StapleSettings};

use crate::thread::Thread;
use site::config::{Config, Scope, Section, ServerId};

/// Port of a URL without a port.
const PORT: u16 = 80;

/// Responder of an authority: the parts of an http URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responder {
    /// Name or IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query; begins with `/`.
    pub path: String,
}

impl Responder {
    /// Parses a URL, which may be part of a client's certificate.
    ///
    /// # Errors
    /// Returns nginx's message, with the URL unchanged: the log escapes control characters. The caller appends where the URL was
    /// found.
    pub fn parse(url: &str) -> Result<Responder, String> {
        let scheme = url.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("http://"));
        let Some((_, rest)) = scheme.filter(|(_, rest)| !rest.is_empty()) else {
            return Err(format!("invalid URL prefix in OCSP responder \"{url}\""));
        };
        let fault = |what: &str| Err(format!("{what} in OCSP responder \"{rest}\""));
        // The path is sent unchanged, so it must not contain spaces or control bytes.
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return fault("invalid URL");
        }
        let (place, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = match place.strip_prefix('[') {
            Some(inside) => match inside.split_once(']') {
                Some((host, port)) if host.parse::<IpAddr>().is_ok() => (host, port),
                Some(_) => return fault("invalid IPv6 address"),
                None => return fault("invalid host"),
            },
            None => place.split_at(place.find(':').unwrap_or(place.len())),
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => PORT,
            None => return fault("invalid host"),
            Some(digits) => match digits.parse::<u16>() {
                Ok(port) if port > 0 && !digits.starts_with('+') => port,
                _ => return fault("invalid port"),
            },
        };
        if host.is_empty() {
            return fault("no host");
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Responder { host: host.to_owned(), port, path })
    }
}

/// A server block of a configuration.
#[derive(Clone)]
pub struct BlockRef {
    /// The configuration.
    pub config: Arc<Config>,
    /// The block that has the server.
    pub section: Section,
    /// The server.
    pub server: ServerId,
}

impl BlockRef {
    /// Returns the settings of the server.
    pub fn scope(&self) -> &Scope {
        self.config.section(self.section).server_scope(self.server)
    }
}

/// A request to a responder.
pub struct Inquiry {
    /// Receiver of the request.
    pub responder: Responder,
    /// Content of the request (OCSPRequest, RFC 6960 section 4.1.1).
    pub request: Vec<u8>,
    /// The block whose `resolver` resolves the responder's name.
    pub at: BlockRef,
    /// Whether the system resolves the responder's name if no `resolver` is set. Never true for a name from a client's certificate.
    pub by_system: bool,
}

/// Future of the content of a response, or of nginx's error message.
pub type Fetching = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>>>>;

/// Function that sends an inquiry. A module that can connect to other servers sets it on each thread.
#[derive(Clone, Copy)]
pub struct Fetch(pub fn(Rc<Thread>, Inquiry) -> Fetching);

/// Returns the time of day in seconds since 1970.
fn now() -> i64 {
    since_1970(rt::wall())
}

fn since_1970(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_responders_are_parsed_as_in_nginx() {
        let read = |url: &str| Responder::parse(url).map(|it| (it.host, it.port, it.path));
        let found = |host: &str, port, path: &str| Ok((host.to_owned(), port, path.to_owned()));
        assert_eq!(read("http://a.example"), found("a.example", 80, "/"));
        assert_eq!(read("HTTP://a.example:8080/x/y"), found("a.example", 8080, "/x/y"));
        assert_eq!(read("http://a.example?x"), found("a.example", 80, "/?x"));
        assert_eq!(read("http://[::1]:81/x"), found("::1", 81, "/x"));
        for (url, expected) in [
            ("", "invalid URL prefix in OCSP responder \"\""),
            ("http://", "invalid URL prefix in OCSP responder \"http://\""),
            ("https://a.example/", "invalid URL prefix in OCSP responder \"https://a.example/\""),
            ("httpé://a", "invalid URL prefix in OCSP responder \"httpé://a\""),
            ("http:///x", "no host in OCSP responder \"/x\""),
            ("http://a:0/", "invalid port in OCSP responder \"a:0/\""),
            ("http://a:65536", "invalid port in OCSP responder \"a:65536\""),
            ("http://a:+1", "invalid port in OCSP responder \"a:+1\""),
            ("http://[::1", "invalid host in OCSP responder \"[::1\""),
            ("http://[::1]1", "invalid host in OCSP responder \"[::1]1\""),
            ("http://[x]/", "invalid IPv6 address in OCSP responder \"[x]/\""),
            ("http://a/ HTTP/1.0\r\nx", "invalid URL in OCSP responder \"a/ HTTP/1.0\r\nx\""),
        ] {
            assert_eq!(read(url), Err(expected.to_owned()), "{url}");
        }
    }
}
