//! One cache: [`Store`], shared by all threads.

use std::sync::Arc;

use crate::config::Config;
use crate::error::{OpenError, Refused, StoreError};
use crate::fill::Fill;
use crate::hit::Hit;
use crate::key::Key;
use crate::meta::{Meta, New};
use crate::purge::{Fate, Scope};
use crate::stats::{Counters, Stats};

/// One cache. Every call that is async is made on a thread with a runtime.
pub struct Store {
    config: Config,
    counters: Counters,
}

/// Makes of the stored `Vary` ([`Meta::vary`]) what the request says to it ([`Meta::variant`]).
pub type Selector<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

impl Store {
    /// Opens a cache. Makes its folder and takes its lock, which a start may wait for; the rest is [`Store::run`]'s.
    pub fn open(config: Config) -> Result<Arc<Store>, OpenError> {
        if let Some(refusal) = config.engine.refusal() {
            return Err(OpenError::Engine(refusal));
        }
        Ok(Arc::new(Store { config, counters: Counters::default() }))
    }

    /// Loads the index and keeps the cache within its limits, until [`Store::stop`]. Runs once, on one thread.
    pub async fn run(self: Arc<Store>) {}

    /// Ends [`Store::run`], which saves the index first and gives the folder to another process. Fills under way are
    /// refused from here on; lookups go on.
    pub fn stop(&self) {}

    /// The entry for a request, memory first. A miss is `None`, also where the entry is damaged or for another variant.
    pub async fn find(
        self: &Arc<Store>,
        _key: &Key,
        _text: &[u8],
        _selector: Selector<'_>,
    ) -> Result<Option<Hit>, StoreError> {
        self.counters.misses.count();
        Ok(None)
    }

    /// Begins an entry: reserves its bytes and its place.
    pub async fn begin(self: &Arc<Store>, _new: New) -> Result<Fill, Refused> {
        Err(self.counters.refuse(Refused::PassThrough))
    }

    /// Begins to add parts to a partial entry, for one caller at a time.
    pub async fn extend(self: &Arc<Store>, _hit: &Hit) -> Result<Fill, Refused> {
        Err(self.counters.refuse(Refused::PassThrough))
    }

    /// Gives an entry new facts and a new head, after a 304. Its length, variant and key stay; so do its tags.
    pub async fn refresh(self: &Arc<Store>, _hit: &Hit, _meta: Meta, _head: &[u8]) -> Result<(), Refused> {
        Err(self.counters.refuse(Refused::PassThrough))
    }

    /// Counts that a key which has no entry was asked for, and answers how often by now (`proxy_cache_min_uses`).
    pub fn count_use(&self, _key: &Key) -> u32 {
        1
    }

    /// Purges: answered when it holds also after a crash. What was purged is deleted later, as it is found.
    pub async fn purge(self: &Arc<Store>, _scope: Scope, _fate: Fate) -> Result<(), StoreError> {
        Err(StoreError::PassThrough)
    }

    /// Its numbers.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
