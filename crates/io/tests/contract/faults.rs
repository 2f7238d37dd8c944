//! The fault engine over each pair of backends: callers that handle faults according to the contract lose no bytes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::facts::{DeviceId, EntryAttributes};
use io::fault::FaultPlan;
use io::op::{NewFile, RecvInto, StatTarget};
use io::segments::Source;
use io::{Disk, DiskOp, DiskVia, Drained, Errno, Fd, NetOp, Op, Payload, Segments};
use testkit::TempDir;

use crate::harness::{Bench, connection, listener, on_each_pair_with, open, pattern, received, segments};

const DEVICE: DeviceId = DeviceId(3);

fn at(via: DiskVia) -> Disk {
    Disk { device: DEVICE, via }
}

fn on_each_pair_with_faults(plan: &str, test: impl Fn(&mut Bench)) {
    let plan = Arc::new(FaultPlan::parse(plan).unwrap());
    on_each_pair_with(|config| config.faults = Some(Arc::clone(&plan)), test);
}

/// Whether an operation should be retried.
fn passes(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::NOBUFS | Errno::CANCELED)
}

fn open_stubbornly(bench: &mut Bench, path: &std::path::Path, flags: i32) -> Fd {
    loop {
        match bench.open(path, flags) {
            Err(error) if passes(error) => {}
            file => return file.unwrap(),
        }
    }
}

fn read_stubbornly(bench: &mut Bench, file: &Fd, len: usize) -> Vec<u8> {
    let mut whole = Vec::new();
    while whole.len() < len {
        match bench.read(file, whole.len() as u64, 16 << 10) {
            Ok(part) if part.is_empty() => panic!("the file ended at {}", whole.len()),
            Ok(part) => whole.extend_from_slice(&part),
            Err(error) => assert!(passes(error), "{error}"),
        }
    }
    whole
}

fn send_stubbornly(bench: &mut Bench, socket: &Fd, bytes: &[u8]) {
    let mut data = Segments::new();
    data.push(Source::Vec(bytes[..bytes.len() / 3].to_vec()));
    data.push(Source::Vec(bytes[bytes.len() / 3..].to_vec()));
    while !data.is_empty() {
        let op = Op::Net(NetOp::Send { socket: socket.clone(), data, more: false, zero_copy: false });
        let completion = bench.run(op);
        data = segments(completion.payload);
        match completion.result {
            Ok(count) => data.advance(count as usize),
            Err(error) => assert!(passes(error), "{error}"),
        }
    }
}

fn recv_stubbornly(bench: &mut Bench, socket: &Fd, mode: usize) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let into = bench.destination(mode);
        let id = bench.submit(Op::Net(NetOp::Recv { socket: socket.clone(), into }));
        loop {
            let completion = bench.next(id);
            whole.extend_from_slice(received(&completion.payload));
            match completion.result {
                Ok(0) => return whole,
                Ok(_) => {}
                Err(error) => assert!(passes(error), "{error}"),
            }
            if !completion.more {
                break;
            }
        }
    }
}

#[test]
fn the_same_bytes_arrive_despite_faults() {
    let dir = TempDir::new("io");
    let bytes = pattern(300_007);
    let path = dir.write("a", &bytes);
    let plan = "
        open error=EINTR every=2
        read short every=2; read error=EAGAIN every=5; read error=EINTR every=7
        send short every=2; send error=EINTR every=3; send error=EAGAIN probability=0.2 seed=5
        recv short every=2; recv error=EINTR every=3; recv error=ENOBUFS every=5
        recv end every=4
    ";
    on_each_pair_with_faults(plan, |bench| {
        let file = open_stubbornly(bench, &path, 0);
        let read = read_stubbornly(bench, &file, bytes.len());
        assert!(read == bytes, "other bytes were read");
        for mode in 0..3 {
            let (ours, mut peer) = connection();
            let sender = std::thread::spawn(move || {
                let mut echoed = vec![0; 300_007];
                peer.read_exact(&mut echoed).unwrap();
                peer.write_all(&echoed).unwrap();
                peer.shutdown(Shutdown::Write).unwrap();
                echoed
            });
            send_stubbornly(bench, &ours, &read);
            assert!(recv_stubbornly(bench, &ours, mode) == bytes, "mode {mode}: other bytes came back");
            assert!(sender.join().unwrap() == bytes, "mode {mode}: other bytes arrived");
        }
        drop(file);
    });
}

#[test]
fn a_receive_into_the_pool_waits_for_a_buffer_without_failing() {
    on_each_pair_with_faults("recv error=ENOBUFS", |bench| {
        let (ours, mut peer) = connection();
        peer.write_all(b"abcd").unwrap();
        let mut received = Vec::new();
        while received.len() < 4 {
            let completion = bench.recv(&ours, RecvInto::Pool);
            assert!(completion.result.is_ok(), "{completion:?}");
            let Payload::Buf(buf) = completion.payload else { panic!("no buffer") };
            received.extend_from_slice(&buf);
        }
        assert_eq!(received, b"abcd");
        // A delayed receive ends when it is cancelled.
        let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
        bench.engine.cancel(id);
        assert_eq!(bench.next(id).result, Err(Errno::CANCELED));
    });
}

/// The engine reuses slots at once, so a caller recognises operations by identifier or token.
#[test]
fn completions_that_wait_for_a_turn_have_different_identifiers() {
    on_each_pair_with_faults("stat error=ENOENT", |bench| {
        let ended = || Op::Net(NetOp::Close { fd: std::fs::File::open("/dev/null").unwrap().into() });
        let injected =
            |via| Op::Disk { at: at(via), op: DiskOp::Stat { target: StatTarget::Path(c"/".into()) } };
        let via = bench.pair.via();
        let ids: Vec<_> = (0..8)
            .map(|number| bench.submit(if number % 2 == 0 { ended() } else { injected(via) }))
            .collect();
        let different: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(different.len(), ids.len(), "{ids:?}");
        ids.into_iter().for_each(|id| drop(bench.next(id)));
    });
}

#[test]
fn partial_writes_return_the_complete_buffer() {
    on_each_pair_with_faults("write short every=2", |bench| {
        let dir = TempDir::new("io");
        let path = dir.path().join("a");
        let via = bench.pair.via();
        let file = bench.open(&path, libc::O_RDWR | libc::O_CREAT).unwrap();
        let content = pattern(10_000);
        let mut written = 0;
        while written < content.len() {
            let mut buf = bench.engine.pool().get(16 << 10).unwrap();
            buf.append(&content[written..]);
            let op = Op::Disk {
                at: at(via),
                op: DiskOp::Write { file: file.clone(), offset: written as u64, buf },
            };
            let completion = bench.run(op);
            let Payload::Buf(buf) = completion.payload else { panic!("no buffer") };
            assert_eq!(buf.len(), content.len() - written, "the buffer comes back as it was");
            written += completion.result.unwrap() as usize;
        }
        assert!(std::fs::read(&path).unwrap() == content);
    });
}

#[test]
fn accepting_continues_after_errors() {
    on_each_pair_with_faults("accept error=EMFILE first=2; accept end every=2", |bench| {
        for multishot in [false, true] {
            let (listener, address) = listener();
            let mut peers = Vec::new();
            let (mut accepted, mut refused, mut ended) = (0, 0, 0);
            while accepted < 10 {
                let op = Op::Net(NetOp::Accept { listener: listener.clone(), multishot });
                let id = bench.submit(op);
                loop {
                    if peers.len() < 10 {
                        peers.push(std::net::TcpStream::connect(address).unwrap());
                    }
                    let completion = bench.next(id);
                    match completion.result {
                        Ok(_) => accepted += 1,
                        Err(error) => {
                            assert_eq!(error, Errno::MFILE);
                            refused += 1;
                        }
                    }
                    if !completion.more {
                        ended += usize::from(completion.result.is_ok());
                        break;
                    }
                    if accepted == 10 {
                        bench.engine.abandon(id);
                        break;
                    }
                }
            }
            assert_eq!(refused, if multishot { 0 } else { 2 }, "the first two of all are refused");
            assert!(!multishot || ended >= 3, "a multishot accept ended {ended} times");
        }
    });
}

#[test]
fn a_late_completion_follows_its_cancellation() {
    let delay = Duration::from_millis(30);
    on_each_pair_with_faults("recv delay=30ms; open delay=30ms path=/", |bench| {
        let (ours, _peer) = connection();
        let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
        bench.turn(Duration::ZERO);
        let before = Instant::now();
        bench.engine.cancel(id);
        // Other operations are not delayed.
        assert_eq!(bench.run(Op::NOP).result, Ok(0));
        assert_eq!(bench.next(id).result, Err(Errno::CANCELED));
        assert!(before.elapsed() >= delay, "it came after {:?}", before.elapsed());
        let path = std::env::current_exe().unwrap();
        let before = Instant::now();
        assert!(bench.open(&path, 0).is_ok());
        assert!(before.elapsed() >= delay);
        assert_eq!(bench.open(std::path::Path::new("none"), 0).err(), Some(Errno::NOENT));
    });
}

#[test]
fn late_results_of_abandoned_operations_are_dropped() {
    on_each_pair_with_faults("any delay=5ms", |bench| {
        let path = std::env::current_exe().unwrap();
        for _ in 0..8 {
            let id = bench.submit(open(&path, 0, DEVICE, bench.pair.via()));
            bench.turn(Duration::ZERO);
            bench.engine.abandon(id);
        }
        bench.turn(Duration::from_millis(20));
        assert!(bench.take_seen().is_empty());
    });
}

#[test]
fn a_lost_completion_makes_the_drain_leak() {
    on_each_pair_with_faults("open lost first=1", |bench| {
        bench.drains = false;
        let path = std::env::current_exe().unwrap();
        let lost = bench.submit(open(&path, 0, DEVICE, bench.pair.via()));
        assert!(bench.open(&path, 0).is_ok(), "the next one comes");
        assert!(bench.next_within(lost, Duration::from_millis(20)).is_none());
        bench.engine.cancel(lost);
        assert!(bench.next_within(lost, Duration::from_millis(20)).is_none());
        assert_eq!(bench.engine.drain(Instant::now() + Duration::from_millis(50)), Drained::Leaked(1));
    });
}

#[test]
fn disk_errors_are_returned_with_the_buffer() {
    on_each_pair_with_faults("read error=EIO every=2; write error=ENOSPC", |bench| {
        let dir = TempDir::new("io");
        let path = dir.write("a", b"content");
        let file = bench.open(&path, libc::O_RDWR).unwrap();
        assert_eq!(bench.read_fully(&file, 0, 7).unwrap(), b"content");
        // `read` expects the buffer to be returned.
        assert_eq!(bench.read(&file, 0, 7), Err(Errno::IO));
        let buf = bench.engine.pool().get(10).unwrap();
        let via = bench.pair.via();
        let completion = bench.run(Op::Disk { at: at(via), op: DiskOp::Write { file, offset: 0, buf } });
        assert_eq!(completion.result, Err(Errno::NOSPC));
        assert!(matches!(completion.payload, Payload::Buf(_)));
    });
}

#[test]
fn a_directory_is_read_despite_faults() {
    let dir = TempDir::new("io");
    for number in 0..100 {
        dir.write(&format!("{number}"), b"");
    }
    on_each_pair_with_faults("readdir short every=2; readdir error=EINTR every=3", |bench| {
        let folder = open_stubbornly(bench, dir.path(), libc::O_DIRECTORY);
        let mut names = std::collections::BTreeSet::new();
        loop {
            let via = bench.pair.via();
            let op = Op::Disk {
                at: at(via),
                op: DiskOp::ReadDir {
                    dir: folder.clone(),
                    bytes_max: 2048,
                    attributes: EntryAttributes::Kind,
                },
            };
            let done = bench.run(op);
            match (done.result, done.payload) {
                (Ok(0), _) => break,
                (Ok(_), Payload::Entries(entries)) => {
                    names.extend(entries.into_iter().map(|entry| entry.name))
                }
                (result, _) => assert!(passes(result.unwrap_err())),
            }
        }
        assert_eq!(names.len(), 100);
        drop(folder);
    });
}

#[test]
fn only_the_selected_directory_fails_while_its_switch_is_on() {
    let dir = TempDir::new("io");
    for name in ["cache", "other"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let (cache, switch) = (dir.path().join("cache"), dir.path().join("switch"));
    let rule = |what: &str, error: &str| {
        format!("{what} error={error} path={}/ while={};", cache.display(), switch.display())
    };
    let plan = [
        ("write", "ENOSPC"),
        ("open", "EROFS"),
        ("link", "EDQUOT"),
        ("mkdir", "EDQUOT"),
        ("rename", "EIO"),
        ("unlink", "EIO"),
        ("space", "EIO"),
        ("advise", "EIO"),
    ];
    let plan: String = plan.iter().map(|(what, error)| rule(what, error)).collect();
    on_each_pair_with_faults(&plan, |bench| {
        let via = bench.pair.via();
        let c_path = |path: &std::path::Path| std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let write = |file: &Fd| {
            let data = Segments::from(Source::Static(b"bytes"));
            Op::Disk { at: at(via), op: DiskOp::WriteSegments { file: file.clone(), offset: 0, data } }
        };
        let flags = libc::O_RDWR | libc::O_CREAT;
        let inside = bench.open(&dir.path().join("cache/a"), flags).unwrap();
        let outside = bench.open(&dir.path().join("other/a"), flags).unwrap();
        // The engine has not opened this file, and it is unnamed.
        let unseen = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE;
        let unseen = rustix::fs::open(&cache, unseen, rustix::fs::Mode::RUSR).unwrap();
        let unseen = Fd::from(unseen);
        assert_eq!(bench.run(write(&inside)).result, Ok(5));
        std::fs::write(&switch, b"").unwrap();
        for file in [&inside, &unseen] {
            let refused = bench.run(write(file));
            assert_eq!(refused.result, Err(Errno::NOSPC));
            assert_eq!(segments(refused.payload).len(), 5, "nothing of it was written");
        }
        assert_eq!(bench.run(write(&outside)).result, Ok(5));
        assert_eq!(bench.read(&inside, 0, 10), Ok(b"bytes".to_vec()), "only writes fail");
        assert_eq!(bench.open(&cache, libc::O_RDWR | libc::O_TMPFILE).err(), Some(Errno::ROFS));
        let (a, b) = (c_path(&dir.path().join("cache/a")), c_path(&dir.path().join("cache/b")));
        let space = StatTarget::Path(c_path(&cache));
        let (from, file) = (c_path(&dir.path().join("other/a")), outside.clone());
        let new = |to| NewFile {
            temp: from.clone(),
            to,
            open_temp: None,
            mode: 0o600,
            data: Vec::new(),
            uncached: false,
        };
        let rename = DiskOp::Rename { from_dir: None, from: from.clone(), to_dir: None, to: b.clone() };
        let refused = [
            (DiskOp::Link { file, to: b.clone() }, Errno::DQUOT),
            (DiskOp::MkDir { dir: None, path: b.clone(), mode: 0o700 }, Errno::DQUOT),
            (rename, Errno::IO),
            (DiskOp::Put { new: Box::new(new(b)) }, Errno::ROFS),
            (DiskOp::Unlink { dir: None, path: a, is_directory: false }, Errno::IO),
            (DiskOp::Space { target: space }, Errno::IO),
        ];
        for (op, error) in refused {
            let name = format!("{op:?}");
            assert_eq!(bench.run(Op::Disk { at: at(via), op }).result, Err(error), "{name}");
        }
        assert!(dir.path().join("other/a").exists(), "the call was not made");
        // The descriptor number now belongs to another file.
        drop((inside, unseen));
        let same_number = bench.open(&dir.path().join("other/a"), libc::O_RDWR).unwrap();
        assert_eq!(bench.run(write(&same_number)).result, Ok(5));
        std::fs::remove_file(&switch).unwrap();
        assert!(bench.open(&dir.path().join("cache/a"), flags).is_ok());
        drop((outside, same_number));
    });
}
