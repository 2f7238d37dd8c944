//! Tests of tasks: order, fairness, panics, wake-ups from other threads, the backlog, the end.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use io::facts::DeviceId;
use io::op::OpenHow;
use io::{Disk, DiskVia, Drained, Errno, Op, Wait};

use super::fake::Fake;
use super::{pair, run, settle, watch};
use crate::local::{Event, Semaphore, WaitGroup};
use crate::mailbox::{self, SendError};
use crate::reactor::{self, OpFuture};
use crate::{Either, File, Runtime, Socket, counters, select, spawn, yield_now, yield_to_ready};

#[test]
fn tasks_run_in_the_order_of_their_start() {
    run(|_| async {
        let order = Rc::new(RefCell::new(Vec::new()));
        for number in 0..5 {
            let order = Rc::clone(&order);
            spawn(async move {
                order.borrow_mut().push(number);
                yield_now().await;
                order.borrow_mut().push(number + 10);
            });
        }
        settle().await;
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
        assert_eq!(counters().tasks, 0);
        assert_eq!(counters().spawned, 5);
    });
}

#[test]
fn a_yielding_task_continues_after_the_others_in_the_same_turn() {
    run(|_| async {
        let order = Rc::new(RefCell::new(Vec::new()));
        for number in 0..3 {
            let order = Rc::clone(&order);
            spawn(async move {
                order.borrow_mut().push((number, counters().turns));
                yield_to_ready().await;
                order.borrow_mut().push((number + 10, counters().turns));
            });
        }
        let turns = counters().turns;
        settle().await;
        let numbers: Vec<u64> = order.borrow().iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 2, 10, 11, 12]);
        assert!(order.borrow().iter().all(|(_, turn)| *turn == order.borrow()[0].1), "turns from {turns} on");
        let alone = counters().polls;
        yield_to_ready().await;
        assert_eq!(counters().polls, alone, "nobody else is ready");
    });
}

#[test]
fn a_busy_task_does_not_starve_the_engine() {
    run(|fake| async move {
        let stop = Rc::new(Cell::new(false));
        let stopped = Rc::clone(&stop);
        // Wakes itself without yielding, so it is ready again immediately.
        spawn(poll_fn(move |context| match stopped.get() {
            true => Poll::Ready(()),
            false => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }));
        for _ in 0..10 {
            let op = OpFuture::new(&reactor::current(), Op::NOP);
            assert_eq!(op.await.result, Ok(0));
        }
        let polls = counters().polls;
        assert!(polls <= counters().turns * crate::POLLS_PER_TURN as u64);
        assert!(fake.waits().iter().all(|wait| *wait == Wait::No));
        stop.set(true);
        settle().await;
    });
}

static REPORTED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_panic_ends_only_its_task() {
    let fake = Fake::new();
    let mut runtime = Runtime::new(Box::new(fake.clone()));
    runtime.set_panic_hook(|text| {
        assert!(text.starts_with("thrown"), "{text}");
        REPORTED.fetch_add(1, Ordering::Relaxed);
    });
    runtime.block_on(async {
        struct PanicsInDrop;
        impl Drop for PanicsInDrop {
            fn drop(&mut self) {
                panic!("thrown in drop");
            }
        }
        spawn(async { panic!("thrown") });
        spawn(async {
            yield_now().await;
            panic!("{} later", "thrown");
        });
        spawn(async {
            let _thrown = PanicsInDrop;
            yield_now().await;
        });
        let alive = watch(async {
            settle().await;
            7
        });
        settle().await;
        settle().await;
        assert_eq!(alive.take(), Some(7));
        assert_eq!(counters().panics, 3);
        assert_eq!(counters().tasks, 0);
    });
    assert_eq!(REPORTED.load(Ordering::Relaxed), 3);
}

#[test]
fn a_stale_waker_wakes_no_other_task() {
    run(|_| async {
        let kept: Rc<Cell<Option<Waker>>> = Rc::default();
        let keep = Rc::clone(&kept);
        spawn(poll_fn(move |context| {
            keep.set(Some(context.waker().clone()));
            Poll::Ready(())
        }));
        settle().await;
        // The next task uses the slot of the task that has ended.
        let polls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&polls);
        spawn(poll_fn(move |_| {
            counted.set(counted.get() + 1);
            Poll::<()>::Pending
        }));
        settle().await;
        kept.take().unwrap().wake();
        settle().await;
        assert_eq!(polls.get(), 1);
    });
}

#[test]
fn messages_from_another_thread_wake_a_sleeping_runtime() {
    const ROUNDS: u32 = 10_000;
    let (to_pong, mut pong) = mailbox::channel::<(u32, mailbox::Sender<u32>)>(4);
    let echo = std::thread::spawn(move || {
        Runtime::new(Box::new(Fake::new())).block_on(async move {
            while let Some((number, answer)) = pong.recv().await {
                answer.send(number + 1).unwrap();
            }
        });
    });
    run(|fake| async move {
        let (to_ping, mut ping) = mailbox::channel(4);
        for round in 0..ROUNDS {
            to_pong.send((round, to_ping.clone())).unwrap();
            assert_eq!(ping.recv().await, Some(round + 1));
        }
        // The engine is woken only when it sleeps; on two CPUs some responses arrive before that.
        assert!(counters().wakeups <= u64::from(ROUNDS));
        assert!(fake.waits().contains(&Wait::Forever));
    });
    echo.join().unwrap();
}

#[test]
fn a_mailbox_is_bounded_and_reports_closed_ends() {
    run(|_| async {
        let (sender, mut receiver) = mailbox::channel(2);
        sender.send(1).unwrap();
        sender.clone().send(2).unwrap();
        assert_eq!(sender.send(3), Err(SendError::Full(3)));
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(receiver.try_recv(), Some(2));
        assert_eq!(receiver.try_recv(), None);
        let last = watch(async move { receiver.recv().await });
        settle().await;
        drop(sender);
        settle().await;
        assert_eq!(last.take(), Some(None));
        let (sender, receiver) = mailbox::channel(2);
        drop(receiver);
        assert_eq!(sender.send(1), Err(SendError::Closed(1)));
    });
}

#[test]
fn a_full_engine_delays_operations_and_loses_none() {
    run(|fake| async move {
        fake.set_capacity(2);
        let socket = |fd| async move { Socket::new(fd).reader.recv().await.map(|end| end.is_none()) };
        let (ends, _far): (Vec<_>, Vec<_>) =
            (0..5).map(|_| pair()).map(|(near, far)| (watch(socket(near)), far)).unzip();
        settle().await;
        assert_eq!(fake.flying().len(), 2);
        assert_eq!(counters().operations, 5);
        for _ in 0..5 {
            let next = fake.flying()[0].0;
            fake.complete(next, Ok(0), io::Payload::None);
            settle().await;
        }
        assert!(ends.iter().all(|end| end.take() == Some(Ok(true))));
        assert!(counters().backlogged >= 3);
        assert_eq!(counters().operations, 0);
    });
}

#[test]
fn a_refused_device_delays_no_other() {
    run(|fake| async move {
        let (slow, fast) = (DeviceId(1), DeviceId(2));
        let open = |device| {
            let disk = Disk { device, via: DiskVia::Pool(0) };
            watch(File::open(None, c"/a".into(), OpenHow::default(), disk))
        };
        fake.refuse(Some(slow));
        let queued = [open(slow), open(slow)];
        let (near, _far) = pair();
        let received = watch(async move { Socket::new(near).reader.recv().await });
        let opened = open(fast);
        settle().await;
        fake.complete(fake.only("Recv"), Ok(0), io::Payload::None);
        fake.end("Open", Err(Errno::NOENT), io::Payload::None).await;
        assert!(received.take().is_some());
        assert!(matches!(opened.take(), Some(Err(Errno::NOENT))));
        fake.refuse(None);
        settle().await;
        for (id, _) in fake.flying() {
            fake.complete(id, Err(Errno::NOENT), io::Payload::None);
        }
        settle().await;
        assert!(queued.iter().all(|open| matches!(open.take(), Some(Err(Errno::NOENT)))));
    });
}

#[test]
fn a_queued_operation_can_be_dropped() {
    run(|fake| async move {
        fake.set_capacity(1);
        let reactor = reactor::current();
        let (fd, _far) = pair();
        let mut first = Socket::new(fd);
        let mut recv = std::pin::pin!(first.reader.recv());
        poll_fn(|context| Poll::Ready(recv.as_mut().poll(context).is_pending())).await;
        let queued = OpFuture::new(&reactor, Op::NOP);
        let kept = OpFuture::new(&reactor, Op::NOP);
        drop(queued);
        fake.complete(fake.only("Recv"), Ok(0), io::Payload::None);
        assert_eq!(kept.await.result, Ok(0));
        assert_eq!(counters().engine.submitted, 2, "the dropped one never reached the engine");
    });
}

#[test]
fn the_end_of_the_runtime_drops_tasks_and_closes_their_files() {
    let fake = Fake::new();
    let mut runtime = Runtime::new(Box::new(fake.clone()));
    let (near, mut far) = pair();
    let left = Rc::new(());
    let held = Rc::clone(&left);
    runtime.block_on(async move {
        let stuck = watch(async move {
            let mut socket = Socket::new(near);
            let _ = socket.reader.recv().await;
            pending::<()>().await;
        });
        spawn(async move {
            pending::<()>().await;
            drop((held, stuck));
        });
        settle().await;
    });
    assert_eq!(runtime.shutdown(Instant::now() + Duration::from_secs(5)), Drained::Clean);
    assert_eq!(fake.cancelled().len(), 1);
    assert_eq!(Rc::strong_count(&left), 1);
    assert_eq!(std::io::Read::read(&mut far, &mut [0]).unwrap(), 0, "the peer sees the end");
}

#[test]
fn select_prefers_the_first_and_drops_the_other() {
    run(|_| async {
        assert_eq!(select(async { 1 }, async { 2 }).await, Either::Left(1));
        assert_eq!(select(pending::<()>(), async { 2 }).await, Either::Right(2));
    });
}

#[test]
fn events_wake_all_waiters() {
    run(|_| async {
        let event = Event::new();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let event = event.clone();
                watch(async move { event.wait().await })
            })
            .collect();
        settle().await;
        event.pulse();
        settle().await;
        assert!(waiting.iter().all(|done| done.take() == Some(())));
        assert!(!event.is_set());
        event.set();
        event.wait().await;
        event.clear();
        let again = watch(async move { event.wait().await });
        settle().await;
        assert_eq!(again.take(), None, "it waits anew");
    });
}

#[test]
fn a_gauge_waits_until_its_count_is_zero() {
    run(|_| async {
        let gauge = WaitGroup::new();
        gauge.wait_empty().await;
        let (first, second) = (gauge.enter(), gauge.enter());
        let waiting = gauge.clone();
        let empty = watch(async move { waiting.wait_empty().await });
        drop(first);
        settle().await;
        assert_eq!((gauge.count(), empty.take()), (1, None));
        drop(second);
        settle().await;
        assert_eq!(empty.take(), Some(()));
    });
}

#[test]
fn permits_are_granted_in_order() {
    run(|_| async {
        let semaphore = Semaphore::new(1);
        let first = semaphore.acquire().await;
        let acquire = |semaphore: Semaphore| watch(async move { semaphore.acquire().await });
        let (second, third) = (acquire(semaphore.clone()), acquire(semaphore.clone()));
        settle().await;
        drop(first);
        let last = acquire(semaphore.clone());
        settle().await;
        let second = second.take().unwrap();
        assert!(third.take().is_none() && last.take().is_none(), "others were here before");
        drop(second);
        settle().await;
        assert!(third.take().is_some());
        settle().await;
        assert!(last.take().is_some());
    });
}

#[test]
fn a_dropped_waiter_passes_its_permit_on() {
    run(|_| async {
        let semaphore = Semaphore::new(1);
        let held = semaphore.acquire().await;
        let (event, waiting) = (Event::new(), semaphore.clone());
        let over = event.clone();
        let gone =
            watch(async move { matches!(select(over.wait(), waiting.acquire()).await, Either::Left(())) });
        let next = semaphore.clone();
        let next = watch(async move { next.acquire().await });
        settle().await;
        // The permit becomes free and its first waiter gives up in the same turn.
        event.set();
        drop(held);
        settle().await;
        assert_eq!(gone.take(), Some(true));
        assert!(next.take().is_some());
    });
}

/// The observer receives the time for which a task delayed all others, and the engine's counters.
#[test]
fn turns_are_reported_to_the_observer_of_the_thread() {
    run(|_| async {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let copy = Rc::clone(&seen);
        crate::observe_turns(|| move |turn: crate::LoopTurn| copy.borrow_mut().push(turn));
        crate::observe_turns(|| |_| panic!("there is one already"));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2) {}
        settle().await;
        let seen = seen.borrow();
        assert!(seen[0].busy >= Duration::from_millis(2), "{:?}", seen[0]);
        assert!(seen.len() > 1 && seen.is_sorted_by_key(|turn| turn.engine.submitted));
    });
}
