//! nginx's short built-in pages for errors and redirects, with this server's name as signature.
//!
//! Pages are appended to a reused buffer. The caller decides whether to send a page, and which `error_page` replaces it.

use crate::StatusCode;
use crate::uri::{Escape, escape};

/// Title, heading and explanation of a page.
struct Page {
    status: u16,
    title: &'static str,
    /// Heading, if it differs from the title, and the line below it.
    detail: Option<(&'static str, &'static str)>,
}

/// Whether nginx has a page for `status`. A status without a page has an empty body.
#[must_use]
pub fn has_page(status: StatusCode) -> bool {
    find(status).is_some()
}

/// Appends the page for `status`. Returns false, and appends nothing, if no page exists. `signature` is the text of `server_tokens`
/// ([`crate::response::encode::signature`]). `padded` is for browsers that replace short pages
/// ([`crate::connection::Browser::needs_padding`], `msie_padding`); as in nginx it has an effect for statuses from 400 on.
pub fn push_page(status: StatusCode, signature: Option<&[u8]>, padded: bool, out: &mut Vec<u8>) -> bool {
    let Some(page) = find(status) else { return false };
    let (heading, detail) = page.detail.unwrap_or((page.title, ""));
    let mut push = |text: &str| out.extend_from_slice(text.as_bytes());
    push("<html>\r\n<head><title>");
    push(page.title);
    push("</title></head>\r\n<body>\r\n<center><h1>");
    push(heading);
    push("</h1></center>\r\n");
    if !detail.is_empty() {
        push("<center>");
        push(detail);
        push("</center>\r\n");
    }
    if let Some(signature) = signature {
        push("<hr><center>");
        crate::uri::escape_html(signature, out);
        out.extend_from_slice(b"</center>\r\n");
    }
    out.extend_from_slice(b"</body>\r\n</html>\r\n");
    if padded && status.code() >= 400 {
        for _ in 0..PADDING_LINES {
            out.extend_from_slice(PADDING_LINE.as_bytes());
        }
    }
    true
}

/// Appends the page that redirects old browsers (`msie_refresh`).
pub fn push_refresh(location: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=");
    escape(Escape::Refresh, location, out);
    out.extend_from_slice(b"\"></head><body></body></html>\r\n");
}

/// Number of padding lines. Browsers that replace short pages show pages of more than 512 bytes; six lines make any page that
/// long.
const PADDING_LINES: usize = 6;
const PADDING_LINE: &str = "<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n";

fn find(status: StatusCode) -> Option<&'static Page> {
    // nginx sends the page of 404 for 498 (cancelled).
    let code = if status.code() == 498 { 404 } else { status.code() };
    PAGES.binary_search_by_key(&code, |page| page.status).ok().map(|index| &PAGES[index])
}

const fn page(status: u16, title: &'static str) -> Page {
    Page { status, title, detail: None }
}

const fn detailed(status: u16, title: &'static str, heading: &'static str, text: &'static str) -> Page {
    Page { status, title, detail: Some((heading, text)) }
}

/// Pages with nginx's texts, sorted by status. 494 differs: nginx sends 400, this server 431.
const PAGES: &[Page] = &[
    page(301, "301 Moved Permanently"),
    page(302, "302 Found"),
    page(303, "303 See Other"),
    page(307, "307 Temporary Redirect"),
    page(308, "308 Permanent Redirect"),
    page(400, "400 Bad Request"),
    page(401, "401 Authorization Required"),
    page(402, "402 Payment Required"),
    page(403, "403 Forbidden"),
    page(404, "404 Not Found"),
    page(405, "405 Not Allowed"),
    page(406, "406 Not Acceptable"),
    page(407, "407 Proxy Authentication Required"),
    page(408, "408 Request Time-out"),
    page(409, "409 Conflict"),
    page(410, "410 Gone"),
    page(411, "411 Length Required"),
    page(412, "412 Precondition Failed"),
    page(413, "413 Request Entity Too Large"),
    page(414, "414 Request-URI Too Large"),
    page(415, "415 Unsupported Media Type"),
    page(416, "416 Requested Range Not Satisfiable"),
    page(421, "421 Misdirected Request"),
    page(429, "429 Too Many Requests"),
    detailed(
        494,
        "431 Request Header Or Cookie Too Large",
        "431 Request Header Fields Too Large",
        "Request Header Or Cookie Too Large",
    ),
    detailed(495, "400 The SSL certificate error", "400 Bad Request", "The SSL certificate error"),
    detailed(
        496,
        "400 No required SSL certificate was sent",
        "400 Bad Request",
        "No required SSL certificate was sent",
    ),
    detailed(
        497,
        "400 The plain HTTP request was sent to HTTPS port",
        "400 Bad Request",
        "The plain HTTP request was sent to HTTPS port",
    ),
    page(500, "500 Internal Server Error"),
    page(501, "501 Not Implemented"),
    page(502, "502 Bad Gateway"),
    page(503, "503 Service Temporarily Unavailable"),
    page(504, "504 Gateway Time-out"),
    page(505, "505 HTTP Version Not Supported"),
    page(507, "507 Insufficient Storage"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(code: u16, signature: Option<&[u8]>, padded: bool) -> Option<String> {
        let mut out = Vec::new();
        let status = StatusCode::new(code).expect("three digits");
        let sent = push_page(status, signature, padded, &mut out);
        assert_eq!(sent, has_page(status));
        assert_eq!(sent, !out.is_empty());
        sent.then(|| String::from_utf8(out).expect("text"))
    }

    #[test]
    fn pages_are_sorted_for_binary_search() {
        assert!(PAGES.windows(2).all(|pair| pair[0].status < pair[1].status));
        for page in PAGES {
            assert!(
                page.title
                    .starts_with(&StatusCode::new(page.status).expect("valid").on_wire().code().to_string())
            );
        }
    }

    #[test]
    fn an_ordinary_error_page_is_written() {
        let wanted = "<html>\r\n<head><title>404 Not Found</title></head>\r\n<body>\r\n\
                      <center><h1>404 Not Found</h1></center>\r\n<hr><center>ringroad/0.1.0</center>\r\n\
                      </body>\r\n</html>\r\n";
        assert_eq!(text(404, Some(b"ringroad/0.1.0"), false).as_deref(), Some(wanted));
        assert_eq!(text(498, Some(b"ringroad/0.1.0"), false).as_deref(), Some(wanted));
    }

    #[test]
    fn padding_makes_error_pages_long_enough() {
        let short = text(403, None, false).expect("a page");
        let long = text(403, None, true).expect("a page");
        assert!(long.starts_with(&short) && long.len() > 512 && short.len() < 512);
        assert_eq!(text(302, None, true), text(302, None, false), "redirects are not padded");
    }

    #[test]
    fn some_pages_have_an_explanation() {
        let page = text(497, None, false).expect("a page");
        assert!(page.contains("<title>400 The plain HTTP request was sent to HTTPS port</title>"));
        assert!(page.contains("<center><h1>400 Bad Request</h1></center>\r\n<center>The plain HTTP"));
        assert!(!page.contains("<hr>"));
    }

    #[test]
    fn some_statuses_have_no_page() {
        for code in [200, 201, 204, 206, 304, 417, 444, 499, 506, 0, 999] {
            assert_eq!(text(code, Some(b"x"), true), None, "{code}");
        }
    }

    #[test]
    fn signatures_and_locations_are_escaped() {
        let page = text(404, Some(b"<script>"), false).expect("a page");
        assert!(page.contains("&lt;script&gt;"));
        let mut out = Vec::new();
        push_refresh(b"http://a/\"><script>", &mut out);
        assert!(String::from_utf8_lossy(&out).contains("URL=http://a/%22%3E%3Cscript%3E\">"));
    }
}
