//! [`plain_line`]: field lines of the form that nearly all have, in requests and responses.

use super::{Field, HeaderId};
use crate::Span;
use crate::bytes::{find_any_control, find_name_end, find_near_colon};

/// Parses the line at `start` if it has the form of nearly every line: a name of letters, digits and hyphens, a colon, at most one
/// space, a value without tabs and without space at its ends, CRLF. Returns the field and the start of the next line; `None` for
/// other lines, including incomplete and invalid ones, which the parsers handle.
// Inlined in both parsers: as a call it would return its result through memory, which costs 8 % of a request's header section.
#[inline(always)]
pub(crate) fn plain_line(buf: &[u8], start: usize) -> Option<(Field, usize)> {
    let (name_end, id) = plain_name(buf, start)?;
    let value_end = find_any_control(buf, name_end);
    if !buf[value_end..].starts_with(b"\r\n") {
        return None;
    }
    let value_start = name_end + 1 + usize::from(buf[name_end + 1] == b' ');
    let value = &buf[value_start..value_end];
    if value.starts_with(b" ") || value.ends_with(b" ") {
        return None;
    }
    let (name, value) = (Span::new(start, name_end), Span::new(value_start, value_end));
    Some((Field { name, value, id }, value_end + 2))
}

/// Returns the end and the ID of the name at `start`, if it consists of letters, digits and hyphens and a colon follows.
#[inline(always)]
fn plain_name(buf: &[u8], start: usize) -> Option<(usize, HeaderId)> {
    // The bytes of a known name need no other check.
    if let Some(len) = find_near_colon(&buf[start..]) {
        let id = HeaderId::of(&buf[start..start + len]);
        if id != HeaderId::Other {
            return Some((start + len, id));
        }
    }
    let name_end = find_name_end(buf, start);
    let is_name = name_end > start && buf.get(name_end) == Some(&b':');
    is_name.then(|| (name_end, HeaderId::of(&buf[start..name_end])))
}
