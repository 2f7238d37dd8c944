//! Operations on files, and the registration of their buffers.

use std::os::unix::fs::OpenOptionsExt as _;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use testkit::TempDir;

use super::*;
use crate::buf::CHUNK_BYTES;

/// Opens a file of three pages with `O_DIRECT`; `None` if the file system does not support that.
fn direct_file() -> Option<Fd> {
    let dir = TempDir::new("io-uring");
    let path = dir.write("pages", (0..12288u32).map(|index| (index / 4096) as u8).collect::<Vec<u8>>());
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    let file = file.inspect_err(|error| eprintln!("skipped: O_DIRECT: {error}")).ok()?;
    Some(Fd::from(OwnedFd::from(file)))
}

fn read(bench: &mut Bench, file: &Fd, offset: u64, len: u32, room: usize) -> Completion {
    let (buf, file) = (bench.pool.get(room).unwrap(), file.clone());
    bench.run(Op::Disk { at: RING, op: DiskOp::Read { file, offset, len, buf } })
}

#[test]
fn direct_reads_register_their_chunk_and_trim_unregisters_it() {
    let Some(mut bench) = Bench::with_role(&config(), Role::DiskOnly) else { return };
    let Some(file) = direct_file() else { return };
    for page in 0..3u8 {
        let got = read(&mut bench, &file, u64::from(page) * 4096, 4096, 4096);
        assert_eq!(got.result, Ok(4096));
        assert!(bytes(&got.payload).iter().all(|&byte| byte == page));
        let Payload::Buf(buf) = got.payload else { panic!("no buffer") };
        let registered = bench.uring.registration != BufferRegistration::Refused;
        assert_eq!(buf.fixed_index().is_some(), registered);
    }
    assert_eq!(read(&mut bench, &file, 12288, 4096, 4096).result, Ok(0), "the end of the file");
    assert_eq!(bench.uring.trim(), CHUNK_BYTES + size_of::<state::Scratch>() * bench.uring.flights.spare());
    let again = read(&mut bench, &file, 4096, 4096, 4096);
    assert!(bytes(&again.payload).iter().all(|&byte| byte == 1), "a fresh chunk took the place");
}

#[test]
fn buffered_reads_lock_no_memory() {
    let Some(mut bench) = Bench::with_role(&config(), Role::DiskOnly) else { return };
    let file = Fd::from(OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap()));
    assert_eq!(read(&mut bench, &file, 0, 4, 4096).result, Ok(4));
    assert_eq!(bench.uring.registration, BufferRegistration::Lazy { bytes: 0 });
}

#[test]
fn reads_continue_without_locked_memory_and_one_warning_is_logged() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let Some(chunks) = limit.map(|bytes| bytes as usize / CHUNK_BYTES).filter(|&chunks| chunks < 64) else {
        return eprintln!("skipped: the limit on locked memory is too high to be reached");
    };
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    // Capabilities belong to a thread, and each test has its own thread.
    set_capabilities(None, sets).unwrap();
    let mut config = config();
    config.pool_bytes_max = 256 << 20;
    let Some(mut bench) = Bench::with_role(&config, Role::DiskOnly) else { return };
    let Some(file) = direct_file() else { return };
    let mut held = Vec::new();
    for _ in 0..chunks + 4 {
        let got = read(&mut bench, &file, 0, 4096, CHUNK_BYTES);
        assert_eq!(got.result, Ok(4096));
        held.push(got);
    }
    let Some(Note::BuffersUnregistered { errno, registered_bytes }) = bench.uring.take_note() else {
        panic!("nothing was said");
    };
    assert_eq!(errno, Errno::NOMEM);
    assert!(registered_bytes <= chunks * CHUNK_BYTES);
    assert_eq!(bench.uring.take_note(), None);
    assert_eq!(read(&mut bench, &file, 0, 4096, 4096).result, Ok(4096));
    assert_eq!(bench.uring.take_note(), None, "it is said once");
}

#[test]
fn completions_wake_an_epoll_wait_on_the_ring_descriptor() {
    use rustix::event::epoll;
    let Some(mut bench) = Bench::with_role(&config(), Role::DiskOnly) else { return };
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&set, bench.uring.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // A kernel worker executes a sync, so its completion arrives after the submission.
    let file = Fd::from(OwnedFd::from(file));
    for _ in 0..20 {
        let id = bench.start(Op::Disk { at: RING, op: DiskOp::Sync { file: file.clone() } });
        bench.turn(Wait::No);
        while bench.done.is_empty() {
            if bench.uring.has_staged() {
                bench.turn(Wait::No);
                continue;
            }
            let mut events = Vec::with_capacity(1);
            let limit = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
            let waited = epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&limit));
            assert!(matches!(waited, Ok(1) | Err(Errno::INTR)), "the wait ended as {waited:?}");
            bench.turn(Wait::No);
        }
        assert_eq!(bench.next().id, id);
    }
    let mut events = Vec::with_capacity(1);
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let idle = epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&now));
    assert_eq!(idle, Ok(0), "an idle ring is not readable");
}
