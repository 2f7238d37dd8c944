//! Tests of the runtime over a scripted engine.

mod buffers;
mod drops;
mod executor;
pub(crate) mod fake;
mod files;
#[cfg(not(loom))]
mod helper_pool;
mod net;
mod plain_calls;
mod threads;
mod timers;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use io::Drained;

use crate::{Runtime, spawn, yield_now};
use fake::Fake;

/// Runs a test's future on a runtime over a scripted engine, and checks that no operation remains in flight.
fn run<F: Future<Output = ()>>(test: impl FnOnce(Fake) -> F) {
    let fake = Fake::new();
    let mut runtime = Runtime::new(Box::new(fake.clone()));
    runtime.block_on(test(fake.clone()));
    assert_eq!(runtime.shutdown(Instant::now()), Drained::Clean, "in flight: {:?}", fake.flying());
}

/// Starts a task whose output can be read.
fn watch<T: 'static>(future: impl Future<Output = T> + 'static) -> Rc<Cell<Option<T>>> {
    let output = Rc::new(Cell::new(None));
    let place = Rc::clone(&output);
    spawn(async move { place.set(Some(future.await)) });
    output
}

/// Polls once, which starts the operation, and drops the future.
async fn start_and_drop(future: impl Future) {
    let mut future = pin!(future);
    let pending = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await;
    assert!(pending, "it waits");
}

/// Runs tasks and engine until nothing changes any more.
async fn settle() {
    for _ in 0..4 {
        yield_now().await;
    }
}

/// Returns a connected pair of sockets; the scripted engine never uses the first one.
fn pair() -> (std::os::fd::OwnedFd, std::os::unix::net::UnixStream) {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    (near.into(), far)
}
