//! One cache: [`Store`], the interface to its components, shared by all threads.
//!
//! ```text
//!   Store --> Manager --> Fills --> Lookup --> Entries --> index, memory tier, space, purges --> Directory --> disk
//! ```
//! Each component refers only to those on its right.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use io::facts::DeviceId;
use rustix::rand::GetRandomFlags;

use crate::config::{Access, Config};
use crate::disk::directory::{Directory, now_s};
use crate::entries::Entries;
use crate::error::{OpenError, Refused, StoreError};
use crate::fill::order::{Orders, Ticket};
use crate::fill::refresh::refresh;
use crate::fill::start::New;
use crate::fill::{Fill, Fills};
use crate::index::BLOCK_BYTES;
use crate::key::Key;
use crate::lookup::{Hit, Lookup, Selector};
use crate::manager::Manager;
use crate::manager::snapshot::set_aside;
use crate::meta::Meta;
use crate::purge::log::PurgeLog;
use crate::purge::retention::PendingRequest;
use crate::purge::{PurgeEffect, Scope, Subject};
use crate::stats::Stats;

/// One cache. All async functions must be called on a thread with a runtime.
pub struct Store {
    config: Config,
    entries: Arc<Entries>,
    lookup: Arc<Lookup>,
    fills: Arc<Fills>,
    /// The order of the fetches in flight.
    orders: Arc<Orders>,
}

impl Store {
    /// Opens a cache: creates its directory, takes its lock and reads its purges. These calls may block on the disk, so
    /// this is for a start or for a helper thread. [`Store::run`] does everything else.
    pub fn open(config: Config) -> Result<Arc<Store>, OpenError> {
        let mut random = [0; 24];
        // Fails only on kernels without getrandom(2). The seed is predictable then.
        let _ = rustix::rand::getrandom(&mut random, GetRandomFlags::empty());
        let word = |at: usize| u64::from_le_bytes(random[at..at + 8].try_into().expect("eight bytes"));
        let seed = [word(0), word(8)];
        let dir = Arc::new(Directory::open(&config, word(16))?);
        if dir.is_owner() {
            set_aside(&dir);
        } else {
            dir.note(dir.unowned());
        }
        let purges = Arc::new(PurgeLog::open(&config.path, &dir)?);
        let entries = Arc::new(Entries::new(&config, dir, purges, seed));
        if entries.dir.is_owner() && entries.dir.is_empty() {
            // The first responses can be stored immediately, because there are no entries with unknown sizes.
            entries.space.loaded();
        }
        let lookup = Arc::new(Lookup::new(&entries, config.direct));
        let fills = Arc::new(Fills::new(&lookup));
        Ok(Arc::new(Store { config, entries, lookup, fills, orders: Arc::default() }))
    }

    /// Takes ownership of the directory as soon as possible, loads the index and keeps the cache within its limits,
    /// until [`Store::stop`]. Runs once, on one thread.
    pub async fn run(&self) {
        let manager = Manager {
            config: self.config.clone(),
            entries: Arc::clone(&self.entries),
            lookup: Arc::clone(&self.lookup),
            backlog: self.fills.backlog.clone(),
        };
        manager.run().await;
    }

    /// Ends [`Store::run`], which saves the index first and then releases the directory to another process. Fills in
    /// flight are refused from here on; lookups continue.
    pub fn stop(&self) {
        self.entries.dir.stop();
    }

    /// Returns its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns its statistics.
    pub fn stats(&self) -> Stats {
        let (entries, dir) = (&self.entries, &self.entries.dir);
        Stats {
            entries: entries.index.len() as u64,
            entries_max: self.config.entries_max(),
            bytes: entries.space.used.get() * BLOCK_BYTES,
            memory_bytes: entries.memory.bytes(),
            purges: entries.purges.confirmed.get(),
            purge_writes: entries.purges.writes.get(),
            purges_stored: entries.purges.set().len() as u64,
            is_loaded: entries.is_loaded(),
            is_measured: entries.is_measured(),
            is_owner: dir.is_owner(),
            is_pass_through: !dir.health.can_write(),
            is_unwritable: dir.is_unwritable(),
            read_errors: dir.counts.read_errors.get(),
            write_errors: dir.counts.write_errors.get(),
            read_bytes: dir.counts.read_bytes.get(),
            written_bytes: dir.counts.written_bytes.get(),
            pass_throughs: dir.counts.pass_throughs.get(),
            ..entries.counters.stats()
        }
    }

    /// Returns the device of the file system with the entries.
    pub fn device(&self) -> DeviceId {
        self.entries.dir.device
    }
}

/// Lookups.
impl Store {
    /// Returns the entry for a request, from memory if possible; `None` for a miss, also when the entry is damaged or
    /// stores another variant.
    pub async fn find(
        &self,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
    ) -> Result<Option<Hit>, StoreError> {
        self.lookup.find(key, text, selector, self.lookup.access()).await
    }

    /// As [`Store::find`], with the engine settings of a request's location.
    pub async fn find_by(
        &self,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
        access: Access,
    ) -> Result<Option<Hit>, StoreError> {
        self.lookup.find(key, text, selector, access).await
    }

    /// Returns the entry for a request without a wait, if it is in memory or in an open file, `is_wanted` and not purged. After
    /// `None`, [`Store::find_by`] decides; only a returned entry counts as a hit.
    pub fn find_at_hand(
        &self,
        key: &Key,
        text: &[u8],
        access: Access,
        is_wanted: impl Fn(&Meta) -> bool,
    ) -> Option<Hit> {
        self.lookup.find_at_hand(key, text, access, is_wanted)
    }

    /// Whether an entry of any variant is stored under a key. Counts as a use of the entry, but not as a lookup.
    pub async fn holds(&self, key: &Key, text: &[u8]) -> Result<bool, StoreError> {
        self.lookup.holds(key, text).await
    }

    /// Counts a request for a key without an entry, and returns the number of such requests (`proxy_cache_min_uses`), at
    /// most [`crate::index::USES_MAX`].
    pub fn count_use(&self, key: &Key) -> u64 {
        let (uses, victim) = self.entries.index.count_use(&key.0, now_s());
        self.entries.remove_evicted(victim);
        u64::from(uses)
    }
}

/// Fills.
impl Store {
    /// Returns the position of a fetch that begins now among all fetches of its key, for [`crate::New::ticket`].
    pub fn ticket(&self, key: &Key) -> Ticket {
        self.orders.take(*key)
    }

    /// Registers a request that is sent to an upstream now, for [`crate::New::request`].
    pub fn register_request(&self) -> Arc<PendingRequest> {
        self.entries.retention.register(|| self.entries.sequence())
    }

    /// Begins an entry: reserves its disk space and its slot in the index.
    pub async fn begin(&self, new: New) -> Result<Fill, Refused> {
        self.counted(self.fills.begin(new, None).await)
    }

    /// As [`Store::begin`], with a staging directory, which is used if the cache has [`Config::use_temp_path`].
    pub async fn begin_in(&self, new: New, staging: &Path) -> Result<Fill, Refused> {
        self.counted(self.fills.begin(new, self.staging(staging)).await)
    }

    /// Begins to store parts of a response. If another fill has begun or stored an entry for the key, and `joins`
    /// returns `true` for it (both have the same bytes), the parts are added to that entry. `selector` selects the
    /// variant for the request.
    pub async fn begin_parts(
        &self,
        new: New,
        staging: &Path,
        selector: Selector<'_>,
        joins: impl Fn(&Hit) -> bool,
    ) -> Result<Fill, Refused> {
        self.counted(self.fills.begin_parts(new, self.staging(staging), selector, joins).await)
    }

    /// Begins to add parts to a partial entry; several fills may do so concurrently.
    pub async fn extend(&self, hit: &Hit) -> Result<Fill, Refused> {
        self.counted(self.fills.extend(hit).await)
    }

    /// Gives an entry new metadata and a new header section, after a 304. Its key, length, variant and tags do not
    /// change. A purge since its lookup applies to it too.
    pub async fn refresh(&self, hit: &Hit, meta: Meta, head: &[u8]) -> Result<(), Refused> {
        self.counted(refresh(&self.entries, hit, meta, head).await)
    }

    /// Counts a refusal.
    fn counted<T>(&self, result: Result<T, Refused>) -> Result<T, Refused> {
        result.map_err(|refused| self.entries.counters.refuse(refused))
    }

    fn staging(&self, path: &Path) -> Option<Arc<std::ffi::CStr>> {
        let wanted = self.config.use_temp_path.then_some(path)?;
        CString::new(wanted.as_os_str().as_bytes()).ok().map(Arc::from)
    }
}

/// Purges and removals.
impl Store {
    /// Purges. Returns when the purge is durable. The matching entries are deleted when they are found.
    pub async fn purge(&self, scope: Scope, effect: PurgeEffect) -> Result<(), StoreError> {
        self.purge_together(vec![scope], effect).await
    }

    /// Purges several scopes with one write to the log.
    pub async fn purge_together(&self, scopes: Vec<Scope>, effect: PurgeEffect) -> Result<(), StoreError> {
        let key_of = |scope: &Scope| match scope {
            Scope::Key(key) => Some(Key(*key)),
            _ => None,
        };
        let keys: Vec<_> = scopes.iter().map(key_of).collect();
        let first = self.entries.purges.add(scopes, effect).await?;
        if effect == PurgeEffect::Unusable {
            let numbered = (first..).zip(keys).filter_map(|(number, key)| Some((number, key?)));
            numbered.for_each(|(number, key)| self.entries.carry_out(&key, number));
        }
        Ok(())
    }

    /// Prevents responses to earlier requests from becoming entries, because a request has changed their resource.
    /// Waits for an entry that is just being published.
    pub async fn outdate(&self, key: &Key) {
        self.orders.outdate(key);
        drop(self.entries.dir.locks.lock(key).await);
    }

    /// Returns the sequence number of the last purge.
    pub fn sequence(&self) -> u64 {
        self.entries.sequence()
    }

    /// Returns the effect of purges on a response that is not stored yet, as if it were an entry.
    pub fn purge_effect(&self, key: &Key, text: &[u8], tags: &[u8], sequence: u64) -> Option<PurgeEffect> {
        let subject = Subject { primary: &key.0, key: text, tags, sequence };
        self.entries.purges.set().purge_effect(&subject)
    }

    /// Evicts a bounded number of the least valuable entries, to free about this many bytes of the file system for
    /// other writers. Returns whether an entry was evicted.
    pub async fn reclaim(&self, bytes: u64) -> bool {
        self.entries.reclaim(bytes).await
    }
}
