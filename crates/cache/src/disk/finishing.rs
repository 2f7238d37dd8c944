//! [`Finishing`]: a change of the disk that completes even if its caller is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that continues to its end in a task when it is dropped after its first poll.
pub(crate) struct Finishing<T: 'static> {
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    is_started: bool,
}

impl<T: 'static> Finishing<T> {
    pub(crate) fn new(future: impl Future<Output = T> + 'static) -> Finishing<T> {
        Finishing { future: Some(Box::pin(future)), is_started: false }
    }
}

impl<T: 'static> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.is_started = true;
        let future = self.future.as_mut().expect("a future is not polled after its end");
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T: 'static> Drop for Finishing<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take().filter(|_| self.is_started) {
            rt::spawn(async move {
                future.await;
            });
        }
    }
}
