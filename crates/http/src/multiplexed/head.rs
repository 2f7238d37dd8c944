//! Converts decoded fields to request heads, by the rules of RFC 9113 sections 8.2 and 8.3, which are those of RFC 9114 sections 4.2
//! and 4.3.
//!
//! Main type: [`HeadReader`]. It receives the fields one by one as they are decoded, and fills the same [`Head`] as HTTP/1. An
//! error is stored until the end, because the remaining fields must still be decoded.

use std::hash::{BuildHasher, RandomState};

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::Span;
use crate::bytes::{find_any_control, is_token};
use crate::fields::{HeaderId, Method, Version};
use crate::request::{ChoosePolicy, Composer, Head, ParseError, Policy};

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// The request violates HTTP/2 and HTTP/3, which is a stream error (RFC 9113 section 8.1.1, RFC 9114 section 4.1.2).
    Malformed(Malformed),
    /// The request is invalid in any version.
    Refused(ParseError),
}

/// How a request violates HTTP/2 and HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// An unknown or repeated pseudo-header field, or one after other fields.
    Pseudo,
    /// A pseudo-header field is missing, or is present but not allowed.
    Missing,
    /// The path is empty or does not begin with a slash.
    Path,
    /// The scheme is invalid.
    Scheme,
    /// The protocol of extended CONNECT is not a token (RFC 8441 section 4).
    Protocol,
    /// A name has an upper-case letter or an invalid byte.
    Name,
    /// A value has an invalid byte, or begins or ends with white space.
    Value,
    /// A connection-specific field.
    Connection,
    /// `Host` differs from `:authority`.
    Host,
}

impl Malformed {
    /// Returns the text for the log.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Malformed::Pseudo => "client sent invalid pseudo-header",
            Malformed::Missing => "client sent request without a pseudo-header that it needs",
            Malformed::Path => "client sent invalid \":path\" header",
            Malformed::Scheme => "client sent invalid \":scheme\" header",
            Malformed::Protocol => "client sent invalid \":protocol\" header",
            Malformed::Name => "client sent invalid header name",
            Malformed::Value => "client sent invalid header value",
            Malformed::Connection => "client sent connection-specific header",
            Malformed::Host => "client sent \"Host\" header that differs from \":authority\"",
        }
    }
}

impl HeadFault {
    /// Returns the status of the response.
    #[must_use]
    pub fn status(self) -> crate::StatusCode {
        match self {
            HeadFault::Malformed(_) => crate::StatusCode::BAD_REQUEST,
            HeadFault::Refused(error) => error.status(),
        }
    }

    /// Returns the text for the log.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            HeadFault::Malformed(malformed) => malformed.message(),
            HeadFault::Refused(error) => error.message(),
        }
    }
}

/// The pseudo-header fields and cookies of a request: memory that is reused for each request.
#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<u8>,
    method: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
    /// Whether `host` was received in addition to `:authority`.
    has_host: bool,
    /// Whether `cookie` was received: its value may be empty.
    has_cookie: bool,
    cookies: Vec<u8>,
}

impl Scratch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.cookies.clear();
        (self.method, self.scheme, self.authority, self.path) = (None, None, None, None);
        self.protocol = None;
        (self.has_host, self.has_cookie) = (false, false);
    }

    fn text(&self, span: Option<Span>) -> Option<&[u8]> {
        span.map(|span| span.of(&self.bytes))
    }
}

/// Converter of the fields of one request to a head.
pub struct HeadReader<'a> {
    scratch: &'a mut Scratch,
    state: State<'a>,
    policy: &'a Policy,
    choose: Option<ChoosePolicy<'a>>,
    version: Version,
    /// Number of bytes of all fields.
    size: usize,
}

enum State<'a> {
    /// Pseudo-header fields may follow.
    Pseudo(&'a mut Head, &'a mut Vec<u8>),
    /// Only other fields may follow.
    Fields(Composer<'a>),
    Failed(HeadFault),
}

impl<'a> HeadReader<'a> {
    /// Begins a head. `head` must be new or cleared; `buf`, which its spans will refer to, must be empty.
    pub fn new(
        scratch: &'a mut Scratch,
        head: &'a mut Head,
        buf: &'a mut Vec<u8>,
        policy: &'a Policy,
    ) -> HeadReader<'a> {
        scratch.clear();
        let version = Version::Http2;
        HeadReader { scratch, state: State::Pseudo(head, buf), policy, choose: None, version, size: 0 }
    }

    /// Sets the function that returns the policy for the authority of the request.
    #[must_use]
    pub fn choosing(self, choose: ChoosePolicy<'a>) -> HeadReader<'a> {
        HeadReader { choose: Some(choose), ..self }
    }

    /// Sets the version of the request, which is HTTP/2 otherwise.
    #[must_use]
    pub fn version(self, version: Version) -> HeadReader<'a> {
        HeadReader { version, ..self }
    }

    /// Adds a field.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size += name.len() + value.len();
        let taken = match &self.state {
            State::Failed(_) => return,
            _ if self.size > self.policy.head_max as usize => {
                Err(HeadFault::Refused(ParseError::HeadTooLong))
            }
            State::Pseudo(..) if name.first() == Some(&b':') => self.pseudo(name, value),
            State::Pseudo(..) => self.begin().and_then(|()| self.regular(name, value)),
            State::Fields(_) => self.regular(name, value),
        };
        if let Err(fault) = taken {
            self.state = State::Failed(fault);
        }
    }

    /// Adds a pseudo-header field (RFC 9113 sections 8.3 and 8.3.1).
    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadFault> {
        // The bytes of all values are checked together, in `begin`.
        if has_blank_end(value) {
            return Err(HeadFault::Malformed(Malformed::Value));
        }
        let scratch = &mut *self.scratch;
        let place = match name {
            b":method" => &mut scratch.method,
            b":scheme" => &mut scratch.scheme,
            b":authority" => &mut scratch.authority,
            b":path" => &mut scratch.path,
            b":protocol" => &mut scratch.protocol,
            _ => return Err(HeadFault::Malformed(Malformed::Pseudo)),
        };
        if place.is_some() {
            return Err(HeadFault::Malformed(Malformed::Pseudo));
        }
        let start = scratch.bytes.len();
        scratch.bytes.extend_from_slice(value);
        *place = Some(Span::new(start, scratch.bytes.len()));
        Ok(())
    }

    /// Ends the pseudo-header fields.
    fn begin(&mut self) -> Result<(), HeadFault> {
        let failed = State::Failed(HeadFault::Malformed(Malformed::Pseudo));
        let State::Pseudo(head, buf) = std::mem::replace(&mut self.state, failed) else { return Ok(()) };
        let scratch = &*self.scratch;
        let malformed = |malformed| Err(HeadFault::Malformed(malformed));
        if has_line_end(&scratch.bytes) {
            return malformed(Malformed::Value);
        }
        let Some(method) = scratch.text(scratch.method) else { return malformed(Malformed::Missing) };
        let (path, scheme) = (scratch.text(scratch.path), scratch.text(scratch.scheme));
        let protocol = scratch.text(scratch.protocol);
        let is_connect = match (Method::of(method) == Method::Connect, protocol) {
            // RFC 8441 section 4: a stream for another protocol is converted to an HTTP/1 upgrade request.
            (true, Some(protocol)) if !is_protocol(protocol) => return malformed(Malformed::Protocol),
            (true, Some(_)) => false,
            (false, Some(_)) => return malformed(Malformed::Pseudo),
            (is_connect, None) => is_connect,
        };
        let method = if protocol.is_some() { b"GET" } else { method };
        let target = match (is_connect, path, scheme) {
            // RFC 9113 section 8.5.
            (true, None, None) => scratch.text(scratch.authority).unwrap_or_default(),
            (true, ..) => return malformed(Malformed::Missing),
            (false, Some(_), Some(scheme)) if !is_scheme(scheme) => return malformed(Malformed::Scheme),
            (false, Some(path), Some(_)) => path,
            (false, ..) => return malformed(Malformed::Missing),
        };
        let is_path =
            target.first() == Some(&b'/') || target == b"*" && Method::of(method) == Method::Options;
        if !is_connect && !is_path {
            return malformed(Malformed::Path);
        }
        let line = (method, target);
        let composer =
            Composer::begin(head, buf, self.policy, self.version, line).map_err(HeadFault::Refused)?;
        let mut composer = composer.choosing(self.choose);
        if let Some(authority) = scratch.text(scratch.authority) {
            composer.field(b"host", authority).map_err(HeadFault::Refused)?;
        }
        if let Some(protocol) = protocol {
            let key = websocket_key();
            let key: &[u8] = if protocol.eq_ignore_ascii_case(b"websocket") { key.as_bytes() } else { b"" };
            let fields =
                [(&b"connection"[..], &b"upgrade"[..]), (b"upgrade", protocol), (b"sec-websocket-key", key)];
            for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
                composer.field(name, value).map_err(HeadFault::Refused)?;
            }
        }
        self.state = State::Fields(composer);
        Ok(())
    }

    /// Adds another field (RFC 9113 sections 8.2.1 to 8.2.3).
    fn regular(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadFault> {
        let State::Fields(composer) = &mut self.state else { return Ok(()) };
        let malformed = |malformed| Err(HeadFault::Malformed(malformed));
        match name {
            _ if name.first() == Some(&b':') => return malformed(Malformed::Pseudo),
            _ if !is_name(name) => return malformed(Malformed::Name),
            _ if has_blank_end(value) => return malformed(Malformed::Value),
            _ if is_connection_field(name) => return malformed(Malformed::Connection),
            b"te" if !value.eq_ignore_ascii_case(b"trailers") => return malformed(Malformed::Connection),
            // `Host` is dropped if it equals the authority. A repeated `Host` is refused, as without an authority.
            b"host" if self.scratch.authority.is_some() => {
                if std::mem::replace(&mut self.scratch.has_host, true) {
                    return Err(HeadFault::Refused(ParseError::Duplicate(HeaderId::Host)));
                }
                let (authority, scheme) = (self.scratch.authority, self.scratch.scheme);
                let is_same = is_same_authority(
                    self.scratch.text(authority).unwrap_or_default(),
                    value,
                    self.scratch.text(scheme).unwrap_or_default(),
                );
                return if is_same { Ok(()) } else { malformed(Malformed::Host) };
            }
            // Several `cookie` fields are joined (RFC 9113 section 8.2.3).
            b"cookie" => {
                if !is_value(value) {
                    return malformed(Malformed::Value);
                }
                let cookies = &mut self.scratch.cookies;
                if std::mem::replace(&mut self.scratch.has_cookie, true) {
                    cookies.extend_from_slice(b"; ");
                }
                cookies.extend_from_slice(value);
                return Ok(());
            }
            _ => {}
        }
        composer.field(name, value).map_err(|error| match error {
            ParseError::InvalidByteInValue if !is_value(value) => HeadFault::Malformed(Malformed::Value),
            error => HeadFault::Refused(error),
        })
    }

    /// Ends the head; `ends` means that the request has no body.
    ///
    /// # Errors
    /// The reason why the request is refused.
    pub fn finish(mut self, ends: bool) -> Result<(), HeadFault> {
        // The following bytes belong to the other protocol.
        let ends = ends || self.scratch.protocol.is_some();
        if let State::Pseudo(..) = self.state {
            self.begin()?;
        }
        let mut composer = match self.state {
            State::Fields(composer) => composer,
            State::Failed(fault) => return Err(fault),
            State::Pseudo(..) => return Err(HeadFault::Malformed(Malformed::Missing)),
        };
        if self.scratch.has_cookie {
            composer.field(b"cookie", &self.scratch.cookies).map_err(HeadFault::Refused)?;
        }
        composer.finish(!ends).map_err(HeadFault::Refused)
    }
}

/// Returns a value for `Sec-WebSocket-Key` (RFC 6455 section 4.1): sixteen unpredictable bytes, in base64. HTTP/1 servers require
/// the field; HTTP/2 clients do not send it (RFC 8441 section 5).
fn websocket_key() -> String {
    let half = |number: u64| RandomState::new().hash_one(number).to_be_bytes();
    BASE64_STANDARD.encode([half(0), half(1)].concat())
}

/// The bytes of a name (RFC 9113 section 8.2.1): no white space, control byte, upper-case letter, byte above ASCII, or colon.
const NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x21u8;
    while byte < 0x7f {
        table[byte as usize] = !byte.is_ascii_uppercase() && byte != b':';
        byte += 1;
    }
    table
};

/// Whether a name is valid.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().fold(true, |is_good, &byte| is_good & NAME[usize::from(byte)])
}

/// Whether a value is valid (RFC 9113 section 8.2.1): no NUL, CR or LF, and no white space at its ends.
fn is_value(value: &[u8]) -> bool {
    !has_blank_end(value) && !has_line_end(value)
}

/// Whether a value has a NUL, CR or LF.
fn has_line_end(value: &[u8]) -> bool {
    // Most values have no control byte at all.
    find_any_control(value, 0) != value.len() && memchr::memchr3(0, b'\r', b'\n', value).is_some()
}

fn has_blank_end(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_blank(value.first()) || is_blank(value.last())
}

/// Whether a field is connection-specific (RFC 9113 section 8.2.2), which these messages must not contain. `te` in requests is
/// handled separately.
pub(super) fn is_connection_field(name: &[u8]) -> bool {
    matches!(name, b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade")
}

/// Whether two authorities are equal. The case of the host and the default port of the scheme are ignored (RFC 9113 section 8.3.1,
/// RFC 3986 section 6.2.3).
fn is_same_authority(one: &[u8], other: &[u8], scheme: &[u8]) -> bool {
    let port: &[u8] = match scheme {
        b"http" => b":80",
        b"https" => b":443",
        _ => b":",
    };
    let host = |text: &'_ [u8]| -> usize {
        let end = text.strip_suffix(port).or_else(|| text.strip_suffix(b":")).unwrap_or(text);
        end.len()
    };
    one == other || one[..host(one)].eq_ignore_ascii_case(&other[..host(other)])
}

/// Whether name and value of a field are valid.
#[must_use]
pub fn is_field(name: &[u8], value: &[u8]) -> bool {
    is_name(name) && is_value(value)
}

/// Whether a trailer field is valid. Connection-specific fields are invalid.
#[must_use]
pub fn is_trailer(name: &[u8], value: &[u8]) -> bool {
    is_field(name, value)
        && !is_connection_field(name)
        && (name != b"te" || value.eq_ignore_ascii_case(b"trailers"))
}

/// Whether a value of `:protocol` is also valid in `Upgrade` (RFC 9110 section 7.8): a token without a version.
fn is_protocol(protocol: &[u8]) -> bool {
    !protocol.is_empty() && protocol.iter().all(|&byte| is_token(byte))
}

/// Whether a scheme is valid (RFC 3986 section 3.1).
fn is_scheme(scheme: &[u8]) -> bool {
    let is_good = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    scheme.first().is_some_and(u8::is_ascii_alphabetic) && scheme.iter().all(is_good)
}
