//! What was purged: by key, by prefix or pattern, by tag, or all. A purge is a number in a row, and each object has the
//! number that was current when it was stored: what is older than a purge that fits it is gone, or stale.
//!
//! A purge takes the same work however many objects it hits. It is written to a log before it is answered
//! ([`encode`], [`Log`]), so that it holds after a crash too; what it hit is deleted later, as it is found.
//! Nothing here does I/O.

use std::collections::HashMap;

use crate::fifo::KeyBytes;

/// What is purged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The object of a key with all its variants.
    Key(KeyBytes),
    /// Keys that fit a pattern: `*` stands for any text, also none. Without one in it, the whole key.
    Pattern(Box<[u8]>),
    /// Objects whose answer had this tag.
    Tag(Box<[u8]>),
    /// Everything.
    All,
}

/// What becomes of an object that was purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It is stale: asked for again before it is used, and kept for when nobody answers.
    Stale,
    /// It is never used again.
    Gone,
}

/// One purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// What.
    pub scope: Scope,
    /// How.
    pub fate: Fate,
    /// Objects with a smaller number are meant.
    pub sequence: u64,
}

/// What is asked about an object.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The key by which the object and all its variants are purged.
    pub primary: &'a KeyBytes,
    /// The text of the key.
    pub key: &'a [u8],
    /// Its tags, each behind a blank.
    pub tags: &'a [u8],
    /// Its number.
    pub sequence: u64,
}

/// The purges that some object may still be older than.
#[derive(Debug, Default)]
pub struct Purges {
    /// The number of the last one.
    sequence: u64,
    all: [u64; 2],
    keys: HashMap<KeyBytes, [u64; 2]>,
    tags: HashMap<Box<[u8]>, [u64; 2]>,
    patterns: Vec<(Box<[u8]>, [u64; 2])>,
}

/// Patterns that are kept at once: each lookup tries all of them. With more of them the oldest are made into one that
/// fits everything, which purges too much and never too little.
pub const PATTERNS_MAX: usize = 256;

/// Keys and tags that are kept at once, about 64 bytes each; what is above becomes a purge of everything.
pub const NAMES_MAX: usize = 1 << 18;

impl Purges {
    /// The number of objects that are stored now.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The next purge: its number is to be logged before it is answered. It holds from here on.
    pub fn add(&mut self, scope: Scope, fate: Fate) -> Purge {
        let purge = Purge { scope, fate, sequence: self.sequence + 1 };
        self.apply(&purge);
        purge
    }

    /// Follows a purge of the log.
    pub fn apply(&mut self, purge: &Purge) {
        let Purge { scope, fate, sequence } = purge;
        self.sequence = self.sequence.max(*sequence);
        let place = match scope {
            Scope::All => &mut self.all,
            Scope::Key(key) if self.keys.len() < NAMES_MAX || self.keys.contains_key(key) => {
                self.keys.entry(*key).or_default()
            }
            Scope::Tag(tag) if self.tags.len() < NAMES_MAX || self.tags.contains_key(tag) => {
                self.tags.entry(tag.clone()).or_default()
            }
            Scope::Key(_) | Scope::Tag(_) => &mut self.all,
            Scope::Pattern(pattern) => self.pattern(pattern),
        };
        place[*fate as usize] = place[*fate as usize].max(*sequence);
    }

    fn pattern(&mut self, pattern: &[u8]) -> &mut [u64; 2] {
        let known = self.patterns.iter().position(|(text, _)| **text == *pattern);
        let place = known.unwrap_or_else(|| {
            if self.patterns.len() == PATTERNS_MAX {
                let (_, oldest) = self.patterns.remove(0);
                raise(&mut self.all, &oldest);
            }
            self.patterns.push((pattern.into(), [0; 2]));
            self.patterns.len() - 1
        });
        &mut self.patterns[place].1
    }

    /// What has become of an object; `None` when no purge has hit it.
    pub fn fate(&self, subject: &Subject<'_>) -> Option<Fate> {
        // Most objects are younger than every purge.
        if subject.sequence >= self.sequence {
            return None;
        }
        let mut hit = self.all;
        let mut add = |purged: &[u64; 2]| raise(&mut hit, purged);
        self.keys.get(subject.primary).inspect(|purged| add(purged));
        if !self.tags.is_empty() {
            let tags = subject.tags.split(|byte| *byte == b' ').filter(|tag| !tag.is_empty());
            tags.filter_map(|tag| self.tags.get(tag)).for_each(&mut add);
        }
        let fitting = self.patterns.iter().filter(|(pattern, _)| fits(pattern, subject.key));
        fitting.for_each(|(_, purged)| add(purged));
        [Fate::Gone, Fate::Stale].into_iter().find(|fate| hit[*fate as usize] > subject.sequence)
    }

    /// Forgets the purges up to this number: no object is older than them any more.
    pub fn forget(&mut self, sequence: u64) {
        let keep = |purged: &[u64; 2]| purged.iter().any(|number| *number > sequence);
        self.keys.retain(|_, purged| keep(purged));
        self.tags.retain(|_, purged| keep(purged));
        self.patterns.retain(|(_, purged)| keep(purged));
        if !keep(&self.all) {
            self.all = [0; 2];
        }
    }

    /// Purges that are kept.
    pub fn len(&self) -> usize {
        self.keys.len() + self.tags.len() + self.patterns.len() + usize::from(self.all != [0; 2])
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that is kept, for a log that is written anew. The last number is told even when no purge is left: it must
    /// never go back.
    pub fn list(&self) -> Vec<Purge> {
        let keys = self.keys.iter().map(|(key, purged)| (Scope::Key(*key), *purged));
        let tags = self.tags.iter().map(|(tag, purged)| (Scope::Tag(tag.clone()), *purged));
        let patterns = self.patterns.iter().map(|(text, purged)| (Scope::Pattern(text.clone()), *purged));
        let scopes = keys.chain(tags).chain(patterns).chain([(Scope::All, self.all)]);
        let mut list: Vec<Purge> = scopes
            .flat_map(|(scope, purged)| {
                [Fate::Stale, Fate::Gone].map(|fate| Purge {
                    scope: scope.clone(),
                    fate,
                    sequence: purged[fate as usize],
                })
            })
            .filter(|purge| purge.sequence > 0)
            .collect();
        if list.iter().all(|purge| purge.sequence < self.sequence) {
            // A pattern that fits no key, as keys are not empty.
            list.push(Purge {
                scope: Scope::Pattern(Box::default()),
                fate: Fate::Stale,
                sequence: self.sequence,
            });
        }
        list
    }
}

/// Takes the later of two purges, for each fate.
fn raise(numbers: &mut [u64; 2], others: &[u64; 2]) {
    for (number, other) in numbers.iter_mut().zip(others) {
        *number = (*number).max(*other);
    }
}

/// Whether a text fits a pattern with `*` in it. The work is bounded by their lengths: each star takes the first place
/// where what follows it fits, and never another.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let mut parts = pattern.split(|byte| *byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts.filter(|part| !part.is_empty()) {
        let Some(place) = memchr::memmem::find(rest, part) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.ends_with(last)
}

/// Longest pattern or tag.
pub const TEXT_MAX: usize = 4096;

/// Bytes of a record before its text: length, checksum, number, kind and fate.
const RECORD_HEAD: usize = 4 + 4 + 8 + 2;

/// Appends a purge as a record of the log; the text of one that is too long is `false`.
///
/// ```text
///   length of what follows the checksum u32 | crc32c of it u32 | number u64 | kind u8 | fate u8 | text
/// ```
pub fn encode(purge: &Purge, checksum: fn(&[u8]) -> u32, out: &mut Vec<u8>) -> bool {
    let (kind, text) = match &purge.scope {
        Scope::Key(key) => (0, &key[..]),
        Scope::Pattern(text) => (1, &text[..]),
        Scope::Tag(text) => (2, &text[..]),
        Scope::All => (3, &[][..]),
    };
    if text.len() > TEXT_MAX {
        return false;
    }
    let start = out.len();
    out.extend_from_slice(&((RECORD_HEAD - 8 + text.len()) as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&purge.sequence.to_le_bytes());
    out.extend_from_slice(&[kind, purge.fate as u8]);
    out.extend_from_slice(text);
    let sum = checksum(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    true
}

/// The records of a log, up to the first that is not whole: that one was never answered.
#[derive(Debug)]
pub struct Log<'a> {
    rest: &'a [u8],
    checksum: fn(&[u8]) -> u32,
    /// Bytes of whole records so far: what follows them is to be cut off before the log goes on.
    pub good: usize,
}

impl<'a> Log<'a> {
    /// A log that was read.
    pub fn new(bytes: &'a [u8], checksum: fn(&[u8]) -> u32) -> Log<'a> {
        Log { rest: bytes, checksum, good: 0 }
    }
}

impl Iterator for Log<'_> {
    type Item = Purge;

    fn next(&mut self) -> Option<Purge> {
        let word = |at: usize| self.rest.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let len = u32::from_le_bytes(word(0)?) as usize;
        let sum = u32::from_le_bytes(word(4)?);
        let record = self.rest.get(8..8usize.checked_add(len)?)?;
        if len < RECORD_HEAD - 8 || (self.checksum)(record) != sum {
            return None;
        }
        let (head, text) = record.split_at(RECORD_HEAD - 8);
        let sequence = u64::from_le_bytes(head[..8].try_into().ok()?);
        let scope = match head[8] {
            0 => Scope::Key(text.try_into().ok()?),
            1 => Scope::Pattern(text.into()),
            2 => Scope::Tag(text.into()),
            3 => Scope::All,
            _ => return None,
        };
        let fate = match head[9] {
            0 => Fate::Stale,
            1 => Fate::Gone,
            _ => return None,
        };
        self.rest = &self.rest[8 + len..];
        self.good += 8 + len;
        Some(Purge { scope, fate, sequence })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: KeyBytes = [7; 16];

    fn subject(key: &'static str, tags: &'static str, sequence: u64) -> Subject<'static> {
        Subject { primary: &KEY, key: key.as_bytes(), tags: tags.as_bytes(), sequence }
    }

    fn pattern(text: &str) -> Scope {
        Scope::Pattern(text.as_bytes().into())
    }

    fn tag(text: &str) -> Scope {
        Scope::Tag(text.as_bytes().into())
    }

    #[test]
    fn a_purge_hits_what_is_older_and_fits() {
        for (scope, hit, missed) in [
            (Scope::Key(KEY), Some(subject("x", "", 0)), None),
            (Scope::Key([8; 16]), None, Some(subject("x", "", 0))),
            (pattern("http/a/*"), Some(subject("http/a/b", "", 0)), Some(subject("http/b", "", 0))),
            (tag("news"), Some(subject("x", "old news", 0)), Some(subject("x", "newspaper", 0))),
            (Scope::All, Some(subject("x", "", 0)), None),
        ] {
            let mut purges = Purges::default();
            let purge = purges.add(scope.clone(), Fate::Gone);
            assert_eq!(purge.sequence, 1);
            if let Some(hit) = hit {
                assert_eq!(purges.fate(&hit), Some(Fate::Gone), "{scope:?}");
                assert_eq!(purges.fate(&Subject { sequence: 1, ..hit }), None, "{scope:?}: stored since");
            }
            if let Some(missed) = missed {
                assert_eq!(purges.fate(&missed), None, "{scope:?}");
            }
        }
    }

    #[test]
    fn soft_and_hard_ones_go_together() {
        let mut purges = Purges::default();
        purges.add(tag("a"), Fate::Gone);
        purges.add(tag("a"), Fate::Stale);
        assert_eq!(purges.fate(&subject("x", "a", 0)), Some(Fate::Gone));
        assert_eq!(purges.fate(&subject("x", "a", 1)), Some(Fate::Stale));
        assert_eq!(purges.fate(&subject("x", "a", 2)), None);
    }

    #[test]
    fn what_is_too_much_to_keep_purges_more_and_not_less() {
        let mut purges = Purges::default();
        for number in 0..=PATTERNS_MAX {
            purges.add(pattern(&format!("p{number}-*")), Fate::Gone);
        }
        assert_eq!(purges.patterns.len(), PATTERNS_MAX);
        assert_eq!(purges.fate(&subject("p0-x", "", 0)), Some(Fate::Gone), "by everything of that time");
        assert_eq!(purges.fate(&subject("other", "", 1)), None, "it is younger than that");
        assert_eq!(purges.fate(&subject("p9-x", "", 1)), Some(Fate::Gone));
    }

    #[test]
    fn purges_that_nothing_is_older_than_are_forgotten() {
        let mut purges = Purges::default();
        purges.add(Scope::Key(KEY), Fate::Gone);
        purges.add(Scope::All, Fate::Stale);
        purges.add(tag("a"), Fate::Gone);
        purges.forget(2);
        assert_eq!((purges.len(), purges.sequence()), (1, 3));
        purges.forget(3);
        assert!(purges.is_empty());
        let mut next = Purges::default();
        purges.list().iter().for_each(|purge| next.apply(purge));
        assert_eq!(next.sequence(), 3, "numbers never go back");
        assert_eq!(next.fate(&subject("x", "a", 0)), None);
    }

    #[test]
    fn patterns() {
        for (text, fitting, other) in [
            ("abc", &["abc"][..], &["abcd", "xabc", ""][..]),
            ("abc*", &["abc", "abcd"], &["ab", "xabc"]),
            ("*abc", &["abc", "xabc"], &["abcx"]),
            ("a*b*c", &["abc", "axbxc", "abbcc"], &["acb", "ab", "abcx"]),
            ("a**c", &["ac", "axc"], &["a"]),
            ("*", &["", "x"], &[]),
            ("ab*ba", &["abba", "abxba"], &["aba"]),
        ] {
            for key in fitting {
                assert!(fits(text.as_bytes(), key.as_bytes()), "{text} {key}");
            }
            for key in other {
                assert!(!fits(text.as_bytes(), key.as_bytes()), "{text} {key}");
            }
        }
    }

    fn sum(bytes: &[u8]) -> u32 {
        bytes.iter().fold(17, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)))
    }

    fn some_purge() -> impl Strategy<Value = Purge> {
        let text = prop::collection::vec(any::<u8>(), 0..40);
        (0u8..4, text, any::<bool>(), 1u64..1000).prop_map(|(kind, text, soft, sequence)| {
            let scope = match kind {
                0 => Scope::Key([text.len() as u8; 16]),
                1 => Scope::Pattern(text.into()),
                2 => Scope::Tag(text.into()),
                _ => Scope::All,
            };
            Purge { scope, fate: if soft { Fate::Stale } else { Fate::Gone }, sequence }
        })
    }

    proptest! {
        /// A log that ends anywhere gives back the whole records before that place, and nothing else.
        #[test]
        fn a_log_that_is_torn(purges in prop::collection::vec(some_purge(), 0..8), cut in any::<prop::sample::Index>()) {
            let (mut bytes, mut ends) = (Vec::new(), vec![0]);
            for purge in &purges {
                prop_assert!(encode(purge, sum, &mut bytes));
                ends.push(bytes.len());
            }
            let cut = cut.index(bytes.len() + 1);
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            let mut log = Log::new(&bytes[..cut], sum);
            let read: Vec<Purge> = log.by_ref().collect();
            prop_assert_eq!(&read[..], &purges[..whole]);
            prop_assert_eq!(log.good, ends[whole]);
        }

        /// Nobody but us writes it, but disks make garbage of it.
        #[test]
        fn garbage_is_no_purge(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut log = Log::new(&bytes, sum);
            let count = log.by_ref().count();
            prop_assert!(log.good <= bytes.len() && (count > 0) == (log.good > 0));
        }

        /// What is kept says the same as all that was ever purged.
        #[test]
        fn the_list_is_as_good_as_the_history(scopes in prop::collection::vec((0u8..3, any::<bool>()), 0..12)) {
            let mut purges = Purges::default();
            for (kind, soft) in scopes {
                let scope = [tag("a"), pattern("x*"), Scope::All][usize::from(kind)].clone();
                purges.add(scope, if soft { Fate::Stale } else { Fate::Gone });
            }
            let mut again = Purges::default();
            purges.list().iter().for_each(|purge| again.apply(purge));
            prop_assert_eq!(again.sequence(), purges.sequence());
            for sequence in 0..12 {
                for (key, tags) in [("x1", "a"), ("y", "a b"), ("x", ""), ("y", "")] {
                    let subject = subject(key, tags, sequence);
                    prop_assert_eq!(again.fate(&subject), purges.fate(&subject));
                }
            }
        }
    }
}
