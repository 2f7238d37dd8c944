//! The end of the requests in flight when `worker_shutdown_timeout` has passed.
//!
//! Each request ends by itself, so that its log lines are written. Its state would be larger if it waited for an event of its thread;
//! therefore all tasks are polled once, and those that still wait find out here.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

thread_local! {
    static BEGUN: Cell<bool> = const { Cell::new(false) };
}

/// Ends all requests in flight of this thread.
pub fn begin() {
    BEGUN.set(true);
    rt::wake_all_tasks();
}

/// Whether requests in flight must end. A task that waits is polled when this changes.
pub fn has_begun() -> bool {
    BEGUN.get()
}

/// Runs a future to its end; `None` if it waits for something when requests in flight must end.
pub fn unless<F: Future + Unpin>(future: F) -> Unless<F> {
    Unless(future)
}

/// The future of [`unless`].
pub struct Unless<F>(F);

impl<F: Future + Unpin> Future for Unless<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Pending if has_begun() => Poll::Ready(None),
            polled => polled.map(Some),
        }
    }
}
