//! The URLs of a load: literal ones, and patterns with numbers.
//!
//! Numbers are written in braces. `{0-24999}` is a random number of the range, uniformly distributed; `{0..24999}`
//! counts from the first to the last number and then restarts. Leading zeros of the first number set the width of all:
//! `{000-999}`. A literal brace in a URL is written `%7B`. Unix sockets are written as in nginx:
//! `http://unix:/run/server.sock:/path`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use io::op::PeerAddr;

use crate::failure::Failure;

/// A URL or a pattern of URLs, parsed and resolved.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The URL or pattern in its original notation.
    pub(crate) text: String,
    pub(crate) peer: PeerAddr,
    pub(crate) host: String,
    /// Whether the scheme is `https`.
    pub(crate) is_https: bool,
    /// The path and query, split into pieces.
    pub(crate) pieces: Vec<Piece>,
}

/// A piece of a path or of an encoded request: only its numbers are formatted for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(Vec<u8>),
    Number { first: u64, count: u64, width: usize, order: Order },
}

/// Order of the numbers of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Random,
    Counting,
}

impl Target {
    /// Parses a URL or pattern and resolves its host name.
    pub(crate) fn parse(text: &str) -> Result<Target, Failure> {
        let wrong = |why: &str| Failure::Usage(format!("URL \"{text}\": {why}"));
        let (is_https, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(wrong("only http and https are supported")),
            None => return Err(wrong("write it with http://")),
        };
        if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(wrong("white space and control bytes have to be escaped (%20)"));
        }
        // A fragment is not sent to the server (RFC 9110 section 4.2.5).
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (peer, host, path) = match rest.strip_prefix("unix:") {
            Some(rest) => {
                let (socket, path) = rest.split_once(':').unwrap_or((rest, "/"));
                (PeerAddr::Unix(PathBuf::from(socket)), "localhost".to_owned(), path)
            }
            None => {
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                let (authority, path) = rest.split_at(end);
                let port = if is_https { 443 } else { 80 };
                let address = resolve(authority, port).map_err(|why| wrong(&why))?;
                (PeerAddr::Inet(address), authority.to_owned(), path)
            }
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let pieces = pieces(&path).map_err(|why| wrong(&why))?;
        Ok(Target { text: text.to_owned(), peer, host, is_https, pieces })
    }
}

/// Resolves `host`, `host:port` or `[v6]:port`, with this default for the port; returns the first address if the name has several.
fn resolve(authority: &str, port: u16) -> Result<SocketAddr, String> {
    if authority.is_empty() {
        return Err("it has no host".to_owned());
    }
    if authority.contains('@') {
        return Err("a user in a URL is not supported: set the header with --header".to_owned());
    }
    let after_bracket = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    let has_port = authority[after_bracket..].contains(':');
    let with_port = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
    let mut found =
        with_port.to_socket_addrs().map_err(|error| format!("the host was not found ({error})"))?;
    found.next().ok_or_else(|| "the host has no address".to_owned())
}

/// Splits a path into literal pieces and numbers.
fn pieces(path: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = path;
    while let Some(open) = rest.find('{') {
        let (literal, behind) = rest.split_at(open);
        let Some(close) = behind.find('}') else { return Err("a { without its }".to_owned()) };
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal.into()));
        }
        pieces.push(number(&behind[1..close])?);
        rest = &behind[close + 1..];
    }
    if rest.contains('}') {
        return Err("a } without its {".to_owned());
    }
    if !rest.is_empty() {
        pieces.push(Piece::Literal(rest.into()));
    }
    Ok(pieces)
}

/// Parses the range between braces. `..` is tried before `-`, because only a counting range contains it.
fn number(text: &str) -> Result<Piece, String> {
    let wrong = || format!("{{{text}}} is neither {{FIRST-LAST}} (random) nor {{FIRST..LAST}} (counting)");
    let (order, bounds) = match text.split_once("..") {
        Some(bounds) => (Order::Counting, bounds),
        None => (Order::Random, text.split_once('-').ok_or_else(wrong)?),
    };
    let parse = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
    };
    let (first, last) = (parse(bounds.0).ok_or_else(wrong)?, parse(bounds.1).ok_or_else(wrong)?);
    if last < first || last - first == u64::MAX {
        return Err(format!("{{{text}}}: the last number is below the first, or there are too many"));
    }
    let width = if bounds.0.len() > 1 && bounds.0.starts_with('0') { bounds.0.len() } else { 0 };
    Ok(Piece::Number { first, count: last - first + 1, width, order })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_its_parts() {
        for (text, peer, host, path) in [
            ("http://127.0.0.1", "127.0.0.1:80", "127.0.0.1", "/"),
            ("http://127.0.0.1:8080/a?b#c", "127.0.0.1:8080", "127.0.0.1:8080", "/a?b"),
            ("http://127.0.0.1:8080?b", "127.0.0.1:8080", "127.0.0.1:8080", "/?b"),
            ("http://[::1]/x", "[::1]:80", "[::1]", "/x"),
            ("http://[::1]:81/x", "[::1]:81", "[::1]:81", "/x"),
            ("https://127.0.0.1/x", "127.0.0.1:443", "127.0.0.1", "/x"),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!(target.peer, PeerAddr::Inet(peer.parse().unwrap()), "{text}");
            assert_eq!(target.host, host, "{text}");
            assert_eq!(target.pieces, [Piece::Literal(path.into())], "{text}");
        }
        let unix = Target::parse("http://unix:/run/x.sock:/y").unwrap();
        assert_eq!(unix.peer, PeerAddr::Unix("/run/x.sock".into()));
        assert_eq!(unix.pieces, [Piece::Literal("/y".into())]);
    }

    #[test]
    fn patterns_contain_numbers() {
        let pieces = pieces("/d{00..09}/f{0-24999}.bin").unwrap();
        let wanted = [
            Piece::Literal("/d".into()),
            Piece::Number { first: 0, count: 10, width: 2, order: Order::Counting },
            Piece::Literal("/f".into()),
            Piece::Number { first: 0, count: 25_000, width: 0, order: Order::Random },
            Piece::Literal(".bin".into()),
        ];
        assert_eq!(pieces, wanted);
    }

    #[test]
    fn wrong_urls_are_reported_with_the_reason() {
        for (text, part) in [
            ("127.0.0.1/x", "http://"),
            ("ftp://127.0.0.1/", "only http"),
            ("http:///x", "no host"),
            ("http://127.0.0.1:port/", "port"),
            ("http://u@127.0.0.1/", "--header"),
            ("http://127.0.0.1/a b", "%20"),
            ("http://127.0.0.1/{", "without its }"),
            ("http://127.0.0.1/}", "without its {"),
            ("http://127.0.0.1/{a-b}", "neither"),
            ("http://127.0.0.1/{5}", "neither"),
            ("http://127.0.0.1/{5-}", "neither"),
            ("http://127.0.0.1/{5-4}", "below the first"),
            ("http://127.0.0.1/{0-18446744073709551615}", "too many"),
        ] {
            let failure = Target::parse(text).expect_err(text).to_string();
            assert!(failure.contains(part), "{text}: {failure}");
        }
    }
}
