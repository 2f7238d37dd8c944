//! The parser of a response head (RFC 9112 sections 4 and 5, with the behaviour of nginx's upstream module).
//!
//! The parser works on one growing buffer and parses a line only when its line feed has arrived. Therefore the result does not
//! depend on how the head is split. Lines of the usual form are parsed in one pass; other lines are first searched for their line
//! feed, each byte once. Only the first five bytes are examined earlier: a response of HTTP/0.9 may have no line feed.

use super::{Limits, ParsedResponse, ResponseError, ResponsePhase, ResponseProgress};
use crate::bytes::{find_control, find_name_end, trim_ows};
use crate::fields::{Field, HeaderId, Version, plain_line};
use crate::{Span, StatusCode};

/// Parses the received bytes in `buf`. After [`ResponseProgress::Incomplete`], call again with the same buffer and new bytes appended.
/// For another response (also the final response after an interim one) call [`ParsedResponse::clear`] first and pass its first byte at
/// index 0.
///
/// # Errors
/// [`ResponseError`]; only [`ParsedResponse::line_start`] of the head is usable afterwards, and the connection must be closed.
pub fn parse(
    head: &mut ParsedResponse,
    buf: &[u8],
    limits: &Limits,
) -> Result<ResponseProgress, ResponseError> {
    if head.phase == ResponsePhase::Done {
        return Ok(ResponseProgress::Complete { head_len: head.line_start });
    }
    if head.phase == ResponsePhase::StatusLine
        && buf.iter().zip(STATUS_LINE_START).any(|(byte, wanted)| byte != wanted)
    {
        return Ok(ResponseProgress::Http09);
    }
    lines(head, buf, limits)
}

/// Works like [`parse`], for a CGI response (RFC 3875 section 6.2). It has no status line: the status is the value of the field
/// `Status`; without it 302 if `Location` is present, otherwise 200.
///
/// # Errors
/// As [`parse`].
pub fn parse_cgi(
    head: &mut ParsedResponse,
    buf: &[u8],
    limits: &Limits,
) -> Result<ResponseProgress, ResponseError> {
    if head.phase == ResponsePhase::Done {
        return Ok(ResponseProgress::Complete { head_len: head.line_start });
    }
    (head.phase, head.is_cgi) = (ResponsePhase::Fields, true);
    let progress = lines(head, buf, limits)?;
    if head.phase == ResponsePhase::Done {
        cgi_status(head, buf)?;
    }
    Ok(progress)
}

fn cgi_status(head: &mut ParsedResponse, buf: &[u8]) -> Result<(), ResponseError> {
    let is_status = |field: &&Field| field.name.of(buf).eq_ignore_ascii_case(b"Status");
    let Some(value) = head.fields.lines.iter().find(is_status).map(|field| field.value) else {
        let is_redirect = head.get(buf, HeaderId::Location).is_some();
        head.status =
            StatusCode::new(if is_redirect { 302 } else { 200 }).ok_or(ResponseError::InvalidStatus)?;
        return Ok(());
    };
    let text = value.of(buf);
    let code =
        text.get(..CODE_DIGITS).and_then(crate::parse_decimal).and_then(|code| u16::try_from(code).ok());
    let ends = matches!(text.get(CODE_DIGITS), None | Some(b' '));
    let code = code.filter(|code| ends && *code >= 200).and_then(StatusCode::new);
    head.status = code.ok_or(ResponseError::InvalidStatus)?;
    if text.len() > CODE_DIGITS {
        head.status_text = value;
        head.reason = reason(value.start as usize, text);
    }
    Ok(())
}

/// Parses lines until the head is complete.
fn lines(head: &mut ParsedResponse, buf: &[u8], limits: &Limits) -> Result<ResponseProgress, ResponseError> {
    loop {
        // A line whose beginning was searched before is not parsed again until its line feed has arrived.
        if head.phase == ResponsePhase::Fields && head.scanned == head.line_start {
            plain_field_lines(head, buf, limits)?;
        }
        let Some(len) = memchr::memchr(b'\n', &buf[head.scanned as usize..]) else { break };
        let (start, line_feed) = (head.line_start as usize, head.scanned as usize + len);
        if line_feed >= limits.head_max as usize {
            return Err(ResponseError::HeadTooLong);
        }
        match head.phase {
            ResponsePhase::StatusLine => {
                status_line(head, buf, start, line_feed)?;
                head.phase = ResponsePhase::Fields;
            }
            _ => field_line(head, buf, start, line_feed, limits)?,
        }
        head.line_start = line_feed as u32 + 1;
        head.scanned = head.line_start;
        if head.phase == ResponsePhase::Done {
            return Ok(ResponseProgress::Complete { head_len: head.line_start });
        }
    }
    // The line end, still missing, would be beyond the limit.
    if buf.len() >= limits.head_max as usize {
        return Err(ResponseError::HeadTooLong);
    }
    head.scanned = buf.len() as u32;
    Ok(ResponseProgress::Incomplete)
}

/// Parses field lines as long as they have the usual form.
fn plain_field_lines(head: &mut ParsedResponse, buf: &[u8], limits: &Limits) -> Result<(), ResponseError> {
    while let Some((field, next)) = plain_line(buf, head.line_start as usize) {
        if next > limits.head_max as usize {
            return Err(ResponseError::HeadTooLong);
        }
        add_field(head, field)?;
        check_count(head, limits)?;
        head.line_start = next as u32;
        head.scanned = head.line_start;
    }
    Ok(())
}

/// The first bytes of every status line; other bytes mean HTTP/0.9.
const STATUS_LINE_START: &[u8] = b"HTTP/";

/// Parses `HTTP/1.1 200 OK`, whose line feed is at `line_feed`.
pub(super) fn status_line(
    head: &mut ParsedResponse,
    buf: &[u8],
    start: usize,
    line_feed: usize,
) -> Result<(), ResponseError> {
    let end = line_feed - usize::from(buf[..line_feed].ends_with(b"\r"));
    let line = Line { buf, at: start + STATUS_LINE_START.len(), end };
    let (version, code, code_start) = line.version_and_code().ok_or(ResponseError::InvalidStatusLine)?;
    let rest_start = code_start + CODE_DIGITS;
    let rest = &buf[rest_start..end];
    // The digits after a dot are a substatus of IIS (`403.1`).
    if !matches!(rest.first(), None | Some(b' ' | b'.')) || find_control(rest, 0) != rest.len() {
        return Err(ResponseError::InvalidStatusLine);
    }
    head.version = version;
    head.status = code;
    head.status_text = Span::new(code_start, end);
    head.reason = reason(code_start, &buf[code_start..end]);
    Ok(())
}

/// Returns the span of the reason in a status and reason that start at `start`.
pub(super) fn reason(start: usize, status_text: &[u8]) -> Span {
    let len = status_text.len();
    let space = status_text.iter().position(|&byte| byte == b' ').map_or(len, |space| space + 1);
    Span::new(start + space, start + len)
}

/// Digits of a status.
const CODE_DIGITS: usize = 3;
/// Maximum number of digits of a major or minor version: nginx gives up above 99, before the next digit.
const VERSION_DIGITS_MAX: usize = 3;

/// Parser of one line.
struct Line<'a> {
    buf: &'a [u8],
    at: usize,
    end: usize,
}

impl Line<'_> {
    /// Parses the text after `HTTP/`: version, status, and the position of the status.
    fn version_and_code(mut self) -> Option<(Version, StatusCode, usize)> {
        if self.peek() == Some(b'0') {
            return None;
        }
        let major = self.version_number()?;
        if self.byte()? != b'.' {
            return None;
        }
        let minor = self.version_number()?;
        if self.byte()? != b' ' {
            return None;
        }
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
        let code_start = self.at;
        let mut code = 0;
        for _ in 0..CODE_DIGITS {
            code = code * 10 + self.digit()?;
        }
        let version = if (major, minor) == (1, 0) { Version::Http10 } else { Version::Http11 };
        let code = StatusCode::new(code).filter(|code| code.code() >= 100)?;
        Some((version, code, code_start))
    }

    /// Parses one to three digits; returns their value.
    fn version_number(&mut self) -> Option<u16> {
        let mut value = self.digit()?;
        for _ in 1..VERSION_DIGITS_MAX {
            match self.peek() {
                Some(byte) if byte.is_ascii_digit() => value = value * 10 + self.digit()?,
                _ => break,
            }
        }
        Some(value)
    }

    fn digit(&mut self) -> Option<u16> {
        self.byte().filter(u8::is_ascii_digit).map(|byte| u16::from(byte - b'0'))
    }

    fn peek(&self) -> Option<u8> {
        self.buf[..self.end].get(self.at).copied()
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }
}

/// Parses a field line, or the empty line that ends the head.
fn field_line(
    head: &mut ParsedResponse,
    buf: &[u8],
    start: usize,
    line_feed: usize,
    limits: &Limits,
) -> Result<(), ResponseError> {
    let line = &buf[start..line_feed];
    if line.is_empty() || line == b"\r" {
        head.phase = ResponsePhase::Done;
        return finish(head, buf);
    }
    if line.starts_with(STATUS_LINE_START) {
        // IIS may repeat the status line.
        head.fields.ignore(Span::new(start, line_feed));
        return check_count(head, limits);
    }
    let mut field = split_field(line).map_err(|error| match error {
        ResponseError::ObsoleteFolding if head.fields.lines.is_empty() => ResponseError::InvalidByteInName,
        error => error,
    })?;
    for span in [&mut field.name, &mut field.value] {
        (span.start, span.end) = (span.start + start as u32, span.end + start as u32);
    }
    add_field(head, field)?;
    check_count(head, limits)
}

/// Splits a line without its line feed into name and value, as ranges of the line.
fn split_field(line: &[u8]) -> Result<Field, ResponseError> {
    // nginx accepts any number of carriage returns before the line feed, but none inside the line.
    let end = line.iter().rposition(|&byte| byte != b'\r').map_or(0, |last| last + 1);
    let text = &line[..end];
    let ends_name = |byte: &u8| matches!(byte, 0..=b' ' | b':' | 0x7f);
    let plain_end = find_name_end(text, 0);
    let name_end =
        text[plain_end..].iter().position(ends_name).map_or(text.len(), |offset| plain_end + offset);
    let value_start = match text.get(name_end) {
        Some(b':') if name_end == 0 => return Err(ResponseError::EmptyName),
        Some(b':') => name_end + 1,
        // A line without a colon: nginx treats the complete line as a name with an empty value. Text that is not a field name, such
        // as the first line of a page, is refused.
        None if name_end > 0 && text.iter().all(|byte| crate::bytes::is_token(*byte)) => name_end,
        None if name_end > 0 => return Err(ResponseError::InvalidByteInName),
        None => return Err(ResponseError::BareCr),
        Some(b' ' | b'\t') if name_end == 0 => return Err(ResponseError::ObsoleteFolding),
        Some(b'\r') => return Err(ResponseError::BareCr),
        Some(_) => return Err(ResponseError::InvalidByteInName),
    };
    match memchr::memchr2(b'\r', 0, &text[value_start..]).map(|at| text[value_start + at]) {
        Some(b'\r') => return Err(ResponseError::BareCr),
        Some(_) => return Err(ResponseError::NulInValue),
        None => {}
    }
    let value = trim_ows(&text[value_start..]);
    let blank = text[value_start..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let value_start = value_start + blank;
    let id = HeaderId::of(&text[..name_end]);
    Ok(Field { name: Span::new(0, name_end), value: Span::new(value_start, value_start + value.len()), id })
}

/// Adds a field to the table, unless it repeats a field of which only the first counts.
pub(super) fn add_field(head: &mut ParsedResponse, field: Field) -> Result<(), ResponseError> {
    if let Some(first) = head.fields.first.get_mut(field.id as usize) {
        if *first == 0 {
            *first = u16::try_from(head.fields.lines.len() + 1).map_err(|_| ResponseError::TooManyFields)?;
        } else if matches!(field.id, HeaderId::ContentLength | HeaderId::TransferEncoding)
            && !head.ends_with_head()
        {
            return Err(ResponseError::Duplicate(field.id));
        } else if field.id.is_first_only() {
            head.fields.ignore(Span { start: field.name.start, end: field.value.end });
            return Ok(());
        }
    }
    head.fields.lines.push(field);
    Ok(())
}

fn check_count(head: &ParsedResponse, limits: &Limits) -> Result<(), ResponseError> {
    if head.fields.count() > usize::from(limits.fields_max) {
        Err(ResponseError::TooManyFields)
    } else {
        Ok(())
    }
}

/// Refuses contradictory lengths, over which two parties could disagree, whether or not the response has a body (RFC 9112 section
/// 6.3). After an error, `line_start` is the start of the text that nginx logs.
pub(super) fn finish(head: &mut ParsedResponse, buf: &[u8]) -> Result<(), ResponseError> {
    // The fields of an interim response announce no body, so no two parties can disagree over its end.
    if head.ends_with_head() {
        return Ok(());
    }
    if let Some(&field) = head.field(HeaderId::ContentLength) {
        head.content_length = crate::parse_decimal(field.value.of(buf));
        if head.content_length.is_none() {
            head.line_start = field.name.start;
            return Err(ResponseError::InvalidContentLength);
        }
    }
    let Some(&coding) = head.field(HeaderId::TransferEncoding) else { return Ok(()) };
    if head.content_length.is_some() {
        return Err(ResponseError::LengthAndTransferEncoding);
    }
    if !coding.value.of(buf).eq_ignore_ascii_case(b"chunked") {
        head.line_start = coding.value.start;
        return Err(ResponseError::UnknownTransferEncoding);
    }
    head.chunked = true;
    Ok(())
}

/// Parses a complete section of field lines, without the final empty line, into `out` (cleared first): trailers or stored fields.
/// No field is ignored.
///
/// # Errors
/// [`ResponseError`] as in a head; `out` is empty then. [`ResponseError::TooManyFields`] above `fields_max`.
pub fn parse_fields(section: &[u8], fields_max: u16, out: &mut Vec<Field>) -> Result<(), ResponseError> {
    out.clear();
    let result = fields_into(section, fields_max, out);
    if result.is_err() {
        out.clear();
    }
    result
}

fn fields_into(section: &[u8], fields_max: u16, out: &mut Vec<Field>) -> Result<(), ResponseError> {
    let mut start = 0;
    while start < section.len() {
        let len = memchr::memchr(b'\n', &section[start..]).unwrap_or(section.len() - start);
        let mut field = split_field(&section[start..start + len])?;
        if out.len() == usize::from(fields_max) {
            return Err(ResponseError::TooManyFields);
        }
        for span in [&mut field.name, &mut field.value] {
            (span.start, span.end) = (span.start + start as u32, span.end + start as u32);
        }
        out.push(field);
        start += len + 1;
    }
    Ok(())
}
