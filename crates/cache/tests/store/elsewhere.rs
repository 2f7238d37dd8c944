//! Entries that are staged in a directory outside of the cache (`use_temp_path=on`), on the cache's file system and on
//! another one.

use std::path::Path;
use std::sync::Arc;

use cache::{FillError, Note, Store};
use testkit::TempDir;

use super::common::*;

fn place() -> Place {
    let mut place = Place::new();
    place.config.use_temp_path = true;
    place
}

/// Stores an object through a staging directory; returns how many files the cache's own staging directory contained
/// before the commit.
async fn put_by(
    place: &Place,
    store: &Arc<Store>,
    folder: &Path,
    number: u64,
    size: u64,
) -> Result<usize, FillError> {
    let mut fill = store.begin_in(new(store, number, Some(size)), folder).await?;
    for (at, part) in (0..).step_by(10_000).zip(body(number, size).chunks(10_000)) {
        fill.write(at, part).await?;
    }
    let files = place.leftovers().len();
    fill.commit().await?;
    Ok(files)
}

fn names(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn entries_can_be_staged_on_any_file_system() {
    let Some(other) = TempDir::on_other_filesystem("elsewhere") else { return };
    on_each_pair(|pair| {
        let (place, here) = (place(), TempDir::new("temp"));
        for folder in [here.path(), &other.path().join("made")] {
            place.managed_on(pair, "", async |store| {
                for (number, &size) in (0..).zip(&[0, 1, CHUNK, CHUNK + 1, 5 * CHUNK + 77]) {
                    let files = put_by(&place, &store, folder, number, size).await.unwrap();
                    assert_eq!(files, 0, "{size} bytes are staged outside of the cache");
                    assert_hit(&store, number, size).await;
                }
                // Missing parts of a partial entry are not content, wherever the entry was staged.
                let mut part = new(&store, 7, Some(20 * CHUNK));
                part.is_partial = true;
                let mut fill = store.begin_in(part, folder).await.unwrap();
                let bytes = body(7, 20 * CHUNK);
                fill.write(9 * CHUNK, &bytes[(9 * CHUNK) as usize..(11 * CHUNK) as usize]).await.unwrap();
                fill.commit().await.unwrap();
                // A dropped fill leaves no files.
                let mut given_up = store.begin_in(new(&store, 8, Some(3 * CHUNK)), folder).await.unwrap();
                given_up.write(0, &bytes[..CHUNK as usize]).await.unwrap();
                drop(given_up);
            });
            place.opened_on(pair, async |store| {
                assert_hit(&store, 4, 5 * CHUNK + 77).await;
                let hit = find(&store, 7).await.unwrap();
                let located = hit.located().unwrap();
                let (range, all) = (9 * CHUNK..11 * CHUNK, body(7, 20 * CHUNK));
                let expected = &all[range.start as usize..range.end as usize];
                assert!(
                    located.missing(&range).is_none() && located.missing(&(8 * CHUNK..9 * CHUNK)).is_some()
                );
                assert_eq!(read(located, range).await.unwrap(), expected);
                assert_eq!((find(&store, 8).await.is_none(), store.stats().damaged), (true, 0));
            });
            assert_eq!((place.leftovers().len(), names(folder)), (0, 0));
        }
        assert_eq!(place.notes().iter().filter(|note| note.is_error()).count(), 0);
    });
}

/// The failure does not concern the cache's disk, so the cache continues.
#[test]
fn a_failing_staging_directory_is_not_used() {
    let place = place();
    let file = place.dir.write("no-folder", "");
    place.managed(async |store| {
        for number in 0..3 {
            let files = put_by(&place, &store, &file, number, 3 * CHUNK).await.unwrap();
            assert_eq!(files, 1, "the entry is staged inside the cache");
            assert_hit(&store, number, 3 * CHUNK).await;
        }
        assert!(!store.stats().is_pass_through);
    });
    let told: Vec<String> =
        place.notes().iter().filter(|note| note.is_error()).map(Note::to_string).collect();
    let [told] = told.as_slice() else { panic!("{told:?}") };
    assert!(told.contains("creating a file in \"") && told.contains("Not a directory"), "{told}");
}

/// When the directory is full, the fill in flight fails, and the next ones are staged inside of the cache.
#[test]
fn a_full_staging_directory_loses_one_entry() {
    let Some(other) = TempDir::on_other_filesystem("full") else { return };
    let place = place();
    let faults = format!("write error=ENOSPC path={}", other.path().display());
    place.managed_on(PLAIN, &faults, async |store| {
        assert!(put_by(&place, &store, other.path(), 1, 3 * CHUNK).await.is_err());
        assert!(find(&store, 1).await.is_none());
        put_by(&place, &store, other.path(), 1, 3 * CHUNK).await.unwrap();
        assert_hit(&store, 1, 3 * CHUNK).await;
        assert!(!store.stats().is_pass_through);
    });
}
