//! Wakes the manager from any thread: [`Wakeup`].

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use crate::mutex::lock;

/// A wake-up from any thread for one waiting task. A wake-up before the wait is not lost.
#[derive(Debug, Default)]
pub(crate) struct Wakeup(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    is_woken: bool,
    waiter: Option<Waker>,
}

impl Wakeup {
    /// Wakes the waiting task, or makes its next wait return immediately.
    pub(crate) fn wake(&self) {
        let mut pending = lock(&self.0);
        pending.is_woken = true;
        let waiter = pending.waiter.take();
        drop(pending);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Waits for a wake-up since the last wait.
    pub(crate) async fn woken(&self) {
        poll_fn(|context| {
            let mut pending = lock(&self.0);
            if std::mem::take(&mut pending.is_woken) {
                return Poll::Ready(());
            }
            pending.waiter = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
