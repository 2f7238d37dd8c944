//! Tests on every backend of this machine: writes to files that are not seekable, such as a log that is a pipe; release
//! of memory to the kernel; and sends from shared memory.

#![allow(clippy::print_stdout, reason = "a test tells which engines it ran on")]

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind};
use io::op::DeviceId;
use io::{Buf, Completion, DiskVia, Drained, Engine, Errno, Fd, Op, Payload, Wait};
use rustix::fs::{Mode, OFlags};

const PATIENCE: Duration = Duration::from_secs(180);

/// Runs a test with each combination of disk backend and network backend.
fn on_each_engine(test: impl Fn(&mut dyn Engine, DiskVia)) {
    for net in [NetKind::Uring, NetKind::Epoll] {
        for via in [DiskVia::Ring, DiskVia::Libaio, DiskVia::Pool(0), DiskVia::Sync] {
            let config = EngineConfig {
                net,
                disk_ring: via == DiskVia::Ring,
                disk_libaio: via == DiskVia::Libaio,
                pools: vec![ThreadPool::new("test", 2, 64).expect("threads can be started")],
                ..EngineConfig::default()
            };
            match io::build(config) {
                Ok(mut engine) => {
                    println!("on {net:?} with {via:?}");
                    test(&mut *engine, via);
                    assert_eq!(engine.drain(Instant::now() + PATIENCE), Drained::Clean);
                }
                Err(error) => println!("skipped {net:?} with {via:?}: {error}"),
            }
        }
    }
}

/// Runs one operation.
fn run(engine: &mut dyn Engine, op: Op) -> Completion {
    let id = engine.submit(op).expect("the table has room");
    let deadline = Instant::now() + PATIENCE;
    let mut batch = Vec::new();
    while batch.is_empty() {
        assert!(Instant::now() < deadline, "the operation did not end");
        engine.turn(Wait::Until(deadline), &mut batch).expect("a turn works");
    }
    let completion = batch.pop().expect("it is not empty");
    assert_eq!((completion.id, completion.more, batch.len()), (id, false, 0));
    completion
}

fn write(engine: &mut dyn Engine, file: &Fd, offset: u64, bytes: &[u8], via: DiskVia) -> Result<u32, Errno> {
    let mut buf = engine.pool().get(bytes.len()).expect("the pool has room");
    buf.append(bytes);
    let completion = run(engine, Op::Write { file: file.clone(), offset, buf, device: DeviceId(0), via });
    assert!(matches!(completion.payload, Payload::Buf(_)), "the buffer comes back");
    completion.result
}

/// Makes two writes, the second with the offset behind the first, as when appending to a file.
fn two_lines(engine: &mut dyn Engine, to: &Fd, mut from: impl Read, via: DiskVia) {
    assert_eq!(write(engine, to, 0, b"first line\n", via), Ok(11));
    assert_eq!(write(engine, to, 11, b"second line\n", via), Ok(12));
    let mut seen = [0; 23];
    from.read_exact(&mut seen).expect("all bytes come");
    assert_eq!(&seen, b"first line\nsecond line\n");
}

#[test]
fn a_pipe_is_written_in_order() {
    on_each_engine(|engine, via| {
        let (reader, writer) = std::io::pipe().unwrap();
        two_lines(engine, &OwnedFd::from(writer).into(), reader, via);
    });
}

#[test]
fn a_named_pipe_is_written_in_order() {
    let path = std::env::temp_dir().join(format!("ringroad-fifo-{}", std::process::id()));
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    on_each_engine(|engine, via| {
        // Opened for reading and writing, so that neither end has to wait for the other.
        let both = File::options().read(true).write(true).open(&path).unwrap();
        let writer = both.try_clone().unwrap();
        two_lines(engine, &OwnedFd::from(writer).into(), both, via);
    });
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_socket_used_as_a_file_is_written_in_order() {
    on_each_engine(|engine, via| {
        let (near, far) = UnixStream::pair().unwrap();
        two_lines(engine, &OwnedFd::from(near).into(), far, via);
    });
}

#[test]
fn a_pipe_without_a_reader_is_an_error() {
    on_each_engine(|engine, via| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(write(engine, &OwnedFd::from(writer).into(), 0, b"x", via), Err(Errno::PIPE));
    });
}

/// The kernel counts the memory of the process. The other tests of this file use far less memory than this test.
#[test]
fn idle_buffers_are_returned_to_the_system() {
    const BYTES: usize = 48 << 20;
    let path = std::env::temp_dir().join(format!("ringroad-trim-{}", std::process::id()));
    let content = vec![7; 1 << 20];
    fs::write(&path, &content).unwrap();
    on_each_engine(|engine, via| {
        let file = direct_or_not(&path);
        // io_uring keeps some buffers for receives.
        let pool_before = engine.pool().counters();
        let before = Memory::now();
        let held: Vec<Buf> = (0..BYTES >> 20).map(|_| read_all(engine, &file, via)).collect();
        let full = Memory::now();
        assert!(full.resident >= before.resident + BYTES / 4 * 3, "{before:?} then {full:?}");
        assert_eq!(engine.trim(), 0, "memory in use was given back");
        assert!(held.iter().all(|buf| **buf == *content), "memory in use was given back");
        drop(held);
        assert!(engine.trim() >= BYTES);
        assert_eq!(engine.pool().counters(), pool_before);
        let after = Memory::now();
        assert!(after.resident + BYTES / 4 * 3 <= full.resident, "{full:?} then {after:?}");
        assert!(
            after.pinned <= before.pinned,
            "the ring holds on to memory: {before:?}, {full:?}, {after:?}"
        );
        // The registrations of the chunks were removed: the read uses the new memory at the same indices.
        assert_eq!(*read_all(engine, &file, via), *content);
    });
    fs::remove_file(&path).unwrap();
}

/// Every backend reads into chunks of shared memory, also bypassing the page cache. The peer does not read, so a chunk
/// is still in its receive queue while the next chunks use the same memory.
#[test]
fn shared_memory_is_read_into_and_sent_once() {
    const BYTES: usize = 8192;
    let path = std::env::temp_dir().join(format!("ringroad-shared-{}", std::process::id()));
    let content: Vec<u8> = (0..4 * BYTES).map(|place| (place / 253 + place) as u8).collect();
    fs::write(&path, &content).unwrap();
    on_each_engine(|engine, via| {
        io::shm::trim();
        let made = io::shm::counters().created;
        let file = direct_or_not(&path);
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = Fd::from(OwnedFd::from(near));
        for place in (0..content.len()).step_by(BYTES) {
            let (offset, device) = (place as u64, DeviceId(0));
            let chunk = io::shm::take(BYTES).unwrap();
            let read =
                Op::Read { file: file.clone(), offset, len: BYTES as u32, buf: chunk.buf, device, via };
            let completion = run(engine, read);
            assert_eq!(completion.result, Ok(BYTES as u32));
            let (socket, len, via) = (near.clone(), BYTES as u32, DiskVia::Sync);
            let send = Op::Sendfile { socket, file: chunk.file, offset: 0, len, device, via };
            assert_eq!(run(engine, send).result, Ok(len), "the socket has room for all");
            drop(completion.payload);
        }
        assert_eq!(io::shm::counters().created, made + 1, "one chunk is enough");
        let mut seen = vec![0; content.len()];
        far.read_exact(&mut seen).unwrap();
        assert!(seen == content, "bytes changed after they were sent");
    });
    fs::remove_file(&path).unwrap();
}

/// Opens a file for direct reads if the file system supports them; io_uring reads it into registered buffers.
fn direct_or_not(path: &Path) -> Fd {
    let direct = OFlags::RDONLY | OFlags::DIRECT;
    let file = rustix::fs::open(path, direct, Mode::empty());
    file.or_else(|_| rustix::fs::open(path, OFlags::RDONLY, Mode::empty())).expect("it is there").into()
}

fn read_all(engine: &mut dyn Engine, file: &Fd, via: DiskVia) -> Buf {
    let buf = engine.pool().get(1 << 20).expect("the pool has room");
    let read = Op::Read { file: file.clone(), offset: 0, len: 1 << 20, buf, device: DeviceId(0), via };
    let completion = run(engine, read);
    assert_eq!(completion.result, Ok(1 << 20));
    let Payload::Buf(buf) = completion.payload else { panic!("a read gives its buffer back") };
    buf
}

/// Memory of this process in bytes (proc(5)): resident private pages, and pinned pages such as registered io_uring
/// buffers.
#[derive(Debug)]
struct Memory {
    resident: usize,
    pinned: usize,
}

impl Memory {
    fn now() -> Memory {
        let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux 4.5 tells it");
            let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
            kib << 10
        };
        Memory { resident: bytes("RssAnon:"), pinned: bytes("VmPin:") }
    }
}

#[test]
fn a_regular_file_is_written_at_its_offset() {
    let path = std::env::temp_dir().join(format!("ringroad-places-{}", std::process::id()));
    on_each_engine(|engine, via| {
        let file = Fd::from(OwnedFd::from(File::create(&path).unwrap()));
        assert_eq!(write(engine, &file, 4, b"late", via), Ok(4));
        assert_eq!(write(engine, &file, 0, b"soon", via), Ok(4));
        assert_eq!(fs::read(&path).unwrap(), b"soonlate");
    });
    fs::remove_file(&path).unwrap();
}
