//! Bit rot on the disk while the store runs: a verification of checksums is valid for a time (`verify`), and the scrub
//! (`scrub`) finds damage in entries that are not requested.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cache::{Body, Store, StoreError};

use super::common::*;

/// Length of an epoch in tests with several epochs.
const EPOCH: Duration = Duration::from_millis(50);

/// Sizes of bodies with two and five chunks; the smaller one is read in one operation with its header section.
const SIZES: [u64; 2] = [CHUNK + 5, 4 * CHUNK + 5];

/// Flips a bit near the end of a file, in its last chunk.
fn rot(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let at = file.metadata().unwrap().len() - 3;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

fn rot_all(place: &Place) {
    place.files().keys().for_each(|path| rot(path));
}

/// Waits until another epoch has begun.
async fn next_epoch() {
    rt::sleep_until(rt::now() + 2 * EPOCH).await;
}

/// Looks an entry up and reads it; returns whether it is damaged.
async fn is_damaged(store: &Arc<Store>, size: u64) -> bool {
    match find(store, 1).await.map(|hit| hit.body) {
        // Its body was read with its header section.
        None => store.stats().damaged == 1,
        Some(Body::Image(_)) => false,
        Some(Body::File(located)) => match read(&located, 0..size).await {
            Ok(_) => false,
            Err(StoreError::Damaged(_)) => true,
            Err(error) => panic!("{error:?}"),
        },
    }
}

#[test]
fn a_rotten_bit_is_detected_in_the_next_epoch() {
    on_each_pair(|pair| {
        for (size, calls_directly) in SIZES.into_iter().zip([false, true]) {
            let mut place = Place::new();
            (place.config.verify, place.config.calls_directly) = (Some(EPOCH), calls_directly);
            place.managed_on(pair, "", async |store| {
                put(&store, 1, size).await.unwrap();
                // Requested often enough for the file to be kept open.
                for _ in 0..3 {
                    assert_hit(&store, 1, size).await;
                }
                next_epoch().await;
                assert_hit(&store, 1, size).await;
                assert!(store.stats().verified_chunks > 0, "written chunks are verified in a later epoch");
                rot_all(&place);
                next_epoch().await;
                assert!(is_damaged(&store, size).await, "{size} {calls_directly}");
                quiet().await;
                assert!(find(&store, 1).await.is_none(), "the damaged entry was removed");
                assert_eq!((store.stats().damaged, place.files().len()), (1, 0));
            });
        }
    });
}

#[test]
fn a_rotten_range_is_detected_in_the_next_epoch() {
    let (mut place, size) = (Place::new(), 4 * CHUNK);
    place.config.verify = Some(EPOCH);
    place.managed(async |store| {
        put_part(&store, 1, size, 0..2 * CHUNK).await;
        rot_all(&place);
        next_epoch().await;
        let hit = find(&store, 1).await.unwrap();
        let located = hit.located().unwrap();
        assert!(read(located, 0..CHUNK).await.unwrap() == body(1, size)[..CHUNK as usize]);
        assert!(matches!(read(located, CHUNK..2 * CHUNK).await, Err(StoreError::Damaged(_))));
        quiet().await;
        assert!(find(&store, 1).await.is_none(), "the damaged entry was removed");
    });
}

#[test]
fn without_epochs_a_verification_is_valid_until_the_exit() {
    let (mut place, size) = (Place::new(), 4 * CHUNK);
    place.config.verify = None;
    place.managed(async |store| {
        put(&store, 1, size).await.unwrap();
        next_epoch().await;
        assert!(find(&store, 1).await.unwrap().located().unwrap().is_verified(&(0..size)));
        assert_hit(&store, 1, size).await;
        assert_eq!(store.stats().verified_chunks, 0, "written chunks are not verified");
    });
}

#[test]
fn the_scrub_detects_rotten_entries_without_a_request() {
    on_each_pair(|pair| {
        let mut place = Place::new();
        (place.config.verify, place.config.scrub) = (None, Some(Duration::from_millis(1)));
        place.managed_on(pair, "", async |store| {
            for (number, size) in (1..).zip([5000, CHUNK + 5, 20 * CHUNK]) {
                put(&store, number, size).await.unwrap();
            }
            put_part(&store, 4, 4 * CHUNK, CHUNK..3 * CHUNK).await;
            rot_all(&place);
            until(|| store.stats().damaged == 4 && place.files().is_empty()).await;
            for (number, size) in (5..).zip([5000, CHUNK + 5, 20 * CHUNK]) {
                put(&store, number, size).await.unwrap();
            }
            let stats = store.stats();
            until(|| store.stats().verified_chunks > stats.verified_chunks + 100).await;
            for (number, size) in (5..).zip([5000, CHUNK + 5, 20 * CHUNK]) {
                assert_hit(&store, number, size).await;
            }
            assert_eq!((store.stats().damaged, store.stats().entries), (4, 3), "undamaged entries remain");
            assert_eq!(stats.hits_disk + stats.hits_memory + stats.misses, 0, "no request was received");
        });
    });
}
