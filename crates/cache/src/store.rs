//! One cache: [`Store`], the facade over its parts, shared by all threads.
//!
//! ```text
//!   Store --> Manager --> Fills --> Lookup --> Entries --> index, memory tier, space, purges --> Directory --> disk
//! ```
//! Each part names only those behind it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use io::op::DeviceId;
use rustix::rand::GetRandomFlags;

use crate::config::{Access, Config};
use crate::disk::directory::{Directory, now_s};
use crate::entries::Entries;
use crate::error::{OpenError, Refused, StoreError};
use crate::fill::new::New;
use crate::fill::order::{Orders, Ticket};
use crate::fill::refresh::refresh;
use crate::fill::{Fill, Fills};
use crate::index::memory::MemoryTier;
use crate::index::space::Space;
use crate::index::{BLOCK_BYTES, Index, Used};
use crate::key::Key;
use crate::lookup::hit::Hit;
use crate::lookup::{Lookup, Selector};
use crate::manager::Manager;
use crate::manager::snapshot::set_aside;
use crate::meta::Meta;
use crate::note::Note;
use crate::purge::log::PurgeLog;
use crate::purge::settling::Asked;
use crate::purge::{Fate, Scope, Subject};
use crate::stats::Stats;

/// One cache. Every call that is async is made on a thread with a runtime.
pub struct Store {
    config: Config,
    entries: Arc<Entries>,
    lookup: Arc<Lookup>,
    fills: Arc<Fills>,
    /// The order of the fetches in flight.
    orders: Arc<Orders>,
}

impl Store {
    /// Opens a cache: makes its directory, takes its lock and reads its purges. These calls may wait for the disk, so it is
    /// for a start, or for [`rt::offload`]; the rest is [`Store::run`]'s.
    pub fn open(config: Config) -> Result<Arc<Store>, OpenError> {
        if let Some(refusal) = config.engine.refusal() {
            return Err(OpenError::Engine(refusal));
        }
        let mut random = [0; 24];
        // The call fails only where the kernel has no such call, and then nothing secret is lost.
        let _ = rustix::rand::getrandom(&mut random, GetRandomFlags::empty());
        let word = |at: usize| u64::from_le_bytes(random[at..at + 8].try_into().expect("eight bytes"));
        let seed = [word(0), word(8)];
        let dir = Arc::new(Directory::open(&config, word(16))?);
        if dir.is_owner() {
            set_aside(&dir);
        } else {
            dir.note(|name| Note::NotOwner { name, path: config.path.clone() });
        }
        let purges = Arc::new(PurgeLog::open(&config.path, &dir)?);
        let used = Used::default();
        let index = Index::new(config.keys_zone, seed, used.clone());
        let memory = MemoryTier::new(config.memory, seed);
        let space = Space::new(config.max_size, config.min_free, used);
        let entries = Arc::new(Entries::new(dir, index, memory, space, purges, config.verify));
        let lookup = Arc::new(Lookup::new(&entries, config.direct));
        let fills = Arc::new(Fills::new(&lookup));
        Ok(Arc::new(Store { config, entries, lookup, fills, orders: Arc::default() }))
    }

    /// Owns the directory as soon as it can, loads the index and keeps the cache within its limits, until [`Store::stop`].
    /// Runs once, on one thread.
    pub async fn run(&self) {
        let manager = Manager {
            config: self.config.clone(),
            entries: Arc::clone(&self.entries),
            lookup: Arc::clone(&self.lookup),
            backlog: self.fills.backlog.clone(),
        };
        manager.run().await;
    }

    /// Ends [`Store::run`], which saves the index first and gives the directory to another process. Fills in flight are
    /// refused from here on; lookups continue.
    pub fn stop(&self) {
        self.entries.dir.stop();
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its numbers.
    pub fn stats(&self) -> Stats {
        let (entries, dir) = (&self.entries, &self.entries.dir);
        Stats {
            entries: entries.index.len() as u64,
            entries_max: self.config.entries_max(),
            bytes: entries.space.used() * BLOCK_BYTES,
            memory_bytes: entries.memory.bytes(),
            purges: entries.purges.confirmed.get(),
            purge_writes: entries.purges.writes.get(),
            purges_kept: entries.purges.set().len() as u64,
            is_loaded: self.is_loaded(),
            is_measured: self.is_measured(),
            is_owner: self.is_owner(),
            is_pass_through: !dir.health.can_write(),
            read_errors: dir.errors.reads.get(),
            write_errors: dir.errors.writes.get(),
            pass_throughs: dir.errors.pass_throughs.get(),
            ..entries.counters.stats()
        }
    }

    /// The file system that entries are on.
    pub fn device(&self) -> DeviceId {
        self.entries.dir.device()
    }

    /// Whether this process fills, evicts and purges.
    pub fn is_owner(&self) -> bool {
        self.entries.dir.is_owner()
    }

    /// Whether all entries on disk are known.
    pub fn is_loaded(&self) -> bool {
        self.entries.is_loaded()
    }

    /// Whether their sizes are known too, which come later.
    pub fn is_measured(&self) -> bool {
        self.entries.is_measured()
    }
}

/// Lookups.
impl Store {
    /// The entry for a request, memory first. A miss is `None`, also where the entry is damaged or for another variant.
    pub async fn find(
        &self,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
    ) -> Result<Option<Hit>, StoreError> {
        self.lookup.find(key, text, selector, self.lookup.access()).await
    }

    /// As [`Store::find`], read with the settings of a request's location.
    pub async fn find_by(
        &self,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
        access: Access,
    ) -> Result<Option<Hit>, StoreError> {
        self.lookup.find(key, text, selector, access).await
    }

    /// Whether anything is stored under a key, whichever variant. It counts as a use of the entry, and as no lookup.
    pub async fn holds(&self, key: &Key, text: &[u8]) -> Result<bool, StoreError> {
        self.lookup.holds(key, text).await
    }

    /// Counts a request for a key without an entry, and returns the number of them (`proxy_cache_min_uses`).
    pub fn count_use(&self, key: &Key) -> u32 {
        u32::from(self.entries.index.count_use(&key.0, now_s()))
    }
}

/// Fills.
impl Store {
    /// The place of a fetch that begins now among all fetches of its key, for [`crate::New::ticket`].
    pub fn ticket(&self, key: &Key) -> Ticket {
        self.orders.take(*key)
    }

    /// A question that goes to an upstream now, for [`crate::New::asked`].
    pub fn ask(&self) -> Arc<Asked> {
        self.entries.ask()
    }

    /// Begins an entry: reserves its bytes and its place.
    pub async fn begin(&self, new: New) -> Result<Fill, Refused> {
        self.fills.begin(new, None).await
    }

    /// The same, with a directory for files that are not complete yet, where the cache has [`Config::use_temp_path`].
    pub async fn begin_in(&self, new: New, staging: &Path) -> Result<Fill, Refused> {
        self.fills.begin(new, self.staging(staging)).await
    }

    /// Begins to store parts of a response, or adds to the entry that another fill has begun or stored meanwhile, if
    /// `joins` finds that both have the same bytes. `selector` finds the one for the request that the parts are for.
    pub async fn begin_parts(
        &self,
        new: New,
        staging: &Path,
        selector: Selector<'_>,
        joins: impl Fn(&Hit) -> bool,
    ) -> Result<Fill, Refused> {
        self.fills.begin_parts(new, self.staging(staging), selector, joins).await
    }

    /// Begins to add parts to a partial entry; others may do so at the same time.
    pub async fn extend(&self, hit: &Hit) -> Result<Fill, Refused> {
        self.fills.extend(hit).await
    }

    /// Gives an entry new facts and a new head, after a 304. Its key, length, variant and tags stay as they are. A purge
    /// since its lookup holds for it too.
    pub async fn refresh(&self, hit: &Hit, meta: Meta, head: &[u8]) -> Result<(), Refused> {
        let refreshed = refresh(&self.entries, hit, meta, head).await;
        refreshed.map_err(|refused| self.entries.counters.refuse(refused))
    }

    fn staging(&self, path: &Path) -> Option<Arc<std::ffi::CStr>> {
        let wanted = self.config.use_temp_path.then_some(path)?;
        CString::new(wanted.as_os_str().as_bytes()).ok().map(Arc::from)
    }
}

/// Purges and removals.
impl Store {
    /// Purges. Returns when the purge holds after a crash too. The entries that it has hit are deleted as they are found.
    pub async fn purge(&self, scope: Scope, fate: Fate) -> Result<(), StoreError> {
        self.purge_together(vec![scope], fate).await
    }

    /// Purges several scopes; one write to the log brings them to the device.
    pub async fn purge_together(&self, scopes: Vec<Scope>, fate: Fate) -> Result<(), StoreError> {
        let key_of = |scope: &Scope| match scope {
            Scope::Key(key) => Some(Key(*key)),
            _ => None,
        };
        let keys: Vec<_> = scopes.iter().map(key_of).collect();
        let first = self.entries.purges.add(scopes, fate).await?;
        if fate == Fate::Gone {
            let numbered = (first..).zip(keys).filter_map(|(number, key)| Some((number, key?)));
            numbered.for_each(|(number, key)| self.entries.carry_out(&key, number));
        }
        Ok(())
    }

    /// Responses to requests up to now do not become entries: a request has changed their resource. An entry that was
    /// about to take its place has it when this returns.
    pub async fn outdate(&self, key: &Key) {
        self.orders.outdate(key);
        drop(self.entries.dir.locks.lock(key).await);
    }

    /// A number that grows with every purge.
    pub fn sequence(&self) -> u64 {
        self.entries.sequence()
    }

    /// The fate of a response that has not taken its place yet, as that of an entry.
    pub fn fate(&self, key: &Key, text: &[u8], tags: &[u8], sequence: u64) -> Option<Fate> {
        let subject = Subject { primary: &key.0, key: text, tags, sequence };
        self.entries.purges.set().fate(&subject)
    }

    /// Gives up about this many bytes of the file system to others that write there. A bounded number of the entries
    /// that are worth least goes. Returns whether any went.
    pub async fn give_room(&self, bytes: u64) -> bool {
        self.entries.give_room(bytes).await
    }
}
