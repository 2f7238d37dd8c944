//! [`plain_line`]: field lines of the form that nearly all have, in requests and responses.

use crate::Span;
use crate::bytes::{find_any_control, find_name_end};

/// Parses the line at `start` if it has the form of nearly every line: a name of letters, digits and hyphens, a colon, at most one
/// space, a value without tabs and without space at its ends, CRLF. Returns name, value and the start of the next line; `None` for
/// other lines, including incomplete and invalid ones, which the parsers handle.
// Inlined in both parsers: as a call it would return its result through memory, which costs 8 % of a request's header section.
#[inline(always)]
pub(crate) fn plain_line(buf: &[u8], start: usize) -> Option<(Span, Span, usize)> {
    let name_end = find_name_end(buf, start);
    if name_end == start || buf.get(name_end) != Some(&b':') {
        return None;
    }
    let value_end = find_any_control(buf, name_end);
    if !buf[value_end..].starts_with(b"\r\n") {
        return None;
    }
    let value_start = name_end + 1 + usize::from(buf[name_end + 1] == b' ');
    let value = &buf[value_start..value_end];
    if value.starts_with(b" ") || value.ends_with(b" ") {
        return None;
    }
    Some((Span::new(start, name_end), Span::new(value_start, value_end), value_end + 2))
}
