//! Status codes and reason phrases as nginx prints them (RFC 9110 section 15).
//!
//! Contains the number and its reason phrase; the pages are in [`crate::error_page`].

/// A response status. nginx's own codes 444 and 494 to 499 exist inside the server only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatusCode(u16);

impl StatusCode {
    /// 100 Continue.
    pub const CONTINUE: Self = Self(100);
    /// 101 Switching Protocols.
    pub const SWITCHING_PROTOCOLS: Self = Self(101);
    /// 200 OK.
    pub const OK: Self = Self(200);
    /// 201 Created.
    pub const CREATED: Self = Self(201);
    /// 204 No Content.
    pub const NO_CONTENT: Self = Self(204);
    /// 206 Partial Content.
    pub const PARTIAL_CONTENT: Self = Self(206);
    /// 301 Moved Permanently.
    pub const MOVED_PERMANENTLY: Self = Self(301);
    /// 302 Moved Temporarily (nginx's reason phrase for Found).
    pub const FOUND: Self = Self(302);
    /// 303 See Other.
    pub const SEE_OTHER: Self = Self(303);
    /// 304 Not Modified.
    pub const NOT_MODIFIED: Self = Self(304);
    /// 307 Temporary Redirect.
    pub const TEMPORARY_REDIRECT: Self = Self(307);
    /// 308 Permanent Redirect.
    pub const PERMANENT_REDIRECT: Self = Self(308);
    /// 400 Bad Request.
    pub const BAD_REQUEST: Self = Self(400);
    /// 401 Unauthorized.
    pub const UNAUTHORIZED: Self = Self(401);
    /// 403 Forbidden.
    pub const FORBIDDEN: Self = Self(403);
    /// 404 Not Found.
    pub const NOT_FOUND: Self = Self(404);
    /// 405 Not Allowed.
    pub const NOT_ALLOWED: Self = Self(405);
    /// 408 Request Time-out.
    pub const REQUEST_TIMEOUT: Self = Self(408);
    /// 409 Conflict.
    pub const CONFLICT: Self = Self(409);
    /// 412 Precondition Failed.
    pub const PRECONDITION_FAILED: Self = Self(412);
    /// 413 Request Entity Too Large.
    pub const CONTENT_TOO_LARGE: Self = Self(413);
    /// 414 Request-URI Too Large.
    pub const URI_TOO_LONG: Self = Self(414);
    /// 416 Requested Range Not Satisfiable.
    pub const RANGE_NOT_SATISFIABLE: Self = Self(416);
    /// 421 Misdirected Request.
    pub const MISDIRECTED_REQUEST: Self = Self(421);
    /// 429 Too Many Requests.
    pub const TOO_MANY_REQUESTS: Self = Self(429);
    /// 431 Request Header Fields Too Large (RFC 6585 section 5).
    pub const HEADER_FIELDS_TOO_LARGE: Self = Self(431);
    /// nginx's 444: close the connection without a response.
    pub const CLOSE: Self = Self(444);
    /// nginx's 494: the request head is too large; `error_page 494` handles it, the client receives 431.
    pub const REQUEST_HEADER_TOO_LARGE: Self = Self(494);
    /// nginx's 495: the verification of the client certificate failed; the client receives 400.
    pub const CERT_ERROR: Self = Self(495);
    /// nginx's 496: no client certificate was sent; the client receives 400.
    pub const NO_CERT: Self = Self(496);
    /// nginx's 497: plain HTTP on a TLS port; the client receives 400.
    pub const TO_HTTPS: Self = Self(497);
    /// nginx's 499: the client closed the connection first; it appears only in logs.
    pub const CLIENT_CLOSED_REQUEST: Self = Self(499);
    /// 500 Internal Server Error.
    pub const INTERNAL_SERVER_ERROR: Self = Self(500);
    /// 501 Not Implemented.
    pub const NOT_IMPLEMENTED: Self = Self(501);
    /// 502 Bad Gateway.
    pub const BAD_GATEWAY: Self = Self(502);
    /// 503 Service Temporarily Unavailable.
    pub const SERVICE_UNAVAILABLE: Self = Self(503);
    /// 504 Gateway Time-out.
    pub const GATEWAY_TIMEOUT: Self = Self(504);
    /// 505 HTTP Version Not Supported.
    pub const VERSION_NOT_SUPPORTED: Self = Self(505);
    /// 507 Insufficient Storage.
    pub const INSUFFICIENT_STORAGE: Self = Self(507);

    /// Creates a status from `code` if it has at most three digits; `return` accepts 0 to 999.
    #[must_use]
    pub fn new(code: u16) -> Option<Self> {
        (code <= 999).then_some(Self(code))
    }

    /// Returns the number.
    #[must_use]
    pub fn code(self) -> u16 {
        self.0
    }

    /// Returns the three digits of the number.
    #[must_use]
    pub fn digits(self) -> [u8; 3] {
        let code = self.0;
        [code / 100, code / 10 % 10, code % 10].map(|digit| b'0' + digit as u8)
    }

    /// Returns the status sent to the client: nginx's internal codes are translated, others are unchanged.
    #[must_use]
    pub fn on_wire(self) -> Self {
        match self.0 {
            494 => Self::HEADER_FIELDS_TOO_LARGE,
            495..=497 => Self::BAD_REQUEST,
            _ => self,
        }
    }

    /// Returns nginx's reason phrase, or the empty string where nginx prints the number alone.
    #[must_use]
    pub fn reason(self) -> &'static str {
        REASONS.binary_search_by_key(&self.0, |entry| entry.0).map_or("", |index| REASONS[index].1)
    }

    /// Whether a response with this status never has a body (RFC 9110 section 6.4.1).
    #[must_use]
    pub fn is_bodyless(self) -> bool {
        matches!(self.0, 100..=199 | 204 | 304)
    }

    /// Whether nginx disables keep-alive when it returns this status from an error path: the request may not have been read
    /// completely, so the next bytes may not be a request.
    #[must_use]
    pub fn closes_connection(self) -> bool {
        matches!(self.0, 400 | 413 | 414 | 494..=497 | 500 | 501)
    }

    /// Appends `HTTP/1.1 404 Not Found` and CRLF. Without a reason phrase the space after the number remains, as RFC 9112 section 4
    /// requires.
    pub fn push_line(self, out: &mut Vec<u8>) {
        self.push_code(out);
        out.extend_from_slice(self.reason().as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Appends `HTTP/1.1 404` and a space.
    pub(crate) fn push_code(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&self.digits());
        out.push(b' ');
    }
}

/// nginx's reason phrases, sorted by code.
const REASONS: &[(u16, &str)] = &[
    (100, "Continue"),
    (101, "Switching Protocols"),
    (102, "Processing"),
    (103, "Early Hints"),
    (200, "OK"),
    (201, "Created"),
    (202, "Accepted"),
    (204, "No Content"),
    (206, "Partial Content"),
    (301, "Moved Permanently"),
    (302, "Moved Temporarily"),
    (303, "See Other"),
    (304, "Not Modified"),
    (307, "Temporary Redirect"),
    (308, "Permanent Redirect"),
    (400, "Bad Request"),
    (401, "Unauthorized"),
    (402, "Payment Required"),
    (403, "Forbidden"),
    (404, "Not Found"),
    (405, "Not Allowed"),
    (406, "Not Acceptable"),
    (407, "Proxy Authentication Required"),
    (408, "Request Time-out"),
    (409, "Conflict"),
    (410, "Gone"),
    (411, "Length Required"),
    (412, "Precondition Failed"),
    (413, "Request Entity Too Large"),
    (414, "Request-URI Too Large"),
    (415, "Unsupported Media Type"),
    (416, "Requested Range Not Satisfiable"),
    (421, "Misdirected Request"),
    (429, "Too Many Requests"),
    (431, "Request Header Fields Too Large"),
    (500, "Internal Server Error"),
    (501, "Not Implemented"),
    (502, "Bad Gateway"),
    (503, "Service Temporarily Unavailable"),
    (504, "Gateway Time-out"),
    (505, "HTTP Version Not Supported"),
    (507, "Insufficient Storage"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_sorted_for_binary_search() {
        assert!(REASONS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(StatusCode::FOUND.reason(), "Moved Temporarily");
        assert_eq!(StatusCode(418).reason(), "");
    }

    #[test]
    fn status_lines_match_nginx() {
        for (code, line) in [
            (200, "HTTP/1.1 200 OK\r\n"),
            (404, "HTTP/1.1 404 Not Found\r\n"),
            (407, "HTTP/1.1 407 Proxy Authentication Required\r\n"),
            (418, "HTTP/1.1 418 \r\n"),
            (7, "HTTP/1.1 007 \r\n"),
        ] {
            let mut out = Vec::new();
            StatusCode::new(code).expect("three digits").push_line(&mut out);
            assert_eq!(out, line.as_bytes());
        }
        assert_eq!(StatusCode::new(1000), None);
    }

    #[test]
    fn internal_codes_are_never_sent() {
        for code in 494..=497 {
            assert!(StatusCode(code).on_wire().code() < 494, "{code}");
        }
        assert_eq!(StatusCode::OK.on_wire(), StatusCode::OK);
    }

    #[test]
    fn bodyless_statuses_are_recognised() {
        let bodyless: Vec<u16> = (100..600).filter(|&code| StatusCode(code).is_bodyless()).collect();
        assert_eq!(bodyless, (100..200).chain([204, 304]).collect::<Vec<u16>>());
    }
}
