//! A watch between threads over real engines: many tasks wait, and one ring of the doorbell wakes them.

use std::rc::Rc;
use std::sync::mpsc;

use rt::local::WaitGroup;
use rt::thread::{Setup, start};
use rt::{counters, spawn, watch, yield_now};

use super::common::{PATIENCE, on_each_net};

const TASKS: usize = 100;
const STEPS: u64 = 20;

#[test]
fn many_tasks_of_a_thread_are_woken_by_one_wake_up() {
    on_each_net(|pair| {
        let (publisher, watcher) = watch::channel(0);
        let (report, reported) = mpsc::channel();
        let setup = Setup { name: "watch".into(), cpus: vec![], panic_hook: None };
        let build = move || io::build(pair.config());
        let worker = start(setup, PATIENCE, build, move |_| async move {
            let (watcher, gauge) = (Rc::new(watcher), WaitGroup::new());
            let mut rings = Vec::new();
            for step in 0..STEPS {
                for _ in 0..TASKS {
                    let (watcher, counted) = (Rc::clone(&watcher), gauge.enter());
                    spawn(async move {
                        assert_eq!(watcher.above(step).await, Ok(step + 1));
                        drop(counted);
                    });
                }
                // All of them have registered when this task runs again.
                yield_now().await;
                let before = counters().wakeups;
                report.send(step).unwrap();
                gauge.wait_empty().await;
                rings.push(counters().wakeups - before);
            }
            assert_eq!(watcher.above(STEPS).await, Err(watch::Closed));
            (rings, counters().panics)
        });
        let worker = worker.unwrap();
        for step in 0..STEPS {
            assert_eq!(reported.recv_timeout(PATIENCE), Ok(step));
            publisher.publish(step + 1);
        }
        drop(publisher);
        let ((rings, panics), drained) = worker.join().unwrap();
        assert_eq!(panics, 0);
        // A ring may be counted with the previous step.
        assert!(rings.iter().sum::<u64>() <= STEPS, "{rings:?} rings for {TASKS} tasks each");
        assert_eq!(drained, io::Drained::Clean);
    });
}
