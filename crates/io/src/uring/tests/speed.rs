//! The cost of a round trip, printed and never asserted: `cargo test --release -p io speed -- --ignored --nocapture`.

use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

use super::*;

/// Connections at once, as in the prototypes.
const CONNECTIONS: usize = 100;
const ROUNDS: usize = 3000;

fn thread_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Answers each message with as many bytes until all peers are gone; returns the number of messages.
fn echo(bench: &mut Bench, sockets: Vec<Fd>, zero_copy: bool) -> usize {
    let mut by_slot: Vec<Option<Fd>> = Vec::new();
    let mut open = sockets.len();
    for socket in sockets {
        let id = bench.start(Op::Recv { socket: socket.clone(), into: RecvInto::Stream });
        let slot = id.slot as usize;
        by_slot.resize_with(by_slot.len().max(slot + 1), || None);
        by_slot[slot] = Some(socket);
    }
    let (mut messages, mut done) = (0, Vec::new());
    while open > 0 || bench.slots.live() > 0 {
        bench.turn(Wait::Forever);
        std::mem::swap(&mut done, &mut bench.done);
        for completion in done.drain(..) {
            match (completion.payload, completion.result) {
                (Payload::Buf(buf), Ok(1..)) => {
                    let socket = by_slot[completion.id.slot as usize].clone().unwrap();
                    let mut data = Segments::new();
                    data.push(Source::Buf(buf));
                    bench.start(Op::Send { socket, data, more: false, zero_copy });
                    messages += 1;
                }
                (Payload::Segments(_), result) => assert!(result.is_ok()),
                (Payload::None, Ok(1..)) if completion.more => {}
                (_, result) => {
                    assert_eq!(result, Ok(0));
                    by_slot[completion.id.slot as usize] = None;
                    open -= 1;
                }
            }
        }
    }
    messages
}

/// Sends a message on each connection and waits for all answers, `ROUNDS` times.
fn clients(mut peers: Vec<TcpStream>) {
    let mut buffer = [7; 64];
    for _ in 0..ROUNDS {
        for peer in &mut peers {
            peer.write_all(&buffer).unwrap();
        }
        for peer in &mut peers {
            peer.read_exact(&mut buffer).unwrap();
        }
    }
}

/// The same echo over the least epoll loop there can be, to compare with.
fn bare_epoll(sockets: &[Fd]) -> usize {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (index, socket) in sockets.iter().enumerate() {
        epoll::add(&set, socket, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN).unwrap();
    }
    let (mut open, mut messages, mut entries, mut buffer) = (sockets.len(), 0, 0, [0; 4096]);
    let mut events = Vec::with_capacity(CONNECTIONS);
    while open > 0 {
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None).unwrap();
        entries += 1;
        for event in events.drain(..) {
            let socket = &sockets[event.data.u64() as usize];
            let count = rustix::io::read(socket, &mut buffer).unwrap();
            if count == 0 {
                epoll::delete(&set, socket).unwrap();
                open -= 1;
            } else {
                rustix::io::write(socket, &buffer[..count]).unwrap();
                messages += 1;
                entries += 2;
            }
        }
    }
    println!("{:.3} kernel entries a message", f64::from(entries) / messages as f64);
    messages
}

/// Runs `serve` on one end of all connections and the clients on the other, and prints what it cost.
fn measure(name: &str, serve: impl FnOnce(Vec<Fd>) -> usize) {
    let (sockets, peers): (Vec<Fd>, Vec<TcpStream>) = (0..CONNECTIONS).map(|_| tcp_pair()).unzip();
    let clients = std::thread::spawn(move || clients(peers));
    let (nanos, wall) = (thread_nanos(), Instant::now());
    let messages = serve(sockets) as f64;
    let nanos = (thread_nanos() - nanos) as f64 / messages;
    let wall = wall.elapsed().as_nanos() as f64 / messages;
    clients.join().unwrap();
    println!("{name}, {CONNECTIONS} connections: {nanos:.0} ns CPU and {wall:.0} ns of time a message");
}

#[test]
#[ignore = "a measurement: prints and asserts nothing"]
fn echo_speed() {
    let mut config = config();
    (config.ring_entries, config.recv_buffers) = (1024, 1024);
    for _ in 0..3 {
        let Some(mut bench) = Bench::new(&config) else { return };
        measure("ring", |sockets| {
            let messages = echo(&mut bench, sockets, false);
            let counters = bench.uring.counters();
            println!("{:.3} kernel entries a message", counters.kernel_entries as f64 / messages as f64);
            messages
        });
        measure("bare epoll", |sockets| bare_epoll(&sockets));
    }
}

#[test]
#[ignore = "a measurement: prints and asserts nothing"]
fn nop_speed() {
    let Some(mut bench) = Bench::new(&config()) else { return };
    for batch in [1, 16, 64] {
        let (nanos, rounds) = (thread_nanos(), 200_000 / batch);
        for _ in 0..rounds {
            for _ in 0..batch {
                bench.start(Op::Nop);
            }
            bench.turn(Wait::Forever);
            bench.done.clear();
        }
        println!("no-op, batch of {batch}: {} ns", (thread_nanos() - nanos) / (rounds * batch));
    }
}
