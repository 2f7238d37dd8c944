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

use crate::find::Judged;
use crate::index::Cursor;
use crate::key::Key;
use crate::load::{NAP, Paced, Unread};
use crate::note::Note;
use crate::place::Temp;
use crate::purge::Purges;
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

/// Purges above which they are worked off without `purger=on`, at least and at most. Between, one for every
/// [`ENTRIES_PER_PURGE`] entries: all of those are read for it, so that the work for one purge stays the same.
const PURGES_MANY: (usize, usize) = (1 << 10, 1 << 16);

/// See [`PURGES_MANY`].
const ENTRIES_PER_PURGE: usize = 16;

/// How often purges are looked at that wait for a question to be answered.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// The longest that a stop waits for what is being put in place or removed.
const STOP_MAX: Duration = Duration::from_secs(5);

/// When something is due next.
struct Due {
    free: Instant,
    inactive: Instant,
    snapshot: Instant,
    /// The last purge that was worked off.
    purged: u64,
    /// Purges that were kept then all the same.
    kept: usize,
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
        // Beside: entries are removed while the scrub reads or pauses.
        rt::select(self.keep_in_order(unread), Box::pin(self.scrub())).await;
        if self.is_owner() {
            self.finish().await;
        }
    }

    /// Does what is due, until the store is stopped.
    async fn keep_in_order(self: &Arc<Store>, unread: Option<Unread>) {
        let now = rt::now();
        let mut due =
            Due { free: now, inactive: now, snapshot: now + SNAPSHOT_EVERY, purged: 0, kept: 0, unread };
        while !self.is_stopping() {
            self.manage(&mut due).await;
            if !self.is_stopping() {
                rt::select(self.bell.rung(), rt::sleep_until(self.next_look(&due))).await;
            }
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
        if self.settling.is_pending() {
            next = next.min(rt::now() + SETTLE_EVERY);
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
        self.settle_pending().await;
        self.forget_what_is_over(due).await;
        if self.purge_log.is_long() {
            self.rewrite_log().await;
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

    /// Works purges off where there are many, or `purger=on` is written.
    async fn forget_what_is_over(self: &Arc<Store>, due: &mut Due) {
        let kept = self.purges().len();
        // Entries of older questions may still come.
        let sequence = self.sequence().min(self.settling.settled());
        let (least, most) = PURGES_MANY;
        let many = (self.index.len() / ENTRIES_PER_PURGE).clamp(least, most);
        let is_wanted = self.config.purger || kept.saturating_sub(due.kept) > many;
        // What is not known is not looked at, so a purge is needed as long as folders are unread.
        if kept > 0 && is_wanted && sequence > due.purged && self.is_loaded() {
            self.work_off_purges(sequence).await;
            (due.purged, due.kept) = (sequence, self.purges().len());
        }
    }

    /// Looks at every entry, removes those that purges have hit, and forgets the purges up to this number. They are
    /// remembered on where one entry could not be looked at or removed: it would come back otherwise.
    async fn work_off_purges(self: &Arc<Store>, sequence: u64) {
        let pace = if self.config.purger { self.config.purger_pace } else { self.config.manager };
        let pace = Paced::new(pace);
        let (unjudged, stale) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(false)));
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
                    let (unjudged, stale) = (Rc::clone(&unjudged), Rc::clone(&stale));
                    rt::spawn(async move {
                        match store.judge_purged(&key, known).await {
                            Judged::Outlived => {}
                            Judged::Stale => stale.set(true),
                            Judged::Unknown => unjudged.set(unjudged.get() + 1),
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
        if unjudged.get() > 0 {
            return;
        }
        self.settling.surveyed();
        if !self.settling.all_removed().await {
            return;
        }
        for part in 0..Purges::PARTS {
            self.purges_mut().forget_part(part, sequence, stale.get());
            rt::yield_now().await;
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
