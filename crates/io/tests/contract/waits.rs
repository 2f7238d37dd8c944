//! Turns: how long they wait, what wakes them, and the memory that an engine returns.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use io::op::RecvInto;
use io::{Errno, NetOp, Op, Wait};

use crate::harness::{PATIENCE, TOKEN, connection, on_each_net, on_each_pair, on_each_pair_with};

/// Number of wake-ups in the test for lost wake-ups.
const ROUNDS: u32 = 10_000;

#[test]
fn a_turn_waits_until_its_deadline() {
    on_each_pair(|bench| {
        let mut batch = Vec::new();
        for wait in [20, 1] {
            let wait = Duration::from_millis(wait);
            let before = Instant::now();
            // A spurious wake-up is legal, but not one in every turn.
            while before.elapsed() < wait {
                let turns_from = Instant::now();
                bench.engine.turn(Wait::Until(before + wait), &mut batch).unwrap();
                assert!(turns_from.elapsed() < PATIENCE);
            }
        }
        let before = bench.engine.counters().kernel_entries;
        bench.engine.turn(Wait::Until(Instant::now() + Duration::from_millis(50)), &mut batch).unwrap();
        assert!(bench.engine.counters().kernel_entries - before < 20, "an idle wait is one kernel entry");
        bench.engine.turn(Wait::No, &mut batch).unwrap();
        bench.engine.turn(Wait::Until(Instant::now()), &mut batch).unwrap();
        assert!(batch.is_empty());
    });
}

#[test]
fn results_are_returned_by_the_next_turn_without_a_wait() {
    on_each_pair(|bench| {
        let id = bench.submit(Op::NOP);
        let mut batch = Vec::new();
        bench.engine.turn(Wait::Forever, &mut batch).unwrap();
        assert_eq!(batch.len(), 1);
        assert_eq!((batch[0].id, batch[0].result), (id, Ok(0)));
    });
}

#[test]
fn a_wake_up_before_the_wait_is_not_lost() {
    on_each_pair(|bench| {
        bench.engine.waker().wake();
        let mut batch = Vec::new();
        let before = Instant::now();
        bench.engine.turn(Wait::Until(Instant::now() + PATIENCE), &mut batch).unwrap();
        assert!(before.elapsed() < PATIENCE / 2, "the wake was lost");
    });
}

#[test]
fn no_wake_up_is_lost() {
    on_each_net(|bench| {
        let waker = bench.engine.waker();
        let rung = Arc::new(AtomicU32::new(0));
        let (acknowledge, acknowledged) = mpsc::channel();
        let ringer = {
            let rung = Arc::clone(&rung);
            std::thread::spawn(move || {
                for round in 1..=ROUNDS {
                    rung.store(round, Ordering::Release);
                    waker.wake();
                    acknowledged.recv_timeout(PATIENCE).expect("the engine woke up");
                }
            })
        };
        let mut batch = Vec::new();
        for round in 1..=ROUNDS {
            while rung.load(Ordering::Acquire) < round {
                let before = Instant::now();
                bench.engine.turn(Wait::Until(before + PATIENCE), &mut batch).unwrap();
                assert!(before.elapsed() < PATIENCE / 2, "wake-up {round} was lost");
            }
            acknowledge.send(()).unwrap();
        }
        ringer.join().unwrap();
    });
}

#[test]
fn a_full_table_returns_the_operation() {
    on_each_pair_with(
        |config| config.ops_max = 4,
        |bench| {
            let (ours, _peer) = connection();
            let recv = || Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool });
            let ids: Vec<_> = (0..4).map(|_| bench.submit(recv())).collect();
            assert!(matches!(bench.engine.submit(recv(), TOKEN), Err(Op::Net(NetOp::Recv { .. }))));
            assert_eq!(bench.engine.counters().table_full, 1);
            bench.engine.cancel(ids[0]);
            assert_eq!(bench.next(ids[0]).result, Err(Errno::CANCELED));
            assert!(bench.engine.submit(recv(), TOKEN).is_ok());
            bench.assert_drains();
        },
    );
}

#[test]
fn idle_memory_is_released() {
    on_each_pair(|bench| {
        let held: Vec<_> = (0..8).map(|_| bench.engine.pool().get(1 << 20).unwrap()).collect();
        let before = bench.engine.pool().counters().bytes;
        assert!(bench.engine.trim() < 8 << 20, "buffers in use stay");
        drop(held);
        assert!(bench.engine.trim() >= 8 << 20);
        assert!(bench.engine.pool().counters().bytes <= before - (8 << 20));
        // Memory whose io_uring registration was removed can be registered again.
        assert!(bench.engine.pool().get(1 << 20).is_some());
    });
}
