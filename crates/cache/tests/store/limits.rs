//! Limits, inactive entries, purges, owners, faults: the behaviour of a cache when resources are exhausted or calls
//! fail.

use std::sync::Arc;
use std::time::Duration;

use cache::{FillError, Hit, Key, New, Note, Pace, PurgeEffect, Refused, Scope, Store};

use super::common::*;

/// Returns the disk space of all entries' files, rounded up to blocks.
fn used(place: &Place) -> u64 {
    place.files().values().map(|bytes| (bytes.len() as u64).next_multiple_of(4096)).sum()
}

#[test]
fn max_size_is_never_exceeded() {
    let mut place = Place::new();
    let max = 40 * 4096;
    place.config.max_size = Some(max);
    place.managed(async |store| {
        let mut refused = 0;
        for turn in 0..3 {
            for number in 0..60 {
                match put(&store, number, 5000).await {
                    Ok(()) => {}
                    Err(error) => {
                        let reason = refusal(error);
                        assert!(
                            matches!(reason, Refused::NotAdmitted | Refused::NoSpace),
                            "{turn} {number}: {reason:?}"
                        );
                        refused += 1;
                    }
                }
                assert!(used(&place) <= max, "{} of {max} in use", used(&place));
                assert!(store.stats().bytes <= max);
            }
        }
        assert!(refused > 0, "keys that were not requested before evict nothing from a full cache");
        assert!(store.stats().evicted > 0, "keys that were requested before evict others");
        assert_eq!(put(&store, 99, max + 1).await, Err(FillError::Refused(Refused::TooLarge)));
    });
    assert!(used(&place) <= max && used(&place) > max / 2);
}

#[test]
fn a_fill_of_unknown_length_stops_at_the_limit() {
    let mut place = Place::new();
    place.config.max_size = Some(10 * CHUNK);
    place.managed(async |store| {
        let mut fill = store.begin(new(&store, 1, None)).await.unwrap();
        let mut at = 0;
        let error = loop {
            match fill.write(at, &[7; 50_000]).await {
                Ok(()) => at += 50_000,
                Err(error) => break error,
            }
            assert!(at < 11 * CHUNK);
        };
        assert_eq!(error, FillError::Refused(Refused::TooLarge));
        drop(fill);
        quiet().await;
        assert_eq!(store.stats().bytes, 0);
    });
    assert!(place.leftovers().is_empty());
}

#[test]
fn an_announced_length_above_the_limit_is_refused() {
    Place::new().opened(async |store| {
        let announced = |length: u64, is_partial| New { is_partial, ..new(&store, 1, Some(length)) };
        for length in [cache::LENGTH_MAX + 1, 1 << 56] {
            assert_eq!(store.begin(announced(length, true)).await.err(), Some(Refused::Unstorable));
            assert_eq!(store.begin(announced(length, false)).await.err(), Some(Refused::Unstorable));
        }
        let part = body(1, CHUNK);
        let mut fill = store.begin(announced(cache::LENGTH_MAX, true)).await.unwrap();
        fill.write(0, &part).await.unwrap();
        fill.commit().await.unwrap();
        let hit = find(&store, 1).await.unwrap();
        assert!(read(hit.located().unwrap(), 0..CHUNK).await.unwrap() == part);
    });
}

#[test]
fn min_free_is_obeyed() {
    let mut place = Place::new();
    // More than the size of any disk.
    place.config.min_free = 1 << 60;
    place.managed(async |store| {
        until_async(async || put(&store, 1, 100).await == Err(Refused::DiskFull.into())).await;
    });
    assert!(place.files().is_empty());
}

async fn until_async(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        rt::sleep_until(rt::now() + Duration::from_millis(5)).await;
    }
}

#[test]
fn inactive_entries_are_removed() {
    let mut place = Place::new();
    place.config.inactive = Duration::from_secs(1);
    place.managed(async |store| {
        for number in 0..20 {
            put(&store, number, 100).await.unwrap();
        }
        until(|| store.stats().inactive >= 20).await;
        until(|| place.files().is_empty()).await;
        assert_eq!(store.stats().entries, 0);
    });
}

#[test]
fn the_index_is_bounded_by_the_zone_size() {
    let mut place = Place::new();
    // One entry per shard.
    place.config.keys_zone = 4096;
    place.managed(async |store| {
        for number in 0..300 {
            let _ = put(&store, number, 10).await;
        }
        quiet().await;
        assert!(store.stats().entries <= 64, "{}", store.stats().entries);
        assert_eq!(place.files().len() as u64, store.stats().entries, "evicted entries have no files");
        let stats = store.stats();
        assert_eq!(stats.evicted, stats.commits - stats.entries, "entries that left a full zone are counted");
    });
}

#[test]
fn frequently_used_small_entries_are_held_in_memory() {
    let mut place = Place::new();
    place.config.memory = 1 << 20;
    place.managed(async |store| {
        put(&store, 1, 1000).await.unwrap();
        let hits: Vec<bool> =
            [find(&store, 1).await.unwrap().is_from_memory, find(&store, 1).await.unwrap().is_from_memory]
                .to_vec();
        assert_eq!(hits, [false, true]);
        assert_hit(&store, 1, 1000).await;
        let newer = new(&store, 1, Some(5));
        store_in_pieces(&store, newer, b"newer", 5).await.unwrap();
        assert_eq!(whole(find(&store, 1).await.unwrap()).await, b"newer", "the old entry was replaced");
        find(&store, 1).await.unwrap();
        purge(&store, Scope::All).await;
        assert!(find(&store, 1).await.is_none(), "a purge applies in memory too");
        assert_eq!(store.stats().memory_bytes, 0);
    });
}

/// A refresh changes the header of a large entry in its file, and the memory would keep the old one.
#[test]
fn a_large_entry_that_is_read_at_once_has_its_new_header_after_a_refresh() {
    let mut place = Place::new();
    place.config.memory = 64 << 20;
    place.managed(async |store| {
        put(&store, 1, 100_000).await.unwrap();
        for _ in 0..3 {
            assert!(!find(&store, 1).await.unwrap().is_from_memory);
        }
        let hit = find(&store, 1).await.unwrap();
        store.refresh(&hit, (*hit.meta).clone(), b"HTTP/1.1 200 OK\r\nNew: 1\r\n\r\n").await.unwrap();
        for _ in 0..3 {
            assert!(find(&store, 1).await.unwrap().head().ends_with(b"New: 1\r\n\r\n"));
        }
    });
}

#[test]
fn a_header_section_in_memory_is_parsed_once_and_replaced_with_its_entry() {
    let mut place = Place::new();
    place.config.memory = 1 << 20;
    place.managed(async |store| {
        put(&store, 1, 1000).await.unwrap();
        let from_disk = find(&store, 1).await.unwrap();
        let hit = find(&store, 1).await.unwrap();
        assert!(hit.is_from_memory);
        let parsed = hit.parsed_head().unwrap();
        assert!(Arc::ptr_eq(from_disk.parsed_head().unwrap(), parsed));
        let least = hit.image.bytes().len() + parsed.memory_bytes();
        assert!(store.stats().memory_bytes >= least as u64, "its memory counts");
        let names = |hit: &Hit| {
            let lines = hit.parsed_head().unwrap().lines(hit.head()).map(|line| line.name.to_vec());
            lines.collect::<Vec<_>>()
        };
        assert_eq!(names(&hit), [b"Content-Type"]);
        store.refresh(&hit, (*hit.meta).clone(), b"HTTP/1.1 200 OK\r\nNew: 1\r\n\r\n").await.unwrap();
        for is_from_memory in [false, true] {
            let hit = find(&store, 1).await.unwrap();
            assert_eq!((hit.is_from_memory, names(&hit)), (is_from_memory, vec![b"New".to_vec()]));
        }
    });
}

#[test]
fn writes_pause_after_a_disk_error_and_resume() {
    let size = 3 * CHUNK;
    for fault in ["write error=ENOSPC", "write error=EIO", "rename error=EIO"] {
        let place = Place::new();
        let faults = format!("{fault} path={} first=1", place.path().display());
        place.managed_on(PLAIN, &faults, async |store| {
            assert!(put(&store, 1, size).await.is_err(), "{fault}");
            assert!(find(&store, 1).await.is_none());
            assert!(store.stats().is_pass_through);
            assert_eq!(put(&store, 2, size).await, Err(Refused::PassThrough.into()));
            // The manager makes a trial write after the pause.
            until(|| !store.stats().is_pass_through).await;
            put(&store, 3, size).await.unwrap();
            assert_hit(&store, 3, size).await;
        });
        let said = |wanted: fn(&Note) -> bool| place.notes().iter().filter(|note| wanted(note)).count();
        assert_eq!(said(|note| matches!(note, Note::PassThrough { .. })), 1, "{fault}: reported once");
        assert_eq!(said(|note| matches!(note, Note::Recovered)), 1, "{fault}");
        assert!(place.leftovers().is_empty(), "{fault}");
    }
}

#[test]
fn failed_reads_are_misses_and_then_pause_reading() {
    let place = Place::new();
    place.opened(async |store| {
        for number in 0..4 {
            put(&store, number, 100).await.unwrap();
        }
    });
    let faults = format!("read error=EIO path={} first=3", place.path().display());
    PLAIN.run_with(&faults, async {
        let store = place.open(PLAIN);
        for number in 0..3 {
            let text = text(number);
            let found = store.find(&Key::of(&text), &text, &|_| Vec::new()).await;
            assert!(matches!(found, Err(cache::StoreError::Disk { .. })));
        }
        let text = text(3);
        let found = store.find(&Key::of(&text), &text, &|_| Vec::new()).await;
        assert!(matches!(found, Err(cache::StoreError::PassThrough)), "the disk is not used");
        until_async(async || {
            let found = store.find(&Key::of(&text), &text, &|_| Vec::new()).await;
            matches!(found, Ok(Some(_)))
        })
        .await;
        assert_eq!(store.stats().read_errors, 3);
    });
    assert_eq!(place.files().len(), 4, "failed reads remove no entries");
}

#[test]
fn partial_reads_and_writes_are_continued() {
    // A server that does not continue them logs "pread() read only 7101 of 15530".
    on_each_pair(|pair| {
        let place = Place::new();
        let faults =
            format!("read short every=2 path={0}; write short every=3 path={0}", place.path().display());
        for _ in 0..2 {
            place.managed_on(pair, &faults, async |store| {
                for (number, size) in [(1, 15_000), (2, CHUNK), (3, 4 * CHUNK + 100)] {
                    if find(&store, number).await.is_none() {
                        put(&store, number, size).await.unwrap();
                    }
                    assert_hit(&store, number, size).await;
                }
                assert_eq!(store.stats().damaged, 0);
            });
        }
    });
}

#[test]
fn a_purge_removes_its_entries_and_persists() {
    let place = Place::new();
    let tagged = |store: &Store, number: u64, tags: &str| {
        let mut new = new(store, number, Some(100));
        Arc::make_mut(&mut new.meta).tags = tags.as_bytes().to_vec();
        new
    };
    place.opened(async |store| {
        start(&store).await;
        for (number, tags) in [(1, "news sport"), (2, "sport"), (3, "")] {
            store_in_pieces(&store, tagged(&store, number, tags), &body(number, 100), 100).await.unwrap();
        }
        // A response whose upstream request was sent before a purge is older than the purge, whenever it arrives.
        let late = tagged(&store, 4, "news");
        let late = store.begin(late).await.unwrap();
        purge(&store, Scope::Tag((*b"news").into())).await;
        let mut late = late;
        late.write(0, &body(4, 100)).await.unwrap();
        assert_eq!(late.commit().await, Err(FillError::Purged));
        assert!(find(&store, 1).await.is_none());
        assert_hit(&store, 2, 100).await;
        store.purge(Scope::Pattern(text(2).into()), PurgeEffect::Stale).await.unwrap();
        let hit = find(&store, 2).await.unwrap();
        assert!(hit.is_purged_soft);
        store.refresh(&hit, (*hit.meta).clone(), HEAD).await.unwrap();
        assert!(!find(&store, 2).await.unwrap().is_purged_soft, "revalidated since");
        quiet().await;
        assert_eq!(place.files().len(), 2);
        // Without a stop, as after a crash.
    });
    place.managed(async |store| {
        assert!(find(&store, 1).await.is_none());
        put(&store, 1, 100).await.unwrap();
        assert_hit(&store, 1, 100).await;
        purge(&store, Scope::All).await;
        for number in 1..4 {
            assert!(find(&store, number).await.is_none());
        }
    });
}

#[test]
fn purged_files_do_not_reappear_after_a_crash() {
    let place = Place::new();
    let saved = PLAIN.run(async {
        let store = place.open(PLAIN);
        put(&store, 1, 100).await.unwrap();
        let saved = place.files();
        purge(&store, key(1)).await;
        saved
    });
    // Simulates that the removal never reached the disk, and that the last record of the log is torn.
    for (path, bytes) in &saved {
        std::fs::write(path, bytes).unwrap();
    }
    let log = place.path().join("ringroad.purges");
    let mut torn = std::fs::read(&log).unwrap();
    torn.extend_from_slice(&[40, 0, 0, 0, 1, 2, 3]);
    std::fs::write(&log, torn).unwrap();
    let mut last = 0;
    place.managed(async |store| {
        assert!(find(&store, 1).await.is_none());
        purge(&store, Scope::Key([9; 16])).await;
        last = store.sequence();
    });
    place.opened(async |store| {
        assert_eq!(store.sequence(), last, "the torn record was overwritten");
    });
}

/// Begins a fill of an object with a body of one byte; a separate task commits it.
async fn begin_pending_fill(store: &Arc<Store>, number: u64) -> Result<(), Refused> {
    let mut fill = store.begin(new(store, number, Some(1))).await?;
    fill.write(0, b"x").await.unwrap();
    rt::spawn(async move { fill.commit().await.unwrap() });
    rt::yield_now().await;
    Ok(())
}

/// Maximum number of entries that wait for the disk.
const BEHIND_MAX: u64 = 64;

/// Time limit of a fill that waits for a disk without progress.
const PATIENCE_OF_FILLS: Duration = Duration::from_secs(1);

/// A client that requests as fast as the upstream responds does not make more entries wait than allowed, and no
/// response remains unstored.
#[test]
fn fills_wait_for_a_slow_disk() {
    let place = Place::new();
    PLAIN.run_with("write delay=200ms", async {
        let store = place.open(PLAIN);
        start(&store).await;
        let (mut begun, mut most) = (0, 0);
        // On a busy machine it takes longer until the maximum number of entries waits.
        while most < BEHIND_MAX || begun < 3 * BEHIND_MAX {
            let (asked, commits) = (rt::now(), store.stats().commits);
            match begin_pending_fill(&store, begun).await {
                Ok(()) => begun += 1,
                Err(refused) => {
                    // The disk made no progress.
                    assert_eq!(refused, Refused::BacklogFull);
                    assert!(rt::now() - asked >= PATIENCE_OF_FILLS, "{begun} were begun");
                    until(|| store.stats().commits > commits).await;
                }
            }
            most = most.max(store.stats().fills - store.stats().commits);
        }
        assert_eq!(most, BEHIND_MAX);
        stop(&store).await;
        assert_eq!(store.stats().commits, begun, "a stop waits for the waiting entries");
        assert_eq!(place.files().len() as u64, begun);
    });
}

#[test]
fn fills_do_not_wait_long_for_a_stalled_disk() {
    let place = Place::new();
    place.managed_on(PLAIN, "write delay=6s", async |store| {
        for number in 0..BEHIND_MAX {
            begin_pending_fill(&store, number).await.unwrap();
        }
        let asked = rt::now();
        assert_eq!(begin_pending_fill(&store, 1000).await, Err(Refused::BacklogFull));
        let waited = rt::now() - asked;
        assert!(waited >= PATIENCE_OF_FILLS, "{waited:?}");
        // After the first timeout, the following fills do not wait at all.
        let turn = rt::select(begin_pending_fill(&store, 1001), std::future::ready(()));
        assert!(matches!(turn.await, rt::Either::Left(Err(Refused::BacklogFull))));
        assert_eq!(store.stats().commits, 0, "the disk has not completed a write yet");
        until(|| store.stats().commits == BEHIND_MAX).await;
        begin_pending_fill(&store, 1002).await.unwrap();
    });
    assert_eq!(place.files().len() as u64, BEHIND_MAX + 1);
}

#[test]
fn the_purger_removes_files_and_forgets_the_purges() {
    let mut place = Place::new();
    (place.config.purger, place.config.purger_pace) = (true, Pace::UNPACED);
    place.managed(async |store| {
        for number in 0..50 {
            put(&store, number, 100).await.unwrap();
        }
        purge(&store, Scope::Pattern(b"http://origin.example/object/1*".as_slice().into())).await;
        until(|| place.files().len() == 39 && store.stats().purges_stored == 0).await;
        put(&store, 1, 100).await.unwrap();
        assert_hit(&store, 1, 100).await;
    });
}

#[test]
fn one_process_owns_a_directory_and_others_only_read() {
    let place = Place::new();
    PLAIN.run(async {
        let first = place.open(PLAIN);
        start(&first).await;
        put(&first, 1, 100).await.unwrap();
        let second = place.open(PLAIN);
        assert!(first.stats().is_owner && !second.stats().is_owner);
        manage(&second);
        assert_hit(&second, 1, 100).await;
        assert_eq!(put(&second, 2, 100).await, Err(Refused::NotOwner.into()));
        assert_eq!(second.purge(Scope::All, PurgeEffect::Unusable).await, Err(cache::StoreError::NotOwner));
        purge(&first, key(1)).await;
        let file = place.files();
        assert!(find(&second, 1).await.is_none(), "{file:?}");
        put(&first, 3, CHUNK + 1).await.unwrap();
        assert_hit(&second, 3, CHUNK + 1).await;
        first.stop();
        until(|| second.stats().is_owner && second.stats().is_loaded).await;
        assert_eq!(put(&first, 4, 100).await, Err(Refused::Stopping.into()));
        assert_hit(&first, 3, CHUNK + 1).await;
        put(&second, 4, 100).await.unwrap();
        assert_eq!(second.stats().entries, 2);
        stop(&second).await;
    });
    let notes = place.notes();
    let owners = notes.iter().filter(|note| matches!(note, Note::NotOwner { .. } | Note::Owner));
    assert_eq!(owners.count(), 2, "{notes:?}");
}
