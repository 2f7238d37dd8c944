//! Files of entries that were asked for a moment ago stay open, each thread's own: what is asked for again is neither
//! opened again nor, where it is large, are its header and its table read again. Keeping a file takes more than opening it
//! saves where nothing comes twice, so it is the second time within a second or so that has it kept.
//!
//! Nothing is answered that opening would not have answered: before each use the open file is looked at (fstat(2)), and
//! one that has lost its name, or was changed since its header was read, is let go. A file is held for a second or two,
//! so that nobody who deletes entries or unmounts the disk has to wait for longer.
//!
//! ```text
//!   kept or used --> young --a second, or half the limit--> old --the same--> closed
//!                      ^------------- used again ------------|
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::op::Stat;
use rt::File;

use crate::chunks::Chunks;
use crate::format::header::Header;
use crate::key::Key;
use crate::store::Store;

/// Most files that are held by one thread, for all of its caches: few beside the descriptors of connections.
const HELD_MAX: usize = 256;

/// How long a file that nobody asks for stays young, and then old.
const AGE: Duration = Duration::from_secs(1);

/// A file that is held.
#[derive(Clone)]
pub(crate) struct Holding {
    /// The object of the index that it belongs to.
    pub(crate) version: u32,
    /// Whether it was to be opened for direct reads; the file system may not have been able to.
    pub(crate) direct: bool,
    pub(crate) file: File,
    /// Of a large entry that is whole.
    pub(crate) read: Option<Rc<HeldHead>>,
    /// Until when what was found in memory is taken to be there still.
    pub(crate) resident_until: Rc<Cell<Option<Instant>>>,
}

/// How long what was found in memory is taken to be there: asking costs as much as opening a file. When it is not,
/// whoever sends it finds out.
const RESIDENT_FOR: Duration = Duration::from_millis(100);

impl Holding {
    /// Whether these bytes of the file are in memory, or were a moment ago.
    pub(crate) fn is_resident(&self, start: u64, bytes: u64) -> bool {
        let now = rt::now();
        if self.resident_until.get().is_some_and(|until| now < until) {
            return true;
        }
        let is_resident = io::page_cache::is_resident(self.file.fd(), start, bytes);
        self.resident_until.set(is_resident.then(|| now + RESIDENT_FOR));
        is_resident
    }
}

/// What was read from the start of a large entry's file.
pub(crate) struct HeldHead {
    /// Header and texts.
    pub(crate) image: Arc<[u8]>,
    pub(crate) header: Arc<Header>,
    pub(crate) chunks: Arc<Chunks>,
    /// The file as it was before that.
    pub(crate) seen: Option<Stat>,
}

impl HeldHead {
    /// Of `prefix`, the start of the file, only what the header tells of is kept.
    pub(crate) fn new(
        prefix: &[u8],
        header: &Arc<Header>,
        chunks: &Arc<Chunks>,
        seen: Option<Stat>,
    ) -> Rc<HeldHead> {
        let end = header.text.end.max(header.head.end);
        let (header, chunks) = (Arc::clone(header), Arc::clone(chunks));
        Rc::new(HeldHead { image: Arc::from(&prefix[..end]), header, chunks, seen })
    }
}

/// A store, by its random number, and an entry of it.
type Name = (u64, Key);

type Files = HashMap<Name, Holding, BuildHasherDefault<NameHasher>>;

/// Hashes a [`Name`]: a digest is as good as random, so it is only folded, in a way that the number of the store decides,
/// which clients do not know.
#[derive(Default)]
struct NameHasher(u64);

/// The odd factor of a word: the golden ratio, whose bits follow no pattern.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(size_of::<u64>()) {
            let mut word = [0; size_of::<u64>()];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(FACTOR).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Entries that were opened lately and would be noticed if they were once more: as many as are held, and some that come
/// between.
const LATELY: usize = 512;

struct Held {
    /// Half a key in each place, of the entry that was opened last of those that belong there.
    lately: RefCell<Box<[u64; LATELY]>>,
    young: RefCell<Files>,
    old: RefCell<Files>,
}

impl Default for Held {
    fn default() -> Held {
        let (young, old) = Default::default();
        Held { lately: RefCell::new(Box::new([0; LATELY])), young, old }
    }
}

thread_local! {
    /// Belongs to the task that lets go of what has grown old, and so ends with the thread's runtime.
    static HELD: RefCell<Weak<Held>> = const { RefCell::new(Weak::new()) };
}

impl Store {
    /// The open file of an entry, if it is held and still is what its name stands for.
    pub(crate) fn held(&self, key: &Key, version: u32, direct: bool) -> Option<Holding> {
        let held = HELD.with_borrow(Weak::upgrade)?;
        let name = (self.id(), *key);
        let mut young = held.young.borrow_mut();
        let mut holding = match young.get(&name) {
            Some(holding) => holding.clone(),
            None => {
                let holding = held.old.borrow_mut().remove(&name)?;
                young.insert(name, holding.clone());
                holding
            }
        };
        let is_right = holding.version == version && holding.direct == direct;
        // Of an open file, so it is in memory.
        let stat = if is_right { holding.file.stat_inline().ok() } else { None };
        let Some(stat) = stat.filter(|stat| stat.links > 0) else {
            young.remove(&name);
            return None;
        };
        // It has a new head, which is to be read.
        holding.read.take_if(|read| read.seen != Some(stat));
        Some(holding)
    }

    /// Whether the file of an entry, which was opened just now, is worth to be held: it was opened before, not long ago.
    pub(crate) fn is_to_be_held(&self, key: &Key) -> bool {
        let held = HELD.with_borrow(Weak::upgrade).unwrap_or_else(begin);
        let key = u128::from_be_bytes(key.0);
        let (name, place) = ((key >> 64) as u64 ^ self.id(), key as usize % LATELY);
        let before = std::mem::replace(&mut held.lately.borrow_mut()[place], name);
        before == name
    }

    /// Holds the file of an entry.
    pub(crate) fn hold(&self, key: &Key, holding: Holding) {
        let held = HELD.with_borrow(Weak::upgrade).unwrap_or_else(begin);
        let mut young = held.young.borrow_mut();
        if young.len() >= HELD_MAX / 2 {
            let old = held.old.replace(std::mem::take(&mut young));
            // Files are closed after the tables are whole again.
            drop(young);
            drop(old);
            young = held.young.borrow_mut();
        }
        young.insert((self.id(), *key), holding);
    }
}

/// Starts the task that lets go.
fn begin() -> Rc<Held> {
    let held = Rc::new(Held::default());
    HELD.set(Rc::downgrade(&held));
    let holder = Rc::clone(&held);
    rt::spawn(async move {
        loop {
            rt::sleep_until(rt::now() + AGE).await;
            let old = holder.old.replace(holder.young.take());
            drop(old);
            if holder.old.borrow().is_empty() {
                return;
            }
        }
    });
    held
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    /// As a table takes it: some low bits say where, and seven high ones whether it may be the one.
    #[test]
    fn names_spread_by_each_part_of_them() {
        let hash = |name: &Name| BuildHasherDefault::<NameHasher>::default().hash_one(name);
        let (mut low, mut high) = ([0; 256], [0; 128]);
        for number in 0..16_384_u64 {
            let mut key = [0; 16];
            // Names that differ in few bits, which digests do not: in the store, the first half or the second.
            let name = match number % 3 {
                0 => (number, Key(key)),
                1 => {
                    key[..8].copy_from_slice(&number.to_le_bytes());
                    (0, Key(key))
                }
                _ => {
                    key[8..].copy_from_slice(&number.to_le_bytes());
                    (0, Key(key))
                }
            };
            let hash = hash(&name);
            low[hash as usize % low.len()] += 1;
            high[(hash >> 57) as usize] += 1;
        }
        assert!(low.iter().all(|&count| (16..256).contains(&count)), "{low:?}");
        assert!(high.iter().all(|&count| (32..512).contains(&count)), "{high:?}");
    }
}
