//! Rare behaviour of the kernel: fabricated completions, overflow, and an end with operations in flight.

use super::super::entry::Tag;
use super::*;

/// `IORING_CQE_F_*`, as in `complete.rs`.
const MORE: u32 = 1 << 1;
const NOTIFICATION: u32 = 1 << 3;

impl Bench {
    /// Adds an operation that counts as in flight, but is not submitted to the kernel.
    fn pretend(&mut self, op: Op) -> OpId {
        let id = self.slots.insert(op, 0, Route::Net);
        self.uring.flights.begin(&mut self.slots.held(id).ring);
        id
    }

    fn complete(&mut self, id: OpId, result: i32, flags: u32) {
        let cqe = Cqe { user_data: Tag::Op(id).pack(), result, flags };
        self.uring.complete(cqe, &mut self.slots, &mut self.done);
    }

    /// As `complete`, with the buffer at `bid` filled by the kernel.
    fn complete_with(&mut self, id: OpId, bid: u16, result: i32, flags: u32) {
        self.complete(id, result, flags | u32::from(bid) << 16 | 1);
    }
}

fn negative(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

#[test]
fn a_stream_ended_silently_by_the_kernel_is_restarted() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = pair();
    let id = bench.pretend(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    bench.complete_with(id, 3, 7, 0);
    let silent = bench.next();
    assert_eq!((silent.id, silent.result, silent.more), (id, Ok(7), true));
    assert_eq!(bench.uring.counters().rearmed, 1);
    drop(silent);
    peer.write_all(b"goes on").unwrap();
    let next = bench.next();
    assert_eq!((next.id, next.result, next.more), (id, Ok(7), true));
    assert_eq!(bytes(&next.payload), b"goes on");
}

#[test]
fn a_cancelled_stream_that_ends_with_data_reports_both() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, _peer) = pair();
    let id = bench.pretend(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    bench.slots.held(id).ring.cancelled = true;
    bench.complete_with(id, 3, 5, 0);
    let data = bench.next();
    assert_eq!((data.result, data.more), (Ok(5), true));
    assert_eq!(bytes(&data.payload).len(), 5);
    let end = bench.next();
    assert_eq!((end.id, end.result, end.more), (id, Err(Errno::CANCELED), false));
}

#[test]
fn accept_reports_its_final_error_to_the_caller() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let listener = Fd::from(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()));
    let id = bench.pretend(Op::Net(NetOp::Accept { listener, multishot: true }));
    bench.complete(id, negative(Errno::MFILE), 0);
    let end = bench.next();
    assert_eq!((end.id, end.result, end.more), (id, Err(Errno::MFILE), false));
}

#[test]
fn an_accept_ended_silently_by_the_kernel_is_restarted() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let id = bench
        .pretend(Op::Net(NetOp::Accept { listener: Fd::from(OwnedFd::from(listener)), multishot: true }));
    // A connection without MORE, as after an overflow: the multishot accept has ended.
    let (last, _peer) = UnixStream::pair().unwrap();
    bench.complete(id, std::os::fd::IntoRawFd::into_raw_fd(last), 0);
    let silent = bench.next();
    assert!(silent.more && matches!(silent.payload, Payload::Accepted(_)));
    let _client = TcpStream::connect(address).unwrap();
    let next = bench.next();
    assert_eq!((next.id, next.result, next.more), (id, Ok(0), true));
    assert!(matches!(next.payload, Payload::Accepted(_)));
}

#[test]
fn zero_copy_holds_its_bytes_until_the_notification_after_an_error() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    if !bench.uring.send_zero_copy() {
        return eprintln!("skipped: no zero-copy sends");
    }
    let (socket, _peer) = pair();
    let op = |socket: &Fd| {
        Op::Net(NetOp::Send { socket: socket.clone(), data: text(b"abc"), more: false, zero_copy: true })
    };
    let with_notice = bench.pretend(op(&socket));
    bench.complete(with_notice, negative(Errno::CONNRESET), MORE);
    let first = bench.next();
    assert_eq!((first.result, first.more), (Err(Errno::CONNRESET), true));
    assert!(bench.slots.get(with_notice).is_some(), "the kernel may still read the bytes");
    assert!(socket.is_sole(), "the socket can be closed although its peer has not acknowledged the bytes");
    // The result of a notification is a set of flags, negative as a signed number.
    bench.complete(with_notice, i32::MIN, NOTIFICATION);
    let last = bench.next();
    assert_eq!((last.result, last.more), (Ok(0), false));
    assert!(matches!(last.payload, Payload::Segments(_)));

    let without = bench.pretend(op(&socket));
    bench.complete(without, negative(Errno::CONNRESET), 0);
    let only = bench.next();
    assert_eq!((only.result, only.more), (Err(Errno::CONNRESET), false));
    assert!(matches!(only.payload, Payload::Segments(_)));

    let refused = bench.pretend(op(&socket));
    bench.complete(refused, negative(Errno::NOMEM), 0);
    let copied = bench.next();
    assert_eq!((copied.id, copied.result, copied.more), (refused, Ok(3), false));
}

#[test]
fn late_completions_are_counted_and_their_buffers_released() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let id = bench.start(Op::NOP);
    assert_eq!(bench.next().id, id);
    let (socket, _peer) = pair();
    let next = bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Pool }));
    assert_eq!(next.slot, id.slot, "the slot is used again");
    assert!(bench.is_quiet());
    bench.complete_with(id, 5, 100, 0);
    assert!(bench.is_quiet(), "a late completion is nobody's");
    assert_eq!(bench.slots.unmatched, 1);
    let recv = bench.uring.recv.as_ref().unwrap();
    assert_eq!(recv.available(), recv.fill());
    assert!(bench.slots.get(next).is_some());
    bench.uring.complete(Cqe { user_data: u64::MAX, result: 0, flags: 0 }, &mut bench.slots, &mut bench.done);
    assert_eq!(bench.slots.unmatched, 2);
    bench.slots.unmatched = 0;
}

#[test]
fn buffers_received_by_an_abandoned_stream_are_released() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, _peer) = pair();
    let id = bench.pretend(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    assert!(bench.slots.abandon(id));
    bench.slots.held(id).ring.cancelled = true;
    let before = bench.pool.counters().idle_bytes;
    bench.complete_with(id, 3, 5, MORE);
    bench.complete(id, negative(Errno::CANCELED), 0);
    assert!(bench.is_quiet());
    assert_eq!(bench.pool.counters().idle_bytes, before, "a buffer is missing");
}

#[test]
fn a_busy_file_system_returns_the_buffer_for_a_retry() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let file = Fd::from(OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap()));
    let buf = bench.pool.get(4096).unwrap();
    let id =
        bench.pretend(Op::Disk { at: RING, op: DiskOp::Read { file: file.clone(), offset: 0, len: 4, buf } });
    bench.complete(id, negative(Errno::AGAIN), 0);
    let read = bench.next();
    assert_eq!((read.id, read.result), (id, Err(Errno::AGAIN)));
    let Payload::Buf(buf) = read.payload else { panic!("no buffer") };
    let id = bench.start(Op::Disk { at: RING, op: DiskOp::Read { file, offset: 0, len: 4, buf } });
    let read = bench.next();
    assert_eq!((read.id, bytes(&read.payload)), (id, &b"\x7fELF"[..]));
}

#[test]
fn an_overflowing_completion_queue_loses_nothing() {
    let mut config = config();
    config.ring_entries = 8;
    let limits = Limits { denied: 0, completions: Some(8) };
    let Some(mut bench) = Bench::with_limits(&config, limits) else { return };
    assert!(bench.uring.ring.completions_max() <= 16);
    let mut ids: Vec<u32> = (0..500).map(|_| bench.start(Op::NOP).slot).collect();
    let mut ended: Vec<u32> = ids.iter().map(|_| bench.next().id.slot).collect();
    ids.sort_unstable();
    ended.sort_unstable();
    assert_eq!(ids, ended);
}

#[test]
fn the_doorbell_can_wake_repeatedly() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
    let bell = Fd::from(rustix::event::eventfd(0, flags).unwrap());
    bench.uring.watch(bell.clone());
    assert!(bench.is_quiet());
    for _ in 0..20 {
        let other = rustix::io::dup(&bell).unwrap();
        let thread = std::thread::spawn(move || rustix::io::write(other, &1u64.to_ne_bytes()).unwrap());
        let until = Instant::now() + SOON;
        loop {
            bench.turn(Wait::Until(until));
            assert!(Instant::now() < until, "the wait did not end");
            if rustix::io::read(&bell, &mut [0u8; 8]).is_ok() {
                break;
            }
        }
        thread.join().unwrap();
    }
    // A completion without MORE means that the kernel no longer watches the descriptor.
    let ended = Cqe { user_data: Tag::Doorbell.pack(), result: 1, flags: 0 };
    bench.uring.complete(ended, &mut bench.slots, &mut bench.done);
    assert_eq!(bench.entries(|bench| bench.turn(Wait::No)), 1, "it is watched again");
}

/// Whether an address is mapped, by proc(5).
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(range.0)..number(range.1)).contains(&address)
    })
}

#[test]
fn memory_in_use_by_the_kernel_is_leaked_at_an_unclean_end() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = pair();
    let mut buf = bench.pool.get(4096).unwrap();
    let addresses =
        [buf.as_mut_ptr() as usize, bench.uring.recv.as_ref().unwrap().memory().0.start().as_ptr() as usize];
    bench.start(Op::Net(NetOp::Recv { socket: socket.clone(), into: RecvInto::Owned(buf) }));
    bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    assert!(bench.is_quiet());
    // The owner could not wait, so it leaks its table, as the engine does.
    std::mem::forget(std::mem::replace(&mut bench.slots, Slots::new(1)));
    bench.uring = Uring::new(&config(), &bench.pool, Role::DiskOnly).unwrap();
    bench.pool = Pool::new(0);
    let _written_or_refused = peer.write(b"late");
    assert!(addresses.into_iter().all(is_mapped));
}
