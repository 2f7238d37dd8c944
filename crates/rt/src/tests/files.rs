//! Tests of files: returned buffers, retries, drops.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use io::facts::{DeviceId, EntryAttributes};
use io::op::{DiskKind, OpenHow};
use io::{Disk, DiskVia, Errno, Payload};
use rustix::fs::{Mode, OFlags};

use super::{run, settle, start_and_drop, watch};
use crate::{DiskEvent, File, counters, file};

const DEVICE: DeviceId = DeviceId(1);
const DISK: Disk = Disk { device: DEVICE, via: DiskVia::Sync };

fn some_file() -> OwnedFd {
    open(Path::new("/dev/zero"))
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn a_file_is_opened_and_closed_through_the_engine() {
    run(|fake| async move {
        let opened = watch(File::open(None, c"/a".into(), OpenHow::default(), DISK));
        fake.end("Open", Ok(0), Payload::Opened(some_file())).await;
        let file = opened.take().unwrap().unwrap();
        let shared = file.clone();
        drop(file);
        settle().await;
        assert_eq!(counters().engine.submitted, 1);
        drop(shared);
        settle().await;
        assert_eq!(counters().engine.submitted, 2, "the last clone closes");
    });
}

#[test]
fn a_piece_is_read_without_a_free_buffer() {
    run(|fake| async move {
        let file = File::new(some_file());
        let piece = || {
            let file = file.clone();
            watch(async move { file.read_piece(0, 64 << 10, DISK).await })
        };
        let held: Vec<_> = std::iter::from_fn(|| crate::pool().get(64 << 10)).collect();
        assert!(!held.is_empty());
        let read = piece();
        fake.end_with_memory("Read", Ok(16 << 10)).await;
        assert_eq!(read.take().unwrap().unwrap().len(), 16 << 10);
        drop(held);
        let read = piece();
        fake.end_with_memory("Read", Ok(64 << 10)).await;
        assert_eq!(read.take().unwrap().unwrap().len(), 64 << 10);
        // The file ends before the piece.
        let read = piece();
        fake.end_with_memory("Read", Ok(0)).await;
        assert!(matches!(read.take(), Some(Err(Errno::IO))));
    });
}

#[test]
fn a_read_with_eagain_is_retried() {
    run(|fake| async move {
        let file = File::new(some_file());
        let buf = crate::pool().get(100).unwrap();
        let read = {
            let file = file.clone();
            watch(async move { file.read_at(0, 100, buf, DISK).await })
        };
        for errno in [Errno::INTR, Errno::AGAIN, Errno::AGAIN] {
            while fake.flying().is_empty() {
                settle().await;
            }
            fake.give_back(fake.only("Read"), Err(errno));
        }
        while fake.flying().is_empty() {
            settle().await;
        }
        fake.end_with_memory("Read", Ok(40)).await;
        let (result, buf) = read.take().unwrap();
        assert_eq!((result, buf.unwrap().len()), (Ok(40), 40));
    });
}

#[test]
fn the_buffer_is_returned_with_an_error() {
    run(|fake| async move {
        let file = File::new(some_file());
        let buf = crate::pool().get(100).unwrap();
        let read = watch(async move { file.read_at(0, 100, buf, DISK).await });
        fake.end_with_memory("Read", Err(Errno::IO)).await;
        let (result, buf) = read.take().unwrap();
        assert_eq!(result, Err(Errno::IO));
        assert!(buf.is_some());
    });
}

#[test]
fn a_partial_write_is_continued() {
    run(|fake| async move {
        let file = File::new(some_file());
        let mut buf = crate::pool().get(100).unwrap();
        buf.append(b"abcdef");
        let written = watch(async move { file.write_at(0, buf, DISK).await });
        fake.end_with_memory("Write", Ok(2)).await;
        fake.end_with_memory("Write", Ok(4)).await;
        let (result, buf) = written.take().unwrap();
        assert_eq!(result, Ok(6));
        assert_eq!(&*buf.unwrap(), b"cdef");
    });
}

#[test]
fn shared_bytes_are_written_completely() {
    run(|fake| async move {
        let file = File::new(some_file());
        let write = || {
            let mut data = io::Segments::new();
            data.push(io::segments::Source::Shared(b"abc".as_slice().into()));
            data.push(io::segments::Source::Static(b"def"));
            let file = file.clone();
            watch(async move { file.write_segments_at(5, data, DISK).await })
        };
        let written = write();
        for result in [Ok(4), Err(Errno::INTR), Ok(2)] {
            settle().await;
            fake.give_back(fake.only("WriteSegments"), result);
        }
        settle().await;
        let (result, rest) = written.take().unwrap();
        assert_eq!((result, rest.unwrap().len()), (Ok(6), 0));
        for (answer, result) in [(Ok(0), Err(Errno::IO)), (Err(Errno::NOSPC), Err(Errno::NOSPC))] {
            let written = write();
            fake.end_with_memory("WriteSegments", answer).await;
            assert_eq!(written.take().unwrap().0, result);
        }
    });
}

#[test]
fn paths_are_queried_and_removed() {
    run(|fake| async move {
        let stat = watch(file::stat_path(c"/a".into(), DISK));
        let facts = io::facts::Stat { size: 7, ..Default::default() };
        fake.end("Stat", Ok(0), Payload::Stat(Box::new(facts))).await;
        assert_eq!(stat.take().unwrap().unwrap().size, 7);
        let gone = watch(file::unlink(c"/a".into(), DISK));
        fake.end("Unlink", Err(Errno::NOENT), Payload::None).await;
        assert_eq!(gone.take(), Some(Err(Errno::NOENT)));
    });
}

#[test]
fn an_inline_stat_returns_the_size() {
    run(|_| async {
        let path = std::env::current_exe().unwrap();
        let facts = File::new(open(&path)).stat_inline().unwrap();
        assert_eq!(facts.size as i64, rustix::fs::stat(&path).unwrap().st_size);
        assert_eq!(facts.mode & 0o170_000, 0o100_000, "a regular file");
    });
}

#[test]
fn resident_ranges_are_shared_by_all_handles_of_the_file() {
    run(|_| async {
        let file = File::new(some_file());
        let shared = file.clone();
        assert_eq!(file.seen_resident(0), None);
        file.note_resident(100..200);
        let ends = [99, 100, 199, 200].map(|offset| shared.seen_resident(offset).map(|(end, _)| end));
        assert_eq!(ends, [None, Some(200), Some(200), None]);
        assert_eq!(shared.seen_resident(150).map(|(_, at)| at), Some(crate::now()), "in the same turn");
        shared.note_resident(0..50);
        assert_eq!(file.seen_resident(150), None, "the last look counts");
    });
}

#[test]
fn a_directory_is_read_to_its_end() {
    run(|fake| async move {
        let file = File::new(some_file());
        let entry =
            io::facts::DirEntry { name: b"a".as_slice().into(), kind: 0o100_000, inode: 7, stat: None };
        let read = || {
            let file = file.clone();
            watch(async move { file.read_dir(1024, EntryAttributes::Kind, DISK).await })
        };
        let first = read();
        fake.end("ReadDir", Err(Errno::INTR), Payload::None).await;
        fake.end("ReadDir", Ok(1), Payload::Entries(vec![entry.clone()])).await;
        assert_eq!(first.take(), Some(Ok(vec![entry])));
        let last = read();
        fake.end("ReadDir", Ok(0), Payload::Entries(Vec::new())).await;
        assert_eq!(last.take(), Some(Ok(Vec::new())));
    });
}

#[test]
fn an_awaited_close_is_one_operation() {
    run(|_| async move {
        let file = File::new(some_file());
        let shared = file.clone();
        file.close().await;
        settle().await;
        assert_eq!(counters().engine.submitted, 0, "another one has it");
        shared.close().await;
        assert_eq!(counters().engine.submitted, 1);
        settle().await;
        assert_eq!(counters().engine.submitted, 1, "once");
    });
}

/// The observer is called for the start of each file operation, and for its end or abandonment, but not for other
/// operations.
#[test]
fn file_operations_are_reported_to_the_observer() {
    run(|fake| async move {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let copy = Rc::clone(&seen);
        let before = watch(File::open(None, c"/a".into(), OpenHow::default(), DISK));
        settle().await;
        crate::observe_disks(|| move |kind, device, event| copy.borrow_mut().push((kind, device, event)));
        fake.end("Open", Ok(0), Payload::Opened(some_file())).await;
        drop(before.take());
        settle().await;
        assert_eq!(*seen.borrow(), [], "neither one that began before, nor a close");

        let opened = watch(File::open(None, c"/a".into(), OpenHow::default(), DISK));
        settle().await;
        let begun = (DiskKind::Open, DEVICE, DiskEvent::Started);
        assert_eq!(*seen.borrow(), [begun]);
        fake.end("Open", Err(Errno::NOENT), Payload::None).await;
        assert!(opened.take().unwrap().is_err());
        let ended = matches!(seen.borrow()[1..], [(DiskKind::Open, DEVICE, DiskEvent::Ended(_))]);
        assert!(ended, "{:?}", seen.borrow());

        start_and_drop(File::open(None, c"/a".into(), OpenHow::default(), DISK)).await;
        assert_eq!(seen.borrow()[2..], [begun, (DiskKind::Open, DEVICE, DiskEvent::Abandoned)]);
    });
}
