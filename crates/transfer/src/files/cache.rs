//! `open_file_cache`: results of recent opens by path, separate for each worker thread.
//!
//! An entry contains an open file with its size and times, or a directory, or an error. It is valid for
//! `open_file_cache_valid`. After that its path is checked with stat(2), and the file stays open if it is still the
//! same. An entry without requests is removed after `inactive`; the least recently used entry is removed if the cache has
//! `max` entries. Responses share the file; the last response closes it through the engine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::files::{Failure, Opened, OpenedPath};
use crate::recency::{ListSlot, Recency};
use telemetry::links::{Refused, Rule};

/// `open_file_cache`: the limits of one cache. Blocks that inherit the directive share the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries.
    pub max: usize,
    /// Time after which an entry without requests is removed.
    pub inactive: Duration,
}

/// Index of a cache in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheId(pub u16);

/// The caches of one thread for one configuration. The files are closed when the last request with this configuration
/// ends.
#[derive(Debug)]
pub struct Caches {
    configured: Box<[RefCell<Cache>]>,
    /// Files that stay open briefly if no cache is configured.
    pub held: Held,
}

/// Recently requested files, held open. Each use first checks the path with stat(2), which saves the open and leads to the
/// same file. A held file pins the dentries of its path in memory, so that the check does not wait for the disk. Files are
/// held only briefly, because an open file delays the release of its disk space and an unmount.
#[derive(Debug)]
pub struct Held(RefCell<Cache>);

/// Limits of held files: few descriptors compared to those of connections, and a time too brief to disturb a deletion or
/// an unmount.
pub const HELD: Limits = Limits { max: 256, inactive: Duration::from_secs(1) };

/// The settings for held files, which are checked before each use.
pub const HELD_SETTINGS: CacheSettings = CacheSettings { valid: Duration::ZERO, min_uses: 1, errors: false };

impl Held {
    /// Returns the recently opened file of a path.
    pub fn find(&self, path: &[u8]) -> Option<Opened> {
        match self.0.borrow_mut().look_up(path, Rules::default(), HELD_SETTINGS.valid, rt::now()) {
            CacheResult::Unchecked(opened) => Some(opened),
            CacheResult::Valid(_) | CacheResult::Miss => None,
        }
    }

    /// Holds the result for a path, if it is a file; returns whether it is the first one.
    pub fn hold(&self, path: &[u8], found: &Result<OpenedPath, Failure>) -> bool {
        let mut cache = self.0.borrow_mut();
        let was_empty = cache.by_path.is_empty();
        match found {
            Ok(OpenedPath::File(_)) => cache.store(path, Rules::default(), HELD_SETTINGS, found, rt::now()),
            _ => cache.forget(path),
        }
        was_empty && !cache.by_path.is_empty()
    }

    /// Closes files without recent requests; returns whether any remain.
    pub fn close_idle(&self) -> bool {
        let mut cache = self.0.borrow_mut();
        while cache.expire(rt::now()) {}
        !cache.by_path.is_empty()
    }
}

/// The rules of an open; a result under other rules is not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// `disable_symlinks`
    pub links: Rule,
    /// `root_beneath`: length of the root that must not be left.
    pub beneath: Option<usize>,
    /// `directio`: all users of a shared open file read it with O_DIRECT.
    pub directio: Option<u64>,
}

impl Rules {
    /// Whether paths are opened without restrictions.
    pub fn is_plain(self) -> bool {
        !self.links.checks() && self.beneath.is_none()
    }

    /// Whether one system call opens a path.
    pub fn is_one_call(self) -> bool {
        self.links.from == 0 && self.links.refused != Refused::OfOthers
    }
}

/// The location's settings for the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheSettings {
    /// `open_file_cache_valid`
    pub valid: Duration,
    /// `open_file_cache_min_uses`
    pub min_uses: u64,
    /// `open_file_cache_errors`
    pub errors: bool,
}

impl Default for CacheSettings {
    fn default() -> CacheSettings {
        CacheSettings { valid: Duration::from_secs(60), min_uses: 1, errors: false }
    }
}

/// The result of a lookup in the cache.
#[derive(Debug)]
pub enum CacheResult {
    /// A valid result.
    Valid(Result<OpenedPath, Failure>),
    /// The file of an entry that is too old to use without a check.
    Unchecked(Opened),
    /// No entry.
    Miss,
}

impl Caches {
    /// Returns empty caches with these limits.
    pub fn new(limits: &[Limits]) -> Caches {
        let configured = limits.iter().map(|&limits| RefCell::new(Cache::new(limits))).collect();
        Caches { configured, held: Held(RefCell::new(Cache::new(HELD))) }
    }

    /// Looks a path up.
    pub fn look_up(&self, id: CacheId, path: &[u8], rules: Rules, settings: CacheSettings) -> CacheResult {
        self.configured[id.0 as usize].borrow_mut().look_up(path, rules, settings.valid, rt::now())
    }

    /// Returns the file of [`CacheResult::Unchecked`] again, for a request that could not check its path without waiting.
    pub fn earlier(&self, id: CacheId, path: &[u8], rules: Rules) -> Option<Opened> {
        let cache = self.configured[id.0 as usize].borrow();
        let node = &cache.nodes[*cache.by_path.get(path)?];
        match &node.state {
            EntryState::Holds(Ok(OpenedPath::File(opened))) if node.rules == rules => Some(opened.clone()),
            _ => None,
        }
    }

    /// Stores the result for a path.
    pub fn store(
        &self,
        id: CacheId,
        path: &[u8],
        rules: Rules,
        settings: CacheSettings,
        found: &Result<OpenedPath, Failure>,
    ) {
        self.configured[id.0 as usize].borrow_mut().store(path, rules, settings, found, rt::now());
    }

    /// Removes open files that no response uses, the least recently used first, at most this many; returns them to be
    /// closed.
    pub fn evict(&self, files_max: usize) -> Vec<rt::File> {
        let mut files = Vec::new();
        for cache in self.configured.iter().chain([&self.held.0]) {
            cache.borrow_mut().evict(files_max, &mut files);
        }
        files
    }
}

/// One cache.
#[derive(Debug)]
struct Cache {
    limits: Limits,
    /// Indices in `nodes`. Clients choose the paths, so the hash is keyed.
    by_path: HashMap<Rc<[u8]>, ListSlot>,
    nodes: Recency<PathNode>,
}

/// An entry.
#[derive(Debug)]
struct PathNode {
    path: Rc<[u8]>,
    rules: Rules,
    state: EntryState,
    /// Time of the last check of its path.
    checked: Instant,
    /// Time of the last request.
    used: Instant,
    /// Number of requests.
    uses: u64,
}

/// The content of an entry.
#[derive(Debug)]
enum EntryState {
    /// A file, a directory, or an error.
    Holds(Result<OpenedPath, Failure>),
    /// A file that is not requested often enough to stay open.
    Counts,
}

impl Cache {
    fn new(limits: Limits) -> Cache {
        Cache { limits, by_path: HashMap::new(), nodes: Recency::default() }
    }

    /// Returns the state of a path; counts as a use, even if no file is open.
    fn look_up(&mut self, path: &[u8], rules: Rules, valid: Duration, now: Instant) -> CacheResult {
        // Here and not in a timer, so that a server without requests does no work.
        self.expire(now);
        let Some(&slot) = self.by_path.get(path) else { return CacheResult::Miss };
        self.touch(slot, now);
        let node = &mut self.nodes[slot];
        node.uses += 1;
        match &node.state {
            EntryState::Counts => CacheResult::Miss,
            EntryState::Holds(_) if node.rules != rules => CacheResult::Miss,
            EntryState::Holds(found) if now.saturating_duration_since(node.checked) < valid => {
                CacheResult::Valid(found.clone())
            }
            EntryState::Holds(Ok(OpenedPath::File(opened))) => CacheResult::Unchecked(opened.clone()),
            // Only files can be reused after a check, not directories or errors.
            EntryState::Holds(_) => CacheResult::Miss,
        }
    }

    /// Stores the result in the entry of its path, or creates the entry.
    fn store(
        &mut self,
        path: &[u8],
        rules: Rules,
        settings: CacheSettings,
        found: &Result<OpenedPath, Failure>,
        now: Instant,
    ) {
        let known = self.by_path.get(path).copied();
        // A result that is not stored still removes the old entry, because the path leads to another file now.
        if found.as_ref().is_err_and(|failure| !settings.errors || !failure.is_about_the_path()) {
            self.forget(path);
            return;
        }
        let uses = known.map_or(1, |slot| self.nodes[slot].uses);
        let state = match found {
            Ok(OpenedPath::File(_)) if uses < settings.min_uses => EntryState::Counts,
            found => EntryState::Holds(found.clone()),
        };
        match known {
            Some(slot) => {
                let node = &mut self.nodes[slot];
                (node.rules, node.state, node.checked) = (rules, state, now);
                self.touch(slot, now);
            }
            None => {
                while self.by_path.len() >= self.limits.max {
                    let Some(oldest) = self.nodes.oldest() else { return };
                    self.remove(oldest);
                }
                let path: Rc<[u8]> = path.into();
                let (checked, used) = (now, now);
                let node = PathNode { path: Rc::clone(&path), rules, state, checked, used, uses };
                self.by_path.insert(path, self.nodes.insert(node));
            }
        }
    }

    /// As in nginx, removes only a few of the oldest entries per call, so that the work per request stays small.
    /// Returns whether more may remain.
    fn expire(&mut self, now: Instant) -> bool {
        for _ in 0..EXPIRED_PER_REQUEST {
            match self.nodes.oldest() {
                Some(slot) if now.saturating_duration_since(self.used(slot)) > self.limits.inactive => {
                    self.remove(slot);
                }
                _ => return false,
            }
        }
        true
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(&slot) = self.by_path.get(path) {
            self.remove(slot);
        }
    }

    fn used(&self, slot: ListSlot) -> Instant {
        self.nodes[slot].used
    }

    /// Moves open files out of their entries into `files`. A file that is being sent would free no descriptor.
    fn evict(&mut self, files_max: usize, files: &mut Vec<rt::File>) {
        let mut at = self.nodes.oldest();
        while let Some(slot) = at {
            if files.len() >= files_max {
                return;
            }
            at = self.nodes.newer(slot);
            let idle = matches!(&self.nodes[slot].state, EntryState::Holds(Ok(OpenedPath::File(opened))) if opened.file.is_sole());
            if idle && let EntryState::Holds(Ok(OpenedPath::File(opened))) = self.remove(slot) {
                files.push(opened.file);
            }
        }
    }

    fn remove(&mut self, slot: ListSlot) -> EntryState {
        let node = self.nodes.remove(slot);
        self.by_path.remove(&node.path);
        node.state
    }

    fn touch(&mut self, slot: ListSlot, now: Instant) {
        self.nodes[slot].used = now;
        self.nodes.touch(slot);
    }
}

/// Maximum number of inactive entries that one request removes.
const EXPIRED_PER_REQUEST: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use io::Errno;

    const SETTINGS: CacheSettings =
        CacheSettings { valid: Duration::from_secs(60), min_uses: 1, errors: true };

    struct Clock(Cache, Instant);

    impl Clock {
        fn new(max: usize) -> Clock {
            let inactive = Duration::from_secs(20);
            Clock(Cache::new(Limits { max, inactive }), Instant::now())
        }

        fn pass(&mut self, seconds: u64) {
            self.1 += Duration::from_secs(seconds);
        }

        fn put(&mut self, path: &str, found: Result<OpenedPath, Failure>) {
            self.0.store(path.as_bytes(), Rules::default(), SETTINGS, &found, self.1);
        }

        fn is_known(&mut self, path: &str) -> bool {
            matches!(self.look(path, Rules::default()), CacheResult::Valid(_))
        }

        fn look(&mut self, path: &str, rules: Rules) -> CacheResult {
            self.0.look_up(path.as_bytes(), rules, SETTINGS.valid, self.1)
        }
    }

    fn failure(errno: Errno) -> Result<OpenedPath, Failure> {
        Err(Failure { errno, call: "open()" })
    }

    #[test]
    fn the_least_recently_used_file_is_evicted() {
        let mut cache = Clock::new(3);
        for path in ["a", "b", "c"] {
            cache.put(path, Ok(OpenedPath::Directory));
        }
        assert!(cache.is_known("a"), "and it is the newest now");
        cache.put("d", Ok(OpenedPath::Directory));
        assert_eq!(["a", "b", "c", "d"].map(|path| cache.is_known(path)), [true, false, true, true]);
    }

    #[test]
    fn unused_files_are_dropped_and_used_ones_revalidated() {
        let mut cache = Clock::new(10);
        cache.put("idle", Ok(OpenedPath::Directory));
        cache.put("busy", Ok(OpenedPath::Directory));
        for _ in 0..3 {
            cache.pass(19);
            assert!(cache.is_known("busy"));
        }
        assert_eq!(cache.0.by_path.len(), 1);
        cache.pass(3);
        assert!(!cache.is_known("busy"), "valid for 60 s");
    }

    #[test]
    fn other_rules_need_a_separate_lookup() {
        let mut cache = Clock::new(10);
        cache.put("a", Ok(OpenedPath::Directory));
        let other = Rules { directio: Some(1), ..Rules::default() };
        assert!(matches!(cache.look("a", other), CacheResult::Miss));
    }

    #[test]
    fn only_path_errors_are_cached_and_only_if_configured() {
        let mut cache = Clock::new(10);
        cache.put("none", failure(Errno::NOENT));
        cache.put("broken", failure(Errno::IO));
        assert_eq!(["none", "broken"].map(|path| cache.is_known(path)), [true, false]);
        let settings = CacheSettings { errors: false, ..SETTINGS };
        cache.0.store(b"none", Rules::default(), settings, &failure(Errno::NOENT), cache.1);
        assert!(!cache.is_known("none"), "the entry is removed although the new result is not stored");
    }
}
