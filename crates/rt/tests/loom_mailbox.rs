//! Model of the communication between threads, with the engine's doorbell: no message and no end is lost, in any
//! interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rt --test loom_mailbox --release`

#![cfg(loom)]

#[path = "../../io/src/doorbell/bell.rs"]
mod bell;

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bell::Bell;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use rt::mailbox::{Receiver, Sender, channel};
use rt::remote::{Remote, TaskId};

/// A replacement of the engine: its doorbell, with a counter instead of a descriptor.
struct Engine {
    bell: Bell,
    writes: Mutex<u32>,
    written: Condvar,
}

impl io::engine::Wake for Engine {
    fn wake(&self) -> bool {
        let was_asleep = self.bell.ring();
        if was_asleep {
            *self.writes.lock().unwrap() += 1;
            self.written.notify_one();
        }
        was_asleep
    }
}

impl Engine {
    /// Runs a turn that may wait.
    fn turn(&self) {
        if self.bell.fall_asleep() {
            let mut writes = self.writes.lock().unwrap();
            while *writes == 0 {
                writes = self.written.wait(writes).unwrap();
            }
            *writes = 0;
        }
        self.bell.wake_up();
    }
}

/// The waker of the only task, as the runtime implements it.
struct Header(Arc<Remote>);

impl Wake for Header {
    fn wake(self: Arc<Header>) {
        self.0.push(TaskId { slot: 0, generation: 0 });
    }
}

/// Runs the runtime's loop around a task that adds up messages until all senders are dropped. After a lost wake-up the
/// loop would wait forever, which loom reports as a deadlock.
fn read_all(mut receiver: Receiver<u32>, remote: &Arc<Remote>, engine: &Engine) -> u32 {
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
            engine.turn();
            remote.take(&mut woken);
        }
        woken.clear();
    }
}

fn model(senders: u32, messages: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let (writes, written) = (Mutex::new(0), Condvar::new());
        let engine = Arc::new(Engine { bell: Bell::new(), writes, written });
        let remote = Arc::new(Remote::new(Arc::clone(&engine) as io::engine::Waker));
        let (sender, receiver) = channel::<u32>(8);
        let send = |sender: Sender<u32>| {
            thread::spawn(move || (1..=messages).for_each(|message| sender.send(message).unwrap()))
        };
        let threads: Vec<_> = (0..senders).map(|_| send(sender.clone())).collect();
        drop(sender);
        let sum = read_all(receiver, &remote, &engine);
        assert_eq!(sum, senders * (1..=messages).sum::<u32>());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_message_of_one_sender_is_received() {
    model(1, 2);
}

#[test]
fn messages_of_two_senders_are_received() {
    model(2, 1);
}
