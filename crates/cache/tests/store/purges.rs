//! Purges: their cost, their stored number, and that none is ever lost.

use std::sync::Arc;

use cache::purge::{Log, Purge, encode};
use cache::{FillError, Hit, Key, New, Pace, PurgeEffect, Scope, Store};

use crate::common::*;

/// Computes a CRC32C bit by bit, independent of the tested code.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

fn tag(number: u64) -> Scope {
    Scope::Tag(format!("tag-{number:08}").into_bytes().into())
}

/// Writes a log with this many purges by tag.
fn write_log(place: &Place, count: u64) {
    std::fs::create_dir_all(place.path()).unwrap();
    let mut bytes = Vec::new();
    for sequence in 1..=count {
        assert!(encode(
            &Purge { scope: tag(sequence), effect: PurgeEffect::Unusable, sequence },
            crc32c,
            &mut bytes
        ));
    }
    std::fs::write(place.path().join("ringroad.purges"), bytes).unwrap();
    // Otherwise the first purge would have to flush the complete log to the device.
    std::fs::File::open(place.path().join("ringroad.purges")).unwrap().sync_all().unwrap();
}

/// Purges `count` tags from `tasks` concurrent tasks.
async fn purge_tags(store: &Arc<Store>, count: u64, tasks: u64) {
    let gauge = rt::local::WaitGroup::new();
    for task in 0..tasks {
        let (store, counted) = (Arc::clone(store), gauge.enter());
        rt::spawn(async move {
            for number in 0..count / tasks {
                store.purge(tag(task + number * tasks), PurgeEffect::Unusable).await.unwrap();
            }
            drop(counted);
        });
    }
    gauge.wait_empty().await;
}

/// Returns a variant of an object, selected by a request header field.
fn variant(store: &Store, number: u64, variant: &str) -> New {
    let mut new = new(store, number, Some(100));
    let meta = Arc::make_mut(&mut new.meta);
    (meta.vary, meta.variant) = (b"accept".to_vec(), variant.as_bytes().to_vec());
    new
}

async fn find_variant(store: &Arc<Store>, number: u64, variant: &str) -> Option<Hit> {
    let text = text(number);
    store.find(&Key::of(&text), &text, &|_| variant.as_bytes().to_vec()).await.unwrap()
}

fn log_of(place: &Place) -> Vec<u8> {
    std::fs::read(place.path().join("ringroad.purges")).unwrap()
}

fn stored_purges(store: &Store) -> u64 {
    store.stats().purges_stored
}

#[test]
fn concurrent_purges_share_one_sync() {
    const COUNT: u64 = 100;
    let place = Place::new();
    place.managed(async |store| {
        let before = rt::counters().engine.submitted;
        purge_tags(&store, COUNT, COUNT).await;
        let operations = rt::counters().engine.submitted - before;
        assert!(operations < COUNT / 2, "{operations} operations");
    });
    assert_eq!(Log::new(&log_of(&place), crc32c).count() as u64, COUNT);
}

/// Tasks woken by a group purge again in the turn that woke them, and the log stays open for them.
#[test]
fn successive_purges_share_writes_and_the_open_log() {
    const TASKS: u64 = 64;
    const ROUNDS: u64 = 10;
    let place = Place::new();
    place.managed(async |store| {
        // The first purge creates the log.
        purge(&store, tag(u64::MAX)).await;
        let before = (store.stats(), rt::counters().engine.submitted);
        purge_tags(&store, TASKS * ROUNDS, TASKS).await;
        let after = (store.stats(), rt::counters().engine.submitted);
        assert_eq!(after.0.purges - before.0.purges, TASKS * ROUNDS);
        assert_eq!(after.0.purge_writes - before.0.purge_writes, ROUNDS);
        assert_eq!(after.1 - before.1, 2 * ROUNDS, "a write and a sync for each round");
    });
    assert_eq!(Log::new(&log_of(&place), crc32c).count() as u64, TASKS * ROUNDS + 1);
}

#[test]
fn stored_entries_are_found_without_disk_access() {
    let place = Place::new();
    place.managed(async |store| {
        for number in 0..3 {
            put(&store, number, 100).await.unwrap();
        }
        let holds = async |number: u64| {
            let (text, before) = (text(number), rt::counters().engine.submitted);
            let holds = store.holds(&Key::of(&text), &text).await.unwrap();
            (holds, rt::counters().engine.submitted - before)
        };
        assert_eq!([holds(0).await, holds(9).await], [(true, 0), (false, 0)]);
        store.purge(key(0), PurgeEffect::Stale).await.unwrap();
        assert!(holds(0).await.0, "a stale entry is an entry");
        purge(&store, key(0)).await;
        assert_eq!(holds(0).await, (false, 0));
        // Only its file shows whether such a purge matches an entry.
        purge(&store, Scope::Pattern(text(1).into())).await;
        assert!(!holds(1).await.0 && holds(2).await.0);
    });
}

#[test]
fn purges_of_one_call_are_one_write_and_one_sync() {
    const COUNT: u64 = 64;
    let place = Place::new();
    place.managed(async |store| {
        for number in 0..2 {
            put(&store, number, 100).await.unwrap();
        }
        // The first purge creates the log.
        purge(&store, tag(COUNT)).await;
        let before = rt::counters().engine.submitted;
        let scopes = (0..COUNT).map(tag).collect();
        store.purge_together(scopes, PurgeEffect::Unusable).await.unwrap();
        let operations = rt::counters().engine.submitted - before;
        assert!(operations <= 4, "open, write, sync, close, and not {operations} operations");
        assert_eq!(stored_purges(&store), COUNT + 1);
        // Purges of keys are forgotten, whether they were added separately or together with other scopes.
        store.purge_together(vec![key(0), tag(COUNT), key(1)], PurgeEffect::Unusable).await.unwrap();
        assert!(find(&store, 0).await.is_none() && find(&store, 1).await.is_none());
        until(|| stored_purges(&store) == COUNT + 1).await;
    });
    assert_eq!(Log::new(&log_of(&place), crc32c).count() as u64, COUNT + 4);
}

#[test]
fn a_purge_is_forgotten_when_none_of_its_entries_is_stored() {
    let place = Place::new();
    place.managed(async |store| {
        for number in 0..20 {
            put(&store, number, 100).await.unwrap();
        }
        // Half of these keys have an entry.
        for number in 0..40 {
            purge(&store, key(number)).await;
            assert!(find(&store, number).await.is_none());
        }
        until(|| stored_purges(&store) == 0).await;
        assert_eq!(place.files().len(), 0);
        // Forgotten purges do not apply to new entries.
        put(&store, 1, 100).await.unwrap();
        assert_hit(&store, 1, 100).await;
    });
}

#[test]
fn a_purge_is_retained_while_an_older_request_is_pending() {
    let place = Place::new();
    place.managed(async |store| {
        // The request was sent, and no response was received yet.
        let late = new(&store, 1, Some(1));
        let mut begun = store.begin(new(&store, 2, Some(1))).await.unwrap();
        for number in [1, 2] {
            purge(&store, key(number)).await;
        }
        assert_eq!(stored_purges(&store), 2);
        begun.write(0, b"x").await.unwrap();
        assert_eq!(begun.commit().await, Err(FillError::Purged));
        let mut fill = store.begin(late).await.unwrap();
        fill.write(0, b"x").await.unwrap();
        assert_eq!(fill.commit().await, Err(FillError::Purged));
        // A purge that is added now is forgotten together with the others.
        purge(&store, key(3)).await;
        until(|| stored_purges(&store) == 0).await;
        assert_eq!(place.files().len(), 0);
    });
}

#[test]
fn a_purge_of_variants_is_retained_until_all_entries_were_checked() {
    let mut place = Place::new();
    let fill = async |store: &Arc<Store>| {
        for name in ["a", "b"] {
            store_in_pieces(store, variant(store, 1, name), &body(1, 100), 100).await.unwrap();
        }
        assert_eq!(place.files().len(), 2);
    };
    place.managed(async |store| {
        fill(&store).await;
        purge(&store, key(1)).await;
        // The first variant is stored again. The second one was purged and must not be found.
        store_in_pieces(&store, variant(&store, 1, "a"), &body(1, 100), 100).await.unwrap();
        assert!(find_variant(&store, 1, "a").await.is_some() && find_variant(&store, 1, "b").await.is_none());
        assert_eq!(stored_purges(&store), 1);
    });
    (place.config.purger, place.config.purger_pace) = (true, Pace::UNPACED);
    place.managed(async |store| {
        until(|| stored_purges(&store) == 0).await;
        assert!(find_variant(&store, 1, "a").await.is_some() && find_variant(&store, 1, "b").await.is_none());
    });
}

#[test]
fn a_purge_is_retained_if_a_file_cannot_be_removed() {
    let place = Place::new();
    place.managed_on(PLAIN, "unlink error=EIO", async |store| {
        put(&store, 1, 100).await.unwrap();
        purge(&store, key(1)).await;
        until(|| store.stats().write_errors > 0).await;
        // Neither this purge nor a later one is forgotten.
        purge(&store, key(1)).await;
        assert!(find(&store, 1).await.is_none());
        assert_eq!(stored_purges(&store), 1);
    });
    assert_eq!(place.files().len(), 1);
    place.managed(async |store| {
        assert!(find(&store, 1).await.is_none());
    });
}

#[test]
fn a_soft_purge_is_retained_until_its_entries_are_revalidated() {
    let mut place = Place::new();
    (place.config.purger, place.config.purger_pace) = (true, Pace::UNPACED);
    place.managed(async |store| {
        put(&store, 1, 100).await.unwrap();
        put(&store, 2, 100).await.unwrap();
        store.purge(key(1), PurgeEffect::Stale).await.unwrap();
        // The sweep has passed this entry when the other entry is removed.
        let pattern = Scope::Pattern(text(2).into());
        purge(&store, pattern).await;
        until(|| place.files().len() == 1 && stored_purges(&store) == 1).await;
        let hit = find(&store, 1).await.unwrap();
        assert!(hit.is_purged_soft);
        store.refresh(&hit, (*hit.meta).clone(), HEAD).await.unwrap();
        drop(hit);
        purge(&store, key(3)).await;
        until(|| stored_purges(&store) == 0).await;
        assert!(!find(&store, 1).await.unwrap().is_purged_soft);
    });
}

/// The log is rewritten while purges continue, and none is lost.
#[test]
fn a_long_log_is_rewritten_while_purges_continue() {
    const TAGS: u64 = 64;
    const ROUNDS: u64 = 48;
    let place = Place::new();
    let long = |number: u64| Scope::Tag(format!("{number:04000}").into_bytes().into());
    place.managed(async |store| {
        let gauge = rt::local::WaitGroup::new();
        for number in 0..TAGS {
            let (store, counted) = (Arc::clone(&store), gauge.enter());
            rt::spawn(async move {
                for _ in 0..ROUNDS {
                    purge(&store, long(number)).await;
                }
                drop(counted);
            });
        }
        gauge.wait_empty().await;
        until(|| log_of(&place).len() < (TAGS * ROUNDS * 4000) as usize).await;
    });
    let log = log_of(&place);
    let logged: Vec<Purge> = Log::new(&log, crc32c).collect();
    assert!(logged.len() < (TAGS * ROUNDS) as usize);
    for number in 0..TAGS {
        assert!(logged.iter().any(|purge| purge.scope == long(number)), "{number}");
    }
    let last = logged.iter().map(|purge| purge.sequence).max().expect("a purge");
    place.opened(async |store| {
        assert_eq!((store.sequence(), stored_purges(&store)), (last, TAGS));
    });
}

/// A rewrite does not wait until no purge is pending.
#[test]
fn a_long_log_is_rewritten_during_continuous_purges() {
    let place = Place::new();
    place.managed(async |store| {
        let (gauge, is_over) = (rt::local::WaitGroup::new(), std::rc::Rc::new(std::cell::Cell::new(false)));
        let purged = std::rc::Rc::new(std::cell::Cell::new(0_u64));
        for number in 0..64 {
            let (store, counted) = (Arc::clone(&store), gauge.enter());
            let (is_over, purged) = (std::rc::Rc::clone(&is_over), std::rc::Rc::clone(&purged));
            rt::spawn(async move {
                while !is_over.get() {
                    purge(&store, Scope::Tag(format!("{number:04000}").into_bytes().into())).await;
                    purged.set(purged.get() + 1);
                }
                drop(counted);
            });
        }
        let log = place.path().join("ringroad.purges");
        until(|| std::fs::metadata(&log).is_ok_and(|log| log.len() < purged.get() * 4000)).await;
        is_over.set(true);
        gauge.wait_empty().await;
    });
}

#[test]
fn many_patterns_start_a_sweep_and_purge_no_other_entry() {
    let place = Place::new();
    place.managed(async |store| {
        put(&store, 1, 100).await.unwrap();
        // Three times the number of patterns that fit.
        for round in 0..12 {
            for number in 0..64 {
                let pattern = format!("http://origin.example/{round}/{number}/*").into_bytes();
                purge(&store, Scope::Pattern(pattern.into())).await;
            }
            until(|| stored_purges(&store) < 192).await;
        }
        assert_hit(&store, 1, 100).await;
    });
}

#[test]
fn entries_that_were_stored_after_a_lost_purge_are_purged() {
    let place = Place::new();
    place.managed(async |store| {
        put(&store, 1, 100).await.unwrap();
        purge(&store, tag(1)).await;
        purge(&store, tag(2)).await;
        put(&store, 2, 100).await.unwrap();
    });
    std::fs::remove_file(place.path().join("ringroad.purges")).unwrap();
    place.managed(async |store| {
        purge(&store, key(2)).await;
        assert!(find(&store, 2).await.is_none());
        put(&store, 2, 100).await.unwrap();
        assert_hit(&store, 2, 100).await;
    });
    // An entry that nobody looks up before the next purge has a lower number than that purge.
    for scope in [Scope::All, key(9)] {
        place.managed(async |store| put(&store, 4, 100).await.unwrap());
        std::fs::remove_file(place.path().join("ringroad.purges")).unwrap();
        place.managed(async |store| {
            purge(&store, scope).await;
            assert!(find(&store, 4).await.is_none());
        });
    }
    // A process that is not the owner may be behind the log.
    PLAIN.run(async {
        let first = place.open(PLAIN);
        start(&first).await;
        let second = place.open(PLAIN);
        purge(&first, tag(3)).await;
        put(&first, 3, 100).await.unwrap();
        assert_hit(&second, 3, 100).await;
        stop(&first).await;
    });
}

#[test]
fn a_process_that_cannot_read_the_purges_does_not_take_over() {
    let place = Place::new();
    let (log, aside) = (place.path().join("ringroad.purges"), place.path().join("aside"));
    PLAIN.run(async {
        let first = place.open(PLAIN);
        start(&first).await;
        put(&first, 1, 100).await.unwrap();
        let second = place.open(PLAIN);
        // A soft purge, so that only the log shows it.
        first.purge(key(1), PurgeEffect::Stale).await.unwrap();
        stop(&first).await;
        std::fs::rename(&log, &aside).unwrap();
        std::fs::create_dir(&log).unwrap();
        manage(&second);
        until(|| second.stats().read_errors > 0).await;
        assert!(!second.stats().is_owner);
        std::fs::remove_dir(&log).unwrap();
        std::fs::rename(&aside, &log).unwrap();
        until(|| second.stats().is_owner && second.stats().is_loaded).await;
        assert!(find(&second, 1).await.unwrap().is_purged_soft);
        stop(&second).await;
    });
}

/// A log of an earlier version has no zeroes and no spare space behind its records.
#[test]
fn a_log_of_an_earlier_version_is_read_and_continued() {
    let place = Place::new();
    place.managed(async |store| {
        put(&store, 1, 100).await.unwrap();
        put(&store, 2, 100).await.unwrap();
    });
    let mut bytes = Vec::new();
    for (sequence, scope) in [(1, tag(7)), (2, key(1))] {
        assert!(encode(&Purge { scope, effect: PurgeEffect::Unusable, sequence }, crc32c, &mut bytes));
    }
    std::fs::write(place.path().join("ringroad.purges"), &bytes).unwrap();
    place.managed(async |store| {
        assert!(find(&store, 1).await.is_none());
        assert_hit(&store, 2, 100).await;
        purge(&store, key(2)).await;
    });
    let log = log_of(&place);
    assert!(log.starts_with(&bytes), "the existing records are unchanged");
    let numbers: Vec<u64> = Log::new(&log, crc32c).map(|purge| purge.sequence).collect();
    assert!(numbers.len() == 3 && numbers[..2] == [1, 2] && numbers[2] > 2, "{numbers:?}");
}

#[test]
fn a_deleted_log_is_rewritten_with_all_stored_purges() {
    let place = Place::new();
    place.managed(async |store| {
        purge(&store, tag(1)).await;
        std::fs::remove_file(place.path().join("ringroad.purges")).unwrap();
        purge(&store, tag(2)).await;
    });
    let logged: Vec<Scope> = Log::new(&log_of(&place), crc32c).map(|purge| purge.scope).collect();
    assert!(logged.contains(&tag(1)) && logged.contains(&tag(2)), "{logged:?}");
}

#[test]
fn many_purged_keys_purge_only_these_keys() {
    const NAMES: u64 = (1 << 18) + 10;
    let place = Place::new();
    place.managed(async |store| {
        put(&store, 1, 100).await.unwrap();
    });
    write_log(&place, NAMES);
    place.opened(async |store| {
        assert_hit(&store, 1, 100).await;
        start(&store).await;
        purge(&store, tag(NAMES + 1)).await;
        assert_hit(&store, 1, 100).await;
        // That many purges start a sweep of all entries. The only stored entry matches none of them. The last purge may
        // have been added after the sweep.
        until(|| stored_purges(&store) <= 1).await;
        assert_hit(&store, 1, 100).await;
        stop(&store).await;
    });
}

#[test]
fn quick_successive_purges_reach_a_process_without_ownership() {
    let place = Place::new();
    PLAIN.run(async {
        let first = place.open(PLAIN);
        start(&first).await;
        for number in 0..20 {
            put(&first, number, 100).await.unwrap();
        }
        let second = place.open(PLAIN);
        assert!(!second.stats().is_owner);
        for number in 0..20 {
            assert_hit(&second, number, 100).await;
            // A soft purge, so that only the log shows it.
            first.purge(key(number), PurgeEffect::Stale).await.unwrap();
            assert!(find(&second, number).await.unwrap().is_purged_soft, "{number}");
        }
        stop(&first).await;
    });
}
