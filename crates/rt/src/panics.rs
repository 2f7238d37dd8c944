//! Panics, which are faults of the program: [`catch`] limits a panic to one future, and [`count`] counts all caught panics.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// File and line of the last panic of this thread.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The cause of a panic that was caught: its text, and its file and line after [`note_places`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic(String);

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Notes file and line of each panic of this process from now on, in addition to the process's panic hook.
pub fn note_places() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(location) = info.location() {
                // A panic during the end of a thread has no cell any more.
                let _ = PLACE.try_with(|noted| noted.replace(location.to_string()));
            }
            before(info);
        }));
    });
}

/// Returns the number of panics that were caught in this process: of tasks, of work on other threads, and by [`catch`].
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Counts a caught panic; returns its cause. Called on the thread that panicked.
pub(crate) fn caught(thrown: &(dyn Any + Send)) -> Panic {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let text = match (thrown.downcast_ref::<&str>(), thrown.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text.as_str(),
        (None, None) => "a panic without text",
    };
    let location = PLACE.take();
    Panic(if location.is_empty() { text.to_owned() } else { format!("{text}, at {location}") })
}

/// Runs a future; a panic ends it and is returned. The state that the future has borrowed must be valid after any step.
pub fn catch<F: Future>(future: Pin<&mut F>) -> Catch<'_, F> {
    Catch(future)
}

/// The future of [`catch`].
pub struct Catch<'f, F>(Pin<&'f mut F>);

impl<F: Future> Future for Catch<'_, F> {
    type Output = Result<F::Output, Panic>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<F::Output, Panic>> {
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(thrown) => Poll::Ready(Err(caught(&*thrown))),
        }
    }
}

/// Runs a function; a panic ends it and is returned. The state that it has borrowed must be valid after any step.
///
/// # Errors
/// The function panicked.
pub fn catch_call<T>(call: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|thrown| caught(&*thrown))
}
