//! Wakes the task that writes log lines. Supports one waiting task; needs no allocation.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A signal from many senders to one receiver. One signal is stored if no task waits.
#[derive(Default)]
pub(super) struct Bell {
    rung: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl Bell {
    /// Wakes the waiting task, or lets the next wait return immediately.
    pub(super) fn ring(&self) {
        self.rung.set(true);
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }

    /// Waits for a signal.
    pub(super) async fn wait(&self) {
        poll_fn(|context| {
            if self.rung.replace(false) {
                return Poll::Ready(());
            }
            // A waker has a reference count, so cloning it allocates no memory.
            self.waiter.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
