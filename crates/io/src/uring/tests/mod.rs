//! Tests of the io_uring backend on the running kernel. Without io_uring they print that and pass; the contract suite
//! reports the engines that a run has covered.

mod disk;
mod faults;
mod pitfalls;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::setup::flags::{COOP_TASKRUN, DEFER_TASKRUN, NO_SQARRAY, SINGLE_ISSUER, TASKRUN_FLAG};
use super::*;
use crate::engine::NetKind;
use crate::facts::DeviceId;
use crate::op::{Disk, DiskVia, Payload};
use crate::segments::{Segments, Source};
use crate::slot::Route;

const SOON: Duration = Duration::from_secs(180);

const RING: Disk = Disk { device: DeviceId(0), via: DiskVia::Ring };

fn config() -> EngineConfig {
    EngineConfig {
        net: NetKind::Uring,
        ring_entries: 64,
        ops_max: 1024,
        recv_buffers: 16,
        pool_bytes_max: 64 << 20,
        iowq_workers: 4,
        ..EngineConfig::default()
    }
}

/// A ring with its table of operations, as in an engine.
struct Bench {
    uring: Uring,
    slots: Slots,
    pool: Pool,
    done: Vec<Completion>,
}

impl Bench {
    fn new(config: &EngineConfig) -> Option<Bench> {
        Bench::with_role(config, Role::NetAndDisk)
    }

    fn with_role(config: &EngineConfig, role: Role) -> Option<Bench> {
        let pool = Pool::new(config.pool_bytes_max);
        Bench::over(Uring::new(config, &pool, role), config, pool)
    }

    fn with_limits(config: &EngineConfig, limits: Limits) -> Option<Bench> {
        let pool = Pool::new(config.pool_bytes_max);
        Bench::over(Uring::with_limits(config, &pool, Role::NetAndDisk, limits), config, pool)
    }

    fn over(uring: Result<Uring, SetupError>, config: &EngineConfig, pool: Pool) -> Option<Bench> {
        let uring = uring.inspect_err(|error| eprintln!("skipped: {error}")).ok()?;
        Some(Bench { uring, slots: Slots::new(config.ops_max), pool, done: Vec::new() })
    }

    fn start(&mut self, op: Op) -> OpId {
        let id = self.slots.insert(op, 0, Route::Net);
        self.uring.start(id, &mut self.slots, &mut self.done);
        id
    }

    fn cancel(&mut self, id: OpId) {
        self.uring.cancel(id, &mut self.slots, &mut self.done);
    }

    fn turn(&mut self, wait: Wait) {
        self.uring.turn(wait, &mut self.slots, &mut self.done).unwrap();
    }

    /// Returns the next completion, which must arrive soon.
    fn next(&mut self) -> Completion {
        let until = Instant::now() + SOON;
        while self.done.is_empty() {
            assert!(Instant::now() < until, "no completion came");
            self.turn(Wait::Until(until));
        }
        self.done.remove(0)
    }

    /// Returns the only completion of an operation.
    fn run(&mut self, op: Op) -> Completion {
        let id = self.start(op);
        let completion = self.next();
        assert_eq!(completion.id, id);
        assert!(!completion.more);
        completion
    }

    fn is_quiet(&mut self) -> bool {
        self.turn(Wait::No);
        self.done.is_empty()
    }

    /// Returns the number of kernel entries that `work` makes.
    fn entries(&mut self, work: impl FnOnce(&mut Bench)) -> u64 {
        let before = self.uring.counters().kernel_entries;
        work(self);
        self.uring.counters().kernel_entries - before
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.uring.cancel_all(&mut self.slots, &mut self.done);
        let until = Instant::now() + SOON;
        while self.slots.live() > 0 {
            assert!(Instant::now() < until, "{} operations did not end", self.slots.live());
            self.done.clear();
            self.turn(Wait::Until(until));
        }
        assert_eq!(self.uring.flights.live(), 0);
        assert_eq!(self.slots.unmatched, 0);
    }
}

fn pair() -> (Fd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Fd::from(OwnedFd::from(ours)), theirs)
}

fn tcp_pair() -> (Fd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    ours.set_nonblocking(true).unwrap();
    (Fd::from(OwnedFd::from(ours)), theirs)
}

fn text(bytes: &'static [u8]) -> Segments {
    Segments::from(Source::Static(bytes))
}

fn bytes(payload: &Payload) -> &[u8] {
    match payload {
        Payload::Buf(buf) => buf,
        other => panic!("no buffer but {other:?}"),
    }
}

#[test]
fn each_fallback_step_creates_a_working_ring() {
    let steps = [
        (0, SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG),
        (NO_SQARRAY, SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG),
        (NO_SQARRAY | TASKRUN_FLAG, SINGLE_ISSUER | DEFER_TASKRUN),
        (NO_SQARRAY | TASKRUN_FLAG | DEFER_TASKRUN, COOP_TASKRUN),
    ];
    for (denied, expected) in steps {
        let limits = Limits { denied, completions: None };
        let Some(mut bench) = Bench::with_limits(&config(), limits) else { return };
        let ring = &bench.uring.ring;
        assert_eq!(ring.mode().flags & !NO_SQARRAY, expected, "without {denied:#x}");
        assert_eq!(ring.mode().flags & denied, 0);
        assert!(ring.completions_max() >= COMPLETIONS_MIN);
        let (socket, mut peer) = pair();
        bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Pool }));
        assert!(bench.is_quiet());
        peer.write_all(b"hello").unwrap();
        assert_eq!(bytes(&bench.next().payload), b"hello");
        assert_eq!(bench.run(Op::NOP).result, Ok(0));
    }
    let all = DEFER_TASKRUN | COOP_TASKRUN;
    let limits = Limits { denied: all, completions: None };
    let refused = Uring::with_limits(&config(), &Pool::new(8 << 20), Role::DiskOnly, limits);
    assert_eq!(refused.err().map(|error| error.refusal), Some(Refusal::Outdated));
}

#[test]
fn one_turn_is_one_system_call_and_an_idle_turn_is_none() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let entries = bench.entries(|bench| {
        for _ in 0..50 {
            bench.start(Op::NOP);
        }
        bench.turn(Wait::Forever);
        assert_eq!(bench.done.len(), 50);
        bench.done.clear();
    });
    assert_eq!(entries, 1);
    let (socket, _peer) = pair();
    bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    bench.turn(Wait::No);
    assert_eq!(bench.entries(|bench| (0..10).for_each(|_| bench.turn(Wait::No))), 0);
    let until = Instant::now() + Duration::from_millis(20);
    assert_eq!(bench.entries(|bench| bench.turn(Wait::Until(until))), 1);
    assert!(Instant::now() >= until, "the wait lasts until its deadline");
    assert!(bench.done.is_empty());
}

#[test]
fn operations_beyond_the_queue_size_are_all_executed() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let ids: Vec<OpId> = (0..1000).map(|_| bench.start(Op::NOP)).collect();
    let mut ended: Vec<OpId> = ids.iter().map(|_| bench.next().id).collect();
    ended.sort_by_key(|id| id.slot);
    let mut ids = ids;
    ids.sort_by_key(|id| id.slot);
    assert_eq!(ids, ended);
}

#[test]
fn a_stream_delivers_buffers_until_its_end() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = pair();
    let id = bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    for round in 0..100u8 {
        peer.write_all(&[round; 100]).unwrap();
        let completion = bench.next();
        assert_eq!((completion.id, completion.result, completion.more), (id, Ok(100), true));
        assert_eq!(bytes(&completion.payload), [round; 100]);
    }
    drop(peer);
    let end = bench.next();
    assert_eq!((end.id, end.result, end.more), (id, Ok(0), false));
    let recv = bench.uring.recv.as_ref().unwrap();
    assert_eq!(recv.available(), recv.fill(), "no buffer was lost");
}

#[test]
fn receives_without_a_buffer_wait_and_continue_transparently() {
    let mut config = config();
    config.recv_buffers = 4;
    let Some(mut bench) = Bench::new(&config) else { return };
    let mut peers = Vec::new();
    for index in 0..20u8 {
        let (socket, mut peer) = pair();
        bench.start(Op::Net(NetOp::Recv {
            socket,
            into: if index % 2 == 0 { RecvInto::Pool } else { RecvInto::Stream },
        }));
        peer.write_all(&[index; 10]).unwrap();
        peers.push(peer);
    }
    let mut seen: Vec<u8> = (0..20)
        .map(|_| {
            let completion = bench.next();
            assert_eq!(completion.result, Ok(10));
            bytes(&completion.payload)[0]
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<u8>>());
    assert!(bench.uring.counters().recv_starved > 0, "four buffers are not enough for twenty at once");
}

#[test]
fn a_burst_enlarges_the_buffer_ring() {
    let mut config = config();
    config.recv_buffers = 512;
    // With DEFER_TASKRUN, the kernel runs 20 pieces of work per turn, so a burst would be split into small parts.
    let limits = Limits { denied: NO_SQARRAY | TASKRUN_FLAG | DEFER_TASKRUN, completions: None };
    let Some(mut bench) = Bench::with_limits(&config, limits) else { return };
    let first = bench.uring.recv.as_ref().unwrap().fill();
    assert!(first < 512, "an idle thread holds few buffers");
    let mut peers = Vec::new();
    for _ in 0..200 {
        let (socket, mut peer) = pair();
        bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
        peer.write_all(b"burst").unwrap();
        peers.push(peer);
    }
    for _ in 0..200 {
        assert_eq!(bench.next().result, Ok(5));
    }
    assert!(bench.uring.recv.as_ref().unwrap().fill() > first);
    let starved = bench.uring.counters().recv_starved;
    for peer in &mut peers {
        peer.write_all(b"again").unwrap();
    }
    for _ in 0..200 {
        assert_eq!(bench.next().result, Ok(5));
    }
    assert_eq!(bench.uring.counters().recv_starved, starved, "the next burst fits");
}

#[test]
fn receives_starve_with_an_empty_pool_and_resume_with_a_buffer() {
    let mut config = config();
    config.recv_buffers = 4;
    config.recv_buffer_bytes = 1 << 20;
    config.pool_bytes_max = 6 << 20;
    let Some(mut bench) = Bench::new(&config) else { return };
    let _all = bench.pool.get(1 << 20).unwrap();
    let (socket, mut peer) = pair();
    let id = bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    let mut held = Vec::new();
    for _ in 0..4 {
        peer.write_all(b"x").unwrap();
        held.push(bench.next());
    }
    peer.write_all(b"late").unwrap();
    for _ in 0..3 {
        assert!(bench.is_quiet(), "there is no buffer");
    }
    assert_eq!(bench.uring.counters().recv_starved, 1, "it is not tried again and again");
    held.pop();
    let completion = bench.next();
    assert_eq!((completion.id, bytes(&completion.payload), completion.more), (id, &b"late"[..], true));
    held.push(completion);
    peer.write_all(b"never read").unwrap();
    while bench.uring.starved.is_empty() {
        bench.turn(Wait::Until(Instant::now() + SOON));
    }
    bench.cancel(id);
    let end = bench.next();
    assert_eq!((end.id, end.result, end.more), (id, Err(Errno::CANCELED), false));
}

#[test]
fn buffers_of_abandoned_receives_are_released() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = pair();
    let id = bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    assert!(bench.is_quiet());
    let before = bench.pool.counters().idle_bytes;
    peer.write_all(b"nobody reads this").unwrap();
    bench.slots.abandon(id);
    bench.cancel(id);
    while bench.slots.live() > 0 {
        bench.turn(Wait::Until(Instant::now() + SOON));
    }
    assert!(bench.done.is_empty());
    let recv = bench.uring.recv.as_ref().unwrap();
    assert_eq!(recv.available(), recv.fill());
    assert_eq!(bench.pool.counters().idle_bytes, before);
}

#[test]
fn cancelling_at_any_moment_ends_a_receive() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    for round in 0..60 {
        let (socket, mut peer) = tcp_pair();
        if round % 2 == 0 {
            peer.write_all(b"data that is there when the receive starts").unwrap();
        }
        let into = if round % 3 == 0 { RecvInto::Pool } else { RecvInto::Stream };
        let id = bench.start(Op::Net(NetOp::Recv { socket, into }));
        if round % 5 == 0 {
            bench.turn(Wait::No);
        }
        bench.cancel(id);
        let mut terminals = 0;
        while bench.slots.live() > 0 || !bench.done.is_empty() {
            terminals += usize::from(!bench.next().more);
        }
        assert_eq!(terminals, 1);
    }
}

#[test]
fn sends_one_piece_and_several_pieces() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = tcp_pair();
    let op =
        Op::Net(NetOp::Send { socket: socket.clone(), data: text(b"one"), more: true, zero_copy: false });
    assert_eq!(bench.run(op).result, Ok(3));
    let mut data = text(b"-head-");
    let mut buf = bench.pool.get(10).unwrap();
    buf.append(b"body");
    data.push(Source::Buf(buf));
    data.push(Source::Vec(b"-tail".to_vec()));
    let completion = bench.run(Op::Net(NetOp::Send { socket, data, more: false, zero_copy: false }));
    assert_eq!(completion.result, Ok(15));
    let Payload::Segments(mut segments) = completion.payload else { panic!("no segments") };
    assert_eq!(segments.take_vec(), Some(b"-tail".to_vec()));
    let mut got = [0; 18];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"one-head-body-tail");
}

#[test]
fn a_large_send_is_completed_while_the_peer_reads() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = tcp_pair();
    let content: Vec<u8> = (0..8 << 20).map(|index: u32| (index % 251) as u8).collect();
    let expected = content.clone();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        peer.read_exact(&mut got).unwrap();
        got == expected
    });
    let mut data = Segments::new();
    let len = content.len();
    data.push(Source::Vec(content));
    assert_eq!(
        bench.run(Op::Net(NetOp::Send { socket, data, more: false, zero_copy: false })).result,
        Ok(len as u32)
    );
    assert!(reader.join().unwrap());
}

#[test]
fn sending_to_a_closed_peer_is_an_error_without_a_signal() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, peer) = pair();
    drop(peer);
    let completion =
        bench.run(Op::Net(NetOp::Send { socket, data: text(b"x"), more: false, zero_copy: false }));
    assert_eq!(completion.result, Err(Errno::PIPE));
    assert!(matches!(completion.payload, Payload::Segments(_)));
}

#[test]
fn zero_copy_reports_the_count_and_then_returns_the_bytes() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    if !bench.uring.send_zero_copy() {
        return eprintln!("skipped: no zero-copy sends");
    }
    let (socket, mut peer) = tcp_pair();
    for pieces in 1..=2 {
        let mut data = Segments::new();
        for _ in 0..pieces {
            let mut buf = bench.pool.get(4096).unwrap();
            buf.append(&[b'z'; 4096]);
            data.push(Source::Buf(buf));
        }
        let len = 4096 * pieces;
        let id =
            bench.start(Op::Net(NetOp::Send { socket: socket.clone(), data, more: false, zero_copy: true }));
        let first = bench.next();
        assert_eq!((first.id, first.result, first.more), (id, Ok(len), true));
        let mut got = vec![0; len as usize];
        peer.read_exact(&mut got).unwrap();
        assert!(got.iter().all(|&byte| byte == b'z'));
        let last = bench.next();
        assert_eq!((last.id, last.result, last.more), (id, Ok(0), false));
        let Payload::Segments(segments) = last.payload else { panic!("no segments") };
        assert_eq!(segments.len(), len as usize);
    }
}

#[test]
fn zero_copy_on_a_unix_socket_copies() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = pair();
    let completion =
        bench.run(Op::Net(NetOp::Send { socket, data: text(b"plain"), more: false, zero_copy: true }));
    assert_eq!(completion.result, Ok(5));
    assert!(matches!(completion.payload, Payload::Segments(_)));
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"plain");
    assert!(!bench.uring.send_zero_copy() || bench.uring.counters().zero_copy_refused == 1);
}
