//! [`ResponseFraming`]: the end of a response body (RFC 9112 section 6.3), and the fields allowed as trailers.

use crate::fields::{HeaderId, Method};
use crate::response::parse::ParsedResponse;

/// Determines the end of a response body. Contradictory fields were refused when the head was parsed
/// ([`crate::response::parse::ResponseError`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body, regardless of the fields: interim responses, 204, 304, the response to HEAD. The bytes after a 101, or after a 2xx
    /// to CONNECT, are another protocol, which the caller handles.
    None,
    /// Exactly this many bytes; the response is truncated if fewer arrive.
    Length(u64),
    /// Chunks up to the last chunk; the response is truncated without it.
    Chunked,
    /// The end of the connection ends the body. A truncation cannot be detected.
    UntilClose,
}

impl ResponseFraming {
    /// Determines the framing of the body after a complete head. `method` is the request method as sent to the upstream: a HEAD
    /// that was converted to GET counts as GET.
    ///
    /// `Transfer-Encoding` in a response of HTTP/1.0 is obeyed, as in nginx. RFC 9112 section 6.1 requires closing the connection
    /// afterwards; [`crate::connection::response_keeps_alive`] returns false for it.
    #[must_use]
    pub fn of(method: Method, head: &ParsedResponse) -> Self {
        let status = head.status();
        let tunnels = method == Method::Connect && matches!(status.code(), 200..=299);
        if method == Method::Head || status.is_bodyless() || tunnels {
            return Self::None;
        }
        match head.content_length() {
            _ if head.is_chunked() => Self::Chunked,
            Some(length) => Self::Length(length),
            None => Self::UntilClose,
        }
    }

    /// Whether the response has a non-empty body.
    #[must_use]
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }

    /// Whether the end of the body can be distinguished from a broken connection.
    #[must_use]
    pub fn is_delimited(self) -> bool {
        self != Self::UntilClose
    }
}

/// Whether a field is allowed in a trailer section (RFC 9110 section 6.5.1). A proxy drops trailer fields for framing, routing,
/// request modifiers, response control, authentication and content format.
#[must_use]
pub fn may_be_trailer(id: HeaderId) -> bool {
    use HeaderId as Id;
    !matches!(
        id,
        // Framing and routing.
        Id::TransferEncoding | Id::ContentLength | Id::Host | Id::Connection | Id::ProxyConnection
            | Id::KeepAlive | Id::Te | Id::Trailer | Id::Upgrade
            // Modifiers of requests, and control data of responses.
            | Id::CacheControl | Id::CdnCacheControl | Id::Expect | Id::Pragma | Id::Range | Id::IfRange
            | Id::IfMatch | Id::IfNoneMatch | Id::IfModifiedSince | Id::IfUnmodifiedSince | Id::Age | Id::Expires
            | Id::Date | Id::Location | Id::RetryAfter | Id::Vary
            // Authentication and state.
            | Id::Authorization | Id::ProxyAuthorization | Id::WwwAuthenticate | Id::ProxyAuthenticate
            | Id::ProxyAuthenticationInfo | Id::Cookie | Id::SetCookie
            // Format of the content.
            | Id::ContentEncoding | Id::ContentType | Id::ContentRange
            // The fields that nginx uses.
            | Id::XAccelExpires | Id::XAccelRedirect | Id::XAccelBuffering | Id::XAccelLimitRate
            | Id::XAccelCharset
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::parse::{Limits, parse};

    fn framing(method: Method, status: &str, fields: &str) -> ResponseFraming {
        let text = format!("HTTP/{status}\r\n{fields}\r\n");
        let mut head = ParsedResponse::new();
        parse(&mut head, text.as_bytes(), &Limits::default()).expect(&text);
        ResponseFraming::of(method, &head)
    }

    #[test]
    fn framing_is_determined_by_fields() {
        for (status, fields, wanted) in [
            ("1.1 200 OK", "", ResponseFraming::UntilClose),
            ("1.1 200 OK", "Content-Length: 0\r\n", ResponseFraming::Length(0)),
            ("1.1 200 OK", "Content-Length: 12\r\n", ResponseFraming::Length(12)),
            ("1.1 200 OK", "Transfer-Encoding: chunked\r\n", ResponseFraming::Chunked),
            ("1.1 200 OK", "transfer-encoding: CHUNKED\r\n", ResponseFraming::Chunked),
            ("1.0 200 OK", "Transfer-Encoding: chunked\r\n", ResponseFraming::Chunked),
            ("1.0 200 OK", "", ResponseFraming::UntilClose),
            ("1.1 206 Partial Content", "Content-Length: 5\r\n", ResponseFraming::Length(5)),
            ("1.1 404 Not Found", "Content-Length: 5\r\n", ResponseFraming::Length(5)),
            ("1.1 205 Reset Content", "Content-Length: 5\r\n", ResponseFraming::Length(5)),
        ] {
            for method in [Method::Get, Method::Post, Method::Other] {
                assert_eq!(framing(method, status, fields), wanted, "{method:?} {status} {fields}");
            }
        }
    }

    #[test]
    fn responses_of_some_statuses_and_methods_have_no_body() {
        for fields in ["", "Content-Length: 12\r\n", "Transfer-Encoding: chunked\r\n"] {
            for status in ["100", "101", "103", "199", "204", "304"] {
                let found = framing(Method::Get, &format!("1.1 {status} x"), fields);
                assert_eq!(found, ResponseFraming::None, "{status} {fields}");
            }
            assert_eq!(framing(Method::Head, "1.1 200 OK", fields), ResponseFraming::None, "HEAD {fields}");
            assert_eq!(
                framing(Method::Connect, "1.1 200 OK", fields),
                ResponseFraming::None,
                "CONNECT {fields}"
            );
        }
        let refused = framing(Method::Connect, "1.1 403 Forbidden", "Content-Length: 3\r\n");
        assert_eq!(refused, ResponseFraming::Length(3));
    }

    #[test]
    fn body_presence_and_delimitation_follow_the_framing() {
        for (framing, has_body, delimited) in [
            (ResponseFraming::None, false, true),
            (ResponseFraming::Length(0), false, true),
            (ResponseFraming::Length(1), true, true),
            (ResponseFraming::Chunked, true, true),
            (ResponseFraming::UntilClose, true, false),
        ] {
            assert_eq!((framing.has_body(), framing.is_delimited()), (has_body, delimited), "{framing:?}");
        }
    }

    #[test]
    fn trailers_cannot_reframe_a_message() {
        for name in ["Content-Length", "Transfer-Encoding", "Set-Cookie", "Content-Range", "X-Accel-Redirect"]
        {
            assert!(!may_be_trailer(HeaderId::of(name.as_bytes())), "{name}");
        }
        for name in ["Server-Timing", "X-Checksum", "ETag", "Cache-Status"] {
            assert!(may_be_trailer(HeaderId::of(name.as_bytes())), "{name}");
        }
    }
}
