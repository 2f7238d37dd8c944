//! The sweep of purges: reads every entry, removes those that a purge applies to, and forgets the purges.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use rt::local::WaitGroup;

use crate::config::Pace;
use crate::key::Key;
use crate::lookup::{Judged, Lookup};
use crate::manager::pace::Paced;
use crate::purge::Purges;

/// Maximum number of concurrent removals that no request waits for. Each removal runs on a kernel thread, which
/// competes with the worker thread for a CPU: sixteen removals would get sixteen seventeenths of it. With two removals,
/// one runs while the other waits for the disk.
pub(crate) const REMOVALS_CONCURRENT_MAX: usize = 2;

/// Forgets pending purges for which no older request is in flight.
pub(crate) async fn forget_pending(lookup: &Lookup) {
    let entries = &lookup.entries;
    while let Some((key, purge)) = entries.retention.next_pending() {
        match entries.index.peek(&key.0).filter(|known| known.blocks > 0) {
            None => entries.forget_if_unmatched(&key, purge),
            // The entry was stored after the purge, or just before it by a fill that did not see the purge.
            Some(known) => {
                let is_judged = lookup.judge_purged(&key, known).await != Judged::Unknown;
                let has_variants = entries.retention.may_have_variants(&key);
                // The purge of an entry that is neither removed nor newer is retained until the next sweep.
                if is_judged && !has_variants && entries.retention.is_removed(&key, purge) {
                    entries.purges.set_mut().forget_key(&key.0, purge);
                }
            }
        }
    }
}

/// Checks every entry, removes those that purges apply to, and forgets the purges up to `sequence`. If an entry could
/// not be checked or removed, it would be valid again without the purges, so all purges are retained.
pub(crate) async fn work_off_purges(lookup: &Arc<Lookup>, sequence: u64, pace: Pace) {
    let entries = &lookup.entries;
    let pace = Paced::new(pace);
    let (unjudged, stale) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(false)));
    for mut batch in entries.index.batches(0) {
        batch.retain(|(_, known)| known.blocks > 0);
        for some in batch.chunks(REMOVALS_CONCURRENT_MAX) {
            let gauge = WaitGroup::new();
            for (key, known) in some.iter().copied() {
                let (lookup, counted) = (Arc::clone(lookup), gauge.enter());
                let (unjudged, stale) = (Rc::clone(&unjudged), Rc::clone(&stale));
                rt::spawn(async move {
                    match lookup.judge_purged(&Key(key), known).await {
                        Judged::Outlived => {}
                        Judged::Stale => stale.set(true),
                        Judged::Unknown => unjudged.set(unjudged.get() + 1),
                    }
                    drop(counted);
                });
            }
            gauge.wait_empty().await;
            pace.count(some.len() as u32).await;
            if entries.dir.is_stopping() {
                return;
            }
        }
    }
    if unjudged.get() > 0 {
        return;
    }
    entries.retention.surveyed();
    if !entries.retention.all_removed().await {
        return;
    }
    for part in 0..Purges::PARTS {
        entries.purges.set_mut().forget_part(part, sequence, stale.get());
        rt::yield_now().await;
    }
}
