//! Starts of a store: after a stop, after a crash, and with all kinds of snapshots.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Instant;

use cache::Note;

use super::common::*;
use super::purges::crc32c;

const OBJECTS: u64 = 60;

async fn fill(store: &std::sync::Arc<cache::Store>) {
    for number in 0..OBJECTS {
        put(store, number, 100 + number % 7).await.unwrap();
    }
}

fn snapshot(place: &Place) -> PathBuf {
    place.path().join("ringroad.index")
}

/// Returns what the last start has reported about loading.
fn loaded(place: &Place) -> (u64, bool) {
    let notes = place.notes();
    let found = notes.iter().rev().find_map(|note| match note {
        Note::Loaded { entries, from_snapshot, .. } => Some((*entries, *from_snapshot)),
        _ => None,
    });
    found.expect("loading was reported")
}

#[test]
fn all_entries_are_indexed_after_a_stop_and_after_a_crash() {
    on_each_pair(|pair| {
        let place = Place::new();
        place.managed_on(pair, "", async |store| {
            fill(&store).await;
        });
        assert!(snapshot(&place).exists());
        place.opened_on(pair, async |store| {
            assert_hit(&store, 7, 100).await;
            start(&store).await;
            assert_eq!(loaded(&place), (OBJECTS, true));
            assert!(!snapshot(&place).exists(), "a start after a crash must not find the snapshot");
            let bytes = store.stats().bytes;
            put(&store, OBJECTS, 100).await.unwrap();
            assert_eq!(store.stats().bytes, bytes + 4096);
            // Without a stop.
        });
        // A temporary file as left by a fill in a killed process.
        let family = place.path().join("ringroad.tmp");
        place.opened_on(pair, async |store| {
            let fill = store.begin(new(&store, 999, Some(3 * CHUNK))).await.unwrap();
            std::fs::rename(place.leftovers().remove(0), family.join("kept")).unwrap();
            drop(fill);
        });
        assert_eq!(place.leftovers(), [family.join("kept")]);
        place.managed_on(pair, "", async |store| {
            assert_eq!(loaded(&place), (OBJECTS + 1, false));
            assert_eq!(store.stats().bytes, (OBJECTS + 1) * 4096);
            for number in 0..OBJECTS {
                assert_hit(&store, number, 100 + number % 7).await;
            }
            assert!(find(&store, 5000).await.is_none());
        });
    });
}

#[test]
fn nothing_is_stored_or_saved_before_all_sizes_are_known() {
    let mut place = Place::new();
    place.config.max_size = Some(64 << 20);
    place.opened(async |store| {
        fill(&store).await;
        put(&store, OBJECTS, 3 * CHUNK).await.unwrap();
        // Without a stop.
    });
    // Holes occupy no space.
    let on_disk =
        |path: &PathBuf| std::fs::metadata(path).map(|stat| stat.len().min(stat.blocks() * 512)).unwrap();
    let sizes: u64 = place.files().keys().map(|path| on_disk(path).next_multiple_of(4096)).sum();
    let switch = place.dir.path().join("switch");
    let faults = format!("stat error=EIO path={} while={}", place.path().display(), switch.display());
    std::fs::write(&switch, "").unwrap();
    PLAIN.run_with(&faults, async {
        let store = place.open(PLAIN);
        manage(&store);
        until(|| store.stats().is_loaded).await;
        assert_eq!(loaded(&place), (OBJECTS + 1, false));
        stop(&store).await;
    });
    assert!(!snapshot(&place).exists(), "a snapshot would contain estimated sizes");
    PLAIN.run_with(&faults, async {
        let store = place.open(PLAIN);
        manage(&store);
        until(|| store.stats().is_loaded).await;
        for number in 0..OBJECTS {
            assert_hit(&store, number, 100 + number % 7).await;
        }
        assert_hit(&store, OBJECTS, 3 * CHUNK).await;
        assert!(find(&store, 5000).await.is_none());
        assert_eq!(put(&store, 5000, 100).await, Err(cache::Refused::NoSpace.into()));
        assert!(!store.stats().is_measured);
        assert_eq!(store.stats().evicted, 0, "nothing is evicted for a refused entry");
        std::fs::remove_file(&switch).unwrap();
        until(|| store.stats().is_measured).await;
        assert_eq!(store.stats().bytes, sizes);
        put(&store, 5000, 100).await.unwrap();
        stop(&store).await;
    });
    assert!(snapshot(&place).exists());
}

#[test]
fn an_empty_cache_stores_before_its_directory_was_read() {
    let mut place = Place::new();
    place.config.max_size = Some(64 << 20);
    PLAIN.run(async {
        let store = place.open(PLAIN);
        put(&store, 1, 100).await.unwrap();
        assert_hit(&store, 1, 100).await;
    });
    PLAIN.run(async {
        let store = place.open(PLAIN);
        assert_eq!(
            put(&store, 2, 100).await,
            Err(cache::Refused::NoSpace.into()),
            "one entry is not measured"
        );
        start(&store).await;
        put(&store, 2, 100).await.unwrap();
        stop(&store).await;
    });
}

#[test]
fn unrelated_and_misplaced_files_are_not_indexed() {
    let place = Place::new();
    place.opened(async |store| {
        put(&store, 1, 100).await.unwrap();
    });
    let entry = place.files().into_keys().next().unwrap();
    let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
    // A directory with the name of an entry, a link, and a file that is not in the directory of its key.
    let (sibling, other) = (format!("0{}", &name[1..]), format!("1{}", &name[1..]));
    std::fs::create_dir(entry.with_file_name(&sibling)).unwrap();
    std::os::unix::fs::symlink(&entry, entry.with_file_name(&other)).unwrap();
    std::fs::write(entry.with_file_name("f".repeat(32)), "x").unwrap();
    place.managed(async |store| {
        assert_eq!(loaded(&place), (1, false));
        assert_eq!(store.stats().entries, 1);
        assert_hit(&store, 1, 100).await;
    });
}

#[test]
fn a_start_killed_before_reading_the_snapshot_invalidates_it() {
    let place = Place::new();
    place.managed(async |store| {
        fill(&store).await;
    });
    PLAIN.run(async {
        // Something changes before the store was loaded.
        let store = place.open(PLAIN);
        put(&store, OBJECTS, 100).await.unwrap();
    });
    place.managed(async |_| {
        assert_eq!(loaded(&place), (OBJECTS + 1, false));
    });
}

#[test]
fn files_of_killed_fills_are_removed() {
    let place = Place::new();
    place.opened(async |store| {
        let fill = store.begin(new(&store, 1, Some(3 * CHUNK))).await.unwrap();
        let left = place.leftovers().remove(0);
        let name = left.file_name().unwrap().to_str().unwrap().to_owned();
        // A file as another process of this cache would have named it, and a file of another cache in a shared
        // directory.
        let (family, _) = name.split_once('-').unwrap();
        let other = format!("{}-0.1", "0".repeat(16));
        std::fs::copy(&left, left.with_file_name(format!("{family}-0000000000000000.5"))).unwrap();
        std::fs::copy(&left, left.with_file_name(&other)).unwrap();
        start(&store).await;
        let names: Vec<_> = place.leftovers();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names.contains(&left) && names.contains(&left.with_file_name(&other)));
        drop(fill);
        stop(&store).await;
    });
}

#[test]
fn a_damaged_or_old_snapshot_is_ignored() {
    let place = Place::new();
    place.managed(async |store| {
        fill(&store).await;
    });
    let whole = std::fs::read(snapshot(&place)).unwrap();
    let mut images: Vec<Vec<u8>> =
        [0, 1, 31, 32, 40, 1000, whole.len() - 1].map(|end| whole[..end].to_vec()).into();
    for place in [0, 9, 16, 24, 33, 37, 50, whole.len() - 3] {
        let mut image = whole.clone();
        image[place] ^= 1;
        images.push(image);
    }
    images.push([&whole[..32], &vec![0; whole.len() - 32]].concat());
    for image in images {
        std::fs::write(snapshot(&place), &image).unwrap();
        place.opened(async |store| {
            start(&store).await;
            assert_eq!(loaded(&place), (OBJECTS, false), "{} bytes", image.len());
            assert_eq!(store.stats().bytes, OBJECTS * 4096);
        });
    }
}

/// The time during which no process ran does not count as a time without requests.
#[test]
fn entries_do_not_expire_while_the_server_is_stopped() {
    let mut place = Place::new();
    place.managed(async |store| {
        for number in 0..20 {
            put(&store, number, 100).await.unwrap();
        }
    });
    // As if it had been stopped two hours ago, and one entry had not been requested for two hours before.
    let mut bytes = std::fs::read(snapshot(&place)).unwrap();
    let back = |bytes: &mut [u8], at: usize, hours: u32| {
        let time = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        bytes[at..at + 4].copy_from_slice(&(time - hours * 3600).to_le_bytes());
    };
    back(&mut bytes, 12, 2);
    for record in 0..20 {
        back(&mut bytes, 40 + record * 24 + 20, if record == 0 { 4 } else { 2 });
    }
    let sums = [(0..24, 24), (40..40 + 20 * 24, 36)].map(|(range, at)| (crc32c(&bytes[range]), at));
    for (sum, at) in sums {
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(snapshot(&place), bytes).unwrap();
    place.config.inactive = std::time::Duration::from_secs(3600);
    place.opened(async |store| {
        start(&store).await;
        assert_eq!(loaded(&place), (20, true));
        until(|| store.stats().inactive > 0).await;
        stop(&store).await;
        assert_eq!((store.stats().inactive, store.stats().entries), (1, 19));
    });
}

#[test]
fn entries_that_exist_only_in_the_snapshot_are_forgotten() {
    let place = Place::new();
    place.managed(async |store| {
        fill(&store).await;
    });
    // Not complete, like a snapshot that was written while the cache was in use.
    let mut image = std::fs::read(snapshot(&place)).unwrap();
    image[8] = 0;
    let crc = crc32c(&image[..24]);
    image[24..28].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(snapshot(&place), image).unwrap();
    for path in place.files().into_keys().take(20) {
        std::fs::remove_file(path).unwrap();
    }
    place.opened(async |store| {
        start(&store).await;
        assert_eq!(loaded(&place), (OBJECTS - 20, false));
        assert_eq!(store.stats().bytes, (OBJECTS - 20) * 4096);
    });
}

#[test]
fn an_unreadable_directory_is_not_treated_as_empty() {
    let place = Place::new();
    place.opened(async |store| {
        fill(&store).await;
    });
    let some = place.files().into_keys().next().expect("an entry");
    let top = some.strip_prefix(place.path()).expect("a path below").iter().next().expect("a directory");
    let top = top.to_str().expect("a digit");
    // The path that the start uses, which lookups do not use.
    let faults = format!("open error=EIO path={}/./{top} first=1", place.path().display());
    PLAIN.run_with(&faults, async {
        let store = place.open(PLAIN);
        manage(&store);
        until(|| place.notes().iter().any(|note| matches!(note, Note::Unreadable { .. }))).await;
        for number in 0..OBJECTS {
            assert_hit(&store, number, 100 + number % 7).await;
        }
        // It is retried.
        until(|| store.stats().is_measured).await;
        assert_eq!(loaded(&place), (OBJECTS, false));
        assert_eq!(store.stats().bytes, OBJECTS * 4096, "each is counted once");
        stop(&store).await;
    });
    let said = place.notes();
    let unreadable: Vec<_> =
        said.iter().filter(|note| matches!(note, Note::Unreadable { directories: 1, .. })).collect();
    assert!(unreadable.len() == 1 && unreadable[0].is_error(), "{said:?}");
    assert!(unreadable[0].to_string().contains(&format!("/{top}\" cannot be read: Input/output error")));
}

#[test]
fn a_purge_is_retained_while_an_entry_cannot_be_checked() {
    let mut place = Place::new();
    place.opened(async |store| {
        fill(&store).await;
    });
    let hidden = cache::Key::of(&text(7));
    let (folder, name) = {
        let name = String::from_utf8(hidden.hex().to_vec()).expect("digits");
        (format!("{}/{}/{}", place.path().display(), &name[31..], &name[29..31]), name)
    };
    let faults = format!("open error=EIO path={folder}/{name} first=1");
    (place.config.purger, place.config.purger_pace) = (true, cache::Pace::UNPACED);
    place.managed_on(PLAIN, &faults, async |store| {
        purge(&store, cache::Scope::All).await;
        // All except the entry that the disk failed to return.
        until(|| place.files().len() == 1).await;
    });
    place.managed(async |store| {
        assert!(find(&store, 7).await.is_none(), "the purge applies nevertheless");
    });
}

#[test]
fn a_snapshot_does_not_restore_purged_or_replaced_entries() {
    let place = Place::new();
    place.managed(async |store| {
        put(&store, 1, 100).await.unwrap();
        put(&store, 2, 100).await.unwrap();
    });
    let old = std::fs::read(snapshot(&place)).unwrap();
    place.managed(async |store| {
        purge(&store, key(1)).await;
        store_in_pieces(&store, new(&store, 2, Some(9000)), &body(7, 9000), 9000).await.unwrap();
    });
    std::fs::write(snapshot(&place), old).unwrap();
    place.opened(async |store| {
        start(&store).await;
        assert!(loaded(&place).1, "a snapshot that was restored by hand is used");
        assert!(find(&store, 1).await.is_none());
        assert!(
            whole(find(&store, 2).await.unwrap()).await == body(7, 9000),
            "the length is that of the file, not of the snapshot"
        );
    });
}

/// Creates a directory with this many entries and measures the time until all are loaded. The files are empty, because
/// none is opened.
fn time_until_indexed(count: u64, levels: &[u8]) -> std::time::Duration {
    let mut place = Place::new();
    let levels = cache::Levels::new(levels).unwrap();
    (place.config.levels, place.config.keys_zone) = (levels, 128 << 20);
    for number in 0..count {
        let digest = cache::Key::of(&number.to_le_bytes());
        let hex = String::from_utf8(digest.hex().to_vec()).unwrap();
        let mut folder = place.path();
        let mut end = hex.len();
        for &digits in levels.digits() {
            folder.push(&hex[end - usize::from(digits)..end]);
            end -= usize::from(digits);
        }
        let path = folder.join(&hex);
        if std::fs::File::create(&path).is_err() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::File::create(&path).unwrap();
        }
    }
    let begun = Instant::now();
    PLAIN.run_for(std::time::Duration::from_secs(600), "", async {
        let store = place.open(PLAIN);
        start(&store).await;
        assert_eq!(store.stats().entries, count);
        let walked = begun.elapsed();
        stop(&store).await;
        walked
    })
}

#[test]
fn twenty_thousand_entries_are_indexed_quickly() {
    eprintln!("20000 entries known after {:?}", time_until_indexed(20_000, &[1]));
}

/// `cargo test --release -p cache --test store -- --ignored --nocapture a_million`
#[test]
#[ignore = "makes a million files"]
fn a_million_entries_are_indexed_within_ten_seconds() {
    let took = time_until_indexed(1_000_000, &[1, 2]);
    eprintln!("1000000 entries known after {took:?}");
    assert!(took.as_secs() < 10, "{took:?}");
}
