//! The dynamic table of compressed header sections (RFC 7541 sections 2.3.2 and 4, RFC 9204 section 3.2).
//!
//! Names and values are adjacent in one vector, which is compacted when it has reached twice the size of the table: an entry needs
//! no allocation.

use std::collections::VecDeque;

/// Fixed size in bytes of an entry besides its name and value (RFC 7541 section 4.1, RFC 9204 section 3.2.1).
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// A dynamic table.
#[derive(Debug)]
pub(crate) struct Table {
    bytes: Vec<u8>,
    /// The newest entry is first.
    entries: VecDeque<Entry>,
    size: usize,
    max: usize,
}

/// Location of an entry in the bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    name_len: usize,
    len: usize,
}

impl Table {
    /// Creates an empty table with the maximum size `max`, counted as in RFC 7541 section 4.1.
    pub(crate) fn new(max: usize) -> Table {
        Table { bytes: Vec::new(), entries: VecDeque::new(), size: 0, max }
    }

    /// Returns the maximum size of the table.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Sets the maximum size; evicts the oldest entries if needed (RFC 7541 section 4.3).
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict();
    }

    /// Returns name and value of the entry at `index`; 0 is the newest.
    pub(crate) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        Some(self.bytes[entry.start..entry.start + entry.len].split_at(entry.name_len))
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry (RFC 7541 section 4.4); an entry larger than the table empties it.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) {
        if self.is_too_large(name.len() + value.len()) {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.add_value(start, value);
    }

    /// Adds an entry with the name of another entry, which the new entry may evict (RFC 7541 section 4.4).
    pub(crate) fn add_named_as(&mut self, index: usize, value: &[u8]) {
        let Some(Entry { start: from, name_len, .. }) = self.entries.get(index).copied() else { return };
        if self.is_too_large(name_len + value.len()) {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_within(from..from + name_len);
        self.add_value(start, value);
    }

    /// Returns whether an entry of this length is larger than the table. Empties the table in this case.
    fn is_too_large(&mut self, len: usize) -> bool {
        let is_too_large = len + ENTRY_OVERHEAD > self.max;
        if is_too_large {
            self.entries.clear();
            self.bytes.clear();
            self.size = 0;
        }
        is_too_large
    }

    /// Adds an entry whose name is at `start`, at the end of the bytes.
    fn add_value(&mut self, start: usize, value: &[u8]) {
        let name_len = self.bytes.len() - start;
        self.bytes.extend_from_slice(value);
        let len = self.bytes.len() - start;
        self.entries.push_front(Entry { start, name_len, len });
        self.size += len + ENTRY_OVERHEAD;
        self.evict();
    }

    fn evict(&mut self) {
        while self.size > self.max
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.len + ENTRY_OVERHEAD;
        }
        let used_from = self.entries.back().map_or(self.bytes.len(), |oldest| oldest.start);
        if used_from == self.bytes.len() {
            self.bytes.clear();
        } else if used_from > self.max {
            self.bytes.drain(..used_from);
            self.entries.iter_mut().for_each(|entry| entry.start -= used_from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(table: &Table) -> Vec<String> {
        let text = |(name, value): (&[u8], &[u8])| [name, b"=", value].concat().escape_ascii().to_string();
        (0..table.len()).filter_map(|index| table.get(index)).map(text).collect()
    }

    /// RFC 7541 sections 2.3.2, 4.1 and 4.4.
    #[test]
    fn the_oldest_entries_are_evicted() {
        let mut table = Table::new(2 * (2 + 32));
        table.add(b"a", b"1");
        table.add(b"b", b"2");
        assert_eq!(shown(&table), ["b=2", "a=1"]);
        table.add(b"c", b"3");
        assert_eq!(shown(&table), ["c=3", "b=2"]);
    }

    /// RFC 7541 section 4.4: an entry larger than the table is not an error, and empties it.
    #[test]
    fn an_entry_that_is_too_large_empties_the_table() {
        let mut table = Table::new(40);
        table.add(b"a", b"1");
        table.add(b"b", b"longer than eight");
        assert_eq!((table.len(), table.size, table.bytes.len()), (0, 0, 0));
        table.add(b"a", b"1");
        table.add_named_as(0, &[b'2'; 100_000]);
        table.add(b"c", &[b'3'; 100_000]);
        assert_eq!((table.len(), table.size), (0, 0));
        assert!(table.bytes.capacity() < 1024, "{}", table.bytes.capacity());
    }

    /// RFC 7541 section 4.4: the name may belong to an entry that is evicted.
    #[test]
    fn a_name_is_retained_when_its_entry_is_evicted() {
        let mut table = Table::new(36);
        table.add(b"ab", b"1");
        table.add_named_as(0, b"23");
        assert_eq!(shown(&table), ["ab=23"]);
    }

    /// RFC 7541 section 4.3.
    #[test]
    fn a_smaller_table_retains_the_newest_entries() {
        let mut table = Table::new(4096);
        for value in [b"1", b"2", b"3"] {
            table.add(b"a", value);
        }
        table.set_max(70);
        assert_eq!(shown(&table), ["a=3", "a=2"]);
        table.set_max(0);
        table.add(b"a", b"4");
        assert_eq!(shown(&table), [""; 0]);
    }

    #[test]
    fn memory_is_bounded_for_any_number_of_entries() {
        let mut table = Table::new(200);
        for number in 0..1000 {
            table.add(b"name", format!("{number}").as_bytes());
            assert!(table.bytes.len() <= 2 * 200 + 16 && table.size <= 200);
            assert_eq!(table.get(0).map(|(_, value)| value.to_vec()), Some(format!("{number}").into_bytes()));
        }
    }
}
