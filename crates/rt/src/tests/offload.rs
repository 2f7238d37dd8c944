//! Tests of work on other threads: results, panics, dropped tasks.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use super::{run, settle};
use crate::offload::QUEUE_MAX;
use crate::{
    Either, offload, offload_file, offload_file_in, offload_password, offload_settings, select, spawn,
    spawn_blocking, yield_now,
};

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
fn blocking_work_does_not_delay_computing_work() {
    run(|_| async {
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        // More jobs than threads of either kind.
        for _ in 0..4 * thread::available_parallelism().map_or(8, usize::from).max(8) {
            let released = std::sync::Arc::clone(&released);
            spawn(async move {
                spawn_blocking(move || released.lock().is_ok_and(|released| released.recv().is_err())).await;
            });
        }
        settle().await;
        assert_eq!(offload(|| 1).await, Some(1));
        drop(release);
        assert_eq!(spawn_blocking(|| 2).await, Some(2));
    });
}

#[test]
fn a_disk_that_does_not_respond_delays_no_other_work() {
    run(|_| async {
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        // More jobs than threads of any kind.
        for _ in 0..4 * thread::available_parallelism().map_or(8, usize::from).max(8) {
            let released = std::sync::Arc::clone(&released);
            spawn(async move {
                offload_file(move || released.lock().is_ok_and(|released| released.recv().is_err())).await;
            });
        }
        settle().await;
        assert_eq!((offload(|| 1).await, spawn_blocking(|| 2).await), (Some(1), Some(2)));
        assert_eq!((offload_settings(|| 4).await, offload_password(|| 5).await), (Some(4), Some(5)));
        drop(release);
        assert_eq!(offload_file(|| 3).await, Some(3));
    });
}

#[test]
fn a_disk_that_does_not_respond_delays_no_work_in_other_directories() {
    run(|_| async {
        let (slow, fast) = (Path::new("/slow"), Path::new("/fast"));
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        // More jobs than threads and slots of the queue.
        for _ in 0..2 * QUEUE_MAX {
            let released = std::sync::Arc::clone(&released);
            let wait = move || released.lock().is_ok_and(|released| released.recv().is_err());
            spawn(async move { assert_eq!(offload_file_in(slow, wait).await, Some(true)) });
        }
        settle().await;
        assert_eq!((offload_file_in(fast, || 1).await, offload_file(|| 2).await), (Some(1), Some(2)));
        drop(release);
        assert_eq!(offload_file_in(slow, || 3).await, Some(3));
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
fn work_waits_for_a_slot_in_a_full_queue() {
    run(|_| async {
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        let done = Rc::new(Cell::new(0));
        for _ in 0..QUEUE_MAX + 20 {
            let (done, released) = (Rc::clone(&done), std::sync::Arc::clone(&released));
            spawn(async move {
                spawn_blocking(move || released.lock().is_ok_and(|released| released.recv().is_err())).await;
                done.set(done.get() + 1);
            });
        }
        settle().await;
        let abandoned = spawn_blocking(|| ());
        assert!(matches!(select(abandoned, settle()).await, Either::Right(())), "the queue is full");
        assert_eq!(done.get(), 0);
        drop(release);
        while done.get() < QUEUE_MAX + 20 {
            yield_now().await;
        }
    });
}
