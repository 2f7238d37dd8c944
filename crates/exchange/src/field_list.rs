//! [`FieldList`]: the header fields of a response that are not members of it, in order.
//!
//! The fields are stored as the lines of an HTTP/1 header section, in memory that the responses of a thread reuse: a field needs no
//! allocation, and HTTP/1 copies all of them at once.
//!
//! The first fields may be shared with other responses: those of a cache entry are converted once and then used by every hit. Shared
//! fields never change. A change copies them first, so it affects one response only.

use std::rc::Rc;

use http::response::encode::check_field;

/// Name and value of a field.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Fields in order, as lines.
#[derive(Clone, Debug, Default)]
pub struct FieldLines {
    /// `Name: value` and CRLF for each field.
    text: Vec<u8>,
    /// The ends of the name and of the line of each field in the text.
    ends: Vec<(u32, u32)>,
    /// Whether one of the fields must not be sent.
    has_invalid: bool,
}

/// Fields in order.
#[derive(Clone, Debug, Default)]
pub struct FieldList {
    /// The first fields, if they are shared. All of them may be sent.
    shared: Option<Rc<FieldLines>>,
    /// The other fields.
    own: FieldLines,
}

impl FieldLines {
    /// Returns the lines; `None` if one of the fields must not be sent.
    pub fn lines(&self) -> Option<&[u8]> {
        (!self.has_invalid).then_some(&*self.text)
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(name_end, end)| {
            let (name_end, end) = (name_end as usize, end as usize);
            let field = (&self.text[start..name_end], &self.text[name_end + 2..end - 2]);
            start = end;
            field
        })
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        self.has_invalid |= check_field(name, value).is_err();
        self.text.extend_from_slice(name);
        let name_end = self.text.len();
        self.text.extend_from_slice(b": ");
        self.text.extend_from_slice(value);
        self.text.extend_from_slice(b"\r\n");
        // Buffers limit the fields of upstreams, and the configuration its own: both are far below 4 GiB.
        self.ends.push((name_end as u32, self.text.len() as u32));
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.has_invalid = false;
    }
}

impl FieldList {
    /// Begins the list with shared fields. The list must be empty; it retains its memory.
    pub fn share(&mut self, fields: Rc<FieldLines>) {
        debug_assert!(self.is_empty(), "shared fields are the first");
        self.shared = Some(fields);
    }

    /// Makes the present fields shared and returns them; `None` if one of them must not be sent.
    pub fn to_shared(&mut self) -> Option<Rc<FieldLines>> {
        self.edit(|_| ());
        self.own.lines()?;
        let fields = Rc::new(std::mem::take(&mut self.own));
        self.shared = Some(Rc::clone(&fields));
        Some(fields)
    }

    /// Returns the fields in at most two parts.
    pub fn parts(&self) -> impl Iterator<Item = &FieldLines> {
        let own = (!self.own.is_empty()).then_some(&self.own);
        self.shared.as_deref().into_iter().chain(own)
    }

    /// Changes the list of all fields in any way.
    pub fn edit<T>(&mut self, change: impl FnOnce(&mut Vec<Pair>) -> T) -> T {
        let mut pairs: Vec<Pair> = self.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let result = change(&mut pairs);
        self.clear();
        pairs.iter().for_each(|(name, value)| self.push(name, value));
        result
    }

    /// Whether the list has no fields.
    pub fn is_empty(&self) -> bool {
        self.shared.is_none() && self.own.is_empty()
    }

    /// Returns name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.parts().flat_map(FieldLines::iter)
    }

    /// Appends a field.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.own.push(name, value);
    }

    /// Removes the fields of which `keeps` returns `false` for their name.
    pub fn retain(&mut self, keeps: impl Fn(&[u8]) -> bool) {
        // Most calls remove nothing.
        if !self.iter().all(|(name, _)| keeps(name)) {
            self.edit(|pairs| pairs.retain(|(name, _)| keeps(name)));
        }
    }

    /// Removes all fields; the memory of the list is retained, unless the fields needed unusually much.
    pub fn clear(&mut self) {
        self.shared = None;
        // Most responses have no fields of their own.
        if !self.own.is_empty() {
            self.own.clear();
            self.own.text.shrink_to(TEXT_KEPT);
        }
    }
}

/// Size in bytes of the memory for field lines that a response keeps for the next one.
const TEXT_KEPT: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(list: &FieldList) -> String {
        let fields = list.iter().map(|(name, value)| {
            format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        });
        fields.collect::<Vec<_>>().join(" ")
    }

    fn list(fields: &[(&str, &str)]) -> FieldList {
        let mut list = FieldList::default();
        fields.iter().for_each(|(name, value)| list.push(name.as_bytes(), value.as_bytes()));
        list
    }

    #[test]
    fn a_change_of_shared_fields_affects_one_response() {
        let shared = list(&[("A", "1"), ("B", "2")]).to_shared().expect("valid fields");
        assert_eq!(shared.lines(), Some(&b"A: 1\r\nB: 2\r\n"[..]));
        let sharing = || {
            let mut list = FieldList::default();
            list.share(Rc::clone(&shared));
            list
        };
        let (mut first, second) = (sharing(), sharing());
        first.push(b"C", b"3");
        assert_eq!((shown(&first), shown(&second)), ("A=1 B=2 C=3".into(), "A=1 B=2".into()));
        first.retain(|name| name != b"X");
        assert!(first.shared.is_some(), "nothing was removed, so nothing is copied");
        first.retain(|name| name != b"A");
        first.edit(|pairs| pairs[0].1 = b"4".to_vec());
        assert_eq!((shown(&first), shown(&second)), ("B=4 C=3".into(), "A=1 B=2".into()));
        first.clear();
        assert!(first.is_empty() && !second.is_empty());
        assert_eq!(shown(&first), "");
    }

    #[test]
    fn fields_that_must_not_be_sent_have_no_lines() {
        for (name, value) in [("A", "x\r\ny"), ("A b", "x"), ("", "x"), ("A", "\u{1}")] {
            let mut list = list(&[("B", ""), (name, value)]);
            assert!(list.parts().any(|part| part.lines().is_none()), "{name}: {value}");
            assert_eq!(shown(&list), format!("B= {name}={value}"));
            assert!(list.to_shared().is_none());
            list.edit(|pairs| pairs.truncate(1));
            assert_eq!(list.parts().map(FieldLines::lines).last(), Some(Some(&b"B: \r\n"[..])));
        }
    }

    #[test]
    fn the_fields_of_a_list_can_be_shared_by_itself() {
        let mut first = list(&[("A", "1")]);
        let shared = first.to_shared().expect("valid fields");
        first.push(b"B", b"2");
        assert_eq!(shown(&first), "A=1 B=2");
        assert_eq!(first.to_shared().and_then(|all| Some(all.lines()?.len())), Some(12));
        assert_eq!(shared.iter().count(), 1);
    }
}
