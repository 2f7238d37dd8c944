//! What a cache does by itself: it becomes the owner of its folder, loads, keeps its limits, drops what nobody uses, tries
//! a disk that has failed, and saves its index.
//!
//! ```text
//!   not owner --lock--> loading --> managing: room, inactive, trial, purger, snapshot --stop--> saved, unlocked
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io::op::Source;
use rt::file::Create;
use rt::local::Gauge;

use crate::index::Cursor;
use crate::key::Key;
use crate::load::{NAP, Paced, Unread};
use crate::note::Note;
use crate::place::Temp;
use crate::remove::REMOVALS_MAX;
use crate::store::{FILE_MODE, Store, now_ms, now_s};

/// How often the file system is asked for its free space where `min_free` is set; between, what is reserved counts.
const FREE_EVERY: Duration = Duration::from_secs(1);

/// How often the whole index is looked through for what nobody used, at most and at least.
const INACTIVE_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How often the index is saved while the cache is in use.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(300);

/// Entries that are looked at under the lock of a shard.
const SCAN_MAX: usize = 512;

/// Removals under way at once for which nobody waits. Each is a piece of work of a thread of the kernel, which has as much of
/// the processor as the one that serves: of sixteen that has a seventeenth. A second one is there for when the first waits for the
/// disk.
const UNHURRIED_MAX: usize = 2;

/// Purges above which they are worked off without `purger=on`: each costs a lookup in a table, patterns more.
const PURGES_MANY: usize = 1 << 16;

/// The longest that a stop waits for what is being put in place or removed.
const STOP_MAX: Duration = Duration::from_secs(5);

/// When something is due next.
struct Due {
    free: Instant,
    inactive: Instant,
    snapshot: Instant,
    /// The last purge that was worked off.
    purged: u64,
    /// Folders that could not be read so far.
    unread: Option<Unread>,
}

impl Store {
    /// Owns the folder as soon as it can, loads the index and keeps the cache within its limits, until [`Store::stop`].
    /// Runs once, on one thread.
    pub async fn run(self: Arc<Store>) {
        if !self.is_owner() {
            self.wait_to_own().await;
        }
        let unread = if self.is_stopping() { None } else { self.load().await };
        let now = rt::now();
        let mut due = Due { free: now, inactive: now, snapshot: now + SNAPSHOT_EVERY, purged: 0, unread };
        while !self.is_stopping() {
            self.manage(&mut due).await;
            if !self.is_stopping() {
                rt::select(self.bell.rung(), rt::sleep_until(self.next_look(&due))).await;
            }
        }
        if self.is_owner() {
            self.finish().await;
        }
    }

    /// Waits until the process that owns the folder is gone, and takes over from it.
    async fn wait_to_own(self: &Arc<Store>) {
        loop {
            if self.is_stopping() {
                return;
            }
            let store = Arc::clone(self);
            if rt::offload(move || store.try_own()).await == Some(true) {
                break;
            }
            rt::select(self.bell.rung(), rt::sleep_until(rt::now() + NAP)).await;
        }
        // The other process has changed what this one had seen.
        self.forget_all();
        self.follow_purges().await;
        let store = Arc::clone(self);
        rt::offload(move || crate::snapshot::set_aside(store.base())).await;
        self.begin_owning();
        self.note(Note::Owner { name: self.name() });
    }

    fn forget_all(&self) {
        let mut cursor = Some(Cursor::default());
        while let Some(here) = cursor {
            let mut keys = Vec::new();
            cursor = self.index.scan(here, SCAN_MAX, |key, _| keys.push(*key));
            keys.iter().for_each(|key| {
                self.index.remove(key, None);
            });
        }
        self.memory.clear();
    }

    fn next_look(&self, due: &Due) -> Instant {
        let mut next = due.inactive.min(due.snapshot);
        if let Some(unread) = &due.unread {
            next = next.min(unread.due);
        }
        if self.space.has_min_free() {
            next = next.min(due.free);
        }
        match self.health.trial_in(now_ms()) {
            Some(trial) => next.min(rt::now() + trial.max(Duration::from_millis(1))),
            None => next,
        }
    }

    async fn manage(self: &Arc<Store>, due: &mut Due) {
        if self.health.wants_trial(now_ms()) {
            self.try_disk().await;
        }
        if rt::now() >= due.free {
            due.free = rt::now() + FREE_EVERY;
            self.ask_free().await;
        }
        self.make_room().await;
        if let Some(unread) = due.unread.take_if(|unread| rt::now() >= unread.due) {
            due.unread = self.load_rest(unread).await;
        }
        if rt::now() >= due.inactive {
            let (least, most) = INACTIVE_EVERY;
            due.inactive = rt::now() + (self.config.inactive / 4).clamp(least, most);
            self.drop_inactive().await;
        }
        let purges = (self.sequence(), self.purges().len());
        // What is not known was not looked at, so a purge is needed as long as folders are unread.
        let is_known = self.is_loaded() && purges.0 > due.purged;
        if is_known && purges.1 > 0 && (self.config.purger || purges.1 > PURGES_MANY) {
            self.work_off_purges().await;
            due.purged = purges.0;
        }
        if rt::now() >= due.snapshot {
            due.snapshot = rt::now() + SNAPSHOT_EVERY;
            if self.health.can_write()
                && let Err(errno) = self.save_snapshot(false).await
            {
                self.write_failed("saving the index", errno);
            }
        }
    }

    /// Writes a small file and removes it: the disk that has failed may work again.
    async fn try_disk(self: &Arc<Store>) {
        let Ok(temp) = Temp::create(self, Create::New, FILE_MODE).await else { return };
        let mut data = io::Segments::new();
        data.push(Source::Vec(vec![0; 4096]));
        if temp.write(0, data).await.is_err() {
            return;
        }
        if let Err(errno) = temp.file().sync(self.device, self.via()).await {
            return self.write_failed("writing to the disk", errno);
        }
        if self.health.write_worked() {
            self.note(Note::Recovered { name: self.name() });
        }
    }

    async fn ask_free(&self) {
        if !self.space.has_min_free() {
            return;
        }
        // What is not known is taken to be as before.
        if let Ok(space) = rt::file::space(self.path_in(b"."), self.device, self.via()).await {
            self.space.set_free(space.available_bytes);
        }
    }

    /// Evicts until there is room for the fills to come, so many removals at once.
    async fn make_room(self: &Arc<Store>) {
        let pace = Paced::new(self.config.manager);
        loop {
            let short = self.space.above_watermark(0);
            if short == 0 || self.is_stopping() {
                return;
            }
            let victims = self.evict(short, REMOVALS_MAX);
            if victims.is_empty() {
                return;
            }
            let count = victims.len() as u32;
            self.remove_and_wait(victims).await;
            pace.worked(count).await;
        }
    }

    /// Removes what nobody has asked for.
    async fn drop_inactive(self: &Arc<Store>) {
        let before_s = now_s().saturating_sub(self.config.inactive.as_secs() as u32);
        let pace = Paced::new(self.config.manager);
        let mut cursor = Some(Cursor::default());
        while let Some(here) = cursor {
            let mut victims = Vec::new();
            cursor = self.index.expire(here, SCAN_MAX, before_s, &mut victims);
            self.counters.inactive.add(victims.len() as u64);
            while !victims.is_empty() {
                let rest = victims.split_off(victims.len().min(UNHURRIED_MAX));
                let count = victims.len() as u32;
                self.remove_and_wait(std::mem::replace(&mut victims, rest)).await;
                pace.worked(count).await;
            }
            if self.is_stopping() {
                return;
            }
            // Others have their turn between two locks.
            rt::yield_now().await;
        }
    }

    /// Looks at every entry, removes those that purges have hit, and forgets the purges. Those are remembered on where one
    /// entry could not be looked at: it would come back otherwise.
    async fn work_off_purges(self: &Arc<Store>) {
        let sequence = self.sequence();
        let pace = Paced::new(self.config.purger_pace);
        let unjudged = Rc::new(Cell::new(0_u64));
        let mut cursor = Some(Cursor::default());
        while let Some(here) = cursor {
            let mut keys = Vec::new();
            cursor = self.index.scan(here, SCAN_MAX, |key, known| {
                if known.blocks > 0 {
                    keys.push((Key(*key), known));
                }
            });
            for some in keys.chunks(UNHURRIED_MAX) {
                let gauge = Gauge::new();
                for (key, known) in some.iter().copied() {
                    let (store, counted) = (Arc::clone(self), gauge.enter());
                    let unjudged = Rc::clone(&unjudged);
                    rt::spawn(async move {
                        if !store.judge_purged(&key, known).await {
                            unjudged.set(unjudged.get() + 1);
                        }
                        drop(counted);
                    });
                }
                gauge.none_left().await;
                pace.worked(some.len() as u32).await;
                if self.is_stopping() {
                    return;
                }
            }
        }
        if unjudged.get() == 0
            && let Err(errno) = self.forget_purges(sequence).await
        {
            self.write_failed("writing a purge", errno);
        }
    }

    /// Ends the work on the folder, saves the index and lets another process have it.
    async fn finish(self: &Arc<Store>) {
        let deadline = rt::now() + STOP_MAX;
        // What clients have had as stored, and only the disk has not.
        while !self.backlog.is_empty() && rt::now() < deadline {
            rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
        }
        self.end_owning();
        // What had begun before may still change an entry.
        while (!self.leases.is_empty() || self.removals.load(Ordering::Acquire) > 0) && rt::now() < deadline {
            rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
        }
        let is_quiet = self.leases.is_empty() && self.removals.load(Ordering::Acquire) == 0;
        if self.is_measured() && self.health.can_write() {
            // Where it cannot be saved, the next start walks.
            let _ = self.save_snapshot(is_quiet).await;
        }
        self.unlock();
    }
}
