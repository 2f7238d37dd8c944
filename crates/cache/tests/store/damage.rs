//! Served content is what was stored, whatever has happened to the file. A crash, a faulty disk or a manual change
//! leads to a miss or to the correct bytes, and damaged files are removed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cache::{Access, Hit, Key, Meta, Store, StoreError};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};

use super::common::*;

/// Stores an object; returns the path and content of its file.
fn stored(size: u64, is_partial: bool) -> (Place, PathBuf, Vec<u8>) {
    let place = Place::new();
    place.opened(async |store| {
        if is_partial {
            return put_part(&store, 1, size, 0..2 * CHUNK).await;
        }
        put(&store, 1, size).await.unwrap();
        if size > CHUNK {
            // A second header section, so that both slots are in use.
            let hit = find(&store, 1).await.unwrap();
            let meta = Meta { fresh_until_ms: 7, ..(*hit.meta).clone() };
            store.refresh(&hit, meta, HEAD).await.unwrap();
        }
    });
    let (path, bytes) = place.files().into_iter().next().unwrap();
    (place, path, bytes)
}

/// Returns the size of a slot.
fn room(image: &[u8]) -> usize {
    u32::from_le_bytes(image[8..12].try_into().unwrap()) as usize
}

/// Replaces the file by `image` and looks the object up in a store that has just started. Returns whether it was a hit;
/// then checks that all present bytes are correct.
fn is_hit(place: &Place, path: &PathBuf, image: &[u8], size: u64) -> bool {
    std::fs::write(path, image).unwrap();
    let wanted = body(1, size);
    place.opened(async |store| {
        let Some(hit) = find(&store, 1).await else {
            assert_eq!(store.stats().damaged, 1);
            return false;
        };
        assert_eq!((hit.head(), hit.meta.length), (HEAD, Some(size)));
        let Some(located) = hit.located() else {
            assert!(whole(hit).await == wanted);
            return true;
        };
        for start in (0..size).step_by(CHUNK as usize) {
            let end = (start + CHUNK).min(size);
            match read(located, start..end).await {
                Ok(bytes) => assert!(bytes == wanted[start as usize..end as usize], "chunk at {start}"),
                Err(StoreError::Damaged(_)) => {
                    quiet().await;
                    assert!(find(&store, 1).await.is_none(), "the damaged entry was removed");
                    return false;
                }
                Err(StoreError::Missing { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        true
    })
}

/// Returns the offsets at which a file is truncated or torn: around each boundary of its sections.
fn cut_offsets(len: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..=len).step_by(4096).collect();
    places.extend([1, 7, 8, 15, 16, 100, 159, 160, 200, 300, 400, len - 1]);
    places.retain(|&place| place < len);
    places
}

#[test]
fn a_file_truncated_at_any_offset_is_a_miss() {
    for size in [0, 1, 5000, CHUNK, 3 * CHUNK + 5] {
        let (place, path, bytes) = stored(size, false);
        assert!(is_hit(&place, &path, &bytes, size), "{size} whole");
        for end in cut_offsets(bytes.len()) {
            // Up to eight bytes of padding behind an empty body contain no data.
            let is_padding = size == 0 && end + 8 > bytes.len();
            assert!(!is_hit(&place, &path, &bytes[..end], size) || is_padding, "{size} cut at {end}");
            assert!(is_padding || !path.exists(), "the damaged file was removed");
        }
    }
}

#[test]
fn zeroes_instead_of_data_are_a_miss() {
    for size in [5000, CHUNK, 3 * CHUNK + 5] {
        let (place, path, bytes) = stored(size, false);
        for start in cut_offsets(bytes.len()) {
            let mut image = bytes.clone();
            let tail_was_zero = image[start..].iter().all(|&byte| byte == 0);
            image[start..].fill(0);
            let hit = is_hit(&place, &path, &image, size);
            assert!(!hit || tail_was_zero, "{size} zeroed from {start}");
        }
        for start in (0..bytes.len()).step_by(4096) {
            let mut image = bytes.clone();
            let end = (start + 4096).min(image.len());
            image[start..end].fill(0);
            // Both slots and the table are in the first block, and no required bytes follow it.
            assert!(!is_hit(&place, &path, &image, size), "{size} zeroed at {start}");
        }
        assert!(!is_hit(&place, &path, &vec![0; bytes.len()], size));
        assert!(!is_hit(&place, &path, b"", size));
    }
}

#[test]
fn a_partial_entry_never_turns_holes_into_content() {
    let size = 5 * CHUNK + 9;
    let (place, path, bytes) = stored(size, true);
    assert!(is_hit(&place, &path, &bytes, size));
    for end in cut_offsets(bytes.len()).into_iter().filter(|&end| end > 4096) {
        // Some chunks may remain; `is_hit` checks that the returned bytes are correct.
        is_hit(&place, &path, &bytes[..end], size);
    }
    // A chunk that was never written gets the record of another chunk.
    let table = 2 * room(&bytes);
    let mut image = bytes.clone();
    image.resize(image.len() + 3 * CHUNK as usize, 0);
    image.copy_within(table..table + 8, table + 16);
    assert!(is_hit(&place, &path, &image, size), "the record of another chunk is not valid");
}

#[test]
fn files_that_do_not_belong_to_the_entry_are_misses() {
    let (place, path, bytes) = stored(5000, false);
    let other = place.path().join("other");
    std::fs::create_dir_all(&other).unwrap();
    place.opened(async |store| {
        put(&store, 2, 5000).await.unwrap();
    });
    let (_, foreign) = place.files().into_iter().find(|(found, _)| *found != path).unwrap();
    assert!(!is_hit(&place, &path, &foreign, 5000), "another key");
    assert!(!is_hit(&place, &path, b"HTTP/1.1 200 OK\r\n\r\nno cache file", 5000));
    let mut newer = bytes.clone();
    newer[7] = 3;
    assert!(!is_hit(&place, &path, &newer, 5000), "another version");
    std::fs::create_dir_all(&path).unwrap();
    place.opened(async |store| {
        assert!(matches!(find_any(&store).await, Ok(None) | Err(_)), "a directory");
    });
}

async fn find_any(store: &Arc<Store>) -> Result<Option<Hit>, StoreError> {
    let text = text(1);
    store.find(&Key::of(&text), &text, &|_| Vec::new()).await
}

#[test]
fn damaged_bytes_are_never_served() {
    for size in [3000, 2 * CHUNK + 100] {
        let (place, path, bytes) = stored(size, false);
        let mut runner = TestRunner::new(Runs { cases: 60, failure_persistence: None, ..Runs::default() });
        let damage = (0..bytes.len(), 1..3000usize, any::<u8>(), any::<bool>());
        let result = runner.run(&damage, |(start, len, value, is_shifted)| {
            let mut image = bytes.clone();
            let end = (start + len).min(image.len());
            match is_shifted {
                true => image[start..end].rotate_left(1),
                false => image[start..end].fill(value),
            }
            // A hit has compared all bytes.
            is_hit(&place, &path, &image, size);
            Ok(())
        });
        result.unwrap();
    }
}

#[test]
fn an_indexed_file_that_is_deleted_or_damaged_is_a_miss() {
    on_each_pair(|pair| {
        let place = Place::new();
        place.managed_on(pair, "", async |store| {
            for number in 0..4 {
                put(&store, number, 3 * CHUNK).await.unwrap();
            }
            put(&store, 4, 100).await.unwrap();
            let files: Vec<PathBuf> = place.files().into_keys().collect();
            for path in &files {
                std::fs::remove_file(path).unwrap();
            }
            for number in 0..5 {
                assert!(find(&store, number).await.is_none());
            }
            assert_eq!(store.stats().entries, 0);
            put(&store, 5, 3 * CHUNK).await.unwrap();
            let path = place.files().into_keys().next().unwrap();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(CHUNK).unwrap();
            assert!(find(&store, 5).await.is_none(), "it was cut");
            quiet().await;
            assert!(!path.exists());
        });
    });
}

/// Returns the settings of a location whose files are read on the calling thread, and sent from their files if they are large.
fn access(pair: Pair, direct_from: Option<u64>) -> Access {
    Access {
        via: pair.via,
        direct_from,
        direct_via: pair.via,
        sends_files: false,
        sends_large_files: true,
        client_has_space: true,
        calls_directly: true,
    }
}

async fn find_with(store: &Arc<Store>, number: u64, access: Access) -> Option<Hit> {
    let text = text(number);
    store.find_by(&Key::of(&text), &text, &|_| Vec::new(), access).await.unwrap()
}

#[test]
fn open_files_are_checked_before_each_use() {
    on_each_pair(|pair| {
        let mut place = Place::new();
        place.config.calls_directly = true;
        place.managed_on(pair, "", async |store| {
            for (number, size) in [(0, 100), (1, 3 * CHUNK), (2, 3 * CHUNK), (3, 3 * CHUNK)] {
                put(&store, number, size).await.unwrap();
                for _ in 0..3 {
                    assert!(whole(find(&store, number).await.unwrap()).await == body(number, size));
                }
            }
            let hit = find(&store, 1).await.unwrap();
            let meta = Meta { fresh_until_ms: 7, ..(*hit.meta).clone() };
            store.refresh(&hit, meta, b"HTTP/1.1 200 OK\r\nNew: 1\r\n\r\n").await.unwrap();
            for _ in 0..3 {
                let hit = find(&store, 1).await.unwrap();
                assert_eq!((hit.meta.fresh_until_ms, hit.head().len()), (7, 27), "the header section is new");
                assert!(whole(hit).await == body(1, 3 * CHUNK));
            }
            let longest = |files: std::collections::BTreeMap<PathBuf, Vec<u8>>| {
                let found = files.into_iter().filter(|(_, bytes)| bytes.len() as u64 > CHUNK);
                found.map(|(path, _)| path).collect::<Vec<_>>()
            };
            for path in longest(place.files()) {
                std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(CHUNK).unwrap();
            }
            // Requests of one event-loop turn share a check.
            rt::yield_now().await;
            for number in 1..3 {
                assert!(find(&store, number).await.is_none(), "it was cut");
            }
            for path in place.files().into_keys() {
                std::fs::remove_file(path).unwrap();
            }
            rt::yield_now().await;
            for number in [0, 3] {
                assert!(find(&store, number).await.is_none(), "it was removed");
            }
        });
    });
}

/// A small entry of an open file is sent from memory until its file is changed or removed.
#[test]
fn small_entries_of_open_files_are_retained_while_their_files_are_unchanged() {
    on_each_pair(|pair| {
        let mut place = Place::new();
        place.config.calls_directly = true;
        place.managed_on(pair, "", async |store| {
            let is_from_memory = async |number, head: &[u8]| {
                // Requests of one event-loop turn share a check.
                rt::yield_now().await;
                let hit = find(&store, number).await?;
                let is_from_memory = hit.is_from_memory;
                assert!(hit.head() == head);
                assert!(whole(hit).await == body(number, 1000));
                Some(is_from_memory)
            };
            let is_at_hand = |number| {
                let text = text(number);
                let access = access(pair, None);
                let hit = store.find_at_hand(&Key::of(&text), &text, access, |_| true)?;
                assert!(store.find_at_hand(&Key::of(&text), b"another text", access, |_| true).is_none());
                assert!(store.find_at_hand(&Key::of(&text), &text, access, |_| false).is_none());
                Some((hit.is_from_memory, hit.length()))
            };
            put(&store, 1, 1000).await.unwrap();
            assert_eq!(is_at_hand(1), None);
            for expected in [false, false, false, true, true] {
                assert_eq!(is_from_memory(1, HEAD).await, Some(expected));
            }
            assert_eq!(is_at_hand(1), Some((true, 1000)));

            let hit = find(&store, 1).await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\nNew: 1\r\n\r\n";
            store.refresh(&hit, (*hit.meta).clone(), head).await.unwrap();
            for expected in [false, false, true, true] {
                assert_eq!(is_from_memory(1, head).await, Some(expected));
            }

            // The clock of files has ticks of some milliseconds.
            rt::sleep_until(rt::now() + Duration::from_millis(50)).await;
            let path = place.files().into_keys().next().unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            let size = file.metadata().unwrap().len();
            std::os::unix::fs::FileExt::write_all_at(&file, b"?", size - 1).unwrap();
            rt::yield_now().await;
            assert_eq!((is_at_hand(1), is_from_memory(1, HEAD).await), (None, None), "it is damaged");

            put(&store, 2, 1000).await.unwrap();
            while is_from_memory(2, HEAD).await != Some(true) {}
            std::fs::remove_file(place.files().into_keys().next().unwrap()).unwrap();
            rt::yield_now().await;
            assert_eq!((is_at_hand(2), is_from_memory(2, HEAD).await), (None, None), "it was removed");

            // A large entry is at hand in its open file.
            put(&store, 3, 3 * CHUNK).await.unwrap();
            for _ in 0..2 {
                assert_eq!(is_at_hand(3), None);
                find_with(&store, 3, access(pair, None)).await.unwrap();
            }
            assert_eq!(is_at_hand(3), Some((false, 3 * CHUNK)));
        });
    });
}

#[test]
fn direct_reads_retain_no_entries() {
    let mut place = Place::new();
    place.config.calls_directly = true;
    place.managed(async |store| {
        put(&store, 0, 1000).await.unwrap();
        for _ in 0..5 {
            assert!(!find_with(&store, 0, access(PLAIN, Some(0))).await.unwrap().is_from_memory);
        }
    });
}

#[test]
fn memory_for_small_entries_of_open_files_is_limited() {
    for (memory_max, bytes_max) in [(None, 4 << 20), (Some(128 << 20), 1 << 20)] {
        let mut place = Place::new();
        place.config.calls_directly = true;
        place.managed_on(Pair { memory_max, ..PLAIN }, "", async |store| {
            let size = CHUNK - 2000;
            for number in 1..=100 {
                put(&store, number, size).await.unwrap();
            }
            let mut in_memory = 0;
            for round in 0..5 {
                in_memory = 0;
                for number in 1..=100 {
                    let hit = find(&store, number).await.unwrap();
                    in_memory += u64::from(hit.is_from_memory);
                    assert!(round < 4 || whole(hit).await == body(number, size));
                }
            }
            assert!(in_memory > 5 && in_memory * size <= bytes_max, "{in_memory} entries");
        });
    }
}

/// The body of a large entry is read together with its header section until its file is retained, and then sent from the
/// file. A body that was not verified in this epoch is read.
#[test]
fn bodies_of_retained_files_are_sent_from_the_file_if_they_were_verified() {
    on_each_pair(|pair| {
        let mut place = Place::new();
        place.config.calls_directly = true;
        place.managed_on(pair, "", async |store| {
            let is_in_file = async |number, sends_large_files| {
                let access = Access { sends_large_files, ..access(pair, None) };
                let hit = find_with(&store, number, access).await?;
                let is_in_file = hit.located().map(|located| located.is_verified(&(0..located.length)));
                let size = hit.length();
                assert!(whole(hit).await == body(number, size));
                Some(is_in_file)
            };
            for (number, size, sends_large_files, expected) in [
                (1, 2 * CHUNK, true, [None, None, Some(true), Some(true)]),
                (2, 2 * CHUNK, false, [None; 4]),
                (3, CHUNK, true, [None; 4]),
            ] {
                put(&store, number, size).await.unwrap();
                for expected in expected {
                    assert_eq!(is_in_file(number, sends_large_files).await, Some(expected), "{number}");
                }
            }
            let changed = place.files().into_iter().filter(|(_, bytes)| bytes.len() as u64 > CHUNK);
            for (path, _) in changed {
                std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(CHUNK).unwrap();
            }
            rt::yield_now().await;
            assert_eq!(is_in_file(1, true).await, None, "it was cut");
        });
    });
}

#[test]
fn a_torn_header_section_leaves_the_previous_one() {
    let size = 2 * CHUNK;
    let (place, path, bytes) = stored(size, false);
    // Slot B has the second header section (fresh until 7), slot A the first.
    let room = room(&bytes);
    for torn_at in [0, 1, 15, 24, 104, 244] {
        let mut image = bytes.clone();
        image[room + torn_at..room + 400].fill(0x55);
        std::fs::write(&path, &image).unwrap();
        place.opened(async |store| {
            let hit = find(&store, 1).await.unwrap();
            let until = if torn_at < 244 { 2_000_000_000_000 } else { 7 };
            assert_eq!(hit.meta.fresh_until_ms, until, "torn at {torn_at}");
            assert!(whole(hit).await == body(1, size));
        });
    }
}
