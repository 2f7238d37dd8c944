//! A hanging device. Opening a FIFO without a writer blocks in the kernel for as long as the test needs, without root.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use io::facts::DeviceId;
use io::op::{OpenHow, RecvInto};
use io::{Disk, DiskOp, Drained, Errno, Op, OpId, Payload};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use testkit::TempDir;

use crate::harness::{
    Bench, DiskBackend, PATIENCE, TOKEN, connection, on_each_pair, on_each_pair_with, open, pattern, received,
};

const STUCK: DeviceId = DeviceId(1001);
const HEALTHY: DeviceId = DeviceId(1002);

/// More than all kernel workers and threads together.
const OPENS: usize = 20;

/// Returns the share of one device of 8 kernel workers or 4 threads.
fn share(disk: DiskBackend) -> usize {
    match disk {
        DiskBackend::Uring => 2,
        DiskBackend::Libaio | DiskBackend::Threads | DiskBackend::Sync => 1,
    }
}

/// Opens a FIFO for reading, which blocks until it has a writer. `O_CREAT` has no effect on an existing file, except
/// that io_uring passes the open to a kernel worker immediately.
fn open_stuck(bench: &mut Bench, path: &Path) -> OpId {
    bench.submit(open(path, libc::O_RDONLY | libc::O_CREAT, STUCK, bench.pair.via()))
}

/// Unblocks all opens of the FIFO, now and later.
fn release(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Runs a test with a hanging device, unless the backend would block its thread.
fn with_stuck_device(bench: &mut Bench, test: impl FnOnce(&mut Bench, &TempDir, &Path, Vec<OpId>)) {
    if bench.pair.disk == DiskBackend::Sync {
        return println!("skipped: a blocking call stalls its thread, by design");
    }
    let dir = TempDir::new("io");
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let ids = (0..OPENS).map(|_| open_stuck(bench, &pipe)).collect();
    bench.turn(Duration::from_millis(10));
    test(bench, &dir, &pipe, ids);
}

#[test]
fn a_stuck_device_uses_no_more_than_its_share() {
    on_each_pair(|bench| {
        with_stuck_device(bench, |bench, dir, pipe, ids| {
            let bytes = pattern(50_000);
            let path = dir.write("healthy", &bytes);
            let via = bench.pair.via();
            for _ in 0..20 {
                let completion = bench.run(open(&path, 0, HEALTHY, via));
                let Payload::Opened(file) = completion.payload else { panic!("{:?}", completion.result) };
                let file = io::Fd::from(file);
                assert_eq!(bench.read_fully(&file, 1000, 40_000).unwrap(), bytes[1000..41_000]);
            }
            assert_eq!(bench.engine.counters().device_queued, (OPENS - share(bench.pair.disk)) as u64);
            assert!(bench.take_seen().is_empty(), "an open of the stuck device ended");
            // The device recovers: all queued opens complete.
            let _writer = release(pipe);
            for id in ids {
                assert!(matches!(bench.next(id).payload, Payload::Opened(_)));
            }
        });
    });
}

#[test]
fn a_stuck_device_leaves_slots_to_sockets_and_other_devices() {
    on_each_pair_with(
        |config| config.ops_max = 128,
        |bench| {
            with_stuck_device(bench, |bench, dir, pipe, mut ids| {
                let via = bench.pair.via();
                let stuck = || open(pipe, libc::O_RDONLY | libc::O_CREAT, STUCK, via);
                while let Ok(id) = bench.engine.submit(stuck(), TOKEN) {
                    ids.push(id);
                }
                assert_eq!(ids.len(), 32, "a quarter of the table");
                let (ours, mut peer) = connection();
                peer.write_all(b"abc").unwrap();
                assert_eq!(received(&bench.recv(&ours, RecvInto::Pool).payload), b"abc");
                let path = dir.write("healthy", b"abc");
                assert!(matches!(bench.run(open(&path, 0, HEALTHY, via)).payload, Payload::Opened(_)));
                // An operation that ends releases its slot.
                let _writer = release(pipe);
                for id in ids {
                    assert!(matches!(bench.next(id).payload, Payload::Opened(_)));
                }
                assert!(matches!(bench.run(stuck()).payload, Payload::Opened(_)));
            });
        },
    );
}

#[test]
fn queued_operations_can_be_cancelled() {
    on_each_pair(|bench| {
        with_stuck_device(bench, |bench, _, pipe, ids| {
            let begun = share(bench.pair.disk);
            for &id in &ids[begun..] {
                bench.engine.cancel(id);
                assert_eq!(bench.next(id).result, Err(Errno::CANCELED));
            }
            bench.engine.abandon(ids[0]);
            let _writer = release(pipe);
            for &id in &ids[1..begun] {
                assert!(bench.next(id).result.is_ok());
            }
            bench.turn_until_idle();
            assert!(bench.take_seen().is_empty());
        });
    });
}

#[test]
fn an_engine_with_a_stuck_device_shuts_down_and_leaks() {
    on_each_pair(|bench| {
        bench.drains = false;
        with_stuck_device(bench, |bench, _, pipe, _| {
            let before = Instant::now();
            let drained = bench.engine.drain(before + Duration::from_millis(100));
            assert_eq!(drained, Drained::Leaked(share(bench.pair.disk)));
            assert!(before.elapsed() < PATIENCE, "it goes on waiting");
            assert!(bench.engine.submit(Op::NOP, TOKEN).is_err(), "nothing is taken after a leak");
            assert_eq!(bench.engine.drain(Instant::now()), Drained::Clean, "it is over");
            // The hanging operations end now, and write only to leaked memory.
            drop(release(pipe));
        });
    });
}

#[test]
fn descriptors_of_a_leaked_operation_are_never_closed() {
    on_each_pair(|bench| {
        bench.drains = false;
        with_stuck_device(bench, |bench, dir, pipe, _| {
            let folder = bench.open(dir.path(), libc::O_PATH | libc::O_DIRECTORY).unwrap();
            let link = format!("/proc/self/fd/{}", folder.as_raw_fd());
            let opened = std::fs::read_link(&link).unwrap();
            let how = OpenHow { flags: libc::O_RDONLY | libc::O_CREAT, mode: 0o600, ..OpenHow::default() };
            // On a separate device, so that the operation is started: it hangs in the kernel or in a thread.
            let op = Op::Disk {
                at: Disk { device: DeviceId(1003), via: bench.pair.via() },
                op: DiskOp::Open { dir: Some(folder.clone()), path: c"pipe".into(), how },
            };
            bench.submit(op);
            drop(folder);
            let drained = bench.engine.drain(Instant::now() + Duration::from_millis(100));
            assert_eq!(drained, Drained::Leaked(share(bench.pair.disk) + 1));
            bench.engine = io::build(bench.pair.config()).unwrap();
            assert_eq!(std::fs::read_link(&link).ok(), Some(opened), "what hangs still starts from it");
            drop(release(pipe));
        });
    });
}
