//! Concurrency: threads that fill, find, change, purge and evict the same keys, and runs that are interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cache::{FillError, Store};
use rt::Runtime;

use super::common::*;

const KEYS: u64 = 40;

/// Rounds per thread: enough for every combination of operations to occur, which the counters at the end show.
const ROUNDS: u64 = 400;

/// Returns a body that contains its object and length, so that no two bodies can be confused.
fn sealed(number: u64, salt: u64) -> Vec<u8> {
    let size = match salt % 5 {
        0 => 40,
        1 => 5000,
        2 => CHUNK,
        3 => CHUNK + 1,
        _ => 3 * CHUNK + 17,
    };
    let mut bytes = body(number * 1000 + salt, size);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&salt.to_le_bytes());
    bytes
}

fn assert_sealed(number: u64, bytes: &[u8]) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(word(0), number, "another object's body");
    assert!(bytes == sealed(number, word(8)), "object {number} is unchanged");
}

/// Runs one round of a thread.
async fn one_round(store: &Arc<Store>, random: u64) {
    let number = random % KEYS;
    let salt = random / 64 % 1000;
    match random / 64_000 % 10 {
        0..3 => {
            let bytes = sealed(number, salt);
            let length = (!random.is_multiple_of(3)).then_some(bytes.len() as u64);
            match store_in_pieces(store, new(store, number, length), &bytes, 20_000).await {
                Ok(()) | Err(FillError::Refused(_) | FillError::Purged) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        3 => {
            if let Some(hit) = find(store, number).await {
                let _ = store.refresh(&hit, (*hit.meta).clone(), HEAD).await;
            }
        }
        4 if random.is_multiple_of(20) => {
            purge(store, key(number)).await;
        }
        5 => {
            // A fill that is begun and dropped.
            if let Ok(mut fill) = store.begin(new(store, number, None)).await {
                let _ = fill.write(0, &sealed(number, 4)).await;
            }
        }
        _ => {
            if let Some(hit) = find(store, number).await {
                let length = hit.length();
                let bytes = whole(hit).await;
                assert_eq!(bytes.len() as u64, length);
                assert_sealed(number, &bytes);
            }
        }
    }
}

#[test]
fn threads_that_change_the_same_keys_never_see_a_wrong_body() {
    let (mut place, max) = (Place::new(), 60 * CHUNK);
    (place.config.max_size, place.config.memory) = (Some(max), 1 << 20);
    let store = place.open(PLAIN);
    let (left, over) = (Arc::new(AtomicU64::new(3)), Arc::new(AtomicBool::new(false)));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let (store, left, over) = (Arc::clone(&store), Arc::clone(&left), Arc::clone(&over));
            std::thread::spawn(move || {
                PLAIN.run(async {
                    if thread == 3 {
                        start(&store).await;
                        until(|| left.load(Ordering::Acquire) == 0).await;
                        stop(&store).await;
                        return;
                    }
                    until(|| store.stats().is_measured).await;
                    let mut random = 0x9e37_79b9 + thread;
                    for _ in 0..ROUNDS {
                        // Four concurrent tasks on each thread.
                        let gauge = rt::local::WaitGroup::new();
                        for _ in 0..4 {
                            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let (store, draw, counted) = (Arc::clone(&store), random >> 20, gauge.enter());
                            let over = Arc::clone(&over);
                            rt::spawn(async move {
                                one_round(&store, draw).await;
                                over.fetch_or(store.stats().bytes > max, Ordering::AcqRel);
                                drop(counted);
                            });
                        }
                        gauge.wait_empty().await;
                        assert_eq!(rt::counters().panics, 0);
                    }
                    left.fetch_sub(1, Ordering::AcqRel);
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let stats = store.stats();
    eprintln!("{stats:?}");
    assert!(!over.load(Ordering::Acquire), "max_size was exceeded");
    assert!(stats.commits > 0 && stats.hits_memory > 0 && stats.hits_disk > 0 && stats.purged > 0);
    assert_eq!((stats.damaged, stats.read_errors, stats.write_errors), (0, 0, 0));
    assert!(place.leftovers().is_empty());
    assert_eq!(place.files().len() as u64, stats.entries, "the index lists exactly the files");
    let blocks = place.files().values().map(|bytes| (bytes.len() as u64).div_ceil(4096)).sum::<u64>();
    assert!(blocks * 4096 <= stats.bytes, "{blocks} blocks, {} bytes counted", stats.bytes);
}

/// Runs `work` for this many turns of the engine and drops everything, as a kill does.
fn killed_after(turns: u32, place: &Place, work: impl AsyncFnOnce(Arc<Store>)) -> bool {
    let mut runtime = Runtime::new(io::build(PLAIN.config("")).unwrap());
    let is_done = runtime.block_on(async {
        let store = place.open(PLAIN);
        let ends = async {
            for _ in 0..turns {
                rt::yield_now().await;
            }
        };
        matches!(rt::select(work(store), ends).await, rt::Either::Left(()))
    });
    runtime.shutdown(Instant::now() + Duration::from_secs(180));
    is_done
}

#[test]
fn a_killed_process_leaves_the_old_or_the_new_entry() {
    let place = Place::new();
    let sizes = [500, 3 * CHUNK + 9];
    place.opened(async |store| {
        for (number, size) in (0..).zip(sizes) {
            let old = new(&store, number, Some(size));
            store_in_pieces(&store, old, &body(10 + number, size), 9000).await.unwrap();
        }
    });
    let mut turns = 1;
    loop {
        let is_done = killed_after(turns, &place, async |store| {
            for (number, size) in (0..).zip(sizes) {
                let hit = find(&store, number).await.unwrap();
                store.refresh(&hit, (*hit.meta).clone(), HEAD).await.unwrap();
                put(&store, number, size).await.unwrap();
            }
        });
        place.managed(async |store| {
            assert!(place.leftovers().is_empty(), "killed after {turns}");
            for (number, size) in (0..).zip(sizes) {
                let hit = find(&store, number).await.unwrap_or_else(|| panic!("{number} after {turns}"));
                assert_eq!(hit.head(), HEAD);
                let bytes = whole(hit).await;
                let is_known = bytes == body(number, size) || bytes == body(10 + number, size);
                assert!(is_known, "{number} killed after {turns}");
            }
            assert_eq!((store.stats().damaged, store.stats().entries), (0, 2), "killed after {turns}");
        });
        if is_done {
            break;
        }
        // After each of the first turns, in which most steps happen; then in wider steps, because turns that only wait
        // for the disk count too.
        turns += 1 + turns / 8;
    }
    assert!(turns > 20, "{turns}");
}
