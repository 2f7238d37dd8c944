//! [`FieldList`]: the header fields of a response that are not members of it, in order.
//!
//! The first fields may be shared with other responses: those of a cache entry are converted once and then used by every hit. Shared
//! fields never change. A change copies them first, so it affects one response only.

use std::rc::Rc;

use http::response::encode::{InvalidField, push_field};

/// Name and value of a field.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Fields in order.
#[derive(Clone, Debug, Default)]
pub struct FieldList {
    /// The first fields, if they are shared.
    shared: Option<Rc<SharedFields>>,
    /// The other fields.
    own: Vec<Pair>,
}

/// Fields that responses share. All of them may be sent.
#[derive(Debug)]
pub struct SharedFields {
    fields: Vec<Pair>,
    /// Their lines in HTTP/1.
    lines: Vec<u8>,
}

impl SharedFields {
    /// Checks and encodes fields.
    ///
    /// # Errors
    /// [`InvalidField`] if one of them must not be sent.
    pub fn new(fields: Vec<Pair>) -> Result<SharedFields, InvalidField> {
        let mut lines = Vec::new();
        fields.iter().try_for_each(|(name, value)| push_field(&mut lines, name, value))?;
        Ok(SharedFields { fields, lines })
    }

    /// Returns the lines of the fields in HTTP/1.
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// Returns the fields.
    pub fn fields(&self) -> &[Pair] {
        &self.fields
    }
}

impl FieldList {
    /// Begins the list with shared fields. The list must be empty; it retains its memory.
    pub fn share(&mut self, fields: Rc<SharedFields>) {
        debug_assert!(self.is_empty(), "shared fields are the first");
        self.shared = Some(fields);
    }

    /// Returns the shared fields at the beginning.
    pub fn shared(&self) -> Option<&SharedFields> {
        self.shared.as_deref()
    }

    /// Returns the fields after the shared ones.
    pub fn own(&self) -> &[Pair] {
        &self.own
    }

    /// Returns all fields, to be changed in any way.
    pub fn to_mut(&mut self) -> &mut Vec<Pair> {
        if let Some(shared) = self.shared.take() {
            self.own.splice(..0, shared.fields.iter().cloned());
        }
        &mut self.own
    }

    /// Whether the list has no fields.
    pub fn is_empty(&self) -> bool {
        self.shared.is_none() && self.own.is_empty()
    }

    /// Returns all fields.
    pub fn iter(&self) -> impl Iterator<Item = &Pair> {
        let shared = self.shared.as_ref().map_or(&[][..], |shared| &shared.fields);
        shared.iter().chain(&self.own)
    }

    /// Appends a field.
    pub fn push(&mut self, field: Pair) {
        self.own.push(field);
    }

    /// Appends fields.
    pub fn extend(&mut self, fields: impl IntoIterator<Item = Pair>) {
        self.own.extend(fields);
    }

    /// Removes the fields of which `keeps` returns `false`.
    pub fn retain(&mut self, keeps: impl Fn(&Pair) -> bool) {
        // Most calls remove nothing.
        if !self.iter().all(&keeps) {
            self.to_mut().retain(keeps);
        }
    }

    /// Removes all fields; the memory of the list is retained.
    pub fn clear(&mut self) {
        self.shared = None;
        self.own.clear();
    }
}

impl From<Vec<Pair>> for FieldList {
    fn from(own: Vec<Pair>) -> FieldList {
        FieldList { shared: None, own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> Pair {
        (name.into(), value.into())
    }

    fn shown(list: &FieldList) -> String {
        let fields = list.iter().map(|(name, value)| {
            format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        });
        fields.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_change_of_shared_fields_affects_one_response() {
        let shared = SharedFields::new(vec![pair("A", "1"), pair("B", "2")]).expect("valid fields");
        assert_eq!(shared.lines(), b"A: 1\r\nB: 2\r\n");
        let shared = Rc::new(shared);
        let sharing = || {
            let mut list = FieldList::default();
            list.share(Rc::clone(&shared));
            list
        };
        let (mut first, second) = (sharing(), sharing());
        first.push(pair("C", "3"));
        assert_eq!((shown(&first), shown(&second)), ("A=1 B=2 C=3".into(), "A=1 B=2".into()));
        first.retain(|(name, _)| name != b"X");
        assert!(first.shared().is_some(), "nothing was removed, so nothing is copied");
        first.retain(|(name, _)| name != b"A");
        first.to_mut()[0].1 = b"4".to_vec();
        assert_eq!((shown(&first), shown(&second)), ("B=4 C=3".into(), "A=1 B=2".into()));
        first.clear();
        assert!(first.is_empty() && !second.is_empty());
    }

    #[test]
    fn fields_that_must_not_be_sent_are_not_shared() {
        assert_eq!(SharedFields::new(vec![pair("A", "x\r\ny")]).err(), Some(InvalidField::Value));
        assert_eq!(SharedFields::new(vec![pair("A b", "x")]).err(), Some(InvalidField::Name));
    }
}
