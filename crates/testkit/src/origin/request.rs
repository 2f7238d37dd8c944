//! A request as recorded by the origin: the received bytes, and the views that a handler needs.
//!
//! [`OriginRequest`] is parsed strictly, as `response` parses responses: a proxy that sends a request with two lengths
//! or a broken chunk is at fault, and the test must detect it.

/// A request as the origin received it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginRequest {
    /// The method.
    pub method: String,
    /// The request target as sent.
    pub target: String,
    /// `HTTP/1.1`, or the received text instead of it.
    pub version: String,
    /// The field lines without their CRLF, unchanged and in the received order.
    pub lines: Vec<Vec<u8>>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Sizes of the received chunks; empty if the body was not chunked.
    pub chunks: Vec<u64>,
    /// The lines of the trailer section.
    pub trailers: Vec<Vec<u8>>,
    /// Number of the connection, counted from 1 in the order of accepting.
    pub connection: u64,
    /// Number of the request on that connection, counted from 1.
    pub number: u64,
    /// Number of the request on the origin, counted from 1.
    pub sequence: u64,
}

/// How the body of a request is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    Counted(u64),
    Chunked,
}

impl OriginRequest {
    /// Parses the request line and the field lines: everything up to the empty line, without it.
    pub(crate) fn parse(head: &[u8]) -> Result<OriginRequest, String> {
        let malformed = |what: &str| format!("{what} in {:?}", String::from_utf8_lossy(head));
        let mut lines = Vec::new();
        for line in head.split_inclusive(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r\n").ok_or_else(|| malformed("a line without CRLF"))?;
            lines.push(line.to_vec());
        }
        let first = if lines.is_empty() { Vec::new() } else { lines.remove(0) };
        let first = String::from_utf8_lossy(&first).into_owned();
        let words: Vec<&str> = first.split(' ').collect();
        let [method, target, version] = words[..] else { return Err(malformed("no request line")) };
        if lines.iter().any(|line| !line.contains(&b':') || line.starts_with(b" ")) {
            return Err(malformed("a field without a colon"));
        }
        let (method, target, version) = (method.to_owned(), target.to_owned(), version.to_owned());
        Ok(OriginRequest { method, target, version, lines, ..OriginRequest::default() })
    }

    /// Returns the value of the first field with this name, compared without case.
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers(name).next()
    }

    /// Returns the values of all fields with this name, in order.
    pub fn headers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = String> + 'a {
        self.lines.iter().filter_map(move |line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            let (found, value) = (&line[..colon], &line[colon + 1..]);
            let value = String::from_utf8_lossy(value).trim_matches([' ', '\t']).to_owned();
            found.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
        })
    }

    /// Returns the path of the target: the part before a question mark.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or("")
    }

    /// Whether a list field contains this member: `close` in `Connection`, for instance.
    pub fn lists(&self, name: &str, member: &str) -> bool {
        let has = |value: String| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(member));
        self.headers(name).any(has)
    }

    /// Whether the sender wants to send another request on the connection (RFC 9112 section 9.3).
    pub(crate) fn keeps_alive(&self) -> bool {
        match self.version.as_str() {
            "HTTP/1.1" => !self.lists("connection", "close"),
            _ => self.lists("connection", "keep-alive"),
        }
    }

    /// Returns how the body is delimited (RFC 9112 section 6.3); an ambiguity that would permit request smuggling is an
    /// error.
    pub(crate) fn body_framing(&self) -> Result<RequestBody, String> {
        let lengths: Vec<String> = self.headers("content-length").collect();
        let codings: Vec<String> = self.headers("transfer-encoding").collect();
        match (&lengths[..], &codings[..]) {
            ([], []) => Ok(RequestBody::Counted(0)),
            ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().map(RequestBody::Counted).map_err(|_| format!("length {length:?}"))
            }
            ([], [coding]) if coding == "chunked" => Ok(RequestBody::Chunked),
            _ => Err(format!("ambiguous framing: lengths {lengths:?}, codings {codings:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_stored_unchanged() {
        let head =
            b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nx-UP:  two\t\r\nX-up: \xff\r\nConnection: a, Close\r\n";
        let request = OriginRequest::parse(head).expect("it is well-formed");
        assert_eq!((request.method.as_str(), request.target.as_str()), ("GET", "/a?b=c"));
        assert_eq!((request.path(), request.version.as_str()), ("/a", "HTTP/1.1"));
        assert_eq!(request.lines[1], b"x-UP:  two\t");
        assert_eq!(request.lines[2], b"X-up: \xff");
        assert_eq!(request.headers("x-up").collect::<Vec<_>>(), ["two", "\u{fffd}"]);
        assert!(!request.keeps_alive());
    }

    #[test]
    fn ambiguous_requests_are_errors() {
        let framing = |fields: &str| {
            OriginRequest::parse(format!("POST / HTTP/1.1\r\n{fields}").as_bytes())?.body_framing()
        };
        assert_eq!(framing(""), Ok(RequestBody::Counted(0)));
        assert_eq!(framing("Content-Length: 12\r\n"), Ok(RequestBody::Counted(12)));
        assert_eq!(framing("Transfer-Encoding: chunked\r\n"), Ok(RequestBody::Chunked));
        for fields in [
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: +1\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Host: x\n",
            "no colon\r\n",
        ] {
            assert!(framing(fields).is_err(), "{fields}");
        }
    }
}
