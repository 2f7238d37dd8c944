//! The field lines of the head of a request or response, and their lookup.
//!
//! The parsers decide which lines are added and how a repeated name is handled. Main types: [`FieldTable`], [`FieldLine`].

use super::HeaderId;
use crate::Span;

/// One field line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name as received.
    pub name: Span,
    /// The value, without white space at both ends.
    pub value: Span,
    /// The ID of the name.
    pub id: HeaderId,
}

/// One field line as bytes: the input of the caching functions, from a parsed head or from storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'a> {
    /// The ID of the name.
    pub id: HeaderId,
    /// The name as received.
    pub name: &'a [u8],
    /// The value, without white space at both ends.
    pub value: &'a [u8],
}

impl<'a> FieldLine<'a> {
    /// Creates a line from its name and value.
    #[must_use]
    pub fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self { id: HeaderId::of(name), name, value }
    }
}

/// The fields in the order of arrival. All spans refer to the buffer that was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldTable {
    pub(crate) lines: Vec<Field>,
    /// Index plus one of the first field of each known name.
    pub(crate) first: [u16; HeaderId::COUNT],
    /// Number of ignored lines.
    pub(crate) ignored_count: u16,
    pub(crate) first_ignored: Option<Span>,
}

/// Number of fields for which memory is reserved: more than any browser sends, and more than most responses have.
const RESERVED: usize = 32;

/// Maximum number of fields whose memory is reused for the next header section.
const RETAINED_MAX: usize = 128;

const _: () = assert!(RESERVED <= RETAINED_MAX);

impl FieldTable {
    /// An empty table without allocated memory.
    pub(crate) const EMPTY: FieldTable =
        FieldTable { lines: Vec::new(), first: [0; HeaderId::COUNT], ignored_count: 0, first_ignored: None };

    /// Creates a table with room for the fields of an ordinary head.
    pub(crate) fn new() -> FieldTable {
        FieldTable { lines: Vec::with_capacity(RESERVED), ..FieldTable::EMPTY }
    }

    /// Returns an empty table that reuses the memory of this one, shrunk to [`RETAINED_MAX`] fields.
    #[must_use]
    pub(crate) fn renewed(&mut self) -> FieldTable {
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        lines.shrink_to(RETAINED_MAX);
        FieldTable { lines, ..FieldTable::EMPTY }
    }

    /// Returns the number of field lines, including ignored ones.
    pub(crate) fn count(&self) -> usize {
        self.lines.len() + usize::from(self.ignored_count)
    }

    /// Records an ignored line.
    pub(crate) fn ignore(&mut self, line: Span) {
        self.ignored_count = self.ignored_count.saturating_add(1);
        self.first_ignored.get_or_insert(line);
    }

    /// Sets the value of the first field `name` and removes the other fields of that name; adds a field if there is none. The text
    /// is appended to `buf`.
    pub(crate) fn set(&mut self, buf: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let name_at = buf.len();
        buf.extend_from_slice(name);
        let value_at = buf.len();
        buf.extend_from_slice(value);
        let field = Field {
            name: Span::new(name_at, value_at),
            value: Span::new(value_at, buf.len()),
            id: HeaderId::of(name),
        };
        let is_same = |line: &Field| line.name.of(buf).eq_ignore_ascii_case(name);
        match self.lines.iter().position(is_same) {
            Some(first) => {
                let mut position = 0..;
                self.lines.retain(|line| position.next() == Some(first) || !is_same(line));
                self.lines[first] = field;
            }
            None => self.lines.push(field),
        }
        self.find_first();
    }

    /// Removes all fields whose name matches `is_one`.
    pub(crate) fn remove(&mut self, buf: &[u8], is_one: impl Fn(&[u8]) -> bool) {
        let before = self.lines.len();
        self.lines.retain(|line| !is_one(line.name.of(buf)));
        if self.lines.len() < before {
            self.find_first();
        }
    }

    /// Rebuilds the index of the first field of each known name.
    fn find_first(&mut self) {
        self.first = [0; HeaderId::COUNT];
        for (number, line) in (1..).zip(&self.lines) {
            if let Some(first @ 0) = self.first.get_mut(line.id as usize) {
                *first = number;
            }
        }
    }

    /// Returns the first field `id`.
    pub(crate) fn field(&self, id: HeaderId) -> Option<&Field> {
        let index = *self.first.get(id as usize)?;
        index.checked_sub(1).map(|index| &self.lines[usize::from(index)])
    }

    /// Returns the values of all fields `id`, in order.
    pub(crate) fn all<'a>(
        &'a self,
        buf: &'a [u8],
        id: HeaderId,
    ) -> impl Iterator<Item = &'a [u8]> + Clone + 'a {
        let start = self.first.get(id as usize).map_or(0, |&index| usize::from(index.wrapping_sub(1)));
        let lines = self.lines.get(start..).unwrap_or_default();
        lines.iter().filter(move |field| field.id == id).map(move |field| field.value.of(buf))
    }

    /// Returns the values of all fields with this name, ignoring case.
    pub(crate) fn named<'a>(&'a self, buf: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        let matches = move |field: &&Field| field.name.of(buf).eq_ignore_ascii_case(name);
        self.lines.iter().filter(matches).map(move |field| field.value.of(buf))
    }

    /// Returns the values of all fields for nginx's variables `$http_<name>` and `$upstream_http_<name>`: `name` is in lower case,
    /// with underscores for hyphens.
    pub(crate) fn variable<'a>(
        &'a self,
        buf: &'a [u8],
        name: &'a [u8],
    ) -> impl Iterator<Item = &'a [u8]> + 'a {
        let same =
            |wanted: u8, byte: u8| wanted == byte.to_ascii_lowercase() || (wanted == b'_' && byte == b'-');
        let matches = move |field: &&Field| {
            let text = field.name.of(buf);
            text.len() == name.len() && name.iter().zip(text).all(|(&wanted, &byte)| same(wanted, byte))
        };
        self.lines.iter().filter(matches).map(move |field| field.value.of(buf))
    }
}
