//! Fills that are dropped at every point where they wait.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use cache::{FillError, New, Refused, Store};
use testkit::TempDir;

use super::common::*;

/// Polls a future until it completes, or has returned `Pending` `waits + 1` times; then it is dropped. Returns its
/// result if it completed.
async fn dropped_after<T>(waits: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = waits;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Stores an object; the fill is dropped after `waits` waits. Returns whether it completed.
async fn store_dropped(store: &Arc<Store>, new: New, body: &[u8], staging: &TempDir, waits: u32) -> bool {
    let fill = async {
        let mut fill = store.begin_in(new, staging.path()).await?;
        let mut at = 0;
        for part in body.chunks(30_000) {
            fill.write(at, part).await?;
            at += part.len() as u64;
        }
        fill.commit().await
    };
    match dropped_after(waits, fill).await {
        None => false,
        Some(result) => {
            result.unwrap();
            true
        }
    }
}

/// Checks that the index, the files and the counted space agree.
fn assert_agrees(store: &Store, place: &Place, context: &str) {
    assert!(place.leftovers().is_empty(), "{context}: {:?}", place.leftovers());
    let files = place.files();
    let stats = store.stats();
    assert_eq!(files.len() as u64, stats.entries, "{context}: the index lists exactly the files");
    let blocks = files.values().map(|bytes| (bytes.len() as u64).div_ceil(4096)).sum::<u64>();
    assert_eq!(stats.bytes, blocks * 4096, "{context}: the reserved space is released");
    assert_eq!(stats.write_errors, 0, "{context}");
}

/// Drops the fill of one object after 0, 1, 2, ... waits, until it completes.
async fn drop_everywhere(place: &Place, known: bool, size: u64) -> u32 {
    let staging = TempDir::new("staging");
    let store = place.open(PLAIN);
    start(&store).await;
    let bytes = body(1, size);
    let mut waits = 0;
    loop {
        let new = new(&store, 1, known.then_some(size));
        let is_done = store_dropped(&store, new, &bytes, &staging, waits).await;
        quiet().await;
        let context = format!("{size} bytes after {waits} waits");
        assert_agrees(&store, place, &context);
        if let Some(hit) = find(&store, 1).await {
            assert!(whole(hit).await == bytes, "{context}");
            purge(&store, key(1)).await;
            quiet().await;
            assert_agrees(&store, place, &context);
        } else {
            assert!(!is_done, "{context}: a committed entry is missing");
        }
        if is_done {
            stop(&store).await;
            return waits;
        }
        waits += 1;
    }
}

#[test]
fn a_fill_dropped_at_any_point_leaves_an_entry_or_nothing() {
    // Entries that are small, that have two chunks, and that are streamed; with and without a known length; also with
    // another staging directory.
    for (size, known, staged) in [
        (500, true, false),
        (500, false, false),
        (CHUNK + 5, true, false),
        (CHUNK + 5, false, false),
        (4 * CHUNK + 5, true, false),
        (CHUNK + 5, true, true),
        (4 * CHUNK + 5, true, true),
    ] {
        PLAIN.run(async {
            let mut place = Place::new();
            place.config.use_temp_path = staged;
            let waits = drop_everywhere(&place, known, size).await;
            assert!(waits > 0, "a fill of {size} bytes waits for the disk");
        });
    }
}

#[test]
fn a_variant_dropped_at_any_point_does_not_block_others() {
    let variant = |store: &Store, name: &str| {
        let mut new = new(store, 1, Some(100));
        let meta = Arc::make_mut(&mut new.meta);
        (meta.vary, meta.variant) = (b"accept".to_vec(), name.as_bytes().to_vec());
        new
    };
    let (place, staging) = (Place::new(), TempDir::new("staging"));
    place.managed(async |store| {
        let bytes = body(1, 100);
        assert!(store_dropped(&store, variant(&store, "a"), &bytes, &staging, u32::MAX).await);
        let mut waits = 0;
        while !store_dropped(&store, variant(&store, "b"), &bytes, &staging, waits).await {
            quiet().await;
            assert_agrees(&store, &place, &format!("after {waits} waits"));
            waits += 1;
        }
        assert_eq!(place.files().len(), 2);
    });
}

#[test]
fn a_refresh_dropped_at_any_point_leaves_the_old_or_new_header() {
    for size in [500, 4 * CHUNK] {
        let place = Place::new();
        place.managed(async |store| {
            put(&store, 1, size).await.unwrap();
            for waits in 0.. {
                let hit = find(&store, 1).await.unwrap();
                let mut meta = (*hit.meta).clone();
                meta.fresh_until_ms = i64::from(waits);
                let done = dropped_after(waits, store.refresh(&hit, meta, HEAD)).await;
                drop(hit);
                quiet().await;
                assert_agrees(&store, &place, &format!("{size} bytes after {waits} waits"));
                assert_hit(&store, 1, size).await;
                match done {
                    None => {}
                    Some(Err(Refused::Busy | Refused::Removed)) => {}
                    Some(Ok(())) => {
                        assert_eq!(find(&store, 1).await.unwrap().meta.fresh_until_ms, i64::from(waits));
                        break;
                    }
                    Some(Err(other)) => panic!("{other:?}"),
                }
            }
        });
    }
}

#[test]
fn a_fill_fails_after_a_dropped_write() {
    PLAIN.run_with("write delay=20ms", async {
        let place = Place::new();
        let store = place.open(PLAIN);
        let bytes = body(1, 8 * CHUNK);
        let mut fill = store.begin(new(&store, 1, Some(8 * CHUNK))).await.unwrap();
        // More chunks than may be in flight, so that it waits.
        assert!(dropped_after(0, fill.write(0, &bytes)).await.is_none());
        let again = fill.write(0, &bytes).await;
        assert!(matches!(again, Err(FillError::Incomplete { .. })), "{again:?}");
        assert!(matches!(fill.commit().await, Err(FillError::Incomplete { .. })));
        quiet().await;
        assert_agrees(&store, &place, "a write was dropped");
    });
}
