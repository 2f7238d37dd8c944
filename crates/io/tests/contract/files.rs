//! Operations on files and paths.

use std::io::Read;
use std::os::unix::fs::MetadataExt;

use io::op::{DeviceId, Interest, StatTarget};
use io::{DiskVia, Errno, Fd, Op, Payload};

use crate::harness::{Bench, PATIENCE, TempDir, connection, on_each_pair, on_each_pair_with, pattern};

const DEVICE: DeviceId = DeviceId(7);

#[test]
fn short_read_at_the_end_then_nothing() {
    let dir = TempDir::new();
    let bytes = pattern(10_000);
    let path = dir.file("a", &bytes);
    on_each_pair(|bench| {
        let file = bench.open(&path, 0).unwrap();
        assert_eq!(bench.read_fully(&file, 8_000, 4096), Ok(bytes[8_000..].to_vec()));
        assert_eq!(bench.read(&file, 10_000, 4096), Ok(Vec::new()));
        assert_eq!(bench.read(&file, 20_000, 4096), Ok(Vec::new()));
        assert_eq!(bench.open(&dir.path("none"), 0).err(), Some(Errno::NOENT));
        drop(file);
        bench.assert_drains();
    });
}

#[test]
fn direct_reads_end_with_a_short_tail() {
    let dir = TempDir::new();
    let bytes = pattern(100_001);
    let path = dir.file("a", &bytes);
    on_each_pair(|bench| {
        let file = match bench.open(&path, libc::O_DIRECT) {
            Err(Errno::INVAL) => return println!("skipped: this file system has no direct reads"),
            file => file.unwrap(),
        };
        assert_eq!(bench.read_fully(&file, 0, 65536), Ok(bytes[..65536].to_vec()));
        assert_eq!(bench.read(&file, 98_304, 65536), Ok(bytes[98_304..].to_vec()));
        assert_eq!(bench.read(&file, 102_400, 65536), Ok(Vec::new()));
        drop(file);
        bench.assert_drains();
    });
}

#[test]
fn many_direct_reads_at_once() {
    let dir = TempDir::new();
    let bytes = pattern(1 << 20);
    let path = dir.file("a", &bytes);
    // Fewer places in libaio than reads, so that some have to queue.
    on_each_pair_with(
        |config| config.libaio_depth = 8,
        |bench| {
            let Ok(file) = bench.open(&path, libc::O_DIRECT) else { return };
            let via = bench.pair.via();
            let read = |bench: &mut Bench, place: usize| {
                let buf = bench.engine.pool().get(4096).unwrap();
                let offset = place as u64 * 4096;
                bench.submit(Op::Read { file: file.clone(), offset, len: 4096, buf, device: DEVICE, via })
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
fn a_file_is_written_renamed_looked_at_and_removed() {
    on_each_pair(|bench| {
        let dir = TempDir::new();
        let (old, new) = (dir.path("old"), dir.path("new"));
        let via = bench.pair.via();
        let file = bench.open(&old, libc::O_RDWR | libc::O_CREAT).unwrap();
        let mut buf = bench.engine.pool().get(4096).unwrap();
        buf.append(b"hello, file");
        let done = bench.run(Op::Write { file: file.clone(), offset: 0, buf, device: DEVICE, via });
        assert_eq!(done.result, Ok(11));
        assert!(matches!(done.payload, Payload::Buf(buf) if &*buf == b"hello, file"));
        assert_eq!(bench.run(Op::Sync { file: file.clone(), device: DEVICE, via }).result, Ok(0));
        let c_path = |path: &std::path::Path| std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let rename = Op::Rename { from: c_path(&old), to: c_path(&new), device: DEVICE, via };
        assert_eq!(bench.run(rename).result, Ok(0));
        let there = std::fs::metadata(&new).unwrap();
        for target in [StatTarget::File(file.clone()), StatTarget::Path(c_path(&new))] {
            let done = bench.run(Op::Stat { target, device: DEVICE, via });
            let Payload::Stat(stat) = done.payload else { panic!("{:?} without facts", done.result) };
            assert_eq!(stat.size, 11);
            assert_eq!(stat.inode, there.ino());
            assert_eq!(stat.device, DeviceId(there.dev()));
            assert_eq!((stat.modified, i64::from(stat.modified_nanos)), (there.mtime(), there.mtime_nsec()));
            assert_eq!(stat.mode, there.mode());
        }
        assert_eq!(bench.run(Op::Unlink { path: c_path(&new), device: DEVICE, via }).result, Ok(0));
        let again = bench.run(Op::Unlink { path: c_path(&new), device: DEVICE, via });
        assert_eq!(again.result, Err(Errno::NOENT));
        drop(file);
        bench.assert_drains();
    });
}

/// Moves a file to a socket, waiting for room with a poll.
fn send_file(bench: &mut Bench, socket: &Fd, file: &Fd, len: u64, via: DiskVia) -> u32 {
    let (mut offset, mut waits) = (0, 0);
    while offset < len {
        let (socket, file, len) = (socket.clone(), file.clone(), (len - offset).min(256 << 10) as u32);
        let op = Op::Sendfile { socket: socket.clone(), file, offset, len, device: DEVICE, via };
        match bench.run(op).result {
            Ok(0) => panic!("the file ended at {offset}"),
            Ok(count) => offset += u64::from(count),
            Err(Errno::AGAIN) => {
                waits += 1;
                let poll = Op::Poll { fd: socket, interest: Interest::Writable };
                assert!(bench.run(poll).result.unwrap() > 0);
            }
            Err(error) => panic!("sendfile: {error}"),
        }
    }
    waits
}

#[test]
fn sendfile_waits_for_a_slow_reader() {
    let dir = TempDir::new();
    let bytes = pattern(12 << 20);
    let path = dir.file("a", &bytes);
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
            bench.run(Op::Close { fd: ours.into_owned().unwrap() });
            assert!(reader.join().unwrap() == bytes, "{via:?}: other bytes arrived");
        }
        bench.assert_drains();
    });
}

#[test]
fn a_full_socket_is_told_and_its_room_awaited() {
    let dir = TempDir::new();
    let path = dir.file("a", &pattern(16 << 20));
    on_each_pair(|bench| {
        let (ours, mut peer) = connection();
        let file = bench.open(&path, 0).unwrap();
        let send = |bench: &mut Bench| {
            let (socket, file, via) = (ours.clone(), file.clone(), DiskVia::Sync);
            bench.run(Op::Sendfile { socket, file, offset: 0, len: 16 << 20, device: DEVICE, via }).result
        };
        while send(bench).is_ok() {}
        assert_eq!(send(bench), Err(Errno::AGAIN), "the peer reads nothing");
        let poll = bench.submit(Op::Poll { fd: ours.clone(), interest: Interest::Writable });
        assert!(bench.next_within(poll, std::time::Duration::from_millis(20)).is_none());
        let reader = std::thread::spawn(move || {
            let mut space = vec![0; 1 << 20];
            while peer.read(&mut space).is_ok_and(|count| count > 0) {}
        });
        assert!(bench.next_within(poll, PATIENCE).expect("there is room now").result.is_ok());
        drop(ours);
        drop(file);
        reader.join().unwrap();
        bench.assert_drains();
    });
}
