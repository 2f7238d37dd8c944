//! Model of a watch: no watcher misses a number or the end in any interleaving, and a watcher that is dropped does not
//! affect the others.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rt --test loom_watch --release`

#![cfg(loom)]

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Condvar, Mutex};
use loom::thread;
use rt::watch::{Closed, Waiting, Watcher, channel};

/// A thread that sleeps until it is woken. A lost wake-up makes it sleep forever, which loom reports as a deadlock.
struct Sleeper {
    woken: Mutex<bool>,
    heard: Condvar,
}

impl Sleeper {
    fn new() -> Arc<Sleeper> {
        Arc::new(Sleeper { woken: Mutex::new(false), heard: Condvar::new() })
    }

    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.heard.wait(woken).unwrap();
        }
        *woken = false;
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Sleeper>) {
        *self.woken.lock().unwrap() = true;
        self.heard.notify_one();
    }
}

/// Waits for each number until the end; returns the last number.
fn follow(watcher: &Watcher) -> u64 {
    let sleeper = Sleeper::new();
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut waiting = Waiting::new(watcher);
    let mut seen = 0;
    loop {
        match waiting.poll_above(seen, &mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(value)) => {
                assert!(value > seen);
                seen = value;
            }
            Poll::Ready(Err(Closed)) => return seen,
            Poll::Pending => sleeper.sleep(),
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn one_watcher_sees_the_last_number_and_the_end() {
    check(|| {
        let (publisher, watcher) = channel(0);
        let publishes = thread::spawn(move || (1..=2).for_each(|value| publisher.publish(value)));
        assert_eq!(follow(&watcher), 2);
        publishes.join().unwrap();
    });
}

#[test]
fn two_watchers_see_the_end() {
    check(|| {
        let (publisher, watcher) = channel(0);
        let other = watcher.clone();
        let follows = thread::spawn(move || follow(&other));
        let publishes = thread::spawn(move || publisher.publish(1));
        assert_eq!(follow(&watcher), 1);
        assert_eq!(follows.join().unwrap(), 1);
        publishes.join().unwrap();
    });
}

#[test]
fn a_dropped_watcher_loses_no_wake_up_of_another() {
    check(|| {
        let (publisher, watcher) = channel(0);
        let other = watcher.clone();
        let leaves = thread::spawn(move || {
            let waker = Waker::from(Sleeper::new());
            let _ = Waiting::new(&other).poll_above(0, &mut Context::from_waker(&waker));
        });
        let publishes = thread::spawn(move || publisher.publish(1));
        assert_eq!(follow(&watcher), 1);
        leaves.join().unwrap();
        publishes.join().unwrap();
    });
}
