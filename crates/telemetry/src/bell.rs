//! Wakes the task that writes lines: one waiter, no allocation.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Many senders, one receiver. A ring without a waiter is remembered once.
#[derive(Default)]
pub(super) struct Bell {
    rung: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl Bell {
    /// Wakes the waiter, or lets the next wait end at once.
    pub(super) fn ring(&self) {
        self.rung.set(true);
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }

    /// Waits for a ring.
    pub(super) async fn wait(&self) {
        poll_fn(|context| {
            if self.rung.replace(false) {
                return Poll::Ready(());
            }
            // A waker is counted, so this copy allocates nothing.
            self.waiter.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
