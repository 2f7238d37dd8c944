//! [`Manager`]: the background work of a cache. It becomes the owner of the directory, loads the index and saves it. It
//! enforces the limits, removes inactive entries, tests a failed disk, and carries out purges.
//!
//! ```text
//!   not owner --lock--> loading --> managing: eviction, inactive, trial, sweep, snapshot --stop--> saved, unlocked
//! ```

pub(crate) mod load;
pub(crate) mod pace;
pub(crate) mod purger;
pub(crate) mod scrub;
pub(crate) mod sizes;
pub(crate) mod snapshot;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::disk::directory::now_s;
use crate::disk::staging::TempFile;
use crate::entries::Entries;
use crate::entries::removal::REMOVALS_MAX;
use crate::fill::backlog::Backlog;
use crate::lookup::Lookup;
use crate::manager::load::{UnreadDirectories, load, load_rest};
use crate::manager::pace::{POLL_INTERVAL, Paced};
use crate::manager::purger::{REMOVALS_CONCURRENT_MAX, forget_pending, work_off_purges};
use crate::manager::scrub::Scrub;
use crate::manager::snapshot::{save_snapshot, set_aside};
use crate::note::Note;
use crate::purge::PATTERNS_MAX;

/// Interval of queries of the file system's free space if `min_free` is set; reservations are counted in between.
const FREE_EVERY: Duration = Duration::from_secs(1);

/// Minimum and maximum interval of scans of the index for inactive entries.
const INACTIVE_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Interval of saves of the index while the cache is in use.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(300);

/// Minimum and maximum of the number of new purges above which a sweep is started without `purger=on`. Between the two,
/// the number is one per [`ENTRIES_PER_PURGE`] entries. A sweep reads all entries, so the work per purge is constant.
const PURGES_PER_SWEEP_RANGE: (usize, usize) = (1 << 10, 1 << 16);

/// See [`PURGES_PER_SWEEP_RANGE`].
const ENTRIES_PER_PURGE: usize = 16;

/// Interval of sweeps while the maximum number of patterns is stored and sweeps cannot forget any of them.
const PATTERNS_AGAIN: Duration = Duration::from_secs(60);

/// Interval of checks of purges that wait for the end of a fetch.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// Maximum time for which a stop waits for publications and removals in flight.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Times at which the periodic tasks are due.
struct Due {
    free: Instant,
    inactive: Instant,
    snapshot: Instant,
    /// Sequence number of the last purge that a sweep has covered.
    purged: u64,
    /// Number of purges that were still stored after that sweep.
    stored: usize,
    /// Number of patterns among them.
    patterns: usize,
    /// Earliest time of the next sweep if that sweep left the maximum number of patterns.
    patterns_again: Instant,
    /// Directories that could not be read so far.
    unread: Option<UnreadDirectories>,
}

/// The manager of one cache: one task.
pub(crate) struct Manager {
    pub(crate) config: Config,
    pub(crate) entries: Arc<Entries>,
    pub(crate) lookup: Arc<Lookup>,
    pub(crate) backlog: Backlog,
}

impl Manager {
    /// Takes ownership of the directory as soon as possible, loads the index and keeps the cache within its limits,
    /// until the stop.
    pub(crate) async fn run(self) {
        let dir = &self.entries.dir;
        if !dir.is_owner() {
            self.wait_for_ownership().await;
        }
        let loads = !dir.is_stopping();
        let unread = if loads { load(&self.entries, self.config.loader).await } else { None };
        // Concurrently: entries are removed while the scrub reads or pauses.
        rt::select(self.run_tasks(unread), Box::pin(self.scrub())).await;
        if dir.is_owner() {
            self.finish().await;
        }
    }

    async fn scrub(&self) {
        match self.config.scrub {
            Some(pass) => Scrub { lookup: &self.lookup, pass }.run().await,
            None => std::future::pending().await,
        }
    }

    /// Runs all due tasks until the stop.
    async fn run_tasks(&self, unread: Option<UnreadDirectories>) {
        let (dir, now) = (&self.entries.dir, rt::now());
        let snapshot = now + SNAPSHOT_EVERY;
        let mut due = Due {
            free: now,
            inactive: now,
            snapshot,
            purged: 0,
            stored: 0,
            patterns: 0,
            patterns_again: now,
            unread,
        };
        while !dir.is_stopping() {
            self.manage(&mut due).await;
            if !dir.is_stopping() {
                rt::select(dir.manager.woken(), rt::sleep_until(self.next_due(&due))).await;
            }
        }
    }

    /// Waits until the process that owns the directory has exited, and takes over from it.
    async fn wait_for_ownership(&self) {
        let (dir, mut is_noted) = (&self.entries.dir, false);
        loop {
            if dir.is_stopping() {
                return dir.unlock();
            }
            let waiting = Arc::clone(dir);
            let is_locked = dir.helpers.run(move || waiting.try_lock()).await == Some(true);
            // Without the purges of the other process, purged entries would be valid again.
            if is_locked && self.read_purges(&mut is_noted).await {
                break;
            }
            rt::select(dir.manager.woken(), rt::sleep_until(rt::now() + POLL_INTERVAL)).await;
        }
        // The other process has changed files that this index lists.
        self.forget_all();
        let owned = Arc::clone(dir);
        dir.helpers.run(move || set_aside(&owned)).await;
        dir.begin_owning();
        dir.note(Note::Owner);
    }

    /// Reads the purges of the process that owned the directory; returns whether all were read. A failure is noted once.
    async fn read_purges(&self, is_noted: &mut bool) -> bool {
        let Err(errno) = self.entries.purges.follow().await else { return true };
        self.entries.dir.counts.read_errors.count();
        if !std::mem::replace(is_noted, true) {
            self.entries.dir.disk_failed("reading the purges", errno);
        }
        false
    }

    fn forget_all(&self) {
        let index = &self.entries.index;
        for (key, _) in index.batches(0).flatten() {
            index.remove(&key, None);
        }
        self.entries.memory.clear();
    }

    fn next_due(&self, due: &Due) -> Instant {
        let mut next = due.inactive.min(due.snapshot);
        if let Some(unread) = &due.unread {
            next = next.min(unread.due);
        }
        if self.entries.space.has_min_free() {
            next = next.min(due.free);
        }
        if self.entries.retention.is_pending() {
            next = next.min(rt::now() + SETTLE_EVERY);
        }
        match self.entries.dir.health.trial_in(self.entries.dir.clock_ms()) {
            Some(trial) => next.min(rt::now() + trial.max(Duration::from_millis(1))),
            None => next,
        }
    }

    async fn manage(&self, due: &mut Due) {
        let entries = &self.entries;
        let dir = &entries.dir;
        if dir.health.needs_trial(dir.clock_ms()) {
            self.try_disk().await;
        }
        if rt::now() >= due.free {
            due.free = rt::now() + FREE_EVERY;
            self.query_free_space().await;
        }
        self.make_room().await;
        if let Some(unread) = due.unread.take_if(|unread| rt::now() >= unread.due) {
            due.unread = load_rest(entries, self.config.loader, unread).await;
        }
        if rt::now() >= due.inactive {
            let (least, most) = INACTIVE_EVERY;
            due.inactive = rt::now() + (self.config.inactive / 4).clamp(least, most);
            self.drop_inactive().await;
        }
        forget_pending(&self.lookup).await;
        self.forget_purges(due).await;
        if entries.purges.is_long() {
            entries.purges.rewrite().await;
        }
        if rt::now() >= due.snapshot {
            due.snapshot = rt::now() + SNAPSHOT_EVERY;
            if dir.health.can_write()
                && let Err(errno) = save_snapshot(entries, false).await
            {
                dir.write_failed("saving the index", errno);
            }
        }
    }

    /// Writes a small file and removes it, to test whether a failed disk works again.
    async fn try_disk(&self) {
        let dir = &self.entries.dir;
        let Ok(temp) = TempFile::create(dir).await else { return };
        if temp.write(0, vec![0; 4096].into()).await.is_err() {
            return;
        }
        if let Err(errno) = dir.sync(temp.file()).await {
            return dir.write_failed("writing to the disk", errno);
        }
        if dir.health.write_succeeded() {
            dir.note(Note::Recovered);
        }
    }

    async fn query_free_space(&self) {
        let (dir, space) = (&self.entries.dir, &self.entries.space);
        // If the query fails, the last value remains.
        if space.has_min_free()
            && let Ok(free) = dir.space().await
        {
            space.set_free(free.available_bytes);
        }
    }

    /// Evicts until there is space for further fills, with a limited number of removals in flight.
    async fn make_room(&self) {
        let pace = Paced::new(self.config.manager);
        loop {
            let short = self.entries.space.above_watermark(0);
            if short == 0 || self.entries.dir.is_stopping() {
                return;
            }
            let victims = self.entries.evict(short, REMOVALS_MAX);
            if victims.is_empty() {
                return;
            }
            let count = victims.len() as u32;
            self.entries.remove_and_wait(victims).await;
            pace.count(count).await;
        }
    }

    /// Removes entries that were not requested for `inactive`.
    async fn drop_inactive(&self) {
        let entries = &self.entries;
        let before_s = now_s().saturating_sub(self.config.inactive.as_secs() as u32);
        let pace = Paced::new(self.config.manager);
        for batch in entries.index.batches(0) {
            let mut victims = entries.index.expire(&batch, before_s);
            entries.counters.inactive.add(victims.len() as u64);
            while !victims.is_empty() {
                let rest = victims.split_off(victims.len().min(REMOVALS_CONCURRENT_MAX));
                let count = victims.len() as u32;
                entries.remove_and_wait(std::mem::replace(&mut victims, rest)).await;
                pace.count(count).await;
            }
            if entries.dir.is_stopping() {
                return;
            }
            // Other tasks run between two locks.
            rt::yield_now().await;
        }
    }

    /// Starts a sweep of the purges if there are many, or with `purger=on`.
    async fn forget_purges(&self, due: &mut Due) {
        let entries = &self.entries;
        let counts = || {
            let purges = entries.purges.set();
            (purges.len(), purges.pattern_count())
        };
        let (stored, patterns) = counts();
        // Later purges are retained, because responses to requests that were sent before them may still be stored.
        let sequence = entries.sequence().min(entries.retention.without_older_requests());
        let (least, most) = PURGES_PER_SWEEP_RANGE;
        let many = (entries.index.len() / ENTRIES_PER_PURGE).clamp(least, most);
        // A sweep is due when half of the slots for patterns that were free after the last sweep are in use. Without a
        // free slot, the oldest pattern would become a purge of everything.
        let is_full = patterns == PATTERNS_MAX && rt::now() >= due.patterns_again;
        let are_patterns_many =
            is_full || patterns > due.patterns && 2 * patterns >= PATTERNS_MAX + due.patterns;
        let is_wanted = self.config.purger || are_patterns_many || stored.saturating_sub(due.stored) > many;
        // A sweep does not check entries that are not in the index, so purges are retained while directories are
        // unread.
        if stored > 0 && is_wanted && sequence > due.purged && entries.is_loaded() {
            let pace = if self.config.purger { self.config.purger_pace } else { self.config.manager };
            work_off_purges(&self.lookup, sequence, pace).await;
            (due.purged, due.patterns_again) = (sequence, rt::now() + PATTERNS_AGAIN);
            (due.stored, due.patterns) = counts();
        }
    }

    /// Ends the work on the directory, saves the index and releases the directory to another process.
    async fn finish(&self) {
        let (entries, dir) = (&self.entries, &self.entries.dir);
        let deadline = rt::now() + STOP_MAX;
        // Complete entries that are not on the disk yet.
        while !self.backlog.is_empty() && rt::now() < deadline {
            rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
        }
        dir.end_owning();
        // Removals and publications that began earlier may still be in progress.
        debug_assert!(!dir.is_owner() && dir.is_stopping());
        while !entries.is_quiet() && rt::now() < deadline {
            rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
        }
        if entries.is_measured() && dir.health.can_write() {
            // Without a snapshot, the next start reads all directories.
            let _ = save_snapshot(entries, entries.is_quiet()).await;
        }
        dir.unlock();
    }
}
