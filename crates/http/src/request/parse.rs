//! The parser of a request head (RFC 9112 sections 3 and 5, with the behaviour of nginx 1.31).
//!
//! The parser works line by line on one growing buffer. A line is parsed when its first bytes arrive, so a head that arrives in one
//! piece is read once. If the line is incomplete, new bytes are only searched for its end, each byte once; the line is parsed again
//! when the end has arrived. The cost is linear in the number of bytes in both cases.

use super::{Head, ParseError, Phase, Policy, Progress, Target};
use crate::Span;
use crate::bytes::{find_control, find_name_end, find_target_end};
use crate::fields::{BodyLength, Field, HeaderId, Method, Version, plain_line};
use crate::host::{self, HostError};

/// Parses the received bytes in `buf`. After [`Progress::Incomplete`], call again with the same buffer and new bytes appended. For
/// another request call [`Head::clear`] first.
///
/// # Errors
/// [`ParseError`]; only the request line of the head is usable afterwards, and the connection must be closed after the response. A
/// line that is both malformed and too long may be refused for either reason, depending on how the input is split. No other result
/// depends on the split.
pub fn parse(head: &mut Head, buf: &[u8], policy: &Policy) -> Result<Progress, ParseError> {
    loop {
        let next = match head.phase {
            Phase::Done => return Ok(Progress::Complete { head_len: head.line_start }),
            Phase::BeforeRequest => skip_empty_lines(head, buf)?,
            Phase::RequestLine | Phase::Fields if !line_may_be_complete(head, buf) => None,
            Phase::RequestLine => request_line(head, buf, policy)?,
            Phase::Fields => {
                plain_field_lines(head, buf, policy)?;
                field_line(head, buf, policy)?
            }
        };
        let Some(next) = next else {
            head.scanned = buf.len() as u32;
            check_lengths(head, buf.len(), policy)?;
            return Ok(Progress::Incomplete);
        };
        if head.phase != Phase::BeforeRequest {
            check_lengths(head, next, policy)?;
        }
        advance(head, next, policy)?;
    }
}

/// Continues with the line at `next`.
fn advance(head: &mut Head, next: usize, policy: &Policy) -> Result<(), ParseError> {
    let first_line = matches!(head.phase, Phase::BeforeRequest | Phase::RequestLine);
    head.phase = match head.phase {
        Phase::BeforeRequest => Phase::RequestLine,
        Phase::RequestLine => Phase::Fields,
        phase => phase,
    };
    head.line_start = next as u32;
    head.scanned = 0;
    if first_line { Ok(()) } else { check_count(head, policy) }
}

/// Refuses more fields than the policy allows.
pub(super) fn check_count(head: &Head, policy: &Policy) -> Result<(), ParseError> {
    if head.fields.count() > usize::from(policy.fields_max) { Err(ParseError::TooManyFields) } else { Ok(()) }
}

/// Whether to parse the current line: it was not examined yet, or its line feed has arrived.
fn line_may_be_complete(head: &Head, buf: &[u8]) -> bool {
    let scanned = head.scanned as usize;
    scanned == 0 || memchr::memchr(b'\n', &buf[scanned..]).is_some()
}

/// Refuses a line, or a head, that extends to `end` and is longer than the policy allows.
fn check_lengths(head: &Head, end: usize, policy: &Policy) -> Result<(), ParseError> {
    let line_len = end - head.line_start as usize;
    match head.phase {
        Phase::BeforeRequest | Phase::RequestLine if line_len > policy.request_line_max as usize => {
            Err(ParseError::RequestLineTooLong)
        }
        Phase::Fields if line_len > policy.field_line_max as usize => Err(ParseError::FieldLineTooLong),
        _ if end > policy.head_max as usize => Err(ParseError::HeadTooLong),
        _ => Ok(()),
    }
}

/// Skips empty lines before a request (RFC 9112 section 2.2); returns the start of the request line.
fn skip_empty_lines(head: &mut Head, buf: &[u8]) -> Result<Option<usize>, ParseError> {
    let mut at = head.line_start as usize;
    loop {
        match (buf.get(at), buf.get(at + 1)) {
            (Some(b'\n'), _) => at += 1,
            (Some(b'\r'), Some(b'\n')) => at += 2,
            (Some(b'\r'), Some(_)) => return Err(ParseError::BareCr),
            (None, _) | (Some(b'\r'), None) => {
                head.line_start = at as u32;
                return Ok(None);
            }
            _ => return Ok(Some(at)),
        }
    }
}

/// Parses the request line; returns the start of the next line, or `None` if bytes are missing.
fn request_line(head: &mut Head, buf: &[u8], policy: &Policy) -> Result<Option<usize>, ParseError> {
    let start = head.line_start as usize;
    let is_method = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-');
    let Some(method_len) = buf[start..].iter().position(|byte| !is_method(byte)) else { return Ok(None) };
    let method_end = start + method_len;
    if method_len == 0 || buf[method_end] != b' ' {
        return Err(ParseError::InvalidMethod);
    }
    head.method_span = Span::new(start, method_end);
    head.method = Method::of(&buf[start..method_end]);

    let target_start = skip_spaces(buf, method_end, policy)?;
    let target_end = find_target_end(buf, target_start);
    if target_end == buf.len() {
        return Ok(None);
    }
    let text = &buf[target_start..target_end];
    (head.target, head.path) = super::target::classify(head.method, text, target_start)?;
    head.target_span = Span::new(target_start, target_end);
    match buf[target_end] {
        b' ' => {}
        b'\r' | b'\n' => return Err(ParseError::Http09),
        _ => return Err(ParseError::InvalidTarget),
    }

    let version_start = skip_spaces(buf, target_end, policy)?;
    let Some((line_end, next)) = version(head, buf, version_start, policy)? else { return Ok(None) };
    head.request_line = Span::new(start, line_end);
    Ok(Some(next))
}

/// Skips the spaces at `at`; nginx accepts any number of them, the strict policy one.
fn skip_spaces(buf: &[u8], at: usize, policy: &Policy) -> Result<usize, ParseError> {
    let count = buf[at..].iter().take_while(|&&byte| byte == b' ').count();
    if policy.strict && count > 1 {
        return Err(ParseError::LooseRequestLine);
    }
    Ok(at + count)
}

/// Parses `HTTP/1.x` and the line end; returns the ends of the text and of the line.
fn version(
    head: &mut Head,
    buf: &[u8],
    start: usize,
    policy: &Policy,
) -> Result<Option<(usize, usize)>, ParseError> {
    if buf[start..].starts_with(b"HTTP/1.1\r\n") {
        (head.version, head.minor) = (Version::Http11, 1);
        return Ok(Some((start + 8, start + 10)));
    }
    for (offset, wanted) in b"HTTP/".iter().enumerate() {
        match buf.get(start + offset) {
            None => return Ok(None),
            Some(b'\r' | b'\n') if offset == 0 => return Err(ParseError::Http09),
            Some(byte) if byte == wanted => {}
            Some(_) => return Err(ParseError::InvalidVersion),
        }
    }
    let (Some(&major), dot) = (buf.get(start + 5), buf.get(start + 6)) else { return Ok(None) };
    match (major, dot) {
        (b'2'..=b'9', _) | (b'1', Some(b'0'..=b'9')) => return Err(ParseError::UnsupportedVersion),
        (b'1', None) => return Ok(None),
        (b'1', Some(b'.')) => {}
        _ => return Err(ParseError::InvalidVersion),
    }
    let digits_start = start + 7;
    let digits = buf[digits_start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let at_end = digits_start + digits == buf.len();
    if digits > MINOR_DIGITS_MAX || (digits == 0 && !at_end) || (policy.strict && digits > 1) {
        return Err(ParseError::InvalidVersion);
    }
    if at_end {
        return Ok(None);
    }
    let text_end = digits_start + digits;
    let minor =
        buf[digits_start..text_end].iter().fold(0u16, |minor, byte| minor * 10 + u16::from(byte - b'0'));
    head.minor = minor;
    head.version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    version_line_end(buf, text_end, policy)
}

/// Maximum number of digits of a minor version that nginx reads.
const MINOR_DIGITS_MAX: usize = 3;

fn version_line_end(
    buf: &[u8],
    text_end: usize,
    policy: &Policy,
) -> Result<Option<(usize, usize)>, ParseError> {
    let spaces = buf[text_end..].iter().take_while(|&&byte| byte == b' ').count();
    if policy.strict && spaces > 0 {
        return Err(ParseError::LooseRequestLine);
    }
    match line_end(buf, text_end + spaces)? {
        LineEnd::At(next) => Ok(Some((text_end, next))),
        LineEnd::Missing => Ok(None),
        LineEnd::Other => Err(ParseError::InvalidVersion),
    }
}

/// The bytes at the expected end of a line.
enum LineEnd {
    /// A line end; the next line starts here.
    At(usize),
    /// No byte yet, or a CR without its LF yet.
    Missing,
    /// Another byte.
    Other,
}

/// Accepts CRLF and a bare LF (RFC 9112 section 2.2); a bare CR is an error.
fn line_end(buf: &[u8], at: usize) -> Result<LineEnd, ParseError> {
    match (buf.get(at), buf.get(at + 1)) {
        (Some(b'\n'), _) => Ok(LineEnd::At(at + 1)),
        (Some(b'\r'), Some(b'\n')) => Ok(LineEnd::At(at + 2)),
        (Some(b'\r'), Some(_)) => Err(ParseError::BareCr),
        (None, _) | (Some(b'\r'), None) => Ok(LineEnd::Missing),
        _ => Ok(LineEnd::Other),
    }
}

/// Parses field lines as long as they have the usual form, and advances after each.
fn plain_field_lines(head: &mut Head, buf: &[u8], policy: &Policy) -> Result<(), ParseError> {
    while let Some((field, next)) = plain_line(buf, head.line_start as usize) {
        add_field(head, field, 0, policy)?;
        check_lengths(head, next, policy)?;
        check_count(head, policy)?;
        head.line_start = next as u32;
        head.scanned = 0;
    }
    Ok(())
}

/// Parses one field line, or the empty line that ends the head; returns the start of the next line.
fn field_line(head: &mut Head, buf: &[u8], policy: &Policy) -> Result<Option<usize>, ParseError> {
    let start = head.line_start as usize;
    match line_end(buf, start)? {
        LineEnd::At(next) => {
            finish(head, buf, policy)?;
            head.phase = Phase::Done;
            return Ok(Some(next));
        }
        LineEnd::Missing => return Ok(None),
        LineEnd::Other => {}
    }

    let Some((name_end, stop, mut seen)) = scan_name(buf, start) else { return Ok(None) };
    let value_start = match stop {
        b':' if name_end == start => return Err(ParseError::EmptyName),
        b':' => skip_white_space(buf, name_end + 1),
        // A line without a colon: nginx treats the complete line as a name with an empty value.
        b'\r' | b'\n' => {
            seen |= NAME_ODD;
            name_end
        }
        b' ' | b'\t' if name_end == start && head.has_fields() => return Err(ParseError::ObsoleteFolding),
        _ => return Err(ParseError::InvalidByteInName),
    };

    let control = find_control(buf, value_start);
    let next = match line_end(buf, control)? {
        LineEnd::At(next) => next,
        LineEnd::Missing => return Ok(None),
        LineEnd::Other => return Err(ParseError::InvalidByteInValue),
    };
    let mut value_end = control;
    while value_end > value_start && is_white_space(buf[value_end - 1]) {
        value_end -= 1;
    }
    let name = Span::new(start, name_end);
    let value = Span::new(value_start, value_end);
    let id = HeaderId::of(name.of(buf));
    add_field(head, Field { name, value, id }, seen, policy)?;
    Ok(Some(next))
}

/// Returns the end of the name at `start`, the byte that ends it, and the classes of its bytes; `None` if bytes are missing. Nearly
/// every name is plain and ends at its colon, which the first scan finds.
fn scan_name(buf: &[u8], start: usize) -> Option<(usize, u8, u8)> {
    let mut end = find_name_end(buf, start);
    let mut seen = 0;
    loop {
        let byte = *buf.get(end)?;
        let class = NAME_CLASS[usize::from(byte)];
        if class >= NAME_STOP {
            return Some((end, byte, seen));
        }
        seen |= class;
        end += 1;
    }
}

/// Returns the classes of the bytes of a name; `None` if a byte is not allowed in a name.
pub(super) fn name_classes(name: &[u8]) -> Option<u8> {
    let classes = name.iter().map(|&byte| NAME_CLASS[usize::from(byte)]);
    let seen = classes.fold(0, |seen, class| seen | class);
    (seen < NAME_STOP).then_some(seen)
}

fn skip_white_space(buf: &[u8], from: usize) -> usize {
    let mut at = from;
    while buf.get(at).copied().is_some_and(is_white_space) {
        at += 1;
    }
    at
}

fn is_white_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Adds a well-formed field to the table, unless its name is invalid and the policy drops it.
pub(super) fn add_field(head: &mut Head, field: Field, seen: u8, policy: &Policy) -> Result<(), ParseError> {
    let odd = seen & NAME_ODD != 0 || (seen & NAME_UNDERSCORE != 0 && !policy.underscores_in_headers);
    if odd && policy.strict {
        return Err(ParseError::InvalidName);
    }
    if odd && policy.ignore_invalid_headers {
        head.fields.ignore(Span { start: field.name.start, end: field.value.end });
        return Ok(());
    }
    if let Some(first) = head.fields.first.get_mut(field.id as usize) {
        if *first == 0 {
            *first = u16::try_from(head.fields.lines.len() + 1).map_err(|_| ParseError::TooManyFields)?;
        } else if field.id.is_unique() {
            return Err(ParseError::Duplicate(field.id));
        }
    }
    head.fields.lines.push(field);
    Ok(())
}

impl Head {
    /// Whether any field line was parsed, including dropped lines.
    fn has_fields(&self) -> bool {
        self.fields.count() > 0
    }
}

/// Runs the checks that need all fields: `Host`, the length of the body, the method. The order is nginx's, which matters if a
/// request breaks several rules.
pub(super) fn finish(head: &mut Head, buf: &[u8], policy: &Policy) -> Result<(), ParseError> {
    finish_host(head, buf)?;
    finish_framing(head, buf)?;
    match head.method {
        Method::Trace if !policy.allow_trace => Err(ParseError::TraceRefused),
        Method::Connect if !policy.allow_connect => Err(ParseError::ConnectRefused),
        _ => Ok(()),
    }
}

/// Determines the host (RFC 9112 section 3.2.2): the authority of an absolute target has precedence, but `Host` must be present
/// and valid.
fn finish_host(head: &mut Head, buf: &[u8]) -> Result<(), ParseError> {
    if let Target::Absolute { authority, .. } | Target::Authority { authority } = head.target {
        set_host(head, buf, authority).map_err(ParseError::InvalidAuthority)?;
    }
    match head.field(HeaderId::Host).map(|field| field.value) {
        Some(value) if head.host.is_none() => set_host(head, buf, value).map_err(ParseError::InvalidHost),
        Some(value) => host::validate(value.of(buf)).map(|_| ()).map_err(ParseError::InvalidHost),
        None if head.version == Version::Http10 => Ok(()),
        None => Err(ParseError::MissingHost),
    }
}

fn set_host(head: &mut Head, buf: &[u8], text: Span) -> Result<(), HostError> {
    let mut host = host::validate(text.of(buf))?;
    // The span of the name is relative to the text; the head's spans are relative to the buffer.
    host.name.start += text.start;
    host.name.end += text.start;
    head.host = Some(host);
    head.host_text = text;
    Ok(())
}

/// Determines the length of the body (RFC 9112 sections 6.1 to 6.3). Refuses contradictory lengths, over which two parties could
/// disagree.
fn finish_framing(head: &mut Head, buf: &[u8]) -> Result<(), ParseError> {
    if let Some(value) = head.get(buf, HeaderId::ContentLength) {
        let length = crate::parse_decimal(value).ok_or(ParseError::InvalidContentLength)?;
        head.body = BodyLength::Exactly(length);
    }
    let Some(coding) = head.get(buf, HeaderId::TransferEncoding) else { return Ok(()) };
    if head.body != BodyLength::None {
        return Err(ParseError::LengthAndTransferEncoding);
    }
    if head.version == Version::Http10 {
        return Err(ParseError::TransferEncodingIn10);
    }
    if !coding.eq_ignore_ascii_case(b"chunked") {
        return Err(ParseError::UnknownTransferEncoding);
    }
    head.body = BodyLength::Unknown;
    Ok(())
}

/// Letters, digits and hyphens have class 0.
const NAME_UNDERSCORE: u8 = 1;
/// Bytes that nginx calls invalid in a name, but that are not ambiguous.
const NAME_ODD: u8 = 2;
/// Classes from this value on end the name: the colon, white space and control bytes.
const NAME_STOP: u8 = 8;

/// Class of each byte in a field name.
const NAME_CLASS: [u8; 256] = {
    let mut table = [NAME_ODD; 256];
    let mut byte = 0;
    while byte < 256 {
        let value = byte as u8;
        if value.is_ascii_alphanumeric() || value == b'-' {
            table[byte] = 0;
        } else if value == b'_' {
            table[byte] = NAME_UNDERSCORE;
        } else if value <= 0x20 || value == 0x7f || value == b':' {
            table[byte] = NAME_STOP;
        }
        byte += 1;
    }
    table
};
