//! Tests of work on other threads: results, panics, dropped tasks.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use super::{run, settle};
use crate::{Either, HelperPool, offload, select, spawn, yield_now};

#[test]
fn work_runs_on_a_pool_thread_and_its_result_returns() {
    run(|_| async {
        let here = thread::current().id();
        let (there, sum) =
            offload(move || (thread::current().id(), (0..1000u64).sum::<u64>())).await.expect("no panic");
        assert_eq!(sum, 499_500);
        assert_ne!(there, here);
    });
}

#[test]
fn other_tasks_run_during_offloaded_work() {
    run(|_| async {
        let (release, released) = mpsc::channel();
        let turns = Rc::new(Cell::new(0));
        let counted = Rc::clone(&turns);
        spawn(async move {
            for _ in 0..10 {
                counted.set(counted.get() + 1);
                yield_now().await;
            }
            release.send(()).expect("the work waits for it");
        });
        assert_eq!(offload(move || released.recv().is_ok()).await, Some(true));
        assert_eq!(turns.get(), 10);
    });
}

#[test]
fn a_panic_returns_no_result_and_ends_no_thread() {
    run(|_| async {
        for _ in 0..20 {
            assert_eq!(offload(|| -> u8 { panic!("as the test wants") }).await, None);
        }
        assert_eq!(offload(|| 7).await, Some(7));
    });
}

#[test]
fn a_dropped_task_loses_only_its_result() {
    run(|_| async {
        let (release, released) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel();
        let slow = offload(move || begins.send(()).is_ok() && released.recv().is_ok());
        // Work that has not started is removed with its task.
        let has_begun = async {
            while begun.try_recv().is_err() {
                yield_now().await;
            }
        };
        assert!(matches!(select(slow, has_begun).await, Either::Right(())), "the work still waits");
        release.send(()).expect("it was begun and goes on");
        assert_eq!(offload(|| 1).await, Some(1));
    });
}

#[test]
fn work_that_waits_delays_no_work_of_other_pools() {
    run(|_| async {
        let (slow, fast) = (Rc::new(HelperPool::new("slow", 8)), HelperPool::new("fast", 1));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        // Many more jobs than threads.
        for _ in 0..2000 {
            let (slow, released) = (Rc::clone(&slow), Arc::clone(&released));
            let wait = move || released.lock().is_ok_and(|released| released.recv().is_err());
            spawn(async move { assert_eq!(slow.run(wait).await, Some(true)) });
        }
        settle().await;
        assert_eq!((fast.run(|| 1).await, offload(|| 2).await), (Some(1), Some(2)));
        drop(release);
        assert_eq!(slow.run(|| 3).await, Some(3));
    });
}

#[test]
fn the_threads_of_a_pool_end_with_it() {
    run(|_| async {
        thread_local!(static ENDS: Cell<Option<OnEnd>> = const { Cell::new(None) });
        struct OnEnd(mpsc::Sender<()>);
        impl Drop for OnEnd {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (ends, ended) = mpsc::channel();
        let pool = HelperPool::new("short", 1);
        assert_eq!(pool.run(move || ENDS.set(Some(OnEnd(ends)))).await, Some(()));
        assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(pool);
        assert_eq!(ended.recv(), Ok(()), "the thread has ended");
    });
}

#[test]
fn many_jobs_share_few_threads() {
    run(|_| async {
        let left = Rc::new(Cell::new(100));
        for number in 0..100u32 {
            let left = Rc::clone(&left);
            spawn(async move {
                assert_eq!(offload(move || number * 2).await, Some(number * 2));
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            // Each result wakes the runtime.
            offload(|| ()).await;
        }
    });
}

#[test]
fn many_passwords_of_a_client_delay_others_by_one_job() {
    run(|_| async {
        let threads = 4;
        let pool = Rc::new(HelperPool::new("passwords", threads));
        let client = |number: u8| Some(IpAddr::from([192, 0, 2, number]));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let begun = Arc::new(Mutex::new(Vec::new()));
        let check = |number: u8| {
            let (pool, released, begun) = (Rc::clone(&pool), Arc::clone(&released), Arc::clone(&begun));
            spawn(async move {
                let work = move || {
                    begun.lock().unwrap().push(number);
                    released.lock().is_ok_and(|released| released.recv().is_err())
                };
                assert_eq!(pool.run_for(client(number), work).await, Some(true));
            });
        };
        (0..2000).for_each(|_| check(2));
        settle().await;
        // The addresses before and behind that of the greedy client.
        (0..2).for_each(|_| [1, 3].into_iter().for_each(check));
        settle().await;
        drop(release);
        while begun.lock().unwrap().len() < 2004 {
            offload(|| ()).await;
        }
        let begun = begun.lock().unwrap();
        let last = begun.iter().rposition(|&number| number != 2).unwrap();
        assert!(last < threads + 6, "{threads} threads have begun jobs before: {:?}", &begun[..=last]);
    });
}

#[test]
fn work_that_waits_is_dropped_with_its_task() {
    run(|_| async {
        let pool = Rc::new(HelperPool::new("waiting", 2));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        for _ in 0..4 {
            let (pool, released) = (Rc::clone(&pool), Arc::clone(&released));
            let wait = move || released.lock().is_ok_and(|released| released.recv().is_err());
            spawn(async move { assert_eq!(pool.run(wait).await, Some(true)) });
        }
        settle().await;
        let held = Arc::new(());
        let copy = Arc::clone(&held);
        let abandoned = pool.run(move || drop(copy));
        assert!(matches!(select(abandoned, settle()).await, Either::Right(())), "all threads are in use");
        assert_eq!(Arc::strong_count(&held), 1);
        drop(release);
        assert_eq!(pool.run(|| 1).await, Some(1));
    });
}
