//! Stored entries are returned on every engine: sizes around every boundary, variants, parts, new header sections.

use std::sync::Arc;

use cache::{FillError, Key, Meta, New, Refused};

use super::common::*;

/// Sizes around the boundaries of blocks and chunks.
const SIZES: [u64; 12] =
    [0, 1, 4095, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 77, 1 << 20, 513 * CHUNK, 1000];

#[test]
fn bodies_of_every_size_are_read_back() {
    on_each_pair(|pair| {
        let place = Place::new();
        place.managed_on(pair, "", async |store| {
            for (number, &size) in SIZES.iter().enumerate() {
                let number = number as u64;
                assert!(find(&store, number).await.is_none());
                put(&store, number, size).await.unwrap();
                assert_hit(&store, number, size).await;
                // With a length that is unknown until the end, and pieces larger than a chunk.
                let unknown = new(&store, 100 + number, None);
                store_in_pieces(&store, unknown, &body(100 + number, size), 200_000).await.unwrap();
                assert_hit(&store, 100 + number, size).await;
            }
            let stats = store.stats();
            assert_eq!((stats.commits, stats.aborts), (2 * SIZES.len() as u64, 0));
            assert_eq!(stats.entries, 2 * SIZES.len() as u64);
        });
        assert_eq!(place.leftovers(), Vec::<std::path::PathBuf>::new());
        pair.run(async {
            // As another process: the index is empty, and every entry is found on the disk.
            let store = place.open(pair);
            for (number, &size) in SIZES.iter().enumerate() {
                assert_hit(&store, number as u64, size).await;
                assert_hit(&store, 100 + number as u64, size).await;
            }
            assert_eq!(store.stats().damaged, 0);
        });
    });
}

#[test]
fn bodies_are_read_bypassing_the_page_cache_and_the_engine() {
    on_each_pair(|pair| {
        for (direct, calls_directly) in [(true, false), (false, true), (true, true)] {
            let mut place = Place::new();
            (place.config.direct, place.config.calls_directly) = (direct, calls_directly);
            place.managed_on(pair, "", async |store| {
                for (number, size) in (0..).zip([0, 1, 4096, CHUNK, 2 * CHUNK + 77]) {
                    put(&store, number, size).await.unwrap();
                    assert_hit(&store, number, size).await;
                }
                assert!(find(&store, 99).await.is_none());
            });
        }
    });
}

#[test]
fn a_table_that_does_not_fit_before_the_body_is_placed_after_it() {
    let place = Place::new();
    place.opened(async |store| {
        // The length is unknown at the start, and the body is zeroes because they are fast to generate.
        let size = 769 * CHUNK + 1;
        let bytes = vec![0; size as usize];
        store_in_pieces(&store, new(&store, 1, None), &bytes, 1 << 20).await.unwrap();
    });
    place.opened(async |store| {
        let hit = find(&store, 1).await.unwrap();
        let range = 768 * CHUNK - 1..768 * CHUNK + 2;
        assert_eq!(read(hit.located().unwrap(), range).await.unwrap(), [0; 3]);
        assert_eq!(hit.located().unwrap().missing(&(0..u64::MAX)), None);
    });
}

#[test]
fn a_dropped_or_invalid_fill_leaves_nothing() {
    let place = Place::new();
    place.managed(async |store| {
        let size = 3 * CHUNK;
        let mut fill = store.begin(new(&store, 1, Some(size))).await.unwrap();
        fill.write(0, &body(1, size)[..100_000]).await.unwrap();
        drop(fill);
        let mut fill = store.begin(new(&store, 2, Some(size))).await.unwrap();
        fill.write(0, &body(2, size)[..100_000]).await.unwrap();
        assert_eq!(fill.commit().await, Err(FillError::Incomplete { got: 100_000, expected: size }));
        let mut fill = store.begin(new(&store, 3, Some(10))).await.unwrap();
        assert_eq!(fill.write(0, &[0; 11]).await, Err(FillError::TooLong));
        drop(fill);
        let mut fill = store.begin(new(&store, 4, None)).await.unwrap();
        assert!(matches!(fill.write(7, b"x").await, Err(FillError::Incomplete { .. })), "a hole");
        drop(fill);
        quiet().await;
        for number in 1..5 {
            assert!(find(&store, number).await.is_none());
        }
        assert_eq!(store.stats().bytes, 0, "the reserved space is free again");
        assert_eq!(store.stats().aborts, 4);
    });
    assert!(place.files().is_empty() && place.leftovers().is_empty());
}

#[test]
fn an_entry_is_replaced_immediately_while_it_is_read() {
    on_each_pair(|pair| {
        let place = Place::new();
        place.managed_on(pair, "", async |store| {
            let size = 4 * CHUNK;
            put(&store, 1, size).await.unwrap();
            let old = find(&store, 1).await.unwrap();
            let fresh = new(&store, 1, Some(size));
            store_in_pieces(&store, fresh, &body(9, size), 50_000).await.unwrap();
            assert!(whole(old).await == body(1, size), "an earlier hit can be read to its end");
            let now = find(&store, 1).await.unwrap();
            assert!(whole(now).await == body(9, size));
            assert_eq!(store.stats().entries, 1);
        });
        assert_eq!(place.files().len(), 1);
    });
}

#[test]
fn a_fill_is_read_while_it_is_written() {
    on_each_pair(|pair| {
        let place = Place::new();
        place.opened_on(pair, async |store| {
            let size = 20 * CHUNK + 5;
            let bytes = body(1, size);
            let mut fill = store.begin(new(&store, 1, Some(size))).await.unwrap();
            let reader = fill.reader().unwrap();
            let mut given = 0;
            for part in bytes.chunks(30_000) {
                fill.write(given, part).await.unwrap();
                given += part.len() as u64;
                assert!(given - reader.on_disk() <= cache::Fill::BEHIND_BYTES_MAX);
            }
            let located = reader.located().unwrap();
            let end = located.length;
            assert!(read(&located, 5..end).await.unwrap() == bytes[5..end as usize]);
            fill.commit().await.unwrap();
            assert_eq!(reader.on_disk(), size);
            let all = reader.located().unwrap();
            assert!(read(&all, 0..size).await.unwrap() == bytes);
        });
    });
}

#[test]
fn variants_are_stored_separately() {
    on_each_pair(|pair| {
        let place = Place::new();
        place.managed_on(pair, "", async |store| {
            let text = text(1);
            let key = Key::of(&text);
            for (number, variant) in [(0, "gzip"), (1, "br"), (2, "")] {
                let mut new = new(&store, 1, Some(100));
                let meta = Arc::make_mut(&mut new.meta);
                meta.vary = b"accept-encoding".to_vec();
                meta.variant = variant.into();
                store_in_pieces(&store, new, &body(number, 100), 100).await.unwrap();
            }
            for _ in 0..2 {
                for (number, variant) in [(0, "gzip"), (1, "br"), (2, "")] {
                    let selector = |vary: &[u8]| {
                        assert_eq!(vary, b"accept-encoding");
                        variant.as_bytes().to_vec()
                    };
                    let hit = store.find(&key, &text, &selector).await.unwrap().unwrap();
                    assert_eq!(hit.meta.variant, variant.as_bytes());
                    assert!(whole(hit).await == body(number, 100));
                }
            }
            let other = store.find(&key, &text, &|_| b"deflate".to_vec()).await.unwrap();
            assert!(other.is_none());
            store.purge(cache::Scope::Key(key.0), cache::PurgeEffect::Unusable).await.unwrap();
            for variant in ["gzip", "br", ""] {
                let gone = store.find(&key, &text, &|_| variant.into()).await.unwrap();
                assert!(gone.is_none(), "a purge removes all variants");
            }
        });
    });
}

/// A fill of parts that begins while another one is in flight adds to the same entry; a fill without any complete chunk
/// leaves no entry.
#[test]
fn concurrent_range_fills_are_one_entry() {
    on_each_pair(|pair| {
        let place = Place::new();
        let (size, bytes) = (8 * CHUNK, body(1, 8 * CHUNK));
        place.managed_on(pair, "", async |store| {
            let partial = || New { is_partial: true, ..new(&store, 1, Some(size)) };
            let folder = place.path();
            let begin = |joins: bool| store.begin_parts(partial(), &folder, &|_| Vec::new(), move |_| joins);
            let nothing = begin(true).await.unwrap();
            assert!(
                find(&store, 1).await.is_some_and(|hit| hit.located().is_some()),
                "other requests find the entry immediately"
            );
            drop(nothing);
            quiet().await;
            assert!(find(&store, 1).await.is_none(), "no bytes were received");
            let mut first = begin(true).await.unwrap();
            let mut second = begin(true).await.unwrap();
            let (one, other) = (CHUNK..2 * CHUNK, 5 * CHUNK..7 * CHUNK);
            second.write(other.start, &bytes[other.start as usize..other.end as usize]).await.unwrap();
            first.write(one.start, &bytes[one.start as usize..one.end as usize]).await.unwrap();
            second.commit().await.unwrap();
            first.commit().await.unwrap();
            let hit = find(&store, 1).await.unwrap();
            let located = hit.located().unwrap();
            assert!(located.is_present(&one) && located.is_present(&other));
            assert_eq!(located.missing(&(0..size)), Some(0..CHUNK));
            // A fill for another response replaces the entry.
            let mut third = begin(false).await.unwrap();
            third.write(0, &bytes[..CHUNK as usize]).await.unwrap();
            third.commit().await.unwrap();
            let hit = find(&store, 1).await.unwrap();
            assert_eq!(hit.located().unwrap().missing(&(0..size)), Some(CHUNK..size));
        });
        place.opened_on(pair, async |store| {
            let hit = find(&store, 1).await.unwrap();
            assert_eq!(hit.located().unwrap().missing(&(0..size)), Some(CHUNK..size));
        });
    });
}

#[test]
fn ranges_are_stored_merged_and_served() {
    on_each_pair(|pair| {
        let place = Place::new();
        let size = 10 * CHUNK + 1000;
        let bytes = body(1, size);
        let part = |range: std::ops::Range<u64>| bytes[range.start as usize..range.end as usize].to_vec();
        place.managed_on(pair, "", async |store| {
            // Not at chunk boundaries: only the complete chunks in between are stored.
            put_part(&store, 1, size, 2 * CHUNK - 10..5 * CHUNK + 10).await;
            let before = store.stats().bytes;
            let hit = find(&store, 1).await.unwrap();
            let located = hit.located().unwrap();
            assert!(located.is_present(&(2 * CHUNK..5 * CHUNK)));
            assert_eq!(located.missing(&(0..3 * CHUNK)), Some(0..2 * CHUNK));
            assert_eq!(located.missing(&(4 * CHUNK..size)), Some(5 * CHUNK..size));
            assert!(matches!(read(located, 0..9).await, Err(cache::StoreError::Missing { at: 0 })));
            assert!(
                read(located, 3 * CHUNK + 7..4 * CHUNK + 9).await.unwrap()
                    == part(3 * CHUNK + 7..4 * CHUNK + 9)
            );
            let mut fill = store.extend(&hit).await.unwrap();
            let mut other = store.extend(&hit).await.unwrap();
            fill.write(9 * CHUNK, &part(9 * CHUNK..size)).await.unwrap();
            other.write(0, &part(0..CHUNK)).await.unwrap();
            let room = store.stats().bytes;
            // Storing the same chunk again uses no more space.
            fill.write(0, &part(0..CHUNK)).await.unwrap();
            other.commit().await.unwrap();
            fill.commit().await.unwrap();
            assert!(store.stats().bytes <= room);
            assert!(located.is_present(&(9 * CHUNK..size)), "readers see the chunks immediately");
            assert!(store.stats().bytes > before);
        });
        place.opened_on(pair, async |store| {
            let hit = find(&store, 1).await.unwrap();
            let located = hit.located().unwrap();
            assert_eq!(located.missing(&(0..size)), Some(CHUNK..2 * CHUNK));
            assert!(!located.is_verified(&(0..1)), "a chunk is not verified before it was read");
            assert!(read(located, 0..CHUNK).await.unwrap() == part(0..CHUNK));
            assert!(located.is_verified(&(0..CHUNK)) && !located.is_verified(&(0..3 * CHUNK)));
            let mut fill = store.extend(&hit).await.unwrap();
            fill.write(CHUNK, &part(CHUNK..2 * CHUNK)).await.unwrap();
            fill.write(5 * CHUNK, &part(5 * CHUNK..9 * CHUNK)).await.unwrap();
            fill.commit().await.unwrap();
            assert_hit(&store, 1, size).await;
        });
    });
}

#[test]
fn no_range_is_written_after_the_directory_was_handed_over() {
    let place = Place::new();
    place.opened(async |store| {
        start(&store).await;
        let bytes = body(1, 4 * CHUNK);
        put_part(&store, 1, 4 * CHUNK, 0..CHUNK).await;
        let hit = find(&store, 1).await.unwrap();
        let mut fill = store.extend(&hit).await.unwrap();
        let before = place.files();
        stop(&store).await;
        let written = fill.write(CHUNK, &bytes[CHUNK as usize..3 * CHUNK as usize]).await;
        let ended = match written {
            Ok(()) => fill.commit().await,
            Err(error) => Err(error),
        };
        assert_eq!(ended, Err(Refused::NotOwner.into()));
        assert!(place.files() == before);
    });
}

#[test]
fn a_new_header_section_retains_the_body() {
    on_each_pair(|pair| {
        let place = Place::new();
        place.managed_on(pair, "", async |store| {
            for (number, size) in [(1, 500), (2, 3 * CHUNK)] {
                put(&store, number, size).await.unwrap();
                for turn in 1..6 {
                    let hit = find(&store, number).await.unwrap();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nAge: {turn}\r\nX-Long: {}\r\n\r\n",
                        "x".repeat(turn * 50)
                    );
                    let meta = Meta { fresh_until_ms: turn as i64, ..(*hit.meta).clone() };
                    store.refresh(&hit, meta, head.as_bytes()).await.unwrap();
                    let now = find(&store, number).await.unwrap();
                    assert_eq!((now.head(), now.meta.fresh_until_ms), (head.as_bytes(), turn as i64));
                    assert!(whole(now).await == body(number, size));
                }
            }
            let large = find(&store, 2).await.unwrap();
            let long = vec![b'x'; 100_000];
            let refused = store.refresh(&large, (*large.meta).clone(), &long).await;
            assert_eq!(refused, Err(Refused::HeadTooLong));
        });
        place.opened_on(pair, async |store| {
            for number in [1, 2] {
                assert_eq!(find(&store, number).await.unwrap().meta.fresh_until_ms, 5);
            }
        });
    });
}
