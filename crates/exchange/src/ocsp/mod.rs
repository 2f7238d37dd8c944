//! Authorities that are asked whether certificates were revoked (OCSP): about those of clients before their first request
//! (`ssl_ocsp`), and about those of the server, to send the responses along (`ssl_stapling`).
//!
//! ```text
//!   handshake --> Staple::tend   -- due, none in flight --> a task: ask, judge, into the slot of the certificate
//!             --> client::check  -- not in the cache ----> ask, judge, into the cache --> the verdict of the connection
//! ```
//! This crate speaks to no other server. [`Fetch`] is the way out: a module above puts it on each thread.

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

use crate::config::{Config, LocationId};
use crate::thread::Thread;

/// The port of a URL that has none.
const PORT: u16 = 80;

/// Where an authority is asked: an http URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responder {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path, `/` at least.
    pub path: String,
}

impl Responder {
    /// Reads a URL, which may come out of a certificate.
    ///
    /// # Errors
    /// nginx's message, to be continued with where the URL stands.
    pub fn parse(url: &str) -> Result<Responder, String> {
        let scheme = url.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("http://"));
        let Some((_, rest)) = scheme.filter(|(_, rest)| !rest.is_empty()) else {
            return Err(format!("invalid URL prefix in OCSP responder \"{}\"", url.escape_debug()));
        };
        let fault = |what: &str| Err(format!("{what} in OCSP responder \"{}\"", rest.escape_debug()));
        // The path is sent as it is.
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

/// A request to a responder.
pub struct Inquiry {
    /// Where it is sent.
    pub responder: Responder,
    /// Its content (OCSPRequest, RFC 6960 section 4.1.1).
    pub request: Vec<u8>,
    /// The configuration, and the block whose `resolver` finds the responder.
    pub at: (Arc<Config>, LocationId),
    /// Whether the system finds it where there is no `resolver`: the operator has chosen it, and no client.
    pub by_system: bool,
}

/// The content of a response, or nginx's message.
pub type Fetching = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>>>>;

/// Makes inquiries: kept on each thread by the module that can.
#[derive(Clone, Copy)]
pub struct Fetch(pub fn(Rc<Thread>, Inquiry) -> Fetching);

/// The time of day in seconds since 1970.
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
    fn urls_of_responders_are_read_as_nginx_does() {
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
            ("http://a/ HTTP/1.0\r\nx", "invalid URL in OCSP responder \"a/ HTTP/1.0\\r\\nx\""),
        ] {
            assert_eq!(read(url), Err(expected.to_owned()), "{url}");
        }
    }
}
