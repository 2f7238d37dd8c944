//! Model of the hand-over between threads: no message and no end is missed, whatever the interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rt --test loom_mailbox --release`

#![cfg(loom)]

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Condvar, Mutex};
use loom::thread;
use rt::mailbox::{Receiver, Sender, channel};
use rt::remote::{Remote, TaskId};

/// A stand-in for the engine: a wait that ends when the bell is rung, before or meanwhile.
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl io::engine::Wake for Bell {
    fn wake(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The waker of the one task, as the runtime makes it.
struct Header(Arc<Remote>);

impl Wake for Header {
    fn wake(self: Arc<Header>) {
        self.0.push(TaskId { slot: 0, generation: 0 });
    }
}

/// The runtime's loop around a task that adds up messages until there is no sender left. A lost wake-up
/// leaves it in the wait for ever, which loom reports as a deadlock.
fn read_all(mut receiver: Receiver<u32>, remote: &Arc<Remote>, bell: &Bell) -> u32 {
    let waker = Waker::from(Arc::new(Header(Arc::clone(remote))));
    let (mut sum, mut woken) = (0, Vec::new());
    loop {
        match receiver.poll_recv(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(message)) => {
                sum += message;
                continue;
            }
            Poll::Ready(None) => return sum,
            Poll::Pending => {}
        }
        while woken.is_empty() {
            if remote.begin_sleep() {
                bell.wait();
            }
            remote.end_sleep();
            remote.take(&mut woken);
        }
        woken.clear();
    }
}

fn model(senders: u32, messages: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let bell = Arc::new(Bell { rung: Mutex::new(false), heard: Condvar::new() });
        let remote = Arc::new(Remote::new(io::engine::Waker::new(Arc::clone(&bell) as _)));
        let (sender, receiver) = channel::<u32>(8);
        let send = |sender: Sender<u32>| {
            thread::spawn(move || (1..=messages).for_each(|message| sender.send(message).unwrap()))
        };
        let threads: Vec<_> = (0..senders).map(|_| send(sender.clone())).collect();
        drop(sender);
        let sum = read_all(receiver, &remote, &bell);
        assert_eq!(sum, senders * (1..=messages).sum::<u32>());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_sender_is_heard() {
    model(1, 2);
}

#[test]
fn two_senders_are_heard() {
    model(2, 1);
}
