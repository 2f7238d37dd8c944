//! Tests on every pair of backends of this machine, in a process of their own: release of memory to the kernel, which
//! counts the memory of the process; writes to files that are not seekable, such as a log that is a pipe; and sends from
//! shared memory.

#![allow(clippy::unwrap_used, reason = "in the helpers of a test too, what fails ends the test")]
#![allow(clippy::print_stdout, reason = "a test tells which pairs it ran on")]

#[allow(dead_code, reason = "the contract suite uses the other helpers")]
#[path = "contract/harness.rs"]
mod harness;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use io::facts::DeviceId;
use io::{Buf, Disk, DiskOp, DiskVia, Errno, Fd, Op, Payload};
use rustix::fs::{Mode, OFlags};
use testkit::TempDir;

use harness::{Bench, on_each_pair, on_each_pair_with};

fn write(bench: &mut Bench, file: &Fd, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
    let mut buf = bench.engine.pool().get(bytes.len()).unwrap();
    buf.append(bytes);
    let (file, via) = (file.clone(), bench.pair.via());
    let completion = bench
        .run(Op::Disk { at: Disk { device: DeviceId(0), via }, op: DiskOp::Write { file, offset, buf } });
    assert!(matches!(completion.payload, Payload::Buf(_)), "the buffer comes back");
    completion.result
}

/// Makes two writes, the second with the offset behind the first, as when appending to a file.
fn two_lines(bench: &mut Bench, to: &Fd, mut from: impl Read) {
    assert_eq!(write(bench, to, 0, b"first line\n"), Ok(11));
    assert_eq!(write(bench, to, 11, b"second line\n"), Ok(12));
    let mut seen = [0; 23];
    from.read_exact(&mut seen).expect("all bytes come");
    assert_eq!(&seen, b"first line\nsecond line\n");
}

#[test]
fn a_pipe_is_written_in_order() {
    on_each_pair(|bench| {
        let (reader, writer) = std::io::pipe().unwrap();
        two_lines(bench, &OwnedFd::from(writer).into(), reader);
    });
}

#[test]
fn a_named_pipe_is_written_in_order() {
    let dir = TempDir::new("io-streams");
    let path = dir.path().join("fifo");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    on_each_pair(|bench| {
        // Opened for reading and writing, so that neither end has to wait for the other.
        let both = File::options().read(true).write(true).open(&path).unwrap();
        let writer = both.try_clone().unwrap();
        two_lines(bench, &OwnedFd::from(writer).into(), both);
    });
}

#[test]
fn a_socket_used_as_a_file_is_written_in_order() {
    on_each_pair(|bench| {
        let (near, far) = UnixStream::pair().unwrap();
        two_lines(bench, &OwnedFd::from(near).into(), far);
    });
}

#[test]
fn a_pipe_without_a_reader_is_an_error() {
    on_each_pair(|bench| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(write(bench, &OwnedFd::from(writer).into(), 0, b"x"), Err(Errno::PIPE));
    });
}

/// The kernel counts the memory of the process. The other tests of this file use far less memory than this test.
#[test]
fn idle_buffers_are_returned_to_the_system() {
    const BYTES: usize = 48 << 20;
    let dir = TempDir::new("io-streams");
    let content = vec![7; 1 << 20];
    let path = dir.write("trim", &content);
    on_each_pair_with(
        |config| config.pool_bytes_max = 256 << 20,
        |bench| {
            let file = direct_or_not(&path);
            // io_uring keeps some buffers for receives.
            let pool_before = bench.engine.pool().counters();
            let before = Memory::now();
            let held: Vec<Buf> = (0..BYTES >> 20).map(|_| read_all(bench, &file)).collect();
            let full = Memory::now();
            assert!(full.resident >= before.resident + BYTES / 4 * 3, "{before:?} then {full:?}");
            assert_eq!(bench.engine.trim(), 0, "memory in use was given back");
            assert!(held.iter().all(|buf| **buf == *content), "memory in use was given back");
            drop(held);
            assert!(bench.engine.trim() >= BYTES);
            assert_eq!(bench.engine.pool().counters(), pool_before);
            let after = Memory::now();
            assert!(after.resident + BYTES / 4 * 3 <= full.resident, "{full:?} then {after:?}");
            assert!(
                after.pinned <= before.pinned,
                "the ring holds on to memory: {before:?}, {full:?}, {after:?}"
            );
            // The registrations of the chunks were removed: the read uses the new memory at the same indices.
            assert_eq!(*read_all(bench, &file), *content);
        },
    );
}

/// Every backend reads into chunks of shared memory, also bypassing the page cache. The peer does not read, so a chunk
/// is still in its receive queue while the next chunks use the same memory.
#[test]
fn shared_memory_is_read_into_and_sent_once() {
    const BYTES: usize = 8192;
    let content: Vec<u8> = (0..4 * BYTES).map(|place| (place / 253 + place) as u8).collect();
    let dir = TempDir::new("io-streams");
    let path = dir.write("shared", &content);
    on_each_pair(|bench| {
        io::shm::trim();
        let mut inodes = Vec::new();
        let file = direct_or_not(&path);
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = Fd::from(OwnedFd::from(near));
        for place in (0..content.len()).step_by(BYTES) {
            let (offset, device) = (place as u64, DeviceId(0));
            let chunk = io::shm::take(BYTES).unwrap();
            inodes.push(rustix::fs::fstat(&chunk.file).unwrap().st_ino);
            let (file, via) = (file.clone(), bench.pair.via());
            let read = Op::Disk {
                at: Disk { device, via },
                op: DiskOp::Read { file, offset, len: BYTES as u32, buf: chunk.buf },
            };
            let completion = bench.run(read);
            assert_eq!(completion.result, Ok(BYTES as u32));
            let (socket, len, via) = (near.clone(), BYTES as u32, DiskVia::Sync);
            let send = Op::Disk {
                at: Disk { device, via },
                op: DiskOp::Sendfile { socket, file: chunk.file, offset: 0, len },
            };
            assert_eq!(bench.run(send).result, Ok(len), "the socket has room for all");
            drop(completion.payload);
        }
        assert!(inodes.iter().all(|inode| *inode == inodes[0]), "one chunk is enough");
        let mut seen = vec![0; content.len()];
        far.read_exact(&mut seen).unwrap();
        assert!(seen == content, "bytes changed after they were sent");
    });
}

/// Opens a file for direct reads if the file system supports them; io_uring reads it into registered buffers.
fn direct_or_not(path: &Path) -> Fd {
    let direct = OFlags::RDONLY | OFlags::DIRECT;
    let file = rustix::fs::open(path, direct, Mode::empty());
    file.or_else(|_| rustix::fs::open(path, OFlags::RDONLY, Mode::empty())).expect("it is there").into()
}

fn read_all(bench: &mut Bench, file: &Fd) -> Buf {
    let buf = bench.engine.pool().get(1 << 20).unwrap();
    let (file, via) = (file.clone(), bench.pair.via());
    let completion = bench.run(Op::Disk {
        at: Disk { device: DeviceId(0), via },
        op: DiskOp::Read { file, offset: 0, len: 1 << 20, buf },
    });
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
    let dir = TempDir::new("io-streams");
    let path = dir.path().join("places");
    on_each_pair(|bench| {
        let file = Fd::from(OwnedFd::from(File::create(&path).unwrap()));
        assert_eq!(write(bench, &file, 4, b"late"), Ok(4));
        assert_eq!(write(bench, &file, 0, b"soon"), Ok(4));
        assert_eq!(fs::read(&path).unwrap(), b"soonlate");
    });
}
