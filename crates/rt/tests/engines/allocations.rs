//! An established connection allocates only the lists of its sends, whose blocks `thread-alloc` caches in a server.

use std::os::unix::net::UnixStream;

use super::common::{expect, on_each_net, send};
use rt::{Runtime, Socket, Timer, now, spawn};

const ROUNDS: u32 = 1000;

/// Number of rounds until every table and free list has its final size.
const WARM_UP: u32 = 100;

/// Makes round trips between two tasks of one runtime, each with a timer as in a server.
async fn rounds(socket: &mut Socket, timer: &Timer, mut bytes: Vec<u8>, count: u32) -> Vec<u8> {
    for _ in 0..count {
        bytes.clear();
        bytes.extend_from_slice(b"ping");
        bytes = send(socket, bytes).await;
        timer.set(now() + super::common::PATIENCE);
        timer.limit(expect(socket, b"ping")).await.unwrap();
    }
    bytes
}

#[test]
fn a_round_trip_allocates_only_the_lists_of_its_sends() {
    on_each_net(|pair| {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let mut runtime = Runtime::new(io::build(pair.config()).unwrap());
        let (mut socket, timer, bytes) = runtime.block_on(async {
            spawn(echo(far));
            let mut socket = Socket::new(near.into());
            let timer = Timer::new();
            let bytes = rounds(&mut socket, &timer, Vec::new(), WARM_UP).await;
            (socket, timer, bytes)
        });
        let counted = allocation_counter::measure(|| {
            runtime.block_on(rounds(&mut socket, &timer, bytes, ROUNDS));
        });
        // Both tasks send in each round; the additional allocation is the waker of `block_on`.
        let (count, lists) = (counted.count_total, 2 * u64::from(ROUNDS));
        assert!(count <= lists + 1, "{count} allocations in {ROUNDS} rounds, {:?}", pair.names);
        drop(socket);
    });
}

async fn echo(socket: UnixStream) {
    let mut socket = Socket::new(socket.into());
    let mut answer = Vec::new();
    while let Some(buf) = socket.reader.recv().await.unwrap() {
        answer.clear();
        answer.extend_from_slice(&buf);
        answer = send(&mut socket, answer).await;
    }
}
