//! Operations on files and paths.

use std::ffi::CString;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use io::facts::{DeviceId, DirEntry, EntryAttributes};
use io::op::{Interest, OpenHow, StatTarget};
use io::{Disk, DiskOp, DiskVia, Errno, Fd, NetOp, Op, Payload};
use testkit::TempDir;

use crate::harness::{Bench, PATIENCE, connection, on_each_pair, on_each_pair_with, pattern};

const DEVICE: DeviceId = DeviceId(7);

fn at(via: DiskVia) -> Disk {
    Disk { device: DEVICE, via }
}

#[test]
fn a_read_at_the_end_is_short_and_the_next_is_empty() {
    let dir = TempDir::new("io");
    let bytes = pattern(10_000);
    let path = dir.write("a", &bytes);
    on_each_pair(|bench| {
        let file = bench.open(&path, 0).unwrap();
        assert_eq!(bench.read_fully(&file, 8_000, 4096), Ok(bytes[8_000..].to_vec()));
        assert_eq!(bench.read(&file, 10_000, 4096), Ok(Vec::new()));
        assert_eq!(bench.read(&file, 20_000, 4096), Ok(Vec::new()));
        assert_eq!(bench.open(&dir.path().join("none"), 0).err(), Some(Errno::NOENT));
        drop(file);
    });
}

#[test]
fn direct_reads_end_with_an_unaligned_tail() {
    let dir = TempDir::new("io");
    let bytes = pattern(100_001);
    let path = dir.write("a", &bytes);
    on_each_pair(|bench| {
        let file = match bench.open(&path, libc::O_DIRECT) {
            Err(Errno::INVAL) => return println!("skipped: this file system has no direct reads"),
            file => file.unwrap(),
        };
        assert_eq!(bench.read_fully(&file, 0, 65536), Ok(bytes[..65536].to_vec()));
        assert_eq!(bench.read(&file, 98_304, 65536), Ok(bytes[98_304..].to_vec()));
        assert_eq!(bench.read(&file, 102_400, 65536), Ok(Vec::new()));
        drop(file);
    });
}

#[test]
fn many_concurrent_direct_reads_succeed() {
    let dir = TempDir::new("io");
    let bytes = pattern(1 << 20);
    let path = dir.write("a", &bytes);
    // The depth of libaio is below the number of reads, so that some have to queue.
    on_each_pair_with(
        |config| config.libaio_depth = 8,
        |bench| {
            let Ok(file) = bench.open(&path, libc::O_DIRECT) else { return };
            let via = bench.pair.via();
            let read = |bench: &mut Bench, place: usize| {
                let buf = bench.engine.pool().get(4096).unwrap();
                let offset = place as u64 * 4096;
                bench.submit(Op::Disk {
                    at: at(via),
                    op: DiskOp::Read { file: file.clone(), offset, len: 4096, buf },
                })
            };
            let ids: Vec<_> = (0..200).map(|place| read(bench, place)).collect();
            for (place, id) in ids.into_iter().enumerate() {
                let completion = bench.next(id);
                assert_eq!(completion.result, Ok(4096));
                let Payload::Buf(buf) = completion.payload else { panic!("no buffer") };
                assert!(*buf == bytes[place * 4096..][..4096], "read {place} has other bytes");
            }
            bench.assert_drains();
        },
    );
}

#[test]
fn a_file_is_written_renamed_queried_and_removed() {
    on_each_pair(|bench| {
        let dir = TempDir::new("io");
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let via = bench.pair.via();
        let file = bench.open(&old, libc::O_RDWR | libc::O_CREAT).unwrap();
        let mut buf = bench.engine.pool().get(4096).unwrap();
        buf.append(b"hello, file");
        let done =
            bench.run(Op::Disk { at: at(via), op: DiskOp::Write { file: file.clone(), offset: 0, buf } });
        assert_eq!(done.result, Ok(11));
        assert!(matches!(done.payload, Payload::Buf(buf) if &*buf == b"hello, file"));
        assert_eq!(
            bench.run(Op::Disk { at: at(via), op: DiskOp::Sync { file: file.clone() } }).result,
            Ok(0)
        );
        let c_path = |path: &std::path::Path| CString::new(path.to_str().unwrap()).unwrap();
        let rename = Op::Disk {
            at: at(via),
            op: DiskOp::Rename { from_dir: None, from: c_path(&old), to_dir: None, to: c_path(&new) },
        };
        assert_eq!(bench.run(rename).result, Ok(0));
        let there = std::fs::metadata(&new).unwrap();
        for target in [StatTarget::File(file.clone()), StatTarget::Path(c_path(&new))] {
            let done = bench.run(Op::Disk { at: at(via), op: DiskOp::Stat { target } });
            let Payload::Stat(stat) = done.payload else { panic!("{:?} without facts", done.result) };
            assert_eq!(stat.size, 11);
            assert_eq!(stat.inode, there.ino());
            assert_eq!(stat.device, DeviceId(there.dev()));
            assert_eq!((stat.modified, i64::from(stat.modified_nanos)), (there.mtime(), there.mtime_nsec()));
            assert_eq!(stat.mode, there.mode());
        }
        assert_eq!(
            bench
                .run(Op::Disk {
                    at: at(via),
                    op: DiskOp::Unlink { dir: None, path: c_path(&new), is_directory: false }
                })
                .result,
            Ok(0)
        );
        let again = bench.run(Op::Disk {
            at: at(via),
            op: DiskOp::Unlink { dir: None, path: c_path(&new), is_directory: false },
        });
        assert_eq!(again.result, Err(Errno::NOENT));
        drop(file);
    });
}

/// Reads a directory to its end, in as many operations as necessary; returns the sorted entries and the number of
/// operations.
fn read_directory(bench: &mut Bench, dir: &Fd, attributes: EntryAttributes) -> (Vec<DirEntry>, usize) {
    let (mut entries, mut operations) = (Vec::new(), 0);
    loop {
        let via = bench.pair.via();
        let op =
            Op::Disk { at: at(via), op: DiskOp::ReadDir { dir: dir.clone(), bytes_max: 1024, attributes } };
        let done = bench.run(op);
        let Payload::Entries(mut more) = done.payload else { panic!("{:?} without entries", done.result) };
        assert_eq!(done.result, Ok(more.len() as u32));
        if more.is_empty() {
            entries.sort_by(|one: &DirEntry, other| one.name.cmp(&other.name));
            return (entries, operations);
        }
        operations += 1;
        entries.append(&mut more);
    }
}

#[test]
fn a_directory_is_read_in_pieces() {
    let dir = TempDir::new("io");
    let file = dir.write("000 file", b"hello");
    std::fs::create_dir(dir.path().join("001 folder")).unwrap();
    std::os::unix::fs::symlink(&file, dir.path().join("002 link")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("003 broken")).unwrap();
    for number in 4..300 {
        dir.write(&format!("{number:03} {}", "x".repeat(40)), b"");
    }
    const KINDS: [u32; 5] = [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK, libc::S_IFLNK, libc::S_IFREG];
    on_each_pair(|bench| {
        let folder = bench.open(dir.path(), libc::O_DIRECTORY).unwrap();
        let (entries, operations) = read_directory(bench, &folder, EntryAttributes::Followed);
        assert_eq!(entries.len(), 300, "none twice, none left out, and not the folder itself");
        assert!(operations >= 10, "{operations} operations hold a thread for long");
        assert_eq!(entries.iter().take(5).map(|entry| entry.kind).collect::<Vec<_>>(), KINDS);
        let stats: Vec<_> = entries.iter().map(|entry| entry.stat.unwrap().unwrap()).collect();
        assert_eq!((stats[0].size, stats[2].size), (5, 5), "a link is followed");
        assert_eq!(stats[2].inode, stats[0].inode);
        assert_eq!(stats[3].mode & libc::S_IFMT, libc::S_IFLNK, "one that leads nowhere is looked at itself");
        assert_eq!(stats[1].mode & libc::S_IFMT, libc::S_IFDIR);
        let again = bench.open(dir.path(), libc::O_DIRECTORY).unwrap();
        let (entries, _) = read_directory(bench, &again, EntryAttributes::Kind);
        assert_eq!((entries.len(), &*entries[0].name), (300, b"000 file".as_slice()));
        assert!(entries.iter().all(|entry| entry.stat.is_none()));
        let again = bench.open(dir.path(), libc::O_DIRECTORY).unwrap();
        let (entries, _) = read_directory(bench, &again, EntryAttributes::Itself);
        assert_eq!(entries[2].stat.unwrap().unwrap().mode & libc::S_IFMT, libc::S_IFLNK);
        let no_folder = bench.open(&file, 0).unwrap();
        let op = Op::Disk {
            at: Disk { device: DEVICE, via: bench.pair.via() },
            op: DiskOp::ReadDir { dir: no_folder, bytes_max: 1024, attributes: EntryAttributes::Kind },
        };
        assert_eq!(bench.run(op).result, Err(Errno::NOTDIR));
        drop((folder, again));
    });
}

#[test]
fn many_names_are_queried_in_one_operation() {
    let dir = TempDir::new("io");
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    dir.write("folder/five", b"hello");
    std::os::unix::fs::symlink("folder/five", dir.path().join("link")).unwrap();
    let names = ["folder/five", "link", "folder/missing", "folder", "folder/five/below"];
    on_each_pair(|bench| {
        let folder = bench.open(dir.path(), libc::O_DIRECTORY).unwrap();
        let op = Op::Disk {
            at: Disk { device: DEVICE, via: bench.pair.via() },
            op: DiskOp::StatMany {
                dir: folder.clone(),
                names: names.map(|name| CString::new(name).unwrap()).into(),
            },
        };
        let done = bench.run(op);
        let Payload::Stats(stats) = done.payload else { panic!("{:?} without what was found", done.result) };
        assert_eq!(done.result, Ok(5));
        assert_eq!(stats[0].unwrap().size, 5);
        assert_eq!(stats[1].unwrap().mode & libc::S_IFMT, libc::S_IFLNK, "a link is not followed");
        assert_eq!(stats[2], Err(Errno::NOENT));
        assert_eq!(stats[3].unwrap().mode & libc::S_IFMT, libc::S_IFDIR);
        assert_eq!(stats[4], Err(Errno::NOTDIR));
        let (entries, _) = read_directory(bench, &folder, EntryAttributes::Kind);
        let inodes: Vec<u64> = entries.iter().map(|entry| entry.inode).collect();
        assert_eq!(inodes, [stats[3].unwrap().inode, stats[1].unwrap().inode], "of the entries themselves");
        drop(folder);
    });
}

#[test]
fn symlinks_of_the_same_owner_are_followed() {
    let dir = TempDir::new("io");
    std::fs::create_dir(dir.path().join("real")).unwrap();
    dir.write("real/a", b"content");
    std::os::unix::fs::symlink("real", dir.path().join("folder")).unwrap();
    std::os::unix::fs::symlink("../real/a", dir.path().join("real/link")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("broken")).unwrap();
    // Files in /proc belong to root, and links to them belong to the user of the test.
    std::os::unix::fs::symlink("/proc/version", dir.path().join("foreign")).unwrap();
    std::os::unix::fs::symlink("/proc", dir.path().join("foreign folder")).unwrap();
    let foreign = std::fs::symlink_metadata(dir.path().join("foreign")).unwrap().uid() != 0;
    on_each_pair(|bench| {
        let folder = bench.open(dir.path(), libc::O_PATH | libc::O_DIRECTORY).unwrap();
        let open = |bench: &mut Bench, dir: Option<&Fd>, path: &std::path::Path, flags: i32| {
            let how = OpenHow { flags, same_owner: true, ..OpenHow::default() };
            let path = CString::new(path.to_str().unwrap()).unwrap();
            let via = bench.pair.via();
            let done = bench.run(Op::Disk { at: at(via), op: DiskOp::Open { dir: dir.cloned(), path, how } });
            done.result.map(|_| match done.payload {
                Payload::Opened(fd) => Fd::from(fd),
                other => panic!("{other:?}"),
            })
        };
        for name in ["real/a", "folder/a", "folder//link", "./folder/./link"] {
            let file = open(bench, Some(&folder), name.as_ref(), 0).unwrap();
            assert_eq!(bench.read(&file, 0, 100), Ok(b"content".to_vec()), "{name}");
            let file = open(bench, None, &dir.path().join(name), 0).unwrap();
            assert_eq!(bench.read(&file, 0, 100), Ok(b"content".to_vec()), "{name} from the root");
        }
        for (name, error) in [
            ("broken", Errno::NOENT),
            ("none/a", Errno::NOENT),
            ("real/a/", Errno::NOTDIR),
            ("real/a/b", Errno::NOTDIR),
        ] {
            assert_eq!(open(bench, Some(&folder), name.as_ref(), 0).err(), Some(error), "{name}");
        }
        assert!(open(bench, Some(&folder), "folder/".as_ref(), libc::O_DIRECTORY).is_ok());
        // A file is never created through a link as the last component.
        let make = libc::O_WRONLY | libc::O_CREAT;
        assert!(open(bench, Some(&folder), "folder/new".as_ref(), make).is_ok());
        assert!(open(bench, Some(&folder), "real/a".as_ref(), make).is_ok());
        for name in ["folder/link", "broken"] {
            assert_eq!(open(bench, Some(&folder), name.as_ref(), make).err(), Some(Errno::LOOP), "{name}");
        }
        if foreign {
            for name in ["foreign", "foreign folder/version"] {
                assert_eq!(open(bench, Some(&folder), name.as_ref(), 0).err(), Some(Errno::LOOP), "{name}");
            }
        }
        drop(folder);
    });
}

/// Sends a file to a socket, waiting with poll while the socket is full.
fn send_file(bench: &mut Bench, socket: &Fd, file: &Fd, len: u64, via: DiskVia) -> u32 {
    let (mut offset, mut waits) = (0, 0);
    while offset < len {
        let (socket, file, len) = (socket.clone(), file.clone(), (len - offset).min(256 << 10) as u32);
        let op = Op::Disk { at: at(via), op: DiskOp::Sendfile { socket: socket.clone(), file, offset, len } };
        match bench.run(op).result {
            Ok(0) => panic!("the file ended at {offset}"),
            Ok(count) => offset += u64::from(count),
            Err(Errno::AGAIN) => {
                waits += 1;
                let poll = Op::Net(NetOp::Poll { fd: socket, interest: Interest::Writable });
                assert!(bench.run(poll).result.unwrap() > 0);
            }
            Err(error) => panic!("sendfile: {error}"),
        }
    }
    waits
}

#[test]
fn sendfile_waits_for_a_slow_reader() {
    let dir = TempDir::new("io");
    let bytes = pattern(12 << 20);
    let path = dir.write("a", &bytes);
    on_each_pair(|bench| {
        for via in [bench.pair.via(), DiskVia::Sync] {
            let (ours, mut peer) = connection();
            let file = bench.open(&path, 0).unwrap();
            let reader = std::thread::spawn(move || {
                let mut got = Vec::new();
                peer.read_to_end(&mut got).unwrap();
                got
            });
            send_file(bench, &ours, &file, bytes.len() as u64, via);
            bench.run(Op::Net(NetOp::Close { fd: ours.into_owned().unwrap() }));
            assert!(reader.join().unwrap() == bytes, "{via:?}: other bytes arrived");
        }
    });
}

#[test]
fn a_full_socket_is_reported_and_its_writability_awaited() {
    let dir = TempDir::new("io");
    let path = dir.write("a", pattern(16 << 20));
    on_each_pair(|bench| {
        let (ours, mut peer) = connection();
        let file = bench.open(&path, 0).unwrap();
        let send = |bench: &mut Bench| {
            let (socket, file, via) = (ours.clone(), file.clone(), DiskVia::Sync);
            bench
                .run(Op::Disk {
                    at: at(via),
                    op: DiskOp::Sendfile { socket, file, offset: 0, len: 16 << 20 },
                })
                .result
        };
        while send(bench).is_ok() {}
        assert_eq!(send(bench), Err(Errno::AGAIN), "the peer reads nothing");
        let poll = bench.submit(Op::Net(NetOp::Poll { fd: ours.clone(), interest: Interest::Writable }));
        assert!(bench.next_within(poll, std::time::Duration::from_millis(20)).is_none());
        let reader = std::thread::spawn(move || {
            let mut space = vec![0; 1 << 20];
            while peer.read(&mut space).is_ok_and(|count| count > 0) {}
        });
        assert!(bench.next_within(poll, PATIENCE).expect("there is room now").result.is_ok());
        drop(ours);
        drop(file);
        reader.join().unwrap();
    });
}
