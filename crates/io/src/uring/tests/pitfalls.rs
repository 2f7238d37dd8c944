//! Pitfalls of io_uring: each test fails if the engine ignores one of them. `docs/engine-pitfalls.md` lists them.

use std::os::fd::AsRawFd;

use io_uring::opcode;
use io_uring::squeue::Flags;

use super::*;

/// A ring with four receive buffers, all held by the caller, and an exhausted pool.
fn without_buffers() -> Option<(Bench, Vec<Completion>, Buf)> {
    let mut config = config();
    config.recv_buffers = 4;
    config.recv_buffer_bytes = 1 << 20;
    config.pool_bytes_max = 6 << 20;
    let mut bench = Bench::new(&config)?;
    let rest = bench.pool.get(1 << 20).unwrap();
    let (socket, mut peer) = pair();
    let id = bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    let mut held = Vec::new();
    for _ in 0..4 {
        peer.write_all(b"x").unwrap();
        held.push(bench.next());
    }
    bench.cancel(id);
    assert_eq!(bench.next().result, Err(Errno::CANCELED));
    assert_eq!(bench.uring.recv.as_ref().unwrap().available(), 0);
    Some((bench, held, rest))
}

#[test]
fn a_receive_without_a_buffer_first_waits_for_data() {
    for into in [(|| RecvInto::Pool) as fn() -> RecvInto, || RecvInto::Stream] {
        let Some((mut bench, held, _rest)) = without_buffers() else { return };
        let starved = bench.uring.counters().recv_starved;
        let (socket, mut peer) = pair();
        let id = bench.start(Op::Net(NetOp::Recv { socket, into: into() }));
        assert!(bench.is_quiet());
        assert_eq!(bench.uring.counters().recv_starved, starved, "there was nothing to receive yet");
        drop(held);
        assert!(bench.is_quiet());
        peer.write_all(b"now").unwrap();
        let completion = bench.next();
        assert_eq!((completion.id, bytes(&completion.payload)), (id, &b"now"[..]));
        assert_eq!(bench.uring.counters().recv_starved, starved, "a buffer was there when data came");
    }
}

#[test]
fn starved_receives_resume_when_half_of_the_buffers_are_free() {
    let Some((mut bench, mut held, _rest)) = without_buffers() else { return };
    let mut peers = Vec::new();
    for byte in 0..3 {
        let (socket, mut peer) = pair();
        bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Pool }));
        peer.write_all(&[byte]).unwrap();
        peers.push(peer);
    }
    while bench.uring.starved.len() < 3 {
        bench.turn(Wait::Until(Instant::now() + SOON));
    }
    held.pop();
    let entries = bench.entries(|bench| (0..10).for_each(|_| bench.turn(Wait::No)));
    assert_eq!((entries, bench.uring.starved.len()), (0, 3), "one buffer for three would be a storm");
    held.pop();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let completion = bench.next();
        seen.push(bytes(&completion.payload)[0]);
    }
    seen.push(bytes(&bench.next().payload)[0]);
    assert_eq!(seen, [0, 1, 2], "first come, first served");
}

#[test]
fn a_turn_without_a_wait_runs_deferred_kernel_work() {
    for denied in [0, NO_SQARRAY | TASKRUN_FLAG] {
        let limits = Limits { denied, completions: None };
        let Some(mut bench) = Bench::with_limits(&config(), limits) else { return };
        let (socket, mut peer) = pair();
        bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Pool }));
        assert!(bench.is_quiet());
        // A write to a unix socket runs the receive before it returns.
        peer.write_all(b"hello").unwrap();
        bench.turn(Wait::No);
        assert_eq!(bench.done.len(), 1, "without {denied:#x}");
    }
}

#[test]
fn an_overflow_is_fetched_without_a_wait() {
    let mut config = config();
    config.ring_entries = 8;
    let limits = Limits { denied: 0, completions: Some(8) };
    let Some(mut bench) = Bench::with_limits(&config, limits) else { return };
    for _ in 0..500 {
        bench.start(Op::NOP);
    }
    // Each turn fetches at least one; the remaining completions are in the kernel's overflow list, not in the queue.
    (0..500).for_each(|_| bench.turn(Wait::No));
    assert_eq!(bench.done.len(), 500);
}

#[test]
fn the_completion_queue_has_room_for_all_pending_operations() {
    let mut config = config();
    config.ops_max = 40_000;
    config.recv_buffers = 1024;
    let Some(bench) = Bench::new(&config) else { return };
    assert!(bench.uring.ring.completions_max() >= config.ops_max + u32::from(config.recv_buffers));
}

#[test]
fn the_number_of_kernel_workers_follows_the_settings() {
    for role in [Role::NetAndDisk, Role::DiskOnly] {
        let Some(bench) = Bench::with_role(&config(), role) else { return };
        assert_eq!(bench.uring.ring.workers_max()[0], config().iowq_workers);
        assert!(bench.uring.ring.workers_max()[1] <= 8, "sockets and pipes are polled");
    }
}

#[test]
fn a_connection_with_immediate_responses_is_never_checked_for_its_end() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let (socket, mut peer) = tcp_pair();
    socket.set_tcp();
    let stream = bench.start(Op::Net(NetOp::Recv { socket: socket.clone(), into: RecvInto::Stream }));
    let mut exchange = |bench: &mut Bench, answers: bool| {
        peer.write_all(b"request").unwrap();
        assert_eq!((bench.next().id, bench.done.len()), (stream, 0));
        if answers {
            let send = Op::Net(NetOp::Send {
                socket: socket.clone(),
                data: text(b"answer"),
                more: false,
                zero_copy: false,
            });
            assert_eq!(bench.run(send).result, Ok(6));
        }
        bench.turn(Wait::No);
    };
    (0..20).for_each(|_| exchange(&mut bench, true));
    assert_eq!(bench.uring.counters().end_checks, 0, "an accepted send replaces the check");
    exchange(&mut bench, false);
    assert_eq!(bench.uring.counters().end_checks, 1);
    (0..10).for_each(|_| bench.turn(Wait::No));
    assert_eq!(bench.uring.counters().end_checks, 1, "one check follows the same bytes");
    exchange(&mut bench, false);
    assert_eq!(bench.uring.counters().end_checks, 2);
}

#[test]
fn one_check_finds_all_ended_connections() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    let mut peers = Vec::new();
    for index in 0..10 {
        let (socket, mut peer) = tcp_pair();
        peer.write_all(b"x").unwrap();
        if index == 3 {
            rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        } else {
            peers.push(peer.try_clone().unwrap());
        }
        drop(peer);
        bench.start(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }));
    }
    for _ in 0..10 {
        assert_eq!(bench.next().result, Ok(1));
    }
    let rearmed = bench.uring.counters().rearmed;
    let end = bench.next();
    assert_eq!((end.result, end.more), (Err(Errno::CONNRESET), false));
    assert!(bench.is_quiet());
    // The number of turns for the ten depends on the kernel, but no turn makes more than one check.
    assert!((1..=10).contains(&bench.uring.counters().end_checks));
    assert_eq!(bench.uring.counters().rearmed, rearmed + 1, "the others wait as they did");
}

#[test]
fn a_ring_accepts_only_operations_of_the_engine() {
    let socket = || io_uring::types::Fd(pair().0.as_raw_fd());
    for role in [Role::NetAndDisk, Role::DiskOnly] {
        let Some(mut bench) = Bench::with_role(&config(), role) else { return };
        let nop = || opcode::Nop::new().build();
        // Operations that open sockets, use another descriptor, use legacy opcodes, or send to another ring; and flags
        // that are never submitted.
        let mut forbidden = vec![
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), c"/".as_ptr()).build(),
            opcode::SymlinkAt::new(io_uring::types::Fd(libc::AT_FDCWD), c"a".as_ptr(), c"b".as_ptr()).build(),
            opcode::Splice::new(socket(), -1, socket(), -1, 1).build(),
            opcode::Shutdown::new(socket(), libc::SHUT_RDWR).build(),
            opcode::Timeout::new(&io_uring::types::Timespec::new()).build(),
            opcode::MsgRingData::new(io_uring::types::Fd(-1), 0, 0, None).build(),
            opcode::EpollCtl::new(io_uring::types::Fd(-1), io_uring::types::Fd(-1), 0, std::ptr::null())
                .build(),
            nop().flags(Flags::IO_LINK),
            nop().flags(Flags::IO_DRAIN),
            nop().flags(Flags::FIXED_FILE),
        ];
        if role == Role::DiskOnly {
            let nowhere = std::ptr::null_mut();
            forbidden.extend([
                opcode::Recv::new(socket(), nowhere, 0).build(),
                opcode::Send::new(socket(), nowhere, 0).build(),
                opcode::Accept::new(socket(), nowhere.cast(), nowhere.cast()).build(),
                opcode::Connect::new(socket(), std::ptr::null(), 0).build(),
            ]);
        }
        for (number, entry) in forbidden.into_iter().enumerate() {
            let mut seen = Vec::new();
            let staged = OwnedEntry::without_op(entry.clone().user_data(number as u64));
            assert!(bench.uring.ring.push_or_submit(&staged));
            let staged = bench.uring.ring.staged();
            bench.uring.ring.enter(staged, 1, true, None).unwrap();
            bench.uring.ring.collect(&mut seen);
            assert_eq!((seen.len(), seen[0].user_data), (1, number as u64));
            assert_eq!(seen[0].result, -libc::EACCES, "{entry:?}");
        }
        let registered = bench.uring.ring.register_files(&[0]);
        assert_eq!(registered, Err(Errno::ACCESS));
        assert_eq!(bench.run(Op::NOP).result, Ok(0));
    }
}

/// A mapping of this process, by proc(5).
struct Mapped {
    range: std::ops::Range<usize>,
    name: String,
    /// Whether a child process inherits it (no `dc` among its flags, "do not copy on fork").
    is_inherited: bool,
}

fn mappings() -> Vec<Mapped> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut mappings: Vec<Mapped> = Vec::new();
    for line in text.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            let range = number(start)..number(end);
            mappings.push(Mapped { range, name: rest.to_owned(), is_inherited: true });
        } else if first == "VmFlags:" {
            mappings.last_mut().unwrap().is_inherited = !rest.split(' ').any(|flag| flag == "dc");
        }
    }
    mappings
}

#[test]
fn memory_written_by_the_kernel_is_not_copied_to_a_child() {
    let Some(bench) = Bench::new(&config()) else { return };
    let buffers = bench.uring.recv.as_ref().unwrap().memory().0.start().as_ptr() as usize;
    // Other tests create rings too, and one of them may just have been mapped and not marked yet.
    let is_right = || {
        let mappings = mappings();
        let mut queues = mappings.iter().filter(|mapped| mapped.name.ends_with("anon_inode:[io_uring]"));
        let own = mappings.iter().find(|mapped| mapped.range.contains(&buffers)).unwrap();
        !own.is_inherited && queues.clone().count() > 0 && !queues.any(|mapped| mapped.is_inherited)
    };
    assert!((0..100).any(|_| is_right()));
}
