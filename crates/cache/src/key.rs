//! Names of entries: [`Key`], the MD5 of the key text as nginx computes it, and the path of its file ([`Levels`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use md5::{Digest, Md5};

/// Name of an entry: the MD5 of the key text, or of a primary key and a variant. Every entry contains its key text, and
/// every lookup compares it, so two texts with the same MD5 are distinguished.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub [u8; 16]);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Keys have a fixed length, which need not be hashed.
        state.write(&self.0);
    }
}

/// A map from keys to values.
pub type KeyMap<V> = HashMap<Key, V, KeyHash>;

/// Hash function for keys. Keys are digests, so their bits are already spread, but clients can search for texts whose
/// digests share some bits. So the bits are mixed with secret numbers.
#[derive(Clone, Debug)]
pub struct KeyHash {
    seed: u64,
    factor: u64,
}

impl Default for KeyHash {
    fn default() -> KeyHash {
        let random = RandomState::new();
        KeyHash { seed: random.hash_one(0), factor: random.hash_one(1) | 1 }
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { hash: self.seed, factor: self.factor }
    }
}

/// See [`KeyHash`].
#[derive(Debug)]
pub struct KeyHasher {
    hash: u64,
    factor: u64,
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(size_of::<u64>()) {
            let mut word = [0; size_of::<u64>()];
            word[..part.len()].copy_from_slice(part);
            let product = u128::from(self.hash ^ u64::from_le_bytes(word)) * u128::from(self.factor);
            self.hash = product as u64 ^ (product >> 64) as u64;
        }
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// Number of characters of a key in file names.
pub const HEX_LEN: usize = 32;

impl Key {
    /// Returns the key of a key text (the value of `proxy_cache_key`).
    pub fn of(text: &[u8]) -> Key {
        Key(Md5::digest(text).into())
    }

    /// Returns the key of one variant (RFC 9111, section 4.1) of the resource with the key `self`. `variant` is the
    /// selector's value for the request.
    #[must_use]
    pub fn variant(&self, variant: &[u8]) -> Key {
        Key(Md5::new().chain_update(self.0).chain_update(variant).finalize().into())
    }

    /// Returns the key in lower-case hexadecimal digits.
    pub fn hex(&self) -> [u8; HEX_LEN] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0; HEX_LEN];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        hex
    }

    /// Parses the key in a file name; `None` for any other name.
    pub fn from_hex(hex: &[u8]) -> Option<Key> {
        let hex: &[u8; HEX_LEN] = hex.try_into().ok()?;
        let mut key = [0; 16];
        for (byte, pair) in key.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Key(key))
    }
}

/// Number of texts whose keys a thread stores at most.
const RECENT_MAX: usize = 1024;

/// Maximum length in bytes of a text whose key is stored.
const RECENT_TEXT_BYTES_MAX: usize = 256;

/// A text with its key.
type KeyOfText = (Box<[u8]>, Key);

thread_local! {
    /// The keys of recent texts, by [`slot_of`].
    static RECENT: RefCell<Vec<Option<KeyOfText>>> = const { RefCell::new(Vec::new()) };
}

impl Key {
    /// Works like [`Key::of`] for texts that this thread requests often: comparing a stored text takes a fraction of its MD5.
    #[must_use]
    pub fn of_recent(text: &[u8]) -> Key {
        if text.len() > RECENT_TEXT_BYTES_MAX {
            return Key::of(text);
        }
        RECENT.with_borrow_mut(|recent| {
            if recent.is_empty() {
                recent.resize(RECENT_MAX, None);
            }
            let slot = &mut recent[slot_of(text)];
            if let Some((known, key)) = slot
                && **known == *text
            {
                return *key;
            }
            let key = Key::of(text);
            *slot = Some((text.into(), key));
            key
        })
    }
}

/// Returns the slot of a text. Clients may find texts with the same slot; these only replace each other.
fn slot_of(text: &[u8]) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(32);
    let (words, rest) = text.as_chunks::<8>();
    let hash = words.iter().fold(text.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let last = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    (mix(hash, last) % RECENT_MAX as u64) as usize
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.hex()))
    }
}

/// Returns the value of a hexadecimal digit. Rejects upper-case digits, because a file name with them would be a second
/// name for the same key.
fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// Number of digits in the names of each directory level, as nginx's `levels=`: up to three levels of one or two
/// digits, taken from the end of the file name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    digits: [u8; Levels::DEPTH_MAX],
    depth: u8,
}

impl Levels {
    /// Maximum number of levels.
    pub const DEPTH_MAX: usize = 3;

    /// Returns levels with these numbers of digits; `None` when there are too many levels, or a number is neither 1 nor
    /// 2.
    pub fn new(digits: &[u8]) -> Option<Levels> {
        if digits.len() > Levels::DEPTH_MAX || digits.iter().any(|&count| !(1..=2).contains(&count)) {
            return None;
        }
        let mut levels = Levels { digits: [0; Levels::DEPTH_MAX], depth: digits.len() as u8 };
        levels.digits[..digits.len()].copy_from_slice(digits);
        Some(levels)
    }

    /// Returns the number of digits of each level.
    pub fn digits(&self) -> &[u8] {
        &self.digits[..usize::from(self.depth)]
    }

    /// Returns the length of the path that [`Levels::push_path`] appends.
    pub(crate) fn path_len(&self) -> usize {
        let directories = self.digits().iter().map(|&count| 1 + usize::from(count));
        directories.sum::<usize>() + 1 + HEX_LEN
    }

    /// Appends the path of a key's file below the cache's directory, and returns the offset in `path` at which each
    /// parent directory ends.
    pub(crate) fn push_path(&self, path: &mut Vec<u8>, key: &Key) -> Parents {
        let hex = key.hex();
        let mut directories = Parents::default();
        let mut end = HEX_LEN;
        for &count in self.digits() {
            path.push(b'/');
            path.extend_from_slice(&hex[end - usize::from(count)..end]);
            end -= usize::from(count);
            directories.ends[usize::from(directories.count)] = path.len();
            directories.count += 1;
        }
        path.push(b'/');
        path.extend_from_slice(&hex);
        directories
    }
}

/// Offsets at which the parent directories end in an entry's path, the outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parents {
    ends: [usize; Levels::DEPTH_MAX],
    count: u8,
}

impl Parents {
    /// Returns the offsets.
    pub(crate) fn ends(&self) -> &[usize] {
        &self.ends[..usize::from(self.count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_nginx() {
        // The example in nginx's documentation of proxy_cache_path, levels=1:2.
        let key = Key::from_hex(b"b7f54b2df7773722d382f4809d65029c").unwrap();
        let mut path = b"/data/nginx/cache".to_vec();
        let directories = Levels::new(&[1, 2]).unwrap().push_path(&mut path, &key);
        assert_eq!(path, b"/data/nginx/cache/c/29/b7f54b2df7773722d382f4809d65029c");
        assert_eq!(path.len(), b"/data/nginx/cache".len() + Levels::new(&[1, 2]).unwrap().path_len());
        let directories: Vec<&[u8]> = directories.ends().iter().map(|&end| &path[..end]).collect();
        assert_eq!(directories, [&b"/data/nginx/cache/c"[..], b"/data/nginx/cache/c/29"]);
        let mut flat = Vec::new();
        Levels::default().push_path(&mut flat, &key);
        assert_eq!(flat, b"/b7f54b2df7773722d382f4809d65029c");
    }

    #[test]
    fn recent_keys_are_those_of_their_texts() {
        let text = |number: u32| format!("http://example.com/{number}?{}", "x".repeat(number as usize % 300));
        // More texts than slots, so that some replace others; each is requested twice.
        for number in (0..3000).flat_map(|number| [number, number / 2]) {
            let text = text(number);
            assert_eq!(Key::of_recent(text.as_bytes()), Key::of(text.as_bytes()), "{text}");
        }
        assert_eq!(Key::of_recent(b""), Key::of(b""));
    }

    #[test]
    fn keys_with_common_bits_are_distinguished() {
        let hash = KeyHash::default();
        let keys = (0..1000u64).map(|number| {
            let mut key = [7; 16];
            key[8..].copy_from_slice(&(number << 40).to_le_bytes());
            Key(key)
        });
        let mut hashes: Vec<u64> = keys.map(|key| hash.hash_one(key) & 0xffff_ffff).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert!(hashes.len() > 990, "{} of 1000", hashes.len());
        let key = Key::of(b"/");
        assert_eq!(hash.hash_one(key), hash.clone().hash_one(key));
        assert_ne!(hash.hash_one(key), KeyHash::default().hash_one(key));
    }

    #[test]
    fn directory_levels_have_one_or_two_digits() {
        assert!(Levels::new(&[1, 2, 2]).is_some());
        for wrong in [&[0][..], &[3], &[1, 1, 1, 1]] {
            assert_eq!(Levels::new(wrong), None);
        }
    }

    #[test]
    fn a_key_has_only_one_hexadecimal_form() {
        let key = Key::of(b"http://example.com/");
        assert_eq!(key, Key::from_hex(&key.hex()).unwrap());
        assert_eq!(Key::of(b"").hex(), *b"d41d8cd98f00b204e9800998ecf8427e");
        assert_ne!(key.variant(b"gzip"), key.variant(b"br"));
        for wrong in [&b"D41d8cd98f00b204e9800998ecf8427e"[..], b"d4", b"g41d8cd98f00b204e9800998ecf8427e"] {
            assert_eq!(Key::from_hex(wrong), None);
        }
    }
}
