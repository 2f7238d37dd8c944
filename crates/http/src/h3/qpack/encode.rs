//! Encoding of header sections with the static table (RFC 9204 section 4.5).
//!
//! Each function appends field lines to a block without its prefix, which [`push_head`](super::super::Http3Session::push_head) adds.

use super::static_table::STATIC;
use crate::bytes::with_decimal;
use crate::multiplexed::coding::{push_integer, push_text};
use crate::multiplexed::{BlockWriter, KnownField};

/// First byte of an indexed field line of the static table, with a prefix of six bits (RFC 9204 section 4.5.2).
const INDEXED: u8 = 0xc0;

/// First byte of a literal field line whose name is in the static table, with a prefix of four bits (RFC 9204 section 4.5.4).
const NAMED: u8 = 0x50;

/// First byte of a literal field line with a literal name, with a prefix of three bits (RFC 9204 section 4.5.6).
const LITERAL: u8 = 0x20;

/// Bit of never-indexed fields in [`NAMED`] and [`LITERAL`].
const NEVER_NAMED: u8 = 0x20;
const NEVER_LITERAL: u8 = 0x10;

/// Minimum length in bytes of Huffman-coded values: coding shorter ones costs more than their bytes.
const HUFFMAN_MIN: usize = 32;

/// Indices of names in the static table.
mod index {
    pub(super) const AUTHORITY: usize = 0;
    pub(super) const PATH: usize = 1;
    pub(super) const METHOD: usize = 15;
    pub(super) const SCHEME: usize = 22;
    pub(super) const STATUS: usize = 24;
}

/// Appends `:status`, which must be first.
pub fn push_status(out: &mut Vec<u8>, code: u16) {
    let known = match code {
        100 => 63,
        103 => 24,
        200 => 25,
        204 => 64,
        206 => 65,
        302 => 66,
        304 => 26,
        400 => 67,
        403 => 68,
        404 => 27,
        421 => 69,
        425 => 70,
        500 => 71,
        503 => 28,
        _ => 0,
    };
    if known > 0 {
        return push_integer(out, INDEXED, 6, known);
    }
    let digit = |weight: u16| b'0' + (code / weight % 10) as u8;
    push_integer(out, NAMED, 4, index::STATUS);
    out.extend_from_slice(&[3, digit(100), digit(10), digit(1)]);
}

/// Appends the pseudo-header fields of a request (RFC 9114 section 4.3.1), which must be first. An empty authority is omitted; an empty
/// scheme is that of CONNECT, which has no path either.
pub fn push_request(out: &mut Vec<u8>, method: &[u8], scheme: &[u8], target: &[u8], authority: &[u8]) {
    let known = |out: &mut Vec<u8>, name: usize, values: std::ops::Range<usize>, value: &[u8]| {
        let mut same = values.filter(|&index| STATIC[index].1.as_bytes() == value);
        match same.next() {
            Some(index) => push_integer(out, INDEXED, 6, index),
            None => push_named(out, NAMED, name, value),
        }
    };
    known(out, index::METHOD, 15..22, method);
    if !scheme.is_empty() {
        known(out, index::SCHEME, 22..24, scheme);
        known(out, index::PATH, 1..2, target);
    }
    if !authority.is_empty() {
        push_named(out, NAMED, index::AUTHORITY, authority);
    }
}

/// Appends a field with a known name.
pub fn push_known(out: &mut Vec<u8>, name: KnownField, value: &[u8]) {
    let (first, last) = match name {
        KnownField::AcceptRanges => (32, 32),
        KnownField::ContentLength => (4, 4),
        KnownField::ContentType => (44, 54),
        KnownField::Date => return push_named(out, NAMED, 6, value),
        KnownField::ETag => return push_named(out, NAMED, 7, value),
        KnownField::LastModified => return push_named(out, NAMED, 10, value),
        KnownField::Location => return push_named(out, NAMED, 12, value),
        KnownField::Server => return push_named(out, NAMED, 92, value),
        KnownField::Vary => (59, 60),
    };
    let mut same = (first..=last).filter(|&index: &usize| STATIC[index].1.as_bytes() == value);
    match same.next() {
        Some(index) => push_integer(out, INDEXED, 6, index),
        None => push_named(out, NAMED, first, value),
    }
}

/// Works like [`push_known`], for a number.
pub fn push_known_decimal(out: &mut Vec<u8>, name: KnownField, value: u64) {
    with_decimal(value, |digits| push_known(out, name, digits));
}

/// Appends a field; its name is converted to lower case (RFC 9114 section 4.2).
pub fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match static_name(name, value) {
        Some((index, true)) => push_integer(out, INDEXED, 6, index),
        Some((index, false)) => push_named(out, NAMED, index, value),
        None => push_literal(out, LITERAL, name, value),
    }
}

/// Appends a field as never indexed (RFC 9204 section 7.1.3).
pub fn push_never_indexed(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match static_name(name, value) {
        Some((index, _)) => push_named(out, NAMED | NEVER_NAMED, index, value),
        None => push_literal(out, LITERAL | NEVER_LITERAL, name, value),
    }
}

/// Appends a field whose name has this index in the static table.
fn push_named(out: &mut Vec<u8>, first: u8, index: usize, value: &[u8]) {
    push_integer(out, first, 4, index);
    push_value(out, value);
}

fn push_literal(out: &mut Vec<u8>, first: u8, name: &[u8], value: &[u8]) {
    push_integer(out, first, 3, name.len());
    let start = out.len();
    out.extend_from_slice(name);
    out[start..].make_ascii_lowercase();
    push_value(out, value);
}

fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    push_text(out, 0, 7, value, value.len() >= HUFFMAN_MIN);
}

/// Returns an index of a name in the static table, and whether this entry also has the value.
fn static_name(name: &[u8], value: &[u8]) -> Option<(usize, bool)> {
    let mut named = None;
    for &index in candidates(name) {
        let index = usize::from(index);
        let (known, known_value) = STATIC[index];
        if known.as_bytes().eq_ignore_ascii_case(name) {
            if known_value.as_bytes() == value {
                return Some((index, true));
            }
            named.get_or_insert(index);
        }
    }
    named.map(|index| (index, false))
}

/// Returns the indices of the names with this length and first letter.
fn candidates(name: &[u8]) -> &'static [u8] {
    let Some(first) = name.first() else { return &[] };
    match (name.len(), first | 0x20) {
        (3, b'a') => &[2],
        (4, b'd') => &[6],
        (4, b'e') => &[7],
        (4, b'l') => &[11],
        (4, b'v') => &[59, 60],
        (5, b'r') => &[55],
        (6, b'a') => &[29, 30],
        (6, b'c') => &[5],
        (6, b'o') => &[90],
        (6, b's') => &[92],
        (7, b'a') => &[83],
        (7, b'p') => &[91],
        (7, b'r') => &[13],
        (8, b'i') => &[89],
        (8, b'l') => &[12],
        (9, b'e') => &[87],
        (9, b'f') => &[88],
        (10, b'e') => &[86],
        (10, b's') => &[14],
        (10, b'u') => &[95],
        (12, b'c') => &[44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54],
        (13, b'a') => &[32, 84],
        (13, b'c') => &[36, 37, 38, 39, 40, 41],
        (13, b'i') => &[9],
        (13, b'l') => &[10],
        (14, b'c') => &[4],
        (15, b'a') => &[31, 72],
        (15, b'x') => &[96, 97, 98],
        (16, b'c') => &[42, 43],
        (16, b'x') => &[62],
        (17, b'i') => &[8],
        (19, b'c') => &[3],
        (19, b't') => &[93],
        (22, b'x') => &[61],
        (23, b'c') => &[85],
        (25, b's') => &[56, 57, 58],
        (25, b'u') => &[94],
        (27, b'a') => &[35],
        (28, b'a') => &[33, 34, 75, 76, 77, 78],
        (29, b'a') => &[79, 81, 82],
        (30, b'a') => &[80],
        (32, b'a') => &[73, 74],
        _ => &[],
    }
}

/// Writer of blocks for HTTP/3.
#[derive(Clone, Copy, Debug)]
pub struct Qpack;

impl BlockWriter for Qpack {
    fn push_status(out: &mut Vec<u8>, code: u16) {
        push_status(out, code);
    }

    fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        push_field(out, name, value);
    }

    fn push_never_indexed(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        push_never_indexed(out, name, value);
    }

    fn push_known(out: &mut Vec<u8>, name: KnownField, value: &[u8]) {
        push_known(out, name, value);
    }

    fn push_known_decimal(out: &mut Vec<u8>, name: KnownField, value: u64) {
        push_known_decimal(out, name, value);
    }
}
