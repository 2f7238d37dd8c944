//! The request target in its four forms (RFC 9112 section 3.2).

use super::ParseError;
use crate::Span;
use crate::fields::Method;

/// Form of the request target. The path and query are in `Head::path`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// `/path?query`
    #[default]
    Origin,
    /// `scheme://authority/path?query`; the path may be missing.
    Absolute {
        /// The scheme without its colon.
        scheme: Span,
        /// Host and port.
        authority: Span,
    },
    /// `*`, for OPTIONS only.
    Asterisk,
    /// `host:port`, for CONNECT only.
    Authority {
        /// Host and port.
        authority: Span,
    },
}

/// Classifies `text`, which is at offset `base` in the buffer; the second result is the span of path and query.
pub(super) fn classify(method: Method, text: &[u8], base: usize) -> Result<(Target, Span), ParseError> {
    let end = base + text.len();
    let none = Span::new(end, end);
    if method == Method::Connect {
        let authority_end = authority_end(text, 0);
        // CONNECT requires a port (RFC 9110 section 9.3.6); as in nginx the request line is invalid without it.
        let port = text.iter().rposition(|&byte| byte == b':').map(|colon| &text[colon + 1..]);
        let has_port = port.is_some_and(|port| !port.is_empty() && port.iter().all(u8::is_ascii_digit));
        if authority_end != text.len() || !has_port {
            return Err(ParseError::InvalidTarget);
        }
        return Ok((Target::Authority { authority: Span::new(base, end) }, none));
    }
    match text.first() {
        Some(b'/') => Ok((Target::Origin, Span::new(base, end))),
        Some(b'*') if text.len() == 1 && method == Method::Options => Ok((Target::Asterisk, none)),
        Some(first) if first.is_ascii_alphabetic() => absolute(text, base),
        _ => Err(ParseError::InvalidTarget),
    }
}

fn absolute(text: &[u8], base: usize) -> Result<(Target, Span), ParseError> {
    let is_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let scheme_len = text.iter().position(|byte| !is_scheme(byte)).ok_or(ParseError::InvalidTarget)?;
    if !text[scheme_len..].starts_with(b"://") {
        return Err(ParseError::InvalidTarget);
    }
    let start = scheme_len + 3;
    let path = authority_end(text, start);
    if !matches!(text.get(path), None | Some(b'/' | b'?')) {
        return Err(ParseError::InvalidTarget);
    }
    let target = Target::Absolute {
        scheme: Span::new(base, base + scheme_len),
        authority: Span::new(base + start, base + path),
    };
    Ok((target, Span::new(base + path, base + text.len())))
}

/// Returns the index after the host and port that start at `start`. As in nginx, only letters, digits, dots and hyphens (or an IP
/// literal) are accepted in a target, so user information is an error.
fn authority_end(text: &[u8], start: usize) -> usize {
    let host_end = match text.get(start) {
        Some(b'[') => text[start..].iter().position(|&byte| byte == b']').map_or(start, |at| start + at + 1),
        _ => span_while(text, start, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-')),
    };
    match text.get(host_end) {
        Some(b':') => span_while(text, host_end + 1, |byte| byte.is_ascii_digit()),
        _ => host_end,
    }
}

fn span_while(text: &[u8], start: usize, accept: impl Fn(u8) -> bool) -> usize {
    text[start..].iter().position(|&byte| !accept(byte)).map_or(text.len(), |at| start + at)
}
