//! Operations that change files and directories: names, lengths, disk space, shared bytes, and uncached I/O.

use std::ffi::CString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use io::facts::{DeviceId, Space};
use io::op::{NewFile, StatTarget};
use io::segments::Source;
use io::{Completion, Disk, DiskOp, DiskVia, Errno, Fd, Op, Payload, Segments};
use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags};
use testkit::TempDir;

use crate::harness::{Bench, Pair, on_each_pair, pairs, pattern, segments};

const DEVICE: DeviceId = DeviceId(9);

fn at(via: DiskVia) -> Disk {
    Disk { device: DEVICE, via }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// Creates or opens a file for reading and writing.
fn open_file(bench: &mut Bench, path: &Path, flags: i32) -> Result<Fd, Errno> {
    bench.open(path, libc::O_RDWR | flags)
}

/// Returns the result of an operation without a payload.
fn result(completion: Completion) -> Result<u32, Errno> {
    assert!(matches!(completion.payload, Payload::None), "{:?}", completion.payload);
    completion.result
}

fn write_all(bench: &mut Bench, file: &Fd, offset: u64, mut data: Segments) -> Segments {
    let mut written = 0;
    while !data.is_empty() {
        let (file, via) = (file.clone(), bench.pair.via());
        let op = Op::Disk { at: at(via), op: DiskOp::WriteSegments { file, offset: offset + written, data } };
        let done = bench.run(op);
        data = segments(done.payload);
        let count = done.result.unwrap();
        assert!(count > 0, "a write makes progress");
        written += u64::from(count);
        data.advance(count as usize);
    }
    data
}

#[test]
fn directories_are_created_and_removed() {
    on_each_pair(|bench| {
        let (dir, via) = (TempDir::new("io"), bench.pair.via());
        let path = c_path(&dir.path().join("folder"));
        let mkdir = |path: &CString| Op::Disk {
            at: at(via),
            op: DiskOp::MkDir { dir: None, path: path.clone(), mode: 0o750 },
        };
        let remove = |path: &CString, is_directory: bool| Op::Disk {
            at: at(via),
            op: DiskOp::Unlink { dir: None, path: path.clone(), is_directory },
        };
        assert_eq!(result(bench.run(mkdir(&path))), Ok(0));
        let mode = std::fs::metadata(dir.path().join("folder")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !0o750, 0, "no more than was asked for: {mode:o}");
        assert_eq!(mode & 0o700, 0o700);
        assert_eq!(result(bench.run(mkdir(&path))), Err(Errno::EXIST));
        assert_eq!(result(bench.run(mkdir(&c_path(&dir.path().join("none/folder"))))), Err(Errno::NOENT));
        let inner = dir.write("folder/file", b"x");
        assert_eq!(result(bench.run(remove(&path, true))), Err(Errno::NOTEMPTY));
        assert_eq!(result(bench.run(remove(&path, false))), Err(Errno::ISDIR));
        assert_eq!(result(bench.run(remove(&c_path(&inner), true))), Err(Errno::NOTDIR));
        assert_eq!(result(bench.run(remove(&c_path(&inner), false))), Ok(0));
        assert_eq!(result(bench.run(remove(&path, true))), Ok(0));
        assert!(!dir.path().join("folder").exists());
    });
}

/// Runs a put of these bytes and checks that it returns all of them.
fn put(
    bench: &mut Bench,
    (temp, to): (&Path, &Path),
    open_temp: Option<&Fd>,
    data: Vec<Segments>,
) -> Result<u32, Errno> {
    let len = |data: &[Segments]| data.iter().map(Segments::len).sum::<usize>();
    let (via, before) = (bench.pair.via(), len(&data));
    let new = NewFile {
        temp: c_path(temp),
        to: c_path(to),
        open_temp: open_temp.cloned(),
        mode: 0o600,
        data,
        uncached: false,
    };
    let done = bench.run(Op::Disk { at: at(via), op: DiskOp::Put { new: Box::new(new) } });
    let Payload::NewFile(new) = done.payload else { panic!("{:?}", done.payload) };
    assert_eq!(len(&new.data), before, "all of it can be tried again");
    done.result
}

#[test]
fn a_file_is_published_completely_or_not_at_all() {
    on_each_pair(|bench| {
        let dir = TempDir::new("io");
        let (temp, whole) = (dir.path().join("temp"), dir.path().join("whole"));
        let bytes = pattern(200_000);
        // More pieces than one system call accepts.
        let pieces = || -> Vec<Segments> {
            let shared: Arc<[u8]> = bytes.as_slice().into();
            let piece = |start: usize| {
                let mut data = Segments::new();
                data.push_range(Source::Shared(Arc::clone(&shared)), start, (start + 150).min(shared.len()));
                data
            };
            (0..bytes.len()).step_by(150).map(piece).collect()
        };
        assert_eq!(put(bench, (&temp, &dir.path().join("none/whole")), None, pieces()), Err(Errno::NOENT));
        assert!(!temp.exists(), "nothing is left");
        assert_eq!(put(bench, (&temp, &whole), None, pieces()), Ok(0));
        assert!(std::fs::read(&whole).unwrap() == bytes);
        assert!(!temp.exists());
        // A file created before gets its first bytes, and replaces the other file.
        let file = open_file(bench, &temp, libc::O_CREAT | libc::O_EXCL).unwrap();
        assert_eq!(put(bench, (&temp, &whole), None, pieces()), Err(Errno::EXIST), "somebody else's");
        let rest = Segments::from(Source::Static(b"rest"));
        write_all(bench, &file, 5, rest);
        assert_eq!(put(bench, (&temp, &whole), Some(&file), vec![b"start".to_vec().into()]), Ok(0));
        assert_eq!(std::fs::read(&whole).unwrap(), b"startrest");
        drop(file);
    });
}

#[test]
fn an_unnamed_file_gets_its_name_when_it_is_complete() {
    on_each_pair(|bench| {
        let (dir, via) = (TempDir::new("io"), bench.pair.via());
        let file = match open_file(bench, dir.path(), libc::O_TMPFILE) {
            Err(Errno::OPNOTSUPP) => return println!("skipped: this file system has no O_TMPFILE"),
            file => file.unwrap(),
        };
        let bytes = pattern(50_000);
        let data = Segments::from(bytes.clone());
        write_all(bench, &file, 0, data);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nobody sees it half-written");
        let link =
            |to: &Path| Op::Disk { at: at(via), op: DiskOp::Link { file: file.clone(), to: c_path(to) } };
        let whole = dir.path().join("whole");
        assert_eq!(result(bench.run(link(&dir.path().join("none/whole")))), Err(Errno::NOENT));
        assert_eq!(result(bench.run(link(&whole))), Ok(0));
        assert_eq!(result(bench.run(link(&whole))), Err(Errno::EXIST));
        assert!(std::fs::read(&whole).unwrap() == bytes);
        assert_eq!(std::fs::metadata(&whole).unwrap().nlink(), 1);
        drop(file);
    });
}

/// Removes the privilege from this thread that linking a file by its descriptor needs. Also changes its credentials,
/// which must differ from those with which its files were opened: since Linux 6.10, equal credentials are enough.
fn change_credentials() {
    let mut sets = rustix::thread::capabilities(None).unwrap();
    let read = rustix::thread::CapabilitySet::DAC_READ_SEARCH;
    sets.effective.remove(read);
    sets.permitted.remove(read);
    sets.inheritable.remove(read);
    rustix::thread::set_capabilities(None, sets).unwrap();
}

#[test]
fn an_unnamed_file_is_linked_without_privileges() {
    let name = |pair: Pair| {
        let dir = TempDir::new("io");
        let (flags, mode) = (OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let file = match rustix::fs::open(dir.path(), flags, mode) {
            Err(Errno::OPNOTSUPP) => return println!("skipped: this file system has no O_TMPFILE"),
            file => file.unwrap(),
        };
        change_credentials();
        let refused = rustix::fs::linkat(&file, c"", CWD, dir.path().join("plain"), AtFlags::EMPTY_PATH);
        assert_eq!(refused, Err(Errno::NOENT), "the plain way is closed");
        let mut bench = Bench::new(pair, pair.config());
        let (to, via) = (c_path(&dir.path().join("a")), pair.via());
        let link = Op::Disk { at: at(via), op: DiskOp::Link { file: Fd::from(file), to } };
        assert_eq!(result(bench.run(link)), Ok(0), "{pair:?}");
        assert!(dir.path().join("a").exists());
        bench.assert_drains();
    };
    // A thread cannot regain dropped privileges, so each pair runs on its own thread.
    for &pair in pairs() {
        std::thread::spawn(move || name(pair)).join().unwrap();
    }
}

#[test]
fn the_space_of_a_file_system_is_returned() {
    on_each_pair(|bench| {
        let (dir, via) = (TempDir::new("io"), bench.pair.via());
        let path = dir.path().join("a");
        let file = open_file(bench, &path, libc::O_CREAT).unwrap();
        for target in [StatTarget::File(file.clone()), StatTarget::Path(c_path(&path))] {
            let done = bench.run(Op::Disk { at: at(via), op: DiskOp::Space { target } });
            let Payload::Space(space) = done.payload else { panic!("{:?} without facts", done.result) };
            assert!(space.block_bytes.is_power_of_two(), "{space:?}");
            assert!(space.total_bytes > 0 && space.available_bytes <= space.total_bytes, "{space:?}");
            assert_ne!(*space, Space::default());
        }
        let target = StatTarget::Path(c_path(&dir.path().join("none")));
        assert_eq!(
            bench.run(Op::Disk { at: at(via), op: DiskOp::Space { target } }).result,
            Err(Errno::NOENT)
        );
        drop(file);
    });
}

#[test]
fn shared_pieces_are_written_in_order_and_returned() {
    on_each_pair(|bench| {
        let dir = TempDir::new("io");
        let bytes = pattern(200_000);
        let shared: Arc<[u8]> = bytes[5_000..150_000].into();
        let file = open_file(bench, &dir.path().join("a"), libc::O_CREAT).unwrap();
        let mut buf = bench.engine.pool().get(64 << 10).unwrap();
        buf.append(&bytes[150_000..]);
        let mut data = Segments::new();
        data.push(Source::Vec(bytes[..5_000].to_vec()));
        data.push_range(Source::Shared(Arc::clone(&shared)), 0, 45_000);
        data.push_range(Source::Shared(Arc::clone(&shared)), 45_000, shared.len());
        data.push(Source::Buf(buf));
        let mut data = write_all(bench, &file, 3, data);
        assert_eq!(data.take_vec().map(|vec| vec.len()), Some(5_000), "a vector is used again");
        assert_eq!(Arc::strong_count(&shared), 3, "ours and two of the segments");
        drop(data);
        assert_eq!(Arc::strong_count(&shared), 1);
        let written = std::fs::read(dir.path().join("a")).unwrap();
        assert!(written[..3] == [0; 3] && written[3..] == bytes);
        // A single piece, appended to a file opened with O_APPEND.
        let log = open_file(bench, &dir.path().join("a"), libc::O_APPEND).unwrap();
        let mut data = Segments::new();
        data.push_range(Source::Shared(shared), 0, 7);
        write_all(bench, &log, 0, data);
        assert_eq!(std::fs::metadata(dir.path().join("a")).unwrap().len(), 200_010);
        let via = bench.pair.via();
        let read_only = bench.open(&dir.path().join("a"), 0).unwrap();
        let data = Segments::from(Source::Static(b"x"));
        let op = Op::Disk { at: at(via), op: DiskOp::WriteSegments { file: read_only, offset: 0, data } };
        let refused = bench.run(op);
        assert_eq!(refused.result, Err(Errno::BADF));
        assert_eq!(segments(refused.payload).len(), 1, "they come back with an error too");
        drop((file, log));
    });
}

/// Returns the bytes of the file in the page cache; `None` if the kernel does not report them.
fn cached_bytes(path: &Path) -> Option<u64> {
    let file = std::fs::File::open(path).unwrap();
    io::sys::cached_pages(&file, 0, 0).ok().map(|pages| pages * 4096)
}

/// Whether kernel and file system support uncached reads.
fn knows_uncached(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    let flags = rustix::io::ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE as u32);
    rustix::io::preadv2(&file, &mut [std::io::IoSliceMut::new(&mut [0])], 1 << 30, flags).is_ok()
}

#[test]
fn uncached_files_are_read_and_written_like_other_files() {
    on_each_pair(|bench| {
        let (dir, via) = (TempDir::new("io"), bench.pair.via());
        let bytes = pattern(1 << 20);
        let path = dir.path().join("a");
        let file = open_file(bench, &path, libc::O_CREAT).unwrap();
        file.set_uncached();
        let data = Segments::from(bytes.clone());
        write_all(bench, &file, 0, data);
        assert_eq!(
            bench.run(Op::Disk { at: at(via), op: DiskOp::Sync { file: file.clone() } }).result,
            Ok(0)
        );
        for _ in 0..2 {
            assert_eq!(bench.read_fully(&file, 0, 1 << 20), Ok(bytes.clone()));
        }
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        if let Some(cached) = cached_bytes(&path) {
            assert!(cached < 1 << 20, "{cached} bytes stayed in memory");
        }
        // Now no page of the file is resident, and pages that are read must not remain.
        let cold = cached_bytes(&path);
        assert_eq!(bench.read_fully(&file, 0, 1 << 20), Ok(bytes.clone()));
        if let (Some(0), Some(cached), true) = (cold, cached_bytes(&path), knows_uncached(&path)) {
            assert!(cached <= 1 << 18, "{cached} bytes stayed of an uncached read");
        }
        let advise = Op::Disk { at: at(via), op: DiskOp::Advise { file: file.clone(), offset: 0, len: 0 } };
        assert_eq!(result(bench.run(advise)), Ok(0));
        assert_eq!(bench.read_fully(&file, 4_000, 1 << 18), Ok(bytes[4_000..][..1 << 18].to_vec()));
        // A file without support, such as a device, is read without the flag.
        let zeroes = bench.open(Path::new("/dev/zero"), 0).unwrap();
        zeroes.set_uncached();
        assert_eq!(bench.read(&zeroes, 0, 100), Ok(vec![0; 100]));
        drop((file, zeroes));
    });
}

#[test]
fn direct_writes_accept_pool_buffers() {
    on_each_pair(|bench| {
        let (dir, via) = (TempDir::new("io"), bench.pair.via());
        let bytes = pattern(128 << 10);
        let file = match open_file(bench, &dir.path().join("a"), libc::O_CREAT | libc::O_DIRECT) {
            Err(Errno::INVAL) => return println!("skipped: this file system has no direct writes"),
            file => file.unwrap(),
        };
        for (place, part) in bytes.chunks(32 << 10).enumerate() {
            let mut buf = bench.engine.pool().get(32 << 10).unwrap();
            assert_eq!(buf.as_ptr() as usize % io::buf::ALIGNMENT, 0);
            buf.append(part);
            let offset = place as u64 * (32 << 10);
            let op = Op::Disk { at: at(via), op: DiskOp::Write { file: file.clone(), offset, buf } };
            assert_eq!(bench.run(op).result, Ok(32 << 10));
        }
        assert!(std::fs::read(dir.path().join("a")).unwrap() == bytes);
        drop(file);
    });
}

#[test]
fn an_abandoned_write_releases_its_pieces() {
    on_each_pair(|bench| {
        let (dir, via) = (TempDir::new("io"), bench.pair.via());
        let shared: Arc<[u8]> = pattern(10_000).into();
        let file = open_file(bench, &dir.path().join("a"), libc::O_CREAT).unwrap();
        let data = Segments::from(Source::Shared(Arc::clone(&shared)));
        let write =
            Op::Disk { at: at(via), op: DiskOp::WriteSegments { file: file.clone(), offset: 0, data } };
        let link = Op::Disk {
            at: at(via),
            op: DiskOp::Link { file: file.clone(), to: c_path(&dir.path().join("b")) },
        };
        for op in [write, link] {
            let id = bench.submit(op);
            bench.engine.abandon(id);
        }
        bench.turn_until_idle();
        assert!(bench.take_seen().is_empty());
        assert_eq!(Arc::strong_count(&shared), 1);
        assert!(file.into_owned().is_ok(), "no operation holds it any more");
    });
}
