//! Encoding of a response head (RFC 9112 section 4) with the fields in nginx's order.
//!
//! [`ResponseHead`] contains the fields that the server itself sets. [`HeadWriter`] appends these, then any other fields, to a
//! reused buffer. Every value is checked: a CR, LF or NUL from a variable or a file must not start another field or response.

use crate::bytes::{find_control, is_token, push_decimal};
use crate::{StatusCode, date};

/// The value of the `Connection` field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionField {
    /// `Connection: close`
    #[default]
    Close,
    /// `Connection: keep-alive`, with `Keep-Alive: timeout=N` when seconds are given (second argument of
    /// `keepalive_timeout`).
    KeepAlive {
        /// Seconds to announce.
        timeout_s: Option<u32>,
    },
    /// `Connection: upgrade`
    Upgrade,
}

/// The fields that nginx's header filter writes.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// Status; nginx's internal codes are translated.
    pub status: StatusCode,
    /// Reason phrase from an upstream, instead of the usual one.
    pub reason: Option<&'a [u8]>,
    /// `Server`; see [`signature`].
    pub server: Option<&'a [u8]>,
    /// `Date`.
    pub date: &'a [u8; date::HTTP_LEN],
    /// `Content-Type`, without charset.
    pub content_type: Option<&'a [u8]>,
    /// Charset to append to the type.
    pub charset: Option<&'a [u8]>,
    /// `Content-Length`.
    pub content_length: Option<u64>,
    /// `Last-Modified`, in seconds since 1970.
    pub last_modified: Option<i64>,
    /// `Location`, fully encoded.
    pub location: Option<&'a [u8]>,
    /// `Transfer-Encoding: chunked`.
    pub chunked: bool,
    /// `Connection` and `Keep-Alive`.
    pub connection: ConnectionField,
    /// `Vary: Accept-Encoding`.
    pub vary_accept_encoding: bool,
}

impl<'a> ResponseHead<'a> {
    /// Creates a header section with only status and date, for a connection that closes.
    #[must_use]
    pub fn new(status: StatusCode, date: &'a [u8; date::HTTP_LEN]) -> Self {
        Self {
            status,
            reason: None,
            server: None,
            date,
            content_type: None,
            charset: None,
            content_length: None,
            last_modified: None,
            location: None,
            chunked: false,
            connection: ConnectionField::Close,
            vary_accept_encoding: false,
        }
    }
}

/// A field that must not be sent: its name is not a token, or its value would break the framing of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidField {
    /// The name is empty or has an invalid byte.
    Name,
    /// The value has a control byte.
    Value,
}

/// Appends a response head to a buffer: [`HeadWriter::begin`], any number of fields, [`HeadWriter::finish`].
#[derive(Debug)]
#[must_use = "a head needs its empty line: call finish"]
pub struct HeadWriter<'b> {
    out: &'b mut Vec<u8>,
}

/// The start of the previous head: status line, `Server` and `Date`. Most heads within a second start with the same bytes, which
/// are copied from here.
#[derive(Debug)]
pub struct Opening {
    status: StatusCode,
    server: Option<Vec<u8>>,
    date: [u8; date::HTTP_LEN],
    /// The encoded text; empty before the first head.
    text: Vec<u8>,
}

impl Default for Opening {
    fn default() -> Self {
        Self { status: StatusCode::OK, server: None, date: [0; date::HTTP_LEN], text: Vec::new() }
    }
}

impl Opening {
    /// Whether `head` starts with this text.
    fn fits(&self, head: &ResponseHead<'_>) -> bool {
        head.reason.is_none()
            && !self.text.is_empty()
            && self.status == head.status
            && self.server.as_deref() == head.server
            && self.date == *head.date
    }

    /// Appends the start of `head` and stores it.
    fn push(&mut self, out: &mut Vec<u8>, head: &ResponseHead<'_>) -> Result<(), InvalidField> {
        if self.fits(head) {
            out.extend_from_slice(&self.text);
            return Ok(());
        }
        let before = out.len();
        push_opening(out, head)?;
        if head.reason.is_none() {
            (self.status, self.date) = (head.status, *head.date);
            let mut kept = self.server.take().unwrap_or_default();
            self.server = head.server.map(|server| {
                kept.clear();
                kept.extend_from_slice(server);
                kept
            });
            self.text.clear();
            self.text.extend_from_slice(&out[before..]);
        }
        Ok(())
    }
}

impl<'b> HeadWriter<'b> {
    /// Appends the status line and the fields of `head`; `opening` is the start of the previous head.
    ///
    /// # Errors
    /// [`InvalidField`] if a value must not be sent; `out` is unchanged then.
    pub fn begin(
        out: &'b mut Vec<u8>,
        head: &ResponseHead<'_>,
        opening: &mut Opening,
    ) -> Result<Self, InvalidField> {
        let before = out.len();
        if let Err(error) = opening.push(out, head).and_then(|()| push_standard(out, head)) {
            out.truncate(before);
            return Err(error);
        }
        Ok(Self { out })
    }

    /// Appends a field: `ETag`, `Accept-Ranges`, `Content-Range`, and the fields of `add_header`, in nginx's filter order.
    ///
    /// # Errors
    /// [`InvalidField`]; nothing was appended.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), InvalidField> {
        push_field(self.out, name, value)
    }

    /// Appends complete lines, which [`push_field`] has checked and written.
    pub fn lines(&mut self, lines: &[u8]) {
        debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"), "the lines are complete");
        self.out.extend_from_slice(lines);
    }

    /// Ends the head.
    pub fn finish(self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

fn push_opening(out: &mut Vec<u8>, head: &ResponseHead<'_>) -> Result<(), InvalidField> {
    push_status_line(out, head)?;
    if let Some(server) = head.server {
        push_generated(out, b"Server: ", server)?;
    }
    push_date(out, b"Date: ", head.date);
    Ok(())
}

fn push_standard(out: &mut Vec<u8>, head: &ResponseHead<'_>) -> Result<(), InvalidField> {
    if let Some(content_type) = head.content_type {
        push_content_type(out, content_type, head.charset)?;
    }
    if let Some(length) = head.content_length {
        out.extend_from_slice(b"Content-Length: ");
        push_decimal(out, length);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(modified) = head.last_modified {
        push_date(out, b"Last-Modified: ", &date::http(modified));
    }
    if let Some(location) = head.location {
        push_generated(out, b"Location: ", location)?;
    }
    if head.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    push_connection(out, head.connection);
    if head.vary_accept_encoding {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    Ok(())
}

fn push_status_line(out: &mut Vec<u8>, head: &ResponseHead<'_>) -> Result<(), InvalidField> {
    let status = head.status.on_wire();
    let Some(reason) = head.reason else {
        status.push_line(out);
        return Ok(());
    };
    check_value(reason)?;
    status.push_code(out);
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn push_content_type(
    out: &mut Vec<u8>,
    media_type: &[u8],
    charset: Option<&[u8]>,
) -> Result<(), InvalidField> {
    check_value(media_type)?;
    out.extend_from_slice(b"Content-Type: ");
    out.extend_from_slice(media_type);
    if let Some(charset) = charset {
        check_value(charset)?;
        out.extend_from_slice(b"; charset=");
        out.extend_from_slice(charset);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn push_connection(out: &mut Vec<u8>, connection: ConnectionField) {
    match connection {
        ConnectionField::Close => out.extend_from_slice(b"Connection: close\r\n"),
        ConnectionField::Upgrade => out.extend_from_slice(b"Connection: upgrade\r\n"),
        ConnectionField::KeepAlive { timeout_s } => {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
            if let Some(seconds) = timeout_s {
                out.extend_from_slice(b"Keep-Alive: timeout=");
                push_decimal(out, u64::from(seconds));
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// Appends one field line after checking name and value.
///
/// # Errors
/// [`InvalidField`]; nothing was appended.
pub fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Result<(), InvalidField> {
    check_field(name, value)?;
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends one field line of an upstream. Like nginx it passes names with unusual bytes and values with control bytes on. It still
/// refuses bytes that could start another line or field, and NUL (RFC 9110 section 5.5).
///
/// # Errors
/// [`InvalidField`]; nothing was appended.
pub fn push_relayed_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Result<(), InvalidField> {
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0..=b' ' | b':' | 0x7f)) {
        return Err(InvalidField::Name);
    }
    if memchr::memchr3(b'\r', b'\n', 0, value).is_some() {
        return Err(InvalidField::Value);
    }
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Whether a field may be sent, in any protocol.
///
/// # Errors
/// [`InvalidField`] names the invalid part.
pub fn check_field(name: &[u8], value: &[u8]) -> Result<(), InvalidField> {
    if !is_name(name) {
        return Err(InvalidField::Name);
    }
    check_value(value)
}

/// Appends a date field; the date needs no check, because the server generated it.
fn push_date(out: &mut Vec<u8>, name_and_colon: &[u8], date: &[u8; date::HTTP_LEN]) {
    out.extend_from_slice(name_and_colon);
    out.extend_from_slice(date);
    out.extend_from_slice(b"\r\n");
}

fn push_generated(out: &mut Vec<u8>, name_and_colon: &[u8], value: &[u8]) -> Result<(), InvalidField> {
    check_value(value)?;
    out.extend_from_slice(name_and_colon);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Checks the value of a field (RFC 9110 section 5.5): visible bytes, spaces, tabs and bytes above 0x7f.
///
/// # Errors
/// [`InvalidField`] if the value has another byte.
pub fn check_value(value: &[u8]) -> Result<(), InvalidField> {
    if find_control(value, 0) == value.len() { Ok(()) } else { Err(InvalidField::Value) }
}

/// Replaces the bytes that a value must not contain by spaces, so that it can be sent (RFC 9110 section 5.5).
pub fn blank_controls(value: &mut [u8]) {
    for byte in value.iter_mut().filter(|byte| byte.is_ascii_control() && **byte != b'\t') {
        *byte = b' ';
    }
}

/// Whether a text is a valid field name (RFC 9110 section 5.1).
fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().fold(true, |is_good, &byte| is_good & is_token(byte))
}

/// `server_tokens`: the product token that the server shows in `Server` and on error pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServerTokens {
    /// The product name.
    Off,
    /// Product name and version.
    #[default]
    On,
    /// Product name, version and build.
    Build,
    /// This text; when empty, no `Server` field is sent and pages have no signature.
    Text(Box<[u8]>),
}

/// Product name of this server.
pub const PRODUCT: &str = "ringroad";

/// Returns the text for `Server` and error pages; `None` for no text. Computed once per loaded configuration.
#[must_use]
pub fn signature(tokens: &ServerTokens, version: &str, build: &str) -> Option<Vec<u8>> {
    let text = match tokens {
        ServerTokens::Off => PRODUCT.to_owned(),
        ServerTokens::Build if !build.is_empty() => format!("{PRODUCT}/{version} ({build})"),
        ServerTokens::On | ServerTokens::Build => format!("{PRODUCT}/{version}"),
        ServerTokens::Text(text) => return (!text.is_empty()).then(|| text.to_vec()),
    };
    Some(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";

    fn written(head: &ResponseHead<'_>, fields: &[(&str, &str)]) -> String {
        let mut out = Vec::new();
        let mut writer = HeadWriter::begin(&mut out, head, &mut Opening::default()).expect("valid head");
        for (name, value) in fields {
            writer.field(name.as_bytes(), value.as_bytes()).expect("valid field");
        }
        writer.finish();
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_cached_opening_is_reused_only_for_equal_input() {
        let mut opening = Opening::default();
        let other_date = b"Mon, 07 Nov 1994 08:49:37 GMT";
        let mut heads = Vec::new();
        for server in [None, Some(&b"one"[..]), Some(b"two")] {
            for date in [DATE, other_date] {
                for (status, reason) in [(200, None), (200, Some(&b"Fine"[..])), (404, None)] {
                    let status = StatusCode::new(status).expect("a status");
                    heads.push(ResponseHead { server, reason, ..ResponseHead::new(status, date) });
                }
            }
        }
        // Every ordered pair of heads.
        for (first, second) in heads.iter().flat_map(|first| heads.iter().map(move |second| (first, second)))
        {
            for head in [first, second, second] {
                let mut out = Vec::new();
                HeadWriter::begin(&mut out, head, &mut opening).expect("valid head").finish();
                assert_eq!(String::from_utf8(out).expect("text"), written(head, &[]));
            }
        }
    }

    #[test]
    fn the_head_of_a_file_has_the_order_of_nginx() {
        let head = ResponseHead {
            server: Some(b"ringroad/0.1.0"),
            content_type: Some(b"text/html"),
            charset: Some(b"utf-8"),
            content_length: Some(612),
            last_modified: Some(784_111_777),
            connection: ConnectionField::KeepAlive { timeout_s: Some(20) },
            vary_accept_encoding: true,
            ..ResponseHead::new(StatusCode::OK, DATE)
        };
        assert_eq!(
            written(&head, &[("ETag", "\"5a-264\""), ("Accept-Ranges", "bytes")]),
            "HTTP/1.1 200 OK\r\nServer: ringroad/0.1.0\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             Content-Type: text/html; charset=utf-8\r\nContent-Length: 612\r\n\
             Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: keep-alive\r\n\
             Keep-Alive: timeout=20\r\nVary: Accept-Encoding\r\nETag: \"5a-264\"\r\nAccept-Ranges: bytes\r\n\r\n"
        );
    }

    #[test]
    fn relayed_fields_are_those_that_nginx_relays() {
        let mut out = Vec::new();
        push_relayed_field(&mut out, b"X@Y", b"a\x01b").expect("odd, but harmless");
        assert_eq!(out, b"X@Y: a\x01b\r\n");
        for (name, value) in [("", "a"), ("X Y", "a"), ("X:", "a"), ("X\n", "a"), ("X\x7f", "a")] {
            assert_eq!(
                push_relayed_field(&mut out, name.as_bytes(), value.as_bytes()),
                Err(InvalidField::Name)
            );
        }
        for value in ["a\r", "a\nb", "\0"] {
            assert_eq!(push_relayed_field(&mut out, b"X", value.as_bytes()), Err(InvalidField::Value));
        }
        assert_eq!(out, b"X@Y: a\x01b\r\n", "nothing is left of a refused field");
    }

    #[test]
    fn redirects_chunks_and_upgrades_are_written() {
        let head = ResponseHead {
            location: Some(b"http://a/b/"),
            chunked: true,
            ..ResponseHead::new(StatusCode::FOUND, DATE)
        };
        let text = written(&head, &[]);
        assert!(text.starts_with("HTTP/1.1 302 Moved Temporarily\r\nDate: "), "{text}");
        let tail = "Location: http://a/b/\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        assert!(text.ends_with(tail), "{text}");
        let head = ResponseHead {
            reason: Some(b"Teapot"),
            connection: ConnectionField::Upgrade,
            ..ResponseHead::new(StatusCode::new(418).expect("three digits"), DATE)
        };
        let text = written(&head, &[]);
        assert!(text.starts_with("HTTP/1.1 418 Teapot\r\n"), "{text}");
        assert!(text.contains("Connection: upgrade\r\n"), "{text}");
    }

    #[test]
    fn internal_status_codes_are_translated() {
        let text = written(&ResponseHead::new(StatusCode::REQUEST_HEADER_TOO_LARGE, DATE), &[]);
        assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{text}");
    }

    #[test]
    fn header_injection_is_refused_without_partial_output() {
        for bad in ["a\r\nSet-Cookie: x", "a\nb", "a\rb", "a\0b", "\x7f"] {
            let bad = bad.as_bytes();
            for head in [
                ResponseHead { location: Some(bad), ..ResponseHead::new(StatusCode::OK, DATE) },
                ResponseHead { content_type: Some(bad), ..ResponseHead::new(StatusCode::OK, DATE) },
                ResponseHead {
                    content_type: Some(b"a/b"),
                    charset: Some(bad),
                    ..ResponseHead::new(StatusCode::OK, DATE)
                },
                ResponseHead { server: Some(bad), ..ResponseHead::new(StatusCode::OK, DATE) },
                ResponseHead { reason: Some(bad), ..ResponseHead::new(StatusCode::OK, DATE) },
            ] {
                let mut out = b"before".to_vec();
                assert_eq!(
                    HeadWriter::begin(&mut out, &head, &mut Opening::default()).err(),
                    Some(InvalidField::Value)
                );
                assert_eq!(out, b"before");
            }
            let mut out = Vec::new();
            assert_eq!(push_field(&mut out, b"X", bad), Err(InvalidField::Value));
            assert_eq!(push_field(&mut out, bad, b"x"), Err(InvalidField::Name));
            assert!(out.is_empty());
        }
        let mut out = Vec::new();
        for name in ["", "a b", "a:", "\u{e4}", "a("] {
            assert_eq!(push_field(&mut out, name.as_bytes(), b"x"), Err(InvalidField::Name), "{name}");
        }
        assert_eq!(push_field(&mut out, b"X_y.z", "\u{e4}\t".as_bytes()), Ok(()));
    }

    #[test]
    fn server_signatures_are_written() {
        let text = |tokens: &ServerTokens| signature(tokens, "0.1.0", "abc").map(String::from_utf8);
        assert_eq!(text(&ServerTokens::Off), Some(Ok("ringroad".into())));
        assert_eq!(text(&ServerTokens::On), Some(Ok("ringroad/0.1.0".into())));
        assert_eq!(text(&ServerTokens::Build), Some(Ok("ringroad/0.1.0 (abc)".into())));
        assert_eq!(text(&ServerTokens::Text((*b"web").into())), Some(Ok("web".into())));
        assert_eq!(text(&ServerTokens::Text(Box::default())), None);
        assert_eq!(signature(&ServerTokens::Build, "1", ""), Some(b"ringroad/1".to_vec()));
    }
}
