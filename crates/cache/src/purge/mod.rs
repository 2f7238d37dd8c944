//! Purges: by key, by prefix or pattern, by tag, or of everything. Purges have sequence numbers, and each object has
//! the number that was current when it was stored. An object that is older than a matching purge is removed, or becomes
//! stale.
//!
//! The cost of a purge does not depend on the number of matching objects. It is written to a log before it is confirmed
//! ([`encode`], [`Log`]), so that it is effective after a crash too. The purged entries are deleted later, when they
//! are found. This file does no I/O: [`log`] writes purges to the disk, [`retention`] decides which purges may be
//! forgotten.

pub(crate) mod log;
pub(crate) mod retention;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

use crate::index::s3fifo::KeyBytes;
use crate::key::{Key, KeyMap};

/// The objects to purge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The object of a key with all its variants.
    Key(KeyBytes),
    /// Keys that match a pattern: `*` stands for any text, including none. A pattern without `*` must match the
    /// complete key.
    Pattern(Box<[u8]>),
    /// Objects whose response has this tag.
    Tag(Box<[u8]>),
    /// Everything.
    All,
}

impl Scope {
    /// Returns the text of the scope in a log record.
    fn text(&self) -> &[u8] {
        match self {
            Scope::Key(key) => key,
            Scope::Pattern(text) | Scope::Tag(text) => text,
            Scope::All => &[],
        }
    }
}

/// The effect on a purged object, the weaker one first: `Purges::forget_part` forgets the effects from one of them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PurgeEffect {
    /// The object becomes stale: it is revalidated before use, and retained in case no upstream responds.
    Stale,
    /// The object is never used again.
    Unusable,
}

/// One purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The objects to purge.
    pub scope: Scope,
    /// The effect.
    pub effect: PurgeEffect,
    /// Sequence number; the purge applies to objects with a smaller number.
    pub sequence: u64,
}

/// The attributes of an object that purges match.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The key by which the object is purged with all its variants.
    pub primary: &'a KeyBytes,
    /// The text of the key.
    pub key: &'a [u8],
    /// Its tags, separated by spaces.
    pub tags: &'a [u8],
    /// Its sequence number.
    pub sequence: u64,
}

/// The purges that may apply to stored objects.
#[derive(Debug, Default)]
pub struct Purges {
    /// Sequence number of the last purge.
    sequence: u64,
    all: Numbers,
    names: Names,
    patterns: Vec<(Box<[u8]>, Numbers)>,
    /// The first purge of this process skipped the numbers above the first value, up to the second value.
    gap: Option<(u64, u64)>,
}

/// Sequence numbers of the last soft and the last hard purge of a name; 0 for none.
type Numbers = [u64; 2];

/// Purged keys and tags in shards. A purge changes one shard, and a rewrite of the log locks the purges for one shard
/// at a time, so the time under the lock does not grow with the number of purges.
#[derive(Debug)]
struct Names {
    shards: Box<[Shard]>,
    hasher: RandomState,
    /// Number of keys and number of tags.
    counts: [usize; 2],
}

#[derive(Debug, Default)]
struct Shard {
    keys: KeyMap<Numbers>,
    tags: HashMap<Box<[u8]>, Numbers>,
}

/// Number of shards: with a million names, a shard has some 4000 names, which are read in less than a millisecond.
const SHARDS: usize = 256;

impl Default for Names {
    fn default() -> Names {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Names { shards, hasher: RandomState::new(), counts: [0; 2] }
    }
}

impl Names {
    /// Returns the shard of a key. A key is a digest, so any of its bytes can select the shard.
    fn shard_of_key(key: &KeyBytes) -> usize {
        usize::from(key[0]) % SHARDS
    }

    fn shard_of_tag(&self, tag: &[u8]) -> usize {
        self.hasher.hash_one(tag) as usize % SHARDS
    }

    fn key(&self, key: &KeyBytes) -> Option<&Numbers> {
        self.shards[Names::shard_of_key(key)].keys.get(&Key(*key))
    }

    fn tag(&self, tag: &[u8]) -> Option<&Numbers> {
        self.shards[self.shard_of_tag(tag)].tags.get(tag)
    }

    fn len(&self) -> usize {
        let [keys, tags] = self.counts;
        keys + tags
    }

    /// Returns the numbers of a key, which is added if necessary; `None` when there is no room for it.
    fn key_mut(&mut self, key: &KeyBytes) -> Option<&mut Numbers> {
        let room = NAMES_MAX - self.len();
        entered(room, &mut self.counts[0], self.shards[Names::shard_of_key(key)].keys.entry(Key(*key)))
    }

    /// As `key_mut`, for a tag.
    fn tag_mut(&mut self, tag: &[u8]) -> Option<&mut Numbers> {
        let (shard, room) = (self.shard_of_tag(tag), NAMES_MAX - self.len());
        entered(room, &mut self.counts[1], self.shards[shard].tags.entry(tag.into()))
    }
}

/// Returns the numbers of a name in its table; adds and counts a new name.
fn entered<'a, N>(room: usize, count: &mut usize, entry: Entry<'a, N, Numbers>) -> Option<&'a mut Numbers> {
    match entry {
        Entry::Occupied(known) => Some(known.into_mut()),
        Entry::Vacant(_) if room == 0 => None,
        Entry::Vacant(place) => {
            *count += 1;
            Some(place.insert([0; 2]))
        }
    }
}

/// Maximum number of stored patterns: each lookup tries all of them. When it is exceeded, the oldest patterns are
/// merged into one that matches everything, which purges too much but never too little.
pub const PATTERNS_MAX: usize = 256;

/// Maximum number of stored keys and tags, about 64 bytes each; above it, a purge applies to everything. A name is
/// removed when no object with it is stored, so this limits the purges of a few minutes.
pub const NAMES_MAX: usize = 1 << 22;

impl Purges {
    /// Returns the sequence number of the last purge. An object whose request is sent now gets this number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Makes the next sequence number higher than `least`.
    pub fn raise_to(&mut self, least: u64) {
        if self.gap.is_none() {
            self.gap = Some((self.sequence, least));
        }
        self.sequence = self.sequence.max(least);
    }

    /// Whether the number of an object is that of a purge that this process does not know: above the last number, or
    /// among those that the first purge of this process skipped.
    pub fn is_unknown(&self, sequence: u64) -> bool {
        sequence > self.sequence || self.gap.is_some_and(|(low, high)| low < sequence && sequence <= high)
    }

    /// Adds a purge and returns it with its sequence number. It is effective immediately; the caller logs it before it
    /// is confirmed.
    pub fn add(&mut self, scope: Scope, effect: PurgeEffect) -> Purge {
        let purge = Purge { scope, effect, sequence: self.sequence + 1 };
        self.apply(&purge);
        assert!(self.sequence == purge.sequence, "numbers are consecutive");
        purge
    }

    /// Applies a purge read from the log.
    pub fn apply(&mut self, purge: &Purge) {
        let Purge { scope, effect, sequence } = purge;
        self.sequence = self.sequence.max(*sequence);
        let named = match scope {
            Scope::All => None,
            Scope::Key(key) => self.names.key_mut(key),
            Scope::Tag(tag) => self.names.tag_mut(tag),
            // An empty pattern matches no key, as keys are not empty: the record carries only a sequence number
            // ([`Purges::part`]).
            Scope::Pattern(pattern) if pattern.is_empty() => return,
            Scope::Pattern(pattern) => Some(self.pattern(pattern)),
        };
        let numbers = match named {
            Some(numbers) => numbers,
            None => &mut self.all,
        };
        numbers[*effect as usize] = numbers[*effect as usize].max(*sequence);
    }

    fn pattern(&mut self, pattern: &[u8]) -> &mut Numbers {
        let known = self.patterns.iter().position(|(text, _)| **text == *pattern);
        let index = known.unwrap_or_else(|| {
            if self.patterns.len() == PATTERNS_MAX {
                let (_, oldest) = self.patterns.remove(0);
                raise(&mut self.all, &oldest);
            }
            self.patterns.push((pattern.into(), [0; 2]));
            self.patterns.len() - 1
        });
        &mut self.patterns[index].1
    }

    /// Returns the effect of the purges on an object; `None` when no purge matches it.
    pub fn purge_effect(&self, subject: &Subject<'_>) -> Option<PurgeEffect> {
        // Most objects are newer than every purge.
        if subject.sequence >= self.sequence {
            return None;
        }
        let mut hit = self.all;
        let mut add = |purged: &Numbers| raise(&mut hit, purged);
        if self.names.len() > 0 {
            self.names.key(subject.primary).inspect(|purged| add(purged));
            let tags = subject.tags.split(|byte| *byte == b' ').filter(|tag| !tag.is_empty());
            tags.filter_map(|tag| self.names.tag(tag)).for_each(&mut add);
        }
        let fitting = self.patterns.iter().filter(|(pattern, _)| fits(pattern, subject.key));
        fitting.for_each(|(_, purged)| add(purged));
        [PurgeEffect::Unusable, PurgeEffect::Stale]
            .into_iter()
            .find(|effect| hit[*effect as usize] > subject.sequence)
    }

    /// Number of ranges for [`Purges::part`] and [`Purges::forget_part`].
    pub const PARTS: usize = SHARDS + 1;

    /// Forgets the purges of one range up to this number. No stored object that they match may be older than they are.
    /// With `keeps_soft`, soft purges are retained because they still apply to stored objects.
    pub fn forget_part(&mut self, part: usize, sequence: u64, keeps_soft: bool) {
        let first = if keeps_soft { PurgeEffect::Unusable } else { PurgeEffect::Stale };
        let keep = |purged: &mut Numbers| {
            let over = purged[first as usize..].iter_mut().filter(|number| **number <= sequence);
            over.for_each(|number| *number = 0);
            *purged != [0; 2]
        };
        let Some(Shard { keys, tags }) = self.names.shards.get_mut(part) else {
            self.patterns.retain_mut(|(_, purged)| keep(purged));
            keep(&mut self.all);
            return;
        };
        let before = [keys.len(), tags.len()];
        keys.retain(|_, purged| keep(purged));
        tags.retain(|_, purged| keep(purged));
        for (count, forgotten) in
            self.names.counts.iter_mut().zip([before[0] - keys.len(), before[1] - tags.len()])
        {
            assert!(*count >= forgotten, "names are counted");
            *count -= forgotten;
        }
    }

    /// Forgets the purges of a key if none of them has a higher number. No older object may be stored under the key.
    pub fn forget_key(&mut self, key: &KeyBytes, sequence: u64) {
        let Entry::Occupied(known) = self.names.shards[Names::shard_of_key(key)].keys.entry(Key(*key)) else {
            return;
        };
        if known.get().iter().all(|number| *number <= sequence) {
            known.remove();
            assert!(self.names.counts[0] > 0, "names are counted");
            self.names.counts[0] -= 1;
        }
    }

    /// Whether a purge may match an object with this key, whatever its text, its tags and its number.
    pub fn may_hit(&self, key: &KeyBytes) -> bool {
        let [_, tags] = self.names.counts;
        self.all != [0; 2] || !self.patterns.is_empty() || tags > 0 || self.names.key(key).is_some()
    }

    /// Returns the number of stored purges.
    pub fn len(&self) -> usize {
        self.names.len() + self.patterns.len() + usize::from(self.all != [0; 2])
    }

    /// Returns the number of stored patterns, at most [`PATTERNS_MAX`].
    pub fn pattern_count(&self) -> usize {
        self.patterns.len()
    }

    /// Whether no purge is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns one range of the purges, for a rewritten log. The last range always ends with a record of the last
    /// sequence number, because the number must not decrease when the last purge is forgotten.
    pub fn part(&self, part: usize) -> Vec<Purge> {
        let mut list = Vec::new();
        let mut add = |scope: Scope, purged: &Numbers| {
            for effect in [PurgeEffect::Stale, PurgeEffect::Unusable]
                .into_iter()
                .filter(|effect| purged[*effect as usize] > 0)
            {
                list.push(Purge { scope: scope.clone(), effect, sequence: purged[effect as usize] });
            }
        };
        match self.names.shards.get(part) {
            Some(Shard { keys, tags }) => {
                keys.iter().for_each(|(key, purged)| add(Scope::Key(key.0), purged));
                tags.iter().for_each(|(tag, purged)| add(Scope::Tag(tag.clone()), purged));
            }
            None => {
                self.patterns.iter().for_each(|(text, purged)| add(Scope::Pattern(text.clone()), purged));
                add(Scope::All, &self.all);
                let number = Scope::Pattern(Box::default());
                list.push(Purge { scope: number, effect: PurgeEffect::Stale, sequence: self.sequence });
            }
        }
        list
    }
}

/// Replaces the number of each effect by the higher one of the two.
fn raise(numbers: &mut Numbers, others: &Numbers) {
    for (number, other) in numbers.iter_mut().zip(others) {
        *number = (*number).max(*other);
    }
}

/// Whether a text matches a pattern with `*`. The cost is bounded by both lengths: each star is matched at the first
/// position where the following text fits, without backtracking.
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

/// Maximum length of a pattern or tag in bytes.
pub const TEXT_MAX: usize = 4096;

/// Bytes of a record before its text: length, checksum, number, kind and effect.
const RECORD_HEAD: usize = 4 + 4 + 8 + 2;

/// Appends a purge as a log record; returns `false` if its text is too long.
///
/// ```text
///   length of the fields after the checksum u32 | crc32c of these fields u32 | number u64 | kind u8 | effect u8 | text
/// ```
pub fn encode(purge: &Purge, checksum: fn(&[u8]) -> u32, out: &mut Vec<u8>) -> bool {
    let kind = match &purge.scope {
        Scope::Key(_) => 0,
        Scope::Pattern(_) => 1,
        Scope::Tag(_) => 2,
        Scope::All => 3,
    };
    let text = purge.scope.text();
    if text.len() > TEXT_MAX {
        return false;
    }
    let start = out.len();
    out.extend_from_slice(&((RECORD_HEAD - 8 + text.len()) as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&purge.sequence.to_le_bytes());
    out.extend_from_slice(&[kind, purge.effect as u8]);
    out.extend_from_slice(text);
    let sum = checksum(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    debug_assert!(out.len() - start == RECORD_HEAD + text.len());
    true
}

/// The records of a log up to the first incomplete one, which was never confirmed.
#[derive(Debug)]
pub struct Log<'a> {
    rest: &'a [u8],
    checksum: fn(&[u8]) -> u32,
    /// Number of bytes of the complete records so far. The next records of the log are written at this offset.
    pub valid_len: usize,
}

impl<'a> Log<'a> {
    /// Creates an iterator over the bytes of a log.
    pub fn new(bytes: &'a [u8], checksum: fn(&[u8]) -> u32) -> Log<'a> {
        Log { rest: bytes, checksum, valid_len: 0 }
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
        // A record with such a text is never written, and a rewritten log could not contain it.
        if text.len() > TEXT_MAX {
            return None;
        }
        let sequence = u64::from_le_bytes(head[..8].try_into().ok()?);
        // The next purge would have no number.
        if sequence == u64::MAX {
            return None;
        }
        let scope = match head[8] {
            0 => Scope::Key(text.try_into().ok()?),
            1 => Scope::Pattern(text.into()),
            2 => Scope::Tag(text.into()),
            3 if text.is_empty() => Scope::All,
            _ => return None,
        };
        let effect = match head[9] {
            0 => PurgeEffect::Stale,
            1 => PurgeEffect::Unusable,
            _ => return None,
        };
        self.rest = &self.rest[8 + len..];
        self.valid_len += 8 + len;
        Some(Purge { scope, effect, sequence })
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

    fn all(purges: &Purges) -> Vec<Purge> {
        (0..Purges::PARTS).flat_map(|part| purges.part(part)).collect()
    }

    fn forget(purges: &mut Purges, sequence: u64, keeps_soft: bool) {
        (0..Purges::PARTS).for_each(|part| purges.forget_part(part, sequence, keeps_soft));
    }

    #[test]
    fn a_key_that_was_purged_twice_is_retained() {
        let mut purges = Purges::default();
        let first = purges.add(Scope::Key(KEY), PurgeEffect::Unusable).sequence;
        let second = purges.add(Scope::Key(KEY), PurgeEffect::Unusable).sequence;
        purges.forget_key(&KEY, first);
        assert_eq!(purges.purge_effect(&subject("x", "", first)), Some(PurgeEffect::Unusable));
        purges.forget_key(&KEY, second);
        assert!(purges.is_empty());
    }

    #[test]
    fn a_purge_applies_to_older_matching_entries() {
        for (scope, hit, missed) in [
            (Scope::Key(KEY), Some(subject("x", "", 0)), None),
            (Scope::Key([8; 16]), None, Some(subject("x", "", 0))),
            (pattern("http/a/*"), Some(subject("http/a/b", "", 0)), Some(subject("http/b", "", 0))),
            (tag("news"), Some(subject("x", "old news", 0)), Some(subject("x", "newspaper", 0))),
            (Scope::All, Some(subject("x", "", 0)), None),
        ] {
            let mut purges = Purges::default();
            let purge = purges.add(scope.clone(), PurgeEffect::Unusable);
            assert_eq!(purge.sequence, 1);
            if let Some(hit) = hit {
                assert_eq!(purges.purge_effect(&hit), Some(PurgeEffect::Unusable), "{scope:?}");
                assert_eq!(
                    purges.purge_effect(&Subject { sequence: 1, ..hit }),
                    None,
                    "{scope:?}: stored since"
                );
            }
            if let Some(missed) = missed {
                assert_eq!(purges.purge_effect(&missed), None, "{scope:?}");
            }
        }
    }

    #[test]
    fn soft_and_hard_purges_are_combined() {
        let mut purges = Purges::default();
        purges.add(tag("a"), PurgeEffect::Unusable);
        purges.add(tag("a"), PurgeEffect::Stale);
        assert_eq!(purges.purge_effect(&subject("x", "a", 0)), Some(PurgeEffect::Unusable));
        assert_eq!(purges.purge_effect(&subject("x", "a", 1)), Some(PurgeEffect::Stale));
        assert_eq!(purges.purge_effect(&subject("x", "a", 2)), None);
    }

    #[test]
    fn excess_purges_are_widened_and_not_lost() {
        let mut purges = Purges::default();
        for number in 0..=PATTERNS_MAX {
            purges.add(pattern(&format!("p{number}-*")), PurgeEffect::Unusable);
        }
        assert_eq!(purges.patterns.len(), PATTERNS_MAX);
        assert_eq!(
            purges.purge_effect(&subject("p0-x", "", 0)),
            Some(PurgeEffect::Unusable),
            "by everything of that time"
        );
        assert_eq!(purges.purge_effect(&subject("other", "", 1)), None, "it is younger than that");
        assert_eq!(purges.purge_effect(&subject("p9-x", "", 1)), Some(PurgeEffect::Unusable));
    }

    #[test]
    fn purges_without_older_entries_are_forgotten() {
        let mut purges = Purges::default();
        purges.add(Scope::Key(KEY), PurgeEffect::Unusable);
        purges.add(Scope::All, PurgeEffect::Stale);
        purges.add(tag("a"), PurgeEffect::Unusable);
        forget(&mut purges, 2, true);
        assert_eq!((purges.len(), purges.sequence()), (2, 3), "the soft one is kept");
        forget(&mut purges, 2, false);
        assert_eq!((purges.len(), purges.sequence()), (1, 3));
        forget(&mut purges, 3, false);
        assert!(purges.is_empty());
        let mut next = Purges::default();
        all(&purges).iter().for_each(|purge| next.apply(purge));
        assert!(next.is_empty());
        assert_eq!(next.sequence(), 3, "numbers never go back");
        assert_eq!(next.purge_effect(&subject("x", "a", 0)), None);
    }

    #[test]
    fn patterns_match_prefixes() {
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
            Purge { scope, effect: if soft { PurgeEffect::Stale } else { PurgeEffect::Unusable }, sequence }
        })
    }

    /// Found by the fuzz target `purge_log`.
    #[test]
    fn an_impossible_record_ends_the_log() {
        let record = |sequence: u64, kind: u8, text: &[u8]| {
            let content = [&sequence.to_le_bytes()[..], &[kind, 1], text].concat();
            [&(content.len() as u32).to_le_bytes()[..], &sum(&content).to_le_bytes(), &content].concat()
        };
        let count = |bytes: &[u8]| Log::new(bytes, sum).count();
        assert_eq!(count(&record(1, 3, b"")), 1);
        assert_eq!(count(&record(1, 3, b"x")), 0, "everything has no text");
        assert_eq!(count(&record(1, 2, &[b'x'; TEXT_MAX])), 1);
        assert_eq!(count(&record(1, 2, &[b'x'; TEXT_MAX + 1])), 0, "too long to be written again");
        assert_eq!(count(&record(u64::MAX, 3, b"")), 0, "no purge could follow");
    }

    proptest! {
        /// A log that is truncated at any position returns the complete records before it, and nothing else.
        #[test]
        fn a_truncated_log_returns_its_complete_records(purges in prop::collection::vec(some_purge(), 0..8), cut in any::<prop::sample::Index>()) {
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
            prop_assert_eq!(log.valid_len, ends[whole]);
        }

        /// The preallocated space behind the last record is zeroed; zeroes end the log.
        #[test]
        fn zeroes_end_the_log(purges in prop::collection::vec(some_purge(), 0..8), zeroes in 0usize..100) {
            let mut bytes = Vec::new();
            purges.iter().for_each(|purge| assert!(encode(purge, sum, &mut bytes)));
            let whole = bytes.len();
            bytes.resize(whole + zeroes, 0);
            let mut log = Log::new(&bytes, sum);
            prop_assert_eq!(&log.by_ref().collect::<Vec<_>>()[..], &purges[..]);
            prop_assert_eq!(log.valid_len, whole);
        }

        /// Only this server writes the log, but disks can corrupt it.
        #[test]
        fn garbage_is_not_a_purge(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut log = Log::new(&bytes, sum);
            let count = log.by_ref().count();
            prop_assert!(log.valid_len <= bytes.len() && (count > 0) == (log.valid_len > 0));
        }

        /// The stored purges have the same effect as all purges ever made.
        #[test]
        fn the_stored_purges_are_equivalent_to_the_history(scopes in prop::collection::vec((0u8..3, any::<bool>()), 0..12)) {
            let mut purges = Purges::default();
            for (kind, soft) in scopes {
                let scope = [tag("a"), pattern("x*"), Scope::All][usize::from(kind)].clone();
                purges.add(scope, if soft { PurgeEffect::Stale } else { PurgeEffect::Unusable });
            }
            let mut again = Purges::default();
            all(&purges).iter().for_each(|purge| again.apply(purge));
            prop_assert_eq!(again.sequence(), purges.sequence());
            for sequence in 0..12 {
                for (key, tags) in [("x1", "a"), ("y", "a b"), ("x", ""), ("y", "")] {
                    let subject = subject(key, tags, sequence);
                    prop_assert_eq!(again.purge_effect(&subject), purges.purge_effect(&subject));
                }
            }
        }
    }
}
